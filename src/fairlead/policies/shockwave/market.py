"""A volatile Fisher market over a window of rounds: how many of the coming rounds each job buys, and at what price.

Shockwave (Zheng et al., NSDI '23), section 4: maximise Nash social welfare over time, less a makespan regulariser,

    sum_j weight_j log(progress_j) / (J F)  -  k makespan

over n_jk, the rounds in which job j runs on its k-th size; a job of the paper has one size. The logarithm is linear
between the artifact's bases (`BASES`). It is concave, so a maximum fills its segments in order and no binary variables
are needed; and integers n_jk in place of a binary variable for every job and round leave one row of capacity.

The makespan is bounded from below by the longest job that is left after the window, as in the paper, and by all work
that is left spread over all GPUs: without the second bound the regulariser runs long jobs before there is need, and
short jobs wait. It is counted in windows, so k has no unit: the artifact's 1e-3 per second is 2.4 for its 20 rounds of
120 s.

Finish-time fairness asks for a least share of the work of each job (`least_J`). Where these cannot be had together the
caller leaves them out and raises weights instead (`fairness_weights`).

build / solve / read: the linear relaxation gives the price and an upper bound; rounding it gives a feasible plan in any
case; the integer programme is asked only if the two are further apart than `CLOSE_ENOUGH`.

Legend: J jobs, K sizes of a job, S segments of the logarithm, F rounds of the window.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Floats

Ints = NDArray[np.int64]

#: Between these shares of its work the logarithm of a job's progress is taken as linear, and this is the log of 0: both
#: as in the artifact.
BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LOG_OF_ZERO = math.log(1e-6)

#: A plan this near to the bound is good enough: the relative gap that the artifact asks of its solver.
CLOSE_ENOUGH = 1e-3

#: Weights are kept within what a solver with tolerances of 1e-7 can tell apart.
MOST_WEIGHT = 1e4


@dataclass(frozen=True)
class Market:
    """Jobs that bid for a window of rounds."""

    #: GPUs of a round of each job on each of its sizes, and the share of its work that it does in one; 0 where it has
    #: no such size.
    width_JK: Ints
    rate_JK: Floats
    #: Share of its work that each has done.
    progress_J: Floats
    weight_J: Floats
    #: Share of its work that each is to do in the window, to end in time.
    least_J: Floats
    gpus: int
    rounds: int
    #: What a window of makespan counts, next to the mean log of progress over jobs and rounds.
    makespan_weight: float

    @property
    def capacity(self) -> int:
        """GPU-rounds of the window."""
        return self.gpus * self.rounds

    @cached_property
    def left(self) -> Floats:
        """Share of the work that is left."""
        left_J: Floats = np.maximum(0.0, 1.0 - self.progress_J)
        return left_J

    @cached_property
    def most(self) -> Ints:
        """Rounds that each job can use on each size."""
        possible_JK = (self.rate_JK > 0.0) & (self.width_JK > 0) & (self.width_JK <= self.gpus)
        needed_JK = np.divide(self.left[:, None], self.rate_JK, out=np.zeros_like(self.rate_JK), where=possible_JK)
        return np.minimum(self.rounds, np.ceil(needed_JK - 1e-9)).astype(np.int64)

    @cached_property
    def shortest(self) -> Floats:
        """Rounds of the whole work on the fastest size; 0 for a job that cannot run."""
        best_J = np.where(self.most > 0, self.rate_JK, 0.0).max(axis=1, initial=0.0)
        whole_J: Floats = np.divide(1.0, best_J, out=np.zeros_like(best_J), where=best_J > 0.0)
        return whole_J

    @cached_property
    def cheapest(self) -> Floats:
        """GPU-rounds of the whole work on the size that takes fewest; 0 for a job that cannot run."""
        area_JK = np.full(self.rate_JK.shape, np.inf)
        np.divide(self.width_JK, self.rate_JK, out=area_JK, where=self.most > 0)
        area_J = area_JK.min(axis=1, initial=np.inf)
        return np.where(np.isfinite(area_J), area_J, 0.0)


@dataclass(frozen=True, slots=True)
class Purchase:
    """Rounds of each job on each size in the window."""

    count_JK: Ints
    #: What one more GPU-round would add to the objective (the dual of the capacity row), in units of what it is worth
    #: to a job of weight 1 to double its progress.
    price: float
    #: How far from the optimum at most, as a share of what the best plan gains over running nothing.
    gap: float
    #: Every job gets its least share.
    fair: bool


def solve(market: Market, *, time_limit_s: float = 1.0, most_nodes: int = 50) -> Purchase:
    """The counts that maximise the objective, within the stated gap. Always feasible.

    The solver is asked three times at the most, for `time_limit_s` in all; `most_nodes` keeps the answer the same on a
    slow machine. Where time runs out before the relaxation is solved, rounds go to the jobs that gain most by them, and
    the gap is that to a bound without the capacity. Least shares that cannot be had together are left out, all of them:
    `Purchase.fair` says so.
    """
    nothing_JK = np.zeros(market.width_JK.shape, dtype=np.int64)
    if not market.most.any() or market.capacity <= 0:
        return Purchase(nothing_JK, 0.0, 0.0, fair=not market.least_J.any())
    fair = _may_be_fair(market)
    programme = _build(market, fair=fair)
    relaxed = _solve_relaxed(programme, market, time_limit_s=time_limit_s / 4.0)
    if relaxed is None:
        fair, programme = False, _build(market, fair=False)
        relaxed = _solve_relaxed(programme, market, time_limit_s=time_limit_s / 4.0)
    assert relaxed is not None, "to run nothing is feasible"
    fair = fair and relaxed.solved
    count_JK = _rounded(market, relaxed, fair=fair)
    nothing, reached = objective(market, nothing_JK), objective(market, count_JK)
    bound = max(reached, relaxed.bound)
    if relaxed.solved and _gap(nothing, reached, bound) > CLOSE_ENOUGH:
        found = _solve_integer(programme, market, time_limit_s=time_limit_s / 2.0, most_nodes=most_nodes)
        if found is not None:
            bound = max(reached, min(bound, found[1]))
            if (value := objective(market, found[0])) > reached:
                count_JK, reached, bound = found[0], value, max(bound, value)
    scale = market.rounds * len(market.left) / math.log(2.0)
    return Purchase(count_JK, relaxed.price * scale, _gap(nothing, reached, bound), fair)


def objective(market: Market, count_JK: Ints) -> float:
    """What a plan is worth: weighted log progress over jobs and rounds, less the makespan regulariser.

    Without the constant that progress so far is.
    """
    done_J = np.minimum(market.left, (market.rate_JK * count_JK).sum(axis=1))
    room_JS, slope_S = _segments(market)
    before_JS = np.cumsum(room_JS, axis=1) - room_JS
    gained_J = np.clip(done_J[:, None] - before_JS, 0.0, room_JS) @ slope_S
    after_J = market.left - done_J
    windows = max(
        float((after_J * market.shortest).max(initial=0.0)) / market.rounds,
        float(after_J @ market.cheapest) / market.capacity,
    )
    return float(market.weight_J @ gained_J) / (len(done_J) * market.rounds) - market.makespan_weight * windows


def fairness_weights(rho_J: Floats, rounds_left_J: Floats, *, power: float, limit: float = 1.0) -> Floats:
    """Weights of jobs that would end too late: rho ** power above the limit, else 1.

    A late job that needs less than a round to end gets the largest weight in use: the artifact raises its rho to the
    power of 100, which no solver's tolerances survive.
    """
    late_J = rho_J > limit
    weight_J = np.where(late_J, np.minimum(np.maximum(rho_J, limit), 1e3) ** power, 1.0)
    weight_J = np.minimum(weight_J, MOST_WEIGHT)
    most = float(weight_J.max(initial=1.0))
    return np.where(late_J & (rounds_left_J < 1.0), most, weight_J)


def _may_be_fair(market: Market) -> bool:
    """A quick look at the least shares: none is out of reach, and together they need no more than there is."""
    reach_J = np.minimum(1.0, market.rounds / np.maximum(market.shortest, 1e-12)) * (market.shortest > 0.0)
    least_J = np.minimum(market.least_J, market.left)
    within = bool((market.least_J <= reach_J + 1e-9).all())
    return within and float(least_J @ market.cheapest) <= market.capacity * (1.0 + 1e-9)


def _gap(nothing: float, reached: float, bound: float) -> float:
    return max(0.0, bound - reached) / max(bound - nothing, 1e-12)


# -- build -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Programme:
    """Minimise cost x, with left x <= right and low <= x <= high.

    Columns: share of the work done in each segment (JS), rounds (JK), windows of makespan. The last row is the
    capacity.
    """

    cost: Floats
    left: Any
    right: Floats
    low: Floats
    high: Floats
    segments: int
    shape: tuple[int, int]


def _segments(market: Market) -> tuple[Floats, Floats]:
    """Work left in each segment of the logarithm of each job, and the slope of each segment."""
    base_S, log_S = np.array(BASES), np.array([LOG_OF_ZERO, *(math.log(base) for base in BASES[1:])])
    inside_JS = np.clip(market.progress_J[:, None], base_S[:-1], base_S[1:])
    return base_S[1:] - inside_JS, np.diff(log_S) / np.diff(base_S)


def _build(market: Market, *, fair: bool = True) -> _Programme:
    from scipy.sparse import block_array, coo_array  # slow to import, and most policies never need it

    jobs, sizes = market.width_JK.shape
    room_JS, slope_S = _segments(market)
    each, cell = np.arange(jobs), np.arange(jobs * sizes)
    of_segment, of_cell = np.repeat(each, len(slope_S)), np.repeat(each, sizes)

    def rows(value: Floats, of: Ints) -> Any:
        return coo_array((value, (of, np.arange(len(of)))), (jobs, len(of)))

    rate, width = market.rate_JK.ravel(), market.width_JK.ravel().astype(np.float64)
    done = rows(rate, of_cell)
    shortest = rows(rate * market.shortest[of_cell] / market.rounds, of_cell)
    area = coo_array((rate * market.cheapest[of_cell] / market.capacity)[None, :])
    minus_J = coo_array(-np.ones((jobs, 1)))
    blocks = [
        [rows(np.ones(len(of_segment)), of_segment), -done, None],
        [None, -shortest, minus_J],
        [None, -area, coo_array([[-1.0]])],
        [None, -done, None],
        [None, rows(np.ones(len(cell)), of_cell), None],
        [None, coo_array(width[None, :]), None],
    ]
    least_J = np.minimum(market.least_J, market.left) if fair else np.zeros(jobs)
    right: list[Floats] = [
        np.zeros(jobs),
        -market.left * market.shortest / market.rounds,
        np.array([-float(market.left @ market.cheapest) / market.capacity]),
        -least_J,
        np.full(jobs, float(market.rounds)),
        np.array([float(market.capacity)]),
    ]
    value_JS = -(market.weight_J[:, None] * slope_S) / (jobs * market.rounds)
    columns = room_JS.size + len(cell) + 1
    return _Programme(
        cost=np.concatenate([value_JS.ravel(), np.zeros(len(cell)), [market.makespan_weight]]),
        left=block_array(blocks).tocsr(),
        right=np.concatenate(right),
        low=np.zeros(columns),
        high=np.concatenate([room_JS.ravel(), market.most.ravel(), [np.inf]]),
        segments=room_JS.size,
        shape=(jobs, sizes),
    )


# -- solve -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """The optimum over real numbers of rounds; or no rounds, and a bound, where time ran out."""

    count_JK: Floats
    price: float
    bound: float
    solved: bool = True


def _solve_relaxed(programme: _Programme, market: Market, *, time_limit_s: float) -> _Relaxed | None:
    """None if it is infeasible."""
    from scipy.optimize import linprog

    bounds = np.stack([programme.low, programme.high], axis=1)
    limit = {"time_limit": time_limit_s}
    found = linprog(
        programme.cost, A_ub=programme.left, b_ub=programme.right, bounds=bounds, method="highs", options=limit
    )
    if found.status == _INFEASIBLE:
        return None
    if found.status != 0:
        return _Relaxed(np.zeros(programme.shape), 0.0, _loose_bound(market), solved=False)
    count_JK = found.x[programme.segments : -1].reshape(programme.shape)
    return _Relaxed(count_JK, max(0.0, -float(found.ineqlin.marginals[-1])), -float(found.fun))


#: How `linprog` calls it.
_INFEASIBLE = 2


def _loose_bound(market: Market) -> float:
    """What a plan would be worth in which each job ran all the time on its fastest size, without a limit of GPUs."""
    best_JK = np.zeros(market.rate_JK.shape, dtype=np.int64)
    rate_JK = np.where(market.most > 0, market.rate_JK, 0.0)
    best_JK[np.arange(len(best_JK)), rate_JK.argmax(axis=1)] = market.rounds
    return objective(market, best_JK)


def _solve_integer(
    programme: _Programme, market: Market, *, time_limit_s: float, most_nodes: int
) -> tuple[Ints, float] | None:
    """Counts and the solver's bound; None if it found none within its limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs, sizes = programme.shape
    integral = np.zeros(len(programme.cost))
    integral[programme.segments : -1] = 1.0
    found = milp(
        programme.cost,
        integrality=integral,
        bounds=Bounds(programme.low, programme.high),
        constraints=LinearConstraint(programme.left, -np.inf, programme.right),
        options={"time_limit": time_limit_s, "node_limit": most_nodes, "mip_rel_gap": CLOSE_ENOUGH / 10.0},
    )
    if found.x is None:
        return None
    count_JK = np.round(found.x[programme.segments : -1]).astype(np.int64).reshape(jobs, sizes)
    if int((count_JK * market.width_JK).sum()) > market.capacity:
        return None
    dual = found.mip_dual_bound
    return count_JK, math.inf if dual is None or math.isnan(dual) else -float(dual)


