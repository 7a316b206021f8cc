"""Moves of running jobs to a faster GPU type that has room, for policies that preempt but do not resize.

In the order of the policy, a job moves from the GPUs it has in a plan to free ones of a faster type if

    seconds it has left x (1 - its speed here / its speed there) > what its last start took

Speeds are those of `gpu_speeds.py`, on as many nodes as the job has here and would have there. A job is left alone that
must not be preempted, is starting, has run for less time than its start took, or whose start was never measured; one
that begins or moves in any case pays nothing more. So no job moves for less than the move costs it, and while nothing
else happens a job moves to ever faster GPUs, and comes to rest.

Legend: J live jobs in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Allocation, Job, Phase
from fairlead.policies.gpu_speeds import Speeds
from fairlead.policies.placing import Room


def left_as_run(view: Snapshot) -> Floats:
    """Seconds that each job is taken to have left where nothing tells: as many as it has run so far."""
    return np.array([job.run_at(view.now) for job in view.jobs.values()])


def upgrade(
    view: Snapshot,
    room: Room,
    allocations: dict[str, Allocation],
    chosen: Iterable[int],
    *,
    speeds: Speeds,
    left_s_J: Floats,
) -> None:
    """Move jobs of a plan to faster types with room. `chosen` are those that run, in order; `room` is what is free."""
    columns = view.columns
    for place in chosen:
        job = view.jobs[columns.ids[place]]
        gpus, types = columns.demands[columns.demand_J[place]]
        has = allocations[job.id]
        on = view.nodes[has.nodes[0]].gpu_type
        pause_s = _pause_s(view.now, job, has)
        faster = [t for t in view.node_columns.gpu_types if t != on and (not types or t in types)]
        faster = [t for t in faster if room.free((t,)) >= gpus]
        if pause_s is None or not faster:
            continue
        speed = speeds(job.id)
        here, speed_on = speed(on, len(has.nodes)), {t: speed(t, room.span(gpus, t)) for t in faster}
        best = max(faster, key=lambda t: (speed_on[t], room.free((t,))))
        if (there := speed_on[best]) > here and left_s_J[place] * (1.0 - here / there) > pause_s:
            taken = room.take(gpus, (best,))
            assert taken is not None, "there was room"
            room.release(has)
            allocations[job.id] = taken


def _pause_s(now: float, job: Job, has: Allocation) -> float | None:
    """What a move costs a job that a plan gives some GPUs; None if it is to be left alone."""
    if job.allocation != has:
        return 0.0  # it begins, or moves in any case
    if not job.spec.preemptible or job.phase is not Phase.RUNNING or job.start_s is None:
        return None
    return job.start_s if now - job.since >= job.start_s else None
