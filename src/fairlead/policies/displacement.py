"""What it would cost to take GPUs from jobs that a plan gives them: the price of a job that waits, by an objective.

For each GPU type and number of GPUs the cheapest set of jobs to stop or to shrink is found by dynamic programming over
the jobs that have GPUs of that type, ignoring where these are. It is computed when it is first asked for.

Legend: F numbers of GPUs to be freed, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job
from fairlead.policies.allocator import Problem
from fairlead.policies.wait_reason import gpu_type_of, on_open_nodes
from fairlead.policies.weighing import Choices

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Offer:
    """A job of the plan with fewer GPUs than it has there, or none."""

    job: Job
    has: int
    left: int
    #: GPUs that another job could have, and what the objective loses.
    freed: int
    loss: float


@dataclass(frozen=True)
class _Curve:
    """By number of GPUs: the least loss that frees so many. And what was chosen, to tell of which jobs."""

    least_F: Floats
    offers: list[list[Offer]]
    #: For each holder, the offer taken at each number; -1 for none.
    taken: list[Ints]


def cost_of(problem: Problem, j: int, kind: int, gpus: int, *, stays: bool = False, nodes: int = 0) -> float:
    """What a choice costs the job: as it is placed, if that is known, else as it would be placed best."""
    if gpus == 0:
        return float(problem.idle_J[j])
    if stays:
        return float(problem.stay_J[j])
    sizes = problem.sizes_S.tolist()
    if gpus not in sizes:
        return math.inf
    one, many = float(problem.one_JTS[j, kind, sizes.index(gpus)]), float(problem.many_JTS[j, kind, sizes.index(gpus)])
    return min(one, many) if nodes == 0 else one if nodes == 1 else many


class Displacement:
    """The cheapest ways to free GPUs of a plan."""

    def __init__(
        self, view: Snapshot, allocations: Mapping[str, Allocation], options: Choices, problem: Problem
    ) -> None:
        self._view, self._allocations, self._options, self._problem = view, allocations, options, problem
        self._curves: dict[int, _Curve] = {}

    def most(self, kind: int) -> int:
        """GPUs of a type that could be freed at all."""
        return sum(max(offer.freed for offer in offers) for offers in self._curve(kind).offers)

    def stuck(self, kind: int) -> list[Job]:
        """Jobs of the plan on a type that can neither be stopped nor shrunk."""
        movable = {offers[0].job.id for offers in self._curve(kind).offers}
        return [job for job in self._on(kind) if job.id not in movable]

    def cheapest(self, kind: int, gpus: int) -> tuple[float, list[Offer]]:
        """The least loss that frees so many GPUs, and how; infinite if nothing does."""
        curve = self._curve(kind)
        if gpus >= len(curve.least_F) or not math.isfinite(curve.least_F[gpus]):
            return math.inf, []
        chosen, left = [], gpus
        for offers, taken_F in zip(reversed(curve.offers), reversed(curve.taken), strict=True):
            if (index := int(taken_F[left])) >= 0:
                chosen.append(offers[index])
                left = max(0, left - offers[index].freed)
        return float(curve.least_F[gpus]), chosen[::-1]

    def _on(self, kind: int) -> list[Job]:
        name = self._options.gpu_types[kind]
        return [
            job
            for job in self._options.jobs
            if (has := self._allocations.get(job.id)) is not None and gpu_type_of(self._view, has) == name
        ]

    def _curve(self, kind: int) -> _Curve:
        if kind not in self._curves:
            capacity = int(self._problem.capacity[kind])
            least_F = np.full(capacity + 1, np.inf)
            least_F[0] = 0.0
            place = {job.id: j for j, job in enumerate(self._options.jobs)}
            every, taken = [], []
            for job in self._on(kind):
                if offers := self._offers(job, place[job.id], kind):
                    least_F, taken_F = _with(least_F, offers)
                    every.append(offers)
                    taken.append(taken_F)
            self._curves[kind] = _Curve(least_F, every, taken)
        return self._curves[kind]

    def _offers(self, job: Job, j: int, kind: int) -> list[Offer]:
        """All it could be left with."""
        allocation = self._allocations[job.id]
        has, usable, problem = allocation.total, on_open_nodes(self._view, allocation), self._problem
        stays = allocation == job.allocation
        now = cost_of(problem, j, kind, has, stays=stays, nodes=len(allocation.shares))
        offers = []
        for left in (0, *(size for size in problem.sizes_S.tolist() if 0 < size < has)):
            loss, freed = cost_of(problem, j, kind, left) - now, min(usable, has - left)
            if freed > 0 and math.isfinite(loss):
                offers.append(Offer(job, has, left, freed, loss))
        return offers


def _with(least_F: Floats, offers: list[Offer]) -> tuple[Floats, Ints]:
    """The least loss once one more job may be taken from, and which of its offers is taken."""
    best_F, taken_F = least_F.copy(), np.full(len(least_F), -1, dtype=np.int64)
    for index, offer in enumerate(offers):
        before_F = np.full(len(least_F), least_F[0])
        before_F[offer.freed :] = least_F[: len(least_F) - offer.freed]
        better_F = before_F + offer.loss < best_F
        better_F[0] = False  # nothing has to be freed
        best_F[better_F] = before_F[better_F] + offer.loss
        taken_F[better_F] = index
    return best_F, taken_F
