"""EASY backfilling: the first in line has a reservation, and nobody delays it by the promised run times."""

from __future__ import annotations

import pytest

from fairlead.policies.easy import Easy
from fairlead.testing import Scenario, job

#: 8 GPUs: two of them are free, two more after 50 s, the other four after 100 s.
RUNNING = [job("long", 4, on="n0[0,1,2,3]", estimate_s=100.0), job("short", 2, on="n1[0,1]", estimate_s=50.0)]
STAY = {"long": 4, "short": 2}


def test_jobs_start_in_order_of_arrival_while_they_fit() -> None:
    Scenario(nodes="2x4", jobs=[job("a", 4), job("b", 4), job("c", 1)], expected={"a": 4, "b": 4}).check(Easy())


@pytest.mark.parametrize(("promise_s", "passes"), [(100.0, True), (100.5, False), (None, False)])
def test_a_job_passes_only_if_it_ends_before_the_reservation(promise_s: float | None, passes: bool) -> None:
    jobs = [*RUNNING, job("head", 8), job("small", 2, estimate_s=promise_s)]
    Scenario(nodes="2x4", jobs=jobs, expected=STAY | ({"small": 2} if passes else {})).check(Easy())


@pytest.mark.parametrize(("head", "expected"), [(6, {"x": 1, "y": 1}), (7, {"x": 1}), (8, {})])
def test_a_job_that_runs_longer_passes_only_on_gpus_the_reservation_leaves(head: int, expected: dict[str, int]) -> None:
    jobs = [*RUNNING, job("head", head), job("x", 1, estimate_s=1e6), job("y", 1)]
    Scenario(nodes="2x4", jobs=jobs, expected=STAY | expected).check(Easy())


def test_a_job_that_ends_in_time_leaves_the_spare_gpus_to_others() -> None:
    jobs = [*RUNNING, job("head", 7), job("brief", 1, estimate_s=10.0), job("endless", 1)]
    Scenario(nodes="2x4", jobs=jobs, expected=STAY | {"brief": 1, "endless": 1}).check(Easy())


def test_the_reservation_is_kept_when_its_time_comes() -> None:
    jobs = [RUNNING[0], job("brief", 2, on="n1[2,3]", estimate_s=100.0), job("head", 6), job("late", 2)]
    # `short` has ended, `brief` passed: 4 GPUs free at 100 s when both end
    Scenario(nodes="2x4", jobs=jobs[:1] + jobs[2:], expected={"long": 4, "late": 2}, now=60.0).check(Easy())
    Scenario(nodes="2x4", jobs=jobs[2:], expected={"head": 6, "late": 2}, now=100.0).check(Easy())


def test_a_job_that_outlives_its_promise_may_end_at_any_moment_so_nobody_passes() -> None:
    jobs = [*RUNNING, job("head", 8), job("brief", 2, estimate_s=1.0)]
    Scenario(nodes="2x4", jobs=jobs, expected=STAY, now=150.0).check(Easy())


def test_time_already_run_counts_towards_the_promise() -> None:
    jobs = [*RUNNING, job("head", 8), job("brief", 2, estimate_s=30.0)]
    Scenario(nodes="2x4", jobs=jobs, expected=STAY | {"brief": 2}, now=70.0).check(Easy())
    Scenario(nodes="2x4", jobs=jobs, expected=STAY, now=70.5).check(Easy())


def test_behind_jobs_without_a_promise_only_promises_and_spare_gpus_pass() -> None:
    """Else a stream of small jobs that promise nothing would starve the first in line."""
    jobs = [job("endless", 6, on="n0[0,1,2,3] n1[0,1]"), job("head", 8)]
    for promise_s, passes in ((None, {}), (1e9, {"small": 1})):
        small = job("small", 1, estimate_s=promise_s)
        Scenario(nodes="2x4", jobs=[*jobs, small], expected={"endless": 6} | passes).check(Easy())


def test_a_head_that_no_open_node_could_hold_delays_nobody() -> None:
    jobs = [job("head", 8), job("small", 2)]
    Scenario(nodes="2x4", jobs=jobs, lost=["n1"], expected={"small": 2}).check(Easy())


def test_gpus_of_a_draining_node_are_not_reserved() -> None:
    """Only n1 will be there for `head`, so `long` must leave it the three of n1 that `short` does not hold."""
    jobs = [job("long", 4, on="n0[0,1,2,3]", estimate_s=10.0), job("short", 2, on="n1[0,1]", estimate_s=50.0)]
    jobs += [job("head", 4), job("endless", 2)]
    Scenario(nodes="2x4", jobs=jobs, draining=["n0"], expected={"long": 4, "short": 2}).check(Easy())


def test_another_gpu_type_than_the_reserved_one_is_open_to_all() -> None:
    jobs = [job("runs", 2, on="n0[0,1]", estimate_s=100.0), job("head", 4, gpu_types=("a100",))]
    endless = [job("any", 2), job("choosy", 2, gpu_types=("a100",))]
    expected = {"runs": "n0[0,1]", "any": "n1[0,1]"}
    Scenario(nodes="a100=1x4,v100=1x4", jobs=[*jobs, *endless], expected=expected).check(Easy())


def test_the_reservation_is_on_the_type_that_is_free_first() -> None:
    jobs = [job("a", 4, on="n0[0,1,2,3]", estimate_s=100.0), job("v", 3, on="n1[0,1,2]", estimate_s=50.0)]
    jobs += [job("head", 4), job("passes", 1, estimate_s=60.0, gpu_types=("v100",))]
    Scenario(nodes="a100=1x4,v100=1x4", jobs=jobs, expected={"a": 4, "v": 3}).check(Easy())
