"""Why: one reason for every live job, computed only for those somebody asks about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason


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


def queued_reasons(view: Snapshot, allocations: Mapping[str, Allocation], rule: str) -> Reasons:
    """Reasons of a policy that serves a queue: who runs, and what the others wait for. `rule` orders the queue."""

    def explain(job: Job) -> Reason:
        allocation = allocations.get(job.id)
        if allocation is not None:
            verb = "keeps" if job.allocation == allocation else "gets"
            return Reason("placed", f"{verb} {allocation.total} GPUs: {allocation}", {"gpus": allocation.total})
        total = sum(node.gpus for node in view.nodes.values() if node.open and _accepts(job, node.gpu_type))
        free = total - sum(
            allocation.total
            for allocation in allocations.values()
            if (node := view.nodes[allocation.nodes[0]]).open and _accepts(job, node.gpu_type)
        )
        if total < job.spec.gpus:
            code, text = "too-large", f"needs {job.spec.gpus} GPUs; the nodes open to it have {total}"
        elif job.allocation:
            code, text = "preempted", f"gives its {job.allocation.total} GPUs to jobs that go first ({rule})"
        elif free >= job.spec.gpus:
            code, text = "behind", f"needs {job.spec.gpus} GPUs and {free} are free, but jobs ahead of it wait ({rule})"
        else:
            code, text = "waiting", f"needs {job.spec.gpus} GPUs, {free} are free ({rule})"
        return Reason(code, text, {"needs": job.spec.gpus, "free": free, "total": total})

    return Reasons(view, explain)


def _accepts(job: Job, gpu_type: str) -> bool:
    return not job.spec.gpu_types or gpu_type in job.spec.gpu_types
