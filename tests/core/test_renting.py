"""Nodes that come and go by command: what the state makes of it, what is refused, and how a plan's nodes come about."""

from __future__ import annotations

import pytest

from fairlead.core.errors import InvalidPlan, InvalidTransition
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    Command,
    Event,
    JobExited,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Release,
    Rent,
    Start,
    Stop,
    Tick,
)
from fairlead.core.plan import changes, check, reconcile
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan
from fairlead.journal import MemoryJournal, replay

N0, N1 = Node("n0", 2), Node("n1", 2, price_per_hour=1.0)
ON_N0, ON_N1 = Allocation.of({"n0": [0, 1]}), Allocation.of({"n1": [0, 1]})
JOB = JobSpec(id="a", gpus=2)


def cluster() -> State:
    state = State()
    for event in (NodeJoined(0.0, N0), NodeJoined(0.0, N1), JobSubmitted(0.0, JOB)):
        state.apply(event)
    return state


def busy() -> State:
    """Job a runs on n1."""
    state = cluster()
    state.issue(Start(1.0, "a", 1, ON_N1))
    state.apply(JobStarted(2.0, "a", 1))
    return state


def refusal(state: State, command: Command) -> str:
    before = state.snapshot()
    with pytest.raises(InvalidTransition) as refused:
        state.issue(command)
    assert state.snapshot() == before, "it left a trace"
    return str(refused.value)


# -- the state -------------------------------------------------------------------------------------------------------


def test_a_released_node_is_out_of_use_and_known_as_released() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    view = state.snapshot()
    assert not view.nodes["n1"].healthy
    assert (view.released, view.coming, view.now) == ({"n1"}, frozenset(), 5.0)
    assert view.node_columns.free_N.tolist() == [2, 0]


def test_the_loss_of_a_released_node_tells_nothing_new() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    assert not state.apply(NodeLost(6.0, "n1"))
    assert state.released == {"n1"}


def test_a_rented_node_is_on_its_way_until_it_joins() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    state.issue(Rent(6.0, "n1"))
    assert (state.released, state.coming) == (frozenset(), {"n1"})
    assert not state.nodes["n1"].healthy
    assert state.apply(NodeJoined(126.0, N1))
    assert (state.released, state.coming) == (frozenset(), frozenset())
    assert state.nodes["n1"].healthy


def test_a_node_that_comes_back_uncalled_is_no_longer_released() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    state.apply(NodeJoined(6.0, N1))
    assert state.released == frozenset()


def test_a_node_that_failed_is_neither_released_nor_coming() -> None:
    state = cluster()
    state.apply(NodeLost(5.0, "n1"))
    assert (state.released, state.coming) == (frozenset(), frozenset())


def test_a_released_node_is_nobodys_fair_share() -> None:
    state = cluster()
    state.issue(Release(10.0, "n1"))
    state.apply(Tick(20.0))
    assert state.fair_gpu_s == 10.0 * 4 + 10.0 * 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Release(9.0, "n9"), "node n9 does not exist; known are n0, n1"),
        (Rent(9.0, "n9"), "node n9 does not exist; known are n0, n1"),
        (Release(9.0, "n1"), "node n1 is in use: jobs hold some of its GPUs; stop or move them first"),
        (Rent(9.0, "n0"), "node n0 is there already"),
    ],
)
def test_what_cannot_be_ordered_is_refused(command: Command, words: str) -> None:
    assert refusal(busy(), command) == f"9.0 {type(command).__name__}: {words}"


def test_a_node_whose_job_still_stops_is_in_use() -> None:
    state = busy()
    state.issue(Stop(3.0, "a", 1))
    assert "is in use" in refusal(state, Release(3.0, "n1"))
    state.apply(JobStopped(4.0, "a", 1))
    state.issue(Release(4.0, "n1"))


def test_a_node_is_neither_released_nor_rented_twice() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    assert "is not there to be released" in refusal(state, Release(6.0, "n1"))
    state.issue(Rent(6.0, "n1"))
    assert "is on its way; wait for NodeJoined" in refusal(state, Rent(7.0, "n1"))
    assert "is on its way; wait for NodeJoined" in refusal(state, Release(7.0, "n1"))


def test_a_node_that_failed_cannot_be_rented_or_released() -> None:
    state = cluster()
    state.apply(NodeLost(5.0, "n1"))
    assert "was not released; it failed, and returns by itself" in refusal(state, Rent(6.0, "n1"))
    assert "is not there to be released" in refusal(state, Release(6.0, "n1"))


def test_states_that_differ_in_their_orders_are_not_equal() -> None:
    one, other = cluster(), cluster()
    one.issue(Release(5.0, "n1"))
    other.apply(NodeLost(5.0, "n1"))
    assert one.nodes == other.nodes
    assert one != other
    other = cluster()
    other.issue(Release(5.0, "n1"))
    other.issue(Rent(5.0, "n1"))
    assert one != other


