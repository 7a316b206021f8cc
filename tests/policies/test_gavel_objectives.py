"""Gavel's objectives: against cvxpy, by hand, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gavel_problems import check_shares, drawn, reference

from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.hierarchy import Entity
from fairlead.policies.gavel.objectives import fair_need, isolated
from fairlead.policies.gavel.problem import Concession, SharingProblem, agnostic, throughput
from fairlead.policies.gavel.solution import GOALS, solve
from fairlead.policies.linear_program import Method

PROGRAMS = ("max-min", "makespan", "finish-time-fairness", "max-sum-throughput", "cost", "cost-slo", "nash")
ENTITIES = (Entity(1.0), Entity(2.0, fifo=True), Entity(3.0))


def reached(problem: SharingProblem, objective: str, shares: object) -> float:
    """What the objective comes to under the shares themselves."""
    rate_J = throughput(problem, shares)  # type: ignore[arg-type]
    if objective == "max-min":
        return float((rate_J / fair_need(problem)).min())
    if objective == "makespan":
        return float((problem.left_J / rate_J).max())
    if objective == "finish-time-fairness":
        fair_s_J = problem.isolated_s_J + problem.left_J / isolated(problem, len(rate_J))
        return float(((problem.elapsed_J + problem.left_J / rate_J) / fair_s_J).max())
    return float(rate_J.sum())


# -- against cvxpy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", PROGRAMS)
@pytest.mark.parametrize(("jobs", "pairs"), [(5, False), (24, False), (7, True)])
def test_an_objective_is_optimal(objective: str, jobs: int, pairs: bool) -> None:
    problem = drawn(jobs, jobs, pairs=pairs)
    shares = solve(problem, objective)
    check_shares(problem, shares)
    expected = reference(problem, objective)
    assert not shares.notes
    assert shares.objective == pytest.approx(expected, rel=1e-6)
    if objective in ("max-min", "makespan", "finish-time-fairness", "max-sum-throughput"):
        assert reached(problem, objective, shares) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("objective", PROGRAMS)
@pytest.mark.parametrize(("jobs", "pairs"), [(12, False), (6, True)])
def test_the_agnostic_objective_is_optimal_for_mean_rates(objective: str, jobs: int, pairs: bool) -> None:
    problem = drawn(jobs, 3, pairs=pairs)
    assert len(set(problem.gpus_J.tolist())) > 1
    shares = solve(problem, objective, heterogeneity="agnostic")
    check_shares(problem, shares)
    assert shares.objective == pytest.approx(reference(agnostic(problem), objective), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_pairs_of_random_rates_and_sizes_never_have_more_than_all_the_time(seed: int) -> None:
    problem = replace(drawn(9, 20 + seed, pairs=True), capacity_T=np.array([1, 2, 4]))
    found = [solve(problem, objective, entities=ENTITIES) for objective in (*PROGRAMS, "hierarchical")]
    for shares in found:
        check_shares(problem, shares)
    assert sum(len(shares.pairs) for shares in found) >= len(found)


def test_jobs_that_differ_in_their_unit_only_are_one_class_to_max_min_fairness() -> None:
    """Five jobs that count in units of their own: the shares of jobs that do not, and prices in those units."""
    one = np.array([4.0, 2.0, 1.0])
    unit_J = np.array([1.0, 3.0, 0.01, 700.0, 9.0])
    problem = SharingProblem(np.tile(one, (5, 1)), np.ones(5, dtype=np.int64), np.array([1, 1, 1]))
    same, scaled = (solve(each, "max-min") for each in (problem, replace(problem, rate_JT=unit_J[:, None] * one)))
    assert scaled.objective == pytest.approx(same.objective)
    assert (scaled.alone_JT == scaled.alone_JT[0]).all()
    assert scaled.alone_JT == pytest.approx(same.alone_JT)
    assert scaled.price_J * unit_J == pytest.approx(same.price_J)


def test_classes_do_not_change_the_optimum() -> None:
    problem = replace(drawn(16, 5, models=3, pairs=True), weight_J=np.ones(16), held_J=np.full(16, -1))
    for objective in ("max-min", "max-sum-throughput", "nash"):
        shares = solve(problem, objective)
        check_shares(problem, shares)
        assert shares.objective == pytest.approx(reference(problem, objective), rel=1e-6)


# -- one answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [*PROGRAMS, "hierarchical"])
@pytest.mark.parametrize("seed", range(3))
def test_two_solvers_and_two_orders_give_one_answer(objective: str, seed: int) -> None:
    problem = drawn(30, seed, models=0 if seed else 6)
    simplex = solve(problem, objective, entities=ENTITIES, solver=Solver(Method.SIMPLEX))
    inner = solve(problem, objective, entities=ENTITIES, solver=Solver(Method.INTERIOR_POINT))
    assert simplex.alone_JT == pytest.approx(inner.alone_JT, abs=1e-6)
    rng = np.random.default_rng(seed)
    order, types = rng.permutation(30), rng.permutation(3)
    turned = problem.only(order)
    held_J = np.where(turned.held_J < 0, -1, np.argsort(types)[turned.held_J])
    turned = replace(
        turned,
        rate_JT=turned.rate_JT[:, types],
        capacity_T=problem.capacity_T[types],
        price_T=problem.price_T[types],
        held_J=held_J,
    )
    other = solve(turned, objective, entities=ENTITIES)
    assert simplex.alone_JT[order][:, types] == pytest.approx(other.alone_JT, abs=1e-6)


@pytest.mark.parametrize("objective", [*PROGRAMS, "fifo", "sjf", "hierarchical"])
def test_units_are_no_information(objective: str) -> None:
    """All rates times 7, and all times over 7: the same work."""
    problem = drawn(12, 8)
    times = {name: getattr(problem, name) / 7.0 for name in ("elapsed_J", "isolated_s_J", "deadline_J")}
    faster = replace(problem, rate_JT=problem.rate_JT * 7.0, **times)
    one, other = (solve(each, objective, entities=ENTITIES).alone_JT for each in (problem, faster))
    assert one == pytest.approx(other, abs=1e-6)


def test_alike_jobs_have_equal_shares() -> None:
    problem = replace(drawn(40, 2, models=4), weight_J=np.ones(40), held_J=np.full(40, -1))
    shares = solve(problem, "max-sum-throughput")
    for kind in range(4):
        for gpus in (1, 2, 4):
            rows = np.flatnonzero((problem.kind_J == kind) & (problem.gpus_J == gpus))
            assert np.ptp(shares.alone_JT[rows], axis=0) == pytest.approx(0.0) if len(rows) else True


def test_among_equal_optima_a_job_stays_where_it_runs() -> None:
    """Two types as fast, two jobs, one GPU each: where a job holds a GPU, there it is owed time."""
    for held in ([0, 1], [1, 0]):
        problem = SharingProblem(np.ones((2, 2)), np.ones(2, int), np.ones(2, int), held_J=np.array(held))
        shares = solve(problem, "max-min")
        assert shares.alone_JT[np.arange(2), held] == pytest.approx(1.0, abs=1e-6)


def test_among_equal_optima_shares_are_spread_as_the_gpus_are() -> None:
    problem = SharingProblem(np.ones((3, 2)), np.ones(3, int), np.array([1, 2]))
    assert solve(problem, "max-min").alone_JT == pytest.approx(np.tile([1 / 3, 2 / 3], (3, 1)), abs=1e-6)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_max_min_gives_each_job_the_type_that_suits_it() -> None:
    """The case for heterogeneity: job 0 is 4 times as fast on type 0, job 1 as fast on both."""
    problem = SharingProblem(np.array([[4.0, 1.0], [1.0, 1.0]]), np.ones(2, int), np.ones(2, int))
    assert solve(problem, "max-min").alone_JT == pytest.approx(np.eye(2), abs=1e-3)
    blind = solve(problem, "max-min", heterogeneity="agnostic").alone_JT
    assert throughput(problem, solve(problem, "max-min")).sum() == pytest.approx(5.0, abs=1e-2)
    assert (problem.rate_JT * blind).sum() == pytest.approx(3.5, abs=1e-5)


def test_a_job_of_two_gpus_is_due_half_the_time_and_one_of_double_weight_twice() -> None:
    rate = np.ones((2, 1))
    wide = SharingProblem(rate, np.array([1, 2]), np.array([2]), weight_J=np.array([1.0, 1.0]))
    assert solve(wide, "max-min").objective == pytest.approx(1.0)
    heavy = SharingProblem(rate, np.ones(2, int), np.array([1]), weight_J=np.array([1.0, 2.0]))
    assert solve(heavy, "max-min").totals() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)


def test_makespan_is_one_program_in_which_all_jobs_end_together() -> None:
    problem = SharingProblem(np.ones((2, 1)), np.ones(2, int), np.array([1]), left_J=np.array([30.0, 10.0]))
    shares = solve(problem, "makespan")
    assert (shares.objective, shares.programs) == (pytest.approx(40.0), 1)
    assert shares.totals() == pytest.approx([0.75, 0.25], abs=1e-6)


def test_finish_time_fairness_favours_the_job_that_is_late() -> None:
    problem = SharingProblem(
        np.ones((2, 1)), np.ones(2, int), np.array([1]), left_J=np.full(2, 100.0), elapsed_J=np.array([100.0, 0.0])
    )
    shares = solve(problem, "finish-time-fairness")
    rho_J = (problem.elapsed_J + 100.0 / throughput(problem, shares)) / 200.0
    assert rho_J == pytest.approx(np.full(2, shares.objective), rel=1e-5)
    assert shares.totals()[0] > shares.totals()[1]


def test_cost_prefers_the_type_with_most_throughput_per_price() -> None:
    problem = SharingProblem(np.array([[2.0, 1.0]]), np.ones(1, int), np.ones(2, int), price_T=np.array([3.0, 1.0]))
    assert solve(problem, "cost").alone_JT == pytest.approx(np.array([[0.0, 1.0]]), abs=1e-6)
    assert solve(problem, "max-sum-throughput").alone_JT == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-6)


def test_a_deadline_moves_a_job_to_the_dearer_type() -> None:
    problem = SharingProblem(
        np.array([[2.0, 1.0]]), np.ones(1, int), np.ones(2, int),
        price_T=np.array([3.0, 1.0]), left_J=np.array([150.0]), deadline_J=np.array([100.0]),
    )  # fmt: skip
    assert solve(problem, "cost-slo").alone_JT == pytest.approx(np.array([[0.5, 0.5]]), abs=1e-6)


def test_deadlines_that_cannot_be_kept_are_given_up_latest_first_and_named() -> None:
    problem = SharingProblem(
        np.ones((4, 1)), np.ones(4, int), np.array([1]),
        left_J=np.array([61.0, 61.0, 61.0, 500.0]), deadline_J=np.array([150.0, 300.0, 150.5, 100.0]),
    )  # fmt: skip
    shares = solve(problem, "cost-slo")
    assert shares.dropped == (1, 3)  # 3 is hopeless by itself; of the others the latest
    assert shares.notes == (Concession.DEADLINES,)
    assert (throughput(problem, shares)[[0, 2]] >= 61.0 / np.array([150.0, 150.5]) - 1e-6).all()


def test_nash_welfare_is_proportional_for_jobs_of_one_kind() -> None:
    problem = SharingProblem(np.ones((2, 1)), np.ones(2, int), np.array([1]), weight_J=np.array([1.0, 3.0]))
    assert solve(problem, "nash").totals() == pytest.approx([0.25, 0.75], abs=1e-6)


def test_the_discount_charges_a_job_what_it_costs_the_others() -> None:
    problem = SharingProblem(np.ones((3, 1)), np.ones(3, int), np.array([1]))
    plain, charged = solve(problem, "nash"), solve(problem, "nash-discounted")
    # Alone the other two had 1/2 each, and have 1/3: (2/3)^2 of 1/3.
    assert plain.totals() == pytest.approx(np.full(3, 1 / 3), abs=1e-6)
    assert charged.totals() == pytest.approx(np.full(3, 4 / 27), abs=1e-6)


def test_fifo_serves_in_order_and_stops_at_the_first_that_does_not_fit() -> None:
    problem = SharingProblem(
        np.array([[1.0, 2.0]] * 4), np.array([1, 1, 2, 1]), np.array([2, 1]), elapsed_J=np.array([4.0, 3.0, 2.0, 1.0])
    )
    assert solve(problem, "fifo").alone_JT.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]


def test_agnostic_fifo_never_gives_out_more_than_there_is() -> None:
    """The reference puts all jobs on the last type it looked at (bug B1): 8 jobs on 2 GPUs."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        problem = SharingProblem(
            rng.uniform(1.0, 5.0, (8, 3)), np.ones(8, int), np.array([2, 2, 4]), elapsed_J=np.arange(8.0)
        )
        shares = solve(problem, "fifo", heterogeneity="agnostic")
        assert shares.used(problem.gpus_J).tolist() == [2, 2, 4]
        assert (shares.totals() == 1.0).all()


