"""A job with a range of GPUs whose command cannot change them: it is pinned to what it was given, and let go again."""

from __future__ import annotations

import pytest

from fairlead.core.loop import Cadence
from fairlead.core.messages import (
    Event,
    JobExited,
    JobHeld,
    JobPinned,
    JobReprioritised,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Start,
    Stop,
)
from fairlead.core.plan import changes, check, reconcile, surviving
from fairlead.core.state import State
from fairlead.core.types import Allocation, Job, JobSpec, Node, Phase, Plan
from fairlead.plugins import make_policy

ELASTIC = JobSpec(id="a", gpus=1, gpus_min=1, gpus_max=4, in_place=True)
TWO = Allocation.of({"n0": (0, 1)})


def pinned() -> State:
    """Job a on two of four GPUs, the other two idle."""
    state = State()
    for event in (NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.0, ELASTIC)):
        state.apply(event)
    state.issue(Start(1.0, "a", 1, TWO))
    state.apply(JobPinned(31.0, "a", 1))
    state.apply(JobStarted(31.0, "a", 1))
    return state


def job_of(state: State) -> Job:
    job = state.job("a")
    assert job is not None
    return job


def test_a_pinned_job_runs_and_is_seen_as_one_of_the_size_it_holds() -> None:
    state = pinned()
    seen = state.snapshot().jobs["a"]
    assert (seen.phase, seen.spec.sizes, seen.spec.in_place) == (Phase.RUNNING, (2, 2, 2), False)
    assert seen.pinned_from == ELASTIC.sizes
    assert state.snapshot().columns.gpus_J.tolist() == [2.0]
    assert state.snapshot().columns.demands == ((2, ()),)


@pytest.mark.parametrize("name", ["pilot", "pollux", "even", "sia", "frugal", "fifo", "tiresias"])
def test_no_policy_changes_what_a_pinned_job_holds(name: str) -> None:
    state = pinned()
    view = state.snapshot()
    plan = make_policy(name).plan(view)
    check(view, plan, changes(view, plan))
    assert plan.allocations == {"a": TWO}


def test_a_plan_that_was_made_before_leaves_it_where_it_is() -> None:
    state = pinned()
    old = Plan({"a": Allocation.of({"n0": range(4)})})
    assert surviving(state.snapshot(), old).allocations == {"a": TWO}


def test_to_be_pinned_is_a_reason_to_decide_anew() -> None:
    assert Cadence().due([JobPinned(1.0, "a", 1)], 1.0, 99.0)


def test_a_job_that_speaks_late_may_change_again() -> None:
    state = pinned()
    assert state.apply(JobPinned(50.0, "a", 1, pinned=False))
    assert (job_of(state).spec, job_of(state).pinned_from) == (ELASTIC, None)
    assert state.snapshot().columns.gpus_J.tolist() == [1.0]
    assert not state.apply(JobPinned(51.0, "a", 1, pinned=False))


@pytest.mark.parametrize(
    "end",
    [JobStopped(60.0, "a", 1), JobExited(60.0, "a", 1, code=1), NodeLost(60.0, "n0")],
    ids=lambda end: type(end).__name__,
)
def test_its_next_attempt_may_have_any_of_its_sizes(end: Event) -> None:
    state = pinned()
    state.apply(end)
    assert (job_of(state).phase, job_of(state).spec, job_of(state).pinned_from) == (Phase.PENDING, ELASTIC, None)


def test_what_becomes_of_it_meanwhile_is_kept_when_it_is_let_go() -> None:
    state = pinned()
    state.apply(JobReprioritised(40.0, "a", 7))
    state.apply(JobExited(60.0, "a", 1))
    assert (job_of(state).phase, job_of(state).spec.priority, job_of(state).spec.sizes) == (
        Phase.SUCCEEDED,
        7,
        ELASTIC.sizes,
    )


def test_a_pinned_job_that_is_put_on_hold_is_stopped_since_it_cannot_be_suspended() -> None:
    state = pinned()
    state.apply(JobHeld(40.0, "a"))
    view = state.snapshot()
    assert reconcile(view, Plan(), []) == [Stop(40.0, "a", 1)]


def test_to_be_pinned_twice_or_while_it_stops_or_if_it_never_could_change_is_no_news() -> None:
    state = pinned()
    assert not state.apply(JobPinned(40.0, "a", 1))
    state.apply(JobPinned(41.0, "a", 1, pinned=False))
    state.issue(Stop(42.0, "a", 1))
    assert not state.apply(JobPinned(43.0, "a", 1))
    state.apply(JobSubmitted(44.0, JobSpec(id="b")))
    state.issue(Start(44.0, "b", 1, Allocation.of({"n0": (3,)})))
    assert not state.apply(JobPinned(45.0, "b", 1))


def test_a_state_that_is_saved_and_read_again_is_the_same() -> None:
    state = pinned()
    again = State.of(state.facts())
    assert again == state
    again.apply(JobStopped(60.0, "a", 1))
    assert job_of(again).spec == ELASTIC
