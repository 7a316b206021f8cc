"""Typed cells out of delimited text. Every error names file, line, column, what was found and what was expected.

Knows nothing of any trace format.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import InvalidTrace

#: Beyond this a number in a trace is a mistake, and sums of squares of it would no longer be exact enough to use.
LARGEST = 1e15

BLANKS = frozenset({"", "nan", "none", "null", "na", "nat"})


def shown(value: object) -> str:
    """A value as an error message shows it: quoted, and not longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[0]}"


def listed(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names) or "nothing"


class Row:
    """One line of a table. Cells are converted when asked for; columns must be among those the table was read with."""

    __slots__ = ("_cells", "_index", "line", "source")

    def __init__(self, cells: Sequence[str], index: Mapping[str, int], *, source: str, line: int) -> None:
        self._cells, self._index, self.source, self.line = cells, index, source, line

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._index)

    def has(self, column: str) -> bool:
        return column in self._index

    def raw(self, column: str) -> str:
        return self._cells[self._index[column]]

    def text(self, column: str) -> str:
        return self.raw(column).strip()

    def is_blank(self, column: str) -> bool:
        """Empty, or one of the ways tools spell "no value"."""
        return self.text(column).lower() in BLANKS

    def name(self, column: str) -> str:
        """Text that may not be empty."""
        text = self.text(column)
        if not text:
            raise self.error(column, "some text")
        return text

    def number(self, column: str, *, at_least: float = 0.0) -> float:
        value = self._float(column)
        if not at_least <= value <= LARGEST:  # false for NaN, too
            raise self.error(column, f"a number {_bound(value, at_least)}")
        return value

    def whole(self, column: str, *, at_least: int = 1) -> int:
        value = self._float(column)
        if not (at_least <= value <= LARGEST and value.is_integer()):
            raise self.error(column, f"a whole number {_bound(value, at_least)}")
        return int(value)

    def flag(self, column: str) -> bool:
        text = self.text(column).lower()
        if text not in ("true", "false"):
            raise self.error(column, "true or false")
        return text == "true"

    def _float(self, column: str) -> float:
        text = self.raw(column)
        try:
            # Python reads 1_000 as a number; no trace format does.
            return math.nan if "_" in text else float(text)
        except ValueError:
            return math.nan

    def moment(self, column: str) -> float:
        """UNIX time of a date like 2017-10-09 07:01:55; one without a time zone is taken as UTC."""
        try:
            moment = datetime.fromisoformat(self.text(column))
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise self.error(column, "a date and time like 2017-10-09 07:01:55") from None

    def error(self, column: str, expected: str) -> InvalidTrace:
        found = shown(self.raw(column))
        return InvalidTrace(f"found {found}; expected {expected}", source=self.source, line=self.line, column=column)


def _bound(value: float, at_least: float) -> str:
    return f"of at most {LARGEST:g}" if value > LARGEST else f"of at least {at_least:g}"


def read_table(path: Path, *, required: Sequence[str]) -> Iterator[Row]:
    """Rows of a CSV file whose first line names its columns; columns beyond the required ones may be there too."""
    lines = split_csv(read_text(path), source=str(path))
    first_line, header = next(lines, (1, [""]))
    if not any(name.strip() for name in header):
        raise InvalidTrace("is empty; it has no jobs", source=str(path))
    names = [name.strip() for name in header]
    if missing := [name for name in required if name not in names]:
        raise InvalidTrace(
            f"has no column {listed(missing)}; the header has {listed(names)}", source=str(path), line=first_line
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidTrace(f"names column {listed(twice)} more than once", source=str(path), line=first_line)
    index = {name: position for position, name in enumerate(names)}
    for line, cells in lines:
        yield make_row(cells, {len(names): index}, source=str(path), line=line)


def make_row(cells: Sequence[str], layouts: Mapping[int, Mapping[str, int]], *, source: str, line: int) -> Row:
    """A row whose number of cells tells which columns it has."""
    index = layouts.get(len(cells))
    if index is None:
        counts = " or ".join(str(count) for count in sorted(layouts))
        raise InvalidTrace(f"has {len(cells)} columns; expected {counts}", source=source, line=line)
    return Row(cells, index, source=source, line=line)


def layout(names: str) -> dict[str, int]:
    """Columns by position, from their names in order."""
    return {name: position for position, name in enumerate(names.split())}


def split_csv(text: str, *, source: str) -> Iterator[tuple[int, list[str]]]:
    """Cells of every line that has any, with its line number."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise InvalidTrace(f"is not readable as CSV: {error}", source=source, line=reader.line_num) from None
