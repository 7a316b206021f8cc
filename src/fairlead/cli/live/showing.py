"""The forms in which a verb gives its answer: a table for people, data for programs, names for scripts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.text import Text

from fairlead.cli.live.tables import Column, Look, lay_out
from fairlead.cli.live.wording import clean

T = TypeVar("T")

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(*forms: str) -> Callable[[Command], Command]:
    return click.option(
        "-o", "--output", type=click.Choice(forms), default=forms[0], show_default=True, help="Form of the answer."
    )


WATCH = click.option("-w", "--watch", is_flag=True, help="Look again every 2 s, until Ctrl-C.")
NO_HEADERS = click.option("--no-headers", is_flag=True, help="Leave the headings out.")


@dataclass(frozen=True)
class Form:
    """How a list is shown."""

    output: str
    headers: bool = True
    #: The columns of the table, and of the wide one.
    narrow: Sequence[Column[Any]] = ()
    wide: Sequence[Column[Any]] = ()
    #: The key of a row's name.
    name: str = "id"

    @property
    def table(self) -> bool:
        return self.output in ("table", "wide")


def list_options(command: Command) -> Command:
    """-o, --no-headers, -q and --watch."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Names only, as -o name.")
    for option in (WATCH, quiet, NO_HEADERS, output_option("table", "wide", "json", "yaml", "name")):
        command = option(command)
    return command


def console() -> Console:
    return Console(highlight=False, emoji=False, markup=False)


def look_of(screen: Console) -> Look:
    """What fits this console. A pipe has no width to fit into, and wants no bars."""
    terminal = screen.is_terminal
    unicode = (screen.encoding or "").lower().startswith("utf")
    return Look(now=time.time(), width=screen.width if terminal else None, bars=terminal, ascii=not unicode)


def show(rows: Sequence[Any], form: Form, *, empty: str = "") -> None:
    """Print rows in their form. `empty` is for people, if there are none."""
    if form.output == "name":
        for row in rows:
            click.echo(clean(row[form.name]))
    elif not form.table:
        print_data(list(rows), form.output)
    elif rows or not empty:
        screen = console()
        print_lines(screen, table(rows, form, look_of(screen)))
    else:
        click.echo(empty, err=True)


def table(rows: Sequence[Any], form: Form, look: Look) -> list[Text]:
    if form.output == "wide":  # nothing is left out
        look = Look(look.now, bars=look.bars, ascii=look.ascii)
    return lay_out(form.narrow if form.output == "table" else form.wide, rows, look, headers=form.headers)


def print_lines(screen: Console, lines: Sequence[Text]) -> None:
    for line in lines:
        screen.print(line, soft_wrap=True)


def print_data(data: Any, output: str) -> None:
    click.echo(dumped(data, output), nl=False)


def dumped(data: Any, output: str) -> str:
    if output == "json":
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
