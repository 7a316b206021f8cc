"""How long each job would still run on each GPU type, on the GPUs it asked for: work left over rate.

Where the work left is not known, or is only what a promised run time leaves that is over, a job is taken to need as
long as the median of the jobs of which it is known, or as long as it has run already if that is more.

Legend: J jobs, T GPU types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job
from fairlead.policies.rates import Configuration, Evidence, RateSource
from fairlead.policies.wait_reason import accepts


class RemainingTime(NamedTuple):
    """Of some jobs, on some GPU types."""

    #: Seconds; infinite where the job cannot run, or does not accept the type.
    seconds_JT: Floats
    #: Work per second, and work left, in a unit of each job's own.
    rate_JT: Floats
    left_J: Floats
    #: Whether the work left is known; else it is a guess.
    known_J: NDArray[np.bool_]


def fewest_nodes(view: Snapshot, gpu_type: str, gpus: int) -> int:
    """Nodes of a type that so many GPUs span at least."""
    largest = max((node.gpus for node in view.nodes.values() if node.gpu_type == gpu_type), default=gpus)
    return -(-gpus // largest)


def remaining_time(view: Snapshot, source: RateSource, jobs: Sequence[Job], gpu_types: Sequence[str]) -> RemainingTime:
    """On the fewest nodes of each type."""
    sizes = sorted({job.spec.gpus for job in jobs})
    configurations = [Configuration(t, gpus, fewest_nodes(view, t, gpus)) for gpus in sizes for t in gpu_types]
    rates = source.rates(view, jobs, configurations)
    size_J = np.searchsorted(sizes, [job.spec.gpus for job in jobs])
    rate_JST = rates.rate_JC.reshape(len(jobs), len(sizes), len(gpu_types))
    accepted_JT = np.array([[accepts(job, t) for t in gpu_types] for job in jobs], dtype=bool)
    accepted_JT = accepted_JT.reshape(len(jobs), len(gpu_types))
    rate_JT = np.where(accepted_JT, rate_JST[np.arange(len(jobs)), size_J], 0.0)
    stuck_J = ~(rate_JT > 0.0).any(axis=1)  # nothing says where it can run: it has to be tried
    rate_JT[stuck_J] = accepted_JT[stuck_J]
    best_J = rate_JT.max(axis=1, initial=0.0)
    run_s_J = np.array([job.run_at(view.now) for job in jobs])
    promised_s_J = np.array([np.inf if job.spec.estimate_s is None else job.spec.estimate_s for job in jobs])
    late_J = (run_s_J >= promised_s_J) & (rates.left_evidence_J == Evidence.GUESSED)
    known_J = np.isfinite(rates.left_J) & ~stuck_J & ~late_J
    typical_s = _typical(rates.left_J[known_J] / best_J[known_J], run_s_J)
    left_J = np.where(known_J, rates.left_J, np.maximum(typical_s, run_s_J) * best_J)
    seconds_JT = np.full(rate_JT.shape, np.inf)
    np.divide(left_J[:, None], rate_JT, out=seconds_JT, where=rate_JT > 0.0)
    return RemainingTime(seconds_JT, rate_JT, left_J, known_J)


def _typical(known_s: Floats, run_s_J: Floats) -> float:
    """Seconds that a job of which nothing is known is taken to need."""
    for sample in (known_s, run_s_J[run_s_J > 0.0]):
        if len(sample):
            return float(np.median(sample))
    return 1.0  # nothing is known of any job: all are alike
