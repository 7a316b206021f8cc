"""Who must not begin although there are GPUs: jobs that could not be made to give them back.

A job that must not be preempted may only have GPUs that are its queue's own, by its quota, or that are guaranteed to
nobody. Otherwise a quota would be worth nothing as soon as somebody has borrowed it for such a job.
"""

from __future__ import annotations

import numpy as np

from fairlead.policies.middleware.claims import Claims


def guarded(found: Claims) -> dict[int, int]:
    """Waiting jobs that have to wait for this reason, and how many GPUs there would be for each."""
    starts_J = ~found.preemptible_J & (found.held_J == 0) & (found.want_J > 0)
    if not starts_J.any() or not any(queue.quota for queue in found.queues):
        return {}
    quota_Q = np.array([queue.guarantee for queue in found.queues], dtype=np.int64)
    own_Q = np.maximum(0, quota_Q - found.fixed_Q)
    nobodys = max(0, found.capacity - int(quota_Q.sum())) - int(np.maximum(0, found.fixed_Q - quota_Q).sum())
    order_J = found.order()
    waits: dict[int, int] = {}
    for place in order_J[starts_J[order_J]].tolist():
        queue = int(found.queue_U[found.user_J[place]])
        # In whole: what it asks for, which it then keeps.
        needs, own = found.jobs[place].spec.gpus, int(own_Q[queue])
        if needs > own + max(0, nobodys):
            waits[place] = own + max(0, nobodys)
            continue
        own_Q[queue] -= min(own, needs)
        nobodys -= max(0, needs - own)
    return waits
