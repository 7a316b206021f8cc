"""Finish-time fairness of jobs: rho = time in the shared cluster / time alone on 1/N of it (Themis, NSDI 2020).

    time in the shared cluster   since its submission, and what its work left takes on the GPUs in question
    time alone on 1/N of it      all its work, done and left, at the rate of its slice of the cluster: of W GPUs of a
                                 type it has W/N, which a gang of s GPUs can use for the share (W/N)/s of the time

N is the mean number of jobs that could run while this one has been there. On an idle cluster rho is 1.

Legend: J jobs, T GPU types, N numbers of nodes from the fewest that hold the job.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job
from fairlead.policies.rates import Configuration, RateSource
from fairlead.policies.remaining_time import fewest_nodes, remaining_time
from fairlead.policies.wait_reason import accepts, open_gpus

#: Rates are asked for up to so many nodes more than a job needs; on further nodes it is taken to be as fast.
MORE_NODES = 3


class FinishTimes:
    """Of some jobs of one snapshot."""

    def __init__(self, view: Snapshot, source: RateSource, jobs: Sequence[Job]) -> None:
        self._view, self._total = view, open_gpus(view)
        self._types = view.node_columns.gpu_types
        self._alone_s: dict[str, float] = {}
        self._row = {job.id: row for row, job in enumerate(jobs)}
        times = remaining_time(view, source, jobs, self._types)
        self._rate_JT, self._left_J = times.rate_JT, times.left_J
        self._rate_JTN = _by_nodes(view, source, jobs, times.rate_JT)
        #: Jobs of which the work left is a guess.
        self.guessed = frozenset(job.id for job, known in zip(jobs, times.known_J.tolist(), strict=True) if not known)

    def contention(self, job: Job) -> float:
        """N: the mean number of jobs since it came, itself included; as many as there are if it has just come."""
        fair_gpu_s = self._view.fair_gpu_s - job.fair_from_gpu_s
        age_s = self._view.now - job.submitted_at
        if fair_gpu_s <= 0.0 or age_s <= 0.0:
            return float(max(1, len(self._view.jobs)))
        return max(1.0, sum(self._total.values()) * age_s / fair_gpu_s)

    def alone_s(self, job: Job) -> float:
        """How long all of the job takes alone on 1/N of the cluster; infinite where it cannot run at all."""
        if job.id not in self._alone_s:
            self._alone_s[job.id] = self._compute_alone_s(job)
        return self._alone_s[job.id]

    def _compute_alone_s(self, job: Job) -> float:
        row, per_gpu = self._row[job.id], 1.0 / (self.contention(job) * job.spec.gpus)
        slices = {at: self._total.get(t, 0) * per_gpu for at, t in enumerate(self._types) if accepts(job, t)}
        whole = max(1.0, sum(slices.values()))
        rate = math.fsum(part / whole * float(self._rate_JT[row, at]) for at, part in slices.items())
        served_s = job.served_at(self._view.now)
        done = math.fsum(served_s.get(t, 0.0) * float(self._rate_JT[row, at]) for at, t in enumerate(self._types))
        return (done + float(self._left_J[row])) / rate if rate > 0.0 else math.inf

    def left_s(self, job: Job, gpu_type: str, nodes: int) -> float:
        """What its work left takes on a type, spread over so many nodes; infinite where it cannot run."""
        row, at = self._row[job.id], self._types.index(gpu_type)
        beyond = min(max(0, nodes - fewest_nodes(self._view, gpu_type, job.spec.gpus)), MORE_NODES)
        rate = float(self._rate_JTN[row, at, beyond])
        return float(self._left_J[row]) / rate if rate > 0.0 else math.inf

    def best_s(self, job: Job) -> float:
        """What its work left takes on the fastest type that it accepts and that has enough GPUs on open nodes."""
        fitting = [t for t in self._types if self._total.get(t, 0) >= job.spec.gpus]
        return min((self.left_s(job, t, 1) for t in fitting), default=math.inf)

    def rho(self, job: Job, left_s: float) -> float:
        """If the job runs for so long from now on."""
        alone_s, shared_s = self.alone_s(job), self._view.now - job.submitted_at + left_s
        return shared_s / alone_s if 0.0 < alone_s < math.inf else math.inf if math.isinf(shared_s) else 1.0


def _by_nodes(view: Snapshot, source: RateSource, jobs: Sequence[Job], rate_JT: Floats) -> Floats:
    """Rates by type and nodes. Where nothing says how fast a job is (see `remaining_time`), nodes do not matter."""
    types = view.node_columns.gpu_types
    sizes = sorted({job.spec.gpus for job in jobs})
    configurations = [
        Configuration(t, gpus, min(gpus, fewest_nodes(view, t, gpus) + more))
        for gpus in sizes
        for t in types
        for more in range(MORE_NODES + 1)
    ]
    asked = source.rates(view, jobs, configurations).rate_JC.reshape(len(jobs), len(sizes), len(types), MORE_NODES + 1)
    rate_JTN = asked[np.arange(len(jobs)), np.searchsorted(sizes, [job.spec.gpus for job in jobs])]
    told_JTN = (rate_JTN > 0.0) & (rate_JT > 0.0)[:, :, None]
    told_J11 = told_JTN.max(axis=(1, 2), keepdims=True, initial=False)
    return np.where(told_J11, np.where(told_JTN, rate_JTN, 0.0), rate_JT[:, :, None])
