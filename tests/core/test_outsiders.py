"""GPUs that somebody outside uses: a fact, a part of a node, and no place for anybody new."""

from __future__ import annotations

import json

import pytest

from fairlead.core import codec
from fairlead.core.errors import InvalidPlan, InvalidSpec, InvalidTransition
from fairlead.core.facts import Facts
from fairlead.core.messages import (
    JobStarted,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Start,
)
from fairlead.core.plan import changes, check, surviving
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan

N0 = Node("n0", 4)


def on(*gpus: int) -> Allocation:
    return Allocation.of({"n0": gpus})


def cluster() -> State:
    """One node, on whose first two GPUs `a` runs, while `b` waits."""
    state = State()
    state.apply(NodeJoined(0.0, N0))
    for job in ("a", "b"):
        state.apply(JobSubmitted(0.0, JobSpec(id=job, gpus=2, gpus_min=1, gpus_max=4, in_place=True)))
    state.issue(Start(0.0, "a", 1, on(0, 1)))
    state.apply(JobStarted(0.0, "a", 1))
    return state


def test_what_is_seen_last_is_all_there_is() -> None:
    state = cluster()
    assert state.apply(OutsidersSeen(1.0, "n0", (3, 1)))
    assert state.nodes["n0"].outside == (1, 3)
    assert not state.apply(OutsidersSeen(2.0, "n0", (1, 3)))  # a repeat
    assert state.now == 2.0
    assert state.apply(OutsidersSeen(3.0, "n0"))
    assert state.nodes["n0"] == N0


def test_it_stays_while_a_node_drains_or_is_lost_and_a_node_that_joins_says_anew() -> None:
    state = cluster()
    state.apply(OutsidersSeen(1.0, "n0", (3,)))
    state.apply(NodeDrained(2.0, "n0"))
    state.apply(NodeLost(3.0, "n0"))
    assert state.nodes["n0"].outside == (3,)
    state.apply(NodeJoined(4.0, N0))
    assert state.nodes["n0"].outside == ()


@pytest.mark.parametrize("gpus", [(4,), (0, 99), (-1,)])
def test_gpus_that_are_not_there_are_refused_and_leave_no_trace(gpus: tuple[int, ...]) -> None:
    state = cluster()
    before = state.facts()
    with pytest.raises(InvalidTransition, match="node n0 has GPUs 0 to 3"):
        state.apply(OutsidersSeen(1.0, "n0", gpus))
    assert state.facts() == before
    with pytest.raises(InvalidTransition, match="no such node; known are n0"):
        state.apply(OutsidersSeen(1.0, "n9", (0,)))


@pytest.mark.parametrize("outside", [(4,), (1, 0), (0, 0), (-1, 2)])
def test_a_node_has_only_its_own_gpus_in_order(outside: tuple[int, ...]) -> None:
    with pytest.raises(InvalidSpec, match="expected numbers of its 4 GPUs"):
        Node("n0", 4, outside=outside)


def test_jobs_keep_what_they_hold() -> None:
    state = cluster()
    state.apply(OutsidersSeen(1.0, "n0", (0, 1, 2, 3)))
    view = state.snapshot()
    assert view.allocations == {"a": on(0, 1)}
    assert view.jobs["a"].phase == "running"


def test_a_plan_may_leave_a_job_there_but_put_nobody_there() -> None:
    state = cluster()
    state.apply(OutsidersSeen(1.0, "n0", (1, 3)))
    view = state.snapshot()
    for good in ({"a": on(0, 1)}, {"a": on(1)}, {"a": on(0, 1), "b": on(2)}):
        plan = Plan(good)
        check(view, plan, changes(view, plan))
    for bad in ({"a": on(0, 1), "b": on(2, 3)}, {"a": on(0, 1, 3)}, {"a": on(0), "b": on(1)}):
        plan = Plan(bad)
        with pytest.raises(InvalidPlan, match=r"newly placed on GPU [13] of node n0, which outsiders use"):
            check(view, plan, changes(view, plan))


def test_what_was_decided_before_is_not_done_any_more() -> None:
    state = cluster()
    plan = Plan({"a": on(0, 1), "b": on(2, 3)})
    assert surviving(state.snapshot(), plan) == plan
    state.apply(OutsidersSeen(1.0, "n0", (3,)))
    assert surviving(state.snapshot(), plan).allocations == {"a": on(0, 1)}


def test_an_equal_share_is_one_of_what_is_left() -> None:
    state = cluster()
    state.apply(OutsidersSeen(10.0, "n0", (2, 3)))
    assert state.fair_gpu_s == 10.0 * 4 / 2
    state.apply(OutsidersSeen(20.0, "n0"))
    assert state.fair_gpu_s == 10.0 * 4 / 2 + 10.0 * 2 / 2


def test_a_snapshot_of_the_state_holds_it_and_one_from_before_is_still_read() -> None:
    state = cluster()
    old = json.loads(json.dumps(codec.encode(state.facts())))
    assert "outside" not in json.dumps(old)  # as it was written before there was such a thing
    assert State.of(codec.decode(Facts, old, place="snapshot")) == state
    state.apply(OutsidersSeen(1.0, "n0", (2,)))
    new = json.loads(json.dumps(codec.encode(state.facts())))
    restored = State.of(codec.decode(Facts, new, place="snapshot"))
    assert restored == state
    assert restored.nodes["n0"].outside == (2,)
