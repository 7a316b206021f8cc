"""Hierarchical fairness by water filling, and problems solved in parts."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from gavel_problems import Reference, check_shares, drawn

from fairlead.policies.gavel.hierarchy import Entity
from fairlead.policies.gavel.objectives import fair_need
from fairlead.policies.gavel.partition import parts_of
from fairlead.policies.gavel.problem import SharingProblem, throughput
from fairlead.policies.gavel.solution import solve


def filled(problem: SharingProblem, entities: list[Entity]) -> np.ndarray:
    """The definition, slowly: raise all that can rise until one cannot, which one program per job tells; and again."""
    need_J = fair_need(problem) / problem.weight_J
    level_J, stuck_J = np.zeros(len(need_J)), np.zeros(len(need_J), dtype=bool)
    while not stuck_J.all():
        rise_J = np.zeros(len(need_J))
        for number, entity in enumerate(entities):
            rows = np.flatnonzero((problem.entity_J == number) & ~stuck_J)
            if len(rows) and entity.fifo:
                rise_J[rows[np.argmax(problem.elapsed_J[rows])]] = entity.weight
            elif len(rows):
                weight = problem.weight_J[rows]
                rise_J[rows] = entity.weight * weight / weight.sum()
        base, level = Reference(problem), cp.Variable(nonneg=True)
        rate = [base.throughput(job) for job in range(len(need_J))]
        floors = [rate[job] >= level_J[job] * (1.0 - 1e-9) for job in range(len(need_J))]
        rising = [
            rate[job] >= level_J[job] + level * rise_J[job] * need_J[job] for job in np.flatnonzero(rise_J).tolist()
        ]
        level_J = level_J + base.solve(cp.Maximize(level), floors + rising) * rise_J * need_J
        for job in np.flatnonzero(~stuck_J).tolist():
            base = Reference(problem)
            floors = [base.throughput(other) >= level_J[other] * (1.0 - 1e-8) for other in range(len(need_J))]
            stuck_J[job] = base.solve(cp.Maximize(base.throughput(job)), floors) <= level_J[job] * (1.0 + 1e-5) + 1e-6
    return level_J


@pytest.mark.parametrize(("seed", "load"), [(0, 1.5), (1, 1.5), (2, 1.5), (3, 0.7)])
def test_water_filling_is_what_the_definition_says(seed: int, load: float) -> None:
    problem = drawn(7, seed, load=load)
    entities = [Entity(1.0), Entity(2.0, fifo=True), Entity(3.0)]
    shares = solve(problem, "hierarchical", entities=entities)
    check_shares(problem, shares)
    expected_J = filled(problem, entities)
    assert throughput(problem, shares) == pytest.approx(expected_J, rel=1e-3, abs=1e-3)


def test_entities_share_by_weight_whatever_the_number_of_their_jobs() -> None:
    problem = SharingProblem(np.ones((5, 1)), np.ones(5, int), np.array([1]), entity_J=np.array([0, 1, 1, 1, 1]))
    totals = solve(problem, "hierarchical", entities=[Entity(1.0), Entity(2.0)]).totals()
    assert totals == pytest.approx([1 / 3, *[1 / 6] * 4], abs=1e-6)


def test_inside_a_fifo_entity_the_first_job_is_served_first() -> None:
    """The paper's figure: in a queue the next job gets what the one before it cannot use."""
    problem = SharingProblem(
        np.ones((4, 1)), np.ones(4, int), np.array([3]),
        entity_J=np.array([0, 0, 1, 1]), elapsed_J=np.array([1.0, 2.0, 0.0, 0.0]),
    )  # fmt: skip
    totals = solve(problem, "hierarchical", entities=[Entity(fifo=True), Entity()]).totals()
    assert totals == pytest.approx([0.5, 1.0, 0.75, 0.75], abs=1e-6)


