"""AlloX as shares of time, the way of the artifacts of Gavel and Shockwave: a gang is matched to one GPU.

The jobs that wait are matched to GPUs as if each needed one. A job that is first on its GPU is owed 1/s of the time,
where s is the number of GPUs that it needs: in GPU-time, that is the one GPU. Rounds see to the rest. A share, once
given, stays until the job ends. A GPU that was given to a job of one GPU is taken; those of gangs are matched again,
so more can be owed than there is, and the rounds divide what there is in proportion.
"""

from __future__ import annotations

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.policies.matching import match
from fairlead.policies.rates import RateSource
from fairlead.policies.remaining_time import remaining_time
from fairlead.policies.round_account import Group, Owed
from fairlead.policies.wait_reason import accepts, open_gpus


def matched_shares(view: Snapshot, source: RateSource, alpha: float, before: Owed) -> Owed:
    """What each job is owed on each GPU type; `before` are the shares in force. 0 where it can run and is owed none."""
    total = open_gpus(view)
    gpu_types = [t for t in view.node_columns.gpu_types if t in total]
    owed: dict[tuple[Group, str], float] = {
        ((job.id,), t): before.get(((job.id,), t), 0.0)
        for job in view.jobs.values()
        for t in gpu_types
        if accepts(job, t) and job.spec.gpus <= total[t]
    }
    whole = {group[0]: t for (group, t), share in owed.items() if share == 1.0}
    free = {t: max(0, total[t] - sum(on == t for on in whole.values())) for t in gpu_types}
    able = {group[0] for group, _ in owed}
    queue = [job for job in view.jobs.values() if job.id in able and job.id not in whole]
    oldest = queue[: max(int(alpha * len(queue)), sum(free.values()))]
    if not oldest or not any(free.values()):
        return owed
    seconds_JT = remaining_time(view, source, oldest, gpu_types).seconds_JT
    can_JT = np.array([[((job.id,), t) in owed and free[t] > 0 for t in gpu_types] for job in oldest])
    matched = [row for row in range(len(oldest)) if can_JT[row].any()]
    seconds_JT = np.where(can_JT, seconds_JT, np.inf)[matched]
    if not matched:
        return owed
    found = match(seconds_JT, np.ones(len(matched), dtype=np.int64), [np.zeros(free[t]) for t in gpu_types])
    seconds_J = seconds_JT[np.arange(len(matched)), found.type_J]
    for at in np.lexsort((seconds_J, -found.position_J)).tolist():
        job, gpu_type = oldest[matched[at]], gpu_types[found.type_J[at]]
        if free[gpu_type] > 0:
            free[gpu_type] -= 1
            owed[(job.id,), gpu_type] = 1.0 / job.spec.gpus
    return owed
