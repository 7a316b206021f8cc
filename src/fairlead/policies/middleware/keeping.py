"""Plans in which some jobs stay after all: whoever was to have their GPUs has less, or waits."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Plan


def put_back(
    view: Snapshot, plan: Plan, staying: Iterable[str], *, resizes: bool
) -> tuple[dict[str, Allocation], dict[str, str]]:
    """The plan's allocations, but these jobs keep what they hold; and of those who therefore wait, whom they wait for.

    A job that was to gain GPUs does without those it cannot have. If it runs and would be worse off than now, it stays
    as well, and so on; if it was to start and cannot with the rest, it waits. Who starts gets fewer GPUs only from a
    policy that resizes jobs. Nobody may share GPUs.
    """
    allocations = dict(plan.allocations)
    gainers = {
        job_id: gained
        for job_id, allocation in plan.allocations.items()
        if (gained := allocation - view.allocations.get(job_id, NOTHING))
    }
    waits: dict[str, str] = {}
    ahead = list(dict.fromkeys(staying))
    settled = set(ahead)
    while ahead:
        stays = ahead.pop(0)
        held = allocations[stays] = view.allocations[stays]
        gainers.pop(stays, None)
        for job_id, gained in list(gainers.items()):
            if not _overlap(gained, held):
                continue
            job, rest = view.jobs[job_id], allocations[job_id] - held
            if _is_enough(job, rest, resizes=resizes):
                allocations[job_id], gainers[job_id] = rest, gained - held
                continue
            del gainers[job_id]
            if not job.allocation:
                del allocations[job_id]
                waits[job_id] = stays
            elif job_id not in settled:
                settled.add(job_id)
                ahead.append(job_id)
    return allocations, waits


def _is_enough(job: Job, rest: Allocation, *, resizes: bool) -> bool:
    if job.allocation:
        return rest == job.allocation or (job.spec.in_place and rest.total >= job.allocation.total)
    return rest.total >= (job.spec.least if resizes else job.spec.gpus)


def _overlap(one: Allocation, other: Allocation) -> bool:
    theirs = dict(other.masks)
    return any(mask & theirs.get(node, 0) for node, mask in one.masks)
