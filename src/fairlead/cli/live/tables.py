"""Tables of text: who gets how many columns, and what is left out where there is no room. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

T = TypeVar("T")

_GAP = 2
#: The column that is cut keeps this much, or others make way for it.
_LEAST = 16


@dataclass(frozen=True)
class Look:
    """What a table is drawn for."""

    now: float
    #: How many characters fit into a line; None if nobody counts them.
    width: int | None = None
    #: Bars are for people.
    bars: bool = False
    #: There are no block characters.
    ascii: bool = False


@dataclass(frozen=True)
class Column(Generic[T]):
    """A heading, and what stands below it for each row."""

    title: str
    cell: Callable[[T, Look], str | Text]
    right: bool = False
    #: Of a table too wide, those with the highest number go first; 0 stays.
    spare: int = 0
    #: Is shortened to whatever room is left.
    cut: bool = False


def lay_out(columns: Sequence[Column[T]], rows: Sequence[T], look: Look, *, headers: bool = True) -> list[Text]:
    """The lines of a table. Nothing follows the last column, so that lines end where their text does."""
    cells = [[_text(column.cell(row, look)) for column in columns] for row in rows]
    heads = [Text(column.title, style="bold") for column in columns]
    grid = [heads, *cells] if headers else cells
    kept = list(range(len(columns)))
    widths = [max((line[place].cell_len for line in grid), default=0) for place in kept]
    if look.width is not None:
        kept = _kept(columns, widths, look.width)
        _shorten(columns, kept, widths, grid, look)
    return [
        _joined([line[place] for place in kept], [columns[p] for p in kept], [widths[p] for p in kept]) for line in grid
    ]


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _kept(columns: Sequence[Column[T]], widths: Sequence[int], width: int) -> list[int]:
    """The columns that fit, when the one that is cut has the least it can do with."""
    kept = list(range(len(columns)))
    while True:
        needed = sum(min(widths[p], _LEAST) if columns[p].cut else widths[p] for p in kept) + _GAP * (len(kept) - 1)
        spare = max(kept, key=lambda place: columns[place].spare)
        if needed <= width or columns[spare].spare == 0:
            return kept
        kept.remove(spare)


def _shorten(
    columns: Sequence[Column[T]], kept: Sequence[int], widths: list[int], grid: Sequence[Sequence[Text]], look: Look
) -> None:
    if look.width is None:
        return
    for place in kept:
        if columns[place].cut:
            others = sum(widths[p] for p in kept if p != place) + _GAP * (len(kept) - 1)
            widths[place] = min(widths[place], max(_LEAST, look.width - others))
            for line in grid:
                _cut(line[place], widths[place], look)


def _cut(text: Text, width: int, look: Look) -> None:
    if text.cell_len > width:
        end = "..." if look.ascii else "…"
        text.truncate(width - len(end))
        text.rstrip()
        text.append(end)


def _joined(cells: Sequence[Text], columns: Sequence[Column[T]], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True)
    for place, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        blanks = " " * (width - cell.cell_len)
        if column.right:
            line.append(blanks)
        line.append_text(cell)
        if place < len(cells) - 1:
            line.append(("" if column.right else blanks) + " " * _GAP)
    line.rstrip()
    return line
