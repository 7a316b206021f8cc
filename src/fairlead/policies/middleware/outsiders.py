"""GPUs that somebody outside uses are given to nobody, until they are left.

`Node.outside` says which: processes use them that no job of ours started. Those that no job holds are not shown to the
inner policy (`closing`). A job that holds one keeps it, for as long as the inner policy leaves it there: that somebody
intruded is no reason to stop it. But if the inner policy takes such a GPU from it, nobody else gets it: who was to have
it has less, or waits.

That such a job can still be preempted is meant. Otherwise one process started by hand would be a means to keep GPUs for
good, against quotas and priorities; and a job whose own processes are not recognised, because a daemon starts them for
it, would do so without wanting to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Plan, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.middleware.closing import Closed
from fairlead.policies.middleware.keeping import put_back
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: The GPUs it was to get are used by somebody outside.
OUTSIDE = "outside"

#: Stands for all outsiders, where a job is needed. No job has this id.
_OUTSIDERS = ""


@dataclass(frozen=True)
class Outsiders(Wearer):
    """GPUs that processes use which no job of ours started are given to nobody new; another policy plans."""

    def plan(self, view: Snapshot) -> Plan:
        if not any(node.outside for node in view.nodes.values()):
            return self.inner.plan(view)
        closed = Closed.of(view)
        plan = self.inner.plan(closed.view(view))
        wanted = {job_id: closed.real(allocation) for job_id, allocation in plan.allocations.items()}
        planned, waits = self._left_alone(view, replace(plan, allocations=wanted))

        def explain(job: Job) -> Reason:
            got, was_to_get = planned.get(job.id), wanted.get(job.id)
            if got != was_to_get:
                return _waits(job, waits) if got is None else _has_less(got)
            reason = plan.reasons[job.id]
            return _told(view, closed, job, reason) if got is None else replace(reason, text=closed.text(reason.text))

        return replace(plan, allocations=planned, reasons=Reasons(view, explain))

    def _left_alone(self, view: Snapshot, plan: Plan) -> tuple[Mapping[str, Allocation], Mapping[str, str]]:
        """The plan's allocations without what it takes from a job although outsiders use it; and those who wait."""
        seized = _seized(view, plan)
        if not seized:
            return plan.allocations, {}
        beside = replace(view, allocations={**view.allocations, _OUTSIDERS: seized})
        planned, waits = put_back(beside, plan, [_OUTSIDERS], resizes=self.adapts != "nothing")
        del planned[_OUTSIDERS]
        return planned, waits


def _seized(view: Snapshot, plan: Plan) -> Allocation:
    """GPUs that outsiders use, and that the plan gives to somebody who does not hold them."""
    seized = NOTHING
    for job_id, allocation in plan.allocations.items():
        gained = allocation - view.allocations.get(job_id, NOTHING)
        used = {node: set(gpus).intersection(view.nodes[node].outside) for node, gpus in gained if node in view.nodes}
        seized |= Allocation.of({node: gpus for node, gpus in used.items() if gpus})
    return seized


def _waits(job: Job, waits: Mapping[str, str]) -> Reason:
    other = waits.get(job.id, _OUTSIDERS)
    why = "are used by processes that Fairlead did not start" if other == _OUTSIDERS else f"stay with job {other}"
    jobs = () if other == _OUTSIDERS else (other,)
    return Reason(OUTSIDE, f"waits: GPUs that it was to get {why}", {"needs": job.spec.least}, jobs)


def _has_less(got: Allocation) -> Reason:
    has = f"has {counted(got.total, 'GPU')}"
    text = f"{has}: others that it was to get are used by processes that Fairlead did not start"
    return Reason("placed", text, {"gpus": got.total})


def _told(view: Snapshot, closed: Closed, job: Job, reason: Reason) -> Reason:
    """Why it waits, and what the inner policy did not know: how many GPUs it could use if nobody else did."""
    types = job.spec.gpu_types
    lacking = closed.count(node for node in view.nodes.values() if not types or node.gpu_type in types)
    text = closed.text(reason.text)
    if lacking:
        text += f"; {counted(lacking, 'GPU')} {are(lacking)} used by processes that Fairlead did not start"
    return replace(reason, text=text, numbers={**reason.numbers, "outside": lacking} if lacking else reason.numbers)
