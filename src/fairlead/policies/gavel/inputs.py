"""Gavel's problem as a snapshot and a source of rates give it.

Legend: J jobs that the problem is about, T GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job
from fairlead.policies.gavel.problem import SharingProblem
from fairlead.policies.rates import Configuration, RateSource
from fairlead.policies.rounds import Owed
from fairlead.policies.wait_reason import accepts, gpu_type_of, is_bound, on_open_nodes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Inputs:
    """The problem, whose rows are `jobs` and whose columns are `gpu_types`, and jobs that are no part of it."""

    problem: SharingProblem
    jobs: tuple[Job, ...]
    gpu_types: tuple[str, ...]
    #: Jobs that may not be preempted and hold GPUs: they are owed all the time where they are.
    bound: Mapping[str, str]
    #: Samples of a step of each job, so that rate / batch is steps per second.
    batch_J: Floats
    #: Whether the work left is more than a guess.
    known_J: NDArray[np.bool_]
    #: Names of the entities, in the order of their numbers in the problem.
    entities: tuple[str, ...]

    def owed(self, alone_JT: Floats, pairs: Mapping[tuple[int, int], Floats]) -> Owed:
        """Shares by group of jobs and GPU type; 0 where a job can run and is owed nothing."""
        found: dict[tuple[tuple[str, ...], str], float] = {((job,), kind): 1.0 for job, kind in self.bound.items()}
        for row, kind in np.argwhere(self.problem.usable).tolist():
            found[(self.jobs[row].id,), self.gpu_types[kind]] = float(alone_JT[row, kind])
        for (one, other), share_T in pairs.items():
            group = tuple(sorted((self.jobs[one].id, self.jobs[other].id)))
            for kind in np.flatnonzero(share_T > 0.0).tolist():
                found[group, self.gpu_types[kind]] = float(share_T[kind])
        return found


def read_inputs(
    view: Snapshot,
    source: RateSource,
    *,
    pairs: bool,
    entity_of: Callable[[Job], str],
    least_left_s: float,
) -> Inputs:
    """Rates, work left and so on of all jobs that compete. One that tells nothing has `least_left_s` left at least."""
    fixed = {job.id: gpu_type_of(view, job.allocation) for job in view.jobs.values() if is_bound(job)}
    jobs = tuple(job for job in view.jobs.values() if job.id not in fixed)
    gpu_types = tuple(name for name in view.node_columns.gpu_types)
    capacity_T, price_T, largest_T = _offers(view, gpu_types)
    for job_id, gpu_type in fixed.items():
        if gpu_type in gpu_types:
            capacity_T[gpu_types.index(gpu_type)] -= on_open_nodes(view, view.jobs[job_id].allocation)
    capacity_T = np.maximum(capacity_T, 0)
    gpus_J = np.array([job.spec.gpus for job in jobs], dtype=np.int64)
    rate_JT, left_J, batch_J, known_J = _rates(view, source, jobs, gpu_types, largest_T)
    best_J = rate_JT.max(axis=1, initial=0.0)
    # Of a job that says nothing, as much is left as it has run already.
    ran_s_J = np.array([max(job.run_at(view.now), least_left_s) for job in jobs])
    left_J = np.where(known_J, left_J, ran_s_J * np.where(best_J > 0.0, best_J, 1.0))
    entities = tuple(sorted({entity_of(job) for job in jobs}))
    types = {name: kind for kind, name in enumerate(gpu_types)}
    kind_J, factors = packing_factors(view, source, jobs, gpu_types) if pairs else (np.zeros(len(jobs), int), {})
    problem = SharingProblem(
        rate_JT=rate_JT,
        gpus_J=gpus_J,
        capacity_T=capacity_T,
        weight_J=np.array([job.spec.weight for job in jobs]),
        left_J=left_J,
        elapsed_J=np.array([max(0.0, view.now - job.submitted_at) for job in jobs]),
        deadline_J=np.array([math.inf if job.spec.deadline is None else job.spec.deadline - view.now for job in jobs]),
        entity_J=np.array([entities.index(entity_of(job)) for job in jobs], dtype=np.int64),
        price_T=price_T,
        held_J=np.array(
            [types.get(gpu_type_of(view, job.allocation), -1) if job.allocation else -1 for job in jobs], dtype=np.int64
        ),
        kind_J=kind_J,
        pairs=factors,
    )
    return Inputs(problem, jobs, gpu_types, {j: t for j, t in fixed.items() if t}, batch_J, known_J, entities)


def _offers(view: Snapshot, gpu_types: Sequence[str]) -> tuple[Ints, Floats, Ints]:
    """GPUs that may be given out, their mean price per hour, and those of the largest node, by type."""
    capacity_T, price_T = np.zeros(len(gpu_types), dtype=np.int64), np.zeros(len(gpu_types))
    largest_T = np.ones(len(gpu_types), dtype=np.int64)
    number = {name: kind for kind, name in enumerate(gpu_types)}
    for node in view.nodes.values():
        if node.usable:
            kind = number[node.gpu_type]
            capacity_T[kind] += node.usable
            price_T[kind] += node.usable * node.price_per_hour
            largest_T[kind] = max(largest_T[kind], node.usable)
    return capacity_T, price_T / np.maximum(capacity_T, 1), largest_T


def _rates(
    view: Snapshot, source: RateSource, jobs: Sequence[Job], gpu_types: Sequence[str], largest_T: Ints
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Of each job on as few nodes of each type as possible; work left, and the samples of a step."""
    rate_JT, left_J = np.zeros((len(jobs), len(gpu_types))), np.zeros(len(jobs))
    batch_J = np.ones(len(jobs))
    sizes: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        sizes.setdefault(job.spec.gpus, []).append(row)
    for gpus, rows in sizes.items():
        places = [_place(name, gpus, int(largest)) for name, largest in zip(gpu_types, largest_T, strict=True)]
        found = source.rates(view, [jobs[row] for row in rows], places)
        rate_JT[rows], left_J[rows], batch_J[rows] = found.rate_JC, found.left_J, found.batch_J
    for row, job in enumerate(jobs):
        if job.spec.gpu_types:
            rate_JT[row, [kind for kind, name in enumerate(gpu_types) if not accepts(job, name)]] = 0.0
    known_J = np.isfinite(left_J)
    return np.where(np.isfinite(rate_JT), rate_JT, 0.0), np.where(known_J, left_J, 0.0), batch_J, known_J


