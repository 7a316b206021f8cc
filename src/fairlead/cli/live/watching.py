"""Looking again: pictures that are redrawn, and jobs that are waited for. Ctrl-C ends the looking, never the job."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from fairlead.cli.live.connect import INTERRUPTED, say, typed
from fairlead.cli.live.showing import Form, console, look_of, show, table
from fairlead.client.calls import Client
from fairlead.client.errors import NotFound
from fairlead.client.resources import ENDED, Job

T = TypeVar("T")

#: Seconds between two looks of `--watch`.
EVERY_S = 2.0
#: Seconds between two looks at a job that is waited for: at first, and at most.
_FIRST_S, _LONGEST_S = 0.1, 1.0


def show_now_or_watch(fetch: Callable[[], Sequence[Any]], form: Form, *, watch: bool, empty: str = "") -> None:
    """Once, or until Ctrl-C: over the last picture on a terminal; elsewhere, and as data, one after the other."""
    if not watch:
        show(fetch(), form, empty=empty)
        return
    screen = console()
    if screen.is_terminal and form.table:
        redraw(screen, lambda: table(fetch(), form, look_of(screen)))
    while True:
        show(fetch(), form)
        sys.stdout.flush()
        time.sleep(EVERY_S)


def redraw(screen: Console, draw: Callable[[], Sequence[Text]]) -> None:
    """Draw a picture over the last one, for ever."""
    from rich.console import Group
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(Group(*draw()), refresh=True)
            time.sleep(EVERY_S)


def job_or_elements(job_id: str, one: Callable[[str], T], many: Callable[[str], T]) -> T:
    """Ask about a job or, if there is none of that id, about the array of that number."""
    try:
        return one(job_id)
    except NotFound as error:
        if "." in job_id:
            raise
        try:
            return many(job_id)
        except NotFound:
            raise error from None


def wait_for(client: Client, job_id: str, *, until: float | None = None) -> Job | None:
    """The job once it has ended; None if that was not before `until`, by the monotonic clock."""
    pause_s = _FIRST_S
    while True:
        job = client.job(job_id)
        if job["state"] in ENDED:
            return job
        if until is not None:
            left_s = until - time.monotonic()
            if left_s <= 0.0:
                return None
            pause_s = min(pause_s, left_s)
        time.sleep(pause_s)
        pause_s = min(_LONGEST_S, 1.5 * pause_s)


@contextlib.contextmanager
def leaving_them_alone(job_ids: Sequence[str]) -> Iterator[None]:
    """Let Ctrl-C end this command with 130, and say that it did nothing to the jobs."""
    try:
        yield
    except KeyboardInterrupt:
        names = " ".join(job_ids)
        who, it = (f"job {names} goes", "it") if len(job_ids) == 1 else ("the jobs go", "them")
        say(f"{who} on; to end {it}: {typed(f'cancel {names}')}")
        sys.exit(INTERRUPTED)
