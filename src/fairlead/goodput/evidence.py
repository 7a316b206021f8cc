"""From what was measured of a job to what it is on a GPU type: its throughput model there, and its batch.

Whoever decides for a job and whoever foretells it have to mean the same job, so both ask here. Every function is one of
observations: whose they are, the job's own or those of others of its model, is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from fairlead.core.types import Batch, Belief, JobSpec, Observation
from fairlead.goodput.fit import Fit, borrow, fit_many
from fairlead.goodput.throughput import grad_time

#: No GPU type is more times faster than another; whoever measured that measured something else.
UNLIKE = 1000.0

_NO_RATIOS: Mapping[str, float] = {}


def batch_of(spec: JobSpec, belief: Belief) -> Batch:
    """As its user or its script declared it; else what it was first seen with. Something must have been seen."""
    if declared := spec.batch or belief.bounds:
        return declared
    first = belief.observations[0]
    total = max(1, first.gpus * first.per_gpu_batch * (first.accumulation + 1))
    return Batch(total, total)


def fits_on(
    gpu_type: str, beliefs: Sequence[Belief], *, ratios: Sequence[Mapping[str, float]] | None = None
) -> list[Fit]:
    """Each model on a GPU type. Where it was not seen on several GPUs there, it is borrowed (Sia, section 3.2).

    Namely that of the type it is known best on, as much slower or faster as a pass is: by the job's own measurements,
    or else by the `ratios` that are told of each, or else not at all.
    """
    own = [seen_on(gpu_type, belief.observations) for belief in beliefs]
    used = [_best_known(mine, belief.observations) for mine, belief in zip(own, beliefs, strict=True)]
    fits = fit_many(used)
    for place, (mine, source) in enumerate(zip(own, used, strict=True)):
        if mine is not source:
            told = _NO_RATIOS if ratios is None else ratios[place]
            ratio = _ratio(mine, fits[place]) if mine else told.get(source[0].gpu_type, 1.0)
            borrowed = borrow(fits[place].params, source_grad_s=1.0, grad_s=ratio)
            fits[place] = replace(fits[place], params=borrowed)
    return fits


def ratios_to(gpu_type: str, observations: Sequence[Observation]) -> dict[str, float]:
    """Of one model, by other GPU type it was measured on: the time of a pass on this one over that there."""
    mine = seen_on(gpu_type, observations)
    others = [name for name in dict.fromkeys(seen.gpu_type for seen in observations) if mine and name != gpu_type]
    fits = fit_many([seen_on(name, observations) for name in others])
    return {name: _ratio(mine, fit) for name, fit in zip(others, fits, strict=True)}


def seen_on(gpu_type: str, observations: Sequence[Observation]) -> tuple[Observation, ...]:
    return tuple(seen for seen in observations if seen.gpu_type == gpu_type)


def _best_known(mine: Sequence[Observation], every: Sequence[Observation]) -> Sequence[Observation]:
    """The observations to fit: `mine`, of the GPU type that is asked for, unless another one tells more."""
    if any(seen.gpus > 1 for seen in mine):
        return mine
    by_type: dict[str, list[Observation]] = {}
    for seen in every:
        by_type.setdefault(seen.gpu_type, []).append(seen)
    if mine:
        by_type = {name: seen for name, seen in by_type.items() if any(each.gpus > 1 for each in seen)}
    return max(by_type.values(), key=len, default=mine)


def _ratio(mine: Sequence[Observation], other: Fit) -> float:
    """The median, over what was measured here, of the time of a pass here over what the same takes by another fit."""
    usable = [seen for seen in mine if seen.step_s > seen.sync_s]
    if not usable:
        return 1.0
    grad_s = [float(grad_time(other.params, max(1, seen.per_gpu_batch))) for seen in usable]
    ratio = median(
        (seen.step_s - seen.sync_s) / (seen.accumulation + 1) / other_s
        for seen, other_s in zip(usable, grad_s, strict=True)
    )
    return min(max(ratio, 1.0 / UNLIKE), UNLIKE)
