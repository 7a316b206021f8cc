"""Every job there is, and the indexes over them that make a snapshot cheap. Only `State` writes to it.

A job is replaced by its next version with `put`, which keeps every index true. What the indexes are of is said beside
them; none of them knows why a job changed.
"""

from __future__ import annotations

import heapq
import math

from fairlead.core.learning import MODEL
from fairlead.core.occupancy import Occupancy
from fairlead.core.snapshot import NodeTable, Table
from fairlead.core.types import NOTHING, Allocation, Job, Phase


class Roster:
    """Jobs by id, live and finished, and who holds which GPU."""

    def __init__(self, *, keep_finished: int | None = None) -> None:
        self.keep_finished = keep_finished
        #: Every job whose phase is not final, in order of arrival.
        self.live: dict[str, Job] = {}
        #: The others, as they ended; the oldest are forgotten if there are too many.
        self.finished: dict[str, Job] = {}
        self.schedulable: dict[str, Job] = {}  # live, and for the policy to decide about; in order of arrival
        self.barred: dict[str, Job] = {}  # live, not schedulable, but not pending: they have processes
        self.absent: set[str] = set()  # live and not schedulable
        self.allocations: dict[str, Allocation] = {}  # non-empty allocations of schedulable jobs
        self.assigned = Occupancy()  # of allocations
        self.held = Occupancy()  # of every live job's `held`
        self.table = Table()  # the columns of schedulable
        self.node_table = NodeTable()  # the columns of nodes, with what assigned takes of them
        self._deferred: list[tuple[float, str]] = []  # (when, job): jobs that will be schedulable by themselves
        self._gaps = 0  # entries taken out of the dictionaries that snapshots copy, since they were last packed
        self._out_of_order = False  # somebody became schedulable long after it came

    def find(self, job_id: str) -> Job | None:
        return self.live.get(job_id) or self.finished.get(job_id)

    @property
    def wakes_at(self) -> float:
        """When somebody will be schedulable by itself; infinity for never."""
        return self._deferred[0][0] if self._deferred else math.inf

    def wake(self, now: float) -> None:
        """Time has passed: let those be scheduled whose time has come."""
        while self._deferred and self._deferred[0][0] <= now:
            job = self.live.get(heapq.heappop(self._deferred)[1])
            if job is not None and job.may_run(now):
                self.put(job, job, now)

    def tidy(self) -> None:
        """Before a snapshot copies the dictionaries."""
        if self._out_of_order:
            self.schedulable = {job_id: self.schedulable[job_id] for job_id in self.live if job_id in self.schedulable}
            self.table = Table()
            for job in self.schedulable.values():
                self.table.put(job)
            self._out_of_order = False
        if self._gaps > len(self.schedulable) // 4:
            # Python copies a dictionary several times as fast if few entries were taken out of it.
            self.schedulable, self.allocations = dict(self.schedulable.items()), dict(self.allocations.items())
            self._gaps = 0

    def put(self, old: Job | None, new: Job, now: float) -> None:
        """Let every index know that `old` has become `new`; None if it has just come."""
        job_id = new.spec.id
        if new.phase.final:
            self.live.pop(job_id, None)
            self._finish(new)
        else:
            self.live[job_id] = new
        was, schedulable = job_id in self.schedulable, not new.phase.final and new.may_run(now)
        if schedulable:
            # Its size is a cell that is written once, when a row is made: another one takes another table.
            resized = old is not None and old.spec.gpus != new.spec.gpus
            self._out_of_order |= resized or (old is not None and not was)
            self.schedulable[job_id] = new
            self.table.put(new)
        elif was:
            del self.schedulable[job_id]
            self.table.drop(job_id)
        if new.phase.final or schedulable:
            self.absent.discard(job_id)
        else:
            self.absent.add(job_id)
        if new.phase is Phase.PENDING or new.phase.final or schedulable:
            self.barred.pop(job_id, None)
        else:
            self.barred[job_id] = new
        if new.not_before > now and not (new.phase.final or schedulable):
            heapq.heappush(self._deferred, (new.not_before, job_id))
        before = (NOTHING, NOTHING) if old is None or old is new else (old.allocation, old.releasing)
        if old is not new:
            self._hold(before, (new.allocation, new.releasing))
        self._assign(job_id, self.allocations.get(job_id, NOTHING), new.allocation if schedulable else NOTHING)

    def new_partners(self, before: Job, after: Job) -> list[tuple[Job, tuple[str, ...]]]:
        """Jobs whose `Job.partners` are others now that `before` has become `after`, and what these are."""
        running = Phase.RUNNING
        if (before.phase is running, before.allocation) == (after.phase is running, after.allocation):
            return []
        present = [job for job in self.live.values() if job.phase is running]
        found = []
        for job in present:
            if _overlap(job, before) or _overlap(job, after):
                others = sorted(o.spec.labels.get(MODEL, "") for o in present if o is not job and _overlap(o, job))
                if tuple(others) != job.partners:
                    found.append((job, tuple(others)))
        return found

    def _finish(self, job: Job) -> None:
        self.finished[job.id] = job
        while self.keep_finished is not None and len(self.finished) > self.keep_finished:
            del self.finished[next(iter(self.finished))]

    def _hold(self, before: tuple[Allocation, Allocation], after: tuple[Allocation, Allocation]) -> None:
        for old, new in zip(before, after, strict=True):
            if old is not new:
                self.held.remove(old)
                self.held.add(new)

    def _assign(self, job_id: str, before: Allocation, after: Allocation) -> None:
        if before is after:
            return
        for node, gpus in self.assigned.remove(before):
            self.node_table.use(node, -gpus)
        for node, gpus in self.assigned.add(after):
            self.node_table.use(node, gpus)
        if after:
            self.allocations[job_id] = after
        else:
            self.allocations.pop(job_id, None)
            self._gaps += 1


def _overlap(one: Job, other: Job) -> bool:
    """Do they hold some GPU together?"""
    masks = dict(one.allocation.masks)
    return any(masks.get(node, 0) & mask for node, mask in other.allocation.masks)
