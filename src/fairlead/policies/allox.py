"""Matching of jobs to GPU types and positions for the least mean completion time (AlloX, EuroSys 2020).

Shortest job first decides which job runs next, and the fastest type decides where, each without the other: then fast
GPUs have a queue while slow ones are idle, or a job that is fast on one type only has to take another. AlloX decides
both at once: `matching.py` finds for all jobs that wait the GPU type, and the position on it, with the least sum of
completion times. The jobs that are first on their GPUs start; the others are matched anew at the next decision. Running
jobs are not preempted. Their GPUs are offered from when they are expected to end, so a job can wait for a fast GPU
although a slow one is free: it does so where it ends sooner that way.

Only the oldest jobs are matched: a share `alpha` of those that wait, and at least as many as the free GPUs can hold.
The smaller the share, the closer to the order of arrival, in which no job is passed for ever.

Legend: J jobs, T GPU types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Allocation, Job, Plan, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.matched_shares import matched_shares
from fairlead.policies.matching import match
from fairlead.policies.placing import Room
from fairlead.policies.rates import BelievedRates, OracleRates, RateSource
from fairlead.policies.reasons import Reasons, served_reasons
from fairlead.policies.remaining_time import remaining_time
from fairlead.policies.round_account import Account, Owed
from fairlead.policies.rounds import next_round, round_options
from fairlead.policies.wait_reason import Discipline, Waits, accepts, gpu_type_of, is_bound, on_open_nodes, open_gpus

#: The code of a job that waits for GPUs of a faster type, although others that it accepts are free.
FASTER_TYPE = "faster-type"

_GANGS = ("slots", "time")

_RULE = "the order of the least mean completion time"


@dataclass(frozen=True)
class Allox:
    """Jobs are matched to GPU types and positions so that the mean completion time is the least."""

    #: Share of the jobs that wait, the oldest, that are matched; at least as many as the free GPUs can hold. 0 keeps
    #: the order of arrival, and matches types only; 1 matches all, and long or large jobs can wait for ever.
    alpha: float = 1.0
    #: Running jobs are matched, too: they move or stop if that lowers the mean completion time.
    preemptive: bool = False
    #: A job of several GPUs: `slots`, it is matched to as many GPUs at once; or `time`, it is matched to one, and has
    #: its GPUs for that part of the time, in rounds (`matched_shares.py`).
    gangs: str = "slots"
    #: With `time`: the length of a round, in seconds.
    round_s: float = 360.0
    #: With `time`: how rounds are kept, `fairlead`, or as in the artifacts of `gavel` and `shockwave`.
    mechanism: str = "fairlead"
    _source: RateSource = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise InvalidSpec(f"allox: alpha is {self.alpha}; expected a share from 0 to 1")
        if self.gangs not in _GANGS:
            raise InvalidSpec(f"allox: gangs is {self.gangs!r}; expected {' or '.join(_GANGS)}")
        round_options(self.mechanism, self.round_s)

    @property
    def starvation_free(self) -> bool:
        """In order of arrival no job is passed for ever."""
        return self.alpha == 0.0 and not self.preemptive and self.gangs == "slots"

    def plan(self, view: Snapshot) -> Plan:
        if self.gangs == "time":
            return next_round(view, lambda: self.shares(view), round_options(self.mechanism, self.round_s))
        # 1. How long would each job still run on each GPU type, and which GPUs are there to be matched?
        market = _Market.of(view, self._source, preemptive=self.preemptive)
        # 2. Which jobs are matched?
        queue = [job for job in view.jobs.values() if market.may_get(job)]
        oldest = _oldest(queue, self.alpha, market.idle)
        # 3. Where, and in which order?
        turns = _turns(oldest, market)
        # 4. The first of them start, as far as GPUs are idle.
        allocations = _start(turns, market)
        return Plan(allocations, _reasons(queue, turns, market, allocations))

    def shares(self, view: Snapshot) -> Owed:
        """With `gangs=time`: the share of the time that each job is owed; preemptive, none is kept from before."""
        before = {} if self.preemptive else Account.of(view).owed
        return matched_shares(view, self._source, self.alpha, before)


@dataclass(frozen=True)
class AlloxOracle(Allox):
    """The same with the true remaining times and speeds."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})

    _source: RateSource = field(default_factory=OracleRates, init=False, repr=False, compare=False)


