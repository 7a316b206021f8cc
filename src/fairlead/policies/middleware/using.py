"""Limits that jobs can use: entitlements are GPUs, but jobs come whole.

A user whose jobs all need more than its share has no use for it. Within a queue such shares are put together: who is
owed most may begin a job that needs so many. What even so nobody there can use goes to others, as if it were not asked
for. A job that runs and crosses the line uses the share up.

Legend: J live jobs, U users, Q queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.policies.middleware.claims import Claims, fitting
from fairlead.policies.middleware.judging import Verdict, limits_of_users
from fairlead.policies.middleware.shares import Shares, entitled
from fairlead.policies.middleware.water import Flags, Ints

#: How often what somebody cannot use is offered to others.
_ROUNDS = 4


@dataclass(frozen=True)
class _Jobs:
    """The jobs of each user, in the order in which to keep them, and what each is counted as."""

    found: Claims
    members: Sequence[Ints]
    goes_on_J: Flags
    size_J: Ints
    gpus_U: Ints
    count_U: Ints

    def used(self, limit_U: Ints) -> Ints:
        """How much of these limits the users' jobs could use."""
        used = [self._used(user, int(limit)) for user, limit in enumerate(limit_U.tolist())]
        return np.maximum(self.found.fixed_U, np.array(used, dtype=np.int64))

    def _used(self, user: int, limit: int) -> int:
        found, count = self.found, int(self.count_U[user])
        able = self.members[user][found.want_J[self.members[user]] > 0]
        on, others = able[self.goes_on_J[able]], able[~self.goes_on_J[able]]
        before = np.cumsum(self.size_J[on]) - self.size_J[on]
        on = on[before < limit][:count]
        used = int(self.size_J[on].sum())
        if used >= limit:
            return limit
        others = others[fitting(found.least_J[others], limit - used, count=count - len(on))]
        return min(limit, int(found.want_J[on].sum() + found.want_J[others].sum()))

    def next_one(self, user: int, left: int, pool: int) -> int:
        """The fewest GPUs of the first job that does not fit into what is left, but would into the pool; 0 for none."""
        members = self.members[user]
        needs_K = self.found.least_J[members]
        fits_K = (needs_K > left) & (needs_K <= pool) & (self.found.want_J[members] > 0) & ~self.goes_on_J[members]
        return int(needs_K[fits_K.argmax()]) if fits_K.any() else 0


def useful(found: Claims, share: Shares, verdict: Verdict, members: Sequence[Ints]) -> Ints:
    """How much each user may have, out of what all are entitled to, so that as much as possible is of use."""
    planned_J = verdict.planned_J
    gpus_U, count_U = limits_of_users(found)
    size_J = np.where(found.divisible(planned_J) | (planned_J == 0), found.least_J, planned_J)
    jobs = _Jobs(found, members, found.goes_on(planned_J), size_J, gpus_U, count_U)
    limit_U, demand_U = verdict.entitled_U, found.demand_U
    used_U = jobs.used(limit_U)
    floor_U = _put_together(jobs, limit_U, used_U)
    for _ in range(_ROUNDS):
        used_U = np.maximum(used_U, floor_U)
        if (used_U >= limit_U).all():
            break
        demand_U = np.where((used_U < limit_U) | (floor_U > found.fixed_U), used_U, demand_U)
        limit_U = entitled(found, share.again(demand_U), planned_J, floor_U)[1]
        used_U = jobs.used(limit_U)
    return limit_U


def _put_together(jobs: _Jobs, limit_U: Ints, used_U: Ints) -> Ints:
    """What users get in any case, because the shares that are of no use to anybody in their queue make up a job."""
    found, floor_U = jobs.found, jobs.found.fixed_U.copy()
    idle_U = np.maximum(0, limit_U - used_U)
    for queue, pool in enumerate(found.by_queue(idle_U).tolist()):
        users = np.flatnonzero((found.queue_U == queue) & (idle_U > 0))
        for user in users[np.argsort(-idle_U[users], kind="stable")].tolist() if len(users) > 1 else ():
            needs = jobs.next_one(user, int(idle_U[user]), min(pool, int(jobs.gpus_U[user] - used_U[user])))
            if needs:
                floor_U[user] = used_U[user] + needs
                pool -= needs
    return floor_U
