"""Work that would be lost is not given up for a guess.

A command that cannot change its GPUs in place, and has never told of a checkpoint, begins anew when it is stopped. To
an inner policy that shares time, or tries out other sizes, that is a small price; to whoever waits for the job it is
all of its work. So as long as it holds GPUs it is shown as one that must not be stopped. Who has a right to its GPUs
(a higher priority, a quota, a fair share, a drain) gets them all the same: those rules are further out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan, Reason
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons


@dataclass(frozen=True)
class SpareUnsaved(Wearer):
    """Jobs that would lose all their work are not stopped for others of the same standing; another policy plans."""

    def plan(self, view: Snapshot) -> Plan:
        unsaved = {job_id for job_id in view.allocations if would_lose_all(view.jobs[job_id])}
        if not unsaved:
            return self.inner.plan(view)
        specs = {job_id: replace(view.jobs[job_id].spec, preemptible=False) for job_id in unsaved}
        plan = self.inner.plan(imagined(view, specs=specs))

        def explain(job: Job) -> Reason:
            reason = plan.reasons[job.id]
            spared = [job_id for job_id in reason.jobs if job_id in unsaved]
            return _told(reason, spared) if spared and job.id not in plan.allocations else reason

        return replace(plan, reasons=Reasons(view, explain))


def _told(reason: Reason, spared: Sequence[str]) -> Reason:
    """Why it waits, and what the inner policy did not know: why jobs that could be stopped are not."""
    which = f"job {spared[0]} has" if len(spared) == 1 else f"{len(spared)} of these jobs have"
    text = f"{reason.text}; {which} saved no checkpoint, and would lose all work if stopped"
    return replace(reason, text=text, numbers={**reason.numbers, "unsaved": len(spared)})


def would_lose_all(job: Job) -> bool:
    """If it were stopped now, or restarted with other GPUs."""
    return job.spec.preemptible and not job.spec.in_place and job.belief.saved_at is None
