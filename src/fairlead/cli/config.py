"""`fairlead config`: what holds, where it comes from, and what is wrong with it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from fairlead.cli.live.connect import errors_told
from fairlead.cli.live.showing import output_option
from fairlead.cli.live.tables import Column, Look, lay_out
from fairlead.cli.up import CONFIG, STATE, config_told, directory_of
from fairlead.server.config import Config, Setting, find_file, load, places
from fairlead.server.keys import InvalidConfig


@click.group()
def config() -> None:
    """Check and show the configuration of the server."""


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@STATE
def check(file: Path | None, state: Path | None) -> None:
    """Check FILE, or the one that `fairlead up` would read. Exits with 1 if something is wrong."""
    with errors_told():
        try:
            found = load(directory_of(state).path, file=file)
        except InvalidConfig as error:
            for problem in error.problems:
                click.echo(str(problem))
            sys.exit(1)
        _print(found)
        click.echo("ok", err=True)


@config.command()
@STATE
@CONFIG
@output_option("table", "json")
def show(state: Path | None, file: Path | None, output: str) -> None:
    """Show every key with its value, and where that comes from."""
    with errors_told(), config_told():
        found = load(directory_of(state).path, file=file)
        if output == "json":
            click.echo(json.dumps(_data(found), indent=2))
        else:
            _print(found)


@config.command()
@STATE
@CONFIG
def path(state: Path | None, file: Path | None) -> None:
    """Print the path of the file that is read. If there is none, say where it may be, and exit with 1."""
    with errors_told():
        directory = directory_of(state).path
        found = find_file(directory, file=file)
        if found is None:
            click.echo("there is no configuration file; defaults hold. It may be one of:", err=True)
            for place in places(directory, os.environ):
                click.echo(f"  {place}", err=True)
            sys.exit(1)
        click.echo(str(found))


COLUMNS: tuple[Column[Setting], ...] = (
    Column("KEY", lambda setting, _: setting.key),
    Column("VALUE", lambda setting, _: _toml(setting.value)),
    Column("FROM", lambda setting, _: setting.origin),
)


def _print(found: Config) -> None:
    for line in lay_out(COLUMNS, list(found.settings()), Look(now=0.0)):
        click.echo(line.plain)


def _toml(value: Any) -> str:
    """As it would stand in the file; nothing, for a key that is left out."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        pairs = ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return json.dumps(value)


def _data(found: Config) -> dict[str, Any]:
    """{"file", "values": by section, "from": by full key}."""
    values: dict[str, Any] = {}
    for setting in found.settings():
        *sections, name = _parts(setting.key)
        table = values
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = setting.value
    origins = {setting.key: setting.origin for setting in found.settings()}
    return {"file": None if found.file is None else str(found.file), "values": values, "from": origins}


def _parts(key: str) -> list[str]:
    """The name of a queue may have dots of its own."""
    section, _, rest = key.partition(".")
    if section != "queues":
        return [section, rest]
    queue, _, name = rest.rpartition(".")
    return [section, queue, name]
