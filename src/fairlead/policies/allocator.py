"""How many GPUs, of which type and where, for every job at once: the optimiser of all policies that choose sizes.

A policy says what each choice would cost each job; the sum of these costs is minimised. Whatever is a sum over jobs
fits: a power mean of speed-ups with any exponent, weights, restart factors, smallest and largest sizes, jobs that must
stay. `costs_of` makes costs of utilities.

    1. stay     Is what everybody holds now already the optimum? Then nothing moves, and this took microseconds.
    2. size     Ignoring where GPUs are, the best size and type for each job. One GPU type and moderate numbers:
                exactly, by dynamic programming. Otherwise by prices, one per GPU type, and a greedy finish; if that
                may be too far from the optimum and there are few choices, as an integer programme.
    3. place    `arranging.arrange` puts the sizes on nodes, and changes them where they do not fit.
    4. steady   With several GPU types, `exchange.steadied` takes back the moves that gain nothing.

Step 2 also yields a lower bound: nothing can cost less, wherever it is placed. The answer carries it, so its distance
from the optimum is known at every decision. There is no randomness.

Legend: J jobs, T GPU types, S sizes (0 GPUs first), N nodes, C GPUs of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.arranging import STAY, Pool, arrange
from fairlead.policies.exchange import steadied
from fairlead.policies.gaps import Where
from fairlead.policies.programme import programmed
from fairlead.policies.sizing import Costs, Sizing, cost_of, exact, priced, stays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Work (J x C x S) up to which sizes are found exactly: some tens of milliseconds.
EXACT_WORK = 10_000_000

#: Where sizes are not found exactly, and nobody waits, everybody stays if that wastes no more than this of the costs.
TOLERANCE = 5e-3

#: Up to so many choices of all jobs an integer programme may be solved, and nodes of its search: tens of milliseconds.
PROGRAMME_CHOICES, PROGRAMME_NODES = 2_000, 20

#: Added to speed-ups, so that a job with nothing has a finite cost (Pollux's simulator).
EPSILON = 1e-3


@dataclass(frozen=True)
class Problem:
    """What every choice would cost every job. Infinite where a job may not choose it."""

    #: GPU counts in ascending order; the first is 0.
    sizes_S: Ints
    #: Cost of so many GPUs of a type on one node, and on several, if that is not exactly what the job holds now.
    one_JTS: Floats
    many_JTS: Floats
    #: Cost of no GPUs at all, and of exactly what it holds now (infinite for a job that holds nothing).
    idle_J: Floats
    stay_J: Floats
    #: GPUs each job holds, by node; nodes where nothing may be placed included.
    held: Sequence[Where]
    #: GPUs of each node that may be given out (0 where nothing new may be placed), and its type.
    gpus_N: Ints
    type_N: Ints
    #: At most one job that spans several nodes on any node: they would slow each other down.
    exclusive: bool = True
    #: The most nodes a job may span.
    most_nodes: int = 1 << 30
    #: Costs of which a small share may be wasted; None for all of them. Prices that only enforce a rule are none such.
    scale: float | None = None

    @property
    def capacity(self) -> Ints:
        """GPUs of each type."""
        return np.bincount(self.type_N, weights=self.gpus_N, minlength=self.one_JTS.shape[1]).astype(np.int64)


@dataclass(frozen=True)
class Answer:
    """Who gets how many GPUs on which nodes."""

    #: By job: GPUs by node; empty for nothing.
    where: Sequence[Where]
    #: What it costs, and what nothing can cost less than.
    cost: float
    bound: float
    #: What one more GPU of each type would be worth; NaN where the search needed no prices.
    price_T: Floats = field(default_factory=lambda: np.zeros(0))


def costs_of(utility: Floats, *, p: float, weight: Floats | float = 1.0) -> Floats:
    """Costs whose least sum is the greatest power mean of the utilities; p = 0 is the geometric mean."""
    x = utility + EPSILON
    if p == 0.0:
        return np.asarray(-weight * np.log(x))
    return np.asarray(-np.sign(p) * weight * x**p)


def mean_of(cost: float, *, p: float, weight: float) -> float:
    """The power mean of the utilities, from the sum of costs and the sum of weights."""
    if p == 0.0:
        return float(np.exp(-cost / weight))
    return float((-np.sign(p) * cost / weight) ** (1.0 / p))


def allocate(problem: Problem) -> Answer:
    """The cheapest allocation found, and a bound."""
    if not len(problem.idle_J):
        return Answer((), 0.0, 0.0)
    costs = sizing_costs(problem)
    sizing = stays(costs) or (exact(costs) if costs.work <= EXACT_WORK else _of_any_type(costs))
    unchanged = [held if np.isfinite(stay) else {} for held, stay in zip(problem.held, problem.stay_J, strict=True)]
    cost_unchanged = float(np.where(np.isfinite(problem.stay_J), problem.stay_J, problem.idle_J).sum())
    if (sizing.size_J == np.where(np.isfinite(problem.stay_J), STAY, 0)).all():
        return Answer(unchanged, cost_unchanged, sizing.bound, sizing.price_T)
    where, cost = place(problem, sizing, costs.stay_type_J)
    if cost_unchanged <= cost:  # whatever was not found, everybody can stay
        where, cost = unchanged, cost_unchanged
    return Answer(where, cost, sizing.bound, sizing.price_T)


def _of_any_type(costs: Costs) -> Sizing:
    """By prices. Where they may waste much, and few choices are to be made, the integer programme's if it is better."""
    found = priced(costs, tolerance=TOLERANCE)
    cost, choices = cost_of(costs, found), np.count_nonzero(np.isfinite(costs.cost_JTS))
    if cost - found.bound <= TOLERANCE * costs.share_of(found.bound) or choices > PROGRAMME_CHOICES:
        return found
    better = programmed(costs, most_nodes=PROGRAMME_NODES)
    if better is None or cost_of(costs, better) >= cost:
        return found
    return Sizing(better.type_J, better.size_J, max(better.bound, found.bound), found.price_T)


