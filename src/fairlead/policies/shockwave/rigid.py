"""Shockwave over jobs of a fixed number of GPUs (Zheng et al., NSDI '23): a market over the coming rounds.

At the beginning of a round the jobs bid for a window of rounds (`market`) if a job has come, ended or changed its batch
size since the last purchase, or if that is `resolve_every` rounds old. The rounds they bought are placed one by one
(`schedule`); GPUs that are left go to the other jobs, the one with the longest expected time left first. Within a round
no running job is stopped, and GPUs that become free are given out at once.

What a job still takes is expected from its reports and the run time that its user states (`regime_forecast`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.filling import run_first, start_waiting
from fairlead.policies.shockwave import fair_finish
from fairlead.policies.shockwave.market import Ints, Market, Purchase, fairness_weights, solve
from fairlead.policies.shockwave.market_reasons import market_reasons
from fairlead.policies.shockwave.memory import MarketMemory
from fairlead.policies.shockwave.regime_forecast import JobForecast, forecast, possible_batches
from fairlead.policies.shockwave.schedule import choose
from fairlead.policies.wait_reason import is_bound, on_open_nodes


@dataclass(frozen=True)
class Shockwave:
    """A market in which jobs buy rounds of the near future.

    Nash welfare over time, makespan and finish-time fairness.
    """

    #: Length of a round, in seconds.
    round_s: float = 120.0
    #: Rounds that the jobs bid for at a time.
    window: int = 40
    #: They bid again after so many rounds, if nothing has happened before.
    resolve_every: int = 8
    #: What a window of makespan counts, next to the mean log of progress over jobs and rounds.
    makespan_weight: float = 2.4
    #: A job that would end later than with a fair share has this power of its lateness as its weight.
    fairness_power: float = 12.0
    #: A waiting job takes the place of a running one if it ranks so many times as high.
    keep: float = 10.0
    #: Seconds that a purchase may take the solver in all; the best plan found by then counts.
    time_limit_s: float = 4.0

    def __post_init__(self) -> None:
        check_options("shockwave", self)

    def plan(self, view: Snapshot) -> Plan:
        return _plan(view, self, {job.id: forecast(job, view.now) for job in view.jobs.values()})


@dataclass(frozen=True)
class ShockwaveOracle(Shockwave):
    """The same, told which batch sizes each job will use and how long they take, as the paper's artifact is."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})

    def plan(self, view: Snapshot) -> Plan:
        found = {job.id: forecast(job, view.now, oracle_s=_true_s(view, job)) for job in view.jobs.values()}
        return _plan(view, self, found)


def _true_s(view: Snapshot, job: Job) -> Mapping[int, float]:
    """By batch size that the job will use: seconds of its whole work at it.

    One batch size where only its time is known.
    """
    if view.step_oracle is not None:
        return view.step_oracle.batch_s(job.id)
    if view.oracle is None:
        raise InvalidSpec("shockwave-oracle is an oracle: it needs true batch sizes, which only the simulator knows")
    whole_s = job.run_at(view.now) + view.oracle(job.id)
    return dict.fromkeys(possible_batches(job.spec, job.belief) or (1,), max(whole_s, 1e-9))


def check_options(name: str, options: Shockwave) -> None:
    for field, least in (("window", 1), ("resolve_every", 1)):
        value = getattr(options, field)
        if value < least:
            raise InvalidSpec(f"{name}: {field} is {value}; expected a whole number of at least {least}")
    for field, above in (("round_s", 0.0), ("time_limit_s", 0.0), ("makespan_weight", -1.0), ("fairness_power", -1.0)):
        value = getattr(options, field)
        if not above < value < math.inf or value < 0.0:
            raise InvalidSpec(
                f"{name}: {field} is {value}; expected a number {'above' if above == 0 else 'of at least'} 0"
            )
    if not 1.0 <= options.keep < math.inf:
        raise InvalidSpec(f"{name}: keep is {options.keep}; expected a number of at least 1")


# -- one decision ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bidders:
    """The jobs that a market is for, in an order that does not depend on their names, and what is expected of them."""

    ids: tuple[str, ...]
    #: Places in the columns of the snapshot.
    place_J: Ints
    width_J: Ints
    progress_J: Floats
    whole_s_J: Floats
    remaining_s_J: Floats


