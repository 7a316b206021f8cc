"""Jobs that are live but not to be seen, on hold or hidden by a policy around this one: what they are owed is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.loop import Policy
from fairlead.core.memo import difference
from fairlead.core.messages import (
    JobCancelled,
    JobHeld,
    JobReprioritised,
    JobStarted,
    JobStopped,
    Remember,
    Start,
    Stop,
    Tick,
)
from fairlead.core.state import State
from fairlead.core.types import Plan
from fairlead.plugins import make_policy
from fairlead.policies.middleware import ByPriority, Window
from fairlead.policies.middleware.imagining import imagined
from fairlead.testing import GivenJob, job, make_state

ROUND_S = 100.0


def decide(state: State, policy: Policy) -> Plan:
    """Decide, and carry it out at once."""
    view = state.snapshot()
    plan = policy.plan(view)
    if patch := difference(view.memo, plan.memo):
        state.issue(Remember(view.now, patch))
    for name, found in list(state.live.items()):
        if found.allocation and plan.allocations.get(name) != found.allocation:
            state.issue(Stop(state.now, name, found.attempt))
            state.apply(JobStopped(state.now, name, found.attempt))
    for name, allocation in plan.allocations.items():
        if not (found := state.live[name]).allocation:
            state.issue(Start(state.now, name, found.attempt + 1, allocation))
            state.apply(JobStarted(state.now, name, found.attempt + 1))
    return plan


def rounds(state: State, policy: Policy, count: int) -> list[str]:
    """Who ran in each of so many rounds."""
    ran = []
    for _ in range(count):
        plan = decide(state, policy)
        ran.append("".join(plan.allocations))
        state.apply(Tick(state.now + ROUND_S))
    return ran


def hold(state: State, name: str, *, on_hold: bool = True) -> None:
    found = state.live[name]
    state.apply(JobHeld(state.now, name, on_hold))
    if on_hold and found.allocation:
        state.issue(Stop(state.now, name, found.attempt))
        state.apply(JobStopped(state.now, name, found.attempt))


def three_jobs() -> list[GivenJob]:
    return [job(name, 1, estimate_s=50_000.0) for name in "abc"]


OWING = [f"{name}:round_s={ROUND_S:.0f}" for name in ("isolated", "gandiva-fair")]
OWING += [f"gavel:objective={name},round_s={ROUND_S:.0f}" for name in ("max-min", "finish-time-fairness")]


def deficit_s(state: State, name: str) -> float:
    """Seconds that the account of rounds owes to a job, wherever it keeps them."""
    kept: dict[str, Any] = state.snapshot().memo["rounds"]
    found = {**kept.get("absent", {}).get("deficit", {}), **kept["deficit"]}
    return sum(found.get(name, {}).values())


@pytest.mark.parametrize("name", OWING)
def test_a_job_that_was_on_hold_for_long_goes_on_with_what_it_is_owed(name: str) -> None:
    policy, state = make_policy(name), make_state("1x1", three_jobs())
    rounds(state, policy, 2)  # one of the three has not run yet, and is owed most
    state.snapshot()
    owed_s = {each: deficit_s(state, each) for each in "abc"}
    last = max(owed_s, key=lambda each: owed_s[each])
    decide(state, policy)  # the third round: its account up to now
    before_s = deficit_s(state, last)
    hold(state, last)
    others = rounds(state, policy, 41)
    assert last not in "".join(others)
    assert deficit_s(state, last) == pytest.approx(before_s), "it neither grows nor fades"
    hold(state, last, on_hold=False)
    decide(state, policy)
    assert "absent" not in state.snapshot().memo["rounds"]
    assert deficit_s(state, last) == pytest.approx(before_s)


@pytest.mark.parametrize("name", OWING)
def test_a_job_that_ends_on_hold_is_forgotten(name: str) -> None:
    policy, state = make_policy(name), make_state("1x1", three_jobs())
    rounds(state, policy, 2)
    hold(state, "b")
    decide(state, policy)
    assert "'b'" in str(state.snapshot().memo)
    state.apply(JobCancelled(state.now, "b"))
    rounds(state, policy, 2)
    assert "'b'" not in str(state.snapshot().memo)


def hidden_by_priority(state: State) -> None:
    """It ranks below the others from now on."""
    state.apply(JobReprioritised(state.now, "c", -1))


@pytest.mark.parametrize("around", [ByPriority, lambda inner: Window(inner, most=1)], ids=["priority", "window"])
def test_what_a_policy_remembers_of_a_job_survives_its_being_hidden(around: Callable[[Policy], Policy]) -> None:
    policy, state = around(make_policy(OWING[0])), make_state("1x1", three_jobs())
    bare = make_policy(OWING[0])
    rounds(state, bare, 2)
    before_s = deficit_s(state, "c")
    assert before_s > 0.0
    hidden_by_priority(state)
    plan = policy.plan(state.snapshot())
    assert "c" not in plan.memo["rounds"]["deficit"]
    assert sum(plan.memo["rounds"]["absent"]["deficit"]["c"].values()) == pytest.approx(before_s)


def test_a_job_that_comes_back_is_told_from_one_that_is_new_where_shares_are_renewed() -> None:
    """By Gavel's own account a job that was away has to be given a share again before it can run."""
    policy = make_policy(f"isolated:round_s={ROUND_S:.0f},mechanism=gavel")
    state = make_state("1x1", three_jobs(), now=10.0)
    rounds(state, policy, 3)
    hold(state, "c")
    rounds(state, policy, 30)
    hold(state, "c", on_hold=False)
    assert "c" in rounds(state, policy, 30)


@pytest.mark.parametrize("name", ["shockwave", "shockwave-elastic"])
def test_a_market_counts_how_crowded_a_job_met_the_cluster_from_its_arrival_on(name: str) -> None:
    policy, state = make_policy(f"{name}:round_s={ROUND_S:.0f}"), make_state("1x1", three_jobs())
    rounds(state, policy, 2)
    hold(state, "b")
    rounds(state, policy, 2)
    hold(state, "b", on_hold=False)
    memo = decide(state, policy).memo["shockwave"]["crowding"]
    assert memo["since"] == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_a_snapshot_knows_which_jobs_live_although_they_are_not_shown() -> None:
    state = make_state("1x1", three_jobs())
    hold(state, "b")
    view = state.snapshot()
    assert view.absent == {"b"}
    inner = imagined(view, hidden={"c"})
    assert [each for each in "abcx" if inner.is_live(each)] == ["a", "b", "c"]
    assert list(inner.jobs) == ["a"]
