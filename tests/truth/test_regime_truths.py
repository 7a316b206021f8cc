"""Shockwave's jobs: batch sizes that change by epoch, and how long the epochs take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.regimes import DATASETS, RegimeTruth, epochs_of, load_schedules, schedule_of
from fairlead.sim.tables import load_table
from fairlead.sim.traces import read_trace
from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.truth import PACKED_SPEED, FixedDuration, Setting

ONE = Allocation.of({"a": [0]})


def accordion(model: str, batch: int, epochs: int) -> tuple[tuple[int, int], ...]:
    return schedule_of("accordion", model, batch, gpus=1, epochs=epochs, gns={})


@pytest.fixture
def truth(table_file: Path) -> RegimeTruth:
    return RegimeTruth(load_table(table_file), "ResNet-18", 1, 10, ((0, 16), (3, 32), (7, 256)))


def test_epochs_are_whole_and_counted_at_the_initial_batch() -> None:
    # 50000 / 16 = 3125 steps an epoch
    assert epochs_of("ResNet-18", 16, 3125 * 10) == 10
    assert epochs_of("ResNet-18", 16, 3125 * 10 + 1) == 11
    assert epochs_of("ResNet-18", 16, 1) == epochs_of("ResNet-18", 16, 0) == 1
    # 59675 / 10 is rounded up to 5968
    assert epochs_of("LM", 10, 134583) == 23


def test_a_model_without_a_known_dataset_has_no_epochs() -> None:
    with pytest.raises(InvalidSpec, match=r"model 'A3C' has no known dataset.*'LM'"):
        epochs_of("A3C", 1, 10)


def test_static_jobs_keep_their_batch() -> None:
    assert schedule_of("static", "LM", 5, gpus=1, epochs=100, gns={}) == ((0, 5),)


@pytest.mark.parametrize(
    ("model", "batch", "epochs", "schedule"),
    [
        ("LM", 5, 100, ((0, 5), (10, 80))),
        ("LM", 5, 10, ((0, 5),)),
        ("LM", 80, 100, ((0, 80),)),
        ("Recommendation", 512, 100, ((0, 512), (30, 8192))),
        ("Recommendation", 2048, 100, ((0, 2048), (40, 8192))),
        ("Recommendation", 4096, 100, ((0, 4096), (10, 8192))),
        ("ResNet-50", 32, 65, ((0, 32), (10, 128), (30, 32), (40, 128), (60, 32))),
        ("ResNet-18", 64, 300, ((0, 64), (10, 256), (150, 64), (160, 256), (250, 64), (260, 256))),
        ("Transformer", 64, 300, ((0, 64),)),
    ],
)
def test_accordion_grows_the_batch_outside_critical_regimes(
    model: str, batch: int, epochs: int, schedule: tuple[tuple[int, int], ...]
) -> None:
    assert accordion(model, batch, epochs) == schedule


def test_gns_follows_the_file_and_stops_with_the_job(schedules_file: Path) -> None:
    gns = load_schedules(schedules_file)
    assert schedule_of("gns", "ResNet-18", 16, gpus=1, epochs=100, gns=gns) == ((0, 16), (3, 32), (7, 256))
    assert schedule_of("gns", "ResNet-18", 16, gpus=1, epochs=7, gns=gns) == ((0, 16), (3, 32))


def test_a_gns_job_without_an_entry_keeps_its_batch(schedules_file: Path) -> None:
    gns = load_schedules(schedules_file)
    assert schedule_of("gns", "ResNet-18", 16, gpus=8, epochs=100, gns=gns) == ((0, 16),)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="mode is 'bandit'; expected static or accordion or gns"):
        schedule_of("bandit", "LM", 5, gpus=1, epochs=1, gns={})


def test_an_epoch_takes_its_steps_at_the_tables_speed(truth: RegimeTruth) -> None:
    pace = truth.pace(Setting(0.0, ONE, "v100"))
    assert pace.speed == pytest.approx(30.0 / 3125)
    assert (pace.until, pace.batch) == (3.0, 16)
    assert pace.observation is not None
    assert pace.observation.per_gpu_batch == 16


def test_reports_show_the_batch_of_every_regime(truth: RegimeTruth) -> None:
    paces = [truth.pace(Setting(progress, ONE, "v100")) for progress in (0.0, 2.999, 3.0, 6.5, 7.0, 9.99, 10.0)]
    assert [pace.batch for pace in paces] == [16, 16, 32, 32, 256, 256, 256]
    assert [pace.until for pace in paces] == [3.0, 3.0, 7.0, 7.0, 10.0, 10.0, 10.0]


def test_what_remains_is_the_sum_over_the_epochs(truth: RegimeTruth) -> None:
    # ceil(50000 / 32) = 1563 and ceil(50000 / 256) = 196 steps
    first, second, third = 3 * 3125 / 30, 4 * 1563 / 25, 3 * 196 / 7
    assert truth.remaining_s(0.0) == pytest.approx(first + second + third)
    assert truth.remaining_s(5.0) == pytest.approx(second / 2 + third)


def test_a_regime_that_does_not_fit_on_a_gpu_type_cannot_run_there(truth: RegimeTruth) -> None:
    assert truth.pace(Setting(0.0, ONE, "k80")).speed > 0.0
    assert truth.pace(Setting(4.0, ONE, "k80")).speed == 0.0


def test_a_packed_job_keeps_the_usual_share(truth: RegimeTruth) -> None:
    packed = truth.pace(Setting(0.0, ONE, "v100", (FixedDuration(1.0, 1),)))
    assert packed.speed == pytest.approx(PACKED_SPEED * 30.0 / 3125)
    assert packed.observation is not None
    assert packed.observation.step_s == pytest.approx(1 / 30.0 / PACKED_SPEED)


def test_a_batch_that_the_table_does_not_have_is_refused(table_file: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no speed for 'ResNet-18 \(batch size 64\)' on 1 GPUs"):
        RegimeTruth(load_table(table_file), "ResNet-18", 1, 10, ((0, 16), (3, 64)))


def test_a_job_counts_on_a_gpu_type_that_runs_all_its_batches(write: Callable[[str, object], Path]) -> None:
    small, large = "('ResNet-18 (batch size 16)', 1)", "('ResNet-18 (batch size 256)', 1)"
    data = {"x": {small: {"null": 9.0}}, "y": {small: {"null": 1.0}, large: {"null": 1.0}}, "z": {large: {"null": 5.0}}}
    table = load_table(write("t.json", data))
    assert RegimeTruth(table, "ResNet-18", 1, 10, ((0, 16), (5, 256))).home == "y"
    with pytest.raises(InvalidSpec, match=r"no one GPU type for all batches of 'ResNet-18 .* on 1 GPUs of 'x', 'z'"):
        RegimeTruth(table, "ResNet-18", 1, 10, ((0, 16), (5, 256)), ("x", "z"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "is not JSON"),
        ([], 'has no "gns"'),
        ({"accordion": {}}, 'has no "gns"'),
        ({"gns": {"LM": [[0, 5]]}}, "found the key 'LM'; expected model|batch|sfGPUs"),
        ({"gns": {"LM|x|sf1": [[0, 5]]}}, "found the key"),
        ({"gns": {"LM|5|sf1": []}}, "is empty"),
        ({"gns": {"LM|5|sf1": 7}}, "found 7; expected .epoch, batch."),
        ({"gns": {"LM|5|sf1": [[1, 5]]}}, "first at epoch 0"),
        ({"gns": {"LM|5|sf1": [[0, 5], [0, 10]]}}, "epochs ascending"),
        ({"gns": {"LM|5|sf1": [[0, 5], [3, 0]]}}, r"found \[3, 0\]"),
        ({"gns": {"LM|5|sf1": [[0, 5], [3, 1.5]]}}, r"found \[3, 1.5\]"),
    ],
)
def test_a_broken_schedule_is_refused_by_file_and_key(
    write: Callable[[str, object], Path], data: object, says: str
) -> None:
    with pytest.raises(InvalidTrace, match=says) as caught:
        load_schedules(write("bad.json", data))
    assert "bad.json" in str(caught.value)


def test_the_public_jobs_take_as_long_alone_as_their_published_fairness_says(shared_data: Path) -> None:
    """The artifact's rho divides by the run alone times 120 / 32, with unrounded steps; ours rounds them up.

    For accordion it is told another schedule than the jobs follow, and for a few gns jobs one whose changes come an
    epoch late (2.6 % at most): those within 3 %, static ones exactly.
    """
    path = shared_data / "shockwave" / "jobs-120.trace"
    published = json.loads((path.parent / "published_jobs-120.json").read_text())["max_min_fairness"]
    library = Library.beside(path)
    checked = 0
    for job, jct_s, rho in zip(read_trace(path).jobs, published["jct_s"], published["rho"], strict=True):
        truth = truth_of(job, library)
        assert isinstance(truth, RegimeTruth)
        assert job.model is not None
        if job.mode == "accordion":
            continue
        alone_s = sum(
            (end - first)
            * DATASETS[job.model]
            / batch
            / truth.pace(Setting(first, on(job.gpus), "v100")).speed
            / -(-DATASETS[job.model] // batch)
            for (first, batch), end in zip(truth.schedule, [*truth.firsts[1:], truth.epochs], strict=True)
        )
        assert alone_s == pytest.approx(jct_s / rho / (120 / 32), rel=1e-4 if job.mode == "static" else 0.03), job.id
        checked += 1
    assert checked == 4 + 57  # static and gns


def on(gpus: int) -> Allocation:
    return Allocation.of({"a": range(gpus)})


def test_a_job_of_a_table_runs_between_the_gpus_it_was_measured_on(write: Callable[[str, object], Path]) -> None:
    rows = {f"('LM (batch size 80)', {gpus})": {"null": speed} for gpus, speed in ((1, 20.0), (2, 30.0), (4, 60.0))}
    path = write("tacc_throughputs.json", {"v100": rows})
    lm = RegimeTruth(load_table(path), "LM", 1, 10, ((0, 80),))
    assert lm.gpu_range(("v100",)) == (1, 4)
    speeds = [lm.pace(Setting(0.0, on(gpus), "v100")).speed for gpus in (1, 2, 3, 4, 5)]
    steps = -(-DATASETS["LM"] // 80)
    assert [speed * steps for speed in speeds] == pytest.approx([20.0, 30.0, 45.0, 60.0, 0.0])
    assert lm.batch_s() == {80: pytest.approx(10 * steps / 20.0)}
