"""What policies are told may be wrong: by how much, for whom, and that the truth stays what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairlead.core.messages import JobReported, JobSubmitted
from fairlead.core.types import Observation
from fairlead.journal import MemoryJournal
from fairlead.sim.experiment import Experiment, prepare, run_experiment
from fairlead.sim.noise import EXACT, ObservationNoise, promised_s, standard_normal

SEEN = Observation(gpu_type="v100", nodes=1, gpus=2, per_gpu_batch=32, accumulation=0, step_s=0.5, sync_s=0.1, steps=9)


def report(job: str = "a", progress: float = 0.1) -> JobReported:
    return JobReported(5.0, job, 1, progress=progress, noise_scale=100.0, observations=(SEEN,))


def test_the_same_measurement_of_the_same_job_is_wrong_in_the_same_way() -> None:
    noise = ObservationNoise(0.3, seed=1)
    assert noise.told(report()) == noise.told(report())
    assert noise.told(report()) != noise.told(report("b"))
    assert noise.told(report()) != ObservationNoise(0.3, seed=2).told(report())
    assert EXACT.told(report()) == report()


def test_step_times_are_right_on_average_and_progress_always() -> None:
    noise = ObservationNoise(0.3, seed=1)
    told = [noise.told(report(f"job-{n}")) for n in range(4000)]
    step_s = np.array([each.observations[0].step_s for each in told])
    assert step_s.mean() == pytest.approx(0.5, rel=0.02)
    assert np.log(step_s).std() == pytest.approx(0.3, rel=0.05)
    sync_s = np.array([each.observations[0].sync_s for each in told])
    assert sync_s / step_s == pytest.approx(np.full(4000, 0.2))
    assert np.array([each.noise_scale for each in told]).mean() == pytest.approx(100.0, rel=0.02)
    assert {each.progress for each in told} == {0.1}


def test_promises_are_as_often_too_long_as_too_short() -> None:
    promised = np.array([promised_s(100.0, error=0.7, seed=3, job=f"job-{n}") for n in range(4000)])
    assert np.median(promised) == pytest.approx(100.0, rel=0.05)
    assert np.log(promised).std() == pytest.approx(0.7, rel=0.05)
    assert promised_s(100.0, error=0.0, seed=3, job="a") == 100.0


def test_a_draw_depends_on_its_key_alone() -> None:
    assert standard_normal(1, "a", "x") == standard_normal(1, "a", "x")
    assert len({standard_normal(*key) for key in ((1, "a", "x"), (2, "a", "x"), (1, "b", "x"), (1, "a", "y"))}) == 4


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_s,gpus,duration_s,estimate_s\na,0,2,1000,\nb,10,2,3000,7000\n")
    return str(path)


def test_a_promise_of_the_trace_is_left_alone(trace: str) -> None:
    world = prepare(Experiment(trace=trace, policy="easy", cluster="1x4", estimate_error=0.5, seed=4))
    promises = {job.spec.id: job.spec.estimate_s for job in world.jobs}
    assert promises["b"] == 7000.0
    assert promises["a"] == pytest.approx(promised_s(1000.0, error=0.5, seed=4, job="a"))
    assert [job.truth.remaining_s(0.0) for job in world.jobs] == [1000.0, 3000.0]


def test_policies_see_the_noise_and_jobs_do_not_run_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "apps.csv"
    path.write_text("id,submit_s,gpus,model\na,0,2,small-cnn\nb,10,2,language-model\n")
    runs = {}
    for noise in (0.0, 0.4):
        journal = MemoryJournal()
        experiment = Experiment(trace=str(path), policy="fifo", cluster="1x4", noise=noise, adapt="batch")
        result = run_experiment(experiment, journal=journal)
        told = [o.step_s for m in journal if isinstance(m, JobReported) for o in m.observations]
        submitted = [m.spec for m in journal if isinstance(m, JobSubmitted)]
        runs[noise] = result.metrics.jct_mean_s, told, submitted
    assert runs[0.0][0] == runs[0.4][0]  # fifo does not listen
    assert runs[0.0][2] == runs[0.4][2]
    assert len(runs[0.0][1]) == len(runs[0.4][1]) > 1
    assert all(exact != noisy for exact, noisy in zip(runs[0.0][1], runs[0.4][1], strict=True))
