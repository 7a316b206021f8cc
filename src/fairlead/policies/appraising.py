"""What each job would achieve with any number of GPUs of any type: goodput curves from what reports taught.

A job's throughput model is fitted to its own observations and, for numbers of GPUs it never had, to those of other jobs
that train the same model (`Snapshot.lore`). With its noise scale that makes its curves. All of it is a function of the
snapshot, so what was computed for one decision is remembered for the next: only jobs that have learned something cost
anything, and they are fitted and tabulated together.

A job of which nothing is known is taken to scale perfectly, so that it is tried. If it states no batch, it will hardly
report any step: then it is also taken to be faster on GPUs that are stated to be (`Node.speed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from fairlead.core.learning import MODEL, informed
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Batch, Belief, Job
from fairlead.goodput.curves import Curve, Model, curves
from fairlead.goodput.evidence import batch_of, fits_on, ratios_to, seen_on
from fairlead.goodput.fit import Fit
from fairlead.policies.gpu_speeds import stated_speeds

#: A job may have this many times the GPUs it, or another job of its model, was ever measured on (Pollux, section 4.2).
GROWTH = 2


@dataclass(frozen=True, slots=True)
class TypeLore:
    """What is told of a job's model on a GPU type, beyond what the job has measured itself."""

    #: By other GPU type: time of a pass on this one over that there.
    ratios: tuple[tuple[str, float], ...] = ()
    #: The largest per-GPU batch that was seen to fit, where it is beyond what its user stated for every type; else 0.
    per_gpu_batch: int = 0


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
        self._ratios: dict[tuple[str, str], tuple[Belief, dict[str, float]]] = {}

    def appraise(
        self, view: Snapshot, jobs: Sequence[Job], gpu_type: str, *, reach: int, lore: bool
    ) -> list[Appraisal]:
        """For every job its curve on a GPU type, up to at least `reach` GPUs.

        With `lore` what other jobs of the same model taught is used for what a job has not measured itself. How much
        faster one GPU type is than another, and what its memory holds, is taken from all jobs in any case.
        """
        reach = 1 << max(reach - 1, 0).bit_length()  # in powers of two, so that curves serve many decisions
        most = sum(node.gpus for node in view.nodes.values())
        ratios, stated = self._usual_ratios(view, gpu_type), stated_speeds(view).get(gpu_type, 1.0)
        found: dict[str, Appraisal] = {}
        missing: list[tuple[Job, Belief, TypeLore, object]] = []
        for job in jobs:
            belief = informed(job, view.lore) if lore else job.belief
            told = self._told(view, job, gpu_type, belief, ratios)
            key: object = (
                job.spec,
                belief.observations,
                belief.noise_scale,
                job.allocation.total,
                reach,
                most,
                told,
                stated,
            )
            known = self._known.get((job.id, gpu_type))
            if known is not None and known[0] == key:
                found[job.id] = known[1]
            else:
                missing.append((job, belief, told, key))
        fresh = _appraise([(job, belief, told) for job, belief, told, _ in missing], gpu_type, (reach, most), stated)
        for (job, _, _, key), appraisal in zip(missing, fresh, strict=True):
            found[job.id] = appraisal
            self._known[job.id, gpu_type] = key, appraisal
        if len(self._known) > 8 * len(view.jobs) + 64:
            self._known = {key: value for key, value in self._known.items() if key[0] in view.jobs}
        return [found[job.id] for job in jobs]

    def _told(self, view: Snapshot, job: Job, gpu_type: str, belief: Belief, usual: Mapping[str, float]) -> TypeLore:
        """Ratios of its own model where that was measured on both types, and the usual ones where it was not."""
        if len(view.node_columns.gpu_types) < 2:
            return TypeLore()
        model = job.spec.labels.get(MODEL, "")
        own = self._ratios.get((model, gpu_type)) if model in view.lore else None
        ratios = () if seen_on(gpu_type, belief.observations) else tuple({**usual, **(own[1] if own else {})}.items())
        known = view.lore.get(model)
        every = (*belief.observations, *(known.observations if known else ()))
        fits = max((seen.per_gpu_batch for seen in every if seen.gpu_type == gpu_type), default=0)
        stated = job.spec.batch.max_per_gpu if job.spec.batch else None
        return TypeLore(ratios, fits if stated is not None and fits > stated else 0)

    def _usual_ratios(self, view: Snapshot, gpu_type: str) -> dict[str, float]:
        """By other GPU type: time of a pass on this one over that there, the median of the models measured on both.

        To two digits: what every report changes a little should not make everything be computed anew.
        """
        if len(view.node_columns.gpu_types) < 2:
            return {}
        every: dict[str, list[float]] = {}
        for model, belief in view.lore.items():
            known = self._ratios.get((model, gpu_type))
            if known is None or known[0] is not belief:
                found = {name: float(f"{r:.2g}") for name, r in ratios_to(gpu_type, belief.observations).items()}
                known = self._ratios[model, gpu_type] = belief, found
            for other, ratio in known[1].items():
                every.setdefault(other, []).append(ratio)
        if len(self._ratios) > 8 * len(view.lore) + 64:
            self._ratios = {key: value for key, value in self._ratios.items() if key[0] in view.lore}
        return {other: float(f"{median(ratios):.2g}") for other, ratios in sorted(every.items())}


