"""Every choice of every job as goodput, in the arrays that the allocator's problems are made of.

Legend: J jobs in order of arrival, T GPU types, S sizes (0 GPUs first), N nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job
from fairlead.policies.allocator import Problem
from fairlead.policies.appraising import Appraisal, Appraiser
from fairlead.policies.gaps import Where

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Up to so many GPUs every number is a size; beyond, whole nodes.
EVERY_SIZE = 64


@dataclass(frozen=True)
class Choices:
    """Goodput of each job with so many GPUs of a type, on one node and on several; 0 where it may not have them."""

    jobs: Sequence[Job]
    gpu_types: Sequence[str]
    sizes_S: Ints
    one_JTS: Floats
    many_JTS: Floats
    #: Goodput of what each job holds now; 0 where it holds nothing.
    now_J: Floats
    held: Sequence[Where]
    gpus_N: Ints
    type_N: Ints
    #: By job and type.
    appraisals: Sequence[Mapping[str, Appraisal]]

    @property
    def gpus(self) -> int:
        """GPUs that may be given out."""
        return int(self.gpus_N.sum())

    def problem(
        self, cost: Callable[[Floats], Floats], *, moved: Callable[[Floats], Floats], idle_J: Floats
    ) -> Problem:
        """What every choice costs: `cost` of its goodput [J, ...], or of what `moved` leaves of it for a change."""
        one_JTS, many_JTS = (
            np.where(goodput_JTS > 0.0, cost(moved(goodput_JTS)), np.inf)
            for goodput_JTS in (self.one_JTS, self.many_JTS)
        )
        stay_J = np.where(self.now_J > 0.0, cost(self.now_J[:, None, None])[:, 0, 0], np.inf)
        bound_J = np.array([bool(job.allocation) and not job.spec.preemptible for job in self.jobs])
        if bound_J.any():
            one_JTS[bound_J] = many_JTS[bound_J] = np.inf
            stay_J = np.where(bound_J & ~np.isfinite(stay_J), idle_J, stay_J)  # it is there, but gets nowhere
            idle_J = np.where(bound_J, np.inf, idle_J)
        return Problem(self.sizes_S, one_JTS, many_JTS, idle_J, stay_J, self.held, self.gpus_N, self.type_N)


def fewest(job: Job) -> int:
    """GPUs that a job may begin on. What must not be preempted keeps them for good, so it gets what it asked for."""
    return job.spec.least if job.spec.preemptible else job.spec.gpus


def choices(view: Snapshot, appraiser: Appraiser, *, reach: int, lore: bool) -> Choices:
    """The live jobs and all they could have. `reach` is how many GPUs the curves must cover in any case."""
    jobs = list(view.jobs.values())
    nodes = view.node_columns
    gpus_N = np.array([view.nodes[node].gpus for node in nodes.ids], dtype=np.int64) * nodes.open_N
    appraised = {
        gpu_type: appraiser.appraise(view, jobs, gpu_type, reach=reach, lore=lore) for gpu_type in nodes.gpu_types
    }
    appraisals = [{gpu_type: appraised[gpu_type][j] for gpu_type in nodes.gpu_types} for j in range(len(jobs))]
    most = max((appraisal.most for by_type in appraisals for appraisal in by_type.values()), default=1)
    asked = {gpus for job in jobs for gpus in (job.spec.least, job.spec.gpus, job.spec.most)}
    sizes_S = _sizes(min(most, int(gpus_N.sum())), gpus_N, asked)
    shape = len(jobs), len(nodes.gpu_types), len(sizes_S)
    one_JTS, many_JTS, now_J = np.zeros(shape), np.zeros(shape), np.zeros(len(jobs))
    largest_T = [int(gpus_N[nodes.type_N == kind].max(initial=0)) for kind in range(shape[1])]
    row = {node: place for place, node in enumerate(nodes.ids)}
    held: list[Where] = []
    for j, job in enumerate(jobs):
        for kind, gpu_type in enumerate(nodes.gpu_types):
            if not job.spec.gpu_types or gpu_type in job.spec.gpu_types:
                appraisal = appraisals[j][gpu_type]
                least = fewest(job)
                allowed = sizes_S[(sizes_S >= least) & (sizes_S <= appraisal.most)]
                start = int(np.searchsorted(sizes_S, least))
                one_K, many_K = appraisal.curve.one_K[allowed], appraisal.curve.many_K[allowed]
                one_JTS[j, kind, start : start + len(allowed)] = np.where(allowed <= largest_T[kind], one_K, 0.0)
                many_JTS[j, kind, start : start + len(allowed)] = many_K
        held.append({row[node]: mask.bit_count() for node, mask in job.allocation.masks})
        if job.allocation:
            gpu_type = view.nodes[job.allocation.nodes[0]].gpu_type
            now_J[j] = appraisals[j][gpu_type].goodput(len(job.allocation.shares), job.allocation.total)
    return Choices(jobs, nodes.gpu_types, sizes_S, one_JTS, many_JTS, now_J, held, gpus_N, nodes.type_N, appraisals)


def _sizes(most: int, gpus_N: Ints, asked: set[int]) -> Ints:
    """Every number up to EVERY_SIZE, then whole nodes in steps that grow by an eighth; and what somebody asks for."""
    sizes = list(range(min(most, EVERY_SIZE) + 1))
    node = max(1, int(gpus_N.max(initial=1)))
    while (following := max(sizes[-1] + node, sizes[-1] * 9 // 8 // node * node)) <= most:
        sizes.append(following)
    return np.array(sorted({*sizes, *(gpus for gpus in asked if gpus <= most)}), dtype=np.int64)
