"""What an oracle is told of steps, and the interpolation that step times rest on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.messages import Start
from fairlead.core.types import Allocation, JobSpec, Node
from fairlead.sim.applications import APPLICATIONS, Fixed, GoodputTruth
from fairlead.sim.backend import SimBackend
from fairlead.sim.measured import MeasuredTruth, load_profile
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.surface import Surface
from fairlead.sim.truth import FixedDuration, Truth
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.world import SimJob

Write = Callable[..., Path]


def oracle(truth: Truth, *, gpus: int = 2, progress_s: float = 0.0, gpu_type: str = "t4") -> SimStepOracle:
    """Of job `a`, after it has run for a while on what it asked for."""
    nodes = [Node("n0", 4, gpu_type), Node("n1", 4, gpu_type)]
    backend = SimBackend([SimJob(JobSpec(id="a", gpus=gpus, gpus_min=1, gpus_max=8), 0.0, truth)], nodes)
    backend.wait(0.0)
    backend.execute(Start(0.0, "a", 1, Allocation.of({"n0": range(gpus)})))
    while backend.now < progress_s:
        assert backend.wait(progress_s) is not None
    return SimStepOracle(backend, nodes)


def test_steps_left_are_those_after_the_epoch_under_way(write_profile: Write) -> None:
    truth = MeasuredTruth(load_profile(write_profile()), 2, 32)
    # At batch 32: 125, 250 and 375 steps at the ends of the epochs.
    assert [truth.steps_left(progress) for progress in (0.0, 499.0, 500.0, 1000.0, 1500.0)] == [250, 250, 125, 0, 0]
    assert MeasuredTruth(truth.profile, 2, 80).steps_left(0.0) == pytest.approx((250 + 62) / 2)  # between 32 and 128
    assert oracle(truth, progress_s=truth.remaining_s(0.0) * 0.5).steps_left("a") == 125


def test_without_counted_steps_there_are_as_many_as_take_as_long(write_profile: Write) -> None:
    directory = write_profile()
    for path in directory.glob("validation-*.csv"):
        path.write_text(path.read_text().replace("iteration", "unknown"))
    truth = MeasuredTruth(load_profile(directory), 2, 32)
    assert truth.profile.iterations is None
    assert truth.steps_left(0.0) * truth.step_s(2) == pytest.approx(truth.remaining_s(0.0))


def test_a_step_on_one_gpu_is_predicted_with_two_micro_steps(write_profile: Write) -> None:
    profile = load_profile(write_profile())
    initial, larger = MeasuredTruth(profile, 1, 8), MeasuredTruth(profile, 1, 32)
    assert initial.split(1) == (8, 0)
    assert initial.step_s(1) == pytest.approx(2 * (0.05 + 0.01 * 4))
    assert larger.step_s(1) == pytest.approx(2 * (0.05 + 0.01 * 16))
    assert larger.step_s(4) == pytest.approx(0.05 + 0.01 * 8 + 0.02)
    assert larger.step_s(129) == math.inf


def test_a_job_that_tunes_its_batch_is_judged_by_what_its_user_asked_for(write_profile: Write) -> None:
    asked = MeasuredTruth(load_profile(write_profile()), 2, 32)
    told, same = oracle(TunedTruth(asked)), oracle(asked)
    assert (told.steps_left("a"), told.step_s("a", 3)) == (same.steps_left("a"), same.step_s("a", 3))


def test_of_other_jobs_it_tells_seconds_and_how_much_faster_more_gpus_are() -> None:
    told = oracle(FixedDuration(100.0, 2), progress_s=40.0)
    assert told.steps_left("a") == 60.0
    assert [told.step_s("a", gpus) for gpus in (1, 2, 4)] == [2.0, 1.0, 0.5]
    truth = GoodputTruth(APPLICATIONS["small-cnn"], Fixed(512), gpus=2)
    told = oracle(truth)
    assert told.steps_left("a") == truth.remaining_s(0.0)
    assert told.step_s("a", 2) == 1.0
    assert told.step_s("a", 1) > 1.0 > told.step_s("a", 4) > 0.5
    assert told.step_s("a", 5000) == math.inf


# -- the surface -----------------------------------------------------------------------------------------------------

GRID = np.array([(x, y, z) for x in (1, 2, 4, 7) for y in (1, 3, 4) for z in (10, 12, 40)], dtype=np.float64)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(10, 40)), min_size=1, max_size=20))
def test_it_is_scipys_linear_interpolation_to_the_tetrahedron(points: list[tuple[int, int, int]]) -> None:
    from scipy.interpolate import LinearNDInterpolator

    values = np.stack([GRID.prod(axis=1), GRID.sum(axis=1) ** 2], axis=1)
    ours, theirs = Surface(GRID, values), LinearNDInterpolator(GRID, values)
    for point in points:
        found = ours.at(point)
        assert found is not None
        np.testing.assert_allclose(found, theirs([point])[0], rtol=1e-9)


def test_outside_of_all_points_nothing_is_known() -> None:
    surface = Surface(GRID, GRID)
    assert surface.at((8, 1, 10)) is None
    np.testing.assert_allclose(surface.at((7, 4, 40)), (7, 4, 40))
