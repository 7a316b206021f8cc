"""What a plan may not take from a job, and what becomes of a plan that events have overtaken."""

from __future__ import annotations

import pytest

from fairlead.core.errors import InvalidPlan
from fairlead.core.messages import JobStarted, JobSubmitted, NodeDrained, NodeJoined, Start
from fairlead.core.plan import changes, check, surviving
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan

HERE, THERE = Allocation.of({"n0": [0, 1]}), Allocation.of({"n1": [0, 1]})


def holding(*specs: JobSpec) -> State:
    """Two nodes of four GPUs; the first job runs on the first two, the others wait."""
    state = State()
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    state.apply(NodeJoined(0.0, Node("n1", 4)))
    for spec in specs:
        state.apply(JobSubmitted(0.0, spec))
    state.issue(Start(0.0, specs[0].id, 1, HERE))
    state.apply(JobStarted(0.0, specs[0].id, 1))
    return state


def refuse(state: State, plan: Plan) -> str:
    view = state.snapshot()
    with pytest.raises(InvalidPlan) as caught:
        check(view, plan, changes(view, plan))
    return str(caught.value)


def test_a_job_that_must_not_be_preempted_is_neither_stopped_nor_restarted_elsewhere() -> None:
    state = holding(JobSpec(id="a", gpus=2, preemptible=False))
    assert refuse(state, Plan({})) == "job a is stopped, but must not be preempted; leave it on n0[0,1]"
    assert "job a is restarted elsewhere" in refuse(state, Plan({"a": THERE}))


def test_one_that_resizes_in_place_may_be_moved_but_not_suspended() -> None:
    state = holding(JobSpec(id="a", gpus=2, preemptible=False, in_place=True))
    view = state.snapshot()
    check(view, Plan({"a": THERE}), ["a"])
    assert "job a is stopped" in refuse(state, Plan({}))


def test_a_job_whose_way_is_closed_stays_where_it_is() -> None:
    state = holding(JobSpec(id="a", gpus=2, in_place=True))
    plan = Plan({"a": THERE})
    state.apply(NodeDrained(1.0, "n1"))
    assert surviving(state.snapshot(), plan).allocations == {"a": HERE}


def test_unless_another_is_to_have_its_gpus() -> None:
    state = holding(JobSpec(id="a", gpus=2, in_place=True), JobSpec(id="b", gpus=2))
    plan = Plan({"a": THERE, "b": HERE})
    state.apply(NodeDrained(1.0, "n1"))
    assert surviving(state.snapshot(), plan).allocations == {"b": HERE}
