"""Jobs that wait for the lock of a directory of checkpoints, because another process saves there.

Their workers say so in notes. What was said last counts: that it waits, or that it has started. See `train.resumption`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.types import Job, Phase, Reason
from fairlead.server.store import Store

#: The kinds of note that say how a worker's training starts, and the one that says that it waits.
STARTS, WAITS = ("begins", "continues", "complete"), "locked"

#: Notes of a job that are read at a time.
_PAGE = 1000


@dataclass(frozen=True)
class LockWait:
    """What one attempt waits for, and since when."""

    attempt: int
    at: float
    directory: str
    #: The process that holds the lock, in words.
    holder: str
    #: Then it gives up.
    within_s: float

    @staticmethod
    def of(at: float, body: Mapping[str, Any]) -> LockWait:
        """Raises LookupError, TypeError or ValueError for what is no such note: jobs write them themselves."""
        holder = body["holder"]
        who = f"process {int(holder['pid'])} on {holder['host']}" if holder["pid"] is not None else "another process"
        who += f", of job {holder['job']}," if holder["job"] else ""
        return LockWait(int(body["attempt"]), at, str(body["directory"]), who, float(body["within_s"]))

    def reason(self, now: float) -> Reason:
        text = (
            f"waits for the lock of its checkpoints in {self.directory}, which {self.holder} holds; "
            f"it gives up after {self.within_s:g} s"
        )
        return Reason("checkpoint-lock", text, {"seconds": max(0.0, now - self.at), "within_s": self.within_s})


class LockWaits:
    """By job. Mappings that were handed out do not change."""

    def __init__(self) -> None:
        self.current: Mapping[str, LockWait] = {}

    def hear(self, job: str, at: float, kind: str, body: Mapping[str, Any]) -> bool:
        """Of a note; whether that changes anything."""
        others = {other: wait for other, wait in self.current.items() if other != job}
        if kind == WAITS:
            try:
                others[job] = LockWait.of(at, body)
            except (LookupError, TypeError, ValueError):
                return False
        elif kind not in STARTS or job not in self.current:
            return False
        self.current = others
        return True

    def recall(self, store: Store, job: str) -> None:
        """What the notes of a job say, after a restart of the server."""
        after = 0
        while notes := store.notes(job, after, _PAGE):
            for note in notes:
                self.hear(job, note.at, note.kind, note.body)
            after = notes[-1].seq

    def forget_all_but(self, jobs: Container[str]) -> None:
        if any(job not in jobs for job in self.current):
            self.current = {job: wait for job, wait in self.current.items() if job in jobs}


def lock_reason(waits: Mapping[str, LockWait], job: Job, now: float) -> Reason | None:
    """Why a job that has its GPUs does not train; None if it is not for a lock."""
    wait = waits.get(job.id)
    if wait is None or wait.attempt != job.attempt or job.phase not in (Phase.STARTING, Phase.RUNNING, Phase.RESCALING):
        return None
    return wait.reason(now)
