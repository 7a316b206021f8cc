"""What each job would achieve with any number of GPUs of any type: goodput curves from what reports taught.

A job's throughput model is fitted to its own observations and, for numbers of GPUs it never had, to those of other jobs
that train the same model (`Snapshot.lore`). With its noise scale that makes its curves. All of it is a function of the
snapshot, so what was computed for one decision is remembered for the next: only jobs that have learned something cost
anything, and they are fitted and tabulated together.

A job of which nothing is known is taken to scale perfectly, so that it is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.learning import MODEL
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Batch, Belief, Job, Observation
from fairlead.goodput.curves import Curve, Model, curves
from fairlead.goodput.fit import Fit, borrow, fit_many

#: A job may have this many times the GPUs it, or another job of its model, was ever measured on (Pollux, section 4.2).
GROWTH = 2


@dataclass(frozen=True, slots=True)
class Appraisal:
    """One job on one GPU type."""

    curve: Curve
    #: The most GPUs it may have: a step beyond those that were measured, within what its user allows.
    most: int
    #: None where nothing was ever measured.
    fit: Fit | None

    def goodput(self, nodes: int, gpus: int) -> float:
        """Samples per second, each worth as much as one in a batch of the initial size."""
        curve_K = self.curve.one_K if nodes == 1 else self.curve.many_K
        return float(curve_K[min(gpus, len(curve_K) - 1)])


class Appraiser:
    """Remembers what it computed; forgets jobs that are gone. The answers do not depend on what it remembers."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[object, Appraisal]] = {}

    def appraise(
        self, view: Snapshot, jobs: Sequence[Job], gpu_type: str, *, reach: int, lore: bool
    ) -> list[Appraisal]:
        """For every job its curve on a GPU type, up to at least `reach` GPUs.

        With `lore` what other jobs of the same model taught is used for what a job has not measured itself.
        """
        reach = 1 << max(reach - 1, 0).bit_length()  # in powers of two, so that curves serve many decisions
        found: dict[str, Appraisal] = {}
        missing: list[tuple[Job, Belief, object]] = []
        for job in jobs:
            belief = _informed(job, view.lore) if lore else job.belief
            key: object = (belief.observations, belief.noise_scale, job.allocation.total, reach)
            known = self._known.get((job.id, gpu_type))
            if known is not None and known[0] == key:
                found[job.id] = known[1]
            else:
                missing.append((job, belief, key))
        fresh = _appraise([(job, belief) for job, belief, _ in missing], gpu_type, reach)
        for (job, _, key), appraisal in zip(missing, fresh, strict=True):
            found[job.id] = appraisal
            self._known[job.id, gpu_type] = key, appraisal
        if len(self._known) > 8 * len(view.jobs) + 64:
            self._known = {key: value for key, value in self._known.items() if key[0] in view.jobs}
        return [found[job.id] for job in jobs]


def _informed(job: Job, lore: Mapping[str, Belief]) -> Belief:
    """Its own belief, completed by what is known of its model."""
    known = lore.get(job.spec.labels.get(MODEL, ""))
    own = job.belief
    if known is None:
        return own
    seen = {(o.gpu_type, o.nodes, o.gpus) for o in own.observations}
    others = tuple(o for o in known.observations if (o.gpu_type, o.nodes, o.gpus) not in seen)
    noise_scale = known.noise_scale if own.noise_scale is None else own.noise_scale
    return replace(own, observations=own.observations + others, noise_scale=noise_scale)


def _appraise(jobs: Sequence[tuple[Job, Belief]], gpu_type: str, reach: int) -> list[Appraisal]:
    """The jobs of which something is known, together; perfect scaling for the others."""
    known = [(job, belief) for job, belief in jobs if belief.observations]
    fits = _fits([belief for _, belief in known], gpu_type)
    models = [
        Model(fit.params, belief.noise_scale or 0.0, job.spec.batch or _as_measured(belief.observations))
        for (job, belief), fit in zip(known, fits, strict=True)
    ]
    limits = [_most(job, belief, gpu_type) for job, belief in known]
    tables = curves(models, [max(most, reach) for most in limits])
    found = {
        job.id: Appraisal(curve, most, fit)
        for (job, _), curve, most, fit in zip(known, tables, limits, fits, strict=True)
    }
    return [found[job.id] if job.id in found else _unknown(job, belief, gpu_type, reach) for job, belief in jobs]


def _unknown(job: Job, belief: Belief, gpu_type: str, reach: int) -> Appraisal:
    most = _most(job, belief, gpu_type)
    line_K = np.arange(max(most, reach) + 1, dtype=np.float64)
    return Appraisal(Curve(line_K, np.where(line_K < 2, 0.0, line_K)), most, None)


def _most(job: Job, belief: Belief, gpu_type: str) -> int:
    """A step beyond what was measured on this GPU type, or beyond what it holds."""
    seen = max((o.gpus for o in belief.observations if o.gpu_type == gpu_type), default=0)
    return min(job.spec.most, max(job.spec.least, GROWTH * max(seen, job.allocation.total)))


def _as_measured(observations: Sequence[Observation]) -> Batch:
    """The batch of a job that never declared one: what it was first seen with."""
    first = observations[0]
    total = first.gpus * first.per_gpu_batch * (first.accumulation + 1)
    return Batch(total, total)


def _fits(beliefs: Sequence[Belief], gpu_type: str) -> list[Fit]:
    """Each model on a GPU type; where it was never seen there, that of the type it is known best on (Sia)."""
    own = [tuple(o for o in belief.observations if o.gpu_type == gpu_type) for belief in beliefs]
    profiles = [mine or _best_known(belief.observations) for mine, belief in zip(own, beliefs, strict=True)]
    return fit_many(profiles)


def _best_known(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """The observations on the GPU type that was measured most."""
    by_type: dict[str, list[Observation]] = {}
    for seen in observations:
        by_type.setdefault(seen.gpu_type, []).append(seen)
    most = max(by_type, key=lambda gpu_type: len(by_type[gpu_type]))
    return tuple(by_type[most])


def work_left(job: Job, lore: Mapping[str, Belief], appraisals: Mapping[str, Appraisal]) -> float | None:
    """Samples still to be processed, each worth as much as one in a batch of the initial size; None if nobody knows.

    Progress per second over goodput is progress per sample: measured by the job itself, or by another of its model.
    """
    speed = job.belief.speed
    if speed is None and (known := lore.get(job.spec.labels.get(MODEL, ""))) is not None:
        speed = known.speed
    if speed is None or speed.gpu_type not in appraisals:
        return None
    appraisal = appraisals[speed.gpu_type]
    goodput = appraisal.goodput(speed.nodes, speed.gpus)
    if appraisal.fit is None or goodput <= 0.0 or not math.isfinite(goodput):
        return None
    return (1.0 - job.belief.progress) * goodput / speed.progress_per_s
