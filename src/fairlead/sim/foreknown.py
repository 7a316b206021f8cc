"""What a cluster knows of its applications before the first job comes: a short profile of each, as Sia begins with.

Sia runs every job for some seconds on one GPU of each type before it decides about it (section 3.2 of its paper). Here
that is done once for each application, takes no time, and is told as what earlier jobs of the model left behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.core.learning import MODEL
from fairlead.core.types import Belief, Observation
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.typed import TypedTruth
from fairlead.sim.world import SimJob


def one_gpu_lore(jobs: Sequence[SimJob], gpu_types: Sequence[str]) -> Mapping[str, Belief]:
    """By model: a pass on one GPU of each type, at the largest per-GPU batch that it holds."""
    found: dict[str, Belief] = {}
    for job in jobs:
        model, truth = job.spec.labels.get(MODEL, ""), job.truth
        asked = truth.asked if isinstance(truth, TunedTruth) else truth
        if model not in found and isinstance(asked, TypedTruth):
            found[model] = Belief(observations=_one_gpu(asked, gpu_types))
    return found


def _one_gpu(truth: TypedTruth, gpu_types: Sequence[str]) -> tuple[Observation, ...]:
    seen = []
    for gpu_type in gpu_types:
        profile = truth.on(gpu_type)
        if profile is None or profile.least_gpus > 1:
            continue
        per_gpu_batch = profile.bounds((1,)).max_per_gpu
        assert per_gpu_batch is not None, "profiles state it"
        if (times := profile.times((1,), per_gpu_batch)) is not None:
            seen.append(Observation(gpu_type, 1, 1, per_gpu_batch, 0, *times))
    return tuple(seen)
