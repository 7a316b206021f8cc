"""From round counts to rounds: counts are kept whenever that is possible, and no round is over capacity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.policies.shockwave import schedule
from fairlead.policies.shockwave.schedule import choose, place


def exact(count_J: np.ndarray, width_J: np.ndarray, gpus: int, rounds: int) -> bool:
    """Whether all counts can be kept, by HiGHS over one binary variable for each job and round."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs = len(count_J)
    rows = np.zeros((jobs + rounds, jobs * rounds))
    for job in range(jobs):
        rows[job, job * rounds : (job + 1) * rounds] = 1.0
        for number in range(rounds):
            rows[jobs + number, job * rounds + number] = width_J[job]
    low = np.concatenate([count_J, np.zeros(rounds)])
    high = np.concatenate([count_J, np.full(rounds, gpus)])
    zeros = np.zeros(jobs * rounds)
    found = milp(zeros, integrality=zeros + 1, bounds=Bounds(0, 1), constraints=LinearConstraint(rows, low, high))
    return bool(found.status == 0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_counts_are_kept_whenever_that_is_possible_and_no_round_is_over_capacity(data: st.DataObject) -> None:
    gpus = data.draw(st.sampled_from([2, 4, 5, 8]))
    rounds = data.draw(st.integers(1, 5))
    jobs = data.draw(st.integers(1, 6))
    width_J = np.array(data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=jobs, max_size=jobs)))
    width_J = np.minimum(width_J, gpus)
    count_J = np.array(data.draw(st.lists(st.integers(0, rounds), min_size=jobs, max_size=jobs)))
    rank = data.draw(st.permutations(range(jobs)))
    runs_FJ = place(count_J, width_J, rank, gpus=gpus, rounds=rounds)
    assert ((runs_FJ * width_J).sum(axis=1) <= gpus).all()
    assert (runs_FJ.sum(axis=0) <= count_J).all()
    if exact(count_J, width_J, gpus, rounds):
        assert runs_FJ.sum(axis=0).tolist() == count_J.tolist()


def test_a_job_without_laxity_goes_before_one_that_ranks_higher() -> None:
    count_J, width_J = np.array([3, 1]), np.array([1, 1])
    assert choose(count_J, width_J, [1, 0], gpus=1, rounds=3).tolist() == [True, False]
    assert choose(count_J, width_J, [1, 0], gpus=1, rounds=4).tolist() == [False, True]


def test_among_jobs_with_time_the_rank_decides() -> None:
    count_J, width_J = np.array([1, 1, 1]), np.array([2, 2, 2])
    assert choose(count_J, width_J, [2, 0, 1], gpus=4, rounds=5).tolist() == [True, False, True]


def test_urgency_is_widened_until_the_rest_fits() -> None:
    """Rank alone would run the narrow jobs first, and leave two wide jobs for rounds that hold one."""
    count_J, width_J = np.array([2, 2, 1, 1, 1, 1]), np.array([3, 3, 1, 1, 1, 1])
    runs_FJ = place(count_J, width_J, [2, 3, 4, 5, 0, 1], gpus=4, rounds=4)
    assert runs_FJ.sum(axis=0).tolist() == count_J.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_of_a_full_window_of_a_hundred_jobs_every_round_is_placed(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs, gpus, rounds = 100, 32, 20
    width_J = draw.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05])
    count_J, left = np.zeros(jobs, dtype=np.int64), gpus * rounds
    for job in draw.permutation(np.repeat(np.arange(jobs), rounds)):
        if width_J[job] <= left and count_J[job] < rounds:
            count_J[job] += 1
            left -= int(width_J[job])
    left_J = count_J.copy()
    for number in range(rounds):
        left_J = left_J - choose(left_J, width_J, list(range(jobs)), gpus=gpus, rounds=rounds - number)
    assert int(left_J.sum()) <= 0.004 * int(count_J.sum())  # the rule of the notes leaves 196 of 48,731


def test_without_jobs_a_round_is_empty() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert choose(none, none, [], gpus=4, rounds=2).tolist() == []
    assert schedule.place(none, none, [], gpus=4, rounds=2).shape == (2, 0)