def _appraise(
    jobs: Sequence[tuple[Job, Belief, TypeLore]], gpu_type: str, span: tuple[int, int], stated: float
) -> list[Appraisal]:
    """The jobs of which something is known, together; perfect scaling for the others.

    `span` are the fewest GPUs that curves must reach, and the most there are; `stated` is the speed of the GPU type.
    """
    reach, ceiling = span
    known = [(job, belief) for job, belief, _ in jobs if belief.observations]
    told = [told for _, belief, told in jobs if belief.observations]
    fits = fits_on(gpu_type, [belief for _, belief in known], ratios=[dict(each.ratios) for each in told])
    models = [
        Model(fit.params, max(0.0, belief.noise_scale or 0.0), _batch_on(job, belief, each))
        for (job, belief), each, fit in zip(known, told, fits, strict=True)
    ]
    limits = [min(ceiling, _most(job, belief, gpu_type)) for job, belief in known]
    tables = curves(models, [max(most, reach) for most in limits])
    found = {
        job.id: Appraisal(curve, most, fit)
        for (job, _), curve, most, fit in zip(known, tables, limits, fits, strict=True)
    }
    for job, belief, _ in jobs:
        if job.id not in found:
            speed = stated if job.spec.batch is None else 1.0
            found[job.id] = _unknown(min(ceiling, _most(job, belief, gpu_type)), reach, speed)
    return [found[job.id] for job, _, _ in jobs]


def _batch_on(job: Job, belief: Belief, told: TypeLore) -> Batch:
    batch = batch_of(job.spec, belief)
    return replace(batch, max_per_gpu=told.per_gpu_batch) if told.per_gpu_batch else batch


def _unknown(most: int, reach: int, speed: float) -> Appraisal:
    gpus_K = np.arange(max(most, reach) + 1, dtype=np.float64)
    return Appraisal(Curve(speed * gpus_K, np.where(gpus_K < 2, 0.0, speed * gpus_K)), most, None)


def _most(job: Job, belief: Belief, gpu_type: str) -> int:
    """A step beyond what was measured on this GPU type, or beyond what it holds; all it asks for if it cannot grow."""
    if not job.spec.preemptible:
        return max(job.spec.gpus, job.allocation.total)
    seen = max((o.gpus for o in belief.observations if o.gpu_type == gpu_type), default=0)
    return min(job.spec.most, max(job.spec.least, GROWTH * max(seen, job.allocation.total)))


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
