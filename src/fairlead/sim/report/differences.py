"""How policies differ from a baseline, seed by seed: in words, which a terminal shares, and as the page's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from fairlead.sim.intervals import Difference
from fairlead.sim.report import wording
from fairlead.sim.report.runs import Case
from fairlead.sim.report.wording import NONE, change, percent


class Told(NamedTuple):
    """A difference in words."""

    text: str
    #: Half of its confidence interval; None for one seed, or where it is nothing.
    spread: str | None
    #: The interval leaves out 0.
    sure: bool
    #: It is a share of the baseline; else, where the baseline is 0, it is in the figure's own unit.
    share: bool


def told(found: Difference | None, form: Callable[[float], str]) -> Told:
    """`form` says how the figure itself reads."""
    if found is None:
        return Told(NONE, None, sure=False, share=True)
    if found.absolute.mean == 0.0 and not found.absolute.half:
        return Told(percent(0.0), None, sure=False, share=True)
    sure = found.absolute.excludes_zero
    if found.relative is not None:
        spread = percent(found.relative.half) if found.relative.half else None
        return Told(change(found.relative.mean), spread, sure, share=True)
    mean, half = found.absolute.mean, found.absolute.half
    text = f"{'+' if mean > 0 else ''}{_own(mean, form)}"
    return Told(text, _own(half, form) if half else None, sure, share=False)


def _own(value: float, form: Callable[[float], str]) -> str:
    """In the figure's own unit. A difference of shares is in points: % are shares of the baseline here."""
    return f"{100 * value:.1f}\u00a0points" if form is percent else form(value)


#: What the differences from a baseline are shown of, and how it is called above its column.
_COMPARED = (
    ("jct_mean_s", "mean time"),
    ("jct_p50_s", "median"),
    ("jct_p99_s", "p99"),
    ("queue_mean_s", "without GPUs"),
    ("makespan_s", "makespan"),
    ("rho_worst", "worst rho"),
    ("unfair_share", "rho > 1.05"),
    ("restarts_per_job", "restarts/job"),
)


def differences_table(case: Case, baseline: str | None, number: int) -> str:
    """As HTML: a line for each policy but the baseline; nothing if there is none to compare."""
    other = None if baseline is None else case.entry(baseline)
    if other is None or len(case.entries) < 2:
        return ""
    forms = {row.field: row.form for _, rows in wording.TABLE for row in rows}
    lines = {
        entry.label: [told(entry.against(other, name), forms[name]) for name, _ in _COMPARED]
        for entry in case.entries
        if entry is not other
    }
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(map(_cell, cells))}</tr>' for label, cells in lines.items()
    )
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for _, heading in _COMPARED)
    note = _note(other.label, len(other.runs), [cell for cells in lines.values() for cell in cells])
    return (
        f'<div class="differences" data-case="{number}"><h2>Against {escape(other.label)}</h2>'
        f'<p class="note">{escape(note)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Differences from {escape(other.label)}"><table><thead><tr><th scope="col">'
        f'<span class="sr">policy</span></th>{heads}</tr></thead><tbody>{body}</tbody></table></div></div>'
    )


def _note(baseline: str, seeds: int, cells: Sequence[Told]) -> str:
    said = [f"In % of what {baseline} has."]
    if any(not cell.share for cell in cells):
        said.append(f"Where {baseline} has 0, the difference itself, in the figure's own unit and without %.")
    said.append(
        f"Mean of the differences seed by seed over {seeds} seeds, ± half of its 95 % confidence interval. Where the "
        "interval leaves out 0 the difference is there, as far as these seeds tell: it is printed in bold."
        if seeds > 1
        else "One seed: how much of it is chance cannot be told. Several seeds give intervals."
    )
    return " ".join(said)


def _cell(cell: Told) -> str:
    bold = f"<b>{cell.text}</b>" if cell.sure else cell.text
    return f"<td>{bold}{f' <small>± {cell.spread}</small>' if cell.spread else ''}</td>"