def sizing_costs(problem: Problem) -> Costs:
    """Each choice at its best placement."""
    kinds, gpus = problem.type_N.tolist(), problem.gpus_N.tolist()
    stay_type_J = np.zeros(len(problem.held), dtype=np.int64)
    stay_gpus_J = np.zeros(len(problem.held), dtype=np.int64)
    for job, nodes in enumerate(problem.held):
        for node, count in nodes.items():
            stay_type_J[job] = kinds[node]
            stay_gpus_J[job] += count if gpus[node] else 0
    return Costs(
        problem.sizes_S,
        np.minimum(problem.one_JTS, problem.many_JTS),
        problem.idle_J,
        problem.stay_J,
        stay_type_J,
        stay_gpus_J,
        problem.capacity,
        problem.scale,
    )


def place(problem: Problem, sizing: Sizing, stay_type_J: Ints) -> tuple[list[Where], float]:
    """Arrange one GPU type after the other; whoever is left with nothing tries the next type too."""
    where: list[Where] = [{} for _ in problem.held]
    paid_J: list[float] = problem.idle_J.tolist()
    waiting = sizing.size_J == 0
    sizes = problem.sizes_S.tolist()
    for kind in range(problem.one_JTS.shape[1]):
        members = np.flatnonzero(((sizing.type_J == kind) & (sizing.size_J != 0)) | waiting)
        if not len(members):
            continue
        pool = Pool(
            sizes=sizes,
            one_JS=problem.one_JTS[members, kind],
            many_JS=problem.many_JTS[members, kind],
            idle_J=problem.idle_J[members],
            stay_J=np.where(stay_type_J[members] == kind, problem.stay_J[members], np.inf),
            held=[problem.held[job] for job in members.tolist()],
            wanted_J=np.where(waiting[members], 0, sizing.size_J[members]),
            gpus=np.where(problem.type_N == kind, problem.gpus_N, 0).tolist(),
            exclusive=problem.exclusive,
            most_nodes=problem.most_nodes,
            scale=problem.scale,
        )
        for job, nodes, paid in zip(members.tolist(), *arrange(pool), strict=True):
            where[job], paid_J[job] = nodes, paid
            waiting[job] = not nodes
    if problem.one_JTS.shape[1] > 1:  # of one type sizes are exact, and arranging keeps jobs in place
        where, paid_J = steadied(problem, where, paid_J)
    return where, math.fsum(paid_J)
