"""How a verb gets to its server, and how what goes wrong becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import functools
import io
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from fairlead.cli.live.wording import clean
from fairlead.client.calls import Client
from fairlead.client.errors import ClientError, Invalid, NotAllowed
from fairlead.client.finding import find_server
from fairlead.client.http import Patience
from fairlead.core.errors import FairleadError, InvalidSpec

#: Exit codes.
FAILURE, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 124, 130

STATE = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The server's state directory.  [default: the server of FAIRLEAD_URL and FAIRLEAD_TOKEN, or $FAIRLEAD_STATE, "
    "or the user's own]",
)
QUIET = click.option("-q", "--quiet", is_flag=True, help="Say nothing but the answer.")


def say(text: str) -> None:
    """To the person, on standard error."""
    with contextlib.suppress(OSError):
        click.echo(f"fairlead: {text}", err=True)


def typed(words: str) -> str:
    """A command to type next. It names the state directory if this one did, so that it finds the same server."""
    context = click.get_current_context(silent=True)
    state = None if context is None else context.params.get("state")
    verb, _, rest = words.partition(" ")
    return " ".join(filter(None, ("fairlead", verb, state_words(state), rest)))


def state_words(state: Path | None) -> str:
    """As they stand on a command line; empty if there is nothing to name."""
    return "" if state is None else f"--state {shlex.quote(str(state))}"


def connect(state: Path | None) -> Client:
    """A client that looks for its server anew whenever it lost it."""
    return Client(lambda: find_server(state), patience=Patience(tell=say))


def talks(command: Callable[..., None]) -> Callable[..., None]:
    """A verb whose first parameter is a connected client. Adds --state."""

    @functools.wraps(command)
    def run(*, state: Path | None, **options: Any) -> None:
        show_anything()
        with errors_told(), connect(state) as client:
            command(client, **options)

    return STATE(run)


def show_anything() -> None:
    """Jobs print and are called what they like; what a terminal cannot show is no reason to stop."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def errors_told() -> Iterator[None]:
    """Exit with 2 if the user asked for what cannot be meant, with 1 if it cannot be had, and with 130 after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Invalid as error:
        errors = [problem for problem in error.problem.errors if problem.get("text")]
        for problem in errors:
            click.echo(f"error: {clean(problem['text'])}", err=True)
        if not errors:
            _fail(error, USAGE)
        sys.exit(USAGE)
    except NotAllowed as error:
        hint = "; check FAIRLEAD_TOKEN" if error.problem.status == 401 else ""
        _fail(f"{error}{hint}", FAILURE)
    except ClientError as error:
        _fail(error, FAILURE)
    except InvalidSpec as error:
        _tell_invalid(error)
        sys.exit(USAGE)
    except FairleadError as error:
        _fail(error, FAILURE)


def _fail(error: object, code: int) -> NoReturn:
    click.echo(f"error: {clean(error)}", err=True)
    sys.exit(code)


def _tell_invalid(error: InvalidSpec) -> None:
    """Every problem of a job file with its place, as compilers do; anything else in one line."""
    for problem in getattr(error, "problems", ()):
        if problem.line is not None:
            place = f"{getattr(error, 'source', 'job')}:{problem.line}:{problem.column}"
            click.echo(f"{place}: {problem.text}", err=True)
        else:
            click.echo(f"error: {problem.text}", err=True)
    if not getattr(error, "problems", ()):
        click.echo(f"error: {error}", err=True)
