"""Profiles under the rules of Sia's simulator: what lies beyond the measured, and pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.types import Allocation, JobSpec
from fairlead.sim.adapting import freedom, narrower
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.foreknown import one_gpu_lore
from fairlead.sim.sia_profile import MICRO_BATCHES, PipelineProfile, SiaProfile, load_sia_profile
from fairlead.sim.traces.record import TraceJob
from fairlead.sim.truth import Setting
from fairlead.sim.typed import TypedTruth, TypedTunedTruth
from fairlead.sim.world import SimJob

HEAD = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"


def write_validations(directory: Path, batches: tuple[int, ...]) -> None:
    for batch in batches:
        epochs = "".join(f"{100 * e},{800 * e // batch},0,1.0,50.0\n" for e in (1, 2))
        (directory / f"validation-{batch}.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n" + epochs)


def write_speech(directory: Path) -> Path:
    """As the artifact's deepspeech2: up to 80 samples on a GPU, 40 where there are twelve GPUs and more."""
    directory.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement, most in (("1", 80), ("2", 80), ("4", 80), ("8", 80), ("18", 57), ("48", 40), ("88", 40)):
        sync_s = 0.0 if placement == "1" else 0.01
        rows += [f"{placement},{m},{0.1 + 0.01 * m + sync_s},{sync_s}" for m in (10, 20, most)]
    (directory / "placements-rtx.csv").write_text("\n".join(rows))
    wide = [(3, 3, 80), (2, 3, 80), (3, 12, 40), (2, 12, 40), (3, 18, 28), (3, 24, 28)]
    lines = [f"{n},{k},{m},{0.12 + 0.01 * m},0.02" for n, k, most in wide for m in (10, most)]
    (directory / "scalability-rtx.csv").write_text(HEAD + "\n".join(lines))
    write_validations(directory, (20, 640))
    return directory


@pytest.fixture
def speech(tmp_path: Path) -> SiaProfile:
    return load_sia_profile(write_speech(tmp_path / "speech"), gpu_type="rtx")