# -- round -----------------------------------------------------------------------------------------------------------


def _rounded(market: Market, relaxed: _Relaxed, *, fair: bool) -> Ints:
    """A feasible plan near the relaxed one: whole rounds of it, then what adds most for each GPU-round.

    What adds most: the parts of rounds that jobs need for their least shares, then those that the makespan rests on,
    then log progress.
    """
    count_JK = np.minimum(np.floor(relaxed.count_JK + 1e-6).astype(np.int64), market.most)
    left = market.capacity - int((market.width_JK * count_JK).sum())
    part_JK = relaxed.count_JK - count_JK
    done_J = (market.rate_JK * count_JK).sum(axis=1)
    after_J = (market.left - (market.rate_JK * relaxed.count_JK).sum(axis=1)) * market.shortest
    critical_J = after_J >= float(after_J.max(initial=0.0)) - 1e-6
    short_J = fair & (done_J < np.minimum(market.least_J, market.left) - 1e-9)
    urgent = [job for job in np.flatnonzero(short_J | critical_J).tolist() if part_JK[job].max() > 1e-6]
    for job in sorted(urgent, key=lambda job: (not short_J[job], -after_J[job], job)):
        size = int(part_JK[job].argmax())
        left -= _buy(market, count_JK, job, size, left)
    return _filled(market, count_JK, left)


