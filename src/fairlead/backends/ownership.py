"""What belongs to an attempt: the proof by which a process that was left behind is ended, and no other ever is.

While an attempt runs, its guardians end all that is below them. If all of them were killed, what is left is known by

- its control group, where there is one (`cgroup`);
- the record: the numbers of its processes, each with the time at which it began, so that a later process of the same
  number is not meant; and with them the sessions and descendants of those that are still there. A session is never
  entered from outside, so all of one that a recorded process is in belongs to the attempt;
- the cookie in its environment, which everything it starts inherits.

A daemon that empties its environment is known by the first two. A record counts for the boot it was made in.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.backends.cgroup import Cgroup
from fairlead.backends.files import AttemptFiles
from fairlead.backends.processes import Table, below, boot_id, cookie_of, cookies, end_all, table
from fairlead.backends.regular_file import read_whole, write_whole
from fairlead.core import codec
from fairlead.core.errors import FairleadError

#: The names of directories.
_JOB, _ATTEMPT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*"), re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, slots=True)
class Record:
    """The processes of an attempt, as far as they were seen. It is on disk until the last of them has ended."""

    boot: str
    #: The path of its control group; empty if it has none.
    cgroup: str = ""
    #: Number and start of each.
    processes: tuple[tuple[int, int], ...] = ()

    @property
    def group(self) -> Cgroup | None:
        return Cgroup(Path(self.cgroup)) if self.cgroup else None


class Recorder:
    """Keeps the record of one attempt."""

    def __init__(self, files: AttemptFiles, cgroup: Cgroup | None) -> None:
        self._files = files
        self._record = Record(boot_id(), "" if cgroup is None else str(cgroup.path))
        self._is_written = False

    def note(self, processes: Iterable[tuple[int, int]]) -> None:
        """These are there now. Written if one of them is new; on a full disk it is tried again the next time."""
        now = tuple(sorted(processes))
        if not self._is_written or not set(now) <= set(self._record.processes):
            self._record, self._is_written = replace(self._record, processes=now), False
            with contextlib.suppress(OSError):
                write_whole(self._files.processes, json.dumps(codec.encode(self._record)), root=self._files.root)
                self._is_written = True


def read_record(files: AttemptFiles) -> Record | None:
    """None if there is none that counts."""
    with contextlib.suppress(OSError, ValueError, FairleadError):
        data = json.loads(read_whole(files.processes, root=files.root))
        record: Record = codec.decode(Record, data, place=str(files.processes))
        return record if record.boot == boot_id() else None
    return None


def belongings(files: AttemptFiles, cookie: str) -> list[int]:
    """The processes that are proven to belong to an attempt and have not ended. Never this one."""
    record, processes = read_record(files), table()
    carriers = {pid for pid, carried in cookies().items() if carried == cookie}
    return sorted(_owned(record, carriers, processes))


def _owned(record: Record | None, carriers: set[int], processes: Table) -> set[int]:
    known = set(carriers)
    if record is not None:
        seen = {pid for pid, start in record.processes if pid in processes and processes[pid].start == start}
        sessions = {processes[pid].session for pid in seen} - {0, os.getsid(0)}
        known |= seen | {each.pid for each in processes.values() if each.session in sessions}
        known |= set() if record.group is None else set(record.group.members())
    known.discard(os.getpid())  # before the next line: or all that a server has started would be meant
    known |= set(below(known, processes)) - {os.getpid()}
    return {pid for pid in known if pid in processes and processes[pid].state != "Z"}


def end_belongings(files: AttemptFiles, cookie: str) -> tuple[list[int], list[int]]:
    """Kill all that belongs to an attempt: the processes that were there, and those of them that could not be ended."""
    found, record = belongings(files, cookie), read_record(files)
    if record is not None and record.group is not None:
        record.group.kill()
    left = end_all(lambda: belongings(files, cookie))
    if not left:
        close_record(files, None if record is None else record.group)
    return found, left


def close_record(files: AttemptFiles, group: Cgroup | None) -> None:
    """Nothing of the attempt is left."""
    if group is not None:
        group.remove()
    with contextlib.suppress(OSError):
        files.processes.unlink()


# -- all attempts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leftover:
    """Processes of an attempt that nothing guards."""

    job: str
    attempt: int
    pids: list[int]
    #: Those that could not be ended.
    stuck: list[int]


def sweep(root: Path) -> Iterator[Leftover]:
    """End what is left of every attempt that has no guardian any more. While it does, it holds the lock of the attempt:
    one that is just being started gives way, and is started again."""
    for job, attempt in sorted(_with_traces(root)):
        files = AttemptFiles(root / job / f"attempt-{attempt}")
        with contextlib.ExitStack() as held:
            lock = _lock(files)
            if lock is not None:
                held.callback(os.close, lock)
            elif files.is_alive:
                continue
            found, left = end_belongings(files, cookie_of(job, attempt, root))
            if found:
                yield Leftover(job, attempt, found, left)


def left_behind(root: Path) -> list[Leftover]:
    """What `sweep` would find, without doing anything about it."""
    found = []
    for job, attempt in sorted(_with_traces(root)):
        files = AttemptFiles(root / job / f"attempt-{attempt}")
        if not files.is_alive and (pids := belongings(files, cookie_of(job, attempt, root))):
            found.append(Leftover(job, attempt, pids, []))
    return found


def _lock(files: AttemptFiles) -> int | None:
    with contextlib.suppress(OSError):  # its directory is gone: nothing can guard it
        return files.lock()
    return None


def _with_traces(root: Path) -> set[tuple[str, int]]:
    """Attempts with a record, or with processes that carry a cookie of this root."""
    found = set()
    for path in root.glob(f"*/attempt-*/{AttemptFiles(root).processes.name}"):
        if (match := _ATTEMPT.fullmatch(path.parent.name)) is not None:
            found.add((path.parent.parent.name, int(match[1])))
    for cookie in cookies().values():
        job, colon, attempt = cookie.removeprefix(f"{root}:").partition(":")
        if cookie.startswith(f"{root}:") and colon and attempt.isdecimal() and _JOB.fullmatch(job):
            found.add((job, int(attempt)))
    return found
