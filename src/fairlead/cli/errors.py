"""The one place where an error raised on purpose becomes a message and an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from fairlead.core.errors import FairleadError

P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Let a FairleadError end the program with `error: ...` on standard error and exit code 2."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FairleadError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(2)

    return run
