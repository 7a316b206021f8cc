"""Against thrash: who has just begun, or has just changed its GPUs, is left alone for a while.

A job that starts, changes its GPUs in place, or has run for less than `seconds` since it did, is neither stopped nor
restarted with other GPUs. It keeps its GPUs in the plan; who was to have them waits, or has less. One that can change
its GPUs in place is not protected from that, since it costs it next to nothing: only from having none.
The exception is a quota: once a queue has waited for what is guaranteed to it for longer than `seconds`, it gets it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Phase, Plan, Reason
from fairlead.core.wording import counted
from fairlead.policies.middleware.keeping import put_back
from fairlead.policies.middleware.telling import OWNER_WAITS_S, QUOTA
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: Somebody waits for a job that has just begun.
MINIMUM_RUN = "minimum-run"


@dataclass(frozen=True)
class MinimumRun(Wearer):
    """A job that has just begun, or just changed its GPUs, is left alone for a while; another policy plans."""

    #: Seconds that a job may run undisturbed after a start, and after a change of its GPUs.
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.seconds < math.inf:
            raise InvalidSpec(f"minimum-run: seconds is {self.seconds}; expected a finite number of at least 0")
        super().__post_init__()

    def plan(self, view: Snapshot) -> Plan:
        plan = self.inner.plan(view)
        if plan.packed or view.shared or not self.seconds:
            return plan
        protected = {
            job_id: until
            for job_id in view.allocations
            if (until := safe_until(job := view.jobs[job_id], view.now, self.seconds)) > view.now
            and _is_disturbed(job, plan.allocations.get(job_id, NOTHING))
            and not self._yields(plan, job_id)
        }
        if not protected:
            return plan
        allocations, waits = put_back(view, plan, protected, resizes=self.adapts != "nothing")

        def explain(job: Job) -> Reason:
            inner = plan.reasons[job.id]
            if job.id in waits:
                until = protected.get(waits[job.id], view.now + self.seconds)
                return _beside(inner, _waits(view, waits[job.id], until, self.seconds))
            if allocations.get(job.id) == plan.allocations.get(job.id):
                return inner
            return _beside(inner, _stays(view, allocations[job.id], protected.get(job.id)))

        review_at = min(plan.review_at, *protected.values())
        return replace(plan, allocations=allocations, reasons=Reasons(view, explain), review_at=review_at)

    def _yields(self, plan: Plan, job_id: str) -> bool:
        """Does it have to give way to a queue that has waited for its quota for long enough?"""
        reason = plan.reasons[job_id]
        return reason.code == QUOTA and reason.numbers.get(OWNER_WAITS_S, 0.0) > self.seconds


#: Seconds that a job is left alone for, where nothing else is said.
USUAL_S = 30.0


def usual_minimum_s(policy: Policy) -> float:
    """What suits a policy: half of its round or lease, if that is shorter than what is usual.

    A whole round would let a job that took a moment to start keep its GPUs for the next round as well.
    """
    inner: Policy | None = getattr(policy, "inner", None)
    turns_s: list[float] = [getattr(policy, name) for name in ("round_s", "lease_s") if hasattr(policy, name)]
    within_s = USUAL_S if inner is None else usual_minimum_s(inner)
    return min(within_s, *(seconds / 2.0 for seconds in turns_s)) if turns_s else within_s


def safe_until(job: Job, now: float, seconds: float) -> float:
    """Until when a job that holds GPUs should be left alone; for one that does not train yet, as far as we can tell."""
    if not job.allocation:
        return -math.inf
    return (job.since if job.phase is Phase.RUNNING else now) + seconds


def _beside(inner: Reason, reason: Reason) -> Reason:
    """The reason, with those numbers of the inner policy's that it does not state itself."""
    return replace(reason, numbers={**inner.numbers, **reason.numbers})


def _is_disturbed(job: Job, planned: Allocation) -> bool:
    return not planned if job.spec.in_place else planned != job.allocation


def _waits(view: Snapshot, other: str, until: float, seconds: float) -> Reason:
    gpus, holder = view.allocations[other].total, view.jobs[other]
    who = f"job {other} of {holder.spec.tenant}"
    if holder.phase is Phase.RUNNING:
        text = f"waits for up to {until - view.now:.0f} s: {who} has just begun, and keeps its {counted(gpus, 'GPU')}"
    else:  # when it will be there is not known
        keeps = f"keeps its {counted(gpus, 'GPU')} until it has run for {seconds:.0f} s"
        text = f"waits: {who} is {holder.phase.value}, and {keeps}"
    return Reason(MINIMUM_RUN, text, {"gpus": gpus, "wait_s": until - view.now}, (other,))


def _stays(view: Snapshot, allocation: Allocation, until: float | None) -> Reason:
    gpus = counted(allocation.total, "GPU")
    if until is None:
        text = f"has {gpus}: those it was to get stay for now with a job that has just begun"
        return Reason("placed", text, {"gpus": allocation.total})
    text = f"keeps {gpus} for at least {until - view.now:.0f} s: it has just begun or changed its GPUs"
    return Reason("placed", text, {"gpus": allocation.total, "safe_s": until - view.now})
