"""The analytic applications: regimes, batches, GPU types, and how much GPU time each takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.goodput.efficiency import efficiency
from fairlead.goodput.throughput import ThroughputParams, step_time, throughput
from fairlead.sim.alone import consolidated
from fairlead.sim.applications import APPLICATIONS, DEFAULT_TYPE, GPU_TYPES, Adaptive, Application, Fixed, GoodputTruth
from fairlead.sim.truth import PACKED_SPEED, FixedDuration, Pace, Setting

PARAMS = ThroughputParams(0.1, 0.01, 0.4, 0.02, 0.2, 0.01, 2.0)
TOY = Application(
    "toy", {"t4": PARAMS}, Batch(10, 1000, 1, 100), samples=1000.0, noise_scale=(100.0, 1600.0), regimes=5
)

applications = st.sampled_from(sorted(APPLICATIONS.values(), key=lambda app: app.name))


def pace_of(truth: GoodputTruth, *, progress: float = 0.0, gpus: int = 4, gpu_type: str = DEFAULT_TYPE) -> Pace:
    return truth.pace(Setting(progress, consolidated(gpus, node_gpus=4), gpu_type))


def test_noise_grows_geometrically_from_regime_to_regime() -> None:
    assert [TOY.noise_in(k) for k in range(5)] == pytest.approx([100, 200, 400, 800, 1600])
    assert TOY.ends == (200.0, 400.0, 600.0, 800.0, 1000.0)


def test_a_single_regime_keeps_the_noise_it_began_with() -> None:
    assert replace(TOY, regimes=1).noise_in(0) == 100.0


def test_a_fixed_batch_goes_at_throughput_times_efficiency() -> None:
    pace = pace_of(GoodputTruth(TOY, Fixed(40)))
    expected = throughput(PARAMS, 1, 4, 10) * efficiency(100.0, 40, 10)
    assert pace.speed == pytest.approx(float(expected))
    assert (pace.batch, pace.until, pace.noise_scale) == (40, 200.0, 100.0)


def test_a_profiler_sees_the_step_and_the_part_of_averaging_that_nothing_hides() -> None:
    pace = pace_of(GoodputTruth(TOY, Fixed(800)))
    seen = pace.observation
    assert seen is not None
    assert (seen.gpu_type, seen.nodes, seen.gpus, seen.per_gpu_batch, seen.accumulation) == ("t4", 1, 4, 100, 1)
    assert seen.step_s == pytest.approx(float(step_time(PARAMS, 1, 4, 100, 1)))
    # From the two numbers a fit can recover a pass alone: alpha_c + 100 beta_c = 1.1 s.
    assert (seen.step_s - seen.sync_s) / 2 == pytest.approx(1.1)


def test_a_fixed_batch_is_accumulated_beyond_memory_and_rounded_up_to_its_gpus() -> None:
    assert pace_of(GoodputTruth(TOY, Fixed(1000)), gpus=1).batch == 1000
    assert pace_of(GoodputTruth(TOY, Fixed(100)), gpus=3).batch == 102
    assert pace_of(GoodputTruth(TOY, Fixed(1000)), gpus=3).batch == 996


def test_more_gpus_than_samples_cannot_run() -> None:
    assert pace_of(GoodputTruth(TOY, Fixed(10)), gpus=1001).speed == 0.0
    assert pace_of(GoodputTruth(TOY), gpus=1001) == Pace(speed=0.0, until=1000.0)


def test_an_adaptive_job_is_never_slower_than_a_fixed_one() -> None:
    for gpus in (2, 4, 8, 16):  # on one GPU it takes larger batches in two steps, to measure the noise scale
        for batch in (16, 48, 240, 960):
            fixed = pace_of(GoodputTruth(TOY, Fixed(batch)), gpus=gpus).speed
            assert pace_of(GoodputTruth(TOY, Adaptive()), gpus=gpus).speed >= fixed * (1 - 1e-12)


def test_an_adaptive_job_grows_its_batch_with_its_gpus_and_with_its_noise() -> None:
    truth = GoodputTruth(APPLICATIONS["small-cnn"])
    by_gpus = [pace_of(truth, gpus=gpus).batch or 0 for gpus in (1, 4, 16)]
    by_progress = [pace_of(truth, progress=truth.total * share).batch or 0 for share in (0.0, 0.5, 0.95)]
    assert by_gpus == sorted(by_gpus)
    assert by_gpus[0] < by_gpus[-1]
    assert by_progress == sorted(by_progress)
    assert by_progress[0] < by_progress[-1]


def test_two_jobs_on_the_same_gpus_are_slower_and_profiled_apart() -> None:
    truth = GoodputTruth(TOY)
    allocation = consolidated(4, node_gpus=4)
    packed = truth.pace(Setting(0.0, allocation, "t4", packed_with=(FixedDuration(1.0, 4),)))
    assert packed.speed == pytest.approx(PACKED_SPEED * pace_of(truth).speed)
    alone = pace_of(truth).observation
    assert alone is not None
    assert packed.observation is not None
    assert packed.observation.partners == ("",)
    assert packed.observation.step_s == pytest.approx(alone.step_s / PACKED_SPEED)


@given(applications, st.floats(0.0, 1.0), st.integers(1, 64), st.sampled_from(["t4", "v100", "a100", "H100"]))
def test_every_pace_leads_forward(app: Application, share: float, gpus: int, gpu_type: str) -> None:
    truth = GoodputTruth(app)
    progress = share * truth.total
    pace = pace_of(truth, progress=progress, gpus=gpus, gpu_type=gpu_type)
    assert progress < pace.until <= truth.total or progress == truth.total == pace.until
    assert pace.speed > 0.0
    assert app.batch.initial * 0.9 <= (pace.batch or 0) <= (app.batch.max_total or 0)


@given(applications, st.integers(1, 16), st.floats(0.0, 1.0))
def test_what_remains_shrinks_to_nothing(app: Application, gpus: int, share: float) -> None:
    truth = GoodputTruth(app, gpus=gpus)
    assert truth.remaining_s(0.0) >= truth.remaining_s(share * truth.total) >= truth.remaining_s(truth.total) == 0.0


@pytest.mark.parametrize("app", APPLICATIONS.values(), ids=lambda app: app.name)
def test_newer_gpus_are_faster_and_unknown_ones_count_as_the_default(app: Application) -> None:
    assert {"v100", "a100"} <= set(app.params) == set(GPU_TYPES)
    speeds = [pace_of(GoodputTruth(app), gpu_type=name).speed for name in ("t4", "v100", "a100")]
    assert speeds == sorted(speeds)
    assert pace_of(GoodputTruth(app), gpu_type="gpu").speed == speeds[0]
    assert pace_of(GoodputTruth(app), gpu_type="A100").speed == speeds[2]


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        ("small-cnn", 1.1),
        ("large-cnn", 160.0),
        ("language-model", 3.7),
        ("speech-recogniser", 4.5),
        ("object-detector", 11.0),
        ("recommender", 0.015),
    ],
)
def test_the_gpu_hours_of_an_application_are_what_its_comment_says(name: str, hours: float) -> None:
    assert GoodputTruth(APPLICATIONS[name]).remaining_s(0.0) / 3600 == pytest.approx(hours, rel=0.05)


def test_every_built_in_application_has_its_gpu_hours_stated() -> None:
    assert len(APPLICATIONS) == 6
    assert all(app.name == name for name, app in APPLICATIONS.items())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples": 0.0}, "toy has 0.0 samples"),
        ({"regimes": 0}, "0 regimes"),
        ({"noise_scale": (0.0, 1.0)}, "noise scale is"),
        ({"default_type": "b200"}, "default GPU type b200"),
    ],
)
def test_an_impossible_application_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        replace(TOY, **change)  # type: ignore[arg-type]


def test_a_request_for_more_gpus_than_the_largest_batch_has_samples_is_refused() -> None:
    for batch_mode in (Adaptive(), Fixed(10)):
        with pytest.raises(InvalidSpec, match="1001 GPUs are more than application toy has a batch for"):
            GoodputTruth(TOY, batch_mode, gpus=1001)


def test_a_fixed_batch_beyond_the_applications_bounds_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="batch is 1001; application toy takes 1 to 1000"):
        GoodputTruth(TOY, Fixed(1001))
