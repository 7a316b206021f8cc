"""How many GPUs everybody is entitled to: from the cluster to its queues, from a queue to its users.

    1. guaranteed  Every queue has what of its quota it has work for. If that is more than there is, by priority.
    2. lent        The rest goes to queues that could use more, those of higher priority first, by

                       weight x 2^(-used share / deserved share)

                   with the share of all use in the recent past, and the share of all weights. What a queue that does
                   not lend has left of its quota is kept for it.
    3. users       The same among the users of a queue, who all have the same weight.

What jobs hold that must not be preempted is everybody's least: entitlements go round it.

Legend: U users, Q queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.policies.middleware.claims import Claims, claims
from fairlead.policies.middleware.closing import without_outsiders
from fairlead.policies.middleware.queues import DEFAULT, Queue, all_queues
from fairlead.policies.middleware.water import Flags, Floats, Ints, pour, pour_by_rank, whole


@dataclass(frozen=True)
class Shares:
    """Entitlements in parts of a GPU, before they are rounded for a plan."""

    found: Claims
    #: What each user could use, and by how much its part is weighed; the same of the queues.
    demand_U: Ints
    factor_U: Floats
    factor_Q: Floats
    #: What of its quota each queue can have now, and what it is entitled to with what it is lent.
    guaranteed_Q: Floats
    entitled_Q: Floats
    #: GPUs kept for queues that do not lend.
    kept: int

    def again(self, demand_U: Ints) -> Shares:
        """The shares if the users could use this instead."""
        return _shared(self.found, demand_U, self.factor_U, self.factor_Q)


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What a queue or a user may count on now, and what it has. GPUs."""

    guaranteed: int
    entitled: int
    holds: int
    demand: int
    #: Its part of what its like have used lately, 0 to 1; what is long past counts less.
    used_share: float


@dataclass(frozen=True, slots=True)
class QueueEntitlement:
    """A queue's, and that of each of its users."""

    queue: Queue
    whole: Entitlement
    users: Mapping[str, Entitlement]


def shares(found: Claims, usage: Mapping[tuple[str, str], float]) -> Shares:
    """By `usage`, the GPU-seconds of (queue, user), as in a snapshot."""
    used_U, used_Q = _used(found, usage)
    weight_Q = np.array([queue.weight for queue in found.queues])
    factor_Q = weight_Q * _factors(used_Q, weight_Q, found.demand_Q > 0)
    factor_U = np.ones(len(used_U))
    for q in range(len(found.queues)):
        member_U = found.queue_U == q
        asks_U = found.demand_U[member_U] > 0
        factor_U[member_U] = _factors(used_U[member_U], np.ones(len(asks_U)), asks_U)
    return _shared(found, found.demand_U, factor_U, factor_Q)


def _shared(found: Claims, demand_U: Ints, factor_U: Floats, factor_Q: Floats) -> Shares:
    """Steps 1 and 2 of the module."""
    fixed_Q = found.fixed_Q.astype(np.float64)
    demand_Q = np.minimum(found.demand_Q, found.by_queue(demand_U)).astype(np.float64)
    rank_Q = np.array([queue.priority for queue in found.queues], dtype=np.int64)
    quota_Q = np.array([queue.guarantee for queue in found.queues], dtype=np.float64)
    owed_Q = np.minimum(found.guaranteed_Q, demand_Q)
    guaranteed_Q = pour_by_rank(found.capacity, rank_Q, quota_Q, np.minimum(fixed_Q, owed_Q), owed_Q)
    least_Q = np.maximum(guaranteed_Q, fixed_Q)
    idle_Q = np.where([queue.lend for queue in found.queues], 0.0, np.maximum(0.0, quota_Q - least_Q))
    rest = max(0.0, found.capacity - float(least_Q.sum()))
    kept = min(float(idle_Q.sum()), rest)
    room_Q = np.maximum(0.0, demand_Q - least_Q)
    lent_Q = pour_by_rank(rest - kept, rank_Q, factor_Q, np.zeros(len(room_Q)), room_Q)
    return Shares(found, demand_U, factor_U, factor_Q, guaranteed_Q, least_Q + lent_Q, int(kept + 0.5))


