"""The one place where an error raised on purpose, or a signal, becomes a message and an exit code."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
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


class Interrupted(BaseException):
    """SIGINT or SIGTERM has come. No Exception, so that nothing on the way takes it for an error."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def ends_on_signals(command: Callable[P, R]) -> Callable[P, R]:
    """Let SIGINT and SIGTERM end a long command as `Interrupted`, with exit code 130 or 143.

    The handlers are set even where SIGINT was ignored, as shells do for what runs in the background: a signal that is
    sent to this process is meant for it. A second signal ends the process at once. Only a main thread gets signals.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread() is not threading.main_thread():
            return command(*args, **kwargs)
        before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return command(*args, **kwargs)
        except Interrupted as interrupted:
            click.echo(f"ended by {interrupted}", err=True)
            sys.exit(128 + interrupted.number)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    return run


def _interrupt(number: int, _: FrameType | None) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    raise Interrupted(number)
