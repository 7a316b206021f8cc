"""What a report teaches: of the job, and of all jobs that train the same model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairlead.core.messages import JobReported
from fairlead.core.types import Belief, Job, Observation, Phase, Speed

#: The label that says which model a job trains.
MODEL = "model"

#: Up to this progress a job is young: what it reports is what another job of its model may expect at first.
YOUNG = 0.1

#: Models remembered; then the one that was longest silent is forgotten.
MOST_MODELS = 256


def learn(job: Job, report: JobReported, gpu_type: str) -> Belief:
    """Belief after one more report; measurements at the same configuration are pooled by their step counts."""
    belief = job.belief
    observations = belief.observations
    if report.observations:
        pooled = {o.configuration: o for o in observations}
        for new in report.observations:
            old = pooled.get(new.configuration)
            pooled[new.configuration] = new if old is None else _pool(old, new)
        observations = tuple(pooled.values())
    regimes = belief.regimes
    if report.batch is not None and (not regimes or regimes[-1][1] != report.batch):
        regimes = (*regimes, (report.progress, report.batch))
    return Belief(
        progress=report.progress,
        reported_at=report.at,
        reported_run_s=job.run_at(report.at),
        speed=_speed(job, report, gpu_type) or belief.speed,
        saved_at=report.at if report.saved else belief.saved_at,
        regimes=regimes,
        noise_scale=belief.noise_scale if report.noise_scale is None else report.noise_scale,
        observations=observations,
        bounds=report.bounds or belief.bounds,
    )


def _speed(job: Job, report: JobReported, gpu_type: str) -> Speed | None:
    """None where something else than running happened since the last report."""
    belief = job.belief
    if job.phase is not Phase.RUNNING or belief.reported_at is None or job.since > belief.reported_at:
        return None
    ran_s, done = job.run_at(report.at) - belief.reported_run_s, report.progress - belief.progress
    if ran_s <= 0.0 or done <= 0.0:
        return None
    return Speed(done / ran_s, gpu_type, len(job.allocation.shares), job.allocation.total)


def _pool(old: Observation, new: Observation) -> Observation:
    steps = old.steps + new.steps
    share = new.steps / steps  # and not sums, which could overflow
    step_s = old.step_s + (new.step_s - old.step_s) * share
    sync_s = old.sync_s + (new.sync_s - old.sync_s) * share
    return replace(new, step_s=step_s, sync_s=sync_s, steps=steps)


def recall(lore: dict[str, Belief], job: Job, report: JobReported) -> dict[str, Belief]:
    """What is known of models after a report; the same dictionary if it taught nothing. `job` has learned already.

    Of each model: the latest measurement on every number of nodes and GPUs, and the noise scale and speed of a young
    job. Whoever submits another job of the model may expect these of it.
    """
    model = job.spec.labels.get(MODEL)
    if model is None:
        return lore
    known = lore.get(model, Belief())
    after = known
    if report.observations:
        seen = {(o.gpu_type, o.nodes, o.gpus): o for o in (*known.observations, *report.observations)}
        after = replace(after, observations=tuple(seen.values()))
    young = report.progress <= YOUNG
    if job.belief.noise_scale is not None and (young or known.noise_scale is None):
        after = replace(after, noise_scale=job.belief.noise_scale)
    if job.belief.speed is not None and (young or known.speed is None):
        after = replace(after, speed=job.belief.speed)
    if after == known:
        return lore
    others = {name: belief for name, belief in lore.items() if name != model}
    while len(others) >= MOST_MODELS:
        del others[next(iter(others))]
    return {**others, model: after}


def informed(job: Job, lore: Mapping[str, Belief]) -> Belief:
    """A job's own belief, completed by what is known of its model: `recall`'s other end."""
    known, own = lore.get(job.spec.labels.get(MODEL, "")), job.belief
    if known is None:
        return own
    seen = {(o.gpu_type, o.nodes, o.gpus) for o in own.observations}
    others = tuple(o for o in known.observations if (o.gpu_type, o.nodes, o.gpus) not in seen)
    noise_scale = known.noise_scale if own.noise_scale is None else own.noise_scale
    return replace(own, observations=own.observations + others, noise_scale=noise_scale)
