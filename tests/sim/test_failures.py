"""Failures as an experiment injects them, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.messages import NodeLost
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Plan
from fairlead.journal import MemoryJournal
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.experiment import Experiment, prepare, run_experiment
from fairlead.sim.traces import NodeFailure, Trace, TraceJob, reshape
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Failing, SimJob


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
    m = run_experiment(run).measured.summary
    assert m.restarts_per_job is not None
    assert m.restarts_per_job > 0
    assert m.gpu_h_lost <= most_lost_h * 4 * m.restarts_per_job + 1e-6
    assert m.gpu_h_useful == pytest.approx(400.0, rel=1e-6)
    assert (m.gpu_h_lost > 0) == (costs == "default")


def lost_at(run: Experiment) -> list[float]:
    journal = MemoryJournal()
    run_experiment(run, journal=journal)
    return [message.at for message in journal if isinstance(message, NodeLost)]


@pytest.mark.parametrize("policy", ["fifo", "pilot"])
def test_nodes_fail_for_as_long_as_the_run_lasts(tmp_path: Path, policy: str) -> None:
    """The job has an hour of work. It saves after half an hour, and hardly ever gets that far: it takes a day or more,
    which is far beyond a few times its work."""
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=3600.0))
    run = Experiment(trace=trace, policy=policy, cluster="1x4", failures_h=(0.1, 0.01), seed=2)
    journal = MemoryJournal()
    makespan_s = run_experiment(run, journal=journal).measured.summary.makespan_s
    lost = [message.at for message in journal if isinstance(message, NodeLost)]
    assert makespan_s is not None
    assert makespan_s > 24 * 3600.0
    gaps = [after - before for before, after in zip(lost, [*lost[1:], makespan_s], strict=True)]
    assert max(gaps) < 0.1 * 3600.0 * 10, "no pause of ten times the mean between two failures, up to the end"


def test_the_failures_are_those_that_a_trace_is_given_with_the_same_seed(tmp_path: Path) -> None:
    plain = Trace(jobs=(job("a", duration_s=36_000.0),), format="fairlead", source="test")
    with_them = reshape.inject_failures(plain, nodes=2, mtbf_s=3600.0, repair_s=60.0, seed=4)
    run = Experiment(
        trace=write(tmp_path / "t.jsonl", *plain.jobs), policy="fifo", cluster="2x4", failures_h=(1.0, 1 / 60), seed=4
    )
    told = [failure.at_s for failure in with_them.failures]
    assert lost_at(run)[: len(told)] == pytest.approx(told)


@pytest.mark.parametrize("policy", ["fifo", "pilot"])
def test_a_run_that_failures_never_let_end_is_given_up(tmp_path: Path, policy: str) -> None:
    """On 8 nodes one fails every minute; the job would need half an hour to save anything."""
    trace = write(tmp_path / "t.jsonl", job("a", duration_s=7200.0, gpus=32, gpus_min=32, gpus_max=32))
    run = Experiment(trace=trace, policy=policy, cluster="8x4", failures_h=(0.13, 0.01), seed=1)
    assert run_experiment(run).measured.summary.unfinished == 1


def test_a_job_that_no_node_can_hold_is_given_up_although_nodes_fail() -> None:
    """Nothing runs and nothing comes; a policy that looks again and again does not go on for ever."""
    spec = JobSpec(id="a", gpus=8)
    world = SimBackend([SimJob(spec, 0.0, FixedDuration(1.0, 8))], parse_cluster("1x4"), failing=Failing(1e9, 10.0))

    class Restless:
        def plan(self, view: Snapshot) -> Plan:
            return Plan(review_at=view.now + 1.0)

    state = State()
    run(Restless(), world, state=state, journal=MemoryJournal(), cadence=Cadence())
    assert state.now < 1e6


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
