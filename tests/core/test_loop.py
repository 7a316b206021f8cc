"""The loop, step by step, against a world that follows a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.core.errors import BackendError, InvalidPlan, InvalidTransition
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    Command,
    Event,
    JobCancelled,
    JobExited,
    JobReported,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeJoined,
    NodeLost,
    Start,
    Stop,
    Tick,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Plan
from fairlead.journal import replay

A, B = Allocation.of({"n0": [0, 1]}), Allocation.of({"n0": [2, 3]})
BEGIN: list[Event] = [NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.0, JobSpec(id="a", gpus=2))]
SECOND = JobSubmitted(0.0, JobSpec(id="b", gpus=2))


@dataclass
class World:
    """Backend, policy and journal in one: says what the script says and writes down what it is asked."""

    script: Sequence[Sequence[Event]]
    plans: Callable[[Snapshot], Plan]
    log: list[tuple[Any, ...]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    _turn: int = 0

    def wait(self, until: float) -> Sequence[Event] | None:
        self.log.append(("wait", until))
        self._turn += 1
        return self.script[self._turn - 1] if self._turn <= len(self.script) else None

    def execute(self, command: Command) -> None:
        self.log.append(("execute", command))

    def plan(self, view: Snapshot) -> Plan:
        self.log.append(("plan", view.now))
        return self.plans(view)

    def append(self, message: Message) -> None:
        self.log.append(("append", message))
        self.messages.append(message)

    def commit(self) -> None:
        self.log.append(("commit",))

    def happened(self, *kinds: str) -> list[Any]:
        return [entry[1] for entry in self.log if entry[0] in kinds]


def played(
    script: Sequence[Sequence[Event]], plans: Callable[[Snapshot], Plan] | Plan, cadence: str = "event"
) -> World:
    decide = plans if callable(plans) else lambda _: plans
    world, state = World(script, decide), State()
    run(world, world, state=state, journal=world, cadence=Cadence.parse(cadence))
    assert replay(world.messages) == state
    return world


def test_one_turn_is_learn_decide_record_commit_and_only_then_do() -> None:
    start = Start(0.0, "a", 1, A)
    assert played([BEGIN], Plan({"a": A})).log == [
        ("wait", math.inf),
        ("append", BEGIN[0]),
        ("append", BEGIN[1]),
        ("plan", 0.0),
        ("append", start),
        ("commit",),
        ("execute", start),
        ("wait", math.inf),
    ]


def test_facts_are_committed_even_if_there_is_nothing_to_decide() -> None:
    world = played([BEGIN, [JobStarted(5.0, "a", 1)]], Plan({"a": A}))
    assert world.log[-4:] == [("wait", math.inf), ("append", JobStarted(5.0, "a", 1)), ("commit",), ("wait", math.inf)]


def test_a_world_that_ends_at_once_is_no_error() -> None:
    assert played([], Plan()).log == [("wait", math.inf)]


# -- cadence ---------------------------------------------------------------------------------------------------------

STEPS: list[list[Event]] = [
    BEGIN,
    [JobStarted(10.0, "a", 1)],
    [JobReported(20.0, "a", 1, 0.5)],
    [JobSubmitted(30.0, JobSpec(id="b"))],
    [Tick(60.0)],
    [JobReported(90.0, "a", 1, 0.6)],
    [JobCancelled(100.0, "b")],
    [Tick(120.0)],
]


@pytest.mark.parametrize(
    ("cadence", "asked_at", "waited_until"),
    [
        ("event", [0.0, 30.0, 60.0, 100.0, 120.0], [math.inf] * 9),
        ("60s", [60.0, 120.0], [60.0] * 5 + [120.0] * 3 + [180.0]),
        ("event+60s", [0.0, 30.0, 60.0, 100.0, 120.0], [60.0] * 5 + [120.0] * 3 + [180.0]),
    ],
)
def test_the_cadence_says_when_the_policy_is_asked(
    cadence: str, asked_at: list[float], waited_until: list[float]
) -> None:
    script = STEPS
    if cadence == "60s":  # nothing is started before the first decision
        script = [[e for e in events if not isinstance(e, JobStarted | JobReported)] or [Tick(1.0)] for events in STEPS]
    world = played(script, lambda view: Plan({"a": A}) if cadence != "60s" else Plan(view.allocations), cadence)
    assert world.happened("plan") == asked_at
    assert world.happened("wait") == waited_until


def test_a_plan_is_reviewed_when_it_asked_for_it() -> None:
    plans = [Plan({"a": A}, review_at=7.5), Plan(), Plan(review_at=3.0)]
    world = played([BEGIN, [Tick(7.5)], [Tick(9.0)]], lambda _: plans.pop(0))
    assert world.happened("plan") == [0.0, 7.5, 9.0]
    assert world.happened("wait") == [math.inf, 7.5, math.inf, math.inf]  # 3.0 has passed already
    assert world.happened("execute") == [Start(0.0, "a", 1, A), Stop(7.5, "a", 1)]


def test_a_review_is_due_also_when_a_quiet_event_comes_at_that_time() -> None:
    world = played([BEGIN, [JobStarted(7.5, "a", 1)]], Plan({"a": A}, review_at=7.5))
    assert world.happened("plan") == [0.0, 7.5]


@pytest.mark.parametrize(("cadence", "first"), [("event", 7.0), ("event+60s", 7.0), ("60s", 60.0)])
def test_where_jobs_are_there_already_the_first_decision_comes_at_once(cadence: str, first: float) -> None:
    """After a restart nothing says when the last plan wanted to be reviewed."""
    state = replay([*BEGIN, Start(0.0, "a", 1, A), JobStarted(7.0, "a", 1)])
    world = World([[Tick(first)]], lambda view: Plan(view.allocations))
    run(world, world, state=state, journal=world, cadence=Cadence.parse(cadence))
    assert world.happened("wait", "plan")[:2] == [first, first]


def test_the_clock_alone_does_not_honour_reviews() -> None:
    world = played([BEGIN, [Tick(60.0)]], Plan({"a": A}, review_at=70.0), "60s")
    assert world.happened("wait") == [60.0, 60.0, 120.0]


# -- the standing plan -----------------------------------------------------------------------------------------------


def test_a_plan_goes_on_once_gpus_are_released_without_asking_the_policy_again() -> None:
    plans = [Plan({"a": A}), Plan({"b": A})]
    script = [
        BEGIN,
        [JobStarted(1.0, "a", 1)],
        [SECOND],
        [JobReported(3.0, "a", 1, 0.2)],
        [JobStopped(5.0, "a", 1)],
    ]
    world = played(script, lambda _: plans.pop(0))
    assert world.happened("execute") == [Start(0.0, "a", 1, A), Stop(1.0, "a", 1), Start(5.0, "b", 1, A)]
    assert plans == []


def test_an_attempt_preempted_from_outside_is_started_again_where_the_plan_has_it() -> None:
    world = played([BEGIN, [JobStarted(1.0, "a", 1)], [JobStopped(2.0, "a", 1)]], Plan({"a": A}))
    assert world.happened("execute") == [Start(0.0, "a", 1, A), Start(2.0, "a", 2, A)]
    assert world.happened("plan") == [0.0]


def test_the_clocks_standing_plan_loses_what_events_have_overtaken() -> None:
    """Between two decisions b is cancelled and n0 is lost: nothing of the plan is left, and that is no error."""
    script = [[*BEGIN, SECOND], [Tick(60.0)], [JobCancelled(61.0, "b")], [NodeLost(62.0, "n0")], [Tick(120.0)]]
    world = played(script, lambda view: Plan({"a": A, "b": B} if view.now == 60.0 else {}), "60s")
    assert world.happened("execute") == [Start(60.0, "a", 1, A), Start(60.0, "b", 1, B), Stop(61.0, "b", 1)]
    assert world.happened("plan") == [60.0, 120.0]


def test_a_node_that_returns_as_another_type_ends_the_clocks_standing_plan_for_its_jobs() -> None:
    picky = JobSpec(id="a", gpus=2, gpu_types=("gpu",))
    script = [
        [NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.0, picky)],
        [Tick(60.0)],
        [NodeLost(61.0, "n0"), NodeJoined(61.0, Node("n0", 4, "other"))],
    ]
    world = played(script, Plan({"a": A}), "60s")
    assert world.happened("execute") == [Start(60.0, "a", 1, A)]


def test_a_cancelled_job_is_stopped_without_asking_the_clock() -> None:
    world = played([BEGIN, [Tick(60.0)], [JobCancelled(61.0, "a")]], Plan({"a": A}), "60s")
    assert world.happened("execute") == [Start(60.0, "a", 1, A), Stop(61.0, "a", 1)]


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_plan_that_cannot_be_meant_ends_the_loop_before_anything_is_commanded() -> None:
    world = World([BEGIN], lambda _: Plan({"a": Allocation.of({"n9": [0, 1]})}))
    with pytest.raises(InvalidPlan, match="node 'n9', which does not exist"):
        run(world, world, state=State(), journal=world, cadence=Cadence())
    assert world.happened("execute") == []
    assert world.messages == BEGIN


def test_an_event_that_cannot_be_is_neither_journalled_nor_applied() -> None:
    world, state = World([BEGIN, [JobExited(1.0, "x", 1)]], lambda _: Plan()), State()
    with pytest.raises(InvalidTransition, match="there is no job 'x'"):
        run(world, world, state=state, journal=world, cadence=Cadence())
    assert world.messages == BEGIN
    assert replay(world.messages) == state


def test_what_could_not_be_committed_is_not_done() -> None:
    class Full(World):
        def commit(self) -> None:
            raise BackendError("disk full")

    world = Full([BEGIN], lambda _: Plan({"a": A}))
    with pytest.raises(BackendError, match="disk full"):
        run(world, world, state=State(), journal=world, cadence=Cadence())
    assert world.happened("execute") == []


# -- the journal -----------------------------------------------------------------------------------------------------


def test_repeats_are_not_journalled_but_the_time_they_tell_is() -> None:
    """Otherwise the state after a replay would be younger than the state was."""
    done = JobExited(5.0, "a", 1)
    script = [BEGIN, [JobStarted(1.0, "a", 1)], [JobStarted(1.0, "a", 1), done], [done], [JobCancelled(9.0, "a")]]
    world = played(script, lambda view: Plan({"a": A} if "a" in view.jobs else {}))
    assert world.messages == [*BEGIN, Start(0.0, "a", 1, A), JobStarted(1.0, "a", 1), done, Tick(9.0)]
