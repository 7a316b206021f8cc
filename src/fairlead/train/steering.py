"""Finds the number of workers that a job puts to good use, while it trains (Or, Zhang, Freedman, MLSys '20).

    steering = Steering(slots, search)
    agent = Agent(command, on_event=lambda event: steering.hear(event, agent))
    await agent.run(steering.first)

The rules of the search are in `goodput.search`; here it is told what the workers measured, and obeyed. What is decided
depends on nothing but the events and on whether the agent is settled, so it can be tried without any process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fairlead.core.errors import InvalidSpec
from fairlead.goodput.search import Measured, Search, Situation, expected_s, first_failure
from fairlead.train.agent import Slot
from fairlead.train.history import History
from fairlead.train.wire import Message


class Resizable(Protocol):
    """What is needed of an agent."""

    @property
    def members(self) -> list[Slot]: ...

    @property
    def settled(self) -> bool: ...

    def resize(self, slots: Sequence[Slot]) -> None: ...


@dataclass(frozen=True, slots=True)
class Decided:
    """How many workers there should be, from when on, and one sentence for people."""

    at_s: float
    size: int
    why: str
    #: It is where the search ends, for as long as the measurements stay what they are.
    found: bool


class Steering:
    """Listens to one agent and resizes it. Only `hear` changes anything."""

    def __init__(
        self,
        slots: Sequence[Slot],
        search: Search,
        *,
        measured: Measured | None = None,
        on_decision: Callable[[Decided], None] | None = None,
    ) -> None:
        """`on_decision` hears of a decision before the agent does."""
        if len(slots) < search.most:
            raise InvalidSpec(f"most is {search.most}, but there are only {len(slots)} slots")
        self.history = History()
        self.measured = measured or Measured()
        #: Every change of size, and every time that the search ended.
        self.decisions: list[Decided] = []
        self._slots, self._search, self._on_decision = list(slots), search, on_decision
        self._first_expected_s: float | None = None
        #: When the last report came.
        self._settled = False

    @property
    def first(self) -> list[Slot]:
        """Where the job should begin."""
        return self._slots[: self._search.start]

    @property
    def found(self) -> Decided | None:
        """Where the search has ended; None while it is under way."""
        return self.decisions[-1] if self.decisions and self.decisions[-1].found else None

    def hear(self, event: Message, agent: Resizable) -> None:
        steps = self.history.note(event)
        if event["kind"] == "ready":
            self._keep_to(event["most"])
        elif event["kind"] == "refused":  # a worker more would end like this one
            self._keep_to(event["left"])
        if event["kind"] != "report":
            return
        # Workers that boot or clean up take processors from those that train, whose steps then say little.
        calm, self._settled = self._settled and agent.settled, agent.settled
        due = False
        for step in steps if calm else ():
            self.measured.note(step.workers, samples=step.samples, step_s=step.seconds)
            due = due or self._search.due(self.measured, step.workers)
        if due:
            self._decide(agent)

    def _decide(self, agent: Resizable) -> None:
        size = len(agent.members)
        situation = self._situation()
        if situation is None or self.measured.steps_since_change(size) < self._search.every_steps:
            return
        decision = self._search.next_size(self.measured, size, situation)
        found = self._is_found(decision.size, situation)
        if decision.size != size or (found and self.found is None):
            self._tell(decision.size, decision.why, found=found)
        if decision.size != size:
            agent.resize(self._slots[: decision.size])

    def _keep_to(self, most: int) -> None:
        """A job may take fewer workers than there are slots, as its batch is small."""
        if self._search.least <= most < self._search.most:
            self._search = replace(self._search, most=most, start=min(self._search.start, most))

    def _tell(self, size: int, why: str, *, found: bool) -> None:
        decided = Decided(self.history.elapsed_s, size, why, found)
        self.decisions.append(decided)
        if self._on_decision is not None:
            self._on_decision(decided)

    def _situation(self) -> Situation | None:
        """None while it is not known how much is left to do."""
        history, seen = self.history, self._search.within(self.measured)
        if history.remaining_samples is None or not seen:
            return None
        known = Situation(elapsed_s=history.elapsed_s, remaining_samples=history.remaining_samples)
        if self._first_expected_s is None:
            self._first_expected_s = expected_s(seen[0], known)
        return replace(known, first_expected_s=self._first_expected_s)

    def _is_found(self, size: int, situation: Situation) -> bool:
        """Nothing smaller fails, and the size is known: it is not one to be tried, or to be measured for longer."""
        seen = self._search.within(self.measured)
        failed = first_failure(seen, self._search.worthwhile, situation)
        return seen[-1 if failed is None else failed].size == size
