"""`fairlead policies`: what there is, and what can be set."""

from __future__ import annotations

import inspect
import json
from dataclasses import MISSING, Field, asdict, dataclass
from importlib.metadata import entry_points
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairlead.cli.errors import reports_errors
from fairlead.core.capability import needs_of
from fairlead.core.errors import FairleadError
from fairlead.core.loop import Policy
from fairlead.plugins import GROUP, POLICIES, find_policy, make_policy, settable


@dataclass(frozen=True)
class Listed:
    """A policy as it is listed; one that cannot be loaded has an error and nothing else."""

    name: str
    summary: str = ""
    wraps: bool = False
    needs: tuple[str, ...] = ()
    adapts: str = "nothing"
    options: tuple[str, ...] = ()
    error: str = ""


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Form of the answer.",
)
@reports_errors
def policies(output: str) -> None:
    """List the policies, built in and installed, with their options and defaults, and what they need."""
    names = dict.fromkeys([*POLICIES, *(point.name for point in entry_points(group=GROUP))])
    listed = [_listed(name) for name in names]
    if output == "json":
        click.echo(json.dumps([_data(each) for each in listed], indent=2))
        return
    table = Table("policy", "options", "what it does")
    for each in listed:
        needs = f" [dim](needs {', '.join(each.needs)})[/]" if each.needs else ""
        told = f"[red]{escape(each.error)}[/]" if each.error else escape(each.summary) + needs
        table.add_row(each.name + "+POLICY" * each.wraps, escape("\n".join(each.options)), told)
    Console().print(table)


def _listed(name: str) -> Listed:
    try:
        cls = find_policy(name)
        made = _made(name)
        needs = needs_of(cls if made is None else made)
    except FairleadError as error:  # an installed package that is broken should not hide the others
        return Listed(name, error=str(error))
    return Listed(
        name,
        summary=(inspect.getdoc(cls) or "").split("\n\n")[0],
        wraps=bool(getattr(cls, "wears", False)),
        needs=tuple(sorted(needs)),
        adapts=str(getattr(cls if made is None else made, "adapts", "nothing")),
        options=tuple(_option(f) for f in settable(cls)),
    )


def _made(name: str) -> Policy | None:
    """With all its defaults; None if it has to be told something. What a policy needs can depend on what it wraps."""
    try:
        return make_policy(name)
    except FairleadError:
        return None


def _data(listed: Listed) -> dict[str, Any]:
    if listed.error:
        return {"name": listed.name, "error": listed.error}
    options = dict(option.split("=", 1) for option in listed.options)
    return {name: value for name, value in (asdict(listed) | {"options": options}).items() if name != "error"}


def _option(option: Field[object]) -> str:
    """`name=default`, as it would be typed; `name=...` if it must be given."""
    default = option.default if option.default_factory is MISSING else option.default_factory()
    if default is MISSING:
        return f"{option.name}=..."
    return f"{option.name}={'/'.join(map(str, default)) if isinstance(default, tuple) else default}"
