"""Pollux's own search: what it finds can be carried out, is repeatable, and is between doing nothing and the bound.

Legend: J jobs, S sizes, N nodes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.policies.allocator import Answer, Problem, allocate, costs_of
from fairlead.policies.genetic import _cross, evolve

Where = dict[int, int]


def make_problem(gpus: list[int], jobs: int, *, held: list[Where] | None = None, seed: int = 0, **more: Any) -> Problem:
    """Jobs of random speed that gain less and less by more GPUs, less so on several nodes, and lose by moving."""
    rng = np.random.default_rng(seed)
    size_S = np.arange(sum(gpus) + 1)
    speed_JS = rng.uniform(0.5, 2.0, (jobs, 1)) * size_S ** rng.uniform(0.3, 1.0, (jobs, 1))
    held = held or [{} for _ in range(jobs)]
    factor = rng.uniform(0.4, 0.95, jobs)
    stay_J = np.full(jobs, np.inf)
    for job, where in enumerate(held):
        if where:
            speed = speed_JS[job, sum(where.values())] * (factor[job] if len(where) > 1 else 1.0)
            stay_J[job] = costs_of(np.array(speed), p=-1.0)
    one_JS = np.where((size_S > 0) & (size_S <= max(gpus)), costs_of(0.8 * speed_JS, p=-1.0), np.inf)
    many_JS = np.where(size_S > 1, costs_of(0.8 * factor[:, None] * speed_JS, p=-1.0), np.inf)
    given: dict[str, Any] = {
        "sizes_S": size_S,
        "one_JTS": one_JS[:, None],
        "many_JTS": many_JS[:, None],
        "idle_J": costs_of(np.zeros(jobs), p=-1.0),
        "stay_J": stay_J,
        "held": held,
        "gpus_N": np.array(gpus),
        "type_N": np.zeros(len(gpus), dtype=np.int64),
    }
    return Problem(**(given | more))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Some jobs in place, some of them pinned, some with a smallest size, some nodes closed."""
    gpus = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6))
    jobs = draw(st.integers(1, 10))
    exclusive = draw(st.booleans())
    free, spanned, held = list(gpus), [False] * len(gpus), [dict[int, int]() for _ in range(jobs)]
    for job in range(jobs):
        nodes = draw(st.sets(st.integers(0, len(gpus) - 1), max_size=2))
        if all(free[n] for n in nodes) and not (exclusive and len(nodes) > 1 and any(spanned[n] for n in nodes)):
            for node in nodes:
                held[job][node] = draw(st.integers(1, free[node]))
                free[node] -= held[job][node]
                spanned[node] |= len(nodes) > 1
    problem = make_problem(gpus, jobs, held=held, seed=draw(st.integers(0, 1000)), exclusive=exclusive)
    for job in range(jobs):
        if held[job] and draw(st.sampled_from([True, False, False])):
            problem.one_JTS[job] = problem.many_JTS[job] = problem.idle_J[job] = np.inf
        least, most = draw(st.sampled_from([(1, 100), (1, 2), (2, 4), (3, 3)]))
        problem.one_JTS[job, :, :least] = problem.many_JTS[job, :, :least] = np.inf
        problem.one_JTS[job, :, most + 1 :] = problem.many_JTS[job, :, most + 1 :] = np.inf
    closed = draw(st.sets(st.integers(0, len(gpus) - 1), max_size=1))
    gpus_N = np.array([0 if node in closed else count for node, count in enumerate(gpus)])
    return replace(problem, gpus_N=gpus_N, most_nodes=draw(st.sampled_from([2, 3, 16])))


def cost_of(problem: Problem, job: int, where: Any) -> float:
    if not where:
        return float(problem.idle_J[job])
    if where == problem.held[job]:
        return float(problem.stay_J[job])
    return float((problem.one_JTS if len(where) == 1 else problem.many_JTS)[job, 0, sum(where.values())])