def bidders(view: Snapshot, forecasts: Mapping[str, JobForecast], *, least_s: float) -> Bidders:
    """All live jobs but those that hold GPUs and must not be stopped. No job is expected to end within `least_s`."""
    place = {job_id: at for at, job_id in enumerate(view.columns.ids)}
    jobs = [job for job in view.jobs.values() if not is_bound(job)]

    def key(job: Job) -> tuple[object, ...]:
        expected = forecasts[job.id]
        return job.submitted_at, job.spec.gpus, expected.whole_s, expected.progress, job.id

    jobs.sort(key=key)
    expected = [forecasts[job.id] for job in jobs]
    remaining_s_J = np.array([max(each.remaining_s, least_s) for each in expected], dtype=np.float64)
    return Bidders(
        ids=tuple(job.id for job in jobs),
        place_J=np.array([place[job.id] for job in jobs], dtype=np.int64),
        width_J=np.array([job.spec.gpus for job in jobs], dtype=np.int64),
        progress_J=np.array([each.progress for each in expected], dtype=np.float64),
        whole_s_J=np.array([max(each.whole_s, least_s) for each in expected], dtype=np.float64),
        remaining_s_J=remaining_s_J,
    )


#: A job that ran until this share of a round ago goes on if it is served.
JUST_NOW = 0.01

#: No job is expected to end within this share of a round.
SOONEST = 0.01


def _plan(view: Snapshot, options: Shockwave, forecasts: Mapping[str, JobForecast]) -> Plan:
    memory = MarketMemory.of(view)
    jobs = bidders(view, _not_guessed(forecasts, options), least_s=SOONEST * options.round_s)
    gpus = market_gpus(view)
    crowded = fair_finish.crowding(view, memory, jobs.ids, gpus)
    is_boundary = begins_round(view, memory, options.round_s)
    if is_boundary:
        if is_stale(view, memory, options.resolve_every):
            _buy(view, memory, jobs, options, crowded, gpus)
        order = _select(view, memory, jobs, options, gpus)
        # A job that goes on moves to a GPU type that has room and is faster for it, if that pays for the restart.
        left_s_J = np.array([forecasts[job_id].remaining_s for job_id in view.jobs])
        allocations, _ = run_first(view, np.concatenate([bound_places(view), order]), left_s_J=left_s_J)
        memory.ends_at = view.now + options.round_s
        memory.serve(allocations)
    else:
        order = _fill_order(memory, jobs, range(len(jobs.ids)))
        waiting = order[view.columns.held_J[order] == 0]
        allocations = start_waiting(view, waiting, skip=True)
    ids = [view.columns.ids[place] for place in order]
    bound = [job.id for job in view.jobs.values() if is_bound(job)]
    reasons = market_reasons(
        view, allocations, memory, order=[*bound, *ids], window=options.window, is_boundary=is_boundary
    )
    review_at = memory.ends_at if view.jobs else math.inf
    return Plan(allocations, reasons, bound=memory.gap, review_at=review_at, memo=memory.memo())


def market_gpus(view: Snapshot) -> int:
    """GPUs that jobs can bid for: those of open nodes but what jobs hold there that must not be stopped."""
    bound = sum(on_open_nodes(view, job.allocation) for job in view.jobs.values() if is_bound(job))
    return max(0, sum(node.usable for node in view.nodes.values()) - bound)


def begins_round(view: Snapshot, memory: MarketMemory, round_s: float) -> bool:
    """The round under way is over: by the clock, or because nothing runs in it any more."""
    return not view.allocations or view.now >= memory.ends_at - 1e-9 * round_s


def bound_places(view: Snapshot) -> Ints:
    """Places in the columns of the jobs that hold GPUs and must not be stopped."""
    columns = view.columns
    return np.flatnonzero((columns.held_J > 0) & (columns.preemptible_J == 0))


def is_stale(view: Snapshot, memory: MarketMemory, resolve_every: int) -> bool:
    """A purchase is due: a job came, ended or began another regime, or the last one is old."""
    regimes = {job_id: len(job.belief.regimes) for job_id, job in view.jobs.items()}
    return memory.regimes != regimes or memory.rounds_left <= 0 or memory.rounds_since >= resolve_every


def _not_guessed(forecasts: Mapping[str, JobForecast], options: Shockwave) -> Mapping[str, JobForecast]:
    """A job of which nothing is known is expected to take a window more at least."""
    window_s = options.window * options.round_s
    guessed = {name: each for name, each in forecasts.items() if each.guessed and each.remaining_s < window_s}
    return {**forecasts, **{name: at_least(each, window_s) for name, each in guessed.items()}}


def at_least(expected: JobForecast, remaining_s: float) -> JobForecast:
    """The same job with so much time left."""
    done_s = expected.whole_s - expected.remaining_s
    return replace(expected, whole_s=done_s + remaining_s, remaining_s=remaining_s)


