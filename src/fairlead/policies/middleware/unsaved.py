"""Work that would be lost is not given up for a guess.

A command that cannot change its GPUs in place, and has never told of a checkpoint, begins anew when it is stopped. To
an inner policy that shares time, or tries out other sizes, that is a small price; to whoever waits for the job it is
all of its work. So as long as it holds GPUs it is shown as one that must not be stopped. Who has a right to its GPUs
(a higher priority, a quota, a fair share, a drain) gets them all the same: those rules are further out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.middleware.wearing import Wearer


@dataclass(frozen=True)
class SpareUnsaved(Wearer):
    """Jobs that would lose all their work are not stopped for others of the same standing; another policy plans."""

    def plan(self, view: Snapshot) -> Plan:
        unsaved = [view.jobs[job_id] for job_id in view.allocations if would_lose_all(view.jobs[job_id])]
        return self.inner.plan(imagined(view, specs={job.id: replace(job.spec, preemptible=False) for job in unsaved}))


def would_lose_all(job: Job) -> bool:
    """If it were stopped now, or restarted with other GPUs."""
    return job.spec.preemptible and not job.spec.in_place and job.belief.saved_at is None
