"""From a plan to commands: refuse what no cluster could do, then close the gap between is and should be.

Both look only at what the plan changes (`changes`), so a decision that moves three jobs out of thousands costs
three jobs' work. They rest on the state's own invariant: what is there now is possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any, SupportsFloat

from fairlead.core import memo
from fairlead.core.errors import InvalidPlan
from fairlead.core.messages import Command, Release, Rent, Resize, Start, Stop
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Phase, Plan
from fairlead.core.wording import counted


def changes(view: Snapshot, plan: Plan) -> list[str]:
    """Jobs whose allocation the plan changes, in the plan's order, then those it drops, as they were placed.

    Raises InvalidPlan if the plan's allocations are no such thing, and cannot be compared.
    """
    _check_kind(plan, "allocations")
    if view.allocations == plan.allocations:  # the common case, and quicker to see than to search for differences
        return []
    try:
        pairs = view.allocations.items() ^ plan.allocations.items()
    except TypeError:  # something that has no hash, and so is no Allocation
        for job_id, allocation in plan.allocations.items():
            _check_allocation(job_id, allocation)
        raise
    if len(pairs) < 2:
        return [job_id for job_id, _ in pairs]
    ids = {job_id for job_id, _ in pairs}
    dropped = [job_id for job_id in view.allocations if job_id in ids and job_id not in plan.allocations]
    return [job_id for job_id in plan.allocations if job_id in ids] + dropped


def check(view: Snapshot, plan: Plan, changed: list[str]) -> None:
    """Raise InvalidPlan unless every allocation exists, fits its job, and overlaps no other undeclared one."""
    for job_id in changed:
        job, allocation = view.jobs.get(job_id), plan.allocations.get(job_id)
        if job is None:
            raise InvalidPlan(f"the plan places job {job_id!r}, which is not a live job of this snapshot")
        if job_id in plan.allocations:
            _check_allocation(job_id, allocation)
        fault = _fault(view, job, allocation) if allocation is not None else ""
        if fault := fault or _breach(job, allocation):
            raise InvalidPlan(f"job {job_id} {fault}")
    for name in _KINDS:
        _check_kind(plan, name)
    if problem := memo.fault(view.memo, plan.memo):
        raise InvalidPlan(problem)
    _check_overlaps(view, plan, changed)
    if plan.nodes is not None and (unknown := plan.nodes - view.nodes.keys()):
        raise InvalidPlan(
            f"the plan wants node {min(unknown)!r}, which does not exist; known are {', '.join(view.nodes)}"
        )


#: What each part of a plan has to be, and how to say so.
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "allocations": (lambda value: isinstance(value, Mapping), "a mapping from job id to Allocation"),
    "reasons": (lambda value: isinstance(value, Mapping), "a mapping from job id to Reason"),
    "packed": (
        lambda value: not value or (isinstance(value, Set) and all(isinstance(group, Set) for group in value)),
        "a frozenset of frozensets of job ids",
    ),
    "bound": (lambda value: value is None or _is_number(value), "a share of the optimum from 0, or None"),
    "review_at": (
        lambda value: _is_number(value),
        "a time in seconds; leave it out if the plan does not change by itself",
    ),
    "nodes": (lambda value: value is None or isinstance(value, Set), "a frozenset of node ids, or None"),
    "memo": (lambda value: isinstance(value, Mapping), "a mapping from string to JSON value"),
}


def _check_kind(plan: Plan, name: str) -> None:
    fits, expected = _KINDS[name]
    if not fits(value := getattr(plan, name)):
        raise InvalidPlan(f"{name} is {_shown(value)}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, SupportsFloat) and not math.isnan(value)


def _check_allocation(job_id: str, allocation: object) -> None:
    if not isinstance(allocation, Allocation):
        made = "Allocation.of({node: GPU numbers})"
        raise InvalidPlan(f"job {job_id} gets {_shown(allocation)}; expected {made}, or no entry to stop the job")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _fault(view: Snapshot, job: Job, allocation: Allocation) -> str:
    """Why the job cannot have this allocation, whatever the others have; empty if it can."""
    spec = job.spec
    if not spec.least <= allocation.total <= spec.most:
        return f"gets {counted(allocation.total, 'GPU')}; it runs on {spec.least} to {spec.most}; to stop it, omit it"
    types = set()
    here = dict(job.allocation.masks)
    for node_id, mask in allocation.masks:
        node = view.nodes.get(node_id)
        if node is None:
            return f"is placed on node {node_id!r}, which does not exist; known are {', '.join(view.nodes) or 'none'}"
        if not node.healthy:
            return f"is placed on node {node_id}, which is lost"
        if node.draining and mask & ~here.get(node_id, 0):
            return f"is newly placed on node {node_id}, which is draining"
        if node.outside and (seized := mask & ~here.get(node_id, 0) & node.outside_mask):
            return f"is newly placed on GPU {seized.bit_length() - 1} of node {node_id}, which outsiders use"
        if mask >> node.gpus:
            return f"is placed on GPU {mask.bit_length() - 1} of node {node_id}, which has {node.gpus}"
        types.add(node.gpu_type)
    if len(types) > 1:
        return f"is spread over GPU types {', '.join(sorted(types))}; it can use one at a time"
    if spec.gpu_types and not types.issubset(spec.gpu_types):
        return f"is placed on {types.pop()}; it accepts {', '.join(spec.gpu_types)}"
    return ""


def _breach(job: Job, allocation: Allocation | None) -> str:
    """Why the job must not lose what it holds; empty if it may."""
    if not job.allocation or job.spec.preemptible or (job.spec.in_place and allocation):
        return ""
    fate = "stopped" if allocation is None else "restarted elsewhere"
    return f"is {fate}, but must not be preempted; leave it on {job.allocation}"


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
    commands = [command for job in view.barred if (command := _part_with(view, job)) is not None]
    gaining: list[tuple[Job, Allocation]] = []
    for job_id in changed:
        job, target = view.jobs[job_id], plan.allocations.get(job_id, NOTHING)
        if target - job.allocation:
            gaining.append((job, target))
        elif job.spec.in_place and job.phase is Phase.RUNNING:
            commands.append(Resize(view.now, job_id, job.attempt, target))
        elif not target or not job.spec.in_place:
            commands.append(_stop(view, job))
    in_the_way = _in_the_way(view, plan) if plan.packed else view.held
    blocked: list[tuple[Job, Allocation]] = []
    for job, target in gaining:
        command = _gain(view, job, target)
        if isinstance(command, Resize | Start) and not _is_free(in_the_way, job, target):
            blocked.append((job, target))
        elif command is not None:
            commands.append(command)
    return commands + _break_circles(view, blocked) + _orders(view, plan)


def _part_with(view: Snapshot, job: Job) -> Command | None:
    """What makes a job let go of its GPUs that may not run; None if it is under way, or has to settle first."""
    if job.cancelled or not job.spec.in_place or job.phase is Phase.STARTING:  # which has nothing to lose yet
        return None if job.phase is Phase.STOPPING else _stop(view, job)
    return Resize(view.now, job.id, job.attempt, NOTHING) if job.phase is Phase.RUNNING else None


def _orders(view: Snapshot, plan: Plan) -> list[Command]:
    """Nodes to give back, if nobody is or should be on them, and nodes to ask for."""
    if plan.nodes is None:
        return []
    used = {node for allocation in plan.allocations.values() for node in allocation.nodes}
    surplus = [node for node in view.nodes.values() if node.healthy and node.id not in plan.nodes]
    releases = [Release(view.now, n.id) for n in surplus if n.id not in used and not view.held.get(n.id)]
    return [*releases, *(Rent(view.now, node_id) for node_id in view.nodes if node_id in plan.nodes & view.released)]


def surviving(view: Snapshot, plan: Plan) -> Plan:
    """The part of an earlier plan that can still be carried out, after events have overtaken it.

    A job that cannot go where it was to go stays where it is, unless another is to have its GPUs.
    """
    left: dict[str, Allocation] = {}
    stranded: list[Job] = []
    for job_id, allocation in plan.allocations.items():
        job = view.jobs.get(job_id)
        if job is None:
            continue
        if job.allocation == allocation or not _fault(view, job, allocation):
            left[job_id] = allocation
        elif job.allocation:
            stranded.append(job)
    for job in stranded:
        wanted = {gpu for allocation in left.values() for gpu in _gpus(allocation)}
        if wanted.isdisjoint(_gpus(job.allocation)):
            left[job.id] = job.allocation
    return plan if left == plan.allocations else replace(plan, allocations=left)


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


def _is_free(in_the_way: Mapping[str, int], job: Job, target: Allocation) -> bool:
    return not any(in_the_way.get(node, 0) & mask for node, mask in (target - job.held).masks)


def _in_the_way(view: Snapshot, plan: Plan) -> dict[str, int]:
    """Per node, the GPUs that somebody holds whom the plan does not have there: packed mates may share the others."""
    masks: dict[str, int] = {}
    for job in (*view.jobs.values(), *view.barred):
        for node, mask in (job.held - plan.allocations.get(job.id, NOTHING)).masks:
            masks[node] = masks.get(node, 0) | mask
    return masks


def _break_circles(view: Snapshot, blocked: list[tuple[Job, Allocation]]) -> list[Command]:
    """Of running jobs that wait for each other's GPUs in a circle, one lets go of those it is to lose."""
    leaving: dict[tuple[str, int], set[str]] = {}
    for job, target in blocked:
        for gpu in _gpus(job.allocation - target):
            leaving.setdefault(gpu, set()).add(job.id)
    waits_for = {
        job.id: {other for gpu in _gpus(target - job.held) for other in leaving.get(gpu, ())} for job, target in blocked
    }
    commands: list[Command] = []
    for job, target in sorted(blocked, key=lambda pair: not pair[0].spec.preemptible):  # the unpreemptible last
        if job.id in _reachable(job.id, waits_for):
            waits_for[job.id] = set()
            kept = job.allocation - (job.allocation - target)
            still_runs = kept.total >= job.spec.least
            commands.append(Resize(view.now, job.id, job.attempt, kept if still_runs else NOTHING))
    return commands


def _reachable(start: str, waits_for: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = waits_for[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def _gpus(allocation: Allocation) -> list[tuple[str, int]]:
    return [(node, gpu) for node, gpus in allocation for gpu in gpus]


def _stop(view: Snapshot, job: Job) -> Stop:
    return Stop(view.now, job.id, job.attempt)
