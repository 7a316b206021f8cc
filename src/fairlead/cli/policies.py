"""`fairlead policies`: what there is, and what can be set."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field
from importlib.metadata import entry_points

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairlead.cli.errors import reports_errors
from fairlead.core.errors import FairleadError
from fairlead.plugins import GROUP, POLICIES, find_policy, settable


@click.command()
@reports_errors
def policies() -> None:
    """List the policies, built in and installed, with their options and defaults."""
    table = Table("policy", "options", "what it does")
    for name in dict.fromkeys([*POLICIES, *(point.name for point in entry_points(group=GROUP))]):
        try:
            cls = find_policy(name)
        except FairleadError as error:  # an installed package that is broken should not hide the others
            table.add_row(name, "", f"[red]{escape(str(error))}[/]")
            continue
        options = [_option(f) for f in settable(cls)]
        oracle = " [dim](oracle: simulation only)[/]" if getattr(cls, "needs_oracle", False) else ""
        summary = escape((inspect.getdoc(cls) or "").split("\n\n")[0])
        wears = "+POLICY" if getattr(cls, "wears", False) else ""
        table.add_row(name + wears, escape("\n".join(options)), summary + oracle)
    Console().print(table)


def _option(option: Field[object]) -> str:
    """`name=default`, as it would be typed; `name=...` if it must be given."""
    default = option.default if option.default_factory is MISSING else option.default_factory()
    if default is MISSING:
        return f"{option.name}=..."
    return f"{option.name}={'/'.join(map(str, default)) if isinstance(default, tuple) else default}"
