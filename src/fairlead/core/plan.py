"""From a plan to commands: refuse what no cluster could do, then close the gap between is and should be.

Both look only at what the plan changes (`changes`), so a decision that moves three jobs out of thousands costs
three jobs' work. They rest on the state's own invariant: what is there now is possible.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fairlead.core.errors import InvalidPlan
from fairlead.core.messages import Command, Resize, Start, Stop
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Phase, Plan


def changes(view: Snapshot, plan: Plan) -> list[str]:
    """Jobs whose allocation the plan changes, in the plan's order, then those it drops, in order of arrival."""
    pairs = view.allocations.items() ^ plan.allocations.items()
    if len(pairs) < 2:
        return [job_id for job_id, _ in pairs]
    ids = {job_id for job_id, _ in pairs}
    order = {job_id: place for place, job_id in enumerate((*plan.allocations, *view.allocations))}
    return sorted(ids, key=order.__getitem__)


def check(view: Snapshot, plan: Plan, changed: list[str]) -> None:
    """Raise InvalidPlan unless every allocation exists, fits its job, and overlaps no other undeclared one."""
    for job_id in changed:
        allocation = plan.allocations.get(job_id)
        if allocation is not None:
            _check_job(view, job_id, allocation)
    _check_overlaps(view, plan, changed)
    if math.isnan(plan.review_at):
        raise InvalidPlan("review_at is NaN; leave it out if the plan does not change by itself")


def _check_job(view: Snapshot, job_id: str, allocation: Allocation) -> None:
    job = view.jobs.get(job_id)
    if job is None:
        raise InvalidPlan(f"the plan places job {job_id!r}, which is not a live job of this snapshot")
    spec = job.spec
    if not spec.least <= allocation.total <= spec.most:
        raise InvalidPlan(
            f"job {job_id} gets {allocation.total} GPUs; it runs on {spec.least} to {spec.most}; to stop it, omit it"
        )
    types = set()
    here = {node: set(gpus) for node, gpus in job.allocation}
    for node_id, gpus in allocation:
        node = view.nodes.get(node_id)
        if node is None:
            raise InvalidPlan(f"job {job_id} is placed on node {node_id!r}, which does not exist")
        if not node.healthy:
            raise InvalidPlan(f"job {job_id} is placed on node {node_id}, which is lost")
        if node.draining and not here.get(node_id, set()).issuperset(gpus):
            raise InvalidPlan(f"job {job_id} is newly placed on node {node_id}, which is draining")
        if gpus[-1] >= node.gpus:
            raise InvalidPlan(f"job {job_id} is placed on GPU {gpus[-1]} of node {node_id}, which has {node.gpus}")
        types.add(node.gpu_type)
    if len(types) > 1:
        raise InvalidPlan(f"job {job_id} is spread over GPU types {', '.join(sorted(types))}; it can use one at a time")
    if spec.gpu_types and not types.issubset(spec.gpu_types):
        raise InvalidPlan(f"job {job_id} is placed on {types.pop()}; it accepts {', '.join(spec.gpu_types)}")


def _check_overlaps(view: Snapshot, plan: Plan, changed: list[str]) -> None:
    if plan.packed or view.shared:
        _check_every_gpu(plan)
        return
    taken = dict(view.assigned)  # nobody shares now: what the plan leaves in place cannot overlap
    for job_id in changed:
        for node, mask in view.allocations.get(job_id, NOTHING).masks:
            taken[node] &= ~mask
    for job_id in changed:
        for node, mask in plan.allocations.get(job_id, NOTHING).masks:
            if taken.get(node, 0) & mask:
                _check_every_gpu(plan)  # finds out who, and raises
            taken[node] = taken.get(node, 0) | mask


def _check_every_gpu(plan: Plan) -> None:
    mates: dict[str, set[str]] = {}
    for group in plan.packed:
        for job_id in group:
            mates.setdefault(job_id, set()).update(group)
    owners: dict[tuple[str, int], list[str]] = {}
    for job_id, allocation in plan.allocations.items():
        for node, gpus in allocation:
            for gpu in gpus:
                others = owners.setdefault((node, gpu), [])
                for other in others:
                    if other not in mates.get(job_id, ()):
                        raise InvalidPlan(
                            f"jobs {other} and {job_id} both get GPU {gpu} of node {node}; "
                            "give it to one of them, or declare them in Plan.packed"
                        )
                others.append(job_id)


def reconcile(view: Snapshot, plan: Plan, changed: list[str]) -> list[Command]:
    """Commands that bring the cluster closer to the plan, releases first.

    A GPU that is still being released is not given away: its next job's command comes when this is called again
    after the release. So is that of a job which cannot follow yet, because it starts, rescales or stops.
    """
    commands: list[Command] = [_stop(view, job) for job in view.cancelled]
    gaining: list[tuple[Job, Allocation]] = []
    for job_id in changed:
        job, target = view.jobs[job_id], plan.allocations.get(job_id, NOTHING)
        if target - job.allocation:
            gaining.append((job, target))
        elif job.spec.in_place and job.phase is Phase.RUNNING:
            commands.append(Resize(view.now, job_id, job.attempt, target))
        elif not target or not job.spec.in_place:
            commands.append(_stop(view, job))
    held = dict(view.held)
    for job, target in gaining:
        command = _gain(view, job, target)
        if isinstance(command, Stop) or (command is not None and _is_free(view, plan, held, job, target)):
            commands.append(command)
            for node, mask in target.masks:
                held[node] = held.get(node, 0) | mask
    return commands


def surviving(view: Snapshot, plan: Plan) -> Plan:
    """The part of an earlier plan that can still be carried out, after events have overtaken it."""
    left = {j: a for j, a in plan.allocations.items() if j in view.jobs and _stands(view, view.jobs[j], a)}
    return plan if len(left) == len(plan.allocations) else replace(plan, allocations=left)


def _stands(view: Snapshot, job: Job, allocation: Allocation) -> bool:
    return job.allocation == allocation or all(
        (node := view.nodes.get(node_id)) is not None and node.open and gpus[-1] < node.gpus
        for node_id, gpus in allocation
    )


def _gain(view: Snapshot, job: Job, target: Allocation) -> Command | None:
    """The command that gives a job GPUs it does not have; None if it must settle first."""
    match job.phase:
        case Phase.PENDING:
            return Start(view.now, job.id, job.attempt + 1, target)
        case Phase.RUNNING | Phase.SUSPENDED if job.spec.in_place:
            return Resize(view.now, job.id, job.attempt, target)
        case Phase.STARTING | Phase.RUNNING if not job.spec.in_place:
            return _stop(view, job)  # it moves by a restart
    return None


def _is_free(view: Snapshot, plan: Plan, held: dict[str, int], job: Job, target: Allocation) -> bool:
    """May the job have these GPUs now? It may share one with a packed mate that is there to stay."""
    for node, mask in (target - job.held).masks:
        blocked = held.get(node, 0) & mask
        if blocked and plan.packed:
            for other_id, other in plan.allocations.items():
                if other_id != job.id and view.allocations.get(other_id) == other:
                    blocked &= ~dict(other.masks).get(node, 0)
        if blocked:
            return False
    return True


def _stop(view: Snapshot, job: Job) -> Stop:
    return Stop(view.now, job.id, job.attempt)
