"""Synthetic traces shaped like Philly's: daily and weekly cycles, sessions of similar jobs, mostly small, heavy-tailed.

The defaults are rounded from the processed Philly trace (82,247 jobs). Shape suffixes: J jobs, S sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces.record import Trace, TraceJob

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HOUR_S = 3600.0
WEEK_S = 168 * HOUR_S
DAY_S = 24 * HOUR_S

#: Share of jobs by GPU count in the processed Philly trace.
PHILLY_SIZES = ((1, 0.932), (2, 0.022), (4, 0.023), (8, 0.020), (16, 0.0024), (32, 0.0008))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to generate. Second 0 is a Monday, midnight. Equal workloads give equal traces."""

    jobs: int = 1000
    #: GPUs of the cluster the load is relative to.
    gpus: int = 64
    #: No job asks for more; None: not for more than `gpus`. A job runs on one GPU type, of which there may be fewer.
    widest: int | None = None
    #: True work of the jobs over what the cluster can do while they arrive. Exactly one of load and rate is given.
    load: float | None = None
    #: Jobs per hour, on average.
    rate_per_h: float | None = None
    #: (GPUs, share of sessions); shares need not sum to 1. Of the default mix, sizes beyond `widest` are left out.
    sizes: tuple[tuple[int, float], ...] = PHILLY_SIZES
    #: Durations are a mixture of two lognormals: short trials, and runs with a heavy tail.
    trial_share: float = 0.3
    trial_median_s: float = 90.0
    trial_sigma: float = 0.7
    run_median_s: float = 2400.0
    run_sigma: float = 1.9
    #: Wide jobs run longer: the median grows with GPUs to this power.
    width_exponent: float = 0.7
    longest_s: float = 30 * DAY_S
    tenants: int = 8
    #: Zipf exponent of the tenants' shares; 0 makes them equal.
    tenant_skew: float = 1.2
    #: How far the rate swings around its mean over a day, from 0 to 1; it peaks in mid-afternoon.
    daily_swing: float = 0.5
    #: The weekend's rate relative to a weekday's.
    weekend: float = 0.5
    #: Mean jobs per session: one tenant's jobs of one size, one after another. 1 makes arrivals Poisson.
    session_jobs: float = 4.0
    session_gap_s: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidSpec naming the field."""
        if (self.load is None) == (self.rate_per_h is None):
            raise InvalidSpec("a workload needs exactly one of load and rate_per_h")
        for name in ("jobs", "gpus", "tenants", "session_jobs"):
            _require(name, getattr(self, name), at_least=1)
        for name in ("load", "rate_per_h", "trial_median_s", "run_median_s", "longest_s"):
            if getattr(self, name) is not None:
                _require(name, getattr(self, name), at_least=1e-9)
        for name in ("trial_sigma", "run_sigma", "tenant_skew", "session_gap_s", "seed", "width_exponent"):
            _require(name, getattr(self, name), at_least=0)
        for name in ("trial_share", "daily_swing"):
            _require(name, getattr(self, name), at_least=0, at_most=1)
        _require("weekend", self.weekend, at_least=0)
        if not any(size <= self.most and share > 0 for size, share in self.sizes):
            raise InvalidSpec(
                f"sizes are {self.sizes!r}; expected one of at most {self.most} GPUs with a share above 0"
            )
        if self.too_large and self.sizes != PHILLY_SIZES:
            raise InvalidSpec(
                f"sizes: jobs of {' and '.join(map(str, self.too_large))} GPUs do not fit the cluster's {self.most}, "
                "and the mix would not be the one asked for; leave them out, or generate for more GPUs (--gpus)"
            )
        for size, share in self.sizes:
            _require("sizes: GPUs", size, at_least=1)
            _require("sizes: share", share, at_least=0)

    @property
    def too_large(self) -> tuple[int, ...]:
        """Sizes with a share that the cluster cannot hold."""
        return tuple(size for size, share in self.sizes if size > self.most and share > 0)

    @property
    def most(self) -> int:
        return self.gpus if self.widest is None else self.widest


def _require(name: str, value: float, *, at_least: float, at_most: float = 1e12) -> None:
    if not at_least <= value <= at_most:
        raise InvalidSpec(f"{name} is {value!r}; expected a number from {at_least:g} to {at_most:g}")


#: From jobs, of which none has arrived yet, to what they are replaced by, and the true work of each in GPU-seconds.
Recast = Callable[[Trace], tuple[Trace, Sequence[float]]]


def drawn_work(trace: Trace) -> tuple[Trace, Sequence[float]]:
    """The jobs as they are, each with as much work as its duration says."""
    return trace, [job.gpus * (job.duration_s or 0.0) for job in trace.jobs]


def generate(workload: Workload, recast: Recast = drawn_work) -> Trace:
    """A trace of the workload's jobs, in order of submission, ids from 0."""
    rng = np.random.default_rng(workload.seed)
    session_J = _sessions(workload, rng)
    sessions = int(session_J[-1]) + 1
    gpus_J = _sizes(workload, rng, sessions)[session_J]
    tenant_J = _tenants(workload, rng, sessions)[session_J]
    duration_J = _durations(workload, rng, gpus_J)
    jobs = (
        TraceJob(
            id=str(j),
            submit_s=0.0,
            gpus=int(gpus_J[j]),
            gpus_min=int(gpus_J[j]),
            gpus_max=int(gpus_J[j]),
            duration_s=float(duration_J[j]),
            tenant=f"tenant-{tenant_J[j]}",
        )
        for j in range(workload.jobs)
    )
    drawn = Trace(jobs=tuple(jobs), format="fairlead", source=f"generated with seed {workload.seed}")
    made, work_gpu_s_J = recast(drawn)
    submit_J = _arrivals(workload, rng, session_J, _span_s(workload, math.fsum(work_gpu_s_J)))
    ordered = np.argsort(submit_J, kind="stable")
    arriving = (replace(made.jobs[j], id=str(number), submit_s=float(submit_J[j])) for number, j in enumerate(ordered))
    return replace(made, jobs=tuple(arriving))


