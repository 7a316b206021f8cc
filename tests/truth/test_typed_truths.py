"""Truths that differ by GPU type: profiles in the layout of Sia's artifact, and built-in applications on more types."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Observation
from fairlead.sim.adapting import freedom
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.traces.record import InvalidTrace, TraceJob
from fairlead.sim.truth import Learned, Setting
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.typed import SLOWER, TypedTruth, TypedTunedTruth, built_in

#: Seconds of a sample, and GPUs of a node, by the artifact's name of the type.
TYPES = {"aws": (0.01, 4), "rtx": (0.005, 8), "dgx-ext": (0.002, 8)}


def write_profile(directory: Path, *, types: dict[str, tuple[float, int]] | None = None, most: int = 32) -> Path:
    """Batches of 8 to 256, 8 to `most` of them on a GPU (twice as many on dgx-ext); two epochs of 100 steps."""
    directory.mkdir(parents=True)
    for name, (sample_s, node) in (types or TYPES).items():
        rows = ["local_bsz,step_time,sync_time,placement"]
        for placement in (*map(str, range(1, node + 1)), "11", f"{node}{node}"):
            sync_s = 0.0 if placement == "1" else 0.01 * len(placement)
            locals_ = (8, 16, most, *([2 * most] if name == "dgx-ext" else []))
            rows += [f"{m},{0.02 + sample_s * m + sync_s},{sync_s},{placement}" for m in locals_]
        (directory / f"placements-{name}.csv").write_text("\n".join(rows))
        wide = "\n".join(f"3,{3 * node},{m},{0.05 + sample_s * m},0.03" for m in (8, 16, most))
        head = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
        (directory / f"scalability-{name}.csv").write_text(head + wide)
    for batch in (8, 256):
        epochs = "".join(f"{100 * e},{800 * e // batch},0,1.0,50.0\n" for e in (1, 2))
        (directory / f"validation-{batch}.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n" + epochs)
    return directory


@pytest.fixture
def library(tmp_path: Path) -> Library:
    write_profile(tmp_path / "traces" / "toy")
    write_profile(tmp_path / "traces" / "bert")
    return Library.beside(tmp_path / "workload.csv", tmp_path / "traces")


def job(model: str = "toy", **fields: object) -> TraceJob:
    defaults = {"id": "j7", "submit_s": 0.0, "gpus": 1, "gpus_min": 1, "gpus_max": 1, "batch": 8}
    return TraceJob(**{**defaults, "model": model, **fields})  # type: ignore[arg-type]


def on(gpu_type: str, *counts: int, learned: Learned | None = None) -> Setting:
    """So many GPUs on each node."""
    held = Allocation.of({f"n{place}": range(count) for place, count in enumerate(counts)})
    return Setting(0.0, held, gpu_type) if learned is None else Setting(0.0, held, gpu_type, learned=learned)


ALL = ("aws", "rtx", "dgx-ext")


def test_a_job_trains_on_each_type_as_fast_as_it_was_measured_there(library: Library) -> None:
    truth = truth_of(job(), library, ALL)
    assert isinstance(truth, TypedTruth)
    for name, (sample_s, _) in TYPES.items():
        pace = truth.pace(on(name, 1))
        assert 1.0 / pace.speed == pytest.approx(0.02 + 8 * sample_s)
        assert pace.observation is not None
        assert pace.observation.gpu_type == name
    assert truth.total == 200.0


def test_a_type_has_other_names(library: Library) -> None:
    truth = truth_of(job(), library, ("t4", "RTX", "a100"))
    assert [truth.pace(on(name, 2)).speed for name in ("t4", "RTX", "a100")] == [
        truth_of(job(), library, ALL).pace(on(name, 2)).speed for name in ALL
    ]


def test_a_job_runs_alone_on_the_fastest_type_it_may_have(library: Library) -> None:
    fast, slow = truth_of(job(), library, ALL), truth_of(job(gpu_types=("aws",)), library, ALL)
    assert fast.remaining_s(0.0) == pytest.approx(200 * (0.02 + 8 * 0.002), abs=2.0)
    assert slow.remaining_s(0.0) == pytest.approx(200 * (0.02 + 8 * 0.01), abs=2.0)


def test_a_job_cannot_run_on_a_type_without_files(library: Library) -> None:
    truth = truth_of(job(), library, ("aws", "k80"))
    assert truth.pace(on("aws", 1)).speed > 0.0
    assert truth.pace(on("k80", 1)).speed == 0.0
    tuned = truth_of(job(), library, ("aws", "k80"), adapt="batch")
    assert tuned.pace(on("k80", 1)).speed == 0.0
    with pytest.raises(InvalidSpec, match=r"job j7: application toy was profiled on 'aws', 'dgx-ext', 'rtx' .*'k80'"):
        truth_of(job(), library, ("k80",))


def test_real_jobs_are_slower_than_their_profiles(library: Library) -> None:
    toy, bert = (truth_of(job(model), library, ALL).pace(on("rtx", 4)) for model in ("toy", "bert"))
    assert toy.speed / bert.speed == pytest.approx(SLOWER["bert"])
    assert toy.observation == bert.observation


def test_a_job_that_adapts_uses_the_memory_that_each_type_has(library: Library) -> None:
    truth = truth_of(job(batch=64), library, ALL, adapt="batch")
    assert isinstance(truth, TypedTunedTruth)
    told = Learned(
        tuple(Observation(name, 1, 1, m, 0, 0.02 + s * m, 0.0) for name, (s, _) in TYPES.items() for m in (8, 16)),
        noise_scale=1e6,
    )
    seen = {name: truth.pace(on(name, 1, learned=told)).observation for name in ALL}
    assert {name: s.per_gpu_batch for name, s in seen.items() if s} == {"aws": 32, "rtx": 32, "dgx-ext": 64}


def test_its_user_states_bounds_that_hold_on_every_type(library: Library) -> None:
    truth = truth_of(job(), library, ALL, adapt="batch")
    batch = freedom(job(), truth, adapt="batch", room=16).batch
    assert batch is not None
    assert (batch.initial, batch.max_total, batch.min_per_gpu, batch.max_per_gpu) == (8, 256, 8, 32)
    assert freedom(job(), truth, adapt="batch", room=100).gpus_max == 24  # no more than were measured
    told = freedom(job(), truth, adapt="batch", room=16, batch_limit="requested")
    assert told.batch is not None
    assert (told.batch.max_total, told.gpus_max) == (8, 16)
    wide = freedom(job(gpus=4, gpus_min=4, gpus_max=4), truth, adapt="batch", room=16, batch_limit="requested")
    assert wide.batch is not None
    assert wide.batch.max_total == 4 * 8  # eight on each is the least that was measured


def test_a_batch_that_is_kept_can_be_shared_by_the_gpus_that_were_asked_for(library: Library) -> None:
    for gpus, batch, expected in ((16, 20, (20, 1)), (20, 12, (20, 1)), (2, 16, (16, 8))):
        rigid = job(gpus=gpus, gpus_min=gpus, gpus_max=gpus, batch=batch, adapts="nothing")
        told = freedom(rigid, truth_of(rigid, library, ALL), adapt="nothing", room=24).batch
        assert told is not None
        assert (told.max_total, told.min_per_gpu) == expected


def test_bounds_on_one_type_are_its_own(library: Library) -> None:
    only = truth_of(job(gpu_types=("dgx-ext",)), library, ALL, adapt="batch")
    alone = freedom(job(), only, adapt="batch", room=16).batch
    assert alone is not None
    assert alone.max_per_gpu == 64


def test_equal_jobs_share_one_truth(library: Library) -> None:
    assert truth_of(job(), library, ALL) is truth_of(job(id="other"), library, ALL)


def test_the_artifacts_recommender_keeps_its_batch(tmp_path: Path) -> None:
    write_profile(tmp_path / "ncf", most=32768)
    (tmp_path / "ncf" / "validation-256.csv").rename(tmp_path / "ncf" / "validation-32768.csv")
    truth = truth_of(job("ncf", batch=None), Library.beside("x", tmp_path), ALL, adapt="batch")
    assert isinstance(truth, TypedTruth)
    assert not isinstance(truth, TunedTruth)
    assert truth.batch == 32768


def test_what_is_wrong_with_a_file_or_a_job_is_said(library: Library) -> None:
    assert library.profiles is not None
    with pytest.raises(InvalidSpec, match="job j7: has no batch size, which the profile of toy needs"):
        truth_of(job(batch=None), library, ALL)
    with pytest.raises(InvalidSpec, match="job j7: batch is 512; application toy was measured from 8 to 256"):
        truth_of(job(batch=512), library, ALL)
    (library.profiles / "toy" / "scalability-rtx.csv").write_text("num_nodes\n1\n")
    with pytest.raises(InvalidTrace, match=r"scalability-rtx.csv.*has no column"):
        truth_of(job(), Library.beside("x", library.profiles), ("rtx",))


def test_built_in_applications_know_the_paper_s_third_type() -> None:
    truth = truth_of(job("large-cnn", batch=None), Library(), ("t4", "rtx", "a100"))
    assert isinstance(truth, GoodputTruth)
    t4, rtx, a100 = (truth.pace(on(name, 1)).speed for name in ("t4", "rtx", "a100"))
    assert t4 < rtx < a100
    assert rtx / t4 == pytest.approx(2.0)
    assert built_in(APPLICATIONS["large-cnn"], ("RTX",)) is truth.app


def test_other_types_leave_a_built_in_application_as_it_is() -> None:
    assert built_in(APPLICATIONS["small-cnn"], ("t4", "v100", "gpu")) is APPLICATIONS["small-cnn"]