def _place(gpu_type: str, gpus: int, largest: int) -> Configuration:
    """On as few nodes as possible."""
    return Configuration(gpu_type, gpus, -(-gpus // max(1, largest)))


def packing_factors(
    view: Snapshot, source: RateSource, jobs: Sequence[Job], gpu_types: Sequence[str]
) -> tuple[Ints, dict[tuple[int, int, int], Floats]]:
    """What each job trains, as a number, and what two of equal size have of their rates beside each other.

    The factors are by (smaller number, larger number, GPUs of each): a row for each GPU type, a column for each job.
    """
    _, _, largest_T = _offers(view, gpu_types)
    names = [source.partner(view, job) for job in jobs]
    number = {name: at for at, name in enumerate(sorted(set(names)))}
    first: dict[int, dict[str, Job]] = {}  # of each size and name, a job to ask about
    for job, name in zip(jobs, names, strict=True):
        first.setdefault(job.spec.gpus, {}).setdefault(name, job)
    factors: dict[tuple[int, int, int], Floats] = {}
    for gpus, by_name in first.items():
        present = sorted(by_name)
        alone = [_place(kind, gpus, int(most)) for kind, most in zip(gpu_types, largest_T, strict=True)]
        beside = [replace(each, partners=(name,)) for name in present for each in alone]
        asked = [by_name[name] for name in present]
        rate_NC = source.rates(view, asked, [*alone, *beside]).rate_JC
        alone_NT = rate_NC[:, : len(alone)]
        beside_NNT = rate_NC[:, len(alone) :].reshape(len(present), len(present), len(alone))
        with np.errstate(divide="ignore", invalid="ignore"):
            factor_NNT = np.where(alone_NT[:, None, :] > 0.0, beside_NNT / alone_NT[:, None, :], 0.0)
        factor_NNT = np.clip(np.nan_to_num(factor_NNT), 0.0, 1.0)
        for one, one_name in enumerate(present):
            for other in range(one, len(present)):
                key = number[one_name], number[present[other]], gpus
                factors[key] = np.stack([factor_NNT[one, other], factor_NNT[other, one]], axis=1)
    return np.array([number[name] for name in names], dtype=np.int64), factors
