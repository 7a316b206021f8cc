"""Who loses least: if one of several equal jobs has to stop, the one whose stop costs least.

What a stop costs a job, in GPU-seconds: the work since its last checkpoint, and the time it takes to start again. To
that the same start is added once more for every time it was preempted before, as a credit. So who saves often is not
stopped every time because it has the least to lose: each stop makes the next one dearer.

Equal jobs have the same user, queue and priority, and as many GPUs of the same type on as many nodes. Two of them
change places in the plan: who was to be stopped goes on, the other is stopped, and who was to have the GPUs of the one
has those of the other. The inner policy has the last word: it is asked what it would do if it were so, and if it would
undo it, it is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Phase, Plan, Reason
from fairlead.core.wording import counted
from fairlead.policies.middleware.imagining import carried_out
from fairlead.policies.middleware.minimum import safe_until
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: It goes on, or is stopped, in place of another job like it.
LEAST_LOSS = "least-loss"

#: (node, GPU) -> (node, GPU)
_Exchange = Mapping[tuple[str, int], tuple[str, int]]


@dataclass(frozen=True)
class LeastLoss(Wearer):
    """Of jobs that are alike, the one that loses least is stopped; another policy says how many are."""

    #: GPU-seconds by which another victim has to be cheaper.
    tolerance: float = 60.0
    #: Jobs that have run for less than so many seconds since their last start are not chosen.
    spare_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("tolerance", "spare_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InvalidSpec(f"least-loss: {name} is {getattr(self, name)}; expected a finite number, at least 0")
        super().__post_init__()

    def plan(self, view: Snapshot) -> Plan:
        plan = self.inner.plan(view)
        if plan.packed or view.shared or view.allocations.keys() <= plan.allocations.keys():
            return plan
        swaps = dict(self._swaps(view, plan))
        if not swaps:
            return plan
        after = self.inner.plan(carried_out(view, replace(plan, allocations=_swapped(view, plan, swaps))))
        agreed = {
            victim: other
            for victim, other in swaps.items()
            if after.allocations.get(victim) == view.allocations[victim] and other not in after.allocations
        }
        if not agreed:
            return plan
        instead = {other: victim for victim, other in agreed.items()}

        def explain(job: Job) -> Reason:
            if job.id in agreed:
                return _spared(view, job, view.jobs[agreed[job.id]])
            if job.id in instead:
                return _stopped(view, job, view.jobs[instead[job.id]])
            return plan.reasons[job.id]

        return replace(plan, allocations=_swapped(view, plan, agreed), reasons=Reasons(view, explain))

    def _swaps(self, view: Snapshot, plan: Plan) -> Iterator[tuple[str, str]]:
        """(who is to be stopped, who could be stopped instead); the dearest victims choose first, then the cheapest."""
        victims = [view.jobs[job_id] for job_id in view.allocations if job_id not in plan.allocations]
        kinds = {_kind(view, job) for job in victims}
        others: dict[object, list[tuple[float, str]]] = {}
        for job_id, allocation in plan.allocations.items():
            job = view.jobs[job_id]
            if allocation == job.allocation and self._may_stop(view, job) and (kind := _kind(view, job)) in kinds:
                others.setdefault(kind, []).append((price_gpu_s(job, view.now), job_id))
        for equals in others.values():
            equals.sort()
        for price, job in sorted(((price_gpu_s(job, view.now), job) for job in victims), key=lambda pair: -pair[0]):
            equals = others.get(_kind(view, job), [])
            if equals and equals[0][0] + self.tolerance < price and _takers_start(view, plan, job):
                yield job.id, equals.pop(0)[1]

    def _may_stop(self, view: Snapshot, job: Job) -> bool:
        if not job.spec.preemptible or job.phase is not Phase.RUNNING:
            return False
        settled = safe_until(job, view.now, self.spare_s) <= view.now
        return settled and all(view.nodes[node].open for node in job.allocation.nodes)


def loss_gpu_s(job: Job, now: float) -> float:
    """GPU-seconds that a stop costs a job: what it would have to do again, and its start. 0 if it holds nothing.

    A job that can be suspended keeps its work, and pays for the change only. One that saves when it is told to stop
    loses less than this.
    """
    if job.spec.in_place and job.phase in (Phase.RUNNING, Phase.RESCALING):
        return job.allocation.total * (job.rescale_s or 0.0)
    return job.allocation.total * (unsaved_s(job, now) + (job.start_s or 0.0))


def price_gpu_s(job: Job, now: float) -> float:
    """The loss, and a credit for every time it was preempted before."""
    again_s = job.rescale_s if job.spec.in_place else job.start_s
    return loss_gpu_s(job, now) + job.preemptions * job.allocation.total * (again_s or 0.0)


def unsaved_s(job: Job, now: float) -> float:
    """Seconds of training since the last checkpoint; without one since the attempt began."""
    if job.phase not in (Phase.RUNNING, Phase.RESCALING):
        return 0.0
    # Of later attempts the beginning is not known, only that of the phase.
    began = job.first_started_at if job.attempt <= 1 and job.first_started_at is not None else job.since
    since = began if job.belief.saved_at is None else max(began, job.belief.saved_at)
    return min(max(0.0, now - since), job.run_at(now))


def _kind(view: Snapshot, job: Job) -> tuple[object, ...]:
    """Jobs of one kind can change places."""
    shape = sorted(len(gpus) for _, gpus in job.allocation)
    gpu_type = view.nodes[job.allocation.nodes[0]].gpu_type
    return (job.spec.queue, job.spec.tenant, job.spec.priority, job.spec.in_place, gpu_type, tuple(shape))


def _takers_start(view: Snapshot, plan: Plan, victim: Job) -> bool:
    """Whoever gets its GPUs has none yet: it does not matter to them on which nodes these are."""
    mine = dict(victim.allocation.masks)
    return not any(
        mask & mine.get(node, 0)
        for job_id, allocation in plan.allocations.items()
        if job_id in view.allocations
        for node, mask in allocation.masks
    )


def _swapped(view: Snapshot, plan: Plan, swaps: Mapping[str, str]) -> dict[str, Allocation]:
    exchange: dict[tuple[str, int], tuple[str, int]] = {}
    for victim, other in swaps.items():
        exchange.update(zip(_gpus(view.allocations[victim]), _gpus(view.allocations[other]), strict=True))
    stopped = set(swaps.values())
    allocations: dict[str, Allocation] = {}
    for job_id, allocation in plan.allocations.items():
        if job_id not in stopped:
            gains = job_id not in view.allocations
            allocations[job_id] = _exchanged(allocation, exchange) if gains else allocation
    return allocations | {victim: view.allocations[victim] for victim in swaps}


def _gpus(allocation: Allocation) -> list[tuple[str, int]]:
    """Its GPUs, those of the node where it has the most first."""
    shares = sorted(allocation, key=lambda share: -len(share[1]))
    return [(node, gpu) for node, gpus in shares for gpu in gpus]


def _exchanged(allocation: Allocation, exchange: _Exchange) -> Allocation:
    found: dict[str, list[int]] = {}
    for node, gpus in allocation:
        for gpu in gpus:
            new_node, new_gpu = exchange.get((node, gpu), (node, gpu))
            found.setdefault(new_node, []).append(new_gpu)
    return Allocation.of(found)


def _spared(view: Snapshot, job: Job, other: Job) -> Reason:
    own, theirs = loss_gpu_s(job, view.now), loss_gpu_s(other, view.now)
    text = (
        f"keeps {counted(job.allocation.total, 'GPU')}: job {other.id}, which is like it, is stopped instead and loses "
        f"{theirs:.0f} GPU-s where it would lose {own:.0f}"
    )
    numbers = {"gpus": job.allocation.total, "loss_gpu_s": own, "other_loss_gpu_s": theirs}
    return Reason(LEAST_LOSS, text, numbers, (other.id,))


def _stopped(view: Snapshot, job: Job, other: Job) -> Reason:
    own, theirs = loss_gpu_s(job, view.now), loss_gpu_s(other, view.now)
    text = (
        f"gives its {counted(job.allocation.total, 'GPU')} up in place of job {other.id}, which is like it and would "
        f"lose {theirs:.0f} GPU-s where this one loses {own:.0f}"
    )
    return Reason(LEAST_LOSS, text, {"gpus": 0, "loss_gpu_s": own, "other_loss_gpu_s": theirs}, (other.id,))
