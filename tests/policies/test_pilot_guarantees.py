"""What Pilot holds to whatever comes: its floor over whole runs, every kind of job and cluster, the bound, its options.

Its single decisions are in test_pilot.py, and the contract of all policies in test_builtin_contract.py.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobStarted, Start, Stop
from fairlead.core.state import State
from fairlead.core.types import Node, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.pilot import LEASE, Pilot
from fairlead.policies.pollux import Pollux
from fairlead.policies.sia import Sia
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces import Trace, TraceJob
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.testing import Scenario, check_policy, job, make_view, placement
from fairlead.testing.history import History, histories


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


# -- over a run --------------------------------------------------------------------------------------------------------


def write_trace(path: Path, seed: int, *, jobs: int, gap_s: float) -> str:
    """Built-in applications that take a minute or an hour of one GPU."""
    draw, at, made = random.Random(seed), 0.0, []
    for number in range(jobs):
        model = draw.choice(["small-cnn", "recommender"])
        made.append(TraceJob(id=f"j{number:02d}", submit_s=at, gpus=1, gpus_min=1, gpus_max=1, model=model))
        at += draw.expovariate(1 / gap_s)
    path.write_text(to_jsonl(Trace(jobs=tuple(made), format="fairlead", source="test")))
    return str(path)


def behind_s(journal: MemoryJournal, floor: float) -> float:
    """The furthest any job was ever behind, in seconds of the share it is guaranteed."""
    state, worst = State(), 0.0
    for message in journal:
        state.replay(message)
        view = state.snapshot()
        share = sum(node.gpus for node in view.nodes.values() if node.open) / max(1, len(view.jobs))
        for one in view.jobs.values():
            due_gpu_s = floor * (view.fair_gpu_s - one.fair_from_gpu_s)
            worst = max(worst, (due_gpu_s - one.held_at(view.now)) / (floor * share))
    return worst


def simulate(trace: str, **options: Any) -> MemoryJournal:
    journal = MemoryJournal()
    experiment = Experiment(trace=trace, policy="pilot", cluster="t4=1x4", report_every_s=30.0, **options)
    run_experiment(experiment, journal=journal)
    return journal


#: What it takes to serve who is behind: a lease (of 10 restarts, or of 10 times the 30 s until one was measured), a
#: review (15 s), others that make room (5 s to save) and a restart (25 s). On 4 GPUs one is always enough: a quarter of
#: an equal share is at most that.
SLACK_S = 10 * 30.0 + 15.0 + 5.0 + 25.0


@pytest.mark.parametrize("seed", range(6))
def test_with_at_most_as_many_jobs_as_gpus_nobody_is_behind_for_longer_than_it_takes_to_serve_it(
    seed: int, tmp_path: Path
) -> None:
    journal = simulate(write_trace(tmp_path / "trace.jsonl", seed, jobs=4, gap_s=400.0))
    assert behind_s(journal, Pilot().floor) <= SLACK_S


def test_with_more_jobs_than_gpus_nobody_is_far_behind(tmp_path: Path) -> None:
    """The slack is generous: a job that is behind must wait until others that are further behind have been served."""
    journal = simulate(write_trace(tmp_path / "trace.jsonl", 1, jobs=12, gap_s=200.0))
    assert behind_s(journal, Pilot().floor) <= 4 * SLACK_S


@pytest.mark.parametrize("seed", range(3))
def test_with_more_jobs_than_gpus_a_turn_is_worth_its_restart(seed: int, tmp_path: Path) -> None:
    """Everyone has one GPU, so nobody may be stopped before its lease is over: 10 times the pause it had last."""
    journal = simulate(write_trace(tmp_path / "trace.jsonl", seed, jobs=12, gap_s=200.0), adapt="nothing")
    asked_at: dict[str, float] = {}
    lease_until: dict[str, float] = {}
    stops = 0
    for message in journal:
        if isinstance(message, Start):
            asked_at[message.job] = message.at
        elif isinstance(message, JobStarted):
            lease_until[message.job] = message.at + LEASE * (message.at - asked_at[message.job])
        elif isinstance(message, Stop):
            stops += 1
            assert message.at >= lease_until[message.job] - 1e-6
    assert stops > 0


def test_a_large_job_is_served_although_small_ones_never_stop_coming(tmp_path: Path) -> None:
    """They end before their leases do, so it waits until nobody else is given GPUs and enough of them are free."""

    def rigid(name: str, at: float, gpus: int, lasts_s: float) -> TraceJob:
        return TraceJob(id=name, submit_s=at, gpus=gpus, gpus_min=gpus, gpus_max=gpus, duration_s=lasts_s)

    small = [rigid(f"s{k}", 12.0 * k, 1, 80.0) for k in range(200)]
    large = rigid("large", 300.0, 8, 60.0)
    trace = Trace(jobs=tuple(sorted([*small, large], key=lambda one: one.submit_s)), format="fairlead", source="test")
    path, journal = tmp_path / "trace.jsonl", MemoryJournal()
    path.write_text(to_jsonl(trace))
    run_experiment(Experiment(trace=str(path), policy="pilot", cluster="1x8"), journal=journal)
    started = next(message.at for message in journal if isinstance(message, Start) and message.job == "large")
    assert started < 300.0 + 10 * 30.0 + 10 * 10.0 + 60.0  # its own lease, one of theirs, and the time to make room


# -- every kind of job and cluster -------------------------------------------------------------------------------------


def test_rigid_jobs_get_what_they_ask_for_or_nothing() -> None:
    jobs = [job("four", 4), job("three", 3), job("one", 1)]
    plan = Pilot().plan(make_view("1x4", jobs))
    assert sizes(plan) in ({"four": 4}, {"three": 3, "one": 1})
    assert sizes(Pilot().plan(make_view("2x4", jobs))) == {"four": 4, "three": 3, "one": 1}


def test_a_rigid_job_that_is_larger_than_a_node_spans_nodes() -> None:
    Scenario(nodes="2x4", jobs=[job("a", 6)], expected={"a": 6}).check(Pilot())


def test_a_job_that_must_not_be_preempted_stays_whatever_others_would_gain() -> None:
    jobs = [job("bound", 3, gpus_min=1, gpus_max=4, preemptible=False, on="n0[1,2,3]"), job("a"), job("b")]
    plan = Pilot().plan(make_view("1x4", jobs, now=1e5))
    assert placement(plan)["bound"] == "n0[1,2,3]"
    assert len(plan.allocations) == 2


def test_a_job_that_must_not_be_preempted_is_started_like_any_other() -> None:
    Scenario(nodes="1x1", jobs=[job("bound", preemptible=False)], expected={"bound": 1}).check(Pilot())


def test_a_job_that_must_not_be_preempted_begins_on_what_it_asks_for() -> None:
    for policy in (Pilot(), Pollux(), Sia()):
        bound = job("bound", 4, gpus_min=1, gpus_max=8, preemptible=False)
        Scenario(nodes="1x8", jobs=[bound], expected={"bound": 4}).check(policy)


def test_a_job_runs_on_a_gpu_type_it_accepts() -> None:
    jobs = [job("new", 2, gpu_types=("a100",)), job("old", 2, gpu_types=("k80",))]
    Scenario(nodes="a100=1x2,k80=1x2", jobs=jobs, expected={"new": "n0[0,1]", "old": "n1[0,1]"}).check(Pilot())
    Scenario(nodes="v100=1x2", jobs=jobs, expected={}).check(Pilot())


def test_a_job_that_accepts_anything_leaves_the_only_gpus_that_another_accepts() -> None:
    jobs = [job("new", 2, gpu_types=("a100",)), job("old", 2, gpu_types=("k80",)), job("any", 2)]
    Scenario(nodes="a100=1x2,k80=2x2", jobs=jobs, expected={"new": 2, "old": 2, "any": 2}).check(Pilot())


def test_a_job_that_cannot_be_placed_on_the_gpus_it_accepts_is_not_put_on_others() -> None:
    """A bound job spans both v100 nodes, so no other may: three GPUs are free there, but not for one job."""
    nodes = [Node("n0", 3, "v100"), *(Node(f"n{k}", 1, "a100") for k in (1, 2, 3)), Node("n4", 2, "v100")]
    bound = job("bound", 2, preemptible=False, on="n0[2] n4[0]")
    Scenario(nodes=nodes, jobs=[bound, job("a", 3, gpu_types=("v100",))], expected={"bound": "n0[2] n4[0]"}).check(
        Pilot()
    )


def test_without_jobs_or_without_nodes_nothing_is_planned_and_everybody_is_told_why() -> None:
    assert Pilot().plan(make_view((), [])).allocations == {}
    assert Pilot().plan(make_view("2x4", [])).allocations == {}
    plan = Pilot().plan(make_view((), [job("a"), job("b", 2)]))
    assert plan.allocations == {}
    assert {name: reason.code for name, reason in plan.reasons.items()} == {"a": "too-large", "b": "too-large"}


def test_on_a_cluster_that_is_closed_everybody_stays() -> None:
    jobs = [job("a", on="n0[0]"), job("b", on="n1[0]"), job("c")]
    plan = Pilot().plan(make_view("2x4", jobs, draining=["n0"], lost=["n1"]))
    assert placement(plan) == {"a": "n0[0]"}
    assert set(plan.reasons) == {"a", "b", "c"}


def test_a_job_that_can_grow_leaves_a_draining_node_and_one_that_cannot_stays() -> None:
    jobs = [job("grows", gpus_max=8, on="n0[0]"), job("stays", on="n0[1]")]
    plan = Pilot().plan(make_view("2x4", jobs, now=1e5, draining=["n0"]))
    assert placement(plan) == {"grows": "n1[0,1]", "stays": "n0[1]"}


# -- the bound ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_without_a_floor_the_bound_is_a_share(history: History) -> None:
    policy = Pilot(floor=0.0)
    for view in history.views():
        bound = policy.plan(view).bound
        assert bound is None or 0.0 <= bound <= 1.0


def test_the_bound_is_a_share_also_if_a_job_is_behind_that_nobody_can_help() -> None:
    nodes = [Node("n0", 5, "k80"), Node("n1", 1, "a100"), Node("n2", 2, "a100")]
    bound = Pilot().plan(make_view(nodes, [job("a", 6)], now=100.0)).bound
    assert bound is None or 0.0 <= bound <= 1.0


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hurry", "floor", "review_s"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_options_are_numbers_of_at_least_zero(name: str, value: float) -> None:
    with pytest.raises(InvalidSpec, match=rf"pilot: {name} is .*; expected a number of at least 0"):
        Pilot(**{name: value})


def test_nobody_can_be_guaranteed_more_than_an_equal_share() -> None:
    with pytest.raises(InvalidSpec, match=r"floor is 1\.1; an equal share for everybody is 1"):
        Pilot(floor=1.1)
    assert Pilot(floor=1.0).floor == 1.0


def test_options_can_be_given_as_text() -> None:
    assert make_policy("pilot:hurry=0.5,floor=0,lore=false,review_s=0") == Pilot(
        hurry=0.5, floor=0.0, lore=False, review_s=0.0
    )


@pytest.mark.parametrize(
    "policy", [Pilot(hurry=0.0, floor=0.0, review_s=0.0), Pilot(hurry=1.0, floor=1.0, lore=False)], ids=["none", "all"]
)
def test_the_contract_holds_for_other_options_too(policy: Pilot) -> None:
    check_policy(policy, examples=10)
