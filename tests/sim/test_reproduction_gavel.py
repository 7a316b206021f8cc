"""`fairlead reproduce gavel`: what is run, when a run is over, and what is said of awareness next to the paper."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import fairlead
from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.plugins import make_policy
from fairlead.sim import reproduction_gavel as paper
from fairlead.sim.experiment import run_experiment
from fairlead.sim.gavel_workload import gavel_trace, published_table
from fairlead.sim.reproduction_gavel import AGNOSTIC, POLICIES, PUBLISHED_H, QUICK, GavelRerun, Point
from fairlead.sim.workers import Worker

#: With this seed the two jobs of the window are short, and so are the runs.
SMALL, SEED = replace(QUICK, nodes=1, window=(16, 18), behind=40), 155
JOBS = [{"id": f"j{at}", "submit_s": 50.0 * at, "gpus": 1, "duration_s": 100.0} for at in range(40)]


def rerun(policy: str, directory: Path) -> GavelRerun:
    point = Point("single", policy, 36.0, SEED)
    return GavelRerun(point, SMALL, run_experiment(paper.experiment_of(point, SMALL, published_table(), directory)))


def test_a_run_is_over_with_its_window_and_its_figures_are_those_of_the_whole() -> None:
    asked = {"cluster": "1x1", "costs": "none", "warmup_s": 475.0, "window_s": 500.0}
    whole, short = (fairlead.simulate(JOBS, "fifo", stop=stop, **asked) for stop in ("end", "window"))  # type: ignore[arg-type]
    assert short.metrics.jct_mean_s == whole.metrics.jct_mean_s
    assert (short.metrics.jobs, short.metrics.unfinished) == (10, 0)
    assert short.decisions < whole.decisions
    assert any(not job.phase.final for job in short.jobs)
    with pytest.raises(InvalidSpec, match="stop is 'now'; expected end or window"):
        fairlead.simulate(JOBS, "fifo", stop="now", **asked)  # type: ignore[arg-type]


def test_the_jobs_that_count_are_those_of_the_window(tmp_path: Path) -> None:
    done = rerun("srtf", tmp_path)
    counted = [int(job.job) for job in done.result.jobs if job.counted]
    assert counted == list(range(*SMALL.window))
    assert done.jct_mean_s is not None
    assert done.published_s is None


def test_at_the_start_there_are_jobs_for_all_gpus_however_many_each_wants() -> None:
    jobs = gavel_trace(published_table(), jobs=300, per_hour=2.0, seed=4, multi_gpu=True, at_start=108).jobs
    first = [job.gpus for job in jobs if job.submit_s == 0.0]
    assert sum(first) >= 108 > sum(first[:-1])


def test_every_policy_of_the_paper_that_has_a_figure_has_one_of_ours() -> None:
    published = {policy for by_policy in PUBLISHED_H.values() for policy in by_policy}
    assert published <= POLICIES.keys()
    for policy in POLICIES.values():
        make_policy(policy)


def test_awareness_is_compared_with_the_same_policy_without_it(tmp_path: Path) -> None:
    agnostic, aware = (rerun(policy, tmp_path) for policy in ("fifo", "fifo_perf"))
    alone, beside = paper.rows([aware]), paper.rows([agnostic, aware])
    assert alone[0]["over_agnostic"] is None
    assert [row["over_agnostic"] for row in beside] == [None, agnostic.jct_mean_s / aware.jct_mean_s]  # type: ignore[operator]
    assert [row["published_over_agnostic"] for row in beside] == [None, None]
    as_published = [replace(run, point=replace(run.point, load=5.2), scale=paper.FULL) for run in (agnostic, aware)]
    assert paper.rows(as_published)[1]["published_over_agnostic"] == pytest.approx(151.67 / 56.69)


def test_every_aware_policy_has_its_agnostic_one() -> None:
    assert AGNOSTIC.keys() | set(AGNOSTIC.values()) <= POLICIES.keys()
    assert all("agnostic" in POLICIES[policy] for policy in AGNOSTIC.values())


def test_the_table_ends_with_what_awareness_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "QUICK", SMALL)
    arguments = ["reproduce", "gavel", "--quick", "--policies", "fifo,fifo_perf", "--loads", "36"]
    done = CliRunner().invoke(main, [*arguments, "--workers", "1", "--seeds", str(SEED)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "mean JCT by jobs an hour, in hours" in done.stdout
    gain = done.stdout[done.stdout.index("without knowledge of which GPU type suits a job") :]
    assert "fifo_perf" in gain
    assert "did not finish" not in done.output


def test_json_has_the_ratio_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "QUICK", SMALL)
    arguments = ["reproduce", "gavel", "--quick", "--policies", "gandiva", "--loads", "36", "-o", "json"]
    done = CliRunner().invoke(main, [*arguments, "--workers", "1", "--seeds", str(SEED)], catch_exceptions=False)
    (row,) = json.loads(done.stdout)
    assert row["policy_spec"].startswith("random-pairs-oracle")
    assert row["over_agnostic"] is row["published_over_agnostic"] is None
    assert row["jct_mean_s"] > 0.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seeds", "-1"], "--seeds names -1; expected numbers of at least 0"),
        (
            ["--workloads", "static", "--loads", "0.5"],
            "--loads names 0.5; a static workload has a whole number of jobs",
        ),
        (["--loads", "0"], "--loads names 0; expected numbers above 0, or all"),
        (["--loads", "nan"], "--loads names nan; expected numbers above 0, or all"),
    ],
)
def test_seeds_and_loads_that_cannot_be_run_are_refused(options: list[str], told: str) -> None:
    arguments = ["reproduce", "gavel", "--quick", "--policies", "fifo", *options]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())


def test_what_is_named_twice_is_run_once() -> None:
    twice = paper.points(["single", "single"], ["fifo", "fifo"], [4.0, 5.2, 4.0], [0, 1, 0])
    assert twice == paper.points(["single"], ["fifo"], [4.0, 5.2], [0, 1])
    assert len(twice) == 4


def test_a_worker_has_one_thread_for_linear_algebra_unless_its_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    worker, wanted, told = Worker(), {b"OMP_NUM_THREADS=1", b"OPENBLAS_NUM_THREADS=2"}, set[bytes]()
    try:
        for _ in range(600):  # between its fork and its program a process has the environment of its parent
            told = set(Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0"))
            if wanted <= told:
                break
            time.sleep(0.1)
    finally:
        worker.end()
    assert wanted <= told
