"""LeastLoss and receipts: what a stop costs, whom it costs least, and what is said about it."""

from __future__ import annotations

import json

import pytest
from tenants import Counted, sizes

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobReported, JobStarted, JobStopped, JobSubmitted, NodeJoined, Start, Stop, Tick
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Node, Plan, Reason
from fairlead.policies.fifo import Fifo
from fairlead.policies.middleware import LeastLoss, MinimumRun, Tenancy, loss_gpu_s, receipt
from fairlead.policies.middleware.loss import price_gpu_s, unsaved_s
from fairlead.policies.reasons import Reasons
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import Scenario, job, make_state, make_view
from fairlead.testing.scenario import allocation


class Stops:
    """Stops one job, if another one called new waits; leaves everybody else alone."""

    def __init__(self, victim: str) -> None:
        self.victim = victim

    def plan(self, view: Snapshot) -> Plan:
        allocations = dict(view.allocations)
        if "new" in view.jobs and "new" not in allocations:
            allocations["new"] = allocations.pop(self.victim)
        return Plan(allocations, Reasons(view, lambda each: Reason("because", f"{each.id} is where it is")))


def training(*jobs: tuple[str, str, float | None], now: float = 1000.0, **spec: object) -> State:
    """Jobs that run since 0 on so many GPUs, and last saved at some time."""
    state = make_state("3x2", [job(name, 2, on=on, **spec) for name, on, _ in jobs], now=0.0)  # type: ignore[arg-type]
    for name, _, saved_at in sorted(jobs, key=lambda each: each[2] or 0.0):
        if saved_at is not None:
            state.apply(JobReported(saved_at, name, 1, 0.1, saved=True))
    state.apply(Tick(now))
    return state


# -- what a stop costs -------------------------------------------------------------------------------------------------


def test_a_stop_costs_what_was_not_saved_and_a_start() -> None:
    state = State()
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    state.apply(JobSubmitted(0.0, JobSpec(id="a", gpus=4)))
    state.issue(Start(0.0, "a", 1, allocation("n0[0,1,2,3]")))
    assert loss_gpu_s(state.live["a"], 10.0) == 0.0  # it has done nothing yet
    state.apply(JobStarted(30.0, "a", 1))
    assert loss_gpu_s(state.live["a"], 130.0) == 4 * (100.0 + 30.0)  # never saved: all it has run, and its start
    state.apply(JobReported(200.0, "a", 1, 0.1, saved=True))
    assert loss_gpu_s(state.live["a"], 260.0) == 4 * (60.0 + 30.0)
    assert unsaved_s(state.live["a"], 260.0) == 60.0
    state.issue(Stop(300.0, "a", 1))
    assert loss_gpu_s(state.live["a"], 300.0) == 0.0  # it holds nothing any more
    state.apply(JobStopped(305.0, "a", 1))
    state.issue(Start(400.0, "a", 2, allocation("n0[0,1]")))
    state.apply(JobStarted(420.0, "a", 2))
    job_again = state.live["a"]
    assert loss_gpu_s(job_again, 450.0) == 2 * (30.0 + 20.0)
    assert price_gpu_s(job_again, 450.0) == 2 * (30.0 + 20.0) + 1 * 2 * 20.0  # it was preempted once


def test_a_job_that_can_be_suspended_pays_for_the_change_only() -> None:
    state = make_state("1x4", [job("a", 4, on="n0[0,1,2,3]", in_place=True)], now=1000.0)
    assert loss_gpu_s(state.live["a"], 1000.0) == 0.0


# -- who is stopped ----------------------------------------------------------------------------------------------------


def test_of_equal_jobs_the_one_that_saved_last_is_stopped() -> None:
    state = training(("a", "n0[0,1]", 100.0), ("b", "n1[0,1]", 900.0), ("c", "n2[0,1]", 500.0))
    state.apply(JobSubmitted(1000.0, JobSpec(id="new", gpus=2)))
    plan = LeastLoss(Stops("a")).plan(state.snapshot())
    assert {k: str(a) for k, a in plan.allocations.items()} == {"c": "n2[0,1]", "new": "n1[0,1]", "a": "n0[0,1]"}
    assert plan.reasons["b"].code == plan.reasons["a"].code == "least-loss"
    assert plan.reasons["b"].text == (
        "gives its 2 GPUs up in place of job a, which is like it and would lose 1800 GPU-s where this one loses 200"
    )
    assert plan.reasons["a"].numbers == {"gpus": 2, "loss_gpu_s": 1800.0, "other_loss_gpu_s": 200.0}
    assert plan.reasons["c"].code == "because"


