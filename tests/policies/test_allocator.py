"""allocate(): what may never happen, on random problems; how good it is, against trying everything.

The stored problems of ../shared/bench are in tests/test_benchmarks.py.

Legend: J jobs, T GPU types, S sizes, N nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairlead.policies.allocator import EPSILON, Answer, Problem, allocate, costs_of, mean_of

EXPONENTS = (-1.0, -0.5, 0.0, 0.5, 1.0)

Where = dict[int, int]


# -- random problems ---------------------------------------------------------------------------------------------------


def make_problem(seed: int, *, jobs: int, gpus: list[int], types: int = 1, p: float = -1.0) -> Problem:
    """Jobs that gain less and less by more GPUs; often with smallest sizes, pinned jobs, and closed nodes."""
    rng = np.random.default_rng(seed)
    J, T, N = jobs, types, len(gpus)
    gpus_N, type_N = np.array(gpus), np.append(np.arange(T), rng.integers(T, size=N))[:N]
    sizes_S = np.array([*[range(7), range(18), (0, 1, 2, 4, 8, 16), (0, 2, 3)][rng.integers(4)]])
    most_nodes = int(rng.choice([1, 2, 16]))
    alone_JTS = rng.uniform(0.2, 2.0, (J, T, 1)) * sizes_S ** rng.uniform(0.2, 1.0, (J, T, 1))
    spread_JTS = np.where(sizes_S < 2, 0.0, alone_JTS * rng.uniform(0.3, 1.05, (J, 1, 1)))
    restart_J11 = rng.uniform(0.5, 1.0, (J, 1, 1))
    least_J = np.where(rng.random(J) < 0.3, rng.integers(1, 5, J), 1)
    most_J = least_J + rng.integers(0, 17, J)
    bad_JS = (sizes_S < least_J[:, None]) | (sizes_S > most_J[:, None]) | (sizes_S == 0)

    def cost(speed_JTS: Any) -> Any:
        return np.where(speed_JTS > 0, costs_of(speed_JTS, p=p), np.inf)

    one_JTS, many_JTS = cost(alone_JTS * restart_J11), cost(spread_JTS * restart_J11)
    for kind in range(T):
        largest = np.sort(gpus_N[type_N == kind])[::-1]  # what no nodes could hold is not on offer
        one_JTS[:, kind][bad_JS | (sizes_S > largest[0])] = np.inf
        many_JTS[:, kind][bad_JS | (sizes_S > largest[:most_nodes].sum())] = np.inf
    problem = Problem(
        sizes_S=sizes_S,
        one_JTS=one_JTS,
        many_JTS=many_JTS,
        idle_J=costs_of(np.zeros(J), p=p),
        stay_J=np.full(J, np.inf),
        held=[{}] * J,
        gpus_N=gpus_N,
        type_N=type_N,
        exclusive=bool(rng.random() < 0.5),
        most_nodes=most_nodes,
    )
    return problem if rng.random() < 0.4 else occupied(problem, cost(alone_JTS), cost(spread_JTS), rng)


def occupied(problem: Problem, alone_JTS: Any, spread_JTS: Any, rng: np.random.Generator) -> Problem:
    """The same after some jobs were put somewhere, some of them were pinned, and some nodes closed."""
    J, N = len(problem.idle_J), len(problem.gpus_N)
    free_N, spanned_N = problem.gpus_N.copy(), np.zeros(N, dtype=bool)
    held: list[Where] = [{} for _ in range(J)]
    stay_J, idle_J = problem.stay_J.copy(), problem.idle_J.copy()
    one_JTS, many_JTS = problem.one_JTS.copy(), problem.many_JTS.copy()
    pinned = rng.choice([0.0, 0.3])
    for job in rng.permutation(J)[: rng.integers(0, J + 1)].tolist():
        kind, size = int(rng.integers(one_JTS.shape[1])), int(rng.integers(1, len(problem.sizes_S)))
        left, where = int(problem.sizes_S[size]), {}
        for node in rng.permutation(np.flatnonzero(problem.type_N == kind)).tolist():
            if left and free_N[node] and not (problem.exclusive and spanned_N[node]):
                where[node] = int(min(left, free_N[node]))
                left -= where[node]
        stay = (alone_JTS if len(where) == 1 else spread_JTS)[job, kind, size]
        if left or len(where) > problem.most_nodes or not np.isfinite(stay):
            continue
        held[job], stay_J[job] = where, stay
        free_N[list(where)] -= list(where.values())
        spanned_N[list(where)] |= len(where) > 1
        if rng.random() < pinned:
            one_JTS[job], many_JTS[job], idle_J[job] = np.inf, np.inf, np.inf
    open_N = rng.random(N) >= rng.choice([0.0, 0.3])
    return replace(
        problem,
        one_JTS=one_JTS,
        many_JTS=many_JTS,
        idle_J=idle_J,
        stay_J=stay_J,
        held=held,
        gpus_N=problem.gpus_N * open_N,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    types = draw(st.integers(1, 3))
    return make_problem(
        draw(st.integers(0, 2**32 - 1)),
        jobs=draw(st.integers(1, 24)),
        gpus=draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=types, max_size=10)),
        types=types,
        p=draw(st.sampled_from(EXPONENTS)),
    )


def tiny_problem(seed: int, *, types: int, p: float) -> Problem:
    rng = np.random.default_rng(seed)
    gpus = rng.integers(1, 4, size=int(rng.integers(types, 4))).tolist()
    return make_problem(seed, jobs=int(rng.integers(1, 5)), gpus=gpus, types=types, p=p)


def small_problem(gpus: list[int], jobs: int, **more: Any) -> Problem:
    """Jobs that are all alike: twice the speed with twice the GPUs, a tenth less on several nodes or after a move."""
    size_S = np.arange(sum(gpus) + 1.0)
    held = more.pop("held", [{}] * jobs)
    p = more.pop("p", -1.0)
    one_S = np.where((size_S > 0) & (size_S <= max(gpus)), costs_of(0.9 * size_S, p=p), np.inf)
    many_S = np.where(size_S > 1, costs_of(0.81 * size_S, p=p), np.inf)
    stay_J = [costs_of(np.array((0.9 if len(w) > 1 else 1.0) * sum(w.values())), p=p) if w else np.inf for w in held]
    given: dict[str, Any] = {
        "sizes_S": np.arange(len(size_S)),
        "one_JTS": np.tile(one_S, (jobs, 1, 1)),
        "many_JTS": np.tile(many_S, (jobs, 1, 1)),
        "idle_J": costs_of(np.zeros(jobs), p=p),
        "stay_J": np.array(stay_J),
        "held": held,
        "gpus_N": np.array(gpus),
        "type_N": np.zeros(len(gpus), dtype=np.int64),
    }
    return Problem(**(given | more))


# -- what may never happen ---------------------------------------------------------------------------------------------


def cost_of(problem: Problem, job: int, where: Mapping[int, int]) -> float:
    """What a job pays for an allocation, from the tables."""
    if not where:
        return float(problem.idle_J[job])
    if where == problem.held[job]:
        return float(problem.stay_J[job])
    kinds = {int(problem.type_N[node]) for node in where}
    size = np.flatnonzero(problem.sizes_S == sum(where.values()))
    if len(kinds) != 1 or not len(size):
        return math.inf
    table = problem.one_JTS if len(where) == 1 else problem.many_JTS
    return float(table[job, kinds.pop(), size[0]])


def check(problem: Problem, answer: Answer) -> None:
    """Everything an answer must keep to, whatever the problem."""
    used_N, spanned_N = np.zeros((2, len(problem.gpus_N)), dtype=int)
    for job, where in enumerate(answer.where):
        assert all(count > 0 for count in where.values())
        assert len(where) <= problem.most_nodes, f"job {job} spans {len(where)} nodes"
        assert len({int(problem.type_N[node]) for node in where}) <= 1, f"job {job} mixes GPU types"
        for node, count in where.items():
            if problem.gpus_N[node]:
                used_N[node] += count
            else:
                assert where == problem.held[job], f"job {job} is new on closed node {node}"
            spanned_N[node] += len(where) > 1
    assert (used_N <= problem.gpus_N).all(), f"over-committed: {used_N} of {problem.gpus_N}"
    assert not problem.exclusive or (spanned_N <= 1).all(), f"jobs that span nodes meet: {spanned_N}"
    costs = [cost_of(problem, job, where) for job, where in enumerate(answer.where)]
    assert np.isfinite(costs).all(), f"a job was given what it may not have: {costs}"
    assert answer.cost == pytest.approx(sum(costs), rel=2e-9, abs=2e-9)
    assert answer.cost >= answer.bound - slack(answer)


def slack(answer: Answer) -> float:
    return 1e-9 * (1.0 + abs(answer.bound))


@settings(max_examples=400, deadline=None)
@given(problems())
def test_an_answer_can_be_carried_out_costs_what_it_says_and_respects_its_bound(problem: Problem) -> None:
    check(problem, allocate(problem))


@settings(max_examples=50, deadline=None)
@given(problems())
def test_the_same_problem_has_the_same_answer(problem: Problem) -> None:
    first, second = allocate(problem), allocate(problem)
    assert (first.where, first.cost, first.bound) == (second.where, second.cost, second.bound)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_pinned_jobs_never_move(problem: Problem) -> None:
    where = allocate(problem).where
    for job in np.flatnonzero(np.isinf(problem.idle_J)).tolist():
        assert where[job] == problem.held[job]


@settings(max_examples=100, deadline=None)
@given(problems())
@example(tiny_problem(1397, types=1, p=0.0))
def test_an_answer_costs_no_more_than_leaving_everyone_where_they_are(problem: Problem) -> None:
    staying = sum(cost_of(problem, job, where) for job, where in enumerate(problem.held))
    answer = allocate(problem)
    assert answer.cost <= staying + slack(answer)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_nobody_moves_where_what_they_hold_is_the_optimum(problem: Problem) -> None:
    answer = allocate(problem)
    paid = np.array([cost_of(problem, job, where) for job, where in enumerate(answer.where)])
    assume(answer.cost <= answer.bound + slack(answer))
    stay_J = np.where([bool(where) for where in answer.where], paid, np.inf)
    dearer = {name: getattr(problem, name) + 0.01 for name in ("one_JTS", "many_JTS")}
    again = allocate(replace(problem, held=answer.where, stay_J=stay_J, **dearer))
    assert again.where == answer.where
    assert again.cost == pytest.approx(answer.cost)


# -- examples ----------------------------------------------------------------------------------------------------------


def gpus_of(answer: Answer) -> list[int]:
    return [sum(where.values()) for where in answer.where]


def test_no_jobs_get_nothing() -> None:
    assert allocate(small_problem([4], 0)).where == ()


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_job_alone_gets_all_there_is(p: float) -> None:
    assert allocate(small_problem([4, 4], 1, p=p)).where == [{0: 4, 1: 4}]


@pytest.mark.parametrize("p", [-1.0, -0.5, 0.0, 0.5])
@pytest.mark.parametrize("gpus", [[4, 4], [8], [1, 1, 2, 4]])
def test_equal_jobs_share_equally(gpus: list[int], p: float) -> None:
    assert gpus_of(allocate(small_problem(gpus, 8, p=p))) == [1] * 8


def test_of_more_jobs_than_gpus_as_many_as_there_are_gpus_get_one() -> None:
    answer = allocate(small_problem([2, 1, 4], 20))
    assert sorted(gpus_of(answer)) == [0] * 13 + [1] * 7


def test_on_nodes_of_different_sizes_each_job_fits_its_node() -> None:
    problem = small_problem([8, 2, 1], 3)
    only = np.full((3, 1, 12), np.inf)
    for job, size in enumerate((1, 8, 2)):
        only[job, 0, size] = problem.one_JTS[job, 0, size]
    never = np.full(only.shape, np.inf)
    assert allocate(replace(problem, one_JTS=only, many_JTS=never)).where == [{2: 1}, {0: 8}, {1: 2}]


def test_a_job_gets_its_smallest_size_or_nothing() -> None:
    problem = small_problem([4], 2)
    problem.one_JTS[:, :, 1:3] = problem.many_JTS[:, :, 1:3] = np.inf
    assert sorted(gpus_of(allocate(problem))) == [0, 4]


def test_a_job_on_a_closed_node_may_stay_and_nobody_joins_it() -> None:
    problem = small_problem([4, 4], 3, held=[{0: 4}, {}, {}], gpus_N=np.array([0, 4]))
    assert allocate(problem).where == [{0: 4}, {1: 2}, {1: 2}]


def test_a_job_that_leaves_a_closed_node_makes_no_room_there() -> None:
    problem = small_problem([4, 4], 2, held=[{0: 1}, {}], gpus_N=np.array([0, 4]))
    answer = allocate(problem)
    check(problem, answer)
    assert gpus_of(answer) == [2, 2]


def test_every_job_gets_the_gpu_type_that_suits_it() -> None:
    problem = small_problem([2, 2], 2)
    one = np.repeat(problem.one_JTS, 2, axis=1)
    one[0, 1] *= 3.0
    one[1, 0] *= 3.0
    many = np.full(one.shape, np.inf)
    assert allocate(replace(problem, one_JTS=one, many_JTS=many, type_N=np.array([0, 1]))).where == [{0: 2}, {1: 2}]


def test_a_job_that_had_to_make_room_is_not_put_back_while_another_type_is_arranged() -> None:
    """Job 2 needs a whole node. Job 1 may not move; job 0 may, but only to nowhere."""
    one = np.full((3, 2, 3), np.inf)
    one[2, 0, 2] = 1.0
    problem = Problem(
        sizes_S=np.arange(3),
        one_JTS=one,
        many_JTS=np.full(one.shape, np.inf),
        idle_J=np.array([10.0, np.inf, 1000.0]),
        stay_J=np.array([0.5, 0.5, np.inf]),
        held=[{0: 1}, {1: 1}, {}],
        gpus_N=np.array([2, 2, 2]),
        type_N=np.array([0, 0, 1]),
    )
    answer = allocate(problem)
    check(problem, answer)
    assert answer.where == [{}, {1: 1}, {0: 2}]


def test_nobody_waits_beside_free_gpus_because_somebody_else_does_not_fit() -> None:
    problem = small_problem([1, 1, 1], 2, many_JTS=np.full((2, 1, 4), np.inf))
    problem.one_JTS[1, 0] = [np.inf, np.inf, np.inf, 0.3]  # no node has three
    assert gpus_of(allocate(problem)) == [1, 0]


def test_a_job_may_hold_more_than_the_largest_size() -> None:
    problem = small_problem([4, 4], 2, held=[{0: 4, 1: 2}, {}])
    fewer = {name: getattr(problem, name)[..., :5] for name in ("sizes_S", "one_JTS", "many_JTS")}
    problem = replace(problem, **fewer)
    check(problem, allocate(problem))


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_power_mean_comes_back_from_its_costs(p: float) -> None:
    utility = np.array([0.3, 1.0, 2.5, 4.0])
    x = utility + EPSILON
    mean = math.exp(np.log(x).mean()) if p == 0 else float((x**p).mean() ** (1 / p))
    assert mean_of(float(costs_of(utility, p=p).sum()), p=p, weight=4.0) == pytest.approx(mean)
    assert (np.diff(costs_of(utility, p=p)) < 0).all()
    thrice = costs_of(utility, p=p, weight=np.full(4, 3.0))
    assert mean_of(float(thrice.sum()), p=p, weight=12.0) == pytest.approx(mean)


# -- how good it is ----------------------------------------------------------------------------------------------------


def optimum(problem: Problem) -> float:
    """By trying everything: the least cost of the jobs so far, for every (GPUs used on each node, nodes spanned)."""
    best = {((0,) * len(problem.gpus_N), 0): 0.0}
    for job in range(len(problem.idle_J)):
        options = list(choices(problem, job))
        after: dict[tuple[tuple[int, ...], int], float] = {}
        for (used, spanned), cost in best.items():
            for more, spans, price in options:
                total = tuple(a + b for a, b in zip(used, more, strict=True))
                if any(total[node] > gpus for node, gpus in enumerate(problem.gpus_N)) or spanned & spans:
                    continue
                key = (total, spanned | spans)
                after[key] = min(after.get(key, math.inf), cost + price)
        best = after
    return min(best.values())


def choices(problem: Problem, job: int) -> Iterator[tuple[tuple[int, ...], int, float]]:
    """(GPUs taken from each node, nodes spanned as bits, cost) of all a job may choose."""
    every = [range(int(gpus) + 1) for gpus in problem.gpus_N]
    wheres: list[Mapping[int, int]] = [{n: count for n, count in enumerate(row) if count} for row in product(*every)]
    for where in wheres if problem.held[job] in wheres else [*wheres, problem.held[job]]:
        cost = cost_of(problem, job, where)
        if len(where) <= problem.most_nodes and math.isfinite(cost):
            taken = tuple(where.get(node, 0) if gpus else 0 for node, gpus in enumerate(problem.gpus_N))
            spans = sum(1 << node for node in where) if len(where) > 1 and problem.exclusive else 0
            yield taken, spans, cost


#: By number of GPU types: the least share of tiny problems that is decided optimally, and the most that may be missing
#: on average. Prices are at their weakest where there are few jobs and several types.
QUALITY = {1: (0.95, 0.01), 2: (0.7, 0.12)}


@pytest.mark.parametrize("types", QUALITY)
@pytest.mark.parametrize("p", EXPONENTS)
def test_on_tiny_problems_it_is_mostly_the_optimum(p: float, types: int) -> None:
    missing = []
    for seed in range(60):
        problem = tiny_problem(seed, types=types, p=p)
        answer, least, J = allocate(problem), optimum(problem), len(problem.idle_J)
        assert least >= answer.bound - slack(answer), f"the bound of problem {seed} is none"
        assert answer.cost >= least - slack(answer), f"what was found for problem {seed} cannot be"
        missing.append(1.0 - mean_of(answer.cost, p=p, weight=J) / mean_of(least, p=p, weight=J))
    optimal, most_missing = QUALITY[types]
    assert np.mean(np.array(missing) <= 1e-9) >= optimal
    assert np.mean(missing) <= most_missing