def _buy(
    view: Snapshot,
    memory: MarketMemory,
    jobs: Bidders,
    options: Shockwave,
    crowded: fair_finish.Crowding,
    gpus: int,
) -> None:
    """Solve the market and remember what was bought."""
    market, weight_J = rigid_market(view, jobs, options, crowded, gpus)
    purchase = solve(market, time_limit_s=options.time_limit_s / 2.0)
    if not purchase.fair:
        purchase = solve(replace_weights(market, weight_J), time_limit_s=options.time_limit_s / 2.0)
        memory.weight = {name: value for name, value in zip(jobs.ids, weight_J.tolist(), strict=True) if value != 1.0}
    else:
        memory.weight = {}
    remember(memory, view, jobs.ids, purchase, purchase.count_JK.sum(axis=1), options.window)


def remember(
    memory: MarketMemory, view: Snapshot, ids: Sequence[str], purchase: Purchase, count_J: Ints, window: int
) -> None:
    memory.bought = {name: count for name, count in zip(ids, count_J.tolist(), strict=True) if count}
    memory.count = dict(memory.bought)
    memory.price, memory.gap = purchase.price, purchase.gap
    memory.rounds_left, memory.rounds_since, memory.received = window, 0, {}
    memory.regimes = {job_id: len(job.belief.regimes) for job_id, job in view.jobs.items()}


def rigid_market(
    view: Snapshot, jobs: Bidders, options: Shockwave, crowded: fair_finish.Crowding, gpus: int
) -> tuple[Market, Floats]:
    """The market with finish-time fairness as rows, and the weights to use should those be too many."""
    rounds_J = jobs.remaining_s_J / options.round_s
    left_J = np.maximum(1e-9, 1.0 - jobs.progress_J)
    age_s_J = np.array([view.now - view.jobs[job_id].submitted_at for job_id in jobs.ids])
    fair_s_J = crowded.fair_s(jobs.whole_s_J)
    slack_J = (fair_s_J - age_s_J) / options.round_s
    least_J = fair_finish.least_shares(slack_J, rounds_J, left_J, rounds=options.window, crowded=crowded)
    rho_J = fair_finish.lateness(age_s_J, jobs.remaining_s_J, fair_s_J, crowded)
    market = Market(
        width_JK=jobs.width_J[:, None],
        rate_JK=(left_J / rounds_J)[:, None],
        progress_J=1.0 - left_J,
        weight_J=np.array([view.jobs[job_id].spec.weight for job_id in jobs.ids]),
        least_J=least_J,
        gpus=gpus,
        rounds=options.window,
        makespan_weight=options.makespan_weight,
    )
    return market, fairness_weights(rho_J, rounds_J, power=options.fairness_power)


def replace_weights(market: Market, weight_J: Floats) -> Market:
    """The market without rows of fairness, and with weights in their place."""
    return replace(market, weight_J=market.weight_J * weight_J, least_J=np.zeros(len(weight_J)))


def _select(view: Snapshot, memory: MarketMemory, jobs: Bidders, options: Shockwave, gpus: int) -> Ints:
    """The order of service of a round, as places in the columns: jobs it was placed for, then the rest."""
    count_J = np.array([memory.count.get(job_id, 0) for job_id in jobs.ids], dtype=np.int64)
    weight_J = np.array([memory.weight.get(job_id, 1.0) for job_id in jobs.ids])
    held_J, last_ran_J = view.columns.held_J[jobs.place_J], view.columns.last_ran_at_J[jobs.place_J]
    runs_J = (held_J > 0) | (last_ran_J >= view.now - JUST_NOW * options.round_s)
    # The rule of Smith: weight over work. It minimises weighted completion times on one machine.
    score_J = weight_J / (jobs.remaining_s_J * jobs.width_J) * np.where(runs_J, options.keep, 1.0)
    rank = np.argsort(-score_J, kind="stable")
    chosen_J = choose(count_J, jobs.width_J, rank.tolist(), gpus=gpus, rounds=max(1, memory.rounds_left))
    first = jobs.place_J[rank[chosen_J[rank]]]
    return np.concatenate([first, _fill_order(memory, jobs, np.flatnonzero(~chosen_J).tolist())])


def _fill_order(memory: MarketMemory, jobs: Bidders, among: Sequence[int]) -> Ints:
    """The order in which jobs get GPUs that are left: bought rounds first, then the longest expected time left."""
    count_J = np.array([memory.count.get(job_id, 0) for job_id in jobs.ids], dtype=np.int64)
    listed = sorted(among, key=lambda job: (count_J[job] == 0, -jobs.remaining_s_J[job], job))
    return jobs.place_J[np.array(listed, dtype=np.int64)]
