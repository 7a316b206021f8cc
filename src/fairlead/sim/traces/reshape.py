"""Traces made from traces: cut, scaled, resampled, and given what the recording lacks. Pure: seeds in, no clock."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces.record import NodeFailure, Trace, TraceJob
from fairlead.sim.world import draw_failures

#: Pollux sorts jobs by GPU-time into small, medium, large and extra-large at these bounds (OSDI '21, section 5.1).
CATEGORY_BOUNDS_GPU_S = (3_600.0, 36_000.0, 360_000.0)

MOST_FAILURES = 1_000_000


# --- fewer jobs


def between(trace: Trace, *, from_s: float = 0.0, until_s: float = math.inf) -> Trace:
    """Jobs submitted from `from_s` on and before `until_s`; `from_s` becomes second 0."""
    if not 0 <= from_s < until_s:
        raise InvalidSpec(f"the window is {from_s:g} s to {until_s:g} s; expected 0 <= from < until")
    jobs = tuple(_moved(job, job.submit_s - from_s) for job in trace.jobs if from_s <= job.submit_s < until_s)
    failures = tuple(replace(f, at_s=f.at_s - from_s) for f in trace.failures if from_s <= f.at_s < until_s)
    origin = None if trace.origin is None else trace.origin + from_s
    window = f"between {from_s:g} s and {until_s:g} s"
    return replace(trace, jobs=_some(jobs, trace, window), failures=failures, origin=origin)


def of_tenants(trace: Trace, tenants: Sequence[str]) -> Trace:
    known = sorted({job.tenant for job in trace.jobs})
    for tenant in tenants:
        if tenant not in known:
            close = difflib.get_close_matches(tenant, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise InvalidSpec(f"{trace.source} has no tenant {tenant!r}; {hint}Tenants: {', '.join(known[:20])}")
    jobs = tuple(job for job in trace.jobs if job.tenant in tenants)
    return replace(trace, jobs=_some(jobs, trace, "of no tenant"))


def first(trace: Trace, jobs: int) -> Trace:
    """The first jobs in order of submission; all of them if there are fewer."""
    _at_least("jobs", jobs, 1)
    return replace(trace, jobs=trace.jobs[:jobs])


# --- more or denser jobs


def scale_arrivals(trace: Trace, factor: float) -> Trace:
    """Divide the times between arrivals by `factor`: 2 doubles what is offered. Deadlines keep their slack.

    Failures move with the jobs they hit; repairs take as long as before.
    """
    _at_least("the arrival factor", factor, 1e-6)
    failures = tuple(replace(failure, at_s=failure.at_s / factor) for failure in trace.failures)
    return replace(trace, jobs=tuple(_moved(job, job.submit_s / factor) for job in trace.jobs), failures=failures)


def resample(trace: Trace, jobs: int, *, seed: int) -> Trace:
    """Draw `jobs` jobs with replacement, each at its own time of submission moved somewhere before the next arrival.

    Size, length and tenant stay tied to the time of day, and the span stays the same: the load changes with the number
    of jobs. Ids are new; the label `resampled_from` has the old one.
    """
    _at_least("jobs", jobs, 1)
    rng = _seeded(seed)
    submit_s = np.array([job.submit_s for job in trace.jobs])
    gap_s = np.diff(submit_s, append=submit_s[-1])
    drawn = rng.integers(len(trace.jobs), size=jobs)
    moved_s = submit_s[drawn] + gap_s[drawn] * rng.random(jobs)
    drafts = []
    for number, k in enumerate(np.argsort(moved_s, kind="stable")):
        job = trace.jobs[drawn[k]]
        labels = {**job.labels, "resampled_from": job.id}
        drafts.append(replace(_moved(job, float(moved_s[k])), id=str(number), labels=labels))
    return replace(trace, jobs=tuple(drafts))


def anonymous(trace: Trace) -> Trace:
    """Without what tells who ran what: tenants are numbered, names and all labels are gone."""
    tenants = {tenant: f"user-{number}" for number, tenant in enumerate(sorted({job.tenant for job in trace.jobs}))}
    jobs = tuple(replace(job, tenant=tenants[job.tenant], name="", labels={}) for job in trace.jobs)
    return replace(trace, jobs=jobs)


# --- what the recording lacks


def map_applications(trace: Trace, gpu_s: Mapping[str, float], *, seed: int) -> Trace:
    """Replace each job by an application of about its GPU-time, as Pollux does; `gpu_s` has each application's own.

    A job gets one of the applications in its category, or the nearest one if the category has none. Work then comes
    from the application's profile, so duration, steps and batch size are dropped; the label `gpu_s` keeps the old work.
    """
    if not gpu_s:
        raise InvalidSpec("no applications were given; expected at least one with its GPU-seconds")
    for name, work_gpu_s in gpu_s.items():
        _at_least(f"GPU-seconds of {name!r}", work_gpu_s, 1e-9)
    rng = _seeded(seed)
    by_category: dict[int, list[str]] = {}
    for name in sorted(gpu_s):
        by_category.setdefault(_category(gpu_s[name]), []).append(name)
    jobs = []
    for job in trace.jobs:
        work_gpu_s = job.gpus * max(1e-9, _length_s(job))
        nearest = min(sorted(gpu_s), key=lambda name: abs(math.log(gpu_s[name] / work_gpu_s)))
        choices = by_category.get(_category(work_gpu_s), [nearest])
        model = choices[int(rng.integers(len(choices)))]
        labels = {**job.labels, "gpu_s": f"{work_gpu_s:g}"}
        jobs.append(replace(job, model=model, duration_s=None, estimate_s=None, steps=None, batch=None, labels=labels))
    return replace(trace, jobs=tuple(jobs))


def add_deadlines(trace: Trace, factors: Sequence[float], *, seed: int) -> Trace:
    """Deadline = submission + a factor drawn from `factors` x duration (or the user's estimate of it)."""
    if not factors:
        raise InvalidSpec("no deadline factors were given; expected at least one, like 1.5")
    for factor in factors:
        _at_least("a deadline factor", factor, 1e-6)
    drawn = _seeded(seed).choice(np.array(factors, dtype=float), size=len(trace.jobs))
    jobs = (
        replace(job, deadline_s=job.submit_s + float(factor) * _length_s(job))
        for job, factor in zip(trace.jobs, drawn, strict=True)
    )
    return replace(trace, jobs=tuple(jobs))


def add_elasticity(trace: Trace, *, shrink: float, grow: float) -> Trace:
    """Let a job of n GPUs run on n x shrink, rounded down, to n x grow, rounded up, and change them in place."""
    if not 0 < shrink <= 1 <= grow <= 1e6:
        raise InvalidSpec(f"elasticity is {shrink!r} to {grow!r}; expected 0 < shrink <= 1 <= grow")
    jobs = (
        replace(
            job,
            gpus_min=max(1, math.floor(job.gpus * shrink)),
            gpus_max=math.ceil(job.gpus * grow),
            in_place=True,
        )
        for job in trace.jobs
    )
    return replace(trace, jobs=tuple(jobs))


def inject_failures(
    trace: Trace, *, nodes: int, mtbf_s: float, repair_s: float, seed: int, horizon_s: float | None = None
) -> Trace:
    """Let each node fail after exponential times of mean `mtbf_s` and return after ones of mean `repair_s`.

    Without a horizon, failures go on until the last job could have ended. A node's failures do not depend on how many
    other nodes there are. Failures already in the trace are replaced.
    """
    _at_least("nodes", nodes, 1)
    _at_least("mtbf_s", mtbf_s, 1e-3)
    _at_least("repair_s", repair_s, 0)
    horizon_s = _end_s(trace) if horizon_s is None else horizon_s
    _at_least("horizon_s", horizon_s, 0)
    if (expected := nodes * horizon_s / (mtbf_s + repair_s)) > MOST_FAILURES:
        raise InvalidSpec(f"about {expected:.3g} failures would be injected; expected at most {MOST_FAILURES:,}")
    _at_least("seed", seed, 0)
    failures = [
        NodeFailure(node, at_s, down_s)
        for node in range(nodes)
        for at_s, down_s in takewhile(
            lambda drawn: drawn[0] < horizon_s, draw_failures(node, mtbf_s=mtbf_s, repair_s=repair_s, seed=seed)
        )
    ]
    failures.sort(key=lambda failure: (failure.at_s, failure.node))
    return replace(trace, failures=tuple(failures))


def _moved(job: TraceJob, submit_s: float) -> TraceJob:
    """The job submitted at another time; a deadline moves along."""
    deadline_s = None if job.deadline_s is None else max(0.0, job.deadline_s - job.submit_s + submit_s)
    return replace(job, submit_s=submit_s, deadline_s=deadline_s)


def _length_s(job: TraceJob) -> float:
    length_s = job.duration_s if job.duration_s is not None else job.estimate_s
    if length_s is None:
        raise InvalidSpec(f"job {job.id!r} has neither a duration nor an estimate, which this needs; use another trace")
    return length_s


def _end_s(trace: Trace) -> float:
    return max(job.submit_s + (job.duration_s or job.estimate_s or 0.0) for job in trace.jobs)


def _category(work_gpu_s: float) -> int:
    return sum(work_gpu_s >= bound for bound in CATEGORY_BOUNDS_GPU_S)


def _some(jobs: tuple[TraceJob, ...], trace: Trace, what: str) -> tuple[TraceJob, ...]:
    if not jobs:
        last_s = trace.jobs[-1].submit_s
        raise InvalidSpec(f"{trace.source} has no jobs {what}; its jobs arrive from 0 s to {last_s:g} s")
    return jobs


def _at_least(what: str, value: float, least: float) -> None:
    if not (math.isfinite(value) and value >= least):
        raise InvalidSpec(f"{what} is {value!r}; expected a number of at least {least:g}")


def _seeded(seed: int, *more: int) -> np.random.Generator:
    _at_least("seed", seed, 0)
    return np.random.default_rng([seed, *more])
