"""Processes that leave nothing behind: who descends from whom, and how to end all of them. Linux.

Whoever ends while its children live leaves them to the nearest *reaper* above it, so a tree of processes can be ended
from its root, however they were started. As a last means, everything a job starts has a *cookie* in its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: The environment variable by which everything that belongs to an attempt is recognised.
COOKIE = "FAIRLEAD_COOKIE"

#: From linux/prctl.h.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_PROC = Path("/proc")


def become_reaper() -> None:
    """From now on, orphans among our descendants become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Be sent a signal when our parent, which is this process, ends."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def descendants(root: int) -> list[int]:
    """Everybody below a process, as it is now."""
    children: dict[int, list[int]] = {}
    for pid, state, parent in _states():
        if state != "Z":
            children.setdefault(parent, []).append(pid)
    found, ahead = [], [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def carriers(cookie: str) -> list[int]:
    """Everybody who carries a cookie and may be looked at by us."""
    wanted = f"{COOKIE}={cookie}".encode()
    found = []
    for pid in _everybody():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def is_alive(pid: int) -> bool:
    """Is there such a process, ours or another's, that still does something?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another's: it is there, even if we may not look at it
    return _state(pid)[0] != "Z"


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
        pid = _state(pid)[1]
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


def _states() -> Iterator[tuple[int, str, int]]:
    """Of every process: its number, its state and its parent."""
    for pid in _everybody():
        state, parent = _state(pid)
        if state:
            yield pid, state, parent


def _state(pid: int) -> tuple[str, int]:
    """Its state and its parent; empty and 0 if nobody can tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        # The name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1])
    return "", 0


def _everybody() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def end_all(who: Callable[[], list[int]], *, within_s: float = 10.0) -> list[int]:
    """Kill everybody, and whoever they start meanwhile. Returns who is left: a process can be stuck in the kernel."""
    until = time.monotonic() + within_s
    # Two looks: who is started while we look, by somebody who ends meanwhile, is not seen by the first.
    while left := who() or who():
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        if time.monotonic() > until:
            return left
        time.sleep(0.01)
    return []


def reap() -> None:
    """Take note of children that have ended, so that they are gone."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass


def reap_strangers(own: set[int], before: set[int]) -> set[int]:
    """Take note of ended children that are not our own but were left to us, if they had ended at the last look too: who
    has just ended may be one of ours that nobody has told us of yet. Returns those who had not."""
    ended = {pid for pid, state, parent in _states() if state == "Z" and parent == os.getpid()} - own
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