def _buy(market: Market, count_JK: Ints, job: int, size: int, left: int) -> int:
    """One more round, if there is room; returns the GPU-rounds it takes."""
    width = int(market.width_JK[job, size])
    room = count_JK[job, size] < market.most[job, size] and count_JK[job].sum() < market.rounds
    if not room or width > left:
        return 0
    count_JK[job, size] += 1
    return width


def _filled(market: Market, count_JK: Ints, left: int) -> Ints:
    """Give what is left of the window to the rounds that add most log progress for each GPU-round. Greedy."""
    room_JS, slope_S = _segments(market)
    before_JS = np.cumsum(room_JS, axis=1) - room_JS
    done_J = (market.rate_JK * count_JK).sum(axis=1)

    def gained(job: int, done: float) -> float:
        return float(np.clip(min(done, market.left[job]) - before_JS[job], 0.0, room_JS[job]) @ slope_S)

    def offer(job: int) -> tuple[float, int, int] | None:
        if market.left[job] - done_J[job] <= 1e-9 or count_JK[job].sum() >= market.rounds:
            return None
        now = gained(job, done_J[job])
        sizes = np.flatnonzero(market.most[job] > count_JK[job]).tolist()
        gains = [
            (
                market.weight_J[job]
                * (gained(job, done_J[job] + market.rate_JK[job, k]) - now)
                / market.width_JK[job, k],
                k,
            )
            for k in sizes
        ]
        return (-max(gains)[0], job, max(gains)[1]) if gains else None

    heap = [found for job in range(len(done_J)) if (found := offer(job)) is not None]
    heapq.heapify(heap)
    while heap and left > 0:
        _, job, size = heapq.heappop(heap)
        if not (taken := _buy(market, count_JK, job, size, left)):
            continue
        left -= taken
        done_J[job] += market.rate_JK[job, size]
        if (found := offer(job)) is not None:
            heapq.heappush(heap, found)
    return count_JK
