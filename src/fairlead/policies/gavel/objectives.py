"""Gavel's policies (Narayanan et al., OSDI '20) as small programs over one base of constraints.

With throughput_j(x) as in `problem`, w weights, s GPUs, n samples left, t seconds since arrival:

    max-min               max min_j  s_j throughput_j(x) / (w_j proportional_j)             LAS, with weights
    makespan              min T  such that throughput_j(x) >= n_j / T                       one program in 1 / T
    finish-time-fairness  min max_j rho_j,  rho_j = (t_j + n_j / throughput_j(x)) / (isolated_s_j + n_j / isolated_j)
    max-sum-throughput    max sum_j throughput_j(x)
    cost                  max sum_jt rate_jt x_jt / price_t
    cost-slo              the same, such that throughput_j(x) >= n_j / (deadline_j - now)
    nash                  max sum_j w_j ln (throughput_j(x) / proportional_j)

proportional_j is the mean rate over all GPUs; isolated_j the throughput with 1 / J of the GPUs of each type.
`hierarchy` and `queue_order` have the other three: hierarchical, fifo and sjf.

Finish-time fairness is no bisection. A job needs N_j(rho) = n_j / (rho D_j - t_j), and whether all needs fit is decided
by finitely many prices p (the vertices of the dual): sum_j p_j N_j(rho) <= worth of all GPUs at them. So Newton's
method on prices climbs to the optimum: solve for the prices at a rho too small, move to the rho at which these prices
just allow it, and again. It takes 1 to 8 programs, and ends at the optimum and not near it.

Legend: J jobs, K classes, T GPU types, V columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.base import (
    largest_multiple,
    largest_sum,
    largest_welfare,
    settle,
    tidy,
)
from fairlead.policies.gavel.class_program import Face, Solver
from fairlead.policies.gavel.classes import Classes, classify, unfold
from fairlead.policies.gavel.problem import Concession, Shares, SharingProblem, throughput
from fairlead.policies.linear_program import NoSolution, Trouble

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Steps of Newton's method for finish-time fairness, and how near its multiple must come to 1.
MOST_STEPS = 60
NEAR = 1e-9


def proportional(problem: SharingProblem) -> Floats:
    """Throughput of each job with all GPUs by turns: the mean of its rates over all GPUs."""
    if len(problem.mean_rate_J):
        return problem.mean_rate_J
    return np.asarray(problem.rate_JT @ (problem.capacity_T / max(1, int(problem.capacity_T.sum()))))


def isolated(problem: SharingProblem, jobs: int) -> Floats:
    """Throughput of each job with 1 / `jobs` of the GPUs of each type to itself."""
    if len(problem.isolated_rate_J):
        return problem.isolated_rate_J
    return np.asarray((problem.rate_JT * _isolated_shares(problem, jobs)).sum(axis=1))


def _isolated_shares(problem: SharingProblem, jobs: int) -> Floats:
    share_JT = problem.usable * problem.capacity_T / max(1, jobs) / problem.gpus_J[:, None]
    return np.asarray(share_JT / np.maximum(1.0, share_JT.sum(axis=1, keepdims=True)))


def equal_parts(problem: SharingProblem) -> Shares:
    """What every job has of each GPU type if the cluster is divided equally: an answer that needs no program."""
    alone_JT = _isolated_shares(problem, len(problem.gpus_J))
    return Shares(alone_JT, {}, float("nan"), float("nan"), (Concession.ISOLATED,))


# -- what is needed in proportion --------------------------------------------------------------------------------------


def max_min(problem: SharingProblem, solver: Solver) -> Shares:
    """LAS: the job that has least, by its weight and its GPUs, has as much as possible.

    Only how much faster one type is than another counts: jobs for which that is the same are alike, however fast each
    is. To a policy that takes all types for equal, all jobs of one size are.
    """
    best_J = np.where(problem.best > 0.0, problem.best, 1.0)
    relative = replace(
        problem,
        rate_JT=problem.rate_JT / best_J[:, None],
        mean_rate_J=problem.mean_rate_J / best_J if len(problem.mean_rate_J) else problem.mean_rate_J,
    )
    classes = classify(relative, "weight_J")
    if not len(classes.count_K):
        return nothing(problem)
    need_K = fair_need(classes.problem) / classes.best_K
    shares = _in_proportion(relative, classes, need_K, solver, lambda multiple: multiple)
    return replace(shares, price_J=shares.price_J / best_J) if len(shares.price_J) else shares


def fair_need(problem: SharingProblem) -> Floats:
    """The throughput that counts as 1 for max-min fairness. A job of s GPUs is due 1 / s of the time."""
    return np.asarray(problem.weight_J * proportional(problem) / problem.gpus_J)


def makespan(problem: SharingProblem, solver: Solver) -> Shares:
    """All jobs that are there end as early as possible: shares in which all can end at once."""
    classes = classify(problem, "left_J")
    need_K = classes.problem.left_J / classes.best_K if len(classes.count_K) else np.zeros(0)
    if not (need_K > 0.0).any():
        return nothing(problem)
    return _in_proportion(problem, classes, need_K, solver, lambda multiple: 1.0 / multiple)


def finish_time_fairness(problem: SharingProblem, solver: Solver) -> Shares:
    """The largest rho, of finish time over that in isolation, is as small as possible."""
    classes = classify(problem, "left_J", "elapsed_J", "isolated_s_J")
    if not (classes.problem.left_J > 0.0).any():
        return nothing(problem)
    targets = _FinishTimes(classes.problem, len(problem.gpus_J))
    rho = targets.least
    for _ in range(MOST_STEPS):
        found = largest_multiple(classes, targets.need(rho), solver)
        if found.multiple >= 1.0 - NEAR:
            break
        above = targets.affordable(found.price_K, found.multiple, rho)  # what there is, at these prices
        if above <= rho * (1.0 + 1e-13):
            break
        rho = above
    return settled(
        problem,
        classes,
        solver,
        found.value_V,
        floor_K=targets.need(rho) * min(1.0, found.multiple),
        face=found.face if found.multiple <= 1.0 + NEAR else None,
        objective=rho,
        price_K=found.price_K,
        price_T=found.price_T,
    )


def least_rho(problem: SharingProblem, price_J: Floats, budget: float) -> float:
    """The rho below which what all jobs need costs more than there is, at these prices: none can be smaller."""
    targets = _FinishTimes(problem, len(problem.gpus_J))
    return targets.affordable(price_J * problem.best, budget, targets.least)


class _FinishTimes:
    """What each job needs, as a share of its best throughput, for a given rho."""

    def __init__(self, problem: SharingProblem, jobs: int) -> None:
        best_J = np.maximum(problem.best, 1e-300)
        self._counts_J = (problem.left_J > 0.0) & (problem.best > 0.0)
        self._left_s_J = np.where(self._counts_J, problem.left_J / best_J, 0.0)  # on the fastest type, alone
        alone_J = np.maximum(isolated(problem, jobs) / best_J, 1e-300)
        fair_s_J = np.where(self._counts_J, problem.isolated_s_J + self._left_s_J / alone_J, 1.0)
        self._fair_s_J = np.maximum(fair_s_J, 1e-12 * float(fair_s_J.max(initial=0.0)))
        self._elapsed_J = problem.elapsed_J
        rho_J = (problem.elapsed_J + self._left_s_J) / self._fair_s_J
        #: No job is faster than alone on its fastest type: the largest rho is this at least.
        self.least = float(rho_J[self._counts_J].max(initial=0.0))

    def need(self, rho: float) -> Floats:
        time_s_J = np.maximum(rho * self._fair_s_J - self._elapsed_J, 1e-300)
        return np.where(self._counts_J, np.minimum(self._left_s_J / time_s_J, 1e9), 0.0)

    def affordable(self, price_J: Floats, budget: float, rho: float) -> float:
        """The smallest rho from this one on at which the needs cost no more than the budget."""
        low, high = rho, 2.0 * rho
        if price_J @ self.need(rho) <= budget:
            return rho
        while price_J @ self.need(high) > budget:
            high *= 2.0
        for _ in range(200):
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            low, high = (middle, high) if price_J @ self.need(middle) > budget else (low, middle)
        return low


def _in_proportion(
    problem: SharingProblem, classes: Classes, need_K: Floats, solver: Solver, value: Callable[[float], float]
) -> Shares:
    """Throughputs of as large a multiple of the needs as fits."""
    found = largest_multiple(classes, need_K, solver)
    if found.multiple <= 0.0:
        raise NoSolution("largest multiple", Trouble.NUMERICAL, f"{len(need_K)} classes of jobs", "the multiple is 0")
    return settled(
        problem,
        classes,
        solver,
        found.value_V,
        floor_K=need_K * found.multiple,
        face=found.face,
        objective=value(found.multiple),
        price_K=found.price_K,
        price_T=found.price_T,
    )


# -- sums --------------------------------------------------------------------------------------------------------------


def max_sum_throughput(problem: SharingProblem, solver: Solver) -> Shares:
    """The sum of all throughputs, in samples per second, is as large as possible."""
    classes = classify(problem)
    return _largest(problem, classes, _worth(classes, np.ones(len(problem.capacity_T))), solver)


def cost(problem: SharingProblem, solver: Solver) -> Shares:
    """As much throughput per price as possible."""
    classes = classify(problem)
    return _largest(problem, classes, _worth(classes, 1.0 / positive_prices(problem)), solver)


def cost_slo(problem: SharingProblem, solver: Solver) -> Shares:
    """The same, with every deadline kept that can be: those given up are named, the latest first."""
    classes = classify(problem, "left_J", "deadline_J")
    worth_V = _worth(classes, 1.0 / positive_prices(problem))
    with np.errstate(divide="ignore", invalid="ignore"):
        need_K = classes.problem.left_J / classes.problem.deadline_J / classes.best_K
    need_K = np.where(np.isfinite(classes.problem.deadline_J), np.where(np.isnan(need_K), 0.0, need_K), 0.0)
    given_up_K = (need_K > 1.0 + NEAR) | (need_K < 0.0)
    order = np.flatnonzero((need_K > 0.0) & ~given_up_K)
    # Of equal deadlines the one that needs less is kept first; the rest tells apart whatever differs, in any order.
    apart = classes.problem
    keys = (*apart.rate_JT.T, apart.gpus_J, apart.held_J, apart.left_J, need_K, apart.deadline_J)
    order = order[np.lexsort(tuple(key[order] for key in keys))]
    kept = _most_kept(classes, np.minimum(need_K, 1.0), order, solver)
    given_up_K[order[kept:]] = True
    floor_K = np.where(given_up_K, 0.0, np.minimum(need_K, 1.0))
    dropped = np.flatnonzero(given_up_K[classes.class_J] & (classes.class_J >= 0)) if len(need_K) else np.zeros(0)
    shares = _largest(problem, classes, worth_V, solver, floor_K=floor_K * (1.0 - NEAR))
    if not len(dropped):
        return shares
    return noted(shares, Concession.DEADLINES, tuple(int(job) for job in dropped))


def _most_kept(classes: Classes, need_K: Floats, order: Ints, solver: Solver) -> int:
    """How many of the deadlines, the earliest first, can be kept together.

    From above, by prices: at those of a set that does not fit it costs 1, and there is `multiple` of that. So no more
    can be kept than what comes to that.
    """
    count = len(order)
    while count:
        wanted_K = np.zeros(len(need_K))
        wanted_K[order[:count]] = need_K[order[:count]]
        found = largest_multiple(classes, wanted_K, solver, enough=1.0)
        if found.multiple >= 1.0 - NEAR:
            break
        cost = np.cumsum((found.price_K * wanted_K)[order[:count]])
        count = min(count - 1, int(np.searchsorted(cost, found.multiple * (1.0 + NEAR), side="right")))
    return count


def positive_prices(problem: SharingProblem) -> Floats:
    """Free GPUs cost next to nothing, and not nothing: a thousandth of the cheapest that have a price."""
    priced_T = problem.price_T[problem.price_T > 0.0]
    least = float(priced_T.min()) / 1000.0 if len(priced_T) else 1.0
    return np.asarray(np.maximum(problem.price_T, least))


def _worth(classes: Classes, worth_T: Floats) -> Floats:
    """Samples per second of all jobs of a column's classes, times what the type makes of one."""
    rate_E = (classes.count_K * classes.best_K)[classes.class_E] * classes.speed_E
    return np.bincount(classes.column_E, rate_E, len(classes.type_V)) * worth_T[classes.type_V]


