"""The simulated cluster: what happens when, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import Command, JobReported, Message, NodeLost, Resize, Start, Stop, Tick
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Observation, Phase, Plan
from fairlead.journal import MemoryJournal, replay
from fairlead.sim.backend import SimBackend
from fairlead.sim.costs import Costs
from fairlead.sim.truth import FixedDuration, Pace, Setting
from fairlead.sim.world import Outage, SimJob

NODES = [Node("n0", 4), Node("n1", 4)]
COSTS = Costs(start_s=10.0, restart_s=20.0, save_s=5.0, rescale_s=2.0)


def on(node: str, *gpus: int) -> Allocation:
    return Allocation.of({node: gpus})


def job(job_id: str, seconds: float, at: float = 0.0, gpus: int = 2, **fields: Any) -> SimJob:
    keys = ("costs", "cancel_at")
    extra = {key: fields.pop(key) for key in keys if key in fields}
    spec = JobSpec(id=job_id, gpus=gpus, gpus_min=1, gpus_max=8, **fields)
    return SimJob(spec, at, FixedDuration(seconds, gpus), **extra)


@dataclass(frozen=True)
class Follow:
    """A policy that reads its plans from a table: from each time on, who is where."""

    plans: Mapping[float, Mapping[str, Allocation]]
    packed: frozenset[frozenset[str]] = frozenset()
    asked: list[float] = field(default_factory=list, compare=False)

    def plan(self, view: Snapshot) -> Plan:
        self.asked.append(view.now)
        now = max(at for at in self.plans if at <= view.now)
        later = [at for at in self.plans if at > view.now]
        allocations = {j: a for j, a in self.plans[now].items() if j in view.jobs}
        return Plan(allocations, packed=self.packed, review_at=min(later, default=math.inf))


def simulate(policy: Policy, jobs: Sequence[SimJob], *, cadence: str = "event", **world: Any) -> list[Message]:
    journal, state = MemoryJournal(), State()
    run(policy, SimBackend(jobs, NODES, **world), state=state, journal=journal, cadence=Cadence.parse(cadence))
    assert replay(journal) == state
    return journal.messages


def told(messages: Sequence[Message]) -> list[tuple[float, str, str]]:
    """(time, message, job) of all that is about jobs, commands included."""
    return [(m.at, type(m).__name__, m.job) for m in messages if hasattr(m, "job")]


def ends(messages: Sequence[Message]) -> dict[str, tuple[Phase, float]]:
    return {job_id: (job.phase, job.since) for job_id, job in replay(messages).finished.items()}


A, B = on("n0", 0, 1), on("n0", 2, 3)


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_job_that_ends_in_the_middle_of_a_round_frees_its_gpus_then() -> None:
    messages = simulate(Follow({0.0: {"a": A}, 37.5: {"b": A}}), [job("a", 37.5), job("b", 10.0)])
    assert told(messages) == [
        (0.0, "Start", "a"),
        (0.0, "JobStarted", "a"),
        (37.5, "JobExited", "a"),
        (37.5, "Start", "b"),
        (37.5, "JobStarted", "b"),
        (47.5, "JobExited", "b"),
    ]
    rounds = Follow({0.0: {}, 60.0: {"a": A}, 120.0: {"b": A}})
    messages = simulate(rounds, [job("a", 37.5), job("b", 10.0)], cadence="60s")
    assert ends(messages) == {"a": (Phase.SUCCEEDED, 97.5), "b": (Phase.SUCCEEDED, 130.0)}
    assert replay(messages).finished["a"].service_gpu_s == 2 * 37.5


def test_arrivals_at_one_instant_are_one_decision() -> None:
    policy = Follow({0.0: {"a": A, "b": B}})
    simulate(policy, [job("a", 5.0, at=3.0), job("b", 6.0, at=3.0)])
    assert policy.asked == [0.0, 3.0, 8.0, 9.0]


def test_two_jobs_that_end_at_one_instant_are_delivered_together() -> None:
    backend = SimBackend([job("a", 5.0), job("b", 5.0)], NODES)
    backend.wait(math.inf)
    for command in (Start(0.0, "a", 1, A), Start(0.0, "b", 1, B)):
        backend.execute(command)
    assert [type(e).__name__ for e in backend.wait(math.inf) or ()] == ["JobStarted", "JobStarted"]
    assert [(e.at, type(e).__name__) for e in backend.wait(math.inf) or ()] == [(5.0, "JobExited"), (5.0, "JobExited")]
    assert backend.wait(math.inf) is None


def test_waiting_until_a_time_before_the_next_event_gives_a_tick() -> None:
    backend = SimBackend([job("a", 5.0, at=10.0)], NODES)
    assert [type(event).__name__ for event in backend.wait(7.0) or ()] == ["NodeJoined", "NodeJoined"]
    assert backend.wait(7.0) == [Tick(7.0)]
    assert backend.now == 7.0
    assert [event.at for event in backend.wait(10.0) or ()] == [10.0]


def test_a_job_with_nothing_to_do_ends_as_soon_as_it_runs() -> None:
    assert ends(simulate(Follow({0.0: {"a": A}}), [job("a", 0.0)])) == {"a": (Phase.SUCCEEDED, 0.0)}


def test_more_or_fewer_gpus_change_the_speed_in_proportion() -> None:
    four, one = on("n0", 0, 1, 2, 3), on("n0", 0)
    messages = simulate(Follow({0.0: {"a": A}, 10.0: {"a": four}, 20.0: {"a": one}}), [job("a", 40.0, in_place=True)])
    assert ends(messages) == {"a": (Phase.SUCCEEDED, 40.0)}  # 10 s at 1, 10 s at 2, and the last 10 of 40 at a half


def test_the_oracle_knows_the_seconds_that_are_left() -> None:
    backend = SimBackend([job("a", 50.0, costs=Costs(start_s=4.0))], NODES)
    backend.wait(math.inf)
    backend.execute(Start(0.0, "a", 1, A))
    backend.wait(math.inf)
    assert backend.remaining_s("a") == 50.0
    backend.wait(14.0)
    assert backend.remaining_s("a") == 40.0


# -- ends of the world -----------------------------------------------------------------------------------------------


def test_a_world_without_jobs_ends_at_once() -> None:
    assert SimBackend([], NODES).wait(math.inf) is None


@pytest.mark.parametrize("cadence", ["event", "60s", "event+60s"])
def test_a_policy_that_never_schedules_ends_with_its_jobs_unfinished(cadence: str) -> None:
    messages = simulate(Follow({0.0: {}}), [job("a", 5.0), job("b", 5.0, at=90.0)], cadence=cadence, patience=20)
    assert {job.phase for job in replay(messages).live.values()} == {Phase.PENDING}
    assert messages[-1].at <= 90.0 + 21 * 60.0


def test_a_policy_that_always_wants_to_be_asked_again_ends_too() -> None:
    class Restless:
        def plan(self, view: Snapshot) -> Plan:
            return Plan(review_at=view.now + 1.0)

    assert simulate(Restless(), [job("a", 5.0)], patience=50)[-1].at == 50.0


def test_a_policy_that_moves_a_job_before_it_has_begun_every_time_ends_too() -> None:
    class Fidget:
        def plan(self, view: Snapshot) -> Plan:
            return Plan(dict.fromkeys(view.jobs, A if view.now % 10.0 else B))

    messages = simulate(Fidget(), [job("a", 5.0, costs=COSTS)], cadence="5s", patience=20)
    assert replay(messages).live["a"].run_s == 0.0
    assert messages[-1].at < 1000.0


def test_a_job_suspended_for_ever_does_not_keep_the_world_going() -> None:
    messages = simulate(Follow({0.0: {"a": A}, 3.0: {}}), [job("a", 5.0, in_place=True)], cadence="event+60s")
    assert [job.phase for job in replay(messages).live.values()] == [Phase.SUSPENDED]


# -- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cancel_at", "plans", "told_after"),
    [
        (2.0, {0.0: {}}, []),  # pending
        (4.0, {0.0: {"a": A}}, [(4.0, "Stop"), (4.0, "JobStopped")]),  # starting: nothing to save
        (30.0, {0.0: {"a": A}}, [(30.0, "Stop"), (35.0, "JobStopped")]),  # running
        (31.0, {0.0: {"a": A}, 30.0: {"a": B}}, [(31.0, "Stop"), (36.0, "JobStopped")]),  # rescaling
        (31.0, {0.0: {"a": A}, 30.0: {}}, [(31.0, "Stop"), (36.0, "JobStopped")]),  # being suspended
        (40.0, {0.0: {"a": A}, 30.0: {}}, [(40.0, "Stop"), (45.0, "JobStopped")]),  # suspended
    ],
)
def test_a_job_cancelled_in_any_phase_is_gone_once_it_has_stopped(
    cancel_at: float, plans: dict[float, dict[str, Allocation]], told_after: list[tuple[float, str]]
) -> None:
    messages = simulate(Follow(plans), [job("a", 500.0, costs=COSTS, cancel_at=cancel_at, in_place=True)])
    last = told(messages)
    place = last.index((cancel_at, "JobCancelled", "a"))
    assert last[place + 1 :] == [(at, name, "a") for at, name in told_after]
    assert ends(messages) == {"a": (Phase.CANCELLED, told_after[-1][0] if told_after else cancel_at)}


def test_a_job_cancelled_while_it_stops_is_gone_when_it_has_stopped_and_does_not_come_back() -> None:
    costs = Costs(save_s=5.0)
    messages = simulate(Follow({0.0: {"a": A}, 30.0: {}}), [job("a", 500.0, costs=costs, cancel_at=33.0)])
    assert ends(messages) == {"a": (Phase.CANCELLED, 35.0)}


def test_cancelling_what_has_ended_changes_nothing() -> None:
    jobs = [job("a", 5.0, cancel_at=9.0), job("b", 20.0)]
    assert ends(simulate(Follow({0.0: {"a": A, "b": B}}), jobs)) == {
        "a": (Phase.SUCCEEDED, 5.0),
        "b": (Phase.SUCCEEDED, 20.0),
    }


# -- lost nodes in each phase ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost_at", "plans"),
    [
        (5.0, {0.0: {"a": A}}),  # starting
        (25.0, {0.0: {"a": A}}),  # running
        (31.0, {0.0: {"a": A}, 30.0: {"a": on("n1", 0, 1)}}),  # rescaling away from it: it still uses the old GPUs
        (31.0, {0.0: {"a": on("n1", 0, 1)}, 30.0: {"a": A}}),  # rescaling onto it
        (31.0, {0.0: {"a": A}, 30.0: {}}),  # being suspended
    ],
)
def test_a_lost_node_ends_an_attempt_that_uses_it_in_any_phase(
    lost_at: float, plans: dict[float, dict[str, Allocation]]
) -> None:
    """The world and the state agree: nothing is heard of that attempt again, and the next one begins afresh."""
    policy = Follow({**plans, lost_at: {"a": on("n1", 2, 3)}})
    outage = Outage("n0", lost_at, 1000.0)
    messages = simulate(policy, [job("a", 100.0, costs=COSTS, in_place=True)], outages=[outage])
    place = next(place for place, message in enumerate(messages) if isinstance(message, NodeLost))
    assert told(messages[place:])[:2] == [(lost_at, "Start", "a"), (lost_at + 20.0, "JobStarted", "a")]
    assert [message.attempt for message in messages[place:] if hasattr(message, "attempt")] == [2, 2, 2]
    worked = max(0.0, min(lost_at, 30.0) - 10.0)
    assert ends(messages) == {"a": (Phase.SUCCEEDED, lost_at + 20.0 + 100.0 - worked)}


def test_a_job_that_holds_nothing_on_the_lost_node_goes_on() -> None:
    outage = Outage("n1", 5.0, 6.0)
    assert ends(simulate(Follow({0.0: {"a": A}}), [job("a", 50.0)], outages=[outage])) == {"a": (Phase.SUCCEEDED, 50.0)}


# -- what cannot run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choosy:
    """Runs only alone, and only on node n0."""

    total: float = 10.0

    def pace(self, setting: Setting) -> Pace:
        return Pace(0.0 if setting.packed_with or setting.allocation.nodes != ("n0",) else 1.0, self.total)

    def remaining_s(self, progress: float) -> float:
        return self.total - progress


def test_a_job_that_cannot_run_where_it_is_put_fails_and_leaves_nothing_behind() -> None:
    """Its ghost would slow down whoever gets the GPUs next, and keep the world from ending."""
    choosy = SimJob(JobSpec(id="a", gpus=2, max_restarts=2), 0.0, Choosy())
    messages = simulate(Follow({0.0: {"a": on("n1", 0, 1)}, 1.0: {"b": on("n1", 0, 1)}}), [choosy, job("b", 10.0)])
    assert ends(messages) == {"a": (Phase.FAILED, 0.0), "b": (Phase.SUCCEEDED, 11.0)}
    exits = [message for message in messages if getattr(message, "code", 0)]
    assert [getattr(message, "detail", "") for message in exits] == ["cannot run on 2 x gpu"] * 3


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_jobs_that_cannot_bear_a_newcomer_all_fail_and_the_newcomer_stays(max_restarts: int) -> None:
    class Pair(Choosy):
        def pace(self, setting: Setting) -> Pace:
            bears = all(isinstance(mate, Pair) for mate in setting.packed_with)
            return Pace(1.0 if bears else 0.0, 100.0)

    pair = [SimJob(JobSpec(id=name, gpus=2, max_restarts=max_restarts), 0.0, Pair(100.0)) for name in "ab"]
    policy = Follow(
        {0.0: {"a": A, "b": A}, 5.0: {"a": A, "b": A, "c": A}, 6.0: {"c": A}}, frozenset({frozenset("abc")})
    )
    assert ends(simulate(policy, [*pair, job("c", 10.0)])) == {
        "a": (Phase.FAILED, 5.0),
        "b": (Phase.FAILED, 5.0),
        "c": (Phase.SUCCEEDED, 15.0),
    }


# -- reports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regimes:
    """Batch 8 until half of the work is done, then 16 and twice as fast. Measured, unless it shares its GPUs."""

    total: float = 20.0

    def pace(self, setting: Setting) -> Pace:
        early = setting.progress < 10.0
        speed, batch, until = (1.0, 8, 10.0) if early else (2.0, 16, self.total)
        share = 0.5 if setting.packed_with else 1.0
        observation = Observation("gpu", 1, 2, batch // 2, 0, 1.0 / (speed * share), 0.0)
        return Pace(speed * share, until, batch, 3.0, observation)

    def remaining_s(self, progress: float) -> float:
        return max(0.0, 10.0 - progress) + min(10.0, 20.0 - progress) / 2.0


def reports(messages: Sequence[Message], job_id: str) -> list[tuple[float, float, int | None, list[float]]]:
    heard = [m for m in messages if isinstance(m, JobReported) and m.job == job_id]
    return [(m.at, m.progress, m.batch, [o.step_s for o in m.observations]) for m in heard]


def test_a_job_reports_when_its_regime_changes_and_measures_each_configuration_once() -> None:
    messages = simulate(Follow({0.0: {"a": A}}), [SimJob(JobSpec(id="a", gpus=2), 0.0, Regimes())])
    assert reports(messages, "a") == [(0.0, 0.0, 8, [1.0]), (10.0, 0.5, 16, [0.5])]
    assert ends(messages) == {"a": (Phase.SUCCEEDED, 15.0)}


def test_running_jobs_report_as_often_as_they_are_told_to() -> None:
    messages = simulate(Follow({0.0: {"a": A}}), [SimJob(JobSpec(id="a", gpus=2), 0.0, Regimes())], report_every_s=4.0)
    assert [(at, progress) for at, progress, _, _ in reports(messages, "a")] == [
        (0.0, 0.0),
        (4.0, 0.2),
        (8.0, 0.4),
        (10.0, 0.5),
        (14.0, 0.9),
    ]


def test_a_job_whose_mate_leaves_reports_its_new_speed() -> None:
    jobs = [SimJob(JobSpec(id="a", gpus=2), 0.0, Regimes()), job("b", 100.0)]
    policy = Follow({0.0: {"a": A, "b": A}, 4.0: {"a": A}}, frozenset({frozenset("ab")}))
    messages = simulate(policy, jobs)
    assert reports(messages, "a")[-2:] == [(4.0, 0.1, 8, [1.0]), (12.0, 0.5, 16, [0.5])]
    assert ends(messages)["a"] == (Phase.SUCCEEDED, 17.0)


# -- what cannot be meant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SimBackend([], NODES, interference=1.0), "interference is 1.0"),
        (lambda: SimBackend([], NODES, interference=-0.1), "interference is -0.1"),
        (lambda: SimBackend([], NODES, retune_every_s=-1.0), "retune_every_s is -1.0"),
        (lambda: SimBackend([], NODES, retune_every_s=math.inf), "retune_every_s is inf"),
        (lambda: SimBackend([job("a", 1.0), job("a", 2.0)], NODES), "two jobs are called 'a'"),
        (lambda: SimBackend([], [Node("n0", 1), Node("n0", 2)]), "two nodes are called 'n0'"),
        (lambda: SimBackend([], NODES, outages=[Outage("n7", 1.0, 2.0)]), "node 'n7'"),
        (lambda: Outage("n0", 5.0, 4.0), "lost at 5.0 and back at 4.0"),
        (lambda: Outage("n0", -5.0, 4.0), "lost at -5.0"),
        (lambda: Outage("n0", 5.0, math.inf), "back at inf"),
        (lambda: job("a", 1.0, at=-1.0), "submitted at -1.0"),
        (lambda: job("a", 1.0, at=math.nan), "submitted at nan"),
        (lambda: job("a", 1.0, at=5.0, cancel_at=4.0), "cancelled at 4.0"),
    ],
)
def test_a_world_that_cannot_be_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        make()
    assert words in str(caught.value)


def test_a_command_that_crosses_the_end_of_its_attempt_is_ignored() -> None:
    """As it would be in a real world: the end is already on its way."""
    backend = SimBackend([job("a", 50.0)], NODES, outages=[Outage("n0", 5.0, 6.0)])
    backend.wait(math.inf)
    backend.execute(Start(0.0, "a", 1, A))
    backend.wait(1.0)
    assert [type(event).__name__ for event in backend.wait(5.0) or ()] == ["JobReported", "NodeLost"]
    crossing: list[Command] = [Stop(5.0, "a", 1), Resize(5.0, "a", 1, NOTHING)]
    for command in crossing:
        backend.execute(command)
    assert [type(event).__name__ for event in backend.wait(60.0) or ()] == ["NodeJoined"]
    assert backend.wait(60.0) == [Tick(60.0)]