def _sessions(workload: Workload, rng: np.random.Generator) -> Ints:
    """Which session each job belongs to: geometric lengths, cut to the number of jobs."""
    length_S = rng.geometric(1 / workload.session_jobs, size=workload.jobs)
    return np.repeat(np.arange(workload.jobs), length_S)[: workload.jobs]


def _sizes(workload: Workload, rng: np.random.Generator, sessions: int) -> Ints:
    fitting = [(size, share) for size, share in workload.sizes if size <= workload.most]
    share = np.array([share for _, share in fitting])
    return rng.choice(np.array([size for size, _ in fitting]), size=sessions, p=share / share.sum())


def _tenants(workload: Workload, rng: np.random.Generator, sessions: int) -> Ints:
    share = np.arange(1, workload.tenants + 1, dtype=float) ** -workload.tenant_skew
    return rng.choice(workload.tenants, size=sessions, p=share / share.sum())


def _durations(workload: Workload, rng: np.random.Generator, gpus_J: Ints) -> Floats:
    """Whole seconds, at least one, as recorded traces have them."""
    jobs = len(gpus_J)
    trial_J = rng.random(jobs) < workload.trial_share
    median_J = np.where(trial_J, workload.trial_median_s, workload.run_median_s * gpus_J**workload.width_exponent)
    sigma_J = np.where(trial_J, workload.trial_sigma, workload.run_sigma)
    duration_J = np.exp(np.log(median_J) + sigma_J * rng.standard_normal(jobs))
    return np.maximum(1.0, np.round(np.minimum(duration_J, workload.longest_s)))


def _span_s(workload: Workload, work_gpu_s: float) -> float:
    """How long jobs keep arriving, so that load or rate come out as asked for."""
    if workload.load is not None:
        return work_gpu_s / (workload.load * workload.gpus)
    assert workload.rate_per_h is not None  # checked on construction
    return workload.jobs / workload.rate_per_h * HOUR_S


def _arrivals(workload: Workload, rng: np.random.Generator, session_J: Ints, span_s: float) -> Floats:
    """Sessions start as a Poisson process whose rate follows the week; their jobs follow after exponential gaps."""
    sessions = int(session_J[-1]) + 1
    start_S = _week_times(workload, rng.random(sessions), span_s)
    gap_J = rng.exponential(workload.session_gap_s, size=len(session_J))
    first_J = np.searchsorted(session_J, session_J)
    gap_J[first_J == np.arange(len(session_J))] = 0.0
    run_J = np.cumsum(gap_J)
    submit_J: Floats = start_S[session_J] + run_J - run_J[first_J]
    # What would arrive after the end wraps round to the beginning, which keeps the load what was asked for.
    submit_J[submit_J > span_s] %= span_s
    submit_J -= submit_J.min()
    if (last_s := submit_J.max()) > 0.0:
        submit_J *= span_s / last_s  # from the first arrival to the last, to the letter: few jobs leave a wide margin
    return submit_J.round(3)


def _week_times(workload: Workload, uniform_S: Floats, span_s: float) -> Floats:
    """Given their number, a Poisson process' arrivals are independent draws from its normalised rate: invert that."""
    hour = np.arange(168)
    rate = 1 + workload.daily_swing * np.cos(2 * math.pi * (hour % 24 - 15) / 24)
    rate = np.where(hour >= 120, workload.weekend * rate, rate) + 1e-9
    done = np.concatenate(([0.0], np.cumsum(rate)))
    edge_s = np.arange(169) * HOUR_S
    weeks, rest_s = divmod(span_s, WEEK_S)
    total = weeks * done[-1] + np.interp(rest_s, edge_s, done)
    week_S, left_S = np.divmod(uniform_S * total, done[-1])
    time_S: Floats = np.interp(left_S, done, edge_s)
    time_S += week_S * WEEK_S
    return time_S
