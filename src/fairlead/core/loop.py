"""The one loop, in numbered steps, and what it needs of its three parts: a policy, a backend and a journal.

It runs unchanged in the simulator and in production. They differ in how `Backend.wait` passes the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from fairlead.core.errors import InvalidSpec
from fairlead.core.memo import difference
from fairlead.core.messages import (
    Command,
    Event,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    Message,
    Remember,
    Tick,
)
from fairlead.core.plan import changes, check, reconcile, surviving
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Plan


class Policy(Protocol):
    """A pure decision: a function of the snapshot. A frozen dataclass whose fields are its options.

    What it wants to remember is data in the plan (`Plan.memo`), which the next snapshot brings back.
    """

    def plan(self, view: Snapshot) -> Plan: ...


class Backend(Protocol):
    """A world with GPUs in it."""

    def wait(self, until: float) -> Sequence[Event] | None:
        """Facts since the last call; at least a Tick by time `until`; None when the world has ended."""

    def execute(self, command: Command) -> None:
        """Begin to do it. The outcome comes later, as an event."""


class Journal(Protocol):
    """Append-only. What was committed survives a crash."""

    def append(self, message: Message) -> None: ...

    def commit(self) -> None: ...


#: Events that change nothing a policy decides on: they complete what was already decided, or refine a belief,
#: which the period's tick picks up.
_QUIET = (JobStarted, JobRescaled, JobStopped, JobReported)


@dataclass(frozen=True, slots=True)
class Cadence:
    """When to ask the policy. Part of an experiment: it changes results, so it is recorded with them."""

    #: Ask at every multiple of this many seconds.
    period_s: float | None = None
    #: Ask when a job or node comes or goes, and when the last plan asked to be reviewed.
    on_events: bool = True

    def __post_init__(self) -> None:
        if self.period_s is not None and not (math.isfinite(self.period_s) and self.period_s > 0):
            raise InvalidSpec(f"cadence period is {self.period_s}; expected a positive number of seconds")
        if self.period_s is None and not self.on_events:
            raise InvalidSpec("a cadence with neither a period nor events would never decide")

    @staticmethod
    def parse(text: str) -> Cadence:
        """`event`, `60s`, or both: `event+60s`."""
        period_s, on_events = None, False
        for part in text.split("+"):
            number = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", part.strip())
            if part.strip() == "event":
                on_events = True
            elif number and float(number[1]) > 0 and period_s is None:
                period_s = float(number[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[number[2]]
            else:
                raise InvalidSpec(f"cadence {text!r} is unknown; expected event, 60s, 5m or event+60s")
        return Cadence(period_s, on_events)

    def __str__(self) -> str:
        parts = ["event"] if self.on_events else []
        if self.period_s is not None:
            parts.append(f"{Decimal(repr(float(self.period_s))).normalize():f}s")  # every digit, no exponent
        return "+".join(parts)

    def next(self, now: float, plan: Plan, wakes_at: float = math.inf) -> float:
        """When to decide if nothing happens before. At `wakes_at` a job comes back by itself."""
        reviews = (plan.review_at, wakes_at) if self.on_events else ()
        review_at = min((at for at in reviews if at > now), default=math.inf)
        if self.period_s is None:
            return review_at
        turn = math.floor(now / self.period_s) + 1
        if turn * self.period_s <= now:  # the quotient was rounded down
            turn += 1
        return min(review_at, turn * self.period_s)

    def due(self, events: Sequence[Event], now: float, deadline: float) -> bool:
        """Is it time to ask the policy, `deadline` being what `next` said last?"""
        return now >= deadline or (self.on_events and not all(isinstance(event, _QUIET) for event in events))


def run(policy: Policy, backend: Backend, *, state: State, journal: Journal, cadence: Cadence) -> None:
    """Decide until the world ends. Jobs that run already stay where they are until the first decision.

    That comes at once where jobs are there already: when their last plan wanted to be reviewed is not known any more.
    """
    view = state.snapshot()
    plan = Plan(view.allocations, packed=frozenset({frozenset(view.allocations)}) if view.shared else frozenset())
    deadline = state.now if state.live and cadence.on_events else cadence.next(state.now, plan, state.wakes_at)
    while (events := backend.wait(deadline)) is not None:
        for event in events:  # 1. learn what happened
            before = state.now
            if state.apply(event):
                journal.append(event)
            elif state.now > before:  # a repeat, but it told the time
                journal.append(Tick(state.now))
        due = cadence.due(events, state.now, deadline)
        commands: list[Command] = []
        if due or not state.follows(plan):
            view = state.snapshot()  # 2. freeze what we know
            # 3. decide, or go on with what was decided, as far as it still holds
            plan = policy.plan(view) if due else surviving(view, plan)
            changed = changes(view, plan)
            if due:  # what survives of a checked plan needs no other check
                check(view, plan, changed)  # 4. refuse nonsense
                if patch := difference(view.memo, plan.memo):
                    state.issue(noted := Remember(view.now, patch))
                    journal.append(noted)
            commands = reconcile(view, plan, changed)  # 5. close the gap
        for command in commands:
            state.issue(command)
            journal.append(command)
        journal.commit()
        for command in commands:
            backend.execute(command)
        deadline = cadence.next(state.now, plan, state.wakes_at)