@dataclass(frozen=True)
class _Market:
    """What a matching is made of: jobs with their run times, and GPUs with the times at which they are free."""

    view: Snapshot
    preemptive: bool
    gpu_types: tuple[str, ...]
    #: Seconds that each live job would still run on each type, a start included where it has to start.
    seconds_JT: Floats
    row: Mapping[str, int]
    guessed: frozenset[str]
    #: Jobs that keep their GPUs.
    fixed: frozenset[str]
    #: GPUs on open nodes, by type: all, and those that no fixed job holds.
    total: Mapping[str, int]
    idle: Mapping[str, int]

    @classmethod
    def of(cls, view: Snapshot, source: RateSource, *, preemptive: bool) -> _Market:
        jobs, gpu_types = list(view.jobs.values()), view.node_columns.gpu_types
        times = remaining_time(view, source, jobs, gpu_types)
        here_JT = np.array([[_is_on(view, job, t) for t in gpu_types] for job in jobs], dtype=bool)
        pause_J = np.array([job.start_s or 0.0 for job in jobs])
        seconds_JT = times.seconds_JT + np.where(here_JT.reshape(times.seconds_JT.shape), 0.0, pause_J[:, None])
        fixed = [job for job in jobs if job.allocation and (is_bound(job) or not preemptive)]
        total = dict.fromkeys(gpu_types, 0) | open_gpus(view)
        idle = dict(total)
        for job in fixed:
            idle[gpu_type_of(view, job.allocation)] -= on_open_nodes(view, job.allocation)
        return cls(
            view,
            preemptive,
            gpu_types,
            seconds_JT,
            {job.id: row for row, job in enumerate(jobs)},
            frozenset(job.id for job, known in zip(jobs, times.known_J.tolist(), strict=True) if not known),
            frozenset(job.id for job in fixed),
            total,
            idle,
        )

    def may_get(self, job: Job) -> bool:
        """The job can be given GPUs, now or later."""
        fits = any(accepts(job, t) and job.spec.gpus <= self.total[t] for t in self.gpu_types)
        return fits and job.id not in self.fixed

    def seconds(self, job: Job, gpu_type: str) -> float:
        return float(self.seconds_JT[self.row[job.id], self.gpu_types.index(gpu_type)])

    def needs(self, job: Job, gpu_type: str) -> int:
        """GPUs on open nodes that it takes if it runs on a type: those it has there, or all that it asks for."""
        here = _is_on(self.view, job, gpu_type)
        return on_open_nodes(self.view, job.allocation) if here else job.spec.gpus

    def free_in_s(self, gpu_type: str) -> Floats:
        """In how many seconds each GPU of a type is free, ascending."""
        free_in_s = [0.0] * self.idle[gpu_type]
        for job_id in self.fixed:
            job = self.view.jobs[job_id]
            if _is_on(self.view, job, gpu_type):
                free_in_s += [self.seconds(job, gpu_type)] * on_open_nodes(self.view, job.allocation)
        return np.sort(np.array(free_in_s))


class _Turn(NamedTuple):
    """When and where a job is to run."""

    gpu_type: str
    #: Its run time there, and when it is expected to start.
    seconds: float
    start_in_s: float


def _is_on(view: Snapshot, job: Job, gpu_type: str) -> bool:
    return bool(job.allocation) and gpu_type_of(view, job.allocation) == gpu_type


def _oldest(queue: Sequence[Job], alpha: float, idle: Mapping[str, int]) -> list[Job]:
    """The share alpha of the queue that came first, or more of it if idle GPUs would be left.

    The first job that finds no room ends it, so that at alpha = 0 later jobs leave it the GPUs.
    """
    left, count = dict(idle), 0
    for job in queue:
        if not any(left.values()):
            break
        count += 1
        fitting = [t for t, gpus in left.items() if accepts(job, t) and gpus >= job.spec.gpus]
        if not fitting:
            break
        left[max(fitting, key=lambda t: left[t])] -= job.spec.gpus
    return list(queue[: max(count, int(alpha * len(queue)))])


def _turns(jobs: Sequence[Job], market: _Market) -> dict[str, _Turn]:
    """The matching, as one order over all types: a job that is earlier than another on the same type comes first."""
    gpus_J = np.array([job.spec.gpus for job in jobs], dtype=np.int64)
    total_T = np.array([market.total[t] for t in market.gpu_types])
    seconds_JT = market.seconds_JT[[market.row[job.id] for job in jobs]]
    seconds_JT = np.where(gpus_J[:, None] <= total_T, seconds_JT, np.inf)
    matching = match(seconds_JT, gpus_J, [market.free_in_s(t) for t in market.gpu_types])
    seconds_J = seconds_JT[np.arange(len(jobs)), matching.type_J]
    return {
        jobs[row].id: _Turn(
            market.gpu_types[matching.type_J[row]], float(seconds_J[row]), float(matching.start_s_J[row])
        )
        for row in np.lexsort((gpus_J * seconds_J, -matching.position_J)).tolist()
    }