# -- from a plan's nodes to commands -----------------------------------------------------------------------------------


def commands(state: State, plan: Plan) -> list[Command]:
    view = state.snapshot()
    changed = changes(view, plan)
    check(view, plan, changed)
    return reconcile(view, plan, changed)


def nodes(*ids: str) -> frozenset[str]:
    return frozenset(ids)


def test_a_plan_without_an_opinion_leaves_the_nodes_as_they_are() -> None:
    state = cluster()
    state.issue(Release(5.0, "n1"))
    assert commands(state, Plan()) == []
    assert state.follows(Plan())


def test_a_plan_that_wants_an_unknown_node_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="wants node 'n8', which does not exist; known are n0, n1"):
        commands(cluster(), Plan(nodes=nodes("n0", "n9", "n8")))


def test_a_surplus_node_is_released_and_a_missing_one_rented() -> None:
    state = cluster()
    assert commands(state, Plan(nodes=nodes("n0"))) == [Release(0.0, "n1")]
    state.issue(Release(0.0, "n1"))
    assert commands(state, Plan(nodes=nodes("n0"))) == []
    assert commands(state, Plan(nodes=nodes("n1"))) == [Release(0.0, "n0"), Rent(0.0, "n1")]
    state.issue(Rent(0.0, "n1"))
    assert commands(state, Plan(nodes=nodes("n0", "n1"))) == []


def test_a_node_is_released_only_once_nobody_is_on_it() -> None:
    state = busy()
    plan = Plan({"a": ON_N0}, nodes=nodes("n0"))
    assert commands(state, plan) == [Stop(2.0, "a", 1)]
    state.issue(Stop(2.0, "a", 1))
    assert commands(state, plan) == []  # it still holds what it stops on
    state.apply(JobStopped(7.0, "a", 1))
    assert commands(state, plan) == [Start(7.0, "a", 2, ON_N0), Release(7.0, "n1")]


def test_a_node_that_the_plan_uses_is_not_released() -> None:
    assert commands(busy(), Plan({"a": ON_N1}, nodes=nodes())) == [Release(2.0, "n0")]
    assert commands(cluster(), Plan({"a": ON_N1}, nodes=nodes("n0"))) == [Start(0.0, "a", 1, ON_N1)]


def test_a_node_that_failed_is_not_rented() -> None:
    state = cluster()
    state.apply(NodeLost(5.0, "n1"))
    assert commands(state, Plan(nodes=nodes("n0", "n1"))) == []
    assert state.follows(Plan(nodes=nodes("n0", "n1")))


def test_a_node_that_drains_can_be_released() -> None:
    state = cluster()
    state.apply(NodeDrained(5.0, "n1"))
    assert commands(state, Plan(nodes=nodes("n0"))) == [Release(5.0, "n1")]


def test_the_state_sees_when_nodes_have_still_to_come_or_go() -> None:
    state = cluster()
    assert state.follows(Plan(nodes=nodes("n0", "n1")))
    assert not state.follows(Plan(nodes=nodes("n0")))
    state.issue(Release(5.0, "n1"))
    assert state.follows(Plan(nodes=nodes("n0")))
    assert not state.follows(Plan(nodes=nodes("n0", "n1")))
    state.issue(Rent(5.0, "n1"))
    assert state.follows(Plan(nodes=nodes("n0", "n1")))


# -- the loop --------------------------------------------------------------------------------------------------------


class Script:
    """A world that says what it is told to say, and a policy that always plans the same."""

    def __init__(self, turns: list[list[Event]], plan: Plan) -> None:
        self.turns, self._plan, self.done = turns, plan, list[Command]()

    def wait(self, until: float) -> list[Event] | None:
        return self.turns.pop(0) if self.turns else None

    def execute(self, command: Command) -> None:
        self.done.append(command)

    def plan(self, view: Snapshot) -> Plan:
        return self._plan


def test_a_node_whose_last_job_leaves_between_decisions_is_released_then() -> None:
    begin: list[Event] = [NodeJoined(0.0, N0), NodeJoined(0.0, N1), JobSubmitted(0.0, JOB)]
    turns: list[list[Event]] = [begin, [Tick(60.0)], [JobStarted(61.0, "a", 1)], [JobExited(70.0, "a", 1)]]
    world, state, journal = Script(turns, Plan({"a": ON_N1}, nodes=nodes("n0"))), State(), MemoryJournal()
    run(world, world, state=state, journal=journal, cadence=Cadence.parse("60s"))
    assert world.done == [Start(60.0, "a", 1, ON_N1), Release(70.0, "n1")]
    assert replay(journal.messages) == state
