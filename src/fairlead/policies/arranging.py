"""On which nodes: from a size for every job to GPUs on nodes, changing sizes where they do not fit.

Whoever keeps what it holds stays in place. The others go to the fewest nodes and the tightest gap. What does not fit
then is weighed in the same costs that chose the sizes: to take another size, to be spread over several nodes, or to
make others go somewhere else, for which they pay what moving costs them.

Works on one GPU type and on counts per node; which GPUs these are is decided in `placing`.

Legend: J jobs, S sizes, N nodes. Sizes are indices into `sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gaps import Gaps, Where

NOWHERE: Where = {}

#: In place of a size: exactly what the job holds.
STAY = -1

#: Improvement goes on for so many rounds, until the regret left is this small a share of the costs...
ROUNDS, GOOD_ENOUGH = 3, 1e-3
#: ...or after this much was tried (nodes looked at, and rearrangements): the gap that is left is stated.
TRIALS = 20_000
#: Nodes on which room might be made for a job, and nodes beyond which nothing is rearranged.
NODES_TRIED, CROWDED = 128, 1024


@dataclass(frozen=True)
class Pool:
    """The nodes of one GPU type and the jobs that are to share them."""

    sizes: Sequence[int]
    one_JS: NDArray[np.float64]
    many_JS: NDArray[np.float64]
    idle_J: NDArray[np.float64]
    stay_J: NDArray[np.float64]
    held: Sequence[Where]
    #: The size each job should have, or STAY.
    wanted_J: NDArray[np.int64]
    #: GPUs of each node that may be given out.
    gpus: Sequence[int]
    exclusive: bool
    most_nodes: int
    #: As in the problem.
    scale: float | None = None


def arrange(pool: Pool) -> tuple[list[Where], list[float]]:
    """Where every job goes, and what that costs it."""
    board = Board(pool)
    board.seat()
    board.improve()
    return board.where, board.cost


class Board:
    """Who is where while one arrangement is made, and what it costs each job."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        jobs = len(pool.held)
        self.where: list[Where] = [NOWHERE] * jobs
        self.cost: list[float] = pool.idle_J.tolist()
        self.gaps = Gaps(pool.gpus)
        self._on: list[set[int]] = [set() for _ in pool.gpus]
        self._idle: list[float] = list(self.cost)
        self._stay: list[float] = pool.stay_J.tolist()
        self._wanted: list[int] = [
            sum(held.values()) if size == STAY else pool.sizes[size]
            for size, held in zip(pool.wanted_J.tolist(), pool.held, strict=True)
        ]
        self._rows: dict[int, _Row] = {}
        self._best: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        #: Too many to rearrange one by one: everybody takes at once what is best of the gaps that are left.
        self._crowded = len(pool.gpus) > CROWDED
        self._trials = 0

    # -- seating -------------------------------------------------------------------------------------------------

    def seat(self) -> None:
        """Everyone who stays, then who spans nodes, then the rest, largest first; who does not fit gets nothing yet."""
        pool = self.pool
        wanted = pool.wanted_J.tolist()
        rows = np.arange(len(wanted))
        one = pool.one_JS[rows, pool.wanted_J].tolist()
        many = pool.many_JS[rows, pool.wanted_J].tolist()
        movers: list[tuple[int, int]] = []
        for job, size in enumerate(wanted):
            if size == STAY:
                self._put(job, pool.held[job], self._stay[job])
            elif size > 0:
                movers.append((-pool.sizes[size], job))
        movers.sort()
        for negative, job in movers:
            count = -negative
            node = self._gap_for(job, count) if one[job] <= many[job] else -1
            if node >= 0:
                self._put(job, {node: count}, one[job])
            elif many[job] <= one[job] and (nodes := self._spread(count)) is not None:
                self._put(job, nodes, many[job])
            elif self._crowded:
                self._put(job, *self._best_spot(job))

    def _gap_for(self, job: int, count: int) -> int:
        """The tightest node, and among equals one where the job is already."""
        node = self.gaps.tightest(count)
        if node >= 0:
            for own in self.pool.held[job]:
                if self.gaps.free[own] == self.gaps.free[node]:
                    return own
        return node

    def _spread(self, count: int) -> Where | None:
        nodes = self.gaps.spread(count, self.pool.most_nodes)
        return nodes if nodes is not None and len(nodes) > 1 else None

    # -- improving -----------------------------------------------------------------------------------------------

    def improve(self) -> None:
        """Give each job that is worse off than it should be the best of what is left or can be made free."""
        if not self._crowded:
            self._rearrange()
        self._grow()
        self._serve_idle()

    def _rearrange(self) -> None:
        ideal = self._ideals()
        size = sum(map(abs, ideal))
        enough = GOOD_ENOUGH * (size if self.pool.scale is None else min(self.pool.scale, size))
        for _ in range(ROUNDS):
            regret = {job: cost - ideal[job] for job, cost in enumerate(self.cost) if cost > ideal[job]}
            if sum(regret.values()) <= enough:
                return
            before = sum(self.cost)
            for job in sorted(regret, key=lambda job: (-regret[job], job)):
                self._improve(job)
            self._grow()
            if sum(self.cost) >= before - enough / 10:
                return

    def _ideals(self) -> list[float]:
        """What each job's wanted size costs where it goes best."""
        pool = self.pool
        rows = np.arange(len(pool.idle_J))
        best_J = np.minimum(pool.one_JS[rows, pool.wanted_J], pool.many_JS[rows, pool.wanted_J])
        best_J = np.where(pool.wanted_J == 0, pool.idle_J, best_J)
        ideal: list[float] = np.where(pool.wanted_J == STAY, pool.stay_J, best_J).tolist()
        return ideal

    def _improve(self, job: int) -> None:
        """The best single change that helps the job: another spot, or one from which others are sent away."""
        was, had = self.where[job], self.cost[job]
        self._lift(job)
        where, cost = self._best_spot(job)
        self._put(job, was, had)
        best: tuple[float, int, tuple[int, ...], int] | None = None
        least = cost - had
        evictions = self._evictions(job) if self._trials < TRIALS else []
        for guess, node, ejected, size in evictions:
            if guess >= least:
                break
            change = self._try(job, node, ejected, size)
            if change < least - 1e-12:
                least, best = change, (guess, node, ejected, size)
        if best is not None:
            self._eject(job, *best[1:])
        elif cost < had:
            self._lift(job)
            self._put(job, where, cost)

    def _evictions(self, job: int) -> list[tuple[float, int, tuple[int, ...], int]]:
        """(about what it changes, node, who leaves it, size of the job there), best first."""
        row, pool, had = self._row(job), self.pool, self.cost[job]
        nodes = self.gaps.emptiest(NODES_TRIED)
        self._trials += len(nodes)
        own = sum(self.where[job].values())
        gap, loose = max(self.gaps.largest, own), self.gaps.loose + own
        found: list[tuple[float, int, tuple[int, ...], int]] = []
        for size in row.sizes_near(int(pool.wanted_J[job]), self.where[job], pool):
            count, gain = pool.sizes[size], row.one[size] - had
            if gain >= 0.0:
                continue
            for node in nodes:
                jobs = self._on[node]
                need = count - self.gaps.free[node] - self.where[job].get(node, 0)
                if need <= 0 or count > pool.gpus[node]:
                    continue
                left = max(gap, pool.gpus[node] - count)  # the largest gap there can be afterwards
                prices = sorted(
                    (self._leaving(other, node, left, loose + left), other) for other in jobs if other != job
                )
                for price, other in prices:
                    if self.where[other][node] >= need and gain + price < 0.0:
                        found.append((gain + price, node, (other,), size))
                if (several := self._several(prices, node, need)) is not None and gain + several[0] < 0.0:
                    found.append((gain + several[0], node, several[1], size))
        found.sort()
        return found

    def _several(
        self, prices: Sequence[tuple[float, int]], node: int, need: int
    ) -> tuple[float, tuple[int, ...]] | None:
        """The cheapest jobs of a node that make room together, each of them needed."""
        chosen: list[int] = []
        total = 0.0
        for price, other in prices:
            if need <= 0:
                break
            chosen.append(other)
            total += price
            need -= self.where[other][node]
        return (total, tuple(chosen)) if need <= 0 and len(chosen) > 1 else None

    def _leaving(self, job: int, node: int, gap: int, loose: int) -> float:
        """About what a job loses that has to leave a node: for where it was, a gap of that size, or several nodes."""
        row = self._row(job)
        alone = row.one[row.best_one[row.index_up_to(gap, self.pool)]]
        spread = row.many[row.best_many[row.index_up_to(loose, self.pool)]]
        stay = math.inf if node in self.pool.held[job] else self._stay[job]
        return max(0.0, min(alone, spread, stay, self._idle[job]) - self.cost[job])

    def _try(self, job: int, node: int, ejected: tuple[int, ...], size: int) -> float:
        """What a change of places would change in all; nothing is different afterwards."""
        self._trials += 1
        jobs = (job, *ejected)
        before = [(self.where[other], self.cost[other]) for other in jobs]
        self._eject(job, node, ejected, size)
        change = math.fsum(self.cost[other] - cost for other, (_, cost) in zip(jobs, before, strict=True))
        for other in jobs:
            self._lift(other)
        for other, (where, cost) in zip(jobs, before, strict=True):
            self._put(other, where, cost)
        return change

    def _eject(self, job: int, node: int, ejected: tuple[int, ...], size: int) -> None:
        for other in (job, *ejected):
            self._lift(other)
        self._put(job, {node: self.pool.sizes[size]}, self._row(job).one[size])
        for other in sorted(ejected, key=lambda other: (-sum(self.pool.held[other].values()), other)):
            self._put(other, *self._best_spot(other))

    def _serve_idle(self) -> None:
        """Jobs that were to have nothing, or got nothing, take what nobody else can use."""
        for job, where in enumerate(self.where):
            if not where and self.gaps.largest > 0:
                self._put(job, *self._best_spot(job, most=1 << 30))

    def _best_spot(self, job: int, most: int | None = None) -> tuple[Where, float]:
        """The cheapest way to serve a job that has nothing, without touching the others.

        It takes no more than `most`, or else what it should have: as long as nobody takes more than that, something is
        left for everyone.
        """
        row, pool, most = self._row(job), self.pool, self._wanted[job] if most is None else most
        where, cost = NOWHERE, self._idle[job]
        if self._stay[job] < cost and self._fits(pool.held[job]):
            where, cost = pool.held[job], self._stay[job]
        size = row.best_one[row.index_up_to(min(self.gaps.largest, most), pool)]
        if row.one[size] < cost and (node := self._gap_for(job, pool.sizes[size])) >= 0:
            where, cost = {node: pool.sizes[size]}, row.one[size]
        if row.least_many < cost:
            size = row.best_many[row.index_up_to(min(self.gaps.loose, most), pool)]
            if row.many[size] < cost and (nodes := self._spread(pool.sizes[size])) is not None:
                where, cost = nodes, row.many[size]
        return where, cost

    def _grow(self) -> None:
        """Give what is left over on a node to whoever there gains most by it."""
        for node, jobs in enumerate(self._on):
            while (free := self.gaps.free[node]) > 0:
                best: tuple[float, int, Where, float] | None = None
                for job in jobs:
                    where, cost = self._grown(job, node, free)
                    gain = cost - self.cost[job]
                    if gain < -1e-12 and (best is None or gain < best[0]):
                        best = gain, job, where, cost
                if best is None:
                    break
                _, job, where, cost = best
                self._lift(job)
                self._put(job, where, cost)

    def _grown(self, job: int, node: int, free: int) -> tuple[Where, float]:
        """The best a job can make of GPUs that are free on one of its nodes."""
        row, where = self._row(job), self.where[job]
        alone, total = len(where) == 1, sum(where.values())
        costs, best = (row.one, row.best_one) if alone else (row.many, row.best_many)
        size = best[row.index_up_to(total + free, self.pool)]
        more = self.pool.sizes[size] - total
        if not alone and more <= 0:  # less would leave other nodes
            return where, self.cost[job]
        return {**where, node: where[node] + more}, costs[size]

    # -- the pieces ----------------------------------------------------------------------------------------------

    def _row(self, job: int) -> _Row:
        if job not in self._rows:
            pool = self.pool
            if self._best is None:
                self._best = _best_so_far(pool.one_JS), _best_so_far(pool.many_JS)
            one_JS, many_JS = self._best
            self._rows[job] = _Row(
                pool.one_JS[job].tolist(), pool.many_JS[job].tolist(), one_JS[job].tolist(), many_JS[job].tolist()
            )
        return self._rows[job]

    def _fits(self, where: Where) -> bool:
        spans = len(where) > 1
        for node, count in where.items():
            if self.gaps.free[node] < count and self.pool.gpus[node] > 0:
                return False
            if spans and self.gaps.closed[node]:
                return False
        return True

    def _put(self, job: int, where: Where, cost: float) -> None:
        if where == self.pool.held[job]:
            cost = min(cost, self._stay[job])  # it came back to where it is
        self.where[job], self.cost[job] = where, cost
        for node, count in where.items():
            self.gaps.add(node, -count)
            self._on[node].add(job)
        if len(where) > 1 and self.pool.exclusive:
            for node in where:
                self.gaps.close(node, closed=True)

    def _lift(self, job: int) -> None:
        where = self.where[job]
        for node, count in where.items():
            self.gaps.add(node, count)
            self._on[node].discard(job)
        if len(where) > 1 and self.pool.exclusive:
            for node in where:
                self.gaps.close(node, closed=False)
        self.where[job], self.cost[job] = NOWHERE, self._idle[job]


