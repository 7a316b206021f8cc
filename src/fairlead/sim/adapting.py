"""What a job may change of itself in an experiment, beyond what the trace says: nothing, its GPUs, or its batch too.

Only jobs with a performance model can: of a job replayed from a trace nobody knows what else it could have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.types import Batch
from fairlead.sim.applications import Fixed, GoodputTruth
from fairlead.sim.measured import PINNED_GPUS, MeasuredTruth
from fairlead.sim.regimes import RegimeTruth
from fairlead.sim.sia_profile import PipelineProfile
from fairlead.sim.traces.record import TraceJob
from fairlead.sim.truth import Truth
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.typed import TypedTruth

#: What can be asked of an experiment; `auto` is what its policy says in its attribute `adapts`.
#: nothing: GPUs and batch as in the trace. gpus: any number of GPUs that the user's batch can be divided among.
#: batch: any number of GPUs and any batch, within the bounds of the application.
ADAPTS = ("auto", "nothing", "gpus", "batch")


def adapts(adapt: str, policy: Policy) -> str:
    """One of `nothing`, `gpus` and `batch`."""
    chosen = getattr(policy, "adapts", "nothing") if adapt == "auto" else adapt
    if chosen not in ADAPTS[1:]:
        who = f"policy {type(policy).__name__}: adapts" if adapt == "auto" else "adapt"
        raise InvalidSpec(f"{who} is {chosen!r}; expected {', '.join(ADAPTS[1:])}")
    return str(chosen)


def narrower(adapt: str, job: TraceJob) -> str:
    """What a job may change where its policy makes use of `adapt`: no more than the trace says."""
    return ADAPTS[1:][min(ADAPTS[1:].index(adapt), ADAPTS[1:].index(job.adapts))] if job.adapts else adapt


@dataclass(frozen=True, slots=True)
class Freedom:
    """How many GPUs a job may get (`gpus` from a policy that does not resize), and the bounds of its batch."""

    gpus: int
    gpus_min: int
    gpus_max: int
    batch: Batch | None


def freedom(
    job: TraceJob,
    truth: Truth,
    *,
    adapt: str,
    room: int,
    gpu_types: Sequence[str] = (),
    batch_limit: str = "application",
) -> Freedom:
    """`room` is the most GPUs of one type that the job could have. What the trace says of its range is kept.

    `gpu_types` are those it may get: a pipeline has a range that it can run on whichever of them it is given. Where
    `batch_limit` is `requested`, policies are told that the batch it asked for is its largest; it tunes it beyond.
    """
    bounds = _batch(job, truth)
    batch = _requested(job, truth) if batch_limit == "requested" and isinstance(truth, TunedTruth) else bounds
    rigid = job.gpus_min == job.gpus == job.gpus_max and job.adapts != "gpus"  # that comes with its own range
    least = _least(truth, gpu_types)
    if adapt != "nothing" and rigid and isinstance(truth, RegimeTruth):
        low, high = truth.gpu_range(gpu_types)
        return Freedom(job.gpus, min(low, job.gpus), max(min(high, room), job.gpus), batch)
    if adapt == "nothing" or not rigid or not isinstance(truth, MeasuredTruth | TunedTruth | GoodputTruth):
        gpus = max(job.gpus, least)
        return Freedom(gpus, max(job.gpus_min, least), max(job.gpus_max, gpus), batch)
    assert bounds is not None, "a job with a performance model has a batch"
    most = room if bounds.max_total is None else min(room, bounds.max_total // bounds.min_per_gpu)
    asked = truth.asked if isinstance(truth, TunedTruth) else truth
    if isinstance(asked, TypedTruth):
        most = min(most, asked.most_gpus)
    most = max(most, job.gpus, least)  # the user may ask for more than is sensible
    if not isinstance(truth, GoodputTruth):
        most = min(most, PINNED_GPUS.get(job.model or "", most))
    return Freedom(min(max(job.gpus, least), most), least, most, batch)


def asked_gpus(job: TraceJob, truth: Truth, gpu_types: Sequence[str], *, adapt: str) -> dict[str, int]:
    """What the job asks for of each type: a pipeline has at least as many GPUs as stages.

    One that adapts may have the stages of any type; another one only those of the types that its GPUs suffice for.
    """
    least = {name: _least(truth, (name,)) for name in gpu_types}
    fewest = min(least.values(), default=1)
    return {name: max(job.gpus, each if adapt == "batch" else fewest) for name, each in least.items()}


def _least(truth: Truth, gpu_types: Sequence[str]) -> int:
    """GPUs that it can train on whatever type they are."""
    asked = truth.asked if isinstance(truth, TunedTruth) else truth
    return max((asked.least_gpus(name) for name in gpu_types), default=1) if isinstance(asked, TypedTruth) else 1


def _batch(job: TraceJob, truth: Truth) -> Batch | None:
    """The bounds of the batch: the application's, or its user's choice and nothing else."""
    if isinstance(truth, TunedTruth):
        return truth.asked.profile.batch
    if isinstance(truth, TypedTruth):
        return _kept(job, truth)
    if isinstance(truth, MeasuredTruth):
        return replace(truth.profile.batch, initial=truth.batch, max_total=truth.batch)
    if isinstance(truth, GoodputTruth):
        bounds, mode = truth.app.batch, truth.batch_mode
        return replace(bounds, initial=mode.total, max_total=mode.total) if isinstance(mode, Fixed) else bounds
    if job.recording is not None and job.recording.batch is not None:
        return job.recording.batch
    return None if job.batch is None else Batch(job.batch)


def _requested(job: TraceJob, truth: TunedTruth) -> Batch:
    """No batch above the one it asked for, but one that its GPUs can share; a pipeline's follows from its GPUs."""
    batch = truth.asked.profile.batch
    if isinstance(truth.asked.profile, PipelineProfile):
        return batch
    return replace(batch, max_total=max(truth.asked.batch, batch.min_per_gpu * job.gpus))


def _kept(job: TraceJob, truth: TypedTruth) -> Batch:
    """The batch it keeps, which the GPUs that its user asks for can share, be it less than was ever measured."""
    batch = truth.profile.batch
    if isinstance(truth.profile, PipelineProfile):
        return batch
    total = max(truth.batch, job.gpus)
    return replace(batch, initial=truth.batch, max_total=total, min_per_gpu=min(batch.min_per_gpu, total // job.gpus))
