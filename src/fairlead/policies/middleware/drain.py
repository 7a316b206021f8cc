"""Nodes that have to be empty by a certain time are left in time, by shrinking where that is possible.

From `lead` seconds before `Node.drain_by` on, jobs on the node are shown to the inner policy as holding only what they
have elsewhere. One that can shrink in place goes on with that; the others move, or wait. Nobody new comes to the node
anyway, since it drains. The lead is at least `lead_s`, and at least twice as long as any job there took to start or to
change its GPUs, so that there is time for a checkpoint and a start elsewhere.

A job that must not be preempted stays, unless it can shrink off the node in place; its reason says so, for whoever
wants the node. A node that drains without a time is left to the inner policy: who is there may stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Plan, Reason
from fairlead.core.wording import counted
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: It leaves a node that has to be empty soon, or should but cannot.
DRAIN = "drain"


@dataclass(frozen=True)
class Drain(Wearer):
    """Jobs leave nodes that have to be empty by a certain time, by shrinking if they can; another policy plans."""

    #: Seconds before the time at which jobs begin to leave; more, if a job there takes long to start or to rescale.
    lead_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.lead_s < math.inf:
            raise InvalidSpec(f"drain: lead_s is {self.lead_s}; expected a finite number of at least 0")
        super().__post_init__()

    def plan(self, view: Snapshot) -> Plan:
        begins = self._begins(view)
        if not begins:
            return self.inner.plan(view)
        closing = {node for node, at in begins.items() if at <= view.now}
        later = min((at for at in begins.values() if at > view.now), default=math.inf)
        there = [job for job_id, a in view.allocations.items() if closing & set(a.nodes) for job in [view.jobs[job_id]]]
        leaving = {job.id: _elsewhere(job, closing) for job in there if _may_leave(job, closing)}
        plan = self.inner.plan(imagined(view, holding=leaving))
        staying = {job.id for job in there if job.id not in leaving}

        def explain(job: Job) -> Reason:
            if job.id in leaving:
                return _leaves(view, job, closing, plan.allocations.get(job.id, NOTHING), plan.reasons[job.id])
            return _stays(view, job, closing) if job.id in staying else plan.reasons[job.id]

        reasons: Mapping[str, Reason] = Reasons(view, explain) if there else plan.reasons
        return replace(plan, reasons=reasons, review_at=min(plan.review_at, later))

    def _begins(self, view: Snapshot) -> dict[str, float]:
        """When jobs begin to leave each node that has to be empty by some time."""
        times = {n.id: n.drain_by for n in view.nodes.values() if n.draining and n.healthy and n.drain_by is not None}
        if not times:
            return {}
        slowest = dict.fromkeys(times, 0.0)
        for job_id, allocation in view.allocations.items():
            job = view.jobs[job_id]
            for node in allocation.nodes:
                if node in slowest:
                    slowest[node] = max(slowest[node], job.start_s or 0.0, job.rescale_s or 0.0)
        return {node: at - max(self.lead_s, 2.0 * slowest[node]) for node, at in times.items()}


def _elsewhere(job: Job, closing: set[str]) -> Allocation:
    """What it can go on with: its other GPUs, if it can shrink to them in place."""
    kept = Allocation.of({node: gpus for node, gpus in job.allocation if node not in closing})
    return kept if job.spec.in_place and kept.total >= job.spec.least else NOTHING


def _may_leave(job: Job, closing: set[str]) -> bool:
    return job.spec.preemptible or bool(_elsewhere(job, closing))


def _where(view: Snapshot, job: Job, closing: set[str]) -> tuple[str, float]:
    """The nodes it has to leave, and how soon."""
    nodes = [node for node in job.allocation.nodes if node in closing]
    soonest = min((by for node in nodes if (by := view.nodes[node].drain_by) is not None), default=view.now)
    return " and ".join(nodes), soonest - view.now


def _leaves(view: Snapshot, job: Job, closing: set[str], planned: Allocation, why: Reason) -> Reason:
    nodes, left_s = _where(view, job, closing)
    fate = f"goes on with {counted(planned.total, 'GPU')}: {planned}" if planned else f"waits: {why.text}"
    text = f"leaves node {nodes}, which has to be empty {_soon(left_s)}; it {fate}"
    return Reason(DRAIN, text, {**why.numbers, "gpus": planned.total, "left_s": left_s}, why.jobs)


def _stays(view: Snapshot, job: Job, closing: set[str]) -> Reason:
    nodes, left_s = _where(view, job, closing)
    text = f"stays on node {nodes}, which has to be empty {_soon(left_s)}, because it must not be preempted"
    return Reason(DRAIN, text, {"gpus": job.allocation.total, "left_s": left_s})


def _soon(left_s: float) -> str:
    return f"in {left_s:.0f} s" if left_s > 0.0 else "now"