def test_a_small_difference_is_not_worth_it() -> None:
    state = training(("a", "n0[0,1]", 100.0), ("b", "n1[0,1]", 120.0))
    state.apply(JobSubmitted(1000.0, JobSpec(id="new", gpus=2)))
    assert sizes(LeastLoss(Stops("a")).plan(state.snapshot())) == {"b": 2, "new": 2}
    assert sizes(LeastLoss(Stops("a"), tolerance=30.0).plan(state.snapshot())) == {"a": 2, "new": 2}


def test_who_was_preempted_before_is_not_the_victim_every_time() -> None:
    """Both saved at the same time; one was stopped three times, and each start took it 100 s."""
    state = make_state("3x2", [job("a", 2, on="n0[0,1]"), job("b", 2)])
    for attempt in range(1, 5):
        state.issue(Start(state.now, "b", attempt, allocation("n1[0,1]")))
        state.apply(JobStarted(state.now + 100.0, "b", attempt))
        if attempt < 4:
            state.issue(Stop(state.now, "b", attempt))
            state.apply(JobStopped(state.now, "b", attempt))
    for name, attempt in (("a", 1), ("b", 4)):
        state.apply(JobReported(1000.0, name, attempt, 0.1, saved=True))
    state.apply(JobSubmitted(1100.0, JobSpec(id="new", gpus=2)))
    a, b = state.live["a"], state.live["b"]
    assert (loss_gpu_s(a, 1100.0), loss_gpu_s(b, 1100.0)) == (200.0, 400.0)
    assert price_gpu_s(b, 1100.0) == 400.0 + 3 * 200.0
    assert sizes(LeastLoss(Stops("b")).plan(state.snapshot())) == {"b": 2, "new": 2}


@pytest.mark.parametrize(
    "other",
    [
        {"queue": "b"},
        {"tenant": "bob"},
        {"priority": 1},
        {"preemptible": False},
        {"in_place": True},
        {"gpus": 1},
        {"on": "n1[0] n2[0]"},
        {"submitted_at": 950.0},
    ],
    ids=str,
)
def test_only_equal_jobs_that_have_run_for_a_while_change_places(other: dict[str, object]) -> None:
    fields: dict[str, object] = {"gpus": 2, "on": "n1[0,1]" if other.get("gpus") != 1 else "n1[0]", **other}
    jobs = [job("a", 2, on="n0[0,1]"), job("b", **fields), job("new", 2, submitted_at=990.0)]  # type: ignore[arg-type]
    state = make_state("3x2", jobs, now=1000.0)
    state.apply(JobReported(999.0, "b", 1, 0.1, saved=True))
    assert "a" not in LeastLoss(Stops("a")).plan(state.snapshot()).allocations


def test_nobody_is_moved_to_a_node_that_drains() -> None:
    jobs = [job("a", 2, on="n0[0,1]"), job("b", 2, on="n1[0,1]"), job("new", 2)]
    state = make_state("3x2", jobs, now=1000.0, draining=["n1"])
    state.apply(JobReported(1000.0, "b", 1, 0.1, saved=True))
    assert "a" not in LeastLoss(Stops("a")).plan(state.snapshot()).allocations


def test_the_inner_policy_has_the_last_word() -> None:
    """Tiresias does not mind which of two jobs of one queue is stopped; but one of a lower queue would not stay."""

    def stopped(b_came_at: float) -> str:
        jobs = [job("b", 2, on="n1[0,1]", submitted_at=b_came_at), job("a", 2, on="n0[0,1]", submitted_at=1.0)]
        state = make_state("2x2", [*jobs, job("new", 2, submitted_at=1000.0)], now=1000.0)
        state.apply(JobReported(1000.0, "b", 1, 0.1, saved=True))
        view = state.snapshot()
        policy = Tiresias(thresholds=(1500.0,))
        assert set(policy.plan(view).allocations) == {"b", "new"}
        (victim,) = {"a", "b"} - set(LeastLoss(policy).plan(view).allocations)
        return victim

    assert stopped(b_came_at=0.0) == "b"
    assert stopped(b_came_at=900.0) == "a"