def _largest(
    problem: SharingProblem, classes: Classes, worth_V: Floats, solver: Solver, floor_K: Floats | None = None
) -> Shares:
    if not len(worth_V):
        return nothing(problem)
    found = largest_sum(classes, worth_V, solver, floor_K=floor_K)
    return settled(
        problem,
        classes,
        solver,
        found.value_V,
        floor_K=floor_K,
        face=found.face,
        is_by_floor=False,
        objective=found.total,
        price_K=classes.count_K * classes.best_K,
        price_T=found.price_T,
    )


# -- Nash welfare ------------------------------------------------------------------------------------------------------


def nash(problem: SharingProblem, solver: Solver) -> Shares:
    """The product of all throughputs is as large as possible (each to the power of its weight)."""
    classes = classify(problem, "weight_J")
    if not len(classes.count_K):
        return nothing(problem)
    weight_K = classes.count_K * classes.problem.weight_J
    found = largest_welfare(classes, weight_K)
    solver.programs += 1
    relative_K = np.zeros(0) if found is None else classes.relative(found[0])
    if found is None or not (relative_K > 0.0).all():
        shares = max_min(problem, solver)
        return noted(shares, Concession.NO_WELFARE)
    welfare = float(weight_K @ np.log(relative_K * classes.best_K / proportional(classes.problem)))
    return settled(problem, classes, solver, found[0], floor_K=relative_K, face=found[1], objective=welfare)