def test_shortest_job_first_goes_by_time_left_and_not_by_arrival() -> None:
    problem = SharingProblem(
        np.array([[1.0], [4.0]]), np.ones(2, int), np.array([1]),
        left_J=np.array([50.0, 100.0]), elapsed_J=np.array([9.0, 1.0]),
    )  # fmt: skip
    assert solve(problem, "sjf").totals().tolist() == [0.0, 1.0]
    assert solve(problem, "fifo").totals().tolist() == [1.0, 0.0]


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1, 1, 1, 2], [1, 1, 1, 1, 1, 2]])
def test_pairs_of_mixed_sizes_never_hand_out_more_than_all_the_time(sizes: list[int]) -> None:
    """The reference crashes on the first and hands out 1.161 on the second (bug B2)."""
    factors = {(0, 0, gpus): np.full((2, 2), 0.8) for gpus in (1, 2)}
    problem = SharingProblem(np.tile([3.0, 1.0], (len(sizes), 1)), np.array(sizes), np.array([1, 2]), pairs=factors)
    for objective in GOALS:
        shares = solve(problem, objective)
        check_shares(problem, shares)
    assert solve(problem, "max-min").objective == pytest.approx(reference(problem, "max-min"), rel=1e-6)


def test_two_jobs_share_a_gpu_where_they_get_more_done_so_than_by_turns() -> None:
    rate, one = np.ones((2, 1)), np.array([1])
    gain = SharingProblem(rate, np.ones(2, int), one, pairs={(0, 0, 1): np.full((1, 2), 0.7)})
    shares = solve(gain, "max-min")
    assert shares.pairs[0, 1] == pytest.approx([1.0], abs=1e-5)
    assert throughput(gain, shares) == pytest.approx([0.7, 0.7], abs=1e-5)
    loss = replace(gain, pairs={(0, 0, 1): np.full((1, 2), 0.45)})
    assert not solve(loss, "max-min").pairs


def test_fifo_packs_the_head_of_the_line_where_that_is_worth_it() -> None:
    rate = np.ones((2, 1))
    for factor, packed in ((0.8, 1), (0.7, 0)):
        problem = SharingProblem(
            rate,
            np.ones(2, int),
            np.array([1]),
            pairs={(0, 0, 1): np.full((1, 2), factor)},
            elapsed_J=np.array([2.0, 1.0]),
        )
        assert len(solve(problem, "fifo").pairs) == packed


# -- what cannot run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", list(GOALS))
def test_no_jobs_no_gpus_and_jobs_that_fit_nowhere_have_no_shares(objective: str) -> None:
    nothing = SharingProblem(np.zeros((0, 2)), np.zeros(0, int), np.array([1, 1]))
    assert solve(nothing, objective).alone_JT.shape == (0, 2)
    large = SharingProblem(np.ones((2, 1)), np.array([8, 1]), np.array([4]))
    shares = solve(large, objective)
    assert shares.totals()[0] == 0.0
    assert shares.totals()[1] == pytest.approx(1.0, abs=1e-6)
    shut = SharingProblem(np.ones((2, 1)), np.ones(2, int), np.array([0]))
    assert (solve(shut, objective).alone_JT == 0.0).all()
