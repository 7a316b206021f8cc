"""Hierarchical fairness: weighted max-min over entities, and fairness or FIFO among the jobs of each, by water filling.

The throughput of every job rises from 0. An entity's rise is its weight; among its jobs that can still rise it goes
to all by their weights (fairness), or to the first (FIFO). A job stops at its best throughput, or where it is a
bottleneck: it could rise only if another job that is no better off fell. When none can rise, that is the answer. The
unit of a job's rise is the throughput that counts as 1 for max-min fairness: `objectives.fair_need`.

As long as jobs stop at nothing but the most that they can have on the types that are left to them, the way up is known
in closed form. How far all can go along it is found
from above, by Newton's method on prices, as for finish-time fairness: a linear program at a height that does not fit
has prices at which it costs more than there is; go down to the height that these prices allow, and again. The last of
these programs fits, and ends in the middle of its optima: a job has a price exactly if it is stuck. So all stuck jobs
stop at once, with neither an integer program, as in the reference, nor a program for each job. GPU types fill up one
after the other, and programs are few: two or three for each type. The answer is exact but for the tolerances below.

Legend: K classes of jobs, T GPU types, C corners of the way up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.base import Multiple, can_rise, largest_multiple
from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.classes import Classes, classify
from fairlead.policies.gavel.objectives import fair_need, nothing, settled
from fairlead.policies.gavel.problem import Shares, SharingProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: A height that misses feasibility by less than this, as a share of it, fits; and so near to its best a job is there.
NEAR = 1e-10
#: A job that could rise by less than this, as a share of its best, is stuck.
STUCK = 1e-7
#: The same if otherwise none were.
UNSURE = 1e-5
#: What a class that is a bottleneck has at least of the price of all.
PRICED = 1e-7
#: Steps of Newton's method, for one height.
MOST_STEPS = 60


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
    level_K, most_K = np.zeros(len(classes.count_K)), np.ones(len(classes.count_K))
    stuck_K = np.zeros(len(classes.count_K), dtype=bool)
    objective: float | None = None
    while not stuck_K.all():
        level_K, height, priced_K, found = _rise(classes, _Way(classes, entities, level_K, most_K, stuck_K), solver)
        objective = height if objective is None else objective
        before_K, stuck_K = stuck_K, stuck_K | priced_K | (level_K >= most_K * (1.0 - NEAR))
        most_K = np.minimum(most_K, _most(classes, found.face.unused_V))
        if not stuck_K.all():  # those without a price may be stuck as well, such as all that stand behind in a queue
            rises_K = found.above_K > STUCK
            if not found.is_central:
                rises_K = can_rise(classes, level_K * (1.0 - NEAR), ~stuck_K, solver)
            stuck_K = stuck_K | ~rises_K
        if (stuck_K == before_K).all():  # rounding hides the bottleneck: it is what could rise least
            stuck_K = stuck_K | (found.above_K <= max(UNSURE, float(found.above_K[~stuck_K].min())))
    return settled(
        problem, classes, solver, found.value_V, floor_K=level_K, face=found.face, objective=objective or 0.0
    )


def _most(classes: Classes, unused_V: Flags) -> Floats:
    """The throughput that each class has at most, now that some columns are not to be used any more."""
    open_E = ~unused_V[classes.column_E]
    most_K = np.zeros(len(classes.count_K))
    np.maximum.at(most_K, classes.class_E[open_E], (classes.speed_E / classes.share_E)[open_E])
    return most_K


def _rise(classes: Classes, way: _Way, solver: Solver) -> tuple[Floats, float, Flags, Multiple]:
    """As far up the way as all can go together: where that is, how high, the classes whose prices say so, and the
    program of that height."""
    height, priced_K = way.top, np.zeros(len(classes.count_K), dtype=bool)
    for _ in range(MOST_STEPS):
        level_K = way.at(height)
        found = largest_multiple(classes, level_K, solver)
        if found.multiple >= 1.0 - NEAR:
            break
        # At these prices the levels cost 1, and there is `multiple` of it.
        below = way.affordable(found.price_K, found.multiple, height)
        if below >= height * (1.0 - 1e-13):
            break
        height, priced_K = below, found.price_K * level_K > PRICED
    return level_K * min(1.0, found.multiple), height, priced_K, found


class _Way:
    """Where each class would be at each height of the water, if nothing stopped it but the most that it can have."""

    def __init__(
        self, classes: Classes, entities: Sequence[Entity], level_K: Floats, most_K: Floats, stuck_K: Flags
    ) -> None:
        problem = classes.problem
        self._level_K = level_K
        unit_K = fair_need(problem) / problem.weight_J / classes.best_K
        self._parts: list[_Together | _Queue] = []
        for number in np.unique(problem.entity_J[~stuck_K]).tolist():
            rising = np.flatnonzero((problem.entity_J == number) & ~stuck_K)
            part: Callable[..., _Together | _Queue] = _queue if entities[number].fifo else _together
            way_K = np.maximum(most_K - level_K, 1e-12)  # what each has to rise
            self._parts.append(part(classes, rising, level_K, way_K, unit_K, entities[number].weight))
        self._corner_C = np.unique(np.concatenate([np.zeros(1), *(part.corner_C for part in self._parts)]))
        self.top = float(self._corner_C[-1])

    def at(self, height: float) -> Floats:
        level_K = self._level_K.copy()
        for part in self._parts:
            level_K[part.rising] = part.at(height)
        return level_K

    def affordable(self, price_K: Floats, budget: float, height: float) -> float:
        """The greatest height up to this one at which the levels cost no more than the budget."""

        def cost(height: float) -> float:
            return float(price_K @ self.at(height))

        low, high = 0, int(np.searchsorted(self._corner_C, height))
        while high - low > 1:  # between two corners the cost is a straight line
            middle = (low + high) // 2
            low, high = (middle, high) if cost(float(self._corner_C[middle])) <= budget else (low, middle)
        start, end = float(self._corner_C[low]), min(height, float(self._corner_C[high]))
        below, above = cost(start), cost(end)
        if above <= budget:
            return end
        return start + (end - start) * max(0.0, budget - below) / max(above - below, 1e-300)


class _Together(NamedTuple):
    """All rise by their weights; what one no longer takes goes to the entity's other jobs."""

    rising: Ints
    corner_C: Floats
    #: The entity's own level at each corner, where each class ends, and how fast it rises.
    own_C: Floats
    end_K: Floats
    level_K: Floats
    speed_K: Floats

    def at(self, height: float) -> Floats:
        own = float(np.interp(height, self.corner_C, self.own_C))
        return self.level_K + self.speed_K * np.minimum(own, self.end_K)


