"""How many GPUs, of which type: the best size for every job as if it did not matter where GPUs are.

    stays    Are the sizes that jobs have now the optimum? Looks at each job once.
    exact    One GPU type: dynamic programming over the jobs.
    priced   Any number of types and jobs: each type gets a price per GPU at which the jobs, each taking what is best
             for itself, want no more than there is. The prices also yield the bound (weak duality): for any prices,

                 cost of any allocation >= sum_j min over choices (cost + price x GPUs) - sum_t price_t x capacity_t

Legend: J jobs, T GPU types, S sizes (0 GPUs first), C GPUs of the cluster, K numbers of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.arranging import STAY

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Sweeps over the GPU types in the search for prices; each finds them this many times as precisely as the one before.
SWEEPS, SHARPER, COARSE = 10, 10, 0.1
#: So many jobs at least are a sample of all.
SAMPLE = 250
#: A sweep that raises the bound by less than this share of it is the last, and no price is found more precisely.
SETTLED = 1e-4
#: A price to begin with, its square one that is as good as none, and one that nobody pays who need not.
CHEAP, DEAR = 1e-6, 1e15
#: Costs that differ by no more than this share are equal.
EQUAL = 1e-9


@dataclass(frozen=True)
class Sizing:
    """A type and a size for every job (STAY for what it holds), and what no allocation can cost less than."""

    type_J: Ints
    size_J: Ints
    bound: float
    price_T: Floats


@dataclass(frozen=True)
class Costs:
    """What sizing looks at: each choice at its best placement."""

    sizes_S: Ints
    #: The better of one node and many; column 0 is infinite.
    cost_JTS: Floats
    idle_J: Floats
    stay_J: Floats
    #: Type and number of GPUs, of those that may be given out, which a job keeps by staying.
    stay_type_J: Ints
    stay_gpus_J: Ints
    capacity_T: Ints
    #: As in the problem.
    scale: float | None = None

    def share_of(self, cost: float) -> float:
        """What a tolerated share is a share of."""
        return abs(cost) if self.scale is None else min(self.scale, abs(cost))

    def every(self, stride: int) -> Costs:
        """The same for a part of the jobs, and of the GPUs."""
        return Costs(
            self.sizes_S,
            self.cost_JTS[::stride],
            self.idle_J[::stride],
            self.stay_J[::stride],
            self.stay_type_J[::stride],
            self.stay_gpus_J[::stride],
            self.capacity_T // stride,
            self.scale,
        )

    @property
    def work(self) -> float:
        """Steps of the dynamic programme; infinite where there are several types to choose from."""
        jobs, types, _ = self.cost_JTS.shape
        return float(jobs * (1 + self.capacity_T[0]) * (1 + self.sizes_S[-1])) if types == 1 else np.inf


def stays(costs: Costs) -> Sizing | None:
    """What everybody holds now, if that is provably the optimum: some prices make it each job's own best choice.

    A price must be at least what a GPU more would gain anybody, and at most what a GPU less would cost anybody.
    """
    holds_J, now_J, cost = _unchanged(costs)
    gpus_J = np.where(holds_J, costs.stay_gpus_J, 0)
    if not np.isfinite(cost):
        return None
    free_T = costs.capacity_T - np.bincount(costs.stay_type_J, weights=gpus_J, minlength=len(costs.capacity_T))
    price_T = np.zeros(len(free_T))
    for kind in np.flatnonzero(free_T <= 0):  # a GPU that nobody uses is worth nothing
        here_J = ~holds_J | (costs.stay_type_J == kind)
        more_JS = costs.sizes_S - gpus_J[here_J, None]
        gain_JS = now_J[here_J, None] - costs.cost_JTS[here_J, kind]
        price_T[kind] = np.divide(gain_JS, more_JS, out=np.zeros(gain_JS.shape), where=more_JS > 0).max(initial=0.0)
    bound = _dual(costs, price_T)
    if cost - bound > EQUAL * max(1.0, abs(cost)):
        return None
    return Sizing(costs.stay_type_J, np.where(holds_J, STAY, 0), bound, price_T)


def _unchanged(costs: Costs) -> tuple[Flags, Floats, float]:
    """Who holds something, and what it costs each and all if nobody moves."""
    holds_J = np.isfinite(costs.stay_J)
    now_J = np.where(holds_J, costs.stay_J, costs.idle_J)
    return holds_J, now_J, float(now_J.sum())


def exact(costs: Costs) -> Sizing:
    """For one GPU type: least_C, the least cost of the jobs so far on at most C GPUs, one job after the other."""
    jobs, capacity = len(costs.idle_J), int(costs.capacity_T[0])
    most = min(max(int(costs.sizes_S[-1]), int(costs.stay_gpus_J.max(initial=0))), capacity)
    usable = costs.sizes_S <= most
    row_JK = np.full((jobs, most + 1), np.inf)
    row_JK[:, costs.sizes_S[usable]] = costs.cost_JTS[:, 0, usable]
    row_JK[:, 0] = costs.idle_J
    staying = np.flatnonzero(np.isfinite(costs.stay_J))
    kept = costs.stay_gpus_J[staying]
    stay_cheaper = costs.stay_J[staying] <= row_JK[staying, kept]
    stays_J = np.zeros(jobs, dtype=bool)
    stays_J[staying[stay_cheaper]] = True
    row_JK[staying, kept] = np.minimum(row_JK[staying, kept], costs.stay_J[staying])
    before_C = np.full(capacity + 1 + most, np.inf)  # `most` entries of padding: fewer GPUs than none
    window_CK = np.lib.stride_tricks.as_strided(before_C[most:], (capacity + 1, most + 1), (8, -8))
    least_C = np.zeros(capacity + 1)
    chosen_JC = np.empty((jobs, capacity + 1), dtype=np.int32)
    every_C = np.arange(capacity + 1)
    for job in range(jobs):
        before_C[most:] = least_C
        total_CK = window_CK + row_JK[job]
        total_CK.argmin(axis=1, out=(best_C := np.empty(capacity + 1, dtype=np.int64)))
        chosen_JC[job] = best_C
        least_C = total_CK[every_C, best_C]
    index_K = np.zeros(most + 1, dtype=np.int64)
    index_K[costs.sizes_S[usable]] = np.flatnonzero(usable)
    size_J = np.zeros(jobs, dtype=np.int64)
    left = capacity
    for job in range(jobs - 1, -1, -1):
        gpus = int(chosen_JC[job, left])
        keeps = stays_J[job] and gpus == costs.stay_gpus_J[job]
        size_J[job] = STAY if keeps else index_K[gpus]
        left -= gpus
    return Sizing(np.zeros(jobs, dtype=np.int64), size_J, float(least_C[capacity]), np.full(1, np.nan))


def priced(costs: Costs, *, tolerance: float = 0.0) -> Sizing:
    """Everyone's choice at prices that (nearly) maximise the bound, and a greedy use of what is left.

    The prices that suit a few of many jobs nearly suit all, so they are sought for these first. Everybody stays as soon
    as that is proved to waste no more than a tolerated share of the costs, unless somebody waits.
    """
    holds_J, _, unchanged = _unchanged(costs)
    price_T, precision = np.zeros(len(costs.capacity_T)), COARSE
    for stride in _strides(len(holds_J)):
        price_T = _prices(costs.every(stride), price_T, precision)
        precision = COARSE / SHARPER
        bound = _dual(costs, price_T)
        if holds_J.all() and unchanged - bound <= tolerance * costs.share_of(unchanged):
            return Sizing(costs.stay_type_J, np.full(len(holds_J), STAY), bound, price_T)
    type_J, size_J = _choices(costs, price_T)
    _trim(costs, type_J, size_J)
    _fill(costs, type_J, size_J)
    return Sizing(type_J, size_J, bound, price_T)


def _strides(jobs: int) -> list[int]:
    """Every how many-th job is looked at, from a few of them to all."""
    strides = [1]
    while jobs // (strides[0] * SHARPER) >= SAMPLE:
        strides.insert(0, strides[0] * SHARPER)
    return strides


def _prices(costs: Costs, price_T: Floats, precision: float) -> Floats:
    """Prices that (nearly) maximise the bound, near some to begin with.

    One type after the other, and then all together: where types can replace each other, none can become dearer alone.
    """
    price_T = price_T.copy()
    precision = SETTLED if len(price_T) == 1 else precision
    best_T, best = price_T.copy(), _dual(costs, price_T)
    for _ in range(SWEEPS):
        for kind in range(len(price_T)):
            price_T[kind] = _clearing_price(costs, price_T, kind, precision)
        if len(price_T) > 1:
            price_T = _raised(costs, price_T, np.ones(len(price_T)), precision)
            price_T = _raised(costs, price_T, price_T / max(CHEAP, price_T.max()), precision)
        gain = _dual(costs, price_T) - best
        if gain > 0.0:
            best_T, best = price_T.copy(), best + gain
        if precision <= SETTLED and gain <= SETTLED * abs(best):
            break
        precision = max(SETTLED, precision / SHARPER)
    return best_T


def _raised(costs: Costs, price_T: Floats, along_T: Floats, precision: float) -> Floats:
    """The prices moved up along a direction as long as the bound rises: its slope is what is wanted too much."""

    def enough(step: float) -> bool:
        type_J, size_J = _choices(costs, price_T + step * along_T)
        return float(along_T @ (_used(costs, type_J, size_J) - costs.capacity_T)) <= 0.0

    if not along_T.any() or enough(0.0):
        return price_T
    return price_T + _crossing(enough, max(CHEAP, precision * float(price_T.max())), precision) * along_T


def _dual(costs: Costs, price_T: Floats) -> float:
    reduced_JTS = costs.cost_JTS + price_T[:, None] * costs.sizes_S
    least_J = np.minimum(reduced_JTS.min(axis=(1, 2)), costs.idle_J)
    least_J = np.minimum(least_J, costs.stay_J + price_T[costs.stay_type_J] * costs.stay_gpus_J)
    return float(least_J.sum() - price_T @ costs.capacity_T)


def _clearing_price(costs: Costs, price_T: Floats, kind: int, precision: float) -> float:
    """The least price of a GPU type at which no more of it is wanted than there is, the other prices being given."""
    elsewhere_J = costs.idle_J.copy()
    others = [other for other in range(len(price_T)) if other != kind]
    if others:
        reduced_JOS = costs.cost_JTS[:, others] + price_T[others, None] * costs.sizes_S
        elsewhere_J = np.minimum(elsewhere_J, reduced_JOS.min(axis=(1, 2)))
    stays_here_J = costs.stay_type_J == kind
    stay_gpus_J = np.where(stays_here_J, costs.stay_gpus_J, 0)
    stay_other_J = costs.stay_J + price_T[costs.stay_type_J] * costs.stay_gpus_J
    elsewhere_J = np.where(stays_here_J, elsewhere_J, np.minimum(elsewhere_J, stay_other_J))
    stay_J = np.where(stays_here_J, costs.stay_J, np.inf)
    here_JS = costs.cost_JTS[:, kind]

    def wanted(price: float) -> float:
        reduced_JS = here_JS + price * costs.sizes_S
        best_J = reduced_JS.argmin(axis=1)
        least_J = reduced_JS[np.arange(len(best_J)), best_J]
        gpus_J = np.where(least_J < elsewhere_J, costs.sizes_S[best_J], 0)
        stay_reduced_J = stay_J + price * stay_gpus_J
        return float(np.where(stay_reduced_J < np.minimum(least_J, elsewhere_J), stay_gpus_J, gpus_J).sum())

    capacity = float(costs.capacity_T[kind])
    if wanted(0.0) <= capacity:
        return 0.0
    return _crossing(lambda price: wanted(price) <= capacity, price_T[kind] or CHEAP, precision)


def _crossing(enough: Callable[[float], bool], guess: float, precision: float) -> float:
    """The least positive number, to a relative precision, that is enough; more always is. Begins near a guess."""
    low = high = guess
    step = 2.0 * precision
    if enough(guess):
        while enough(low := low / (1.0 + step)) and low > CHEAP * CHEAP:
            high, step = low, 4.0 * step
    else:
        while not enough(high := high * (1.0 + step)) and high < DEAR:
            low, step = high, 4.0 * step
    while high - low > precision * high:
        middle = 0.5 * (low + high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _choices(costs: Costs, price_T: Floats) -> tuple[Ints, Ints]:
    """(type, size) that each job would take at the prices; the smaller of equals, and staying before moving."""
    jobs, types, sizes = costs.cost_JTS.shape
    reduced_JX = (costs.cost_JTS + price_T[:, None] * costs.sizes_S).reshape(jobs, types * sizes)
    best_J = reduced_JX.argmin(axis=1)
    least_J = reduced_JX[np.arange(jobs), best_J]
    idle_J = costs.idle_J <= least_J
    type_J, size_J = best_J // sizes, np.where(idle_J, 0, best_J % sizes)
    stay_reduced_J = costs.stay_J + price_T[costs.stay_type_J] * costs.stay_gpus_J
    stays_J = stay_reduced_J <= np.minimum(least_J, costs.idle_J)
    return np.where(stays_J, costs.stay_type_J, type_J), np.where(stays_J, STAY, size_J)


def cost_of(costs: Costs, sizing: Sizing) -> float:
    """What it costs in all."""
    return float(_paid(costs, sizing.type_J, sizing.size_J).sum())


def _gpus(costs: Costs, size_J: Ints) -> Ints:
    return np.where(size_J == STAY, costs.stay_gpus_J, costs.sizes_S[size_J])


def _used(costs: Costs, type_J: Ints, size_J: Ints) -> Ints:
    """GPUs of each type in use."""
    return np.bincount(type_J, weights=_gpus(costs, size_J), minlength=len(costs.capacity_T)).astype(np.int64)


def _paid(costs: Costs, type_J: Ints, size_J: Ints) -> Floats:
    """What each job's choice costs."""
    paid_J = costs.cost_JTS[np.arange(len(type_J)), type_J, size_J]
    paid_J = np.where(size_J == 0, costs.idle_J, paid_J)
    return np.where(size_J == STAY, costs.stay_J, paid_J)


