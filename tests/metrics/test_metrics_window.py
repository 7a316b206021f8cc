"""A warm-up and a measuring window: by hand, on one GPU, and as relations that hold for any journal."""

from __future__ import annotations

import pytest
from small_worlds import alone, simulate

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import JobSpec, Node
from fairlead.sim.metrics import EVERYTHING, Measured, Window, measure
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob

#: On one GPU, in order: 0 to 100, 100 to 200, 200 to 300, 300 to 400; submitted at 50, 60, 150 and 250.
JOBS = [
    SimJob(JobSpec(id=name, gpus=1), at, FixedDuration(100.0, 1))
    for name, at in (("a", 50.0), ("b", 60.0), ("c", 150.0), ("d", 250.0))
]


def measured(window: Window) -> Measured:
    return measure(simulate(JOBS, [Node("n0", 2)]), alone_s=alone(JOBS), window=window)


def one_gpu(window: Window) -> Measured:
    return measure(simulate(JOBS, [Node("n0", 1)]), alone_s=alone(JOBS), window=window)


def test_jobs_count_that_arrive_in_the_window_whenever_they_end() -> None:
    """From 50 on: a 50-150, b 150-250, c 250-350, d 350-450. The window is 60 to 250, d not in it."""
    found = one_gpu(Window(10.0, 190.0))
    assert [(job.job, job.counted) for job in found.jobs] == [("a", False), ("b", True), ("c", True), ("d", False)]
    assert (found.summary.jobs, found.summary.completed, found.summary.unfinished) == (2, 2, 0)
    assert found.summary.jct_mean_s == pytest.approx((190.0 + 200.0) / 2)
    assert found.summary.queue_mean_s == pytest.approx((90.0 + 100.0) / 2)
    assert found.summary.makespan_s == pytest.approx(350.0 - 60.0)


def test_of_the_cluster_what_happens_in_the_window_counts() -> None:
    """Two GPUs: a 50-150 and b 60-160, c 150-250, d 250-350. From 100 to 200: 50 + 60 + 50 GPU-seconds of 200."""
    found = measured(Window(50.0, 100.0)).summary
    assert found.utilisation == pytest.approx(160.0 / 200.0)
    assert found.gpu_h_useful == pytest.approx(160.0 / 3600.0)
    assert found.gpu_h_idle == pytest.approx(40.0 / 3600.0)
    assert found.node_hours == pytest.approx(100.0 / 3600.0)
    assert found.jobs == 1


def test_gpu_hours_by_use_add_up_to_what_there_was_in_the_window() -> None:
    for window in (EVERYTHING, Window(20.0), Window(0.0, 77.0), Window(60.0, 1000.0)):
        found = measured(window).summary
        used = found.gpu_h_useful + found.gpu_h_restart + found.gpu_h_lost + found.gpu_h_idle
        assert used == pytest.approx(2 * found.node_hours)


def test_jobs_themselves_are_measured_whole() -> None:
    whole, part = measured(EVERYTHING).jobs, measured(Window(50.0, 100.0)).jobs
    for one, two in zip(whole, part, strict=True):
        assert (one.jct_s, one.held_gpu_s, one.run_s, one.rho) == (two.jct_s, two.held_gpu_s, two.run_s, two.rho)


def test_a_window_around_everything_changes_nothing() -> None:
    assert measured(Window(0.0, 1e9)).summary == measured(EVERYTHING).summary


def test_a_window_that_cannot_be_meant_is_refused() -> None:
    for warmup_s, window_s in ((-1.0, 5.0), (float("inf"), 5.0), (float("nan"), 5.0), (0.0, 0.0), (0.0, float("nan"))):
        with pytest.raises(InvalidSpec, match="expected a warm-up of at least 0"):
            Window(warmup_s, window_s)
