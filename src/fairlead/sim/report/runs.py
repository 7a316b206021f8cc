"""What a report compares: runs, sorted into cases (what was varied) and policies, seeds averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.sim.intervals import Difference, Interval, difference, interval
from fairlead.sim.metrics import JobOutcome, Measured, Metrics
from fairlead.sim.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy in one setting."""

    #: The policy, as the report should call it.
    label: str
    #: It knew how long jobs would run: a yardstick, not a contender.
    oracle: bool = False
    #: What was run: policy, trace, cluster, cadence, costs, load, seed... `seed` is averaged over, `load` is swept.
    setting: Mapping[str, str] = field(default_factory=dict)
    metrics: Metrics
    #: More figures; the end of a name is its unit: decision_ms_mean, wall_s.
    extra: Mapping[str, float | None] = field(default_factory=dict)
    jobs: Sequence[JobOutcome] = ()
    timeline: Timeline | None = None

    @staticmethod
    def of(
        measured: Measured,
        *,
        label: str,
        oracle: bool = False,
        setting: Mapping[str, str] | None = None,
        extra: Mapping[str, float | None] | None = None,
    ) -> Run:
        return Run(
            label=label,
            oracle=oracle,
            setting=setting or {},
            metrics=measured.summary,
            extra=extra or {},
            jobs=measured.jobs,
            timeline=measured.timeline,
        )

    def figure(self, name: str) -> float | None:
        """A metric or an extra by name; None if it is unknown."""
        value = getattr(self.metrics, name) if name in Metrics.__dataclass_fields__ else self.extra.get(name)
        return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy in a case: one run per seed."""

    label: str
    runs: tuple[Run, ...]

    def mean(self, name: str) -> float | None:
        found = self.interval(name)
        return None if found is None else found.mean

    def interval(self, name: str) -> Interval | None:
        """The mean over seeds and its confidence interval; None if no run has the figure."""
        return interval(list(self._values(name).values()))

    def against(self, baseline: Entry, name: str) -> Difference | None:
        """How a figure differs from that of another policy in the same case, seed by seed."""
        return difference(self._values(name), baseline._values(name))

    @property
    def oracle(self) -> bool:
        return any(run.oracle for run in self.runs)

    @property
    def unfinished(self) -> int:
        return sum(run.metrics.unfinished for run in self.runs)

    def _values(self, name: str) -> dict[str, float]:
        """By seed, or by place where runs have no seed."""
        figures = [(run.setting.get("seed", f"run {n}"), run.figure(name)) for n, run in enumerate(self.runs)]
        return {seed: value for seed, value in figures if value is not None}


@dataclass(frozen=True, slots=True)
class Case:
    """All policies in one setting."""

    #: What tells it from the other cases, such as "load 0.8"; empty if there is only one.
    name: str
    load: float | None
    entries: tuple[Entry, ...]

    @property
    def ranked(self) -> tuple[Entry, ...]:
        """The policies that left the fewest jobs unfinished: only among them do averages compare. No oracle wins."""
        contenders = [entry for entry in self.entries if not entry.oracle] or self.entries
        least = min(entry.unfinished for entry in contenders)
        return tuple(entry for entry in contenders if entry.unfinished == least)

    @property
    def oracles(self) -> tuple[Entry, ...]:
        """Yardsticks beside the contenders."""
        return tuple(entry for entry in self.entries if entry.oracle and entry not in self.ranked)

    def best(self, name: str, *, sign: int) -> float | None:
        """The best mean among the policies that finished the most jobs; None if it singles none out."""
        values = [v for entry in self.ranked if (v := entry.mean(name)) is not None]
        if not sign or len(values) < 2 or max(values) == min(values):
            return None
        return max(values) if sign > 0 else min(values)

    def alike(self, name: str, *, sign: int) -> tuple[Entry, ...]:
        """The policies that the seeds cannot tell from the best: the interval of the paired difference holds 0."""
        if (top := self.best(name, sign=sign)) is None:
            return ()
        first = next(entry for entry in self.ranked if entry.mean(name) == top)
        return tuple(entry for entry in self.ranked if entry is not first and _is_alike(entry, first, name))

    def entry(self, label: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.label == label), None)


def _is_alike(entry: Entry, best: Entry, name: str) -> bool:
    found = entry.against(best, name)
    return found is not None and found.absolute.half is not None and not found.absolute.excludes_zero


#: Settings that never make a case: the first is the policy itself, the second is averaged over.
_NOT_A_CASE = ("policy", "seed")


def common_setting(runs: Sequence[Run]) -> dict[str, str]:
    """What all runs have in common."""
    names = dict.fromkeys(name for run in runs for name in run.setting)
    values = {name: {run.setting.get(name) for run in runs} for name in names}
    return {name: str(next(iter(found))) for name, found in values.items() if len(found) == 1 and name != "policy"}


def own_settings(runs: Sequence[Run], varied: Sequence[str]) -> list[str]:
    """Settings in which policies differ though no policy was tried with several: a cadence each, say."""
    names = dict.fromkeys(name for run in runs for name in run.setting)
    skip = {*common_setting(runs), *varied, *_NOT_A_CASE}
    return [name for name in names if name not in skip]


def varied_settings(runs: Sequence[Run]) -> list[str]:
    """Settings of which some policy was tried with several values."""
    seen: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for name, value in run.setting.items():
            seen.setdefault((name, run.label), set()).add(value)
    return list(dict.fromkeys(name for (name, _), found in seen.items() if len(found) > 1 and name not in _NOT_A_CASE))


def cases_of(runs: Sequence[Run]) -> tuple[Case, ...]:
    """In order of load, else of appearance; policies in order of first appearance everywhere."""
    varied = varied_settings(runs)
    grouped: dict[tuple[str, ...], dict[str, list[Run]]] = {}
    for run in runs:
        key = tuple(run.setting.get(name, "") for name in varied)
        grouped.setdefault(key, {}).setdefault(run.label, []).append(run)
    labels = list(dict.fromkeys(run.label for run in runs))
    cases = [
        Case(
            name=", ".join(f"{name} {value}" for name, value in zip(varied, key, strict=True)),
            load=_number(dict(zip(varied, key, strict=True)).get("load")),
            entries=tuple(Entry(label, tuple(group[label])) for label in labels if label in group),
        )
        for key, group in grouped.items()
    ]
    return tuple(sorted(cases, key=lambda case: float("-inf") if case.load is None else case.load))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
