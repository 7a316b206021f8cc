"""The tables of a comparison: one line for each run; or, of several seeds, means with intervals, and differences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from fairlead.cli.table import print_table
from fairlead.sim.experiment import Result
from fairlead.sim.intervals import Interval
from fairlead.sim.report.differences import Told, told
from fairlead.sim.report.results import baseline_label, cases, label_of
from fairlead.sim.report.runs import Case, Entry
from fairlead.sim.report.wording import NONE, TABLE

#: What a comparison shows of each run: heading and metric.
_COLUMNS = (
    ("mean JCT", "jct_mean_s"),
    ("median", "jct_p50_s"),
    ("p99", "jct_p99_s"),
    ("no GPUs", "queue_mean_s"),
    ("makespan", "makespan_s"),
    ("worst rho", "rho_worst"),
    ("unfair", "unfair_share"),
    ("in use", "utilisation"),
    ("restarts/job", "restarts_per_job"),
)
_FORMS = {row.field: row.form for _, rows in TABLE for row in rows}


def print_comparison(results: Sequence[Result], title: str, *, baseline: str | None) -> None:
    """For people; `title` says what was run."""
    seeds = len({result.experiment.seed for result in results})
    if seeds > 1:
        lines, heads = _means(results)
        print_table(f"{title}\nmeans over {seeds} seeds ± half of their 95 % confidence interval", lines, heads=heads)
    else:
        lines, heads = _runs(results)
        print_table(title, lines, heads=heads)
    if (baseline is not None or seeds > 1) and len({label_of(result) for result in results}) > 1:
        label = baseline_label(results, baseline)
        lines, heads, shares = _differences(results, label)
        paired = ", seed by seed, ± half of the 95 % confidence interval; * it excludes 0" if seeds > 1 else ""
        own = "" if shares else f"\nwithout %: the difference itself, where {escape(label)} has 0"
        print_table(f"difference from {escape(label)}{paired}{own}", lines, heads=heads)


def _heads(results: Sequence[Result]) -> list[str]:
    return ["policy", *["load"] * (len({result.experiment.load for result in results}) > 1)]


def _runs(results: Sequence[Result]) -> tuple[list[list[str]], int]:
    """The main metrics of many runs, and how many columns say which run it is."""
    heads = _heads(results)
    lines = [[*heads, "jobs", *(heading for heading, _ in _COLUMNS), "decision"]]
    for result in results:
        figures = result.to_dict()
        lines.append(
            [
                *(escape(label_of(result)), *[_plain(result.experiment.load)] * (len(heads) > 1)),
                _jobs(figures["jobs"], figures["unfinished"]),
                *(NONE if figures[name] is None else _FORMS[name](figures[name]) for _, name in _COLUMNS),
                f"{result.decision_ms_mean:.2f} ms",
            ]
        )
    return lines, len(heads)


def _means(results: Sequence[Result]) -> tuple[list[list[str]], int]:
    heads = _heads(results)
    lines = [[*heads, "jobs", *(heading for heading, _ in _COLUMNS), "decision"]]
    for case in cases(results):
        for entry in case.entries:
            jobs = sum(run.metrics.jobs for run in entry.runs)
            lines.append(
                [
                    *_who(case, entry, heads),
                    _jobs(jobs, entry.unfinished),
                    *(_mean(entry.interval(name), name) for _, name in _COLUMNS),
                    f"{entry.mean('decision_ms_mean') or 0.0:.2f} ms",
                ]
            )
    return lines, len(heads)


def _differences(results: Sequence[Result], baseline: str) -> tuple[list[list[str]], int, bool]:
    """The lines, how many columns say which run it is, and whether all differences are shares of the baseline."""
    heads, shares = _heads(results), True
    lines = [[*heads, *(heading for heading, _ in _COLUMNS)]]
    for case in cases(results):
        other = case.entry(baseline)
        for entry in case.entries:
            if other is not None and entry is not other:
                cells = [told(entry.against(other, name), _FORMS[name]) for _, name in _COLUMNS]
                shares = shares and all(cell.share for cell in cells)
                lines.append([*_who(case, entry, heads), *map(_apart, cells)])
    return lines, len(heads), shares


def _who(case: Case, entry: Entry, heads: Sequence[str]) -> list[str]:
    return [escape(entry.label), *[_plain(case.load)] * (len(heads) > 1)]


def _plain(load: float | None) -> str:
    return NONE if load is None else f"{load:g}"


def _jobs(jobs: int, left: int) -> str:
    return f"[bold red]{jobs - left} of {jobs}[/]" if left else str(jobs)


def _mean(found: Interval | None, name: str) -> str:
    if found is None:
        return NONE
    form = _FORMS[name]
    return form(found.mean) if found.half is None else f"{form(found.mean)} ± {form(found.half)}"


def _apart(found: Told) -> str:
    """As a share of the baseline, or in the figure's own unit where that is 0; a star where the seeds show it."""
    return f"{found.text}{f' ± {found.spread}' if found.spread else ''}{' *' if found.sure else ''}"
