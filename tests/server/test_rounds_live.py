"""Policies that share time in rounds, with real jobs: turns, leases that are renewed, explanations, and restarts.

What a journal cannot decide on a busy machine is not asked: how long anything took, and how many rounds there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from faulting import Service
from test_running import until

from fairlead.core.messages import Message, Remember, Resize, Start, Stop
from fairlead.core.state import State
from fairlead.core.types import Plan
from fairlead.server.controller import ControlOptions
from fairlead.server.store import Store

pytestmark = pytest.mark.slow

#: One slot of each type.
NODES = "fast=1x1,slow=1x1@50%"

#: Ends as soon as it is asked to.
WAIT = ("sleep", "3600")


MAX_MIN, FINISH_TIME_FAIRNESS = "gavel:objective=max-min", "gavel:objective=finish-time-fairness"
#: Jobs buy few rounds at a time, and one that runs has no advantage: so they take turns.
SHOCKWAVE = "shockwave:window=2,resolve_every=2,keep=1,time_limit_s=60"

#: So short that jobs take turns; and so long that a test is over before it is.
SHORT_S, LONG_S = 1.5, 86400.0


@dataclass(frozen=True)
class Decision:
    """One of the journal: what the state was just before it, what was remembered, and the commands that followed."""

    before: State
    remembered: Remember
    commands: tuple[Message, ...]


class Rounds(Service):
    """A server whose jobs take turns: plain commands, which may be stopped although they have saved nothing."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.policy = ""
        del self.env["FAIRLEAD_SCHEDULER_MINIMUM_RUN"]  # half a round
        self.env |= {"CUDA_VISIBLE_DEVICES": "", "FAIRLEAD_SCHEDULER_PREEMPT_UNSAVED": "true"}

    def start(self, policy: str, *, round_s: float) -> None:
        self.policy = f"{policy},round_s={round_s}"
        self.fairlead("up", "--detach", "--port", 0, "--policy", self.policy, "--nodes", NODES, "--cadence", "event")

    def runs(self, job_id: str) -> bool:
        return bool(self.job(job_id)["state"] == "RUNNING")

    def messages(self) -> list[Message]:
        with Store.open(f"sqlite:///{self.state}/fairlead.db") as store:
            return [message for _, message in store.read()]

    def memo(self) -> dict[str, Any]:
        """What the policy remembers, as the journal has it."""
        state = State()
        for message in self.messages():
            state.replay(message)
        return dict(state.snapshot().memo)

    def evidence(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/v1/jobs/{job_id}/explain")["reason"]["numbers"]
        return found

    def cancel(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.call("POST", f"/api/v1/jobs/{job_id}/cancel")

    def attempts(self, *job_ids: str) -> list[int]:
        return [self.job(job_id)["attempt"] for job_id in job_ids]


@pytest.fixture
def rounds(tmp_path: Path) -> Iterator[Rounds]:
    service = Rounds(tmp_path)
    try:
        yield service
        service.ends_well()
    finally:
        service.clean_up()


def decisions(messages: list[Message]) -> Iterator[Decision]:
    """Those that changed what the policy remembers."""
    state = State()
    for place, message in enumerate(messages):
        if isinstance(message, Remember):
            before = State.of(state.facts())
            commands = []
            for command in messages[place + 1 :]:
                if not isinstance(command, Start | Stop | Resize):
                    break
                commands.append(command)
            yield Decision(before, message, tuple(commands))
        state.replay(message)


@pytest.mark.parametrize("policy", [MAX_MIN, FINISH_TIME_FAIRNESS, SHOCKWAVE])
def test_jobs_take_turns_and_a_job_that_goes_on_is_not_stopped(rounds: Rounds, policy: str) -> None:
    rounds.start(policy, round_s=SHORT_S)
    goes_on = rounds.submit(*WAIT, gpu_type="slow")
    turns = [rounds.submit(*WAIT, gpu_type="fast") for _ in range(2)]
    until(lambda: sorted(rounds.attempts(*turns)) >= [1, 2])  # one, the other, and the first again
    for job_id in (goes_on, turns[0]):
        assert {"owed", "received"} <= rounds.evidence(job_id).keys()
    assert ("price" in rounds.evidence(goes_on)) == (policy == SHOCKWAVE)
    messages = rounds.messages()
    rounds.cancel(goes_on, *turns)
    assert rounds.ends(goes_on)[:2] == ("CANCELLED", 1)
    assert_served_by_turns(messages, goes_on, turns)
    assert_decided_by_what_the_journal_has(messages, rounds.policy)


def assert_served_by_turns(messages: list[Message], goes_on: str, turns: list[str]) -> None:
    """No job was stopped to be started again."""
    assert not any(isinstance(each, Stop | Resize) and each.job == goes_on for each in messages)
    starts = [each.job for each in messages if isinstance(each, Start) and each.job in turns]
    assert set(starts) == set(turns)
    assert all(one != other for one, other in pairwise(starts)), starts


def assert_decided_by_what_the_journal_has(messages: list[Message], policy: str) -> None:
    """Each decision is that of a policy which has seen nothing else, through restarts; and within a round it stops no
    job, and leaves the end of the round as it was."""
    options, ends_at, found = ControlOptions(policy=policy, preempt_unsaved=True), 0.0, 0
    for decision in decisions(messages):
        view = decision.before.snapshot()
        plan: Plan = options.make_policy().plan(view)
        starts = {each.job for each in decision.commands if isinstance(each, Start)}
        stops = {each.job for each in decision.commands if isinstance(each, Stop)} & view.jobs.keys()  # not cancelled
        assert starts <= {name for name, held in plan.allocations.items() if held != view.allocations.get(name)}
        assert stops == {name for name in view.allocations if name not in plan.allocations}
        decision.before.issue(decision.remembered)
        memo = decision.before.snapshot().memo
        assert memo == json.loads(json.dumps(plan.memo))
        now_ends_at = {**memo.get("rounds", {}), **memo.get("shockwave", {})}["ends_at"]
        if view.now < ends_at and view.allocations:
            assert not stops
            assert now_ends_at == ends_at
        ends_at, found = now_ends_at, found + 1
    assert found >= 3


@pytest.mark.parametrize(("policy", "ends"), [(MAX_MIN, "kill"), (SHOCKWAVE, "down")])
def test_a_restart_in_the_middle_of_a_round_goes_on_with_its_debts_and_prices(
    rounds: Rounds, policy: str, ends: str
) -> None:
    rounds.start(policy, round_s=LONG_S)
    runs, waits = (rounds.submit(*WAIT, gpu_type="fast") for _ in range(2))
    until(lambda: rounds.runs(runs))
    rounds.kill() if ends == "kill" else rounds.fairlead("down", "--keep-jobs")
    before = rounds.memo()
    rounds.start(policy, round_s=LONG_S)
    until(lambda: rounds.evidence(waits))  # it has decided
    after = rounds.memo()
    for name, kept in before.items():
        # The market notes when it last looked, and how crowded it was until then.
        assert {**after[name], "crowding": {}} == {**kept, "crowding": {}}
    assert rounds.attempts(runs, waits) == [1, 0]
    assert rounds.runs(runs)
    told = json.loads(rounds.fairlead("explain", waits, "-o", "json"))
    assert told["code"]
    assert {"owed", "received"} <= told["evidence"].keys()
    rounds.cancel(runs)  # then nothing runs, so that the round is over
    until(lambda: rounds.runs(waits))
    messages = rounds.messages()
    rounds.cancel(waits)
    assert_decided_by_what_the_journal_has(messages, rounds.policy)
