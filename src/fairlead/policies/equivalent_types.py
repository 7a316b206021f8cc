"""GPU types on which a job is equally fast are one to it: what it is owed on any of them, it may have where it runs.

Without this, a policy that owes a job a part of every type moves it from one type to the next, round by round, for
nothing: every move is a restart.
"""

from __future__ import annotations

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.policies.rates import Configuration, RateSource
from fairlead.policies.round_account import Group, Owed
from fairlead.policies.wait_reason import gpu_type_of

#: Speeds that differ by less than this share are equal.
_CLOSE = 0.01


def owed_where_it_runs(view: Snapshot, owed: Owed, source: RateSource) -> Owed:
    """The same shares; those of a running job on types on which it is as fast as where it runs are owed there."""
    here = {job_id: gpu_type_of(view, allocation) for job_id, allocation in view.allocations.items()}
    gpu_types = list(view.node_columns.gpu_types)
    running = [view.jobs[group[0]] for group, gpu_type in owed if len(group) == 1 and here.get(group[0]) == gpu_type]
    if len(gpu_types) < 2 or not running:
        return owed
    largest = {t: max(node.gpus for node in view.nodes.values() if node.gpu_type == t) for t in gpu_types}
    places = list(dict.fromkeys((t, job.spec.gpus) for job in running for t in gpu_types))
    asked = [Configuration(t, gpus, -(-gpus // largest[t])) for t, gpus in places]
    rate_JC = source.rates(view, running, asked).rate_JC
    column = {place: at for at, place in enumerate(places)}
    gathered: dict[tuple[Group, str], float] = dict(owed)
    for job, rate_C in zip(running, rate_JC, strict=True):
        group, own = (job.id,), here[job.id]
        speed = rate_C[column[own, job.spec.gpus]]
        for gpu_type in gpu_types:
            share = gathered.get((group, gpu_type), 0.0)
            if gpu_type != own and share > 0.0 and np.isclose(rate_C[column[gpu_type, job.spec.gpus]], speed, _CLOSE):
                gathered[group, own] += share
                gathered[group, gpu_type] = 0.0
    return gathered
