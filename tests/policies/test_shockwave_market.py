"""The market over a window of rounds: its optimum, its price, its gap and its fairness."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairlead.policies.shockwave.market import CLOSE_ENOUGH, Market, fairness_weights, objective, solve


def market(
    widths: list[int],
    rounds_left: list[float],
    *,
    gpus: int,
    rounds: int = 4,
    progress: list[float] | None = None,
    weights: list[float] | None = None,
    least: list[float] | None = None,
    makespan_weight: float = 2.4,
) -> Market:
    jobs = len(widths)
    done_J = np.array(progress or [0.0] * jobs)
    return Market(
        np.array(widths)[:, None],
        ((1.0 - done_J) / np.array(rounds_left))[:, None],
        done_J,
        np.array(weights or [1.0] * jobs),
        np.array(least or [0.0] * jobs),
        gpus,
        rounds,
        makespan_weight,
    )


def best(given: Market) -> float:
    """By trying all counts."""
    options = [range(int(most) + 1) for most in given.most[:, 0]]
    found = -np.inf
    for counts in itertools.product(*options):
        count_JK = np.array(counts)[:, None]
        if int((count_JK * given.width_JK).sum()) <= given.capacity:
            found = max(found, objective(given, count_JK))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_plan_lies_within_its_stated_gap_of_the_true_optimum(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs = int(draw.integers(2, 5))
    given = market(
        draw.choice([1, 2, 4], jobs).tolist(),
        draw.uniform(0.5, 12.0, jobs).tolist(),
        gpus=4,
        rounds=3,
        progress=draw.uniform(0.0, 0.9, jobs).tolist(),
        weights=draw.uniform(1.0, 20.0, jobs).tolist(),
    )
    found = solve(given)
    assert int((found.count_JK * given.width_JK).sum()) <= given.capacity
    assert (found.count_JK <= given.most).all()
    optimum, nothing = best(given), objective(given, 0 * found.count_JK)
    reached = objective(given, found.count_JK)
    assert optimum >= reached - 1e-9
    assert (optimum - reached) <= (found.gap + 1e-6) * (optimum - nothing) + 1e-9


def test_the_order_of_jobs_is_no_information() -> None:
    one = market([1, 2, 4, 1], [8.0, 5.0, 9.0, 3.0], gpus=4, progress=[0.0, 0.3, 0.1, 0.5])
    other = market([1, 4, 2, 1], [3.0, 9.0, 5.0, 8.0], gpus=4, progress=[0.5, 0.1, 0.3, 0.0])
    assert objective(one, solve(one).count_JK) == pytest.approx(objective(other, solve(other).count_JK), rel=1e-3)


def test_gpus_that_no_other_job_wants_cost_nothing_and_scarce_ones_cost_more_with_more_jobs() -> None:
    assert solve(market([1], [2.0], gpus=8)).price == 0.0
    few, many = (solve(market([1] * jobs, [9.0] * jobs, gpus=2)).price for jobs in (3, 12))
    assert 0.0 < few <= many


def test_the_longest_job_runs_all_the_time_once_the_makespan_rests_on_it() -> None:
    lengths, done = [40.0, 20.0, 20.0], [0.5, 0.5, 0.5]
    alone = solve(market([1, 1, 1], lengths, gpus=2, progress=done))  # two GPUs need 40 rounds for all, and it needs 40
    assert alone.count_JK[0, 0] == 4
    crowded = solve(market([1, 1, 1], lengths, gpus=1, progress=done))  # one GPU needs 80 rounds for all
    assert crowded.count_JK[0, 0] < 4


def test_least_shares_are_kept_where_they_fit_and_are_left_out_together_where_not() -> None:
    fits = market([1, 1, 1], [4.0, 8.0, 8.0], gpus=1, least=[0.0, 0.25, 0.25], weights=[100.0, 1.0, 1.0])
    found = solve(fits)
    assert found.fair
    assert (found.count_JK[1:, 0] >= 2).all()
    assert not solve(market([1, 1], [4.0, 4.0], gpus=1, least=[1.0, 1.0])).fair
    assert not solve(market([1], [9.0], gpus=1, least=[1.0])).fair


def test_a_job_that_would_be_late_bids_with_a_power_of_its_lateness() -> None:
    weight_J = fairness_weights(np.array([0.5, 1.0, 1.1, 1.2]), np.array([5.0, 5.0, 5.0, 0.5]), power=12.0)
    assert weight_J.tolist()[:2] == [1.0, 1.0]
    assert weight_J[2] == pytest.approx(1.1**12)
    assert weight_J[3] == weight_J.max()
    assert np.isfinite(fairness_weights(np.array([1e9]), np.array([1.0]), power=100.0)).all()


def test_a_job_with_several_sizes_is_narrow_while_gpus_are_dear_and_wide_while_they_are_cheap() -> None:
    def total(jobs: int) -> float:
        width_JK = np.tile([1, 2, 4], (jobs, 1))
        rate_JK = np.tile([1 / 20, 1.6 / 20, 2.2 / 20], (jobs, 1))
        nothing_J = np.zeros(jobs)
        found = solve(Market(width_JK, rate_JK, nothing_J, nothing_J + 1.0, nothing_J, 4, 10, 2.4))
        assert int((found.count_JK * width_JK).sum()) <= 40
        return float((found.count_JK * width_JK).sum() / max(1, found.count_JK.sum()))

    assert total(1) == 4.0
    assert total(12) == pytest.approx(1.0, abs=0.2)


def test_a_large_market_is_solved_without_the_integer_programme_being_far_off() -> None:
    draw = np.random.default_rng(3)
    jobs = 100
    widths, left = draw.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05]), draw.lognormal(3, 1, jobs)
    given = market(widths.tolist(), left.tolist(), gpus=32, rounds=20, weights=draw.uniform(1, 50, jobs).tolist())
    found = solve(given)
    assert found.gap <= 10 * CLOSE_ENOUGH
    assert found.count_JK.sum() > 0


def test_without_jobs_or_gpus_nothing_is_bought() -> None:
    assert solve(market([], [], gpus=4)).count_JK.shape == (0, 1)
    assert not solve(market([1, 2], [3.0, 4.0], gpus=0)).count_JK.any()
    assert not solve(market([8], [3.0], gpus=4)).count_JK.any()


def test_a_solver_without_time_leaves_a_feasible_plan_with_a_stated_gap() -> None:
    draw = np.random.default_rng(5)
    jobs = 60
    widths, left = draw.choice([1, 2, 4], jobs).tolist(), draw.lognormal(3, 1, jobs).tolist()
    given = market(widths, left, gpus=16, rounds=20, least=[0.001] * jobs)
    hurried, best = solve(given, time_limit_s=1e-9), solve(given, time_limit_s=60.0)
    assert 0 < int((hurried.count_JK * given.width_JK).sum()) <= given.capacity
    assert (hurried.count_JK <= given.most).all()
    assert best.gap < hurried.gap < 1.0
    nothing = objective(given, 0 * hurried.count_JK)
    reached, reachable = (objective(given, each.count_JK) for each in (hurried, best))
    assert reachable - reached <= hurried.gap / (1.0 - hurried.gap) * (reached - nothing)
