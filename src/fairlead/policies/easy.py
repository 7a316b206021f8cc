"""EASY backfilling (Lifka 1995): jobs may pass the first in line only if that does not delay it.

The first waiting job that does not fit gets a reservation: the earliest time at which, by the run times users
promised, enough GPUs will be free. A later job may start now if it promises to end before then, or if it leaves
enough GPUs for the reservation anyway. A job without a promise is taken to run for ever; one that outlives its
promise, to end at any moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Plan
from fairlead.policies.filling import Indices, start_waiting, waiting
from fairlead.policies.gpu_speeds import Speeds, check_gpu_type, speeds_by
from fairlead.policies.placing import Room
from fairlead.policies.reasons import served_reasons
from fairlead.policies.wait_reason import Discipline


@dataclass(frozen=True)
class Easy:
    """Order of arrival, with backfill that by the promised run times never delays the first in line."""

    starvation_free: ClassVar[bool] = True

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("easy", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        room, queue, speeds = Room(view), waiting(view), speeds_by(self.gpu_type, self.seed, view)
        allocations = start_waiting(view, queue, skip=False, room=room, speeds=speeds)
        left = queue[len(allocations) - len(view.allocations) :]  # strict order: the started ones are in front
        start_at = _backfill(view, room, allocations, left, speeds) if len(left) > 1 else math.inf
        discipline = Discipline(
            "order of arrival, backfill behind a reservation",
            order=lambda: list(view.jobs),
            bar=lambda job: _bar(view.now, job, start_at),
        )
        return Plan(allocations, served_reasons(view, allocations, discipline))


def _bar(now: float, job: Job, start_at: float) -> tuple[str, dict[str, float]]:
    """With which time limit a job for which there is room may pass the first in line."""
    own = "states none" if job.spec.estimate_s is None else f"states {job.spec.estimate_s:.0f} s"
    if math.isinf(start_at):
        return f"it may pass with a time limit, and {own}", {}
    within_s = max(0.0, start_at - now)
    return f"it may pass with a time limit of at most {within_s:.0f} s, and {own}", {"within_s": within_s}


def _backfill(view: Snapshot, room: Room, allocations: dict[str, Allocation], left: Indices, speeds: Speeds) -> float:
    """Start jobs that do not delay the first in line. Returns when that one should start."""
    columns = view.columns
    demands, ids = columns.demands, columns.ids
    head, others = left[0], left[1:]
    gpu_type, start_at, spare = _reservation(view, room, allocations, *demands[columns.demand_J[head]])
    fits_D = np.array([room.free(types) >= gpus for gpus, types in demands])
    elsewhere_D = np.array([bool(set(types or view.node_columns.gpu_types) - {gpu_type}) for _, types in demands])
    end_at_J = view.now + columns.estimate_s_J
    in_time_J = (end_at_J <= start_at) & (end_at_J < math.inf)  # who never ends is not in time even for never
    allowed_J = in_time_J | (columns.gpus_J <= spare) | elsewhere_D[columns.demand_J]
    for job in others[fits_D[columns.demand_J[others]] & allowed_J[others]]:
        if room.free() == 0:
            break
        gpus, types = demands[columns.demand_J[job]]
        in_time = bool(in_time_J[job])
        options = tuple(t for t in types or view.node_columns.gpu_types if t != gpu_type or in_time or gpus <= spare)
        allocation = room.take(gpus, options, speeds(ids[job])) if options else None
        if allocation is None:
            continue
        if view.nodes[allocation.nodes[0]].gpu_type == gpu_type and not in_time:
            spare -= gpus
        allocations[ids[job]] = allocation
    return start_at


def _reservation(
    view: Snapshot, room: Room, allocations: dict[str, Allocation], gpus: int, types: tuple[str, ...]
) -> tuple[str, float, int]:
    """The GPU type, the time, and how many GPUs of that type will be free then beyond the `gpus` reserved.

    The time is infinite if it hangs on a job without a promise; no type is reserved if none could ever hold the job.
    """
    best: tuple[str, float, int] | None = None
    for gpu_type in view.node_columns.gpu_types:
        if types and gpu_type not in types:
            continue
        free = room.free((gpu_type,))
        for end_at, released in _ends(view, allocations, gpu_type):
            free += released
            if free >= gpus:
                if best is None or end_at < best[1]:
                    best = (gpu_type, end_at, free - gpus)
                break
    return best or ("", math.inf, 0)


def _ends(view: Snapshot, allocations: dict[str, Allocation], gpu_type: str) -> list[tuple[float, int]]:
    """(promised end, GPUs on open nodes) of everyone on this type, the earliest first."""
    ends = []
    for job_id, allocation in allocations.items():
        job = view.jobs[job_id]
        if view.nodes[allocation.nodes[0]].gpu_type == gpu_type:
            left_s = math.inf if job.spec.estimate_s is None else max(0.0, job.spec.estimate_s - job.run_at(view.now))
            released = sum(len(gpus) for node_id, gpus in allocation if view.nodes[node_id].open)
            ends.append((view.now + left_s, released))
    return sorted(ends)