def _nash_throughput(problem: SharingProblem, solver: Solver) -> Floats:
    """What each job has under Nash welfare. That is unique, so that no choice among shares is needed."""
    classes = classify(problem, "weight_J")
    found = largest_welfare(classes, classes.count_K * classes.problem.weight_J) if len(classes.count_K) else None
    if found is None:
        return throughput(problem, nash(problem, solver))
    solver.programs += 1
    rate_K = classes.relative(found[0]) * classes.best_K
    return np.where(classes.class_J >= 0, rate_K[np.maximum(classes.class_J, 0)], 0.0)


def discounted(problem: SharingProblem, solver: Solver) -> Shares:
    """Nash welfare in which it does not pay to misstate one's rates: the share of each job is cut to

        product over other jobs k of (throughput_k with the job there) / (throughput_k without it)

    of what it is, the part of their welfare that its presence leaves to other jobs. One more program for each class.
    """
    shares = nash(problem, solver)
    classes = classify(problem, "weight_J")
    with_J = throughput(problem, shares)
    factor_J = np.ones(len(problem.gpus_J))
    for k in range(len(classes.count_K)):
        members = np.flatnonzero(classes.class_J == k)
        rest = np.setdiff1d(np.arange(len(problem.gpus_J)), members[:1])
        without_J = _nash_throughput(problem.only(rest), solver)
        counts = without_J > 0.0
        factor_J[members] = min(1.0, float(np.exp(np.log(with_J[rest][counts] / without_J[counts]).sum())))
    pairs = {
        (one, other): share_T * min(factor_J[one], factor_J[other]) for (one, other), share_T in shares.pairs.items()
    }
    return replace(shares, alone_JT=shares.alone_JT * factor_J[:, None], pairs=pairs, programs=solver.programs)


