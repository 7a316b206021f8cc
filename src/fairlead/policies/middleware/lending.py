"""Nothing is idle that somebody wanted: GPUs that are left over go back to those who were bounded.

Who was proposed GPUs beyond its share may have them as long as nobody else takes them: first those who can keep or get
exactly what was proposed, or keep what they hold; then whoever can start elsewhere. All of these can be preempted, so
the next decision may take them back. Limits hold, and what is kept for queues that do not lend is left alone.

Legend: U users, Q queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job
from fairlead.policies.gpu_speeds import believed_speeds
from fairlead.policies.middleware.claims import NO_LIMIT, Claims
from fairlead.policies.middleware.imagining import masks_of
from fairlead.policies.middleware.judging import limits_of_queues, limits_of_users
from fairlead.policies.middleware.water import Ints
from fairlead.policies.placing import Room


class _Loan:
    """A plan while idle GPUs are lent, and what of every limit is left."""

    def __init__(self, view: Snapshot, found: Claims, allocations: Mapping[str, Allocation]) -> None:
        self.view, self.found = view, found
        self.allocations = dict(allocations)
        self._taken = masks_of(allocations.values())
        self.planned_J = np.zeros(len(found.jobs), dtype=np.int64)
        for job_id, allocation in allocations.items():
            self.planned_J[found.row[job_id]] = allocation.total
        self._used_U = found.by_user(self.planned_J)
        self._used_Q = found.by_queue(self._used_U)
        self._running_U = found.by_user((self.planned_J > 0).astype(np.int64))
        self._gpus_U, self._jobs_U = limits_of_users(found)
        self._limit_Q = limits_of_queues(found)
        self.idle = sum(
            node.gpus - self._taken.get(node.id, 0).bit_count() for node in view.nodes.values() if node.open
        )

    def most(self, place: int) -> int:
        """GPUs that a job may have at most, by all limits."""
        found = self.found
        user, had = int(found.user_J[place]), int(self.planned_J[place])
        queue = int(found.queue_U[user])
        if had == 0 and self._running_U[user] >= self._jobs_U[user]:
            return 0
        kept = sum(
            max(0, other.guarantee - int(self._used_Q[q]))
            for q, other in enumerate(found.queues)
            if not other.lend and q != queue
        )
        more = min(self._gpus_U[user] - self._used_U[user], self._limit_Q[queue] - self._used_Q[queue])
        return had + max(0, min(int(more), self.idle - kept if kept else NO_LIMIT))

    def give(self, place: int, allocation: Allocation) -> None:
        found, job = self.found, self.found.jobs[place]
        before = self.allocations.get(job.id, NOTHING)
        user = int(found.user_J[place])
        self.allocations[job.id] = allocation
        self.idle -= sum(len(gpus) for node, gpus in allocation - before if self.view.nodes[node].open)
        for node, mask in allocation.masks:
            self._taken[node] = self._taken.get(node, 0) | mask
        self._used_U[user] += allocation.total - before.total
        self._used_Q[found.queue_U[user]] += allocation.total - before.total
        self._running_U[user] += not before
        self.planned_J[place] = allocation.total

    def free_of(self, job: Job, wish: Allocation) -> Allocation:
        """What of these GPUs nobody else has. On a node that drains only its own can be had."""
        own, free = dict(job.allocation.masks), {}
        for node_id, mask in wish.masks:
            node = self.view.nodes[node_id]
            left = mask & ~self._taken.get(node_id, 0) & (~0 if node.open else own.get(node_id, 0))
            if left:
                free[node_id] = [gpu for gpu in range(left.bit_length()) if left >> gpu & 1]
        return Allocation.of(free)

    def room(self) -> Room:
        """Everything that is still free."""
        return Room(replace(self.view, assigned=self._taken, _node_table=None, _version=(-1, -1)))


def lend(
    view: Snapshot, found: Claims, allocations: Mapping[str, Allocation], wishes: Mapping[str, Allocation]
) -> dict[str, Allocation]:
    """The allocations, and what of the wishes can be had besides. Wishes are what the inner policy proposed."""
    loan = _Loan(view, found, allocations)
    wished_J = np.zeros(len(found.jobs), dtype=np.int64)
    for job_id, wish in wishes.items():
        wished_J[found.row[job_id]] = wish.total
    eager_J = found.preemptible_J & (wished_J > loan.planned_J)
    order_J = found.order(wished_J)
    stranded: list[int] = []
    for place in order_J[eager_J[order_J]].tolist():
        job = found.jobs[place]
        if loan.idle <= 0 and not job.allocation:
            continue
        target = min(int(wished_J[place]), loan.most(place))
        before = loan.allocations.get(job.id, NOTHING)
        after = _in_place(loan, job, wishes[job.id], target)
        if after.total > before.total:
            loan.give(place, after)
        elif not before:
            stranded.append(place)
    if stranded and loan.idle > 0:
        _elsewhere(loan, stranded, wished_J)
    return loan.allocations


def out_of_the_question(
    view: Snapshot, found: Claims, allocations: Mapping[str, Allocation], most_J: Ints
) -> dict[str, None] | None:
    """Of those who were hidden and still have nothing: who could use nothing of what is left. None if all of them."""
    loan = _Loan(view, found, allocations)
    waits = np.flatnonzero((most_J == 0) & (loan.planned_J == 0)).tolist()
    if loan.idle <= 0 or not waits:
        return None
    room, cannot = loan.room(), dict[str, None]()
    for place in waits:
        job = found.jobs[place]
        if not job.spec.preemptible or found.least_J[place] > min(loan.most(place), room.free(job.spec.gpu_types)):
            cannot[job.id] = None
    return cannot if len(cannot) < len(waits) else None


def _in_place(loan: _Loan, job: Job, wish: Allocation, most: int) -> Allocation:
    """What it has by the plan, with as much as it can get of what it was to have, or else of what it holds."""
    has = loan.allocations.get(job.id, NOTHING)
    best = has
    for source in (wish, job.allocation):
        if not source or has - source:
            continue
        free = loan.free_of(job, source - has)
        added = _first(free, most - has.total)
        if (has | added).total > best.total and (has | added).total >= job.spec.least:
            best = has | added
    return best


def _elsewhere(loan: _Loan, stranded: list[int], wished_J: Ints) -> None:
    """Those that have nothing yet start, or go, wherever there is room."""
    room, speeds = loan.room(), believed_speeds(loan.view)
    for place in stranded:
        job = loan.found.jobs[place]
        free = room.free(job.spec.gpu_types)
        gpus = min(int(wished_J[place]), loan.most(place), free)
        if free <= 0 or gpus < job.spec.least:
            continue
        allocation = room.take(gpus, job.spec.gpu_types, speeds(job.id))
        if allocation is not None:
            loan.give(place, allocation)


def _first(allocation: Allocation, gpus: int) -> Allocation:
    """So many of these at most, node by node."""
    if allocation.total <= gpus:
        return allocation
    chosen: dict[str, tuple[int, ...]] = {}
    for node, numbers in allocation:
        if gpus > 0:
            chosen[node] = numbers[:gpus]
            gpus -= len(chosen[node])
    return Allocation.of(chosen)


def regrow(view: Snapshot, allocations: Mapping[str, Allocation], most_of: Mapping[str, int]) -> dict[str, Allocation]:
    """Jobs that were made to shrink, and go on with what they have, take idle GPUs of their nodes and then of others.

    `most_of` says who, in which order, and up to how many. For policies that do not resize jobs by themselves.
    """
    grown = dict(allocations)
    taken = masks_of(grown.values())
    for job_id, most in most_of.items():
        has = grown[job_id]
        gpu_type = view.nodes[has.nodes[0]].gpu_type
        alike = [node for node in view.nodes.values() if node.open and node.gpu_type == gpu_type]
        for node in sorted(alike, key=lambda node: node.id not in has.nodes):
            free = [gpu for gpu in range(node.gpus) if not taken.get(node.id, 0) >> gpu & 1]
            more = Allocation.of({node.id: free[: most - has.total]}) if free and most > has.total else NOTHING
            has |= more
            for node_id, mask in more.masks:
                taken[node_id] = taken.get(node_id, 0) | mask
        grown[job_id] = has
    return grown
