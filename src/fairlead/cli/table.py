"""Tables for a terminal or a pipe: upright where they would be too wide."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 500)  # a pipe has no width to fit into


def print_table(title: str, lines: Sequence[Sequence[str]], *, heads: int = 1) -> None:
    """Headings, then one run a line; or upright, one run a column, for a narrow terminal.

    `heads` columns say what a run is, the others what came of it.
    """
    screen = console()
    table = _grid(title, lines, heads=heads)
    if table.__rich_measure__(screen, screen.options.update(max_width=10_000)).maximum > screen.width:
        table = _grid(title, list(zip(*lines, strict=True)), heads=1)
    screen.print(table, crop=False, overflow="ignore", no_wrap=True)


def _grid(title: str, lines: Sequence[Sequence[str]], *, heads: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for place, heading in enumerate(lines[0]):
        table.add_column(heading, justify="left" if place < heads else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table
