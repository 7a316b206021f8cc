"""What a round of the elastic market owes: the sharing incentive, finish-time fairness and the makespan, in this order.

**Sharing incentive.** Each live job is promised to end no later than in the reference world, in which it has 1/N of the
cluster (`reference_share`), times 1 + tolerance, counted from its submission. The supply of these deadlines is what the
reference world, slowed by 1 + tolerance, spends on the same jobs, those included that ended early in the real cluster,
and the GPUs that the slowing leaves idle. It is not simply all GPUs: what the reference world leaves idle is claimed by
the next job that comes. A new job brings as much to the supply as to the demand, and slows the reference world, its
deadlines and its demand alike, so it does not break the certificate. That is the argument of virtual finish times
(Fair Sojourn Protocol: Friedman and Henderson 2003), for jobs that cannot use the whole cluster.

The promise: if beliefs are exact, GPUs are of one type and stay, none is held by a job that must not be stopped, and
starts take no time, then no job ends later than

    submission + (1 + tolerance) (end in the reference world - submission) + LATE_ROUNDS rounds.

The rounds are what is lost by deciding at their beginnings only: a job that comes within one waits for the next, and
serving is in whole rounds. Where starts take time the reference world pays for those of its turns, and deadlines count
the next start of a job that waits; what more a job is stopped and resized for is not covered. Where beliefs were wrong
all promises are stretched alike, as little as is enough.

**Finish-time fairness.** A job should end by its fair finish time (`fair_finish`), its run time on the GPUs it asked
for times the crowding it has met. That is no slice of the cluster, for wide jobs ask for more than 1/N of it: the
deadlines are those of the least stretch that can be met, times `ROOM`.

**Makespan.** All jobs should end by the earliest time by which they can.

Legend: J live jobs, V jobs of the reference world.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.policies.shockwave.deadline_demand import Deadlines, Demand, Supply, demand, tightest, whole_supply
from fairlead.policies.shockwave.elastic_bids import ElasticBidders
from fairlead.policies.shockwave.fair_finish import Crowding
from fairlead.policies.shockwave.market import Ints
from fairlead.policies.shockwave.reference_share import ReferenceForecast, ReferenceWorld

#: Rounds by which a job may miss its deadline although all beliefs are exact.
LATE_ROUNDS = 2

#: Deadlines of finish-time fairness are so many times the tightest ones, so that the market has a choice, but not
#: tighter than this share of the fair finish times.
ROOM, FAIREST = 1.25, 0.8


def deadlines(view: Snapshot, world: ReferenceWorld, jobs: ElasticBidders, *, round_s: float) -> Deadlines:
    """When each job ends in the reference world."""
    ahead = world.forecast()
    place = {job.id: at for at, job in enumerate(jobs.jobs)}
    submitted_J = np.array([job.submitted_at for job in jobs.jobs], dtype=np.float64)
    return Deadlines(
        width_JK=jobs.width_JK,
        speed_JK=jobs.speed_JK,
        left_J=np.maximum(1e-9, 1.0 - jobs.progress_J),
        pause_s_J=np.array([0.0 if job.allocation else job.start_s or 0.0 for job in jobs.jobs], dtype=np.float64),
        age_s_J=view.now - submitted_J,
        fair_s_J=np.array([ahead.finish[job.id] for job in jobs.jobs], dtype=np.float64) - submitted_J,
        round_s=round_s,
        supply=reference_supply(
            ahead,
            now=view.now,
            gpus=world.gpus,
            cost_V=np.array([world.least_gpu_s(name) for name in ahead.ids], dtype=np.float64),
            place_V=np.array([place.get(name, -1) for name in ahead.ids], dtype=np.int64),
        ),
    )


def fairness_demand(promised: Deadlines, jobs: ElasticBidders, crowded: Crowding, gpus: int) -> Demand:
    fair = replace(promised, fair_s_J=crowded.fair_s(jobs.whole_s_J), supply=whole_supply(gpus))
    least = tightest(fair, stretch=FAIREST / ROOM)
    return demand(fair, stretch=ROOM * least.stretch)


def makespan_demand(promised: Deadlines, gpus: int) -> Demand:
    """All jobs are due at once: when the longest can end, or when all GPUs together can have done all work."""
    cost_JK = np.full(promised.speed_JK.shape, np.inf)
    np.divide(promised.width_JK, promised.speed_JK, out=cost_JK, where=promised.speed_JK > 0.0)
    runs_J = np.isfinite(cost_JK).any(axis=1)
    area_s = float(promised.left_J[runs_J] @ cost_JK[runs_J].min(axis=1, initial=np.inf)) / max(1, gpus)
    least_s = max(promised.round_s, area_s, float(promised.fastest_s[runs_J].max(initial=0.0)))
    count = len(runs_J)
    last = replace(promised, age_s_J=np.zeros(count), fair_s_J=np.full(count, least_s), supply=whole_supply(gpus))
    return tightest(last, stretch=1.0)


def reference_supply(ahead: ReferenceForecast, *, now: float, gpus: int, cost_V: Floats, place_V: Ints) -> Supply:
    """The GPU-seconds of the reference world slowed by the stretch, and of what that leaves idle of its GPUs.

    `place_V` is the place of each of its jobs among the live ones, or -1: then its work counts `cost_V`.
    """

    def supply(gpu_s_J: Floats, horizon_s_H: Floats, stretch: float) -> Floats:
        counts_V = np.where(place_V >= 0, gpu_s_J[place_V], cost_V) if len(gpu_s_J) else cost_V
        slowed_H = ahead.spent(counts_V, now + horizon_s_H / stretch)
        return slowed_H + gpus * horizon_s_H * max(0.0, 1.0 - 1.0 / stretch)

    return supply
