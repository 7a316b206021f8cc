"""Drain: jobs leave a node in time, by shrinking if they can."""

from __future__ import annotations

import math

import pytest
from tenants import Counted, sizes

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.messages import JobRescaled, JobStarted, NodeDrained, Resize
from fairlead.core.plan import changes, check, reconcile
from fairlead.core.state import State
from fairlead.core.types import Phase, Plan
from fairlead.plugins import make_policy
from fairlead.policies.even import Even
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.middleware import Drain
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import GivenJob, job, make_state

INNER = [Fifo(), Tiresias(), Even(), make_policy("pilot")]


def draining(nodes: str, jobs: list[GivenJob], *, by: float | None, now: float, node: str = "n0") -> State:
    state = make_state(nodes, jobs, now=now)
    state.apply(NodeDrained(now, node, by=by))
    return state


def planned(policy: Policy, state: State) -> Plan:
    view = state.snapshot()
    plan = policy.plan(view)
    check(view, plan, changes(view, plan))
    return plan


SPREAD = job("spread", 4, on="n0[0,1] n1[0,1]", gpus_min=1, gpus_max=4, in_place=True)


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_an_elastic_job_shrinks_off_the_node_without_a_restart(inner: Policy) -> None:
    state = draining("2x2", [SPREAD], by=1100.0, now=1000.0)
    plan = planned(Drain(inner), state)
    assert {k: str(a) for k, a in plan.allocations.items()} == {"spread": "n1[0,1]"}
    view = state.snapshot()
    (command,) = reconcile(view, plan, changes(view, plan))
    assert isinstance(command, Resize)
    assert plan.reasons["spread"].code == "drain"
    assert plan.reasons["spread"].text == (
        "leaves node n0, which has to be empty in 100 s; it goes on with 2 GPUs: n1[0,1]"
    )


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_a_rigid_job_moves_if_there_is_room_and_waits_if_there_is_not(inner: Policy) -> None:
    state = draining("2x2", [job("rigid", 2, on="n0[0,1]")], by=1100.0, now=1000.0)
    assert {k: str(a) for k, a in planned(Drain(inner), state).allocations.items()} == {"rigid": "n1[0,1]"}
    firm = job("firm", 2, on="n1[0,1]", preemptible=False)
    full = draining("2x2", [job("rigid", 2, on="n0[0,1]"), firm], by=1100.0, now=1000.0)
    plan = planned(Drain(inner), full)
    assert sizes(plan) == {"firm": 2}
    assert plan.reasons["rigid"].text.startswith("leaves node n0, which has to be empty in 100 s; it waits: ")


def test_until_the_time_has_come_nobody_moves_but_it_asks_to_be_reviewed_then() -> None:
    state = draining("2x2", [SPREAD], by=2000.0, now=1000.0)
    plan = planned(Drain(Fifo(), lead_s=120.0), state)
    assert sizes(plan) == {"spread": 4}
    assert plan.review_at == 1880.0
    assert plan.reasons["spread"].code == "placed"


def test_the_lead_is_twice_what_the_slowest_job_there_took_to_start() -> None:
    state = make_state("2x2", [job("slow", 2, on="n0[0,1]", phase=Phase.STARTING)])
    state.apply(JobStarted(300.0, "slow", 1))
    state.apply(NodeDrained(400.0, "n0", by=2000.0))
    assert planned(Drain(Fifo(), lead_s=120.0), state).review_at == 1400.0


def test_a_node_that_drains_without_a_time_is_left_to_the_inner_policy() -> None:
    inner = Counted(Fifo())
    state = draining("2x2", [SPREAD], by=None, now=1000.0)
    view = state.snapshot()
    assert Drain(inner).plan(view) == Fifo().plan(view)
    assert inner.seen == [view]


def test_what_must_not_be_preempted_stays_and_says_so() -> None:
    firm = job("firm", 2, on="n0[0] n1[0]", preemptible=False)
    state = draining("3x2", [firm, job("soft", 1, on="n0[1]")], by=1100.0, now=1000.0)
    plan = planned(Drain(Backfill()), state)
    assert str(plan.allocations["firm"]) == "n0[0] n1[0]"
    assert "n0" not in plan.allocations["soft"].nodes
    assert plan.reasons["firm"].text == (
        "stays on node n0, which has to be empty in 100 s, because it must not be preempted"
    )


def test_what_must_not_be_preempted_but_can_shrink_shrinks() -> None:
    firm = job("firm", 4, on="n0[0,1] n1[0,1]", gpus_min=1, gpus_max=4, in_place=True, preemptible=False)
    state = draining("2x2", [firm], by=1100.0, now=1000.0)
    assert str(planned(Drain(Fifo()), state).allocations["firm"]) == "n1[0,1]"


def test_once_all_have_left_nobody_comes_back() -> None:
    state = draining("2x2", [SPREAD, job("next", 2, submitted_at=10.0)], by=1100.0, now=1000.0)
    view = state.snapshot()
    plan = planned(Drain(Fifo()), state)
    for command in reconcile(view, plan, changes(view, plan)):
        state.issue(command)
    state.apply(JobRescaled(1002.0, "spread", 1))
    plan = planned(Drain(Fifo()), state)
    assert {k: str(a) for k, a in plan.allocations.items()} == {"spread": "n1[0,1]"}
    assert plan.review_at == math.inf


def test_a_lost_node_is_nobodys_business() -> None:
    state = draining("2x2", [], by=1100.0, now=1000.0)
    assert planned(Drain(Fifo()), state).review_at == math.inf


def test_a_lead_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="drain: lead_s is -1"):
        Drain(Fifo(), lead_s=-1.0)