def _trim(costs: Costs, type_J: Ints, size_J: Ints) -> None:
    """Where prices that are not quite the best leave a type overbooked, whoever loses least per GPU gives some back."""
    for kind in range(len(costs.capacity_T)):
        while (over := int(_used(costs, type_J, size_J)[kind] - costs.capacity_T[kind])) > 0:
            members = np.flatnonzero((type_J == kind) & (size_J != 0))
            dearer_MS, fewer_MS = _steps(costs, type_J, size_J, members, kind)
            loss_MS = np.full(dearer_MS.shape, np.inf)
            np.divide(dearer_MS, -fewer_MS, out=loss_MS, where=fewer_MS < 0)
            best_M = loss_MS.argmin(axis=1)
            loss_M = loss_MS[np.arange(len(members)), best_M]
            for member in np.argsort(loss_M, kind="stable").tolist():
                if over <= 0 or loss_M[member] == np.inf:
                    break
                over += int(fewer_MS[member, best_M[member]])
                size_J[members[member]] = best_M[member]
            if over > 0 and not np.isfinite(loss_M).any():
                return  # only jobs that must stay are left: what they hold is theirs


def _fill(costs: Costs, type_J: Ints, size_J: Ints) -> None:
    """GPUs that are left go to whoever gains most per GPU, also from another type, a few rounds of them."""
    for kind in range(len(costs.capacity_T)):
        for _ in range(4):
            left = int(costs.capacity_T[kind] - _used(costs, type_J, size_J)[kind])
            members = np.arange(len(type_J))
            if left <= 0:
                break
            dearer_MS, more_MS = _steps(costs, type_J, size_J, members, kind)
            gain_MS = np.zeros(dearer_MS.shape)
            np.divide(-dearer_MS, more_MS, out=gain_MS, where=(more_MS > 0) & (more_MS <= left))
            best_M = gain_MS.argmax(axis=1)
            gain_M = gain_MS[np.arange(len(members)), best_M]
            before = left
            for member in np.argsort(-gain_M, kind="stable").tolist():
                more = int(more_MS[member, best_M[member]])
                if left <= 0 or gain_M[member] <= 0.0:
                    break
                if more <= left:
                    left -= more
                    type_J[members[member]], size_J[members[member]] = kind, best_M[member]
            if left == before:
                break


def _steps(costs: Costs, type_J: Ints, size_J: Ints, members: Ints, kind: int) -> tuple[Floats, Ints]:
    """For some jobs and every size of a type: what it would cost more than now, and how many GPUs more it would be."""
    cost_MS = costs.cost_JTS[members, kind]
    cost_MS[:, 0] = costs.idle_J[members]
    now_M = _paid(costs, type_J, size_J)[members]
    gpus_M = np.where(type_J[members] == kind, _gpus(costs, size_J)[members], 0)
    return cost_MS - now_M[:, None], costs.sizes_S - gpus_M[:, None]
