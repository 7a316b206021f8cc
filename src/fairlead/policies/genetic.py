"""Pollux's own search for the best allocation (Qiao et al., OSDI '21, section 4.2), to compare `allocator` with.

A genetic algorithm. An individual is an allocation: for every job the GPUs it gets on every node. A generation has as
many children as there are individuals:

    select   two tournaments of two find the parents
    cross    the children swap the rows after one cut through the list of jobs
    mutate   some rows go back to what the job holds, some lose GPUs, and some gain them on nodes with room
    repair   what no cluster could do is cut back to what one can
    survive  the best of parents and children, without duplicates

Where we differ: Pollux begins with the population that the round before ended with. A policy is a pure function of its
snapshot, so there is no memory of earlier rounds, and every search begins with one individual, the current state. Of
Pollux's two objectives only the fitness, which decides in the end, is used. Jobs that must stay take no part.

All chance comes from the seed: the same problem and seed give the same answer.

Legend: P individuals, J jobs that may move in order of the problem, N nodes, K numbers of GPUs, R rows (a job in an
individual), E elements (a job on a node in an individual).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.policies.allocator import EXACT_WORK, Answer, Problem, sizing_costs
from fairlead.policies.sizing import exact, priced

Floats = NDArray[np.float64]
Counts = NDArray[np.int16]
Flags = NDArray[np.bool_]
Generator = np.random.Generator

#: Chance that a row goes back to what the job holds; that a row loses GPUs, and then each of its elements.
RESET, SHRINK, ZERO = 0.1, 0.1, 0.1


def evolve(problem: Problem, *, seed: int, population: int = 100, generations: int = 100) -> Answer:
    """The best allocation after so many generations, with the same bound as that of `allocator.allocate`."""
    types = problem.one_JTS.shape[1]
    if types != 1:
        raise InvalidSpec(f"the genetic search was given {types} GPU types; it knows one: search exactly instead")
    if not len(problem.idle_J):
        return Answer((), 0.0, 0.0)
    game = _Game.of(problem)
    rng = np.random.default_rng(seed)
    best_PJN = _repair(game, game.held_JN[None].copy(), rng)
    cost_P = _cost(game, best_PJN).sum(axis=1)
    for _ in range(generations if len(game.mobile) else 0):
        children_PJN = _cross(best_PJN, population, rng)
        _mutate(game, children_PJN, rng)
        children_PJN = _repair(game, children_PJN, rng)
        every_PJN = np.concatenate([best_PJN, children_PJN])
        every_P = np.concatenate([cost_P, _cost(game, children_PJN).sum(axis=1)])
        kept = _survivors(every_PJN, every_P, population)
        best_PJN, cost_P = every_PJN[kept], every_P[kept]
    return _answer(problem, game, best_PJN[0], float(cost_P[0]))


@dataclass(frozen=True)
class _Game:
    """What the search looks up: the jobs that may move, and what is left for them by those that may not."""

    #: Places in the problem.
    mobile: NDArray[np.int64]
    held_JN: Counts
    #: Cost by number of GPUs on one node and on several, infinite for what is no size; column 0 is that of nothing.
    one_JK: Floats
    many_JK: Floats
    stay_J: Floats
    most_J: NDArray[np.int64]
    #: GPUs that may be given out.
    gpus_N: NDArray[np.int64]
    #: Nothing new may be placed here, but who is here may stay.
    closed_N: Flags
    #: A job that may not move spans this node and others.
    spanned_N: Flags
    exclusive: bool
    most_nodes: int

    @staticmethod
    def of(problem: Problem) -> _Game:
        held_JN = np.zeros((len(problem.held), len(problem.gpus_N)), dtype=np.int16)
        for job, nodes in enumerate(problem.held):
            for node, count in nodes.items():
                held_JN[job, node] = count
        pinned_J = np.isinf(problem.idle_J) & np.isfinite(problem.stay_J)
        mobile, pinned_JN = np.flatnonzero(~pinned_J), held_JN[pinned_J]
        spans_J = (pinned_JN > 0).sum(axis=1) > 1
        one_JK, many_JK = (_by_count(problem, costs[mobile, 0]) for costs in (problem.one_JTS, problem.many_JTS))
        one_JK[:, 0] = many_JK[:, 0] = problem.idle_J[mobile]
        allowed_JK = np.isfinite(np.minimum(one_JK, many_JK)) & (np.arange(one_JK.shape[1]) > 0)
        return _Game(
            mobile,
            held_JN[mobile],
            one_JK,
            many_JK,
            problem.stay_J[mobile],
            np.where(allowed_JK, np.arange(one_JK.shape[1]), 0).max(axis=1),
            np.maximum(problem.gpus_N - pinned_JN.sum(axis=0), 0),
            problem.gpus_N == 0,
            (pinned_JN[spans_J] > 0).any(axis=0),
            problem.exclusive,
            problem.most_nodes,
        )


def _by_count(problem: Problem, cost_JS: Floats) -> Floats:
    cost_JK = np.full((len(cost_JS), int(problem.sizes_S[-1]) + 1), np.inf)
    cost_JK[:, problem.sizes_S] = cost_JS
    return cost_JK


def _cost(game: _Game, some_PJN: Counts) -> Floats:
    """What each job pays, [P, J]."""
    gpus_PJ, nodes_PJ = some_PJN.sum(axis=2, dtype=np.int64), (some_PJN > 0).sum(axis=2)
    job_J = np.arange(gpus_PJ.shape[1])
    gpus_PJ = np.minimum(gpus_PJ, game.one_JK.shape[1] - 1)  # only who stays may have more, and pays something else
    moved_PJ = np.where(nodes_PJ > 1, game.many_JK[job_J, gpus_PJ], game.one_JK[job_J, gpus_PJ])
    return np.where(_stays(game, some_PJN), game.stay_J, moved_PJ)


def _stays(game: _Game, some_PJN: Counts) -> Flags:
    """Who keeps something, exactly as it is, [P, J]."""
    return np.asarray((some_PJN == game.held_JN).all(axis=2) & game.held_JN.any(axis=1))


# -- from one generation to the next -----------------------------------------------------------------------------------


def _cross(best_PJN: Counts, population: int, rng: Generator) -> Counts:
    """Children of parents that are in order of cost, so that the first in the list wins a tournament."""
    pairs = -(-population // 2)
    parent = rng.integers(len(best_PJN), size=(2, pairs, 2)).min(axis=2)
    jobs = best_PJN.shape[1]
    cut = rng.integers(jobs + 1, size=(pairs, 1))
    first = (np.arange(jobs) < cut)[:, :, None]
    mother_PJN, father_PJN = best_PJN[parent[0]], best_PJN[parent[1]]
    children = (np.where(first, mother_PJN, father_PJN), np.where(first, father_PJN, mother_PJN))
    return np.concatenate(children)[:population]


def _mutate(game: _Game, some_PJN: Counts, rng: Generator) -> None:
    """In place; what comes of it may be too much of everything."""
    rows = some_PJN.shape[:2]
    individual, job = np.nonzero(rng.random(rows) < RESET)
    some_PJN[individual, job] = game.held_JN[job]
    shrinks = rng.random(rows) < SHRINK
    shrunk_RN = some_PJN[shrinks]
    shrunk_RN[rng.random(shrunk_RN.shape) < ZERO] = 0
    some_PJN[shrinks] = shrunk_RN
    raised = rng.random(some_PJN.shape, dtype=np.float32) < _chance_of_more(game, some_PJN)
    most_E = game.gpus_N[np.nonzero(raised)[2]]
    now_E = some_PJN[raised]
    some_PJN[raised] = rng.integers(now_E, np.maximum(most_E, now_E), endpoint=True)


def _chance_of_more(game: _Game, some_PJN: Counts) -> NDArray[np.float32]:
    """On nodes with room, about one of the jobs that may grow, and about one of those that are already there."""
    room_PN = some_PJN.sum(axis=1, dtype=np.int64) < game.gpus_N
    grows_PJ = some_PJN.sum(axis=2, dtype=np.int64) < game.most_J
    here_PJN = (some_PJN > 0) & grows_PJ[:, :, None]
    anyone_P = (1.0 / np.maximum(grows_PJ.sum(axis=1), 1)).astype(np.float32)[:, None, None]  # p1
    present_PN = (1.0 / np.maximum(here_PJN.sum(axis=1), 1)).astype(np.float32)[:, None, :]  # p2
    chance_PJN = np.where(here_PJN, anyone_P + present_PN - anyone_P * present_PN, anyone_P)
    return np.asarray(chance_PJN * (grows_PJ[:, :, None] & room_PN[:, None, :]))


def _survivors(every_PJN: Counts, every_P: Floats, population: int) -> list[int]:
    """The cheapest, cheapest first, each once; of equals those that came first."""
    seen: dict[bytes, int] = {}
    for individual in np.argsort(every_P, kind="stable").tolist():
        seen.setdefault(every_PJN[individual].tobytes(), individual)
        if len(seen) == population:
            break
    return list(seen.values())


# -- repair ------------------------------------------------------------------------------------------------------------


def _repair(game: _Game, some_PJN: Counts, rng: Generator) -> Counts:
    """The nearest that can be carried out; earlier jobs come first. What is feasible stays as it is."""
    if game.exclusive:
        _separate(game, some_PJN)
    _shorten(game, some_PJN, rng)
    # Whoever stays on a closed node takes nothing from anyone.
    room_N = game.gpus_N + np.where(game.closed_N, game.held_JN.sum(axis=0, dtype=np.int64), 0)
    before_PJN = np.cumsum(some_PJN, axis=1, dtype=np.int32) - some_PJN
    some_PJN = np.minimum(some_PJN, np.maximum(room_N - before_PJN, 0)).astype(np.int16)
    if game.closed_N.any():
        some_PJN[(~_stays(game, some_PJN))[:, :, None] & game.closed_N] = 0
    some_PJN[np.isinf(_cost(game, some_PJN))] = 0
    return some_PJN


def _separate(game: _Game, some_PJN: Counts) -> None:
    """At most one job that spans several nodes on any node: the first keeps it."""
    spans_PJN = (some_PJN > 0) & ((some_PJN > 0).sum(axis=2) > 1)[:, :, None]
    some_PJN[spans_PJN & ((np.cumsum(spans_PJN, axis=1, dtype=np.int32) > 1) | game.spanned_N)] = 0


def _shorten(game: _Game, some_PJN: Counts, rng: Generator) -> None:
    """At most a job's largest size, on at most so many nodes: cut back on nodes in random order."""
    gpus_PJ, nodes_PJ = some_PJN.sum(axis=2, dtype=np.int64), (some_PJN > 0).sum(axis=2)
    long_PJ = ((gpus_PJ > game.most_J) | (nodes_PJ > game.most_nodes)) & ~_stays(game, some_PJN)
    job_R = np.nonzero(long_PJ)[1]
    long_RN = some_PJN[long_PJ]
    order_RN = rng.random(long_RN.shape).argsort(axis=1)
    shuffled_RN = np.take_along_axis(long_RN, order_RN, axis=1)
    before_RN = np.cumsum(shuffled_RN, axis=1, dtype=np.int64) - shuffled_RN
    shuffled_RN = np.minimum(shuffled_RN, np.maximum(game.most_J[job_R, None] - before_RN, 0)).astype(np.int16)
    shuffled_RN[np.cumsum(shuffled_RN > 0, axis=1) > game.most_nodes] = 0
    np.put_along_axis(long_RN, order_RN, shuffled_RN, axis=1)
    some_PJN[long_PJ] = long_RN


def _answer(problem: Problem, game: _Game, best_JN: Counts, cost: float) -> Answer:
    where = [dict(nodes) for nodes in problem.held]
    for job, row_N in zip(game.mobile.tolist(), best_JN, strict=True):
        where[job] = {int(node): int(row_N[node]) for node in np.flatnonzero(row_N)}
    pinned = np.setdiff1d(np.arange(len(where)), game.mobile)
    costs = sizing_costs(problem)
    sizing = exact(costs) if costs.work <= EXACT_WORK else priced(costs)
    return Answer(where, cost + float(problem.stay_J[pinned].sum()), sizing.bound, sizing.price_T)