@pytest.mark.parametrize(
    ("batch", "placement", "expected"),
    [
        (640, (8, 4), (26, 1)),  # 54 on each, of which 40 were measured; twice 27 were more than 640 in all
        (640, (8, 8), (40, 0)),
        (640, (8,), (80, 0)),
        (640, (4,), (80, 1)),
        (640, (1,), (80, 7)),
        (21, (1,), (11, 1)),  # one GPU takes two micro-steps beyond the initial batch
        (640, (8, 8, 4), (16, 1)),  # not measured; on at least as many nodes and GPUs no more than 28 were
        (640, (4, 4, 4), (26, 1)),
    ],
)
def test_a_batch_beyond_what_was_measured_on_a_placement_is_split(
    speech: SiaProfile, batch: int, placement: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert speech.split_on(batch, placement) == expected
    assert speech.times(placement, expected[0]) is not None


def test_every_placement_of_a_cluster_takes_some_time(speech: SiaProfile) -> None:
    for first in range(1, 9):
        for second in range(first + 1):
            for third in range(second + 1):
                placement = tuple(filter(None, (first, second, third)))
                for batch in (20, 64, 640):
                    m, _ = speech.split_on(batch, placement)
                    assert m >= 1
                    times = speech.times(speech.on(placement), m)
                    assert times is not None
                    assert times[0] > times[1] >= 0.0


def test_more_gpus_or_nodes_than_were_measured_count_as_those_that_were(speech: SiaProfile) -> None:
    assert speech.counted((1, 1, 1, 1)) == (2, 2)  # as the artifact squeezes them
    assert sum(speech.counted((8,) * 6)) == speech.most_gpus == 24
    held = Allocation.of({f"n{node}": range(8) for node in range(6)})
    setting = Setting(0.0, held, "rtx")
    pace = speech.pace(setting, *speech.split_on(640, (8,) * 6))
    known = speech.pace(
        Setting(0.0, Allocation.of({f"n{node}": range(8) for node in range(3)}), "rtx"),
        *speech.split_on(640, (8,) * 3),
    )
    assert pace.speed == known.speed > 0.0
    assert pace.observation is not None
    assert known.observation is not None
    assert pace.observation.gpus == 48
    assert pace.observation.step_s == 2 * known.observation.step_s  # the same samples per second of twice the GPUs


def test_placements_that_span_no_space_take_as_long_as_the_nearest(tmp_path: Path) -> None:
    directory = tmp_path / "quad"
    directory.mkdir()
    rows = [f"{k},{m},{0.1 * m},0.01" for k in (1, 2, 3, 4) for m in (4, 24)]
    (directory / "placements-quad.csv").write_text("placement,local_bsz,step_time,sync_time\n" + "\n".join(rows))
    (directory / "scalability-quad.csv").write_text(HEAD + "1,4,4,0.4,0.01\n")
    write_validations(directory, (8, 96))
    quad = load_sia_profile(directory, gpu_type="quad")
    assert quad.times((2, 2), 24) == quad.times((4,), 24)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def write_pipeline(directory: Path) -> Path:
    """As the artifact's gpt_pmp: eight stages on one type, two on the other; averaging may be longer than a pass."""
    directory.mkdir(parents=True)
    for name, placements, forward_s, sync_s in (
        ("rtx", ("8", "88", "888"), 0.1, 0.33),
        ("dgx-ext", ("2", "4", "6", "8", "88"), 0.144, 0.016),
    ):
        rows = [f"{placement},{m},{forward_s * m},{sync_s}" for placement in placements for m in (1, 2)]
        (directory / f"placements-{name}.csv").write_text("placement,local_bsz,step_time,sync_time\n" + "\n".join(rows))
        (directory / f"scalability-{name}.csv").write_text(HEAD + "1,8,1,0.1,0.33\n")
    write_validations(directory, (12, 48, 384))
    return directory


def pipeline_job(**fields: object) -> TraceJob:
    defaults = {"id": "g", "submit_s": 0.0, "gpus": 8, "gpus_min": 8, "gpus_max": 8, "batch": 48, "model": "gpt_pmp"}
    return TraceJob(**{**defaults, **fields})  # type: ignore[arg-type]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    write_pipeline(tmp_path / "traces" / "gpt_pmp")
    return Library.beside(tmp_path / "x.csv", tmp_path / "traces")


def on(gpu_type: str, *counts: int) -> Setting:
    return Setting(0.0, Allocation.of({f"n{place}": range(count) for place, count in enumerate(counts)}), gpu_type)


def test_a_pipeline_takes_its_micro_batches_through_all_its_stages(library: Library) -> None:
    truth = truth_of(pipeline_job(), library, ("rtx", "a100", "t4"), adapt="batch")
    assert isinstance(truth, TypedTunedTruth)
    assert isinstance(truth.asked.on("rtx"), PipelineProfile)
    for gpu_type, counts, stages, forward_s, sync_s, replicas in (
        ("rtx", (8,), 8, 0.1, 0.33, 1),
        ("rtx", (8, 4), 8, 0.1, 0.33, 1),  # four of them are idle
        ("rtx", (8, 8, 8), 8, 0.1, 0.33, 3),
        ("a100", (2,), 2, 0.144, 0.016, 1),
        ("a100", (8, 8), 2, 0.144, 0.016, 8),
    ):
        pace = truth.pace(on(gpu_type, *counts))
        assert pace.batch == MICRO_BATCHES * replicas
        assert pace.observation is not None
        assert pace.observation.step_s == pytest.approx(3 * (stages - 1 + MICRO_BATCHES) * forward_s + sync_s)
    assert truth.pace(on("rtx", 4)).speed == truth.pace(on("t4", 4)).speed == 0.0


def test_a_pipeline_has_gpus_that_it_can_run_on_whatever_their_type(library: Library) -> None:
    job = pipeline_job(gpus=1, gpus_min=1, gpus_max=1)
    truth = truth_of(job, library, ("rtx", "a100"), adapt="batch")
    free = freedom(job, truth, adapt="batch", room=24, gpu_types=("rtx", "a100"))
    assert (free.gpus, free.gpus_min) == (8, 8)
    only = freedom(job, truth, adapt="batch", room=16, gpu_types=("a100",))
    assert (only.gpus, only.gpus_min) == (2, 2)
    assert truth.remaining_s(0.0) > 0.0


def test_what_a_job_may_change_is_the_narrower_of_trace_and_policy() -> None:
    assert narrower("batch", pipeline_job(adapts="gpus")) == "gpus"
    assert narrower("nothing", pipeline_job(adapts="batch")) == "nothing"
    assert narrower("batch", pipeline_job()) == "batch"


def test_a_short_profile_on_one_gpu_of_each_type_is_known_beforehand(tmp_path: Path, library: Library) -> None:
    write_speech(tmp_path / "traces" / "speech")
    speech_job = pipeline_job(model="speech", batch=640)
    truth = truth_of(speech_job, Library.beside("x", tmp_path / "traces"), ("rtx",), adapt="batch")
    assert isinstance(truth, TypedTunedTruth)
    spec = JobSpec(id="s", gpus=8, labels={"model": "speech"})
    pipeline = truth_of(pipeline_job(), library, ("rtx",), adapt="nothing")
    assert isinstance(pipeline, TypedTruth)
    other = JobSpec(id="g", gpus=8, labels={"model": "gpt_pmp"})
    lore = one_gpu_lore([SimJob(spec, 0.0, truth), SimJob(other, 0.0, pipeline)], ("rtx",))
    (seen,) = lore["speech"].observations
    assert (seen.gpu_type, seen.nodes, seen.gpus, seen.per_gpu_batch) == ("rtx", 1, 1, 80)
    assert seen.step_s == pytest.approx(0.1 + 0.01 * 80)
    assert lore["gpt_pmp"].observations == ()  # it runs on no single GPU
