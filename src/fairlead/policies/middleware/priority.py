"""Who matters more goes first: of lower priorities the inner policy sees only jobs for which there is room besides.

A class is all jobs of one priority. The highest is seen whole. From there on, each job takes what it needs at least; of
a class for which too few GPUs are left, those that run come first, then those that came first, and no lower class is
seen. So priorities say who runs at all, and nothing of how the rest is shared: that stays the inner policy's. Whoever
must not be preempted is never hidden once it runs. What can never fit takes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan, Reason
from fairlead.core.wording import counted
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: Jobs of higher priority take all there is.
PRIORITY = "priority"


@dataclass(frozen=True)
class _Rank:
    """What comes before a job: other jobs, which need too many of the GPUs there are."""

    ahead: tuple[str, ...]
    there: int


@dataclass(frozen=True)
class ByPriority(Wearer):
    """Jobs of higher priority run before those of lower; another policy plans for those that may."""

    def plan(self, view: Snapshot) -> Plan:
        outranked = self._outranked(view)
        if not outranked:
            return self.inner.plan(view)
        plan = self.inner.plan(imagined(view, hidden=outranked))

        def explain(job: Job) -> Reason:
            if job.id not in outranked:
                return plan.reasons[job.id]
            return self._reason(view, job, outranked[job.id])

        return replace(plan, reasons=Reasons(view, explain))

    def _reason(self, view: Snapshot, job: Job, rank: _Rank) -> Reason:
        needs, ahead = self._needs(job), [view.jobs[job_id] for job_id in rank.ahead]
        above = [other for other in ahead if other.spec.priority > job.spec.priority]
        first = f"{counted(len(above), 'job')} of higher priority than its {job.spec.priority}"
        if rest := len(ahead) - len(above):
            first += f" and {counted(rest, 'job')} that {'runs or came' if rest == 1 else 'run or came'} first"
        gpus = sum(other.allocation.total if _stays(other) else self._needs(other) for other in ahead)
        need = "needs" if len(ahead) == 1 else "need"
        text = f"waits: {first} {need} {gpus} of the {counted(rank.there, 'GPU')} there are, and this one needs {needs}"
        numbers = {"needs": needs, "priority": job.spec.priority, "above": len(above), "ahead_gpus": gpus}
        return Reason(PRIORITY, text, {**numbers, "total": rank.there}, rank.ahead)

    def _outranked(self, view: Snapshot) -> dict[str, _Rank]:
        """Jobs that are not to be shown, and what comes before each."""
        classes: dict[int, list[Job]] = {}
        for job in view.jobs.values():
            classes.setdefault(job.spec.priority, []).append(job)
        if len(classes) == 1:
            return {}
        there = sum(node.gpus for node in view.nodes.values() if node.open)
        free = there - sum(job.allocation.total for job in view.jobs.values() if _stays(job))
        hidden: dict[str, _Rank] = {}
        before, full = [job.id for job in view.jobs.values() if _stays(job)], False
        higher = False
        for priority in sorted(classes, reverse=True):
            members = [job for job in classes[priority] if not _stays(job) and self._needs(job) <= there]
            for job in sorted(members, key=lambda job: not job.allocation):
                if higher and (full or self._needs(job) > free):
                    hidden[job.id] = _Rank(tuple(before), there)
                else:
                    free -= self._needs(job)
                before.append(job.id)
            full = full or free <= 0 or any(job.id in hidden for job in members)
            higher = True
        return hidden

    def _needs(self, job: Job) -> int:
        return job.spec.gpus if self.adapts == "nothing" else job.spec.least


def _stays(job: Job) -> bool:
    return bool(job.allocation) and not job.spec.preemptible
