"""What a controller and a supervisor say to each other: lines of JSON in two files that only grow.

A directory for each attempt. The controller appends to `orders.jsonl`, the supervisor to `events.jsonl`; each reads on
where it left off. So either may be gone for a while, or be replaced, and nothing is lost or said twice. While the
supervisor or its guardian lives, it holds a lock on `lock`.

Orders: resize {slots}, stop {grace_s, why, by}. Every event has a time, `at`, and what the machine's own clock, which
nobody sets, said then, `monotonic`:

    began     {pid, boot}                    the supervisor runs; an attempt never begins twice
    started   {}                             the job trains, or its command runs
    report    {progress, batch, noise_scale, bounds, observations, saved}
    rescaled  {slots}                        it uses these now; none, if it is suspended
    note      {what, ...}                    something people want to know, and the scheduler need not
    ended     {code, why, stopped, final}    the last one; nothing of it runs any more
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fairlead.backends.regular_file import NotRegular, open_append, open_regular, write_whole

Line = dict[str, Any]

#: What a write fails with on a full disk: it is worth trying again.
FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class AttemptFiles:
    """The directory of one attempt."""

    directory: Path

    @property
    def root(self) -> Path:
        """The directory of all jobs. What is below it a job may have replaced."""
        return self.directory.parent.parent

    @property
    def orders(self) -> Path:
        return self.directory / "orders.jsonl"

    @property
    def events(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def start(self) -> Path:
        """What it was started on, for a controller whose journal has lost that."""
        return self.directory / "start.json"

    @property
    def notice(self) -> Path:
        """For the job itself: when it has to be gone, and why. See FAIRLEAD_PREEMPT_FILE."""
        return self.directory / "preempt.json"

    @property
    def worker_notes(self) -> Path:
        """What workers without an agent leave for people. See FAIRLEAD_NOTES."""
        return self.directory / "worker-notes.jsonl"

    def give_notice(self, *, deadline: float, why: str, by: str) -> None:
        """Before the signal, so that whoever gets that finds this."""
        write_whole(self.notice, json.dumps({"deadline": deadline, "why": why, "by": by}), root=self.root)

    def told(self, kind: str) -> Line | None:
        """The first event of this kind, if there was one."""
        return next((line for line, _ in Tail(self.events, root=self.root).read() if line.get("kind") == kind), None)

    @property
    def errors(self) -> Path:
        """What the supervisor itself complains of."""
        return self.directory / "supervisor.log"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    @property
    def processes(self) -> Path:
        """By which what is left of it is recognised; see `ownership`."""
        return self.directory / "processes.json"

    def lock(self, *, within_s: float = 0.0) -> int | None:
        """Hold it, until the descriptor is closed by everybody who has it; None if somebody else does. Whoever means to
        keep it should try for a moment: it may just be looked at."""
        handle = open_regular(self.directory / "lock", os.O_RDWR | os.O_CREAT, root=self.root)
        until = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except OSError:
                if time.monotonic() >= until:
                    os.close(handle)
                    return None
            time.sleep(0.01)

    @property
    def is_alive(self) -> bool:
        """A supervisor, or its guardian, sees to it. A lock that was replaced says nothing for it."""
        if not os.path.lexists(self.directory / "lock"):
            return False
        try:
            handle = self.lock()
        except (FileNotFoundError, NotRegular):
            return False
        if handle is None:
            return True
        os.close(handle)
        return False


class Tail:
    """Reads whole lines as they are appended. `position` is where the next one begins. If the file becomes shorter than
    that, it hears nothing of it: what is written anew up to there was read before."""

    def __init__(self, path: Path, position: int = 0, *, root: Path | None = None) -> None:
        self.path, self.position, self._root = path, position, root

    def read(self) -> list[tuple[Line, int]]:
        """New lines, each with the position after it. A line that is no JSON object is passed over. Raises NotRegular
        if something else is in the place of the file."""
        try:
            found = self.path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_size <= self.position:
                return []
            with open(open_regular(self.path, os.O_RDONLY, root=self._root), "rb") as file:
                file.seek(self.position)
                data = file.read()
        except FileNotFoundError:
            return []
        lines = []
        for raw in data.split(b"\n")[:-1]:
            self.position += len(raw) + 1
            line = parse(raw)
            if line is not None:
                lines.append((line, self.position))
        return lines


def parse(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def open_log(path: Path) -> BinaryIO:
    """To append to. A log is in the `logs` of an attempt of a job, of which none may be a link."""
    return open_append(path, root=above_log(path))


def above_log(path: Path) -> Path:
    """The directory of all jobs, above a log."""
    return path.parents[min(3, len(path.parents) - 1)]


class Appender:
    """Appends lines, whole or not at all. On a full disk they wait, in order, until there is room. Any thread may."""

    def __init__(
        self,
        path: Path,
        on_full: Callable[[str], None] = lambda why: None,  # noqa: ARG005
        *,
        root: Path | None = None,
    ) -> None:
        self._path, self._on_full, self._root = path, on_full, root
        self._waiting: list[bytes] = []
        self._guard = threading.Lock()
        #: None until there is something to write.
        self._handle: int | None = None
        #: What ends the half line of whoever was killed while it wrote.
        self._before = b""

    def append(self, line: Line) -> bool:
        """True if it is safe on disk."""
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._guard:
            self._waiting.append(data)
        return self.flush()

    def flush(self) -> bool:
        """Try again what waits."""
        with self._guard:
            while self._waiting:
                try:
                    self._write(self._waiting[0])
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    self._on_full(error.strerror or str(error))
                    return False
                del self._waiting[0]
        return True

    def close(self) -> None:
        with self._guard:
            if self._handle is not None:
                os.close(self._handle)
            self._handle = None

    def _write(self, line: bytes) -> None:
        handle = self._open()
        size, data = os.fstat(handle).st_size, self._before + line
        try:
            if os.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
        self._before = b""

    def _open(self) -> int:
        if self._handle is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            self._handle = handle = open_regular(self._path, flags, root=self._root)
            size = os.fstat(handle).st_size
            self._before = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
        return self._handle