def test_what_an_entity_cannot_use_goes_to_the_others() -> None:
    problem = SharingProblem(np.ones((3, 1)), np.ones(3, int), np.array([2]), entity_J=np.array([0, 1, 1]))
    totals = solve(problem, "hierarchical", entities=[Entity(9.0), Entity(1.0)]).totals()
    assert totals == pytest.approx([1.0, 0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize(("jobs", "load"), [(20, 1.2), (150, 1.2), (600, 0.8), (600, 3.0)])
def test_programs_are_few_however_many_jobs_there_are(jobs: int, load: float) -> None:
    """One per job would be 600, and the reference's integer programs as many again."""
    shares = solve(drawn(jobs, 4, load=load), "hierarchical", entities=[Entity(), Entity(2.0, fifo=True), Entity(3.0)])
    assert not shares.notes
    assert shares.programs <= 15  # a few for each of three GPU types, and one for the fewest changes


# -- in parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective", ["max-min", "makespan", "finish-time-fairness", "max-sum-throughput", "cost", "nash"]
)
@pytest.mark.parametrize(("pairs", "seed"), [(False, 6), (True, 6), (False, 7), (True, 7)])
def test_the_loss_of_solving_in_parts_is_within_the_stated_bound(objective: str, pairs: bool, seed: int) -> None:
    problem = drawn(36 if not pairs else 16, seed, pairs=pairs)
    problem = replace(problem, capacity_T=np.maximum(problem.capacity_T, 12))
    assert len(parts_of(problem, 3)) == 3
    whole, parts = solve(problem, objective), solve(problem, objective, parts=3)
    check_shares(problem, parts)
    assert np.isfinite(parts.gap)
    better, worse = (whole, parts) if objective not in ("makespan", "finish-time-fairness") else (parts, whole)
    assert worse.objective <= better.objective * (1.0 + 1e-6) + 1e-6
    sign = 1.0 if better is whole else -1.0
    assert sign * (parts.bound - whole.objective) >= -1e-5 * abs(whole.objective)


def test_every_job_is_in_one_part_and_every_gpu_too() -> None:
    problem = drawn(50, 1)
    parts = parts_of(problem, 4)
    assert sorted(np.concatenate([rows for rows, _ in parts]).tolist()) == list(range(50))
    assert np.sum([capacity_T for _, capacity_T in parts], axis=0).tolist() == problem.capacity_T.tolist()


def test_a_job_that_no_part_could_hold_on_a_type_it_can_use_makes_the_parts_fewer() -> None:
    problem = replace(drawn(10, 1), gpus_J=np.array([1] * 9 + [4]), capacity_T=np.array([8, 9, 16]))
    assert len(parts_of(problem, 8)) == 2
    assert len(parts_of(replace(problem, capacity_T=np.array([7, 9, 16])), 8)) == 1
    wide_JT = problem.rate_JT.copy()
    wide_JT[-1, :2] = 0.0
    assert len(parts_of(replace(problem, rate_JT=wide_JT), 8)) == 4


def odd(seed: int) -> SharingProblem:
    """A few jobs and few GPUs of each type, of which there may be none; some jobs can run nowhere."""
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(2, 13))
    return replace(
        drawn(jobs, seed),
        rate_JT=rng.uniform(0.5, 20.0, (jobs, 3)) * (rng.random((jobs, 3)) > 0.4),
        gpus_J=rng.choice([1, 1, 2, 4], jobs),
        capacity_T=rng.choice([0, 1, 2, 4, 8, 16], 3),
    )


@pytest.mark.parametrize(
    "objective", ["max-min", "makespan", "finish-time-fairness", "max-sum-throughput", "cost", "cost-slo", "nash"]
)
def test_whatever_the_cluster_parts_state_no_bound_that_the_whole_betters(objective: str) -> None:
    divided = 0
    for seed in range(100):
        problem = odd(seed)
        whole, parts = solve(problem, objective), solve(problem, objective, parts=3)
        check_shares(problem, parts)
        divided += len(parts_of(problem, 3)) > 1
        if not np.isnan(parts.bound):
            sign = -1.0 if objective in ("makespan", "finish-time-fairness") else 1.0
            assert sign * (parts.bound - whole.objective) >= -1e-5 * max(1.0, abs(whole.objective)), seed
    assert divided >= 8


def test_every_job_that_can_run_can_in_its_part_on_the_same_types_and_is_owed_something_there() -> None:
    for seed in range(100):
        problem = odd(seed)
        for rows, capacity_T in parts_of(problem, 3):
            assert (problem.only(rows, capacity_T).usable == problem.usable[rows]).all(), seed
        totals_J = solve(problem, "max-min", parts=3).totals()
        assert ((totals_J > 0.0) == problem.usable.any(axis=1)).all(), seed
