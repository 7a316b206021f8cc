"""What a report teaches: of the job, and of all jobs that train the same model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairlead.core.messages import JobReported
from fairlead.core.types import Belief, Job, Observation, PackedShare, Phase, Speed

#: The label that says which model a job trains.
MODEL = "model"

#: Up to this progress a job is young: what it reports is what another job of its model may expect at first.
YOUNG = 0.1

#: Models remembered; then the one that was longest silent is forgotten.
MOST_MODELS = 256

#: Places remembered of a job's speeds, and of what a model keeps of its speed beside others; the latest are kept.
MOST_PLACES = 512


def attributed(job: Job, report: JobReported, gpu_type: str) -> JobReported:
    """The report with the partners of its observations, which are of the time since the last one.

    What was measured on the GPUs it has now while jobs beside it came or went is left out: it belongs to neither.
    """
    if report.knows_partners or not report.observations:
        return report
    belief, here = job.belief, (gpu_type, len(job.allocation.shares), job.allocation.total)
    begin = job.since if belief.reported_at is None else max(job.since, belief.reported_at)
    observations = report.observations
    if job.partners_since > begin:
        observations = tuple(o for o in observations if o.configuration[:3] != here)
    elif job.partners:
        observations = tuple(
            replace(o, partners=job.partners) if o.configuration[:3] == here else o for o in observations
        )
    return replace(report, observations=observations, knows_partners=True)


def learn(job: Job, report: JobReported, gpu_type: str) -> Belief:
    """Belief after one more report; measurements at the same configuration are pooled by their step counts.

    What was measured beside other jobs is kept apart from what was measured alone.
    """
    belief = job.belief
    observations, packed = belief.observations, belief.packed
    if report.observations:
        observations = _pooled(observations, [new for new in report.observations if not new.partners])
        packed = _pooled(packed, [new for new in report.observations if new.partners])
    regimes = belief.regimes
    if report.batch is not None and (not regimes or regimes[-1][1] != report.batch):
        regimes = (*regimes, (report.progress, report.batch))
    speed = _speed(job, report, gpu_type)
    return Belief(
        progress=report.progress,
        reported_at=report.at,
        reported_run_s=job.run_at(report.at),
        speed=belief.speed if speed is None or speed.partners else speed,
        speeds=belief.speeds if speed is None else _latest((*belief.speeds, speed)),
        saved_at=report.at if report.saved else belief.saved_at,
        regimes=regimes,
        noise_scale=belief.noise_scale if report.noise_scale is None else report.noise_scale,
        observations=observations,
        packed=packed,
        bounds=report.bounds or belief.bounds,
    )


def _pooled(known: tuple[Observation, ...], told: list[Observation]) -> tuple[Observation, ...]:
    if not told:
        return known
    pooled = {(o.configuration, o.partners): o for o in known}
    for new in told:
        place = new.configuration, new.partners
        old = pooled.get(place)
        pooled[place] = new if old is None else _pool(old, new)
    return tuple(pooled.values())


def _latest(speeds: tuple[Speed, ...]) -> tuple[Speed, ...]:
    """The last speed at each place; of too many places those that were seen last."""
    found: dict[object, Speed] = {}
    for speed in speeds:
        found.pop(speed.place, None)
        found[speed.place] = speed
    return tuple(found.values())[-MOST_PLACES:]


def _speed(job: Job, report: JobReported, gpu_type: str) -> Speed | None:
    """None where something else than running beside the same jobs happened since the last report."""
    belief = job.belief
    if job.phase is not Phase.RUNNING or belief.reported_at is None:
        return None
    if max(job.since, job.partners_since) > belief.reported_at:
        return None
    ran_s, done = job.run_at(report.at) - belief.reported_run_s, report.progress - belief.progress
    if ran_s <= 0.0 or done <= 0.0:
        return None
    where = gpu_type, len(job.allocation.shares), job.allocation.total
    return Speed(done / ran_s, *where, job.partners, belief.regimes[-1][1] if belief.regimes else None)


def _pool(old: Observation, new: Observation) -> Observation:
    steps = old.steps + new.steps
    share = new.steps / steps  # and not sums, which could overflow
    step_s = old.step_s + (new.step_s - old.step_s) * share
    sync_s = old.sync_s + (new.sync_s - old.sync_s) * share
    return replace(new, step_s=step_s, sync_s=sync_s, steps=steps)


def recall(lore: dict[str, Belief], job: Job, report: JobReported) -> dict[str, Belief]:
    """What is known of models after a report; the same dictionary if it taught nothing. `job` has learned already.

    Of each model: the latest measurement on every number of nodes and GPUs, what it kept of its speed beside each set
    of other models, the noise scale and speed of a young job, and all speeds of one job. Another job of
    the model may expect these of it.
    """
    model = job.spec.labels.get(MODEL)
    if model is None:
        return lore
    known = lore.get(model, Belief())
    after = known
    if told := [each for each in report.observations if not each.partners]:
        seen = {(o.gpu_type, o.nodes, o.gpus): o for o in (*known.observations, *told)}
        after = replace(after, observations=tuple(seen.values()))
    if shares := packed_shares(job.belief):
        kept = {s.place: s for s in (*known.shares, *shares)}
        after = replace(after, shares=tuple(kept.values())[-MOST_PLACES:])
    young = report.progress <= YOUNG
    if job.belief.noise_scale is not None and (young or known.noise_scale is None):
        after = replace(after, noise_scale=job.belief.noise_scale)
    if job.belief.speed is not None and (young or known.speed is None):
        after = replace(after, speed=job.belief.speed)
    if len(job.belief.speeds) > max(1, len(known.speeds)):  # all of one job: those of others are shares of other work
        after = replace(after, speeds=job.belief.speeds)
    if after == known:
        return lore
    others = {name: belief for name, belief in lore.items() if name != model}
    while len(others) >= MOST_MODELS:
        del others[next(iter(others))]
    return {**others, model: after}


def packed_shares(belief: Belief) -> list[PackedShare]:
    """What a job kept of its speed beside others, wherever it was measured both so and alone."""
    if not (belief.packed or any(speed.partners for speed in belief.speeds)):
        return []
    found: dict[object, PackedShare] = {}
    alone_of = {speed.place[:3]: speed for speed in belief.speeds if not speed.partners}
    for speed in belief.speeds:
        if speed.partners and (alone := alone_of.get(speed.place[:3])) is not None:
            found[speed.place] = PackedShare(*speed.place, speed.progress_per_s / alone.progress_per_s)
    own = {o.configuration: o for o in belief.observations}
    for seen in belief.packed:
        step_s = own[seen.configuration].step_s if seen.configuration in own else 0.0
        if step_s > 0.0 and seen.step_s > 0.0:
            place = (seen.gpu_type, seen.nodes, seen.gpus, seen.partners)
            found[place] = PackedShare(*place, step_s / seen.step_s)
    return list(found.values())


def informed(job: Job, lore: Mapping[str, Belief]) -> Belief:
    """A job's own belief, completed by what is known of its model: `recall`'s other end."""
    known, own = lore.get(job.spec.labels.get(MODEL, "")), job.belief
    if known is None:
        return replace(own, shares=tuple(packed_shares(own))) if own.packed else own
    seen = {(o.gpu_type, o.nodes, o.gpus) for o in own.observations}
    others = tuple(o for o in known.observations if (o.gpu_type, o.nodes, o.gpus) not in seen)
    noise_scale = known.noise_scale if own.noise_scale is None else own.noise_scale
    shares = {s.place: s for s in (*known.shares, *packed_shares(own))}
    return replace(own, observations=own.observations + others, noise_scale=noise_scale, shares=tuple(shares.values()))