def test_without_a_victim_the_inner_policy_is_asked_once() -> None:
    inner = Counted(Fifo())
    view = make_view("3x2", [job("a", 2, on="n0[0,1]"), job("b", 2)], now=100.0)
    assert LeastLoss(inner).plan(view) == Fifo().plan(view)
    assert len(inner.seen) == 1


def test_around_tenancy_the_share_stays_the_same() -> None:
    running = [job(f"a{k}", 1, on=f"n0[{k}]", tenant="ann", submitted_at=float(k)) for k in range(8)]
    state = make_state(
        "1x8", [*running, *(job(f"b{k}", 1, tenant="bob", submitted_at=900.0) for k in range(8))], now=900.0
    )
    for k in range(8):
        state.apply(JobReported(990.0 - 100.0 * k, f"a{k}", 1, 0.1, saved=True))
    state.apply(Tick(1000.0))
    plain = Tenancy(Fifo()).plan(state.snapshot())
    spared = LeastLoss(MinimumRun(Tenancy(Fifo()))).plan(state.snapshot())
    assert sorted(k for k in plain.allocations if k[0] == "a") == ["a0", "a1"]
    assert sorted(k for k in spared.allocations if k[0] == "a") == ["a6", "a7"]
    assert sum(k[0] == "b" for k in spared.allocations) == 6


@pytest.mark.parametrize("option", ["tolerance", "spare_s"])
def test_options_that_cannot_be_meant_are_refused(option: str) -> None:
    with pytest.raises(InvalidSpec, match=f"least-loss: {option} is -1"):
        LeastLoss(Fifo(), **{option: -1.0})


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_a_receipt_says_who_gets_the_gpus_why_and_what_it_costs() -> None:
    state = training(("a", "n0[0,1]", 800.0))
    state.apply(JobSubmitted(1000.0, JobSpec(id="new", gpus=2, tenant="bob")))
    view = state.snapshot()
    plan = Stops("a").plan(view)
    told = receipt(view, plan, "a")
    assert told.gets == (("new", "bob"),)
    assert told.why == Reason("because", "a is where it is")
    assert (told.gpus_before, told.gpus_after, told.lost_gpu_s, told.saved_at) == (2, 0, 400.0, 800.0)
    assert told.restart_s == 0.0
    written = json.loads(json.dumps(told.to_dict()))
    assert written["gets"] == [{"job": "new", "user": "bob"}]
    assert written["reason"]["code"] == "because"
    assert written["lost_gpu_s"] == 400.0
    assert told.to_dict(resized=True)["lost_gpu_s"] == 0.0


def test_a_receipt_for_a_job_that_shrinks_tells_of_no_loss() -> None:
    jobs = [
        job("a", 8, on="n0[0,1,2,3,4,5,6,7]", gpus_min=1, in_place=True, tenant="ann"),
        *(job(f"b{k}", k + 1, tenant="bob", submitted_at=10.0) for k in range(2)),
    ]
    plan = Scenario(nodes="1x8", jobs=jobs, expected={"a": 5, "b0": 1, "b1": 2}, now=100.0).check(Tenancy(Fifo()))
    view = make_view("1x8", jobs, now=100.0)
    told = receipt(view, plan, "a")
    assert told.gets == (("b1", "bob"), ("b0", "bob"))  # who gets the most first
    assert (told.gpus_before, told.gpus_after, told.lost_gpu_s) == (8, 5, 0.0)
    assert told.is_due


def test_no_receipt_is_due_to_a_job_that_grows_or_moves_by_a_restart() -> None:
    view = make_view("2x2", [job("a", 1, on="n0[0]")], now=100.0)
    for after, due in (("n0[0,1]", False), ("n1[0]", False), ("n0[0]", False), (None, True)):
        allocations = {} if after is None else {"a": allocation(after)}
        plan = Plan(allocations, {"a": Reason("because", "a is where it is")})
        assert receipt(view, plan, "a").is_due is due
