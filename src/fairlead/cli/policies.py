"""`fairlead policies`: what there is, and what can be set."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points

import click
from rich.console import Console
from rich.table import Table

from fairlead.cli.errors import reports_errors
from fairlead.plugins import GROUP, POLICIES, find_policy


@click.command()
@reports_errors
def policies() -> None:
    """List the policies, built in and installed, with their options and defaults."""
    table = Table("policy", "options", "what it does")
    for name in dict.fromkeys([*POLICIES, *(point.name for point in entry_points(group=GROUP))]):
        cls = find_policy(name)
        options = [f"{f.name}={_shown(f.default)}" for f in fields(cls) if f.init] if is_dataclass(cls) else []
        oracle = " [dim](oracle: simulation only)[/]" if getattr(cls, "needs_oracle", False) else ""
        table.add_row(name, "\n".join(options), (inspect.getdoc(cls) or "").split("\n\n")[0] + oracle)
    Console().print(table)


def _shown(default: object) -> str:
    return "/".join(map(str, default)) if isinstance(default, tuple) else str(default)
