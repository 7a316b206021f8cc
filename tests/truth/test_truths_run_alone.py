"""Each truth through the simulator, driven by hand: a job alone ends exactly when its truth says it will."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.types import Allocation
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.applications import APPLICATIONS, Fixed, GoodputTruth
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.measured import MeasuredTruth, load_profile
from fairlead.sim.regimes import RegimeTruth
from fairlead.sim.tables import TableTruth, load_table
from fairlead.sim.traces import read_trace
from fairlead.sim.truth import FixedDuration, Pace, Setting, Truth

Finish = Callable[[Truth, Allocation, str], float]


def test_a_consolidated_allocation_fills_one_node_after_another() -> None:
    assert [len(gpus) for _, gpus in consolidated(10, node_gpus=4)] == [4, 4, 2]
    assert [len(gpus) for _, gpus in consolidated(3, node_gpus=8)] == [3]


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.parametrize("gpus", [1, 3, 16])
@pytest.mark.parametrize("gpu_type", ["t4", "v100"])
def test_an_adaptive_application_ends_when_it_says(finish_alone: Finish, name: str, gpus: int, gpu_type: str) -> None:
    truth = GoodputTruth(APPLICATIONS[name], gpus=gpus, gpu_type=gpu_type)
    ended = finish_alone(truth, truth.reference, gpu_type)
    assert ended == pytest.approx(truth.remaining_s(0.0), rel=1e-6)


def test_an_application_with_a_fixed_batch_ends_when_it_says(finish_alone: Finish) -> None:
    truth = GoodputTruth(APPLICATIONS["object-detector"], Fixed(64), gpus=4)
    assert finish_alone(truth, truth.reference, "t4") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)


def test_a_measured_job_ends_when_it_says(finish_alone: Finish, profile_dir: Path) -> None:
    truth = MeasuredTruth(load_profile(profile_dir), 3, 32)
    assert finish_alone(truth, truth.reference, "gpu") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)


def test_a_table_job_ends_when_it_says(finish_alone: Finish, table_file: Path) -> None:
    truth = TableTruth(load_table(table_file), "ResNet-18", 16, 2, 12345.0)
    assert finish_alone(truth, truth.reference, "v100") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)
    assert finish_alone(truth, truth.reference, "gpu") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)


def test_a_regime_job_ends_when_it_says(finish_alone: Finish, table_file: Path) -> None:
    truth = RegimeTruth(load_table(table_file), "ResNet-18", 1, 10, ((0, 16), (3, 32), (7, 256)))
    assert finish_alone(truth, truth.reference, "v100") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)


def test_a_job_replayed_from_a_trace_ends_when_it_says(finish_alone: Finish) -> None:
    truth = FixedDuration(3600.0, 4)
    assert finish_alone(truth, consolidated(4, node_gpus=4), "gpu") == pytest.approx(3600.0, rel=1e-6)


def test_a_job_that_cannot_run_has_forever_to_go(profile_dir: Path) -> None:
    truth = MeasuredTruth(load_profile(profile_dir), 1, 32)
    run = RunAlone.of(truth, consolidated(18, node_gpus=2), "gpu")
    assert run.remaining_s(0.0) == math.inf
    assert run.remaining_s(truth.total) == 0.0


def test_a_truth_that_does_not_lead_forward_is_caught() -> None:
    class Stuck:
        total = 1.0

        def pace(self, setting: Setting) -> Pace:
            return Pace(speed=1.0, until=setting.progress)

        def remaining_s(self, progress: float) -> float:
            return self.total - progress

    with pytest.raises(AssertionError, match="stands still at 0"):
        RunAlone.of(Stuck(), consolidated(1, node_gpus=1), "gpu")


@pytest.mark.parametrize(
    "trace", ["gavel/max_min_fairness.trace", "shockwave/jobs-120.trace", "pollux/workloads/workload-1.csv"]
)
def test_public_jobs_end_when_they_say(finish_alone: Finish, shared_data: Path, trace: str) -> None:
    path = shared_data / trace
    library = Library.beside(path)
    for job in read_trace(path).jobs[:12]:
        truth = truth_of(job, library, ["v100"])
        assert isinstance(truth, MeasuredTruth | TableTruth | RegimeTruth)
        assert finish_alone(truth, truth.reference, "v100") == pytest.approx(truth.remaining_s(0.0), rel=1e-6)
