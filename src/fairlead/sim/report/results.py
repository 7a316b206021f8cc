"""From results of experiments to the runs that tables and reports compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.metrics import Metrics
from fairlead.sim.report.page import write_report
from fairlead.sim.report.runs import Case, Run, cases_of

#: Figures of which a comparison gives the mean over seeds: every number among the metrics.
FIGURES = tuple(f.name for f in fields(Metrics) if f.name != "unfinished_ids")


def label_of(result: Result) -> str:
    """A policy as tables call it."""
    return f"{result.experiment.policy} (oracle)" if result.oracle else result.experiment.policy


def setting_of(run: Experiment) -> dict[str, str]:
    """What a report says of a run: always where, when and at what cost; the rest if it is not the default."""
    always = ("cluster", "cadence", "costs", "seed", "load")
    return {
        f.name: str(value)
        for f in fields(run)
        if (value := getattr(run, f.name)) is not None and (f.name in always or value not in (f.default, run.trace))
    }


def runs_of(results: Sequence[Result]) -> list[Run]:
    return [
        Run.of(
            result.measured,
            label=label_of(result),
            oracle=result.oracle,
            setting=setting_of(result.experiment),
            extra={"decision_ms_mean": result.decision_ms_mean, "wall_s": result.wall_s},
        )
        for result in results
    ]


def baseline_label(results: Sequence[Result], baseline: str | None) -> str:
    """The label of the policy that others are compared with: the one that is named, or else the first."""
    labels = {result.experiment.policy: label_of(result) for result in reversed(results)}
    if baseline is None:
        return label_of(results[0])
    if baseline not in labels:
        raise InvalidSpec(f"the baseline {baseline!r} is none of the policies: {', '.join(reversed(labels))}")
    return labels[baseline]


def over_seeds(case: Case, label: str, baseline: str) -> dict[str, Any]:
    """A policy's figures over all seeds of a case: means with intervals, and paired differences from the baseline."""
    entry, other = case.entry(label), case.entry(baseline)
    assert entry is not None
    found: dict[str, Any] = {}
    for name in FIGURES:
        if (mean := entry.interval(name)) is None:
            continue
        found[name] = mean.to_dict()
        if other is not None and other is not entry and (apart := entry.against(other, name)) is not None:
            found[name]["difference"] = apart.to_dict()
    return {"seeds": len(entry.runs), "baseline": baseline, "figures": found}


def cases(results: Sequence[Result]) -> tuple[Case, ...]:
    return cases_of(runs_of(results))


def save_report(path: Path, results: Sequence[Result], *, baseline: str | None = None) -> None:
    """Write the comparison of results as an HTML page."""
    title = Path(results[0].experiment.trace).name
    write_report(path, runs_of(results), title=title, baseline=baseline_label(results, baseline))