def check(problem: Problem, answer: Answer) -> None:
    used, spanned = [0] * len(problem.gpus_N), [0] * len(problem.gpus_N)
    for job, where in enumerate(answer.where):
        assert len(where) <= problem.most_nodes
        for node, count in where.items():
            assert count > 0
            assert problem.gpus_N[node] > 0 or where == problem.held[job], f"job {job} is new on closed node {node}"
            used[node] += count if problem.gpus_N[node] else 0
            spanned[node] += len(where) > 1
    assert (np.array(used) <= problem.gpus_N).all(), f"over-committed: {used} of {problem.gpus_N}"
    assert not problem.exclusive or max(spanned) <= 1, f"jobs that span nodes meet: {spanned}"
    costs = [cost_of(problem, job, where) for job, where in enumerate(answer.where)]
    assert answer.cost == pytest.approx(math.fsum(costs))
    assert math.isfinite(answer.cost)


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 3))
def test_what_is_found_can_be_carried_out_and_is_between_doing_nothing_and_the_bound(
    problem: Problem, seed: int
) -> None:
    answer = evolve(problem, seed=seed, population=12, generations=8)
    check(problem, answer)
    nothing = sum(cost_of(problem, job, where) for job, where in enumerate(problem.held))
    assert answer.bound - 1e-9 <= answer.cost <= nothing + 1e-9
    for job in np.flatnonzero(np.isinf(problem.idle_J)).tolist():
        assert answer.where[job] == problem.held[job], "a pinned job was moved"


def test_the_same_seed_finds_the_same_and_another_seed_something_else() -> None:
    problem = make_problem([4] * 4, 9)
    first, again, other = (evolve(problem, seed=seed, population=20, generations=5) for seed in (1, 1, 2))
    assert (first.where, first.cost) == (again.where, again.cost)
    assert first.where != other.where


def test_children_have_the_rows_of_one_parent_up_to_a_cut_and_of_the_other_after_it() -> None:
    parents_PJN = np.array([[[1]] * 6, [[2]] * 6], dtype=np.int16)
    children = _cross(parents_PJN, 40, np.random.default_rng(0))[:, :, 0]
    assert children.shape == (40, 6)
    assert ((np.diff(children, axis=1) != 0).sum(axis=1) <= 1).all()
    assert {tuple(sorted(set(child))) for child in children.tolist()} == {(1,), (2,), (1, 2)}
    assert (children == 1).mean() > 0.6  # the first is the better one, and wins most tournaments


def test_more_generations_never_cost_more() -> None:
    problem = make_problem([4] * 4, 9)
    costs = [evolve(problem, seed=0, generations=count).cost for count in (0, 1, 10, 40)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(9 * 1000.0)
    assert costs[-1] < 0.01 * costs[0]


def test_it_has_the_same_bound_as_the_exact_search_and_on_a_small_problem_comes_close() -> None:
    problem = make_problem([4, 4], 3)
    found, best = evolve(problem, seed=0), allocate(problem)
    assert found.bound == best.bound
    assert best.cost <= found.cost <= 1.05 * best.cost


def test_nobody_moves_where_that_would_not_pay() -> None:
    problem = make_problem([2, 2], 2, held=[{0: 2}, {1: 2}])
    assert evolve(problem, seed=0).where == [{0: 2}, {1: 2}]


def test_a_pinned_job_keeps_its_gpus_and_its_nodes_to_itself() -> None:
    problem = make_problem([4, 4, 4], 3, held=[{}, {0: 1, 1: 1}, {}])
    problem.one_JTS[1] = problem.many_JTS[1] = problem.idle_J[1] = np.inf
    answer = evolve(problem, seed=0)
    check(problem, answer)
    assert answer.where[1] == {0: 1, 1: 1}
    assert all(len(answer.where[job]) == 1 for job in (0, 2))


def test_nobody_but_pinned_jobs_leaves_nothing_to_search() -> None:
    problem = make_problem([4], 1, held=[{0: 2}])
    problem.one_JTS[0] = problem.many_JTS[0] = problem.idle_J[0] = np.inf
    answer = evolve(problem, seed=0)
    assert (answer.where, answer.cost) == ([{0: 2}], problem.stay_J[0])


def test_no_jobs_get_nothing() -> None:
    assert evolve(make_problem([4], 0), seed=0).where == ()


def test_several_gpu_types_are_refused() -> None:
    problem = make_problem([4, 4], 2)
    two = np.repeat(problem.one_JTS, 2, axis=1)
    with pytest.raises(InvalidSpec, match="2 GPU types"):
        evolve(replace(problem, one_JTS=two, many_JTS=two, type_N=np.array([0, 1])), seed=0)