def entitled(found: Claims, share: Shares, planned_J: Ints, floor_U: Ints | None = None) -> tuple[Ints, Ints]:
    """Whole GPUs of each queue and each user. Parts are rounded up for those whose jobs, by the plan, go on running.

    `floor_U`: what each user gets in any case, if not just what cannot be taken from it.
    """
    floor_U = found.fixed_U if floor_U is None else floor_U
    going_U = found.by_user(np.where(planned_J > 0, np.minimum(planned_J, found.held_J), 0))
    going_Q = found.by_queue(going_U)
    entitled_Q = whole(share.entitled_Q, going_Q > np.floor(share.entitled_Q))
    entitled_U = np.zeros(len(found.users), dtype=np.int64)
    for q, amount in enumerate(entitled_Q.tolist()):
        member_U = found.queue_U == q
        least_U, most_U = floor_U[member_U].astype(np.float64), share.demand_U[member_U].astype(np.float64)
        part_U = pour(amount, share.factor_U[member_U], least_U, most_U)
        entitled_U[member_U] = whole(part_U, going_U[member_U] > np.floor(part_U))
    return entitled_Q, entitled_U


def entitlements(view: Snapshot, queues: tuple[Queue, ...], *, adapts: str = "gpus") -> dict[str, QueueEntitlement]:
    """What every queue and each of its users with live jobs is entitled to now, and holds: for people to look at."""
    found = claims(without_outsiders(view), all_queues(queues), adapts=adapts)
    share = shares(found, view.usage)
    entitled_Q, entitled_U = entitled(found, share, found.held_J)
    holds_U = found.by_user(found.held_J)
    holds_Q = found.by_queue(holds_U)
    used_U, used_Q = _used(found, view.usage)
    answer: dict[str, QueueEntitlement] = {}
    for q, queue in enumerate(found.queues):
        users = {
            found.users[u]: Entitlement(
                guaranteed=0,
                entitled=int(entitled_U[u]),
                holds=int(holds_U[u]),
                demand=int(found.demand_U[u]),
                used_share=_part(used_U[u], used_Q[q]),
            )
            for u in np.flatnonzero(found.queue_U == q).tolist()
        }
        own = Entitlement(
            guaranteed=round(float(share.guaranteed_Q[q])),
            entitled=int(entitled_Q[q]),
            holds=int(holds_Q[q]),
            demand=int(found.demand_Q[q]),
            used_share=_part(used_Q[q], used_Q.sum()),
        )
        answer[queue.name] = QueueEntitlement(queue, own, users)
    return answer


def _part(used: float, total: float) -> float:
    return float(used / total) if total > 0.0 else 0.0


def _used(found: Claims, usage: Mapping[tuple[str, str], float]) -> tuple[Floats, Floats]:
    """GPU-seconds of each user and each queue lately. Those of a queue that is no more count in the default one."""
    place = {queue.name: q for q, queue in enumerate(found.queues)}
    user_of = {pair: u for u, pair in enumerate(zip(found.queue_U.tolist(), found.users, strict=True))}
    used_U, used_Q = np.zeros(len(found.users)), np.zeros(len(found.queues))
    for (queue, user), gpu_s in usage.items():
        q = place.get(queue, place[DEFAULT])
        used_Q[q] += gpu_s
        if (q, user) in user_of:
            used_U[user_of[q, user]] += gpu_s
    return used_U, used_Q


def _factors(used_G: Floats, weight_G: Floats, claims_G: Flags) -> Floats:
    """2^(-used share / deserved share), among those that ask for anything."""
    used, weight = float(used_G[claims_G].sum()), float(weight_G[claims_G].sum())
    if used <= 0.0 or weight <= 0.0:
        return np.ones(len(used_G))
    return np.asarray(2.0 ** -np.minimum(60.0, (used_G / used) / (weight_G / weight)))
