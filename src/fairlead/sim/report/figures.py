"""Every figure of every policy as numbers: what a reader saves from the tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fairlead.sim.report import wording
from fairlead.sim.report.runs import Case, Entry, Run, varied_settings
from fairlead.sim.report.wording import Row

_UNITS = {wording.duration: "s", wording.percent: "share", wording.ratio: "ratio"}
#: Of figures whose form does not tell their unit.
_NAMED_UNITS = {"restarts_per_job": "restarts per job", "node_hours": "node-hours", "cost": "price"}


def unit_of(row: Row) -> str:
    """The unit of a figure's numbers, as opposed to how it is printed."""
    if row.field in _NAMED_UNITS:
        return _NAMED_UNITS[row.field]
    if "_ms" in row.field:
        return "ms"
    return "GPU-hours" if row.field.startswith("gpu_h_") else _UNITS.get(row.form, "count")


def figures_data(cases: Sequence[Case], runs: Sequence[Run], baseline: str | None) -> dict[str, Any]:
    """For the page's script: of each case and policy, in their order, the numbers of each figure, in its order."""
    extras = dict.fromkeys(name for run in runs for name in run.extra)
    rows = [row for _, group in wording.TABLE for row in group] + [wording.extra_row(name) for name in extras]
    names, varied = [row.field for row in rows], varied_settings(runs)
    return {
        "figures": [[row.field, unit_of(row)] for row in rows],
        "settings": varied,
        "baseline": baseline,
        "cases": [
            {
                "setting": [case.entries[0].runs[0].setting.get(name, "") for name in varied],
                "entries": [
                    _numbers(entry, names, None if baseline is None else case.entry(baseline)) for entry in case.entries
                ],
            }
            for case in cases
        ],
    }


def _numbers(entry: Entry, names: Sequence[str], baseline: Entry | None) -> dict[str, Any]:
    found = [entry.interval(name) for name in names]
    data = {
        "mean": _short(None if each is None else each.mean for each in found),
        "half": _short(None if each is None else each.half for each in found),
        "n": [0 if each is None else each.n for each in found],
        "unfinished": entry.unfinished,
    }
    if baseline is None or baseline is entry:
        return data
    apart = [entry.against(baseline, name) for name in names]
    relative = [None if each is None else each.relative for each in apart]
    return data | {
        "difference": _short(None if each is None else each.absolute.mean for each in apart),
        "difference_half": _short(None if each is None else each.absolute.half for each in apart),
        "relative": _short(None if each is None else each.mean for each in relative),
        "relative_half": _short(None if each is None else each.half for each in relative),
        "pairs": [0 if each is None else each.absolute.n for each in apart],
    }


def _short(values: Iterable[float | None]) -> list[float | None] | None:
    """Nine significant digits; None for nothing at all."""
    numbers = [None if value is None else _number(value) for value in values]
    return None if all(number is None for number in numbers) else numbers


def _number(value: float) -> float:
    short = float(f"{value:.9g}")
    return int(short) if short.is_integer() else short
