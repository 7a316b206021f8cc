"""A CPU share for an attempt: all of its processes are stopped for a part of every few milliseconds. Linux.

So CPU slots stand in for GPUs of different types: whatever a job does, on a slot of half the share it does half as
much. It needs no privilege and no control group (a `cpu.max` of version 2 needs a group without processes of its own
above it, which the one of a service is not), and holds for everything below the supervisor, however it was started.

Two rules. A process that something else has stopped stays stopped: the throttle continues only what it has stopped
(but for a signal that arrives while one of ours is on its way: the kernel makes one of the two). And its stops end with
it: to lift it continues all processes at once, and those that are stopped can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.backends.processes import Entry, entry_of, table
from fairlead.core.errors import InvalidSpec

#: Seconds from one stop to the next, and the fewest between two in which processes run. As short as it can be without
#: taking much time itself: a training that does its steps in less differs much from one step to the next.
PERIOD_S, LEAST_RUN_S = 0.01, 0.002

#: The longest stop, and the longest run that is made up for by one: a supervisor that was held up itself, or a machine
#: that slept, is no reason to stop a job for as long.
LONGEST_STOP_S, LONGEST_RUN_S = 1.0, 0.5

_PROC = Path("/proc")

#: False in a kernel without CONFIG_PROC_CHILDREN.
_TELLS_CHILDREN = (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()

#: SIGSTOP in the mask of pending signals.
_STOP_BIT = 1 << (signal.SIGSTOP - 1)


def check_throttle() -> None:
    """Raise InvalidSpec where a CPU share could not be kept to."""
    if platform.system() != "Linux" or not (_PROC / "self" / "stat").exists():
        raise InvalidSpec("--nodes has a CPU share, which needs Linux with /proc; leave it out")


class Throttle:
    """Of all processes below `root`. Each worker, with what it has started, has the share of its slot: while a job
    moves from one GPU type to another, some are slowed and others are not. Workers of one share stop at the same time:
    they wait for each other in every step."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._workers: dict[int, float] = {}
        #: Of processes that are below no worker: the setup, and what a worker has left behind.
        self._rest = 1.0
        self._cycles: dict[float, asyncio.Task[None]] = {}
        #: By share: those that we have stopped, and when each began.
        self._stopped: dict[float, dict[int, int]] = {}
        self._lifted = False

    def limit_worker(self, pid: int, share: float) -> None:
        """A child of ours has begun."""
        self._workers[pid] = share
        self._begin(share)

    def limit_rest(self, share: float) -> None:
        self._rest = share
        self._begin(share)

    def lift(self) -> None:
        """For good: from now on nothing is stopped by us."""
        self._lifted = True
        for share, cycle in self._cycles.items():
            cycle.cancel()
            self.resume(share)

    def holds(self, pid: int) -> bool:
        """Did we stop it, and nothing else?"""
        entry = entry_of(pid)
        ours = any(entry is not None and each.get(pid) == entry.start for each in self._stopped.values())
        return ours and entry is not None and not _is_stopped_twice(entry)

    def _begin(self, share: float) -> None:
        if share < 1.0 and share not in self._cycles and not self._lifted:
            self._cycles[share] = asyncio.get_running_loop().create_task(self._cycle(share))

    async def _cycle(self, share: float) -> None:
        owed_s = 0.0
        while share in (self._rest, *self._workers.values()):
            began = time.monotonic()
            self.resume(share)
            await asyncio.sleep(max(LEAST_RUN_S, PERIOD_S * share))
            self.stop(share)
            stopped = time.monotonic()
            owed_s += min(LONGEST_RUN_S, stopped - began) * (1.0 - share) / share
            owed_s = min(LONGEST_STOP_S, owed_s)
            await asyncio.sleep(max(0.0, owed_s))
            owed_s = max(-LONGEST_RUN_S, owed_s - (time.monotonic() - stopped))
        self.resume(share)
        del self._cycles[share]

    def stop(self, share: float) -> None:
        """Those of this share, parents before their children, so that none is started unseen; but for those that
        another has stopped, or is about to: a process that waits for a processor takes a while to notice."""
        stopped, children = self._stopped.setdefault(share, {}), _children(self._root)
        self._workers = {pid: own for pid, own in self._workers.items() if pid in children}
        for pid in _trees([pid for pid in children if self._workers.get(pid, self._rest) == share]):
            entry = entry_of(pid)
            if entry is None or entry.state in "TtZX" or _is_stop_pending(pid):
                continue
            if _send(pid, signal.SIGSTOP):
                stopped[pid] = entry.start

    def resume(self, share: float) -> None:
        """Those of this share that we have stopped, and no other has."""
        for pid, start in self._stopped.pop(share, {}).items():
            entry = entry_of(pid)
            if entry is not None and entry.start == start and not _is_stopped_twice(entry):
                _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def _is_stopped_twice(entry: Entry) -> bool:
    """Was it stopped by us and, once it was, by another? To continue it would undo both."""
    return entry.state == "T" and _is_stop_pending(entry.pid)


def _is_stop_pending(pid: int) -> bool:
    """Was it told to stop, and has not noticed yet?"""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / str(pid) / "status").read_bytes().splitlines()
        return bool(int(next(line for line in lines if line.startswith(b"ShdPnd:")).split()[1], 16) & _STOP_BIT)
    return False


def _trees(roots: list[int]) -> Iterator[int]:
    """Processes and all below them. The children of each are looked up after the caller is done with it."""
    ahead = list(roots)
    while ahead:
        pid = ahead.pop()
        yield pid
        ahead += _children(pid)


def _children(pid: int) -> list[int]:
    if not _TELLS_CHILDREN:
        return [entry.pid for entry in table().values() if entry.parent == pid]
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_bytes().split())
    return found
