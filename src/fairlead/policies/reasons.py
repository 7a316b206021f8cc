"""Why: one reason for every live job, computed only for those somebody asks about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import are, counted


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
        needs = f"needs {counted(job.spec.gpus, 'GPU')}"
        if allocation is not None:
            verb, gpus = "keeps" if job.allocation == allocation else "gets", allocation.total
            return Reason("placed", f"{verb} {counted(gpus, 'GPU')}: {allocation}", {"gpus": gpus})
        total, free = _most_gpus(view, allocations, job)
        if total < job.spec.gpus:
            code, text = "too-large", f"{needs}; the nodes open to it have {total}"
        elif job.allocation:
            code, text = "preempted", f"gives its {counted(job.allocation.total, 'GPU')} to jobs that go first ({rule})"
        elif free >= job.spec.gpus:
            code, text = "behind", f"{needs} and {free} {are(free)} free, but jobs ahead of it wait ({rule})"
        else:
            code, text = "waiting", f"{needs}, {free} {are(free)} free ({rule})"
        return Reason(code, text, {"needs": job.spec.gpus, "free": free, "total": total})

    return Reasons(view, explain)


def _most_gpus(view: Snapshot, allocations: Mapping[str, Allocation], job: Job) -> tuple[int, int]:
    """GPUs of one type the job accepts, on open nodes: the most there are, and the most that are free."""
    total: dict[str, int] = {}
    for node in view.nodes.values():
        if node.open and (not job.spec.gpu_types or node.gpu_type in job.spec.gpu_types):
            total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    free = dict(total)
    for allocation in allocations.values():
        for node_id, gpus in allocation:
            node = view.nodes[node_id]
            if node.open and node.gpu_type in free:
                free[node.gpu_type] -= len(gpus)
    return max(total.values(), default=0), max(free.values(), default=0)
