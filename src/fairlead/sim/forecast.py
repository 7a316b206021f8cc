"""What will become of the jobs there are: a live snapshot rolled forward in the simulator, under the same policy.

`forecast` answers when a job starts and ends, `retold` how jobs that have run would have fared under another policy or
on fixed sizes. Both are one roll of the loop over `BelievedTruth`: they know no more than reports have taught.

What cannot be told is said: a job of unknown length runs on for ever, and so nobody knows when those behind it start.
Nodes that are lost stay lost, nothing fails, and nobody else comes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import FairleadError, InvalidPlan, InvalidSpec
from fairlead.core.facts import Facts
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import Command, Event, JobExited, JobStopped, Message, Release, Rent, Resize, Start, Stop
from fairlead.core.plan import changes, check, surviving
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, Belief, Job, JobSpec, Node, Plan
from fairlead.core.wording import are, counted
from fairlead.sim.backend import SimBackend
from fairlead.sim.believed import Basis, Believer, Role, room
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.world import SimJob

DAY_S = 86400.0

#: After so many decisions that change nothing, while no job of known length runs, nothing will ever change.
STANDSTILL = 64
#: A node that was rented joins after so long: what simulations assume.
PROVISION_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How far to look ahead, and how hard."""

    horizon_s: float = 30 * DAY_S
    #: Further rolls, with speeds drawn from what is uncertain of them: what the p90 rest on. 0 means no p90.
    samples: int = 0
    seed: int = 0
    #: Bounds of one roll, and of all of them together by the wall clock. Beyond, the answer is truncated.
    most_decisions: int = 20_000
    #: After so many periods of the cadence they double in length, and after twice as many again; but whatever happens
    #: is decided on at the tick that follows. What is far off is not known to the minute, and has too many minutes.
    exact_ticks: int = 512
    most_s: float = 10.0


