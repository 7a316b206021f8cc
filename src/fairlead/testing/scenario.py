"""Small clusters by declaration: nodes and jobs in, expected placement out.

They are made by telling a core State what happened, so whatever is declared here can also come about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.messages import (
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Start,
    Stop,
    Tick,
)
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Phase, Plan
from fairlead.sim.cluster import parse_cluster
from fairlead.testing.showing import show

#: Where a job ran, from when, and until when; None is until now.
Stint = tuple[str, float, float | None]

_SHARE = re.compile(r"([^\s\[\]]+)\[(\d+(?:,\d+)*)\]")


@dataclass(frozen=True, slots=True)
class GivenJob:
    """A job and its past. `job` makes one."""

    spec: JobSpec
    submitted_at: float = 0.0
    stints: tuple[Stint, ...] = ()
    #: The phase its last stint has reached: STARTING, RUNNING or STOPPING.
    phase: Phase = Phase.RUNNING


def job(
    id: str,
    gpus: int = 1,
    *,
    on: str | None = None,
    submitted_at: float = 0.0,
    stints: Sequence[Stint] = (),
    phase: Phase = Phase.RUNNING,
    **spec: Any,
) -> GivenJob:
    """A job for a scenario. `on` is where it runs since its submission, such as "n0[0,1] n1[0]"; `stints` tell more.

    Other keywords are fields of its JobSpec.
    """
    if on is not None:
        stints = [*stints, (on, submitted_at, None)]
    return GivenJob(JobSpec(id=id, gpus=gpus, **spec), submitted_at, tuple(stints), phase)


def allocation(text: str) -> Allocation:
    """The inverse of str(allocation): "n0[0,1] n1[0]"."""
    if _SHARE.sub("", text).strip():
        raise InvalidSpec(f"{text!r} is no allocation; expected nodes with GPU numbers, such as n0[0,1] n1[0]")
    return Allocation.of({node: map(int, gpus.split(",")) for node, gpus in _SHARE.findall(text)})


def placement(plan: Plan) -> dict[str, str]:
    """Who is where, as text: {"a": "n0[0,1]"}."""
    return {job_id: str(allocation) for job_id, allocation in plan.allocations.items()}


def make_state(
    nodes: str | Iterable[Node],
    jobs: Iterable[GivenJob] = (),
    *,
    now: float = 0.0,
    draining: Iterable[str] = (),
    lost: Iterable[str] = (),
) -> State:
    """A state after this past. `nodes` may be a cluster as on the command line ("2x4": nodes n0 and n1, 4 GPUs each).

    Nodes drain and are lost at the end.
    """
    machines = parse_cluster(nodes) if isinstance(nodes, str) else tuple(nodes)
    past: list[Message] = [NodeJoined(0.0, node) for node in machines]
    for given in jobs:
        past += _past(given, now)
    past += [NodeDrained(now, node) for node in draining]
    past += [NodeLost(now, node) for node in lost]
    past.append(Tick(now))
    state = State()
    for message in sorted(past, key=lambda message: message.at):
        state.replay(message)
    return state


def _past(given: GivenJob, now: float) -> list[Message]:
    job_id = given.spec.id
    past: list[Message] = [JobSubmitted(given.submitted_at, given.spec)]
    for attempt, (where, begin, end) in enumerate(given.stints, start=1):
        last = attempt == len(given.stints)
        past.append(Start(begin, job_id, attempt, allocation(where)))
        if not (last and given.phase is Phase.STARTING):
            past.append(JobStarted(begin, job_id, attempt))
        if end is not None:
            past += [Stop(end, job_id, attempt), JobStopped(end, job_id, attempt)]
        elif last and given.phase is Phase.STOPPING:
            past.append(Stop(now, job_id, attempt))
    return past


def make_view(
    nodes: str | Iterable[Node],
    jobs: Iterable[GivenJob] = (),
    *,
    oracle: Mapping[str, float] | None = None,
    **more: Any,
) -> Snapshot:
    """A snapshot of `make_state`. `oracle`: true remaining seconds, for policies that declare themselves oracles."""
    tell: Callable[[str], float] | None = None if oracle is None else oracle.__getitem__
    return replace(make_state(nodes, jobs, **more).snapshot(), oracle=tell)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One situation and where a policy should put everybody in it."""

    nodes: str | Sequence[Node]
    jobs: Sequence[GivenJob]
    #: Where each job should be ("n0[0,1]"), or on how many GPUs, wherever (2). Who is absent should not run.
    expected: Mapping[str, str | int]
    now: float = 0.0
    draining: Sequence[str] = ()
    lost: Sequence[str] = ()
    oracle: Mapping[str, float] | None = None

    def view(self) -> Snapshot:
        return make_view(
            self.nodes, self.jobs, oracle=self.oracle, now=self.now, draining=self.draining, lost=self.lost
        )

    def check(self, policy: Policy) -> Plan:
        """Raise AssertionError unless the policy's plan is valid and as expected; returns the plan."""
        view = self.view()
        plan = policy.plan(view)
        check(view, plan, changes(view, plan))
        found = {
            job_id: where.total if isinstance(self.expected.get(job_id), int) else str(where)
            for job_id, where in plan.allocations.items()
        }
        assert found == dict(self.expected), f"expected {dict(self.expected)}, found {found}\n{show(view)}"
        return plan
