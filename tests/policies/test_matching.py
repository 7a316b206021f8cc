"""The matching against every schedule, where there are few enough of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policies.matching import Matching, match

ONES = np.ones(8, dtype=np.int64)


def least(seconds_JT: np.ndarray, free_in_s_T: Sequence[np.ndarray]) -> float:
    """The least sum of completion times over all schedules of jobs of one GPU."""
    gpus = [(kind, free) for kind, each in enumerate(free_in_s_T) for free in each.tolist()]
    best = np.inf
    for chosen in product(range(len(gpus)), repeat=len(seconds_JT)):
        total = 0.0
        for gpu, (kind, now) in enumerate(gpus):
            for seconds in sorted(seconds_JT[job, kind] for job, at in enumerate(chosen) if at == gpu):
                now += seconds
                total += now
        best = min(best, total)
    return best


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray]]:
    """Few jobs and GPUs of one or two types, some busy; some jobs cannot run on some types."""
    jobs, types = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    number = st.floats(0.01, 100.0)
    seconds_JT = np.array([[draw(number) for _ in range(types)] for _ in range(jobs)])
    for job in range(jobs):
        if types == 2 and draw(st.integers(0, 3)) == 0:
            seconds_JT[job, draw(st.integers(0, 1))] = np.inf
    free = [sorted(draw(st.lists(st.just(0.0) | number, min_size=1, max_size=2))) for _ in range(types)]
    return seconds_JT, [np.array(each) for each in free]


def finish_s(seconds_JT: np.ndarray, matching: Matching) -> np.ndarray:
    return np.asarray(matching.start_s_J + seconds_JT[np.arange(len(seconds_JT)), matching.type_J])


@settings(max_examples=80, deadline=None)
@given(problems())
def test_no_schedule_of_jobs_of_one_gpu_has_a_lower_mean_completion_time(
    problem: tuple[np.ndarray, list[np.ndarray]],
) -> None:
    seconds_JT, free_in_s_T = problem
    found = match(seconds_JT, ONES[: len(seconds_JT)], free_in_s_T)
    assert found.cost == pytest.approx(least(seconds_JT, free_in_s_T))
    assert finish_s(seconds_JT, found).sum() == pytest.approx(found.cost), "the starts are those of the schedule"


@settings(max_examples=40, deadline=None)
@given(problems(), st.floats(1e-3, 1e3))
def test_neither_the_unit_of_time_nor_the_order_of_jobs_and_types_is_information(
    problem: tuple[np.ndarray, list[np.ndarray]], unit: float
) -> None:
    seconds_JT, free_in_s_T = problem
    found = match(seconds_JT, ONES[: len(seconds_JT)], free_in_s_T)
    scaled = match(unit * seconds_JT, ONES[: len(seconds_JT)], [unit * free for free in free_in_s_T])
    assert scaled.cost == pytest.approx(unit * found.cost)
    turned = match(seconds_JT[::-1, ::-1].copy(), ONES[: len(seconds_JT)], free_in_s_T[::-1])
    assert turned.cost == pytest.approx(found.cost)


def test_a_gang_is_matched_as_one_job_of_one_gpu_where_all_are_as_wide() -> None:
    """Six jobs of 4 GPUs on 8 + 8 GPUs are six jobs of one GPU on 2 + 2."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        seconds_JT = np.exp(generator.normal(0.0, 1.5, (6, 2)))
        wide = match(seconds_JT, np.full(6, 4), [np.zeros(8), np.zeros(8)])
        narrow = match(seconds_JT, np.ones(6, dtype=np.int64), [np.zeros(2), np.zeros(2)])
        assert wide.cost == pytest.approx(narrow.cost)


def test_the_shortest_go_first_on_one_type_as_the_solver_would_have_it() -> None:
    """A second type on which no job can run makes the solver do it."""
    generator = np.random.default_rng(1)
    for _ in range(20):
        seconds_JT = np.exp(generator.normal(0.0, 1.5, (9, 1)))
        free = np.sort(np.maximum(0.0, generator.normal(0.0, 2.0, 3)))
        one = match(seconds_JT, np.ones(9, dtype=np.int64), [free])
        both_JT = np.concatenate([seconds_JT, np.full((9, 1), np.inf)], axis=1)
        both = match(both_JT, np.ones(9, dtype=np.int64), [free, np.zeros(1)])
        assert one.cost == pytest.approx(both.cost)


def test_no_job_is_no_problem() -> None:
    assert match(np.zeros((0, 1)), np.zeros(0, dtype=np.int64), [np.zeros(4)]).cost == 0.0


@pytest.mark.slow
def test_a_thousand_jobs_on_256_gpus_of_three_types_are_matched_well_below_a_second() -> None:
    generator = np.random.default_rng(0)
    seconds_JT = np.exp(generator.normal(8.0, 1.5, (1000, 1)) + generator.normal(0.0, 0.7, (1000, 3)))
    free_in_s_T = [np.sort(generator.exponential(3000.0, gpus)) for gpus in (86, 85, 85)]
    took_s = []
    for _ in range(3):
        began = time.process_time()
        match(seconds_JT, np.ones(1000, dtype=np.int64), free_in_s_T)
        took_s.append(time.process_time() - began)
    assert min(took_s) < 1.0