class _Row:
    """One job's costs as plain lists, with the best size up to each size."""

    __slots__ = ("best_many", "best_one", "least_many", "many", "one")

    def __init__(self, one: list[float], many: list[float], best_one: list[int], best_many: list[int]) -> None:
        self.one, self.many = one, many
        self.best_one, self.best_many = best_one, best_many
        self.least_many = many[best_many[-1]]

    @staticmethod
    def index_up_to(count: int, pool: Pool) -> int:
        """The largest size of at most `count` GPUs."""
        sizes = pool.sizes
        if count < len(sizes) and sizes[count] == count:
            return count  # every number is a size
        index = min(count, len(sizes) - 1)
        while sizes[index] > count:
            index -= 1
        return index

    def sizes_near(self, wanted: int, where: Where, pool: Pool) -> list[int]:
        """The size it should have, and the next smaller and larger one."""
        if wanted == STAY:
            wanted = self.index_up_to(sum(where.values()), pool)
        return [size for size in (wanted, wanted - 1, wanted + 1) if 0 < size < len(self.one)]


def _best_so_far(cost_JS: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each size the cheapest one up to it; the smallest of equals."""
    least_JS = np.minimum.accumulate(cost_JS, axis=1)
    cheaper_JS = np.zeros(cost_JS.shape, dtype=np.bool_)
    cheaper_JS[:, 1:] = cost_JS[:, 1:] < least_JS[:, :-1]
    return np.maximum.accumulate(np.where(cheaper_JS, np.arange(cost_JS.shape[1]), 0), axis=1)