def _start(turns: Mapping[str, _Turn], market: _Market) -> dict[str, Allocation]:
    """Jobs take idle GPUs of their types in turn; those that do not fit are passed.

    Then a job takes another type that has room, if it would end later by waiting. The matching does not let that
    happen where all jobs need as many GPUs; otherwise it is an approximation.
    """
    view, left = market.view, dict(market.idle)
    chosen: dict[str, str] = {}
    for job_id, turn in turns.items():
        needs = market.needs(view.jobs[job_id], turn.gpu_type)
        if needs <= left[turn.gpu_type]:
            chosen[job_id] = turn.gpu_type
            left[turn.gpu_type] -= needs
    for job_id, turn in turns.items():
        job = view.jobs[job_id]
        if job_id in chosen:
            continue
        sooner = [
            t
            for t in market.gpu_types
            if market.needs(job, t) <= left[t] and market.seconds(job, t) < turn.start_in_s + turn.seconds
        ]
        if sooner:
            best = min(sooner, key=lambda t: market.seconds(job, t))
            chosen[job_id] = best
            left[best] -= market.needs(job, best)
    return _place(chosen, market)


def _place(chosen: Mapping[str, str], market: _Market) -> dict[str, Allocation]:
    """Exactly which GPUs: fixed jobs, and those that stay on their type, keep theirs."""
    view, room = market.view, Room(market.view)
    allocations = dict(view.allocations)
    for job_id, allocation in view.allocations.items():
        if job_id not in market.fixed and chosen.get(job_id) != gpu_type_of(view, allocation):
            room.release(allocations.pop(job_id))
    for job_id, gpu_type in chosen.items():
        if job_id not in allocations:
            taken = room.take(view.jobs[job_id].spec.gpus, (gpu_type,))
            assert taken is not None, "there was room when it was chosen"
            allocations[job_id] = taken
    return allocations


# -- reasons -----------------------------------------------------------------------------------------------------------


def _reasons(
    queue: Sequence[Job], turns: Mapping[str, _Turn], market: _Market, allocations: Mapping[str, Allocation]
) -> Reasons:
    view = market.view
    order = [*turns, *(job.id for job in queue if job.id not in turns)]
    bar = f"of {counted(len(queue), 'job')} the {len(turns)} oldest are matched"
    numbers = {"waiting": len(queue), "matched": len(turns)}
    discipline = Discipline(_RULE, lambda: order, market.preemptive, bar=lambda _: (bar, numbers))
    reasons, waits = served_reasons(view, allocations, discipline), Waits(view, allocations, discipline)

    def explain(job: Job) -> Reason:
        why, turn, allocation = reasons[job.id], turns.get(job.id), allocations.get(job.id)
        guess = ", a guess" if job.id in market.guessed else ""
        if allocation is not None:
            on = gpu_type_of(view, allocation)
            left_s = market.seconds(job, on)
            text = f"{why.text}; about {left_s:.0f} s left on {on}{guess}"
            return replace(why, text=text, numbers={**why.numbers, "left_s": left_s})
        if turn is None:
            return why
        times = {"left_s": turn.seconds, "start_in_s": turn.start_in_s}
        free = [t for t in market.gpu_types if accepts(job, t) and waits.free_of(t) >= job.spec.gpus]
        if free:
            why = _waits_for_faster(job, turn, market, waits, free)
        if market.guessed >= view.jobs.keys():  # what is typical of them is made up
            text = f"{why.text}; it is to start on {turn.gpu_type}: when is not known, as no job tells how long it runs"
            return replace(why, text=text)
        guess = ", by a guess of how long some jobs run" if market.guessed else ""
        text = f"{why.text}; expected to start on {turn.gpu_type} in about {turn.start_in_s:.0f} s{guess}"
        return replace(why, text=text, numbers={**why.numbers, **times})

    return Reasons(view, explain)


def _waits_for_faster(job: Job, turn: _Turn, market: _Market, waits: Waits, free: Sequence[str]) -> Reason:
    """Of a job that could start on some types that are free, and ends sooner on another."""
    there = waits.reason(replace(job, spec=replace(job.spec, gpu_types=(turn.gpu_type,))))
    here = min(free, key=lambda t: market.seconds(job, t))
    here_s, there_s, count = market.seconds(job, here), turn.start_in_s + turn.seconds, waits.free_of(here)
    text = (
        f"{count} {here} {are(count)} free, but it ends sooner on {turn.gpu_type}, in about {there_s:.0f} s and not "
        f"{here_s:.0f} s; on {turn.gpu_type} it {there.text}"
    )
    numbers = {**there.numbers, "free": waits.most(job)[1], "total": waits.most(job)[0], "here_s": here_s}
    return Reason(FASTER_TYPE, text, numbers, there.jobs)
