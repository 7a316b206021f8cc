"""`fairlead down`: stop the server of a state directory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from fairlead.cli.live.connect import errors_told, say
from fairlead.cli.up import STATE, directory_of, state_option
from fairlead.core.errors import BackendError
from fairlead.server.directory import Directory, account, run_on

#: Seconds between two lines that tell what it waits for.
_TELL_S = 5.0


@click.command()
@STATE
@click.option("--keep-jobs", is_flag=True, help="Let jobs run on; the next `fairlead up` takes over.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.0), metavar="SECONDS",
              help="Wait no longer than this for its end.  [default: as long as it takes]")  # fmt: skip
def down(*, state: Path | None, keep_jobs: bool, timeout_s: float | None) -> None:
    """Stop the server of this machine. Jobs are asked to save and stop, and go on with the next `fairlead up`."""
    with errors_told():
        directory = directory_of(state)
        running = directory.running()
        if running is None:
            say(_nothing(directory))
            return
        _signal(running.pid, signal.SIGUSR1 if keep_jobs else signal.SIGTERM)
        jobs = "jobs run on" if keep_jobs else "its jobs are asked to save and stop"
        say(f"the server (process {running.pid}) was asked to stop; {jobs}")
        _wait(directory, running.pid, timeout_s)
        say("it has stopped")


def _nothing(directory: Directory) -> str:
    jobs = directory.unattended()
    if not jobs:
        return f"nothing runs here ({directory.path})"
    them = "it" if len(jobs) == 1 else "them"
    return f"{run_on(jobs)} ({directory.path}); `fairlead up{state_option(directory)}` takes {them} up again"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError:
        owner = account(Path(f"/proc/{pid}").stat().st_uid)
        raise BackendError(f"the server (process {pid}) belongs to {owner}; only they can stop it") from None


def _wait(directory: Directory, pid: int, timeout_s: float | None) -> None:
    """Until it has let go of the directory, and is gone."""
    began = tell_at = time.monotonic()
    while _holds(directory, pid) or _lives(pid):
        now = time.monotonic()
        if timeout_s is not None and now - began > timeout_s:
            raise BackendError(
                f"the server (process {pid}) has not ended after {timeout_s:g} s; it goes on stopping. "
                "`fairlead down --keep-jobs` does not wait for jobs"
            )
        if now - tell_at > _TELL_S:
            say(f"waits for it to end, for {now - began:.0f} s now")
            tell_at = now
        time.sleep(0.05)


def _holds(directory: Directory, pid: int) -> bool:
    running = directory.running()
    return running is not None and running.pid == pid


def _lives(pid: int) -> bool:
    """A process that has ended, and whose parent does not care, does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return False
