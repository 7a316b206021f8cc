"""What elastic jobs bid with: their sizes, and the share of their work that they are believed to do on each.

Legend: J jobs that bid, K sizes of a job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job
from fairlead.policies.rates import Configuration, RateSource
from fairlead.policies.shockwave.market import Ints
from fairlead.policies.shockwave.regime_forecast import JobForecast, Speedup, forecast
from fairlead.policies.shockwave.rigid import SOONEST, Shockwave, at_least
from fairlead.policies.wait_reason import is_bound


@dataclass(frozen=True, slots=True)
class ElasticBidders:
    """The jobs of the market, in an order that does not depend on their names, and what each size does for them."""

    jobs: tuple[Job, ...]
    #: GPUs, and share of the work in a second; 0 where there is no such size.
    width_JK: Ints
    speed_JK: Floats
    progress_J: Floats
    #: Seconds of the whole work and of what is left, on what each asked for.
    whole_s_J: Floats
    remaining_s_J: Floats
    #: Ids of the jobs of which neither their user nor a report has told how long they take.
    guessed: frozenset[str] = frozenset()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(job.id for job in self.jobs)


def sizes_of(job: Job, gpus: int) -> list[int]:
    """Numbers of GPUs that are bid for: powers of two within the job's range, its ends, what it asked for and holds."""
    spec = job.spec
    powers = [2**k for k in range(int(math.log2(max(1, min(spec.most, gpus)))) + 1)]
    wanted = {spec.least, spec.gpus, min(spec.most, gpus), job.allocation.total, *powers}
    return sorted(size for size in wanted if spec.least <= size <= min(spec.most, gpus)) or [spec.least]


def bidders(view: Snapshot, rates: RateSource, gpus: int, options: Shockwave) -> ElasticBidders:
    jobs = [job for job in view.jobs.values() if not is_bound(job)]
    sizes = [sizes_of(job, gpus) for job in jobs]
    every = sorted({size for each in sizes for size in each})
    node_gpus = {node.gpu_type: 0 for node in view.nodes.values()}
    for node in view.nodes.values():
        node_gpus[node.gpu_type] = max(node_gpus[node.gpu_type], node.gpus)
    places = [Configuration(name, size, -(-size // most)) for name, most in node_gpus.items() for size in every]
    found = rates.rates(view, jobs, places)
    best_JS = found.rate_JC.reshape(len(jobs), len(node_gpus), len(every)).max(axis=1, initial=0.0)
    least_s = SOONEST * options.round_s
    known: list[tuple[tuple[object, ...], Job, list[int], list[float], JobForecast]] = []
    for at, job in enumerate(jobs):
        rate = np.array([best_JS[at, every.index(size)] for size in sizes[at]])
        asked = sizes[at].index(asked_size(job, sizes[at]))
        relative = rate / rate[asked] if rate[asked] > 0.0 else np.ones(len(rate))
        expected = forecast(job, view.now, speedup=_speedup(sizes[at], relative))
        if expected.guessed and expected.remaining_s < options.window * options.round_s:
            expected = at_least(expected, options.window * options.round_s)
        remaining_s = max(expected.remaining_s, least_s)
        speed = (relative * (1.0 - expected.progress) / remaining_s).tolist()
        key = (job.submitted_at, job.spec.gpus, expected.whole_s, expected.progress, job.id)
        known.append((key, job, sizes[at], speed, expected))
    known.sort(key=lambda each: each[0])
    width_JK = np.zeros((len(jobs), max((len(each) for each in sizes), default=1)), dtype=np.int64)
    speed_JK = np.zeros(width_JK.shape)
    for at, (_, _, size, speed, _) in enumerate(known):
        width_JK[at, : len(size)], speed_JK[at, : len(size)] = size, speed
    return ElasticBidders(
        tuple(each[1] for each in known),
        width_JK,
        speed_JK,
        np.array([each[4].progress for each in known], dtype=np.float64),
        np.array([max(each[4].whole_s, least_s) for each in known], dtype=np.float64),
        np.array([max(each[4].remaining_s, least_s) for each in known], dtype=np.float64),
        frozenset(each[1].id for each in known if each[4].guessed),
    )


def _speedup(sizes: Sequence[int], relative: Floats) -> Speedup:
    """How much faster than on what it asked for a job is on any number of GPUs: straight lines between its sizes."""
    return lambda gpus: float(np.interp(gpus, sizes, relative))


def asked_size(job: Job, sizes: Sequence[int]) -> int:
    """The size nearest to what its user asked for."""
    return min(sizes, key=lambda size: (abs(size - job.spec.gpus), size))


def cheapest_size(jobs: ElasticBidders, at: int) -> int:
    """The size on which a job's work takes the fewest GPU-seconds."""
    width_K, speed_K = jobs.width_JK[at], jobs.speed_JK[at]
    cost_K = np.divide(width_K, speed_K, out=np.full(len(width_K), np.inf), where=speed_K > 0.0)
    best = int(np.argmin(cost_K))
    return int(width_K[best]) or int(width_K[0])
