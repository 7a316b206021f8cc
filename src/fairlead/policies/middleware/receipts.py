"""What a preemption was for and what it costs: who gets the GPUs, why, and what is lost. For whoever was preempted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Plan, Reason
from fairlead.policies.middleware.loss import loss_gpu_s


@dataclass(frozen=True, slots=True)
class Receipt:
    """Given for a job that a plan stops or makes smaller."""

    job: str
    #: (job, user) of all that get GPUs it gives up, those that get the most first; empty if they stay idle.
    gets: tuple[tuple[str, str], ...]
    why: Reason
    #: GPUs it had, and has by the plan.
    gpus_before: int
    gpus_after: int
    #: GPU-seconds that it may have to do again, start included; at most, since it may save when it is told to stop.
    lost_gpu_s: float
    #: How long its last start took, and when it last told of a checkpoint; None if that is not known.
    restart_s: float | None
    saved_at: float | None

    @property
    def is_due(self) -> bool:
        """Did others take something from it? One that is restarted elsewhere, or with more GPUs, was not preempted."""
        return self.gpus_after < self.gpus_before

    def to_dict(self, *, resized: bool = False) -> dict[str, Any]:
        """For JSON. `resized`: it went on with fewer GPUs, or was suspended, and so has lost no work."""
        return {
            "job": self.job,
            "gets": [{"job": job, "user": user} for job, user in self.gets],
            "reason": {"code": self.why.code, "text": self.why.text, "numbers": dict(self.why.numbers)},
            "gpus_before": self.gpus_before,
            "gpus_after": self.gpus_after,
            "lost_gpu_s": 0.0 if resized else self.lost_gpu_s,
            "restart_s": None if resized else self.restart_s,
            "saved_at": self.saved_at,
        }


def receipt(view: Snapshot, plan: Plan, job_id: str) -> Receipt:
    """For a job of the snapshot that holds GPUs. The plan is the one that was made of it."""
    job, after = view.jobs[job_id], plan.allocations.get(job_id, NOTHING)
    given = dict((job.allocation - after).masks)
    gained: list[tuple[int, str]] = []
    for other, allocation in plan.allocations.items():
        if other != job_id:
            gpus = sum((mask & given.get(node, 0)).bit_count() for node, mask in allocation.masks)
            gained += [(gpus, other)] if gpus else []
    gained.sort(key=lambda pair: -pair[0])
    stops = bool(job.allocation) and (not after or (after != job.allocation and not job.spec.in_place))
    return Receipt(
        job=job_id,
        gets=tuple((other, view.jobs[other].spec.tenant) for _, other in gained),
        why=plan.reasons[job_id],
        gpus_before=job.allocation.total,
        gpus_after=after.total,
        lost_gpu_s=loss_gpu_s(job, view.now) if stops else 0.0,
        restart_s=job.start_s,
        saved_at=job.belief.saved_at,
    )
