"""Failures as an experiment injects them, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.sim.experiment import Experiment, prepare, run_experiment
from fairlead.sim.traces import NodeFailure, Trace, TraceJob
from fairlead.sim.traces.canonical import to_jsonl


def write(path: Path, *jobs: TraceJob, failures: tuple[NodeFailure, ...] = ()) -> str:
    path.write_text(to_jsonl(Trace(jobs=jobs, format="fairlead", source="test", failures=failures)))
    return str(path)


def job(job_id: str, **fields: object) -> TraceJob:
    return TraceJob(**{"id": job_id, "submit_s": 0.0, "gpus": 4, "gpus_min": 4, "gpus_max": 4, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("costs", "most_lost_h"), [("none", 0.0), ("default", 0.5)])
def test_a_lost_node_costs_no_more_than_the_work_since_the_last_checkpoint(
    tmp_path: Path, costs: str, most_lost_h: float
) -> None:
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=360_000.0))
    run = Experiment(trace=trace, policy="fifo", cluster="1x4", costs=costs, failures_h=(20.0, 0.01), seed=1)
    outages = len(prepare(run).outages)
    m = run_experiment(run).measured.summary
    assert m.restarts_per_job is not None
    assert 0 < m.restarts_per_job <= outages
    assert m.gpu_h_lost <= most_lost_h * 4 * m.restarts_per_job + 1e-6
    assert m.gpu_h_useful == pytest.approx(400.0, rel=1e-6)
    assert (m.gpu_h_lost > 0) == (costs == "default")


def test_failures_go_on_for_jobs_whose_length_the_trace_does_not_tell(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", *(job(f"j{n}", model="small-cnn") for n in range(8)))
    run = Experiment(trace=trace, policy="fifo", cluster="1x4", failures_h=(0.5, 0.05), seed=1)
    result = run_experiment(run)
    last = max(message.until for message in prepare(run).outages)
    assert result.measured.summary.makespan_s is not None
    assert last > result.measured.summary.makespan_s


def test_a_node_that_fails_while_it_is_away_comes_back_when_both_repairs_are_done(tmp_path: Path) -> None:
    failures = (NodeFailure(0, 10.0, 100.0), NodeFailure(0, 20.0, 5.0), NodeFailure(1, 15.0, 1.0))
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=5.0), failures=failures)
    outages = prepare(Experiment(trace=trace, policy="fifo", cluster="2x4")).outages
    assert [(o.node, o.at, o.until) for o in outages] == [("n0", 10.0, 110.0), ("n1", 15.0, 16.0)]


def test_users_promise_nothing_if_the_experiment_says_so(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=5.0), job("b", duration_s=5.0, estimate_s=9.0))
    for estimates, expected in (("exact", [5.0, 9.0]), ("none", [None, 9.0])):
        world = prepare(Experiment(trace=trace, policy="easy", cluster="1x4", estimates=estimates))
        assert [sim_job.spec.estimate_s for sim_job in world.jobs] == expected


def test_clipped_jobs_are_counted(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=5.0))
    result = run_experiment(Experiment(trace=trace, policy="fifo", cluster="1x2", oversized="clip"))
    assert result.clipped == 1
    assert json.dumps(result.to_dict(), allow_nan=False)
