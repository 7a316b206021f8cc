"""Hierarchical fairness: weighted max-min over entities, and fairness or FIFO among the jobs of each, by water filling.

The throughput of every job rises from 0. An entity's rise is its weight; among its jobs that can still rise it goes
to all by their weights (fairness), or to the first (FIFO). A job stops at its best throughput, or where it is a
bottleneck: it could rise only if another job that is no better off fell. When none can rise, that is the answer. The
unit of a job's rise is the throughput that counts as 1 for max-min fairness: `objectives.fair_need`.

The reference looks for bottlenecks with an integer program after each linear one. They can be read from the prices of
the linear program: a job whose need has a price above 0 is a bottleneck in every optimum, and there is always one;
one more linear program tells which others cannot rise either. Nor is there a program for every job that reaches its
best: as long as only that happens, the way up is known in closed form, and how far it can be gone is a binary search
over its corners. So programs are few: about (GPU types) x log2(jobs).

Legend: K classes of jobs, T GPU types, C corners of the way up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.base import can_rise, largest_multiple
from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.classes import Classes, classify
from fairlead.policies.gavel.objectives import fair_need, nothing, settled
from fairlead.policies.gavel.problem import Shares, SharingProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: A target that misses feasibility by less than this, as a share of it, is met; and so near to its best a job is there.
NEAR = 1e-8
#: A price below this, as a share of the largest, is none.
PRICED = 1e-7


@dataclass(frozen=True)
class Entity:
    """A user, team or queue: its weight, and whether its jobs are served in order of arrival or all at once."""

    weight: float = 1.0
    fifo: bool = False


def hierarchical(problem: SharingProblem, solver: Solver, entities: Sequence[Entity]) -> Shares:
    """Shares by water filling over the entities to which jobs count (`SharingProblem.entity_J`)."""
    fifo_J = np.array([entities[entity].fifo for entity in problem.entity_J.tolist()], dtype=bool)
    told_apart = replace(problem, elapsed_J=np.where(fifo_J, problem.elapsed_J, 0.0))  # by arrival, only in a queue
    classes = classify(told_apart, "weight_J", "entity_J", "elapsed_J")
    if not len(classes.count_K):
        return nothing(problem)
    level_K = np.zeros(len(classes.count_K))
    stuck_K = np.zeros(len(classes.count_K), dtype=bool)
    objective = 0.0
    first = True
    while not stuck_K.all():
        way = _Way(classes, entities, level_K, stuck_K)
        level_K, risen, bottleneck_K = _rise(classes, way, solver)
        if first:
            objective, first = risen, False
        stuck_K = stuck_K | bottleneck_K | (level_K >= 1.0 - NEAR)
        if not stuck_K.all():  # others may be stuck as well, such as all that stand behind in a queue
            stuck_K = stuck_K | ~can_rise(classes, level_K * (1.0 - NEAR), ~stuck_K, solver)
    return settled(problem, classes, solver, None, floor_K=level_K * (1.0 - NEAR), objective=objective)


def _rise(classes: Classes, way: _Way, solver: Solver) -> tuple[Floats, float, Flags]:
    """As far up the way as all can go together: where that is, how long it took, and which classes are stuck."""

    def fits(corner: int) -> bool:
        return largest_multiple(classes, way.at(way.corner_C[corner]), solver).multiple >= 1.0 - NEAR

    last = len(way.corner_C) - 1
    if fits(last):
        return way.at(way.corner_C[last]), float(way.corner_C[last]), np.ones(len(classes.count_K), dtype=bool)
    low, high = 0, last  # corner 0 is where we are
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    start, end = float(way.corner_C[low]), float(way.corner_C[high])
    floor_K = way.at(start)
    slope_K = (way.at(end) - floor_K) / (end - start)
    slope_K = np.where(slope_K > 1e-15 * slope_K.max(), slope_K, 0.0)
    found = largest_multiple(classes, slope_K, solver, floor_K=floor_K * (1.0 - NEAR))
    risen = min(max(found.multiple, 0.0), end - start)
    price_K = np.where(slope_K > 0.0, found.price_K * slope_K, 0.0)
    return floor_K + risen * slope_K, start + risen, price_K > PRICED * price_K.max(initial=0.0)


class _Way:
    """Where each class would be after so much rise of the water, if nothing stopped it but its best throughput."""

    def __init__(self, classes: Classes, entities: Sequence[Entity], level_K: Floats, stuck_K: Flags) -> None:
        problem = classes.problem
        self._level_K = level_K
        self._parts = []
        corners = [np.zeros(1)]
        unit_K = fair_need(problem) / problem.weight_J / classes.best_K
        for number in np.unique(problem.entity_J[~stuck_K]).tolist():
            rising = np.flatnonzero((problem.entity_J == number) & ~stuck_K)
            entity = entities[number]
            part = _queue if entity.fifo else _together
            order, at_C, level_C = part(classes, rising, level_K, unit_K, entity.weight)
            self._parts.append((order, at_C, level_C))
            corners.append(at_C.ravel())
        self.corner_C = np.unique(np.concatenate(corners))

    def at(self, rise: float) -> Floats:
        level_K = self._level_K.copy()
        for rising, at_C, level_C in self._parts:
            for position, k in enumerate(rising.tolist()):
                level_K[k] = np.interp(rise, at_C[position], level_C[position])
        return level_K


def _together(
    classes: Classes, rising: Ints, level_K: Floats, unit_K: Floats, weight: float
) -> tuple[Ints, Floats, Floats]:
    """All rise by their weights; what one no longer takes goes to the others of the entity."""
    speed = classes.problem.weight_J[rising] * unit_K[rising]
    ends = (1.0 - level_K[rising]) / speed  # in units of the entity's own level
    order = np.argsort(ends, kind="stable")
    rising, speed, ends = rising[order], speed[order], ends[order]
    weights = (classes.count_K * classes.problem.weight_J)[rising]
    left = np.cumsum(weights[::-1])[::-1]  # of those that still rise before each end
    at = np.cumsum(np.diff(ends, prepend=0.0) * left) / weight
    at_C = np.concatenate([[0.0], at])
    own_C = np.concatenate([[0.0], ends])
    level_C = level_K[rising][:, None] + speed[:, None] * np.minimum(own_C[None, :], ends[:, None])
    return rising, np.tile(at_C, (len(rising), 1)), level_C


def _queue(
    classes: Classes, rising: Ints, level_K: Floats, unit_K: Floats, weight: float
) -> tuple[Ints, Floats, Floats]:
    """The job that has waited longest rises alone, then the next."""
    rising = rising[np.argsort(-classes.problem.elapsed_J[rising], kind="stable")]
    length = (1.0 - level_K[rising]) / unit_K[rising] * classes.count_K[rising] / weight
    end = np.cumsum(length)
    at_C = np.stack([end - length, end], axis=1)
    level_C = np.stack([level_K[rising], np.ones(len(rising))], axis=1)
    return rising, at_C, level_C
