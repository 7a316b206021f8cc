"""Why: one reason for every live job, computed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.wait_reason import Discipline, Waits

#: The job keeps or gets GPUs.
PLACED = "placed"


class Reasons(Mapping[str, Reason]):
    """A mapping over the snapshot's jobs that asks `explain` when it is read."""

    def __init__(self, view: Snapshot, explain: Callable[[Job], Reason]) -> None:
        self._view, self._explain = view, explain

    def __getitem__(self, job_id: str) -> Reason:
        return self._explain(self._view.jobs[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._view.jobs)

    def __len__(self) -> int:
        return len(self._view.jobs)


def queued_reasons(
    view: Snapshot,
    allocations: Mapping[str, Allocation],
    rule: str,
    *,
    order: Callable[[], Sequence[str]] | None = None,
    preempts: bool = False,
) -> Reasons:
    """Reasons of a policy that gives each job what it asked for, in an order. `rule` names the order in a few words.

    `order` gives the ids of the live jobs in that order, so that a job which waits is told which jobs are ahead of it;
    `preempts` says that jobs which come later lose their GPUs to those that come earlier.
    """
    return served_reasons(view, allocations, Discipline(rule, order, preempts))


def served_reasons(view: Snapshot, allocations: Mapping[str, Allocation], discipline: Discipline) -> Reasons:
    """The same of a policy with any discipline."""
    waits = Waits(view, allocations, discipline)

    def explain(job: Job) -> Reason:
        allocation = allocations.get(job.id)
        if allocation is None:
            return waits.reason(job)
        verb, gpus = "keeps" if job.allocation == allocation else "gets", allocation.total
        on, was = (view.nodes[each.nodes[0]].gpu_type if each else "" for each in (allocation, job.allocation))
        if was and was != on:
            text = f"moves from {was} to {counted(gpus, 'GPU')} of type {on}: {allocation}"
            return Reason(PLACED, text, {"gpus": gpus})
        return Reason(PLACED, f"{verb} {counted(gpus, 'GPU')}: {allocation}", {"gpus": gpus})

    return Reasons(view, explain)
