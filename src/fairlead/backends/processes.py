"""Processes that leave nothing behind: who descends from whom, and how to end all of them. Linux.

Whoever ends while its children live leaves them to the nearest *reaper* above it, so a tree of processes can be ended
from its root, however they were started. As a last means, everything a job starts has a *cookie* in its environment.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fairlead.train.parent_death import prctl

#: The environment variable by which everything that belongs to an attempt is recognised.
COOKIE = "FAIRLEAD_COOKIE"


def cookie_of(job: str, attempt: int, root: Path) -> str:
    """What everything of an attempt carries in its environment."""
    return f"{root}:{job}:{attempt}"


#: From linux/prctl.h.
_PR_SET_CHILD_SUBREAPER = 36

_PROC = Path("/proc")


class Entry(NamedTuple):
    """A process as /proc shows it."""

    pid: int
    state: str
    parent: int
    session: int
    #: When it began, in ticks of the kernel: with its number it is this process and no later one of the same number.
    start: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.start


Table = Mapping[int, Entry]


def table() -> Table:
    """Every process that has not ended, or not been waited for, by its number."""
    return {entry.pid: entry for pid in _numbers() if (entry := entry_of(pid)) is not None}


def entry_of(pid: int) -> Entry | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return Entry(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))
    return None


def become_reaper() -> None:
    """From now on, orphans among our descendants become our children."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """The processes below one that have not ended, as it is now."""
    return below([root], table())


def below(roots: Iterable[int], processes: Table) -> list[int]:
    """The processes of a table below some of them that have not ended."""
    children: dict[int, list[int]] = {}
    for entry in processes.values():
        if entry.state != "Z":
            children.setdefault(entry.parent, []).append(entry.pid)
    found: list[int] = []
    ahead = list(roots)
    while ahead:
        lower = children.pop(ahead.pop(), [])
        found += lower
        ahead += lower
    return found


def carriers(cookie: str) -> list[int]:
    """The processes that carry a cookie and may be looked at by us."""
    return [pid for pid, carried in cookies().items() if carried == cookie]


def cookies() -> dict[int, str]:
    """By process, the cookie it carries; of those that may be looked at by us, and not of us."""
    wanted, found = f"{COOKIE}=".encode(), {}
    for pid in _numbers():
        with contextlib.suppress(OSError):
            for variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0") if pid != os.getpid() else ():
                if variable.startswith(wanted):
                    found[pid] = os.fsdecode(variable.removeprefix(wanted))
    return found


def is_alive(pid: int) -> bool:
    """Is there such a process, ours or another's, that still does something?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another's: it is there, even if we may not look at it
    entry = entry_of(pid)
    return entry is None or entry.state != "Z"


def is_of_a_job(pid: int, root: Path | None = None) -> bool:
    """Does it, or somebody it descends from, carry the cookie of an attempt? `root`: of one whose jobs are there.

    Who it descends from matters, because a process can be started without the environment of its parent.
    """
    wanted = (f"{COOKIE}=" if root is None else f"{COOKIE}={root}:").encode()
    known: set[int] = set()
    while pid > 1 and pid not in known:
        known.add(pid)
        with contextlib.suppress(OSError):
            if any(entry.startswith(wanted) for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")):
                return True
        entry = entry_of(pid)
        pid = 0 if entry is None else entry.parent
    return False


def user_of(pid: int) -> str:
    """The account it runs as; empty if it is gone or must not be looked at."""
    try:
        number = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _numbers() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def end_all(who: Callable[[], list[int]], *, within_s: float = 10.0) -> list[int]:
    """Kill these, and what they start meanwhile. Returns what is left: a process can be stuck in the kernel."""
    until = time.monotonic() + within_s
    # Two looks: what is started while we look, by a process that ends meanwhile, is not seen by the first.
    while left := who() or who():
        _kill(left, who)
        if time.monotonic() > until:
            return left
        time.sleep(0.01)
    return []


def _kill(pids: Iterable[int], who: Callable[[], list[int]]) -> None:
    """Those of them that are still meant after a handle of each was taken: its number may belong to another by then."""
    handles: dict[int, int | None] = {}
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                handles[pid] = _handle(pid)
        for pid in handles.keys() & set(who()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                _send_kill(pid, handles[pid])
    finally:
        for handle in handles.values():
            if handle is not None:
                os.close(handle)


def _handle(pid: int) -> int | None:
    """None where there are none: in an old kernel, or if too many files are open."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def _send_kill(pid: int, handle: int | None) -> None:
    if handle is None:
        os.kill(pid, signal.SIGKILL)
    else:
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def reap_strangers(own: set[int], before: set[int], processes: Table) -> set[int]:
    """Take note of ended children that are not our own but were left to us, if they had ended at the last look too: who
    has just ended may be one of ours that nobody has told us of yet. Returns those who had not."""
    ended = {each.pid for each in processes.values() if each.state == "Z" and each.parent == os.getpid()} - own
    for pid in ended & before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return ended - before


def exit_code(status: int) -> int:
    """As a shell tells it: 128 and the number of the signal, for one that was killed."""
    return 128 - status if status < 0 else status


def boot_id() -> str:
    """Of this run of the machine, or of the container: nothing survives from another."""
    found = []
    with contextlib.suppress(OSError):
        found.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError, IndexError):
        # When the first process began: a container has one of its own, but not a boot of its own.
        found.append((_PROC / "1/stat").read_text().rpartition(")")[2].split()[19])
    return ":".join(found)
