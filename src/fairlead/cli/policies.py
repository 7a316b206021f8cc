"""`fairlead policies`: what there is, and what can be set."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field
from importlib.metadata import entry_points
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairlead.cli.errors import reports_errors
from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import FairleadError
from fairlead.core.loop import Policy
from fairlead.plugins import GROUP, POLICIES, find_policy, make_policy, settable


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Form.")
@reports_errors
def policies(output: str) -> None:
    """List the policies, built in and installed, with their options and defaults."""
    found = [_describe(name) for name in dict.fromkeys([*POLICIES, *(p.name for p in entry_points(group=GROUP))])]
    if output == "json":
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        Console().print(_table(found))


def _describe(name: str) -> dict[str, Any]:
    """What there is to know of a policy; of one that cannot be loaded, the error and nothing else."""
    try:
        cls = find_policy(name)
        needs = sorted(needs_of(_made(name) or cls))
    except FairleadError as error:  # an installed package that is broken should not hide the others
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        "summary": (inspect.getdoc(cls) or "").split("\n\n")[0],
        "options": [{"name": f.name, "type": str(f.type), **_default(f)} for f in settable(cls)],
        "wraps": bool(getattr(cls, "wears", False)),
        "needs": needs,
        "oracle": Capability.ORACLE in needs,
        "adapts": str(getattr(cls, "adapts", "nothing")),
        "built_in": name in POLICIES,
    }


def _made(name: str) -> Policy | None:
    """With all its defaults; None if it has to be told something. What a policy needs can depend on what it wraps."""
    try:
        return make_policy(name)
    except FairleadError:
        return None


def _default(option: Field[object]) -> dict[str, Any]:
    """As JSON, and as it would be typed; neither for an option that must be given."""
    value = option.default if option.default_factory is MISSING else option.default_factory()
    if value is MISSING:
        return {}
    plain = list(value) if isinstance(value, tuple) else value
    plain = plain if isinstance(plain, str | int | float | bool | list | None) and _finite(plain) else str(plain)
    return {"default": plain, "typed": "/".join(map(str, value)) if isinstance(value, tuple) else str(value)}


def _finite(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(not isinstance(each, float) or math.isfinite(each) for each in values)


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("policy", "options", "what it does")
    for policy in found:
        if "error" in policy:
            table.add_row(policy["name"], "", f"[red]{escape(policy['error'])}[/]")
            continue
        options = [f"{option['name']}={option.get('typed', '...')}" for option in policy["options"]]
        needs = f" [dim](needs {', '.join(policy['needs'])})[/]" if policy["needs"] else ""
        name = policy["name"] + ("+POLICY" if policy["wraps"] else "")
        table.add_row(name, escape("\n".join(options)), escape(policy["summary"]) + needs)
    return table
