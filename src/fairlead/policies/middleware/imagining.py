"""Snapshots of what is not, but could be: with jobs gone, holding less, or where a plan wants them.

What comes out is as consistent as what went in: allocations, masks and accounts agree, and columns are built anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, JobSpec, Phase, Plan

Masks = dict[str, int]


def imagined(
    view: Snapshot,
    *,
    hidden: Collection[str] = (),
    holding: Mapping[str, Allocation] | None = None,
    specs: Mapping[str, JobSpec] | None = None,
) -> Snapshot:
    """The snapshot as if some jobs were not there, some held something else, and some had asked for something else.

    Who is hidden and has processes is barred, as a job is that its user put on hold: it still has its GPUs, and anybody
    may be promised them. Who holds something else has had it from the beginning.
    """
    holding, specs = holding or {}, specs or {}
    if not hidden and not holding and not specs:
        return view
    jobs = {job_id: job for job_id, job in view.jobs.items() if job_id not in hidden} if hidden else dict(view.jobs)
    for job_id, spec in specs.items():
        jobs[job_id] = replace(jobs[job_id], spec=spec)
    ledger = view.ledger
    if holding:
        ledger = ledger.copy()
        for job_id, allocation in holding.items():
            job = jobs[job_id]
            if job.allocation:
                ledger.add(job.spec, job.allocation.total, job.accounted_at, view.now)
            jobs[job_id] = holds(job, allocation, view.now)
    barred = [job for job_id, job in view.jobs.items() if job_id in hidden and job.phase is not Phase.PENDING]
    allocations = {job_id: jobs[job_id].allocation for job_id in view.allocations if job_id in jobs}
    allocations |= {job_id: allocation for job_id, allocation in holding.items() if job_id not in allocations}
    allocations = {job_id: allocation for job_id, allocation in allocations.items() if allocation}
    everyone = (*jobs.values(), *view.barred, *barred)
    held = masks_of(job.held for job in everyone) if holding else view.held
    return replace(
        view,
        jobs=jobs,
        allocations=allocations,
        assigned=masks_of(allocations.values()),
        held=held,
        barred=(*view.barred, *barred),
        ledger=ledger,
        _table=None,
        _node_table=None,
        _version=(-1, -1),
    )


def narrowed(view: Snapshot, kept_J: NDArray[np.bool_]) -> Snapshot:
    """The same as hiding all others, none of whom holds anything; its cost hardly grows with how many they are."""
    columns = view.columns
    sleeping_J = ~kept_J & (columns.pending_J == 0)
    barred = (view.jobs[columns.ids[place]] for place in np.flatnonzero(sleeping_J).tolist())
    kept = (columns.ids[place] for place in np.flatnonzero(kept_J).tolist())
    jobs = {job_id: view.jobs[job_id] for job_id in kept}
    return replace(view, jobs=jobs, barred=(*view.barred, *barred), _table=None, _node_table=None, _version=(-1, -1))


def carried_out(view: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot as if everybody were already where the plan wants them."""
    changed = [job_id for job_id in view.jobs if plan.allocations.get(job_id) != view.allocations.get(job_id)]
    holding = {job_id: plan.allocations.get(job_id, NOTHING) for job_id in changed}
    after = imagined(view, holding=holding)
    return replace(after, held=after.assigned, barred=())


def holds(job: Job, allocation: Allocation, now: float) -> Job:
    """The job as if it held this since `now`: it trains there, starts there, or waits."""
    phase, attempt = job.phase, job.attempt
    if not allocation:
        phase = Phase.PENDING
    elif not job.allocation and phase is not Phase.SUSPENDED:
        phase, attempt = Phase.STARTING, attempt + 1
    elif phase in (Phase.SUSPENDED, Phase.RESCALING):
        phase = Phase.RUNNING
    return replace(
        job,
        phase=phase,
        since=now if phase is not job.phase else job.since,
        attempt=attempt,
        allocation=allocation,
        releasing=NOTHING,
        service_gpu_s=job.service_at(now),
        run_s=job.run_at(now),
        served_s=job.served_at(now),
        held_gpu_s=job.held_at(now),
        last_ran_at=now if job.phase is Phase.RUNNING else job.last_ran_at,
        accounted_at=now,
    )


def masks_of(allocations: Iterable[Allocation]) -> Masks:
    """Per node, the GPUs in any of these."""
    masks: Masks = {}
    for allocation in allocations:
        for node, mask in allocation.masks:
            masks[node] = masks.get(node, 0) | mask
    return masks


def kept_of(allocation: Allocation, gpus: int) -> Allocation:
    """So many of its GPUs, from the nodes where it has the most, so that the others can be left."""
    kept: dict[str, tuple[int, ...]] = {}
    left = gpus
    for node, numbers in sorted(allocation, key=lambda share: -len(share[1])):
        if left > 0:
            kept[node] = numbers[:left]
            left -= len(kept[node])
    return Allocation.of(kept)
