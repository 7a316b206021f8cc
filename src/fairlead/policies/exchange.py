"""An answer with fewer moves that costs no more: running jobs return to the GPUs they hold.

Where GPU types are equally good for a job, prices send all jobs to the same one; what is too much there is given back
by the job that loses least, and often that is a running one: beside all that a long job still has to do its pause is
little. An integer programme stops within its gap, with the same effect. And one type is placed before the other, so
room is made on one while nodes of the other are empty. So, last of all:

    return    Each running job that was moved or stopped goes back, if that costs no more: the jobs that have its GPUs
              in the answer, all of which start or move in any case, take the best that is free then. At equal cost only
              a job that came later may be left to wait by this: of equals the first to come runs, as on one GPU type.
    remain    If jobs still move: all jobs that hold GPUs keep them, and the others take the best of the free ones, the
              largest job first, or in order of arrival. Taken if it costs less, or as much and all that the answer
              serves are served.

Neither ever raises the cost, so a bound on the cost stays one.

Legend: T GPU types, S sizes. Jobs are in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fairlead.policies.gaps import Gaps, Where

if TYPE_CHECKING:
    from fairlead.policies.allocator import Problem

#: Passes over the jobs that move, and returns tried in all: some tens of milliseconds.
PASSES, TRIALS = 3, 200
#: Costs that differ by no more than this share of themselves are equal.
EQUAL = 1e-12
#: The cheapest choices of a job that are looked at, in search of one for which there is room.
CHOICES_TRIED = 64


def steadied(problem: Problem, where: Sequence[Where], paid_J: Sequence[float]) -> tuple[list[Where], list[float]]:
    """The answer with running jobs back where they are, as far as that costs no more; and what it costs each job."""
    board = _Board(problem, where, paid_J)
    board.return_displaced()
    if board.displaced():
        newcomers = [job for job, stay in enumerate(problem.stay_J.tolist()) if math.isinf(stay)]
        by_size = sorted(newcomers, key=lambda job: (-sum(board.where[job].values()), job))
        for order in (by_size, newcomers) if len(newcomers) <= TRIALS else ():
            remained = _remaining(problem, order)
            served = all(after or not before for before, after in zip(board.where, remained.where, strict=True))
            change, equal = remained.total - board.total, EQUAL * abs(board.total)
            if change < -equal or (served and change <= equal):
                board = remained
    return board.where, board.cost


class _Choice(NamedTuple):
    """So many GPUs of a type, on one node or on several."""

    cost: float
    kind: int
    gpus: int
    spans: bool


class _Board:
    """Where the jobs are, over all GPU types, while they change places; and what that costs each."""

    def __init__(self, problem: Problem, where: Sequence[Where], paid_J: Sequence[float]) -> None:
        self._problem = problem
        self.where: list[Where] = [{} for _ in where]
        self.cost: list[float] = problem.idle_J.tolist()
        self._kind: list[int] = problem.type_N.tolist()
        self._open: list[bool] = (problem.gpus_N > 0).tolist()
        types = range(problem.one_JTS.shape[1])
        self._gaps = [Gaps(np.where(problem.type_N == kind, problem.gpus_N, 0).tolist()) for kind in types]
        self._on: list[set[int]] = [set() for _ in self._kind]
        self._sizes: list[int] = problem.sizes_S.tolist()
        #: By job: what its cheapest choices cost, and their places in the tables.
        self._cheapest: dict[int, tuple[list[float], list[int]]] = {}
        self._trials = 0
        for job, (nodes, paid) in enumerate(zip(where, paid_J, strict=True)):
            if nodes:
                self._put(job, nodes, paid)

    @property
    def total(self) -> float:
        return math.fsum(self.cost)

    def displaced(self) -> list[int]:
        """Jobs that could keep what they hold, but do not: moved, resized or stopped."""
        problem = self._problem
        return [
            job
            for job, (nodes, stay) in enumerate(zip(problem.held, problem.stay_J.tolist(), strict=True))
            if nodes and math.isfinite(stay) and self.where[job] != nodes
        ]

    # -- returning -----------------------------------------------------------------------------------------------

    def return_displaced(self) -> None:
        """Jobs that move go back one by one, while that costs no more."""
        for _ in range(PASSES):
            returned = [job for job in self.displaced() if self._returns(job)]
            if not returned or self._trials >= TRIALS:
                return

    def _returns(self, job: int) -> bool:
        """Put the job back on what it holds, and jobs that have it elsewhere; False, and nothing done, if dearer."""
        self._trials += 1
        if self._trials > TRIALS:
            return False
        was, had = self.where[job], self.cost[job]
        self._lift(job)
        blockers = self._blockers(job)
        if blockers is None:
            self._put(job, was, had)
            return False
        before = {job: (was, had), **{other: (self.where[other], self.cost[other]) for other in blockers}}
        for other in blockers:
            self._lift(other)
        self._put(job, self._problem.held[job], float(self._problem.stay_J[job]))
        for other in sorted(blockers, key=lambda other: (-sum(before[other][0].values()), other)):
            self.settle(other)
        change = math.fsum(self.cost[other] - cost for other, (_, cost) in before.items())
        equal = EQUAL * math.fsum(abs(cost) for _, cost in before.values())
        in_turn = all(self.where[other] or other > job for other in blockers)
        if change < -equal or (in_turn and change <= equal):
            return True
        for other in before:
            self._lift(other)
        for other, (nodes, cost) in before.items():
            self._put(other, nodes, cost)
        return False

    def _blockers(self, job: int) -> set[int] | None:
        """Jobs to be lifted so that the job, which is nowhere, fits where it was; None if some of them stay there."""
        held = self._problem.held[job]
        found: set[int] = set()
        for node, count in held.items():
            if not self._open[node]:
                continue  # it takes no other job, and the job is there itself
            mobile = sorted((self.where[other][node], other) for other in self._on[node] if self._moves(other))
            if len(held) > 1 and self._problem.exclusive:
                spanning = [other for other in self._on[node] if len(self.where[other]) > 1]
                if not all(self._moves(other) for other in spanning):
                    return None
                found.update(spanning)
            need = count - self._free(node) - sum(gpus for gpus, other in mobile if other in found)
            mobile = [(gpus, other) for gpus, other in mobile if other not in found]
            while need > 0:
                if not mobile:
                    return None
                fitting = next((place for place, (gpus, _) in enumerate(mobile) if gpus >= need), len(mobile) - 1)
                gpus, other = mobile.pop(fitting)
                found.add(other)
                need -= gpus
        return found

    def _moves(self, job: int) -> bool:
        return self.where[job] != self._problem.held[job]

    # -- places --------------------------------------------------------------------------------------------------

    def settle(self, job: int) -> None:
        """Put a job that is nowhere on the best of the free GPUs, if that is better than to wait."""
        problem = self._problem
        where, cost = {}, self.cost[job]
        stay, held = float(problem.stay_J[job]), problem.held[job]
        if held and stay <= cost and self._blockers(job) == set():
            where, cost = dict(held), stay
        for choice in self._by_cost(job):
            if choice.cost >= cost:
                break
            if (nodes := self._room_for(choice)) is not None:
                where, cost = nodes, choice.cost
                break
        if where:
            self._put(job, where, cost)

    def _room_for(self, choice: _Choice) -> dict[int, int] | None:
        gaps = self._gaps[choice.kind]
        if choice.spans:
            nodes = gaps.spread(choice.gpus, self._problem.most_nodes)
            return dict(nodes) if nodes is not None and len(nodes) > 1 else None
        node = gaps.tightest(choice.gpus)
        return {node: choice.gpus} if node >= 0 else None

    def _by_cost(self, job: int) -> Iterator[_Choice]:
        """A job's cheapest choices; of equal ones those on one node first, then the smallest."""
        if job not in self._cheapest:
            both_X = np.concatenate([self._problem.one_JTS[job].ravel(), self._problem.many_JTS[job].ravel()])
            order = np.argsort(both_X, kind="stable")[:CHOICES_TRIED]
            self._cheapest[job] = both_X[order].tolist(), order.tolist()
        _, types, sizes = self._problem.one_JTS.shape
        for cost, place in zip(*self._cheapest[job], strict=True):
            spans_and_kind, size = divmod(place, sizes)
            if size and math.isfinite(cost):
                yield _Choice(cost, spans_and_kind % types, self._sizes[size], spans_and_kind >= types)

    def _free(self, node: int) -> int:
        return self._gaps[self._kind[node]].free[node]

    def _put(self, job: int, where: Where, cost: float) -> None:
        if where == self._problem.held[job]:
            cost = min(cost, float(self._problem.stay_J[job]))  # it came back to where it is
        self.where[job], self.cost[job] = where, cost
        self._occupy(job, where, 1)

    def _lift(self, job: int) -> None:
        self._occupy(job, self.where[job], -1)
        self.where[job], self.cost[job] = {}, float(self._problem.idle_J[job])

    def _occupy(self, job: int, where: Where, sign: int) -> None:
        for node, count in where.items():
            gaps = self._gaps[self._kind[node]]
            gaps.add(node, -sign * count)
            if len(where) > 1 and self._problem.exclusive:
                gaps.close(node, closed=sign > 0)
            if sign > 0:
                self._on[node].add(job)
            else:
                self._on[node].discard(job)


def _remaining(problem: Problem, newcomers: Iterable[int]) -> _Board:
    """All jobs that hold GPUs keep them; the others take the best of the free ones, in the order given."""
    stays_J = np.isfinite(problem.stay_J)
    where = [nodes if stays else {} for nodes, stays in zip(problem.held, stays_J.tolist(), strict=True)]
    board = _Board(problem, where, np.where(stays_J, problem.stay_J, problem.idle_J).tolist())
    for job in newcomers:
        board.settle(job)
    return board
