"""Who asks for how much: the jobs of a snapshot by queue and user, as arrays.

A group of jobs is a user within a queue: the same person in two queues is two users here. What a user *claims* is what
its jobs could use, within the limits of its queue. What is *fixed* cannot be taken from it: the GPUs of jobs that must
not be preempted.

Legend: J live jobs in order of arrival, U users, Q queues, T GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.middleware.queues import DEFAULT, Queue
from fairlead.policies.middleware.water import Flags, Floats, Ints

#: In place of a limit that there is not.
NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Claims:
    """See the module. `claims` makes one."""

    jobs: Sequence[Job]
    #: A job's place in `jobs`.
    row: Mapping[str, int]
    queues: Sequence[Queue]
    users: Sequence[str]
    queue_U: Ints
    user_J: Ints
    #: The fewest GPUs it can run on, and the most it could use of one type there is; 0 for who cannot run at all.
    least_J: Ints
    want_J: Ints
    held_J: Ints
    #: Holds GPUs and must not be preempted.
    fixed_J: Flags
    #: Can give up GPUs without a restart.
    nimble_J: Flags
    preemptible_J: Flags
    priority_J: Floats
    #: Whether it accepts a GPU type, and the GPUs there are of each.
    accepts_JT: Flags
    gpus_T: Ints
    gpu_types: Sequence[str]
    fixed_U: Ints
    demand_U: Ints
    fixed_Q: Ints
    demand_Q: Ints
    #: What of each queue's quota it has work for. A job that needs more than the quota has no claim on it.
    guaranteed_Q: Ints

    @property
    def capacity(self) -> int:
        return int(self.gpus_T.sum())

    def by_user(self, value_J: Ints) -> Ints:
        return _sums(self.user_J, value_J, len(self.users))

    def by_queue(self, value_U: Ints) -> Ints:
        return _sums(self.queue_U, value_U, len(self.queues))

    def queue_of(self, user: int) -> Queue:
        return self.queues[int(self.queue_U[user])]

    def planned(self, plan: Plan) -> Ints:
        """GPUs of each job in a plan."""
        gpus_J = np.zeros(len(self.jobs), dtype=np.int64)
        for job_id, allocation in plan.allocations.items():
            gpus_J[self.row[job_id]] = allocation.total
        return gpus_J

    def order(self, planned_J: Ints | None = None) -> Ints:
        """Whom to keep first: who must not be preempted, then by priority, who was proposed, who runs, who came."""
        proposed_J = self.held_J > 0 if planned_J is None else planned_J > 0
        return np.lexsort((self.held_J == 0, ~proposed_J, -self.priority_J, ~self.fixed_J))

    def members(self, planned_J: Ints) -> list[Ints]:
        """The jobs of each user, in that order."""
        order_J = self.order(planned_J)
        by_user_J = order_J[np.argsort(self.user_J[order_J], kind="stable")]
        return np.split(by_user_J, np.cumsum(np.bincount(self.user_J, minlength=len(self.users)))[:-1])

    def divisible(self, planned_J: Ints) -> Flags:
        """Jobs that can have fewer GPUs than planned without being restarted for it: they start, or can shrink."""
        restarts_J = (self.held_J == 0) | (planned_J != self.held_J)
        return np.asarray((planned_J > self.least_J) & (self.nimble_J | restarts_J))

    def goes_on(self, planned_J: Ints) -> Flags:
        """Jobs that run, and go on without a restart."""
        stays_J = self.nimble_J | (planned_J == self.held_J)
        return np.asarray((self.held_J > 0) & (planned_J > 0) & stays_J)


def claims(view: Snapshot, queues: Mapping[str, Queue], *, adapts: str) -> Claims:
    """Of all jobs. A policy that adapts nothing gives a job what it asked for, and so that is all it could use.

    It also starts no job with less. Who runs may shrink, but only if it can without a restart could it grow again.
    """
    columns, jobs = view.columns, list(view.jobs.values())
    specs = [job.spec for job in jobs]
    users, queue_U, user_J = _users([(spec.queue, spec.tenant) for spec in specs], queues)
    least_J = np.array([spec.least for spec in specs], dtype=np.int64)
    held_J = columns.held_J.astype(np.int64)
    nimble_J = np.array([spec.in_place for spec in specs], dtype=bool)
    if resizes := adapts != "nothing":
        most_J = np.array([spec.most for spec in specs], dtype=np.float64)
    else:
        most_J = np.where((held_J > 0) & ~nimble_J, held_J, columns.gpus_J)
    need_J = least_J if resizes else np.where(held_J > 0, least_J, columns.gpus_J.astype(np.int64))
    accepts_JT, gpus_T = _types(view)
    reach_J = np.where(accepts_JT, gpus_T, 0).max(axis=1, initial=0)
    want_J = np.where(least_J <= reach_J, np.minimum(np.minimum(most_J, NO_LIMIT).astype(np.int64), reach_J), 0)
    want_J = np.maximum(want_J, held_J)
    preemptible_J = columns.preemptible_J > 0
    fixed_J = ~preemptible_J & (held_J > 0)
    every = tuple(queues.values())
    fixed_U = _sums(user_J, np.where(fixed_J, held_J, 0), len(users))
    demand_U = np.maximum(fixed_U, _demands(every, queue_U, user_J, want_J))
    fixed_Q = _sums(queue_U, fixed_U, len(every))
    limit_Q = np.array([NO_LIMIT if queue.limit is None else queue.limit for queue in every])
    demand_Q = np.maximum(fixed_Q, np.minimum(limit_Q, _sums(queue_U, demand_U, len(every))))
    found = Claims(
        jobs=jobs,
        row={job_id: place for place, job_id in enumerate(view.jobs)},
        queues=every,
        users=users,
        queue_U=queue_U,
        user_J=user_J,
        least_J=least_J,
        want_J=want_J,
        held_J=held_J,
        fixed_J=fixed_J,
        nimble_J=nimble_J,
        preemptible_J=preemptible_J,
        priority_J=columns.priority_J,
        accepts_JT=accepts_JT,
        gpus_T=gpus_T,
        gpu_types=view.node_columns.gpu_types,
        fixed_U=fixed_U,
        demand_U=demand_U,
        fixed_Q=fixed_Q,
        demand_Q=demand_Q,
        guaranteed_Q=np.zeros(len(every), dtype=np.int64),
    )
    return replace(found, guaranteed_Q=np.minimum(_guaranteed(found, need_J), demand_Q))


def fitting(need_K: Ints, limit: int, *, count: int = NO_LIMIT) -> Ints:
    """Places of those that fit into a limit together, one after the other, skipping who does not; at most `count`."""
    chosen: list[Ints] = []
    place_K = np.arange(len(need_K))
    while limit > 0 and len(place_K) and count > 0:
        place_K = place_K[need_K[place_K] <= limit]
        used_K = np.cumsum(need_K[place_K])
        some = min(count, int(np.searchsorted(used_K, limit, side="right")))
        if some:
            chosen.append(place_K[:some])
            limit -= int(used_K[some - 1])
            count -= some
        place_K = place_K[some:]
    return np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)


def _sums(group_K: Ints, value_K: Ints, groups: int) -> Ints:
    return np.bincount(group_K, weights=value_K, minlength=groups).astype(np.int64)


def _users(pairs: Sequence[tuple[str, str]], queues: Mapping[str, Queue]) -> tuple[list[str], Ints, Ints]:
    """The users, the queue of each, and the user of each job. Who is in no queue we know is in the default one."""
    place = {name: q for q, name in enumerate(queues)}
    index: dict[tuple[int, str], int] = {}
    user_of = {
        (queue, user): index.setdefault((place.get(queue, place[DEFAULT]), user), len(index))
        for queue, user in dict.fromkeys(pairs)
    }
    user_J = np.fromiter(map(user_of.__getitem__, pairs), dtype=np.int64, count=len(pairs))
    return [user for _, user in index], np.array([queue for queue, _ in index], dtype=np.int64), user_J


def _types(view: Snapshot) -> tuple[Flags, Ints]:
    """Which GPU types each job accepts, and how many GPUs there are of each that somebody has or could be given."""
    columns, types = view.columns, view.node_columns.gpu_types
    accepts_DT = np.array([[not only or name in only for name in types] for _, only in columns.demands], dtype=bool)
    gpus_T = np.zeros(len(types), dtype=np.int64)
    for node in view.nodes.values():
        if node.healthy:
            used = node.gpus if node.open else view.assigned.get(node.id, 0).bit_count()
            gpus_T[types.index(node.gpu_type)] += used
    return accepts_DT.reshape(len(columns.demands), len(types))[columns.demand_J], gpus_T


def _demands(queues: Sequence[Queue], queue_U: Ints, user_J: Ints, want_J: Ints) -> Ints:
    """What each user's jobs could use together, within its limits."""
    demand_U = _sums(user_J, want_J, len(queue_U))
    for user, q in enumerate(queue_U.tolist()):
        if (count := queues[q].max_jobs_per_user) is not None:
            wants_K = np.sort(want_J[user_J == user])
            demand_U[user] = wants_K[max(0, len(wants_K) - count) :].sum()
        if (limit := queues[q].max_gpus_per_user) is not None:
            demand_U[user] = min(limit, demand_U[user])
    return demand_U


def _guaranteed(found: Claims, need_J: Ints) -> Ints:
    """GPUs of each quota that jobs of the queue could have, those that do not fit into it left out."""
    guaranteed_Q = np.zeros(len(found.queues), dtype=np.int64)
    if not any(queue.quota for queue in found.queues):
        return guaranteed_Q
    order_J = found.order()
    queue_K, able_K = found.queue_U[found.user_J[order_J]], found.want_J[order_J] > 0
    for q, queue in enumerate(found.queues):
        if queue.quota:
            members = order_J[able_K & (queue_K == q)]
            chosen = members[fitting(need_J[members], queue.quota)]
            guaranteed_Q[q] = min(queue.quota, int(found.want_J[chosen].sum()))
    return guaranteed_Q
