"""What jobs offer a cluster, and what they need alone: stated quantities are those quantities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import main
from fairlead.plugins import POLICIES
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.offered_load import Demand, Yardstick
from fairlead.sim.truth import FixedDuration


def fairlead(*args: object) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fairlead")
    assert result.exit_code == 0, result.output
    return result.stdout


def job(gpus: int, duration_s: float, at: float, *gpu_types: str) -> Demand:
    return Demand(gpus, gpu_types, FixedDuration(duration_s, gpus), at)


def test_load_is_work_over_capacity() -> None:
    jobs = [job(2, 100.0, 0.0), job(4, 50.0, 60.0), job(1, 400.0, 200.0)]
    assert Yardstick(parse_cluster("2x4")).load(jobs) == pytest.approx((200 + 200 + 400) / (8 * 200))


def test_jobs_that_arrive_at_once_offer_no_load_that_can_be_stated() -> None:
    assert Yardstick(parse_cluster("1x4")).load([job(1, 10.0, 5.0), job(1, 10.0, 5.0)]) is None


def test_on_several_gpu_types_each_is_busy_at_its_own_speed() -> None:
    """Half of the GPUs do such jobs in 100 s, half in 400 s: together, one GPU does one in 160 s."""
    truth = GoodputTruth(APPLICATIONS["small-cnn"])
    yardstick = Yardstick(parse_cluster("v100=1x4,a100=1x4"))
    times_s = yardstick.alone_s(Demand(1, (), truth, 0.0))
    assert times_s["a100"] < times_s["v100"]
    expected = 2 / (1 / times_s["a100"] + 1 / times_s["v100"])
    assert yardstick.work_gpu_s(Demand(1, (), truth, 0.0)) == pytest.approx(expected)
    assert yardstick.work_gpu_s(Demand(1, ("v100",), truth, 0.0)) == pytest.approx(times_s["v100"])
    assert yardstick.best_s(Demand(1, (), truth, 0.0)) == times_s["a100"]


def test_a_type_that_is_too_narrow_for_a_job_does_not_count() -> None:
    yardstick = Yardstick(parse_cluster("v100=1x2,a100=1x4"))
    assert set(yardstick.alone_s(job(4, 10.0, 0.0))) == {"a100"}
    assert set(yardstick.alone_s(job(8, 10.0, 0.0))) == {"v100", "a100"}  # too wide, but its work is known


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("applications", [None, "all", "small-cnn,language-model"])
def test_a_generated_trace_offers_the_load_that_was_asked_for(
    applications: str | None, load: float, seed: int, tmp_path: Path
) -> None:
    out, cluster = tmp_path / "trace.jsonl", "v100=4x4,a100=4x4"
    more = [] if applications is None else ["--applications", applications]
    fairlead("trace", "generate", out, "--jobs", 30, "--cluster", cluster, "--load", load, "--seed", seed, *more)
    told = json.loads(fairlead("trace", "describe", out, "--cluster", cluster, "-o", "json"))
    assert told["load"] == pytest.approx(load, rel=0.02)
    assert told["gpu_hours"] == pytest.approx(load * 32 * told["span_s"] / 3600, rel=0.02)


@pytest.mark.parametrize("load", [0.5, 2.0])
def test_simulating_at_a_load_offers_that_load_on_the_cluster_at_hand(load: float, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    fairlead("trace", "generate", out, "--jobs", 12, "--gpus", 64, "--load", 0.3, "--applications", "small-cnn")
    plain = run_experiment(Experiment(trace=str(out), policy="fifo", cluster="a100=2x4"))
    moved = run_experiment(Experiment(trace=str(out), policy="fifo", cluster="a100=2x4", load=load))
    assert moved.offered_load == pytest.approx(load)
    assert plain.offered_load != pytest.approx(load, rel=0.01)
    assert moved.to_dict()["offered_load"] == moved.offered_load


def test_a_load_that_no_arrivals_can_offer_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,1,10\nb,0,1,10\n")
    result = CliRunner().invoke(main, ["simulate", str(trace), "--load", "1"], prog_name="fairlead")
    assert result.exit_code == 2
    assert "all its jobs arrive at once; leave --load out" in result.stderr


#: One gives a job fewer GPUs than it asks for on purpose, and says so; one has nodes boot that it has not rented yet.
DECLINES = {"frugal", "autoscale"}


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - DECLINES))
def test_an_idle_cluster_is_fair_under_every_policy(policy: str, tmp_path: Path) -> None:
    """Jobs that never meet wait for nothing: what they take is what they need, their start included."""
    trace = tmp_path / "jobs.csv"
    rows = [f"{name},{at},{gpus},600" for name, at, gpus in (("a", 0, 1), ("b", 2000, 4), ("c", 4000, 8))]
    trace.write_text("\n".join(["id,submit_s,gpus,duration_s", *rows]) + "\n")
    result = run_experiment(Experiment(trace=str(trace), policy=policy, cluster="2x4"))
    summary = result.measured.summary
    assert (summary.completed, summary.queue_mean_s) == (3, 0.0)
    assert [each.rho for each in result.measured.jobs] == pytest.approx([1.0, 1.0, 1.0], abs=0.005)
    assert (summary.unfair_share, summary.jain) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - DECLINES))
def test_a_cluster_of_several_gpu_types_with_room_for_all_is_fair_under_every_policy(
    policy: str, tmp_path: Path
) -> None:
    """Jobs meet, and there is room for all of them: none waits, none is moved, and all types are equally fast."""
    trace = tmp_path / "jobs.csv"
    rows = [f"j{n},{130 * n},{gpus},{600 + 37 * n}" for n, gpus in enumerate((4, 2, 1, 4, 4, 2, 4, 1, 4, 2, 4, 4))]
    trace.write_text("\n".join(["id,submit_s,gpus,duration_s", *rows]) + "\n")
    result = run_experiment(Experiment(trace=str(trace), policy=policy, cluster="v100=4x4,a100=4x4"))
    summary = result.measured.summary
    assert (summary.completed, summary.queue_mean_s, summary.preemptions) == (12, 0.0, 0)
    assert [each.rho for each in result.measured.jobs] == pytest.approx([1.0] * 12, abs=0.005)
    assert summary.unfair_share == 0.0
