"""The lock of a directory of checkpoints: one process saves there at a time, and the others can tell which.

The system takes the lock back when its process dies, and children do not inherit it. The file says who holds it: the
process, the host and, under the service, the job.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LOCK = ".lock"

#: Seconds between two tries; after which a wait is told; and bytes that are read of a lock file.
_TRY_S, TOLD_S, _MOST_BYTES = 0.05, 0.5, 1024


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as its file says."""

    pid: int | None = None
    host: str = ""
    #: Its id under the service; empty without one.
    job: str = ""

    @staticmethod
    def here() -> Holder:
        return Holder(os.getpid(), socket.gethostname(), os.environ.get("FAIRLEAD_JOB_ID", ""))

    @staticmethod
    def parse(text: str) -> Holder:
        """What `to_json` wrote. A file that is empty or of an older form names no process."""
        try:
            found: Any = json.loads(text)
            return Holder(int(found["pid"]), str(found["host"]), str(found["job"]))
        except (ValueError, LookupError, TypeError):
            return Holder()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that is not named in the lock"
        return f"process {self.pid} on {self.host}" + (f", of job {self.job}" if self.job else "")


class Held(OSError):
    """Another process holds the lock, and has not let it go in time."""

    def __init__(self, holder: Holder, within_s: float) -> None:
        super().__init__(f"another job ({holder}) saves there, and did not end within {within_s:g} s")


class DirectoryLock:
    """Of one directory, for this process, until it ends."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._handle: int | None = None

    def take(self, *, within_s: float, on_wait: Callable[[Holder], None] | None = None) -> None:
        """Raises Held when the time is up. `on_wait` is called once, if it takes a while; what it raises ends the
        wait."""
        if self._handle is not None:
            return
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._wait(handle, within_s, on_wait)
            os.ftruncate(handle, 0)
            os.pwrite(handle, Holder.here().to_json().encode() + b"\n", 0)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def _wait(self, handle: int, within_s: float, on_wait: Callable[[Holder], None] | None) -> None:
        began = time.monotonic()
        while not _locked(handle):
            waited_s = time.monotonic() - began
            if waited_s > within_s:
                raise Held(_holder(handle), within_s)
            if on_wait is not None and waited_s >= min(TOLD_S, 0.5 * within_s):
                on_wait(_holder(handle))
                on_wait = None
            time.sleep(_TRY_S)


def _holder(handle: int) -> Holder:
    return Holder.parse(os.pread(handle, _MOST_BYTES, 0).decode(errors="replace"))


def _locked(handle: int) -> bool:
    """Also where locks do not work: there no process can tell."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