def _together(
    classes: Classes, rising: Ints, level_K: Floats, way_K: Floats, unit_K: Floats, weight: float
) -> _Together:
    speed = classes.problem.weight_J[rising] * unit_K[rising]
    ends = way_K[rising] / speed  # in units of the entity's own level
    order = np.argsort(ends, kind="stable")
    weights = (classes.count_K * classes.problem.weight_J)[rising][order]
    left = np.cumsum(weights[::-1])[::-1]  # of those that still rise before each end
    corner = np.cumsum(np.diff(ends[order], prepend=0.0) * left) / weight
    zero = np.zeros(1)
    own_C = np.concatenate([zero, ends[order]])
    return _Together(rising, np.concatenate([zero, corner]), own_C, ends, level_K[rising], speed)


class _Queue(NamedTuple):
    """The job that has waited longest rises alone, then the next."""

    rising: Ints
    corner_C: Floats
    begin_K: Floats
    length_K: Floats
    level_K: Floats
    way_K: Floats

    def at(self, height: float) -> Floats:
        return self.level_K + self.way_K * np.clip((height - self.begin_K) / self.length_K, 0.0, 1.0)


def _queue(classes: Classes, rising: Ints, level_K: Floats, way_K: Floats, unit_K: Floats, weight: float) -> _Queue:
    rising = rising[np.argsort(-classes.problem.elapsed_J[rising], kind="stable")]
    length = way_K[rising] / unit_K[rising] * classes.count_K[rising] / weight
    corner_C = np.concatenate([np.zeros(1), np.cumsum(length)])
    return _Queue(rising, corner_C, corner_C[:-1], length, level_K[rising], way_K[rising])
