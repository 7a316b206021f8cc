"""Sizing: exact against trying everything, and prices against both.

Legend: J jobs, T GPU types, S sizes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policies.allocator import costs_of, mean_of
from fairlead.policies.arranging import STAY
from fairlead.policies.sizing import Costs, Sizing, exact, priced

SIZES = [(0, 1, 2, 3, 4), (0, 1, 2, 4, 8), (0, 2, 5)]


def make_costs(
    seed: int, *, jobs: int, capacity: list[int], p: float = -1.0, sizes: tuple[int, ...] | None = None
) -> Costs:
    """Jobs that gain less and less by more GPUs. Some hold something, some of those may not move."""
    rng = np.random.default_rng(seed)
    J, T = jobs, len(capacity)
    sizes_S = np.array(sizes or SIZES[rng.integers(3)])
    speed_JTS = rng.uniform(0.2, 2.0, (J, T, 1)) * sizes_S ** rng.uniform(0.2, 1.0, (J, T, 1))
    allowed_JTS = (sizes_S > 0) & (rng.random((J, T, len(sizes_S))) < 0.9)
    cost_JTS = np.where(allowed_JTS, costs_of(speed_JTS * rng.uniform(0.5, 1.0, (J, 1, 1)), p=p), np.inf)
    idle_J = costs_of(np.zeros(J), p=p)
    stay_J = np.full(J, np.inf)
    stay_type_J, stay_gpus_J = np.zeros((2, J), dtype=np.int64)
    left = list(capacity)
    for job in np.flatnonzero(rng.random(J) < 0.5).tolist():
        kind, size = int(rng.integers(T)), int(rng.integers(1, len(sizes_S)))
        gpus = int(sizes_S[size]) if rng.random() < 0.9 else 0  # none of those that may be given out
        if gpus > left[kind]:
            continue
        left[kind] -= gpus
        stay_J[job], stay_type_J[job], stay_gpus_J[job] = costs_of(speed_JTS[job, kind, size], p=p), kind, gpus
        if rng.random() < 0.2:
            cost_JTS[job], idle_J[job] = np.inf, np.inf
    return Costs(sizes_S, cost_JTS, idle_J, stay_J, stay_type_J, stay_gpus_J, np.array(capacity))


def costs(*, types: int, jobs: int = 4) -> st.SearchStrategy[Costs]:
    return st.builds(
        make_costs,
        st.integers(0, 2**32 - 1),
        jobs=st.integers(1, jobs),
        capacity=st.lists(st.integers(0, 9), min_size=types, max_size=types),
        p=st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]),
    )


#: Type, size or STAY, GPUs, cost.
Choice = tuple[int, int, int, float]


def choices(given: Costs, job: int) -> list[Choice]:
    found: list[Choice] = [(0, 0, 0, float(given.idle_J[job]))]
    for kind, size in product(range(len(given.capacity_T)), range(1, len(given.sizes_S))):
        found.append((kind, size, int(given.sizes_S[size]), float(given.cost_JTS[job, kind, size])))
    found.append((int(given.stay_type_J[job]), STAY, int(given.stay_gpus_J[job]), float(given.stay_J[job])))
    return [choice for choice in found if np.isfinite(choice[3])]


def least(given: Costs) -> float:
    """The least cost, by trying everything."""
    best = np.inf
    for picked in product(*(choices(given, job) for job in range(len(given.idle_J)))):
        used = np.zeros(len(given.capacity_T), dtype=int)
        for kind, _, gpus, _ in picked:
            used[kind] += gpus
        if (used <= given.capacity_T).all():
            best = min(best, sum(choice[3] for choice in picked))
    return float(best)


def cost_of(given: Costs, sizing: Sizing) -> float:
    """What the choice costs; fails if it is none that there is, or takes more than there is."""
    used = np.zeros(len(given.capacity_T), dtype=int)
    total = 0.0
    for job, (kind, size) in enumerate(zip(sizing.type_J.tolist(), sizing.size_J.tolist(), strict=True)):
        found = [choice for choice in choices(given, job) if choice[1] == size and (size == 0 or choice[0] == kind)]
        assert found, f"job {job} may not have size {size} of type {kind}"
        used[kind] += found[0][2]
        total += found[0][3]
    assert (used <= given.capacity_T).all(), f"{used} GPUs of {given.capacity_T}"
    return total


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(costs(types=1))
def test_exact_sizes_cost_as_little_as_any(given: Costs) -> None:
    sizing = exact(given)
    assert sizing.bound == close(least(given))
    assert cost_of(given, sizing) == close(sizing.bound)


@settings(max_examples=100, deadline=None)
@given(costs(types=2, jobs=3))
def test_no_choice_of_two_types_costs_less_than_the_bound_of_the_prices(given: Costs) -> None:
    sizing = priced(given)
    assert cost_of(given, sizing) >= least(given) - 1e-9
    assert sizing.bound <= least(given) + 1e-9 * (1.0 + abs(sizing.bound))


@settings(max_examples=200, deadline=None)
@given(costs(types=1, jobs=40))
def test_no_choice_of_one_type_costs_less_than_the_bound_of_the_prices(given: Costs) -> None:
    sizing = priced(given)
    best = exact(given).bound
    assert cost_of(given, sizing) >= best - 1e-9 * (1.0 + abs(best))
    assert sizing.bound <= best + 1e-9 * (1.0 + abs(best))


@settings(max_examples=100, deadline=None)
@given(costs(types=3, jobs=40))
def test_what_the_prices_choose_can_be_had(given: Costs) -> None:
    sizing = priced(given)
    assert cost_of(given, sizing) >= sizing.bound - 1e-9 * (1.0 + abs(sizing.bound))


@pytest.mark.parametrize("p", [-1.0, -0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("capacity", [[600], [300, 300], [100, 200, 300, 400]])
def test_with_many_jobs_the_prices_are_close_to_the_optimum(capacity: list[int], p: float) -> None:
    given = make_costs(3, jobs=300, capacity=capacity, p=p, sizes=(0, 1, 2, 4, 8))
    sizing = priced(given)
    reached, bound = (mean_of(cost, p=p, weight=300) for cost in (cost_of(given, sizing), sizing.bound))
    assert 0.99 * bound <= reached <= bound * (1.0 + 1e-9)


def test_prices_are_high_where_types_that_can_replace_each_other_are_scarce() -> None:
    """Twelve GPUs of three types, each twice as fast as the one before, and more jobs, which take one or two."""
    jobs = 20
    speed_TS = np.array([1.0, 2.0, 4.0])[:, None] * np.array([0.0, 1.0, 1.6])
    cost_TS = np.where(speed_TS > 0, costs_of(speed_TS, p=-1.0), np.inf)
    spread_J11 = np.linspace(0.9, 1.1, jobs)[:, None, None]
    zeros = np.zeros(jobs, dtype=np.int64)
    idle_J, stay_J = np.full(jobs, 1000.0), np.full(jobs, np.inf)
    given = Costs(np.arange(3), spread_J11 * cost_TS, idle_J, stay_J, zeros, zeros, np.full(3, 4))
    sizing = priced(given)
    assert (sizing.size_J > 0).sum() == 12
    assert cost_of(given, sizing) - sizing.bound <= 0.01 * sizing.bound


@pytest.mark.parametrize("types", [1, 2])
def test_the_price_of_what_is_plentiful_is_nothing(types: int) -> None:
    given = make_costs(0, jobs=5, capacity=[1000] * types)
    assert priced(given).price_T.tolist() == [0.0] * types


def test_the_price_rises_with_scarcity() -> None:
    prices = [float(priced(make_costs(1, jobs=100, capacity=[gpus])).price_T[0]) for gpus in (50, 100, 200)]
    assert prices == sorted(prices, reverse=True)
    assert prices[-1] > 0.0


def test_of_equals_a_job_stays() -> None:
    given = make_costs(2, jobs=1, capacity=[4])
    same = replace(
        given,
        cost_JTS=np.where(given.sizes_S == 2, -1.0, np.inf)[None, None],
        idle_J=np.zeros(1),
        stay_J=np.array([-1.0]),
        stay_gpus_J=np.array([2]),
    )
    assert exact(same).size_J.tolist() == [STAY]
    assert priced(same).size_J.tolist() == [STAY]


def test_exact_work_is_known_for_one_type_only() -> None:
    assert make_costs(0, jobs=3, capacity=[5]).work < np.inf
    assert make_costs(0, jobs=3, capacity=[5, 5]).work == np.inf


def test_prices_are_unknown_where_none_were_needed() -> None:
    assert np.isnan(exact(make_costs(0, jobs=3, capacity=[5])).price_T).all()
