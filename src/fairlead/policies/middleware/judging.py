"""Does a plan give everybody what it is entitled to? If not, who has too much, and how badly is it wanted back?

To have more than one is entitled to is no offence while nobody is short by it. Three things are:

* to be beyond a limit of the queue or the user, whoever is there;
* to hold GPUs that a queue needs to have its quota, or that are kept for one that does not lend (`need`);
* to hold more than one's share while somebody has less, if giving it up would not leave one with less than the share:
  GPUs that a job can do without, a whole job beyond the share, or a job that has not begun and would cross it although
  another user is further below.

So a job that runs and crosses the line may go on, unless a quota is at stake: nobody is stopped for a part of a GPU.

Legend: J live jobs, U users, Q queues, T GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Plan
from fairlead.policies.middleware.claims import NO_LIMIT, Claims
from fairlead.policies.middleware.shares import Shares, entitled
from fairlead.policies.middleware.water import Flags, Ints


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a plan."""

    planned_J: Ints
    used_U: Ints
    used_Q: Ints
    entitled_U: Ints
    entitled_Q: Ints
    #: Users that have to give something up.
    over_U: Flags
    #: GPUs to be given up in any case.
    need: int
    #: Jobs whose GPUs in this plan would help those who are short, and may be taken.
    movable_J: Flags
    #: Users with less than they are entitled to.
    short_U: Flags
    #: The plan itself.
    wishes: Mapping[str, Allocation]

    @property
    def is_fine(self) -> bool:
        return not self.over_U.any()


def judge(view: Snapshot, found: Claims, share: Shares, plan: Plan) -> Verdict:
    planned_J = found.planned(plan)
    used_U = found.by_user(planned_J)
    used_Q = found.by_queue(used_U)
    entitled_Q, entitled_U = entitled(found, share, planned_J)
    lacks_U = np.maximum(0, entitled_U - used_U)
    movable_J, idle = _movable(view, found, plan, planned_J, lacks_U > 0)
    owed_Q = np.maximum(0, np.floor(share.guaranteed_Q + 1e-9).astype(np.int64) - used_Q)
    need = max(0, int(owed_Q.sum()) + share.kept - idle)
    over_U = _beyond_limits(found, planned_J, used_U, used_Q)
    excess_U = used_U > entitled_U
    if need > 0:
        over_U |= excess_U & (found.by_user(movable_J.astype(np.int64)) > 0)
    elif lacks_U.any():
        over_U |= excess_U & _unfair(found, planned_J, movable_J, used_U - entitled_U, int(lacks_U.max()))
    return Verdict(
        planned_J=planned_J,
        used_U=used_U,
        used_Q=used_Q,
        entitled_U=entitled_U,
        entitled_Q=entitled_Q,
        over_U=over_U,
        need=need,
        movable_J=movable_J,
        short_U=lacks_U > 0,
        wishes=plan.allocations,
    )


def limits_of_users(found: Claims) -> tuple[Ints, Ints]:
    """The most GPUs, and the most jobs, of each user."""
    rules = [found.queue_of(user) for user in range(len(found.users))]
    gpus_U = [NO_LIMIT if queue.max_gpus_per_user is None else queue.max_gpus_per_user for queue in rules]
    jobs_U = [NO_LIMIT if queue.max_jobs_per_user is None else queue.max_jobs_per_user for queue in rules]
    return np.array(gpus_U, dtype=np.int64), np.array(jobs_U, dtype=np.int64)


def limits_of_queues(found: Claims) -> Ints:
    return np.array([NO_LIMIT if queue.limit is None else queue.limit for queue in found.queues], dtype=np.int64)


def _beyond_limits(found: Claims, planned_J: Ints, used_U: Ints, used_Q: Ints) -> Flags:
    """Users beyond a limit of their own or of their queue, by more than what cannot be taken from them."""
    gpus_U, jobs_U = limits_of_users(found)
    fixed_jobs_U = found.by_user(found.fixed_J.astype(np.int64))
    running_U = found.by_user((planned_J > 0).astype(np.int64))
    over_Q = used_Q > np.maximum(limits_of_queues(found), found.fixed_Q)
    over_U = (used_U > np.maximum(gpus_U, found.fixed_U)) | (running_U > np.maximum(jobs_U, fixed_jobs_U))
    return np.asarray(over_U | (over_Q[found.queue_U] & (used_U > found.fixed_U)))


def _unfair(found: Claims, planned_J: Ints, movable_J: Flags, excess_U: Ints, furthest: int) -> Flags:
    """Who could give something up and keep its share, or was about to take it before one who lacks `furthest` GPUs."""
    shrinks_U = found.by_user((movable_J & found.divisible(planned_J)).astype(np.int64)) > 0
    smallest_U = _least(found, planned_J, movable_J)
    newest_U = _least(found, planned_J, movable_J & (found.held_J == 0))
    return np.asarray(shrinks_U | (excess_U >= smallest_U) | (newest_U - excess_U < furthest))


def _least(found: Claims, planned_J: Ints, some_J: Flags) -> Ints:
    least_U = np.full(len(found.users), NO_LIMIT, dtype=np.int64)
    np.minimum.at(least_U, found.user_J[some_J], planned_J[some_J])
    return least_U


def _movable(view: Snapshot, found: Claims, plan: Plan, planned_J: Ints, short_U: Flags) -> tuple[Flags, int]:
    """Jobs that could yield GPUs of use to somebody who is short, and how many of such GPUs the plan leaves idle."""
    movable_J = (planned_J > 0) & ~found.fixed_J
    idle_T = found.gpus_T.copy()
    if len(idle_T) <= 1:
        return movable_J, int(idle_T.sum() - planned_J.sum())
    kinds = {name: kind for kind, name in enumerate(found.gpu_types)}
    kind_J = np.zeros(len(planned_J), dtype=np.int64)
    for job_id, allocation in plan.allocations.items():
        kind = kinds[view.nodes[allocation.nodes[0]].gpu_type]
        kind_J[found.row[job_id]] = kind
        idle_T[kind] -= allocation.total
    lacking_J = short_U[found.user_J] & (planned_J < found.want_J)
    wanted_T: Flags = np.ones(len(idle_T), dtype=bool)
    if lacking_J.any():
        wanted_T = np.logical_or.reduce(found.accepts_JT[lacking_J], axis=0)
    return movable_J & wanted_T[kind_J], int(idle_T[wanted_T].sum())