USUAL = Effort()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForecast:
    """What will become of one job. None is what cannot be told, and `why` says why; it is empty if all is told."""

    job: str
    #: When it gets GPUs next or, if it holds some, when it was first given any.
    starts_at: float | None
    ends_at: float | None
    #: Nine times in ten it is no later; None without samples.
    starts_p90: float | None = None
    ends_p90: float | None = None
    #: (from when, how many GPUs), from now on.
    gpus_at: tuple[tuple[float, int], ...] = ()
    #: How often it will be stopped and started again.
    restarts: int = 0
    #: Of its whole life, by the prices of the nodes; None if it has no end.
    gpu_h: float | None = None
    cost: float | None = None
    #: What its length rests on.
    basis: Basis = Basis.UNKNOWN
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What will become of the jobs of a moment."""

    at: float
    #: In order of arrival.
    jobs: Mapping[str, JobForecast]
    #: It was not rolled to the end: a bound of `Effort` came first.
    truncated: bool
    #: Up to when it was rolled, in how many decisions, how many samples were drawn, and how long that took.
    until: float
    decisions: int
    samples: int
    took_s: float


def forecast(
    view: Snapshot,
    *,
    policy: Policy,
    cadence: Cadence,
    also: Sequence[JobSpec] = (),
    others: Sequence[Job] = (),
    plan: Plan | None = None,
    now: float | None = None,
    effort: Effort = USUAL,
) -> Forecast:
    """Roll a snapshot forward.

    policy: one that has seen nothing. It is copied for every roll.
    also: jobs that would be submitted now.
    others: live jobs that the view leaves out, since they may not run now: on hold, waiting for others, or to be
        tried again later.
    plan: what was decided last, if the view was taken after that. None asks the policy at once, which is the same for
        a cadence with events, and at most a period too early for one without.
    now: when `also` is submitted, if that is later than the view.
    """
    every = sorted([*view.jobs.values(), *view.barred, *others], key=lambda job: job.submitted_at)
    live = {job.id: job for job in every}
    comers = [_comer(spec, live, max(view.now, now or view.now)) for spec in also]
    believer = Believer([*live.values(), *comers], tuple(view.nodes.values()), view.lore, view.now)
    cast = [Role.of(job, believer) for job in live.values()]
    cast += [Role.of(job, believer, comes=True) for job in comers]
    return _forecast(_facts(view, live), cast, _Scene(policy, cadence, plan, effort))


def retold(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    *,
    policy: Policy,
    cadence: Cadence,
    gpus: int | None = None,
    lore: Mapping[str, Belief] | None = None,
    effort: Effort = USUAL,
) -> Forecast:
    """How these jobs would have fared from the first submission on, with the speeds that were measured of them.

    gpus: every job is fixed to so many. Otherwise it keeps the range its user gave it.
    """
    if not jobs:
        raise InvalidSpec("there are no jobs to retell; give at least one that has run")
    begin = min(job.submitted_at for job in jobs)
    believer = Believer(jobs, nodes, lore or {}, max(job.accounted_at for job in jobs))
    ids = {job.id for job in jobs}
    cast = []
    for job in sorted(jobs, key=lambda job: job.submitted_at):
        truth = believer.retold(job)
        spec = replace(job.spec, depends_on=tuple(other for other in job.spec.depends_on if other in ids))
        spec = spec if gpus is None else believer.fixed(spec, truth, gpus)
        fresh = Job(spec, job.submitted_at, since=job.submitted_at, accounted_at=job.submitted_at)
        costs = believer.costs(job)
        if spec.in_place:  # a worker that joins boots as one that begins
            costs = replace(costs, boot_s=costs.start_s)
        cast.append(Role(fresh, truth, SimJob(spec, job.submitted_at, truth, costs)))
    machines = tuple(replace(node, healthy=True, outside=()) for node in nodes)
    facts = replace(State().facts(), now=begin, nodes=machines)
    return _forecast(facts, cast, _Scene(policy, cadence, None, effort))


# -- who is in it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scene:
    """Under which rules it is played."""

    policy: Policy
    cadence: Cadence
    plan: Plan | None
    effort: Effort


def _kept(view: Snapshot, plan: Plan) -> Plan | None:
    """What is left of an earlier plan; None if it cannot be carried out."""
    left = surviving(view, plan)
    try:
        check(view, left, changes(view, left))
    except InvalidPlan:
        return None
    return left


def _comer(spec: JobSpec, live: Mapping[str, Job], at: float) -> Job:
    if spec.id in live:
        raise InvalidSpec(f"job id {spec.id!r} is taken by a live job; ask under a new id")
    # Whom it depends on and who is not live has succeeded, or it could not be submitted.
    spec = replace(spec, depends_on=tuple(other for other in spec.depends_on if other in live))
    return Job(spec, at, since=at, accounted_at=at)


def _facts(view: Snapshot, live: Mapping[str, Job]) -> Facts:
    return Facts(
        now=view.now,
        fair_gpu_s=view.fair_gpu_s,
        nodes=tuple(view.nodes.values()),
        released=tuple(view.released),
        coming=tuple(view.coming),
        live=tuple(live.values()),
        finished=(),
        usage=tuple((*account, *used) for account, used in view.ledger.entries.items()),
        half_life_s=view.ledger.half_life_s,
        keep_finished=None,
        lore=view.lore,
        memo=view.memo,
    )


# -- rolling -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Course:
    """What one job went through in a roll. `rate` is what its GPUs cost an hour."""

    gpus_at: list[tuple[float, int]]
    started_at: float | None
    restarts: int = 0
    ended_at: float | None = None
    held: Allocation = NOTHING
    since: float = 0.0
    rate: float = 0.0
    gpu_h: float = 0.0
    cost: float = 0.0


class _Chronicle:
    """The journal of a roll: of everything that happens it keeps the course of each job."""

    def __init__(self, facts: Facts, cast: Sequence[Role]) -> None:
        self._prices = {node.id: node.price_per_hour / node.gpus for node in facts.nodes}
        usual = sum(self._prices.values()) / max(1, len(self._prices))
        self.courses: dict[str, _Course] = {}
        self.quiet = 0  # turns since anybody was told to do something
        for role in cast:
            job = role.job
            course = _Course([], job.first_started_at if job.allocation else None)
            self.courses[job.id] = course
            self._hold(course, facts.now, job.allocation)
            rate = course.rate / job.allocation.total if job.allocation else usual
            course.gpu_h = job.held_at(facts.now) / 3600.0
            course.cost = course.gpu_h * rate

    def append(self, message: Message) -> None:
        if not isinstance(message, Start | Resize | Stop | JobStopped | JobExited):
            return
        self.quiet = 0
        course = self.courses[message.job]
        self._hold(course, message.at, message.allocation if isinstance(message, Start | Resize) else NOTHING)
        course.restarts += isinstance(message, Start) and message.attempt > 1
        if course.started_at is None and course.held:
            course.started_at = message.at
        if isinstance(message, JobExited) and message.code == 0:
            course.ended_at = message.at

    def commit(self) -> None:
        self.quiet += 1

    def _hold(self, course: _Course, at: float, held: Allocation) -> None:
        if held is course.held:
            return
        hours = (at - course.since) / 3600.0
        course.gpu_h += hours * course.held.total
        course.cost += hours * course.rate
        if held.total != course.held.total:
            course.gpus_at.append((at, held.total))
        course.held, course.since = held, at
        course.rate = sum(self._prices[node] * len(gpus) for node, gpus in held)


@dataclass(frozen=True, slots=True)
class _Ahead(Cadence):
    """The cadence of the live loop, but it begins with a decision, and ticks become rarer while nothing happens."""

    begins_at: float = 0.0
    exact_ticks: int = 1
    #: When something happened that only a later tick decides on.
    undecided: list[float] = field(default_factory=list)

    def next(self, now: float, plan: Plan, wakes_at: float = math.inf) -> float:
        if self.period_s is None or self.undecided:
            return Cadence.next(self, now, plan, wakes_at)
        doublings = math.log2(max(1.0, (now - self.begins_at) / (self.exact_ticks * self.period_s)))
        return Cadence(self.period_s * 2.0 ** math.ceil(doublings), self.on_events).next(now, plan, wakes_at)

    def due(self, events: Sequence[Event], now: float, deadline: float) -> bool:
        due = now <= self.begins_at or Cadence.due(self, events, now, deadline)
        if due:
            self.undecided.clear()
        elif Cadence().due(events, now, math.inf):
            self.undecided.append(now)
        return due


class _Roll:
    """One roll of the loop: the world, with an end to it, and the policy, with what it must be told."""

    def __init__(self, facts: Facts, cast: Sequence[Role], scene: _Scene, *, out_of_time: float) -> None:
        away = {*facts.released, *facts.coming}  # these may return; one that was lost stays so
        there = [replace(node, healthy=True) for node in facts.nodes if node.healthy or node.id in away]
        underway = [role.underway() for role in cast if not role.comes]
        coming = [role.sim for role in cast if role.comes]
        options = {"retune_every_s": 0.0, "provision_s": PROVISION_S}
        self._world = SimBackend.resumed(facts.now, underway, there, coming=coming, **options)
        for node_id in away:
            self._world.execute(Release(facts.now, node_id))
            if node_id in facts.coming:
                self._world.execute(Rent(facts.now, node_id))
        self._scene, self._policy = scene, copy.deepcopy(scene.policy)
        oracle = Capability.ORACLE in needs_of(scene.policy)
        self._oracle = SimStepOracle(self._world, there) if oracle else None
        self._begins_at, self._ends_at = facts.now, facts.now + scene.effort.horizon_s
        self._out_of_time = out_of_time
        self._lasting = {role.job.id for role in cast if role.truth.known}
        self.state, self.chronicle = State.of(facts), _Chronicle(facts, cast)
        self.truncated, self.decisions = False, 0

    def play(self) -> None:
        live = self._scene.cadence
        cadence = _Ahead(live.period_s, live.on_events, self._begins_at, self._scene.effort.exact_ticks)
        try:
            run(self, self, state=self.state, journal=self.chronicle, cadence=cadence)
        except InvalidPlan as error:
            raise InvalidPlan(f"{type(self._policy).__name__} at second {self.state.now:.0f}: {error}") from error

    def wait(self, until: float) -> list[Event] | None:
        out_of_time = time.monotonic() > self._out_of_time
        if out_of_time or self.decisions >= self._scene.effort.most_decisions:
            self.truncated = True
            return None
        if self.chronicle.quiet > STANDSTILL and not self._anyone_gets_on():
            return None
        events = self._world.wait(min(until, self._ends_at))
        return None if events is None or self._world.now >= self._ends_at else events

    def execute(self, command: Command) -> None:
        self._world.execute(command)

    def plan(self, view: Snapshot) -> Plan:
        if self.decisions == 0 and self._scene.plan is not None:
            self.decisions += 1
            if (kept := _kept(view, self._scene.plan)) is not None:
                return kept
        self.decisions += 1
        if self._oracle is not None:
            view = replace(view, oracle=self._world.remaining_s, step_oracle=self._oracle)
        try:
            return self._policy.plan(view)
        except FairleadError:
            raise
        except Exception as error:  # whatever a plug-in raises is the plug-in's fault
            raise InvalidPlan(f"it raised {error!r}") from error

    def _anyone_gets_on(self) -> bool:
        """Or may do so, without anybody being told to: somebody or some node is still to come."""
        self.chronicle.quiet, state = 0, self.state
        if state.coming or state.wakes_at < math.inf or any(state.job(job_id) is None for job_id in self._lasting):
            return True
        return any(job.held and job.id in self._lasting for job in state.live.values())


def _forecast(facts: Facts, cast: Sequence[Role], scene: _Scene) -> Forecast:
    begin = time.monotonic()
    out_of_time = begin + scene.effort.most_s
    roll = _Roll(facts, cast, scene, out_of_time=out_of_time)
    roll.play()
    drawn: list[Mapping[str, _Course]] = []
    random = np.random.default_rng(scene.effort.seed)
    for _ in range(0 if roll.truncated else scene.effort.samples):
        draws = zip(cast, random.standard_normal(len(cast)).tolist(), strict=True)
        another = _Roll(facts, [role.drawn(draw) for role, draw in draws], scene, out_of_time=out_of_time)
        another.play()
        if another.truncated:
            break
        drawn.append(another.chronicle.courses)
    reasons = _Reasons(facts, cast, roll, scene.effort)
    told = {role.job.id: _told(role, roll, drawn, reasons) for role in cast if not role.job.cancelled}
    return Forecast(
        at=facts.now,
        jobs=told,
        truncated=roll.truncated,
        until=roll.state.now,
        decisions=roll.decisions,
        samples=len(drawn),
        took_s=time.monotonic() - begin,
    )


def _told(role: Role, roll: _Roll, drawn: Sequence[Mapping[str, _Course]], reasons: _Reasons) -> JobForecast:
    job_id = role.job.id
    course = roll.chronicle.courses[job_id]
    others = [courses[job_id] for courses in drawn]
    ended = course.ended_at is not None
    return JobForecast(
        job=job_id,
        starts_at=course.started_at,
        ends_at=course.ended_at,
        starts_p90=_p90(course.started_at, [other.started_at for other in others]),
        ends_p90=_p90(course.ended_at, [other.ended_at for other in others]),
        gpus_at=tuple(course.gpus_at),
        restarts=course.restarts,
        gpu_h=course.gpu_h if ended else None,
        cost=course.cost if ended else None,
        basis=role.truth.basis,
        why="" if ended else reasons.why(role, course),
    )


def _p90(plain: float | None, drawn: Sequence[float | None]) -> float | None:
    """The time by which nine in ten rolls have it, and never before the plain one has."""
    if plain is None or not drawn:
        return None
    times = sorted(math.inf if at is None else at for at in (plain, *drawn))
    late = max(plain, times[math.ceil(0.9 * len(times)) - 1])
    return late if math.isfinite(late) else None


class _Reasons:
    """Why something cannot be told, after a roll."""

    def __init__(self, facts: Facts, cast: Sequence[Role], roll: _Roll, effort: Effort) -> None:
        self._live, self._effort = roll.state.live, effort
        self._room = room(roll.state.nodes.values())
        self._cut = f"the forecast ends after {roll.decisions} decisions, {about(roll.state.now - facts.now)} from now"
        self._truncated = roll.truncated
        types = {node.id: node.gpu_type for node in facts.nodes}
        unknown = [role.job.id for role in cast if not role.truth.known]
        #: Jobs of unknown length that hold GPUs to the end, and of which type.
        self._endless = {
            job_id: types[self._live[job_id].held.nodes[0]]
            for job_id in unknown
            if job_id in self._live and self._live[job_id].held
        }

    def why(self, role: Role, course: _Course) -> str:
        spec, job = role.job.spec, self._live.get(role.job.id)
        if job is not None and job.on_hold:
            return "it is on hold"
        if job is not None and job.waits_for:
            return f"it waits for {_jobs(job.waits_for)}, of which no end can be told"
        if course.started_at is not None and not role.truth.known:
            return "its length is unknown: give time_limit, or report progress"
        most = max((self._room.get(name, 0) for name in spec.gpu_types or self._room), default=0)
        if spec.least > most:
            kind = " or ".join(spec.gpu_types) or "one type"
            return f"it needs {counted(spec.least, 'GPU')} of {kind}, and there {are(most)} {most}"
        ahead = [other for other, kind in self._endless.items() if not spec.gpu_types or kind in spec.gpu_types]
        if ahead and not course.held:
            return f"behind {_jobs(ahead)}, whose {'length is' if len(ahead) == 1 else 'lengths are'} unknown"
        if self._truncated:
            return self._cut
        verb = "start" if course.started_at is None else "end"
        return f"it does not {verb} within {about(self._effort.horizon_s)}"


def _jobs(ids: Sequence[str], most: int = 3) -> str:
    named = ", ".join(ids[:most])
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return f"{'job' if len(ids) == 1 else 'jobs'} {named}{more}"


def about(seconds: float) -> str:
    """A time for people: 40 s, 25 min, 3.5 h, 12 days."""
    for unit, name in ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (DAY_S, "days")):
        if abs(seconds) < {"s": 120.0, "min": 120 * 60.0, "h": 2 * DAY_S}.get(name, math.inf):
            amount = seconds / unit
            return f"{amount:.0f} {name}" if abs(amount) >= 10.0 or name == "s" else f"{amount:.2g} {name}"
    return f"{seconds} s"