# -- answers -----------------------------------------------------------------------------------------------------------


def settled(
    problem: SharingProblem,
    classes: Classes,
    solver: Solver,
    found_V: Floats,
    *,
    objective: float,
    floor_K: Floats | None = None,
    face: Face | None = None,
    is_by_floor: bool = True,
    price_K: Floats | None = None,
    price_T: Floats | None = None,
) -> Shares:
    """The one of the optima that is ours; the solver's, with a note, if the numbers do not allow it."""
    value_V = settle(classes, found_V, solver, floor_K=floor_K, face=face, is_by_floor=is_by_floor)
    notes: tuple[Concession, ...] = ()
    if value_V is None:
        value_V, notes = tidy(classes, found_V), (Concession.UNSETTLED,)
    alone_JT, pairs = unfold(classes, value_V, len(problem.gpus_J), len(problem.capacity_T))
    shares = Shares(alone_JT, pairs, objective, objective, notes, programs=solver.programs)
    if price_K is None or price_T is None:
        return shares
    each_K = price_K / classes.count_K / classes.best_K
    price_J = np.where(classes.class_J >= 0, each_K[np.maximum(classes.class_J, 0)], 0.0)
    return replace(shares, price_J=price_J, price_T=price_T)


def nothing(problem: SharingProblem) -> Shares:
    return Shares(np.zeros(problem.rate_JT.shape))


def noted(shares: Shares, note: Concession, dropped: tuple[int, ...] = ()) -> Shares:
    return replace(shares, notes=(*shares.notes, note), dropped=(*shares.dropped, *dropped))
