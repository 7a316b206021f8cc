"""First in, first out, in rounds: the jobs that came first are owed all the time, as many as fit.

As the other policies of Gavel's artifact (OSDI '20) it thinks in shares and leaves the rest to rounds. A job that was
admitted stays so until it ends, or until nodes are lost and it no longer fits on the GPU type it was admitted to; the
first that does not fit holds up all behind it, and GPUs that are left stay free.

Shockwave's artifact has a fault in how it admits a job in place of one that has ended: it looks at the ended jobs in
order of arrival, and takes for free whatever jobs that came later hold. So it may admit more than fits, and rounds
share the GPUs. `admits=released` does so, for comparison with published figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.gpu_speeds import believed_speeds
from fairlead.policies.rounds import Owed, next_round, round_options
from fairlead.policies.wait_reason import Discipline, accepts, gpu_type_of, on_open_nodes, open_gpus

#: The key of its memory in `Snapshot.memo`.
_MEMO = "fifo-rounds"

_IN_ORDER = Discipline("order of arrival", strict=True)

_ADMITS = ("fitting", "released")


@dataclass(frozen=True)
class RoundFifo:
    """The jobs that came first, as many as fit, in rounds."""

    starvation_free: ClassVar[bool] = True

    #: Which jobs are admitted: those that are `fitting`, or as Shockwave's `released` simulator does it.
    admits: str = "fitting"
    #: Length of a round, in seconds.
    round_s: float = 360.0
    #: How rounds are kept: `fairlead`, or as in the artifacts of `gavel` and `shockwave`.
    mechanism: str = "fairlead"

    def __post_init__(self) -> None:
        if self.admits not in _ADMITS:
            raise InvalidSpec(f"fifo-rounds: admits is {self.admits!r}; expected {' or '.join(_ADMITS)}")
        round_options(self.mechanism, self.round_s)

    def plan(self, view: Snapshot) -> Plan:
        admitted: dict[str, str] = dict(view.memo.get(_MEMO, {}))

        def owed() -> Owed:
            _admit(view, admitted, released=self.admits == "released")
            types = open_gpus(view)
            none: dict[tuple[tuple[str, ...], str], float] = {}
            none |= {((job.id,), t): 0.0 for job in view.jobs.values() for t in types if accepts(job, t)}
            return none | {((job_id,), gpu_type): 1.0 for job_id, gpu_type in admitted.items()}

        rounds = replace(round_options(self.mechanism, self.round_s), leftovers="keep")
        plan = next_round(view, owed, rounds, discipline=_IN_ORDER)
        return replace(plan, memo={**plan.memo, _MEMO: admitted})


def _admit(view: Snapshot, admitted: dict[str, str], *, released: bool) -> None:
    """Strike out jobs that have ended, and admit in order of arrival, one GPU type for each, as many as fit."""
    free, total = open_gpus(view), open_gpus(view)
    admitted |= {job_id: gpu_type_of(view, held) for job_id, held in view.allocations.items()}
    for job_id in _displaced(view, admitted, released=released):
        del admitted[job_id]
    waiting = [job for job in view.jobs.values() if job.id not in admitted]
    # A job that the cluster cannot hold does not hold up the others.
    queue = [job for job in waiting if any(accepts(job, t) and job.spec.gpus <= count for t, count in total.items())]
    for job_id, gpu_type in list(admitted.items()):
        if job_id in view.jobs:
            free[gpu_type] = free.get(gpu_type, 0) - _taken(view, view.jobs[job_id])
            continue
        del admitted[job_id]
        if released and queue and accepts(queue[0], gpu_type) and queue[0].spec.gpus <= free.get(gpu_type, 0):
            free[gpu_type] -= queue[0].spec.gpus
            admitted[queue[0].id] = gpu_type
            queue.pop(0)
    speeds = believed_speeds(view)
    for job in queue:
        fitting = [t for t, count in free.items() if count >= job.spec.gpus and accepts(job, t)]
        if not fitting:
            return
        speed = speeds(job.id)
        gpu_type = max(fitting, key=lambda name: (speed(name, 1), free[name]))
        admitted[job.id] = gpu_type
        free[gpu_type] -= job.spec.gpus


def _displaced(view: Snapshot, admitted: Mapping[str, str], *, released: bool) -> list[str]:
    """Admitted jobs that lost their GPUs, and for which the type that they were admitted to has too few left.

    In the released simulator more are admitted than fit: there, too few is only what could not hold the job alone.
    """
    free = open_gpus(view)
    for job_id, held in view.allocations.items() if not released else ():
        free[admitted[job_id]] = free.get(admitted[job_id], 0) - on_open_nodes(view, held)
    found = []
    for job in view.jobs.values():
        if job.id not in admitted or job.allocation:
            continue
        gpu_type = admitted[job.id]
        if free.get(gpu_type, 0) < job.spec.gpus:
            found.append(job.id)
        elif not released:
            free[gpu_type] -= job.spec.gpus
    return found


def _taken(view: Snapshot, job: Job) -> int:
    """GPUs on open nodes that it holds, or will be given."""
    return on_open_nodes(view, job.allocation) if job.allocation else job.spec.gpus
