"""What jobs may change: who decides it, what a policy is told of it, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch, JobSpec
from fairlead.sim.applications import APPLICATIONS, Adaptive, Fixed, GoodputTruth
from fairlead.sim.experiment import Experiment, prepare
from fairlead.sim.measured import PINNED_BATCHES, MeasuredTruth
from fairlead.sim.traces import Trace, TraceJob
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.truth import FixedDuration
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.world import SimJob

Write = Callable[..., Path]


def job(job_id: str, **fields: object) -> TraceJob:
    gpus = fields.setdefault("gpus", 2)
    return TraceJob(**{"id": job_id, "submit_s": 0.0, "gpus_min": gpus, "gpus_max": gpus, **fields})  # type: ignore[arg-type]


@pytest.fixture
def trace(tmp_path: Path, write_profile: Write) -> str:
    write_profile("toy")
    write_profile("ncf")
    jobs = (
        job("measured", model="toy", batch=32),
        job("ranged", model="toy", batch=32, gpus_min=1, gpus_max=3),
        job("pinned", model="ncf", batch=32),
        job("built-in", model="small-cnn", batch=512),
        job("unstated", model="small-cnn"),
        job("replayed", duration_s=60.0, batch=64),
    )
    path = tmp_path / "trace.jsonl"
    path.write_text(to_jsonl(Trace(jobs=jobs, format="fairlead", source="test")))
    return str(path)


@pytest.fixture(autouse=True)
def small_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy profile that stands for ncf has no batch of 32,768."""
    monkeypatch.setitem(PINNED_BATCHES, "ncf", 128)


def jobs_of(trace: str, adapt: str, *, policy: str = "fifo", cluster: str = "4x4", **more: object) -> dict[str, SimJob]:
    experiment = Experiment(trace=trace, policy=policy, cluster=cluster, adapt=adapt, **more)  # type: ignore[arg-type]
    return {job.spec.id: job for job in prepare(experiment).jobs}


def gpus(spec: JobSpec) -> tuple[int, int, int]:
    return spec.least, spec.gpus, spec.most


def test_by_default_a_job_keeps_its_gpus_and_its_batch(trace: str) -> None:
    jobs = jobs_of(trace, "auto")
    assert {name: gpus(job.spec) for name, job in jobs.items() if name != "ranged"} == dict.fromkeys(
        ("measured", "pinned", "built-in", "unstated", "replayed"), (2, 2, 2)
    )
    assert isinstance(jobs["measured"].truth, MeasuredTruth)
    assert jobs["measured"].spec.batch == Batch(32, max_total=32, min_per_gpu=4, max_per_gpu=32)
    assert jobs["built-in"].spec.batch == Batch(512, max_total=512, min_per_gpu=32, max_per_gpu=1024)
    assert jobs["unstated"].spec.batch == APPLICATIONS["small-cnn"].batch  # nobody has fixed it
    assert jobs["replayed"].spec.batch == Batch(64)


def test_with_free_gpus_a_job_may_have_as_many_as_its_batch_can_be_divided_among(trace: str) -> None:
    jobs = jobs_of(trace, "gpus")
    assert gpus(jobs["measured"].spec) == (1, 2, 8)  # 32 // 4
    assert gpus(jobs["built-in"].spec) == (1, 2, 16)  # 512 // 32
    assert jobs["measured"].spec.batch == Batch(32, max_total=32, min_per_gpu=4, max_per_gpu=32)
    assert isinstance(jobs["measured"].truth, MeasuredTruth)
    truth = jobs["built-in"].truth
    assert isinstance(truth, GoodputTruth)
    assert truth.batch_mode == Fixed(512)


def test_no_job_may_have_more_than_the_cluster_has_of_one_type(trace: str) -> None:
    assert gpus(jobs_of(trace, "gpus", cluster="1x4")["measured"].spec) == (1, 2, 4)
    assert gpus(jobs_of(trace, "gpus", cluster="v100=1x4,t4=1x2")["built-in"].spec) == (1, 2, 4)


def test_with_a_free_batch_a_job_has_the_bounds_of_its_application(trace: str) -> None:
    jobs = jobs_of(trace, "batch", cluster="16x4")
    assert gpus(jobs["measured"].spec) == (1, 2, 32)  # 128 // 4
    assert jobs["measured"].spec.batch == Batch(8, max_total=128, min_per_gpu=4, max_per_gpu=32)
    assert isinstance(jobs["measured"].truth, TunedTruth)
    truth = jobs["built-in"].truth
    assert isinstance(truth, GoodputTruth)
    assert truth.batch_mode == Adaptive()
    assert jobs["built-in"].spec.batch == APPLICATIONS["small-cnn"].batch


@pytest.mark.parametrize(("adapt", "batch"), [("nothing", 32), ("gpus", 32), ("batch", 128)])
def test_a_pinned_application_has_one_gpu_and_its_own_batch(trace: str, adapt: str, batch: int) -> None:
    pinned = jobs_of(trace, adapt)["pinned"]
    assert gpus(pinned.spec) == ((2, 2, 2) if adapt == "nothing" else (1, 1, 1))
    assert isinstance(pinned.truth, MeasuredTruth)
    assert pinned.truth.batch == batch
    assert pinned.spec.batch == Batch(batch, max_total=batch, min_per_gpu=4, max_per_gpu=32)


@pytest.mark.parametrize("adapt", ["nothing", "gpus", "batch"])
def test_a_range_in_the_trace_is_kept_and_a_replayed_job_stays_as_it_is(trace: str, adapt: str) -> None:
    jobs = jobs_of(trace, adapt)
    assert gpus(jobs["ranged"].spec) == (1, 2, 3)
    assert gpus(jobs["replayed"].spec) == (2, 2, 2)
    assert jobs["replayed"].truth == FixedDuration(60.0, 2)


def test_whatever_a_job_may_change_its_run_alone_is_what_its_user_asked_for(trace: str) -> None:
    alone_s = {
        adapt: jobs_of(trace, adapt)["measured"].truth.remaining_s(0.0) for adapt in ("nothing", "gpus", "batch")
    }
    assert len(set(alone_s.values())) == 1


@pytest.mark.parametrize(("adapts", "most"), [('"nothing"', 2), ('"gpus"', 8), ('"batch"', 16)])
def test_a_policy_says_what_it_makes_use_of_and_the_experiment_can_overrule_it(
    trace: str, tmp_path: Path, adapts: str, most: int
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"class Mine:\n    adapts = {adapts}\n\n    def plan(self, view):\n        ...\n")
    assert jobs_of(trace, "auto", policy=f"{file}:Mine")["measured"].spec.most == most
    assert jobs_of(trace, "gpus", policy=f"{file}:Mine")["measured"].spec.most == 8


def test_what_cannot_be_adapted_is_refused_by_name(trace: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="adapt is 'everything'; expected nothing, gpus, batch"):
        jobs_of(trace, "everything")
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    adapts = True\n\n    def plan(self, view):\n        ...\n")
    with pytest.raises(InvalidSpec, match="policy Mine: adapts is True; expected nothing, gpus, batch"):
        jobs_of(trace, "auto", policy=f"{file}:Mine")


def test_every_job_can_be_made_to_rescale_in_place(trace: str) -> None:
    assert not any(job.spec.in_place for job in jobs_of(trace, "gpus").values())
    assert all(job.spec.in_place for job in jobs_of(trace, "gpus", in_place=True).values())
