"""Shockwave's market over elastic jobs: a round's share may be any number of GPUs that a job can use.

Beyond the paper, whose jobs have a fixed number. A job bids with its believed speed on each of its sizes (`rates`); the
market buys rounds on sizes, so that a job is narrow while GPUs are dear and wide while they are cheap.

A round serves what was bought, unless that breaks a deadline of the sharing incentive, of finish-time fairness or of
the makespan (`sharing_incentive`). The market has a row for each job, too: by the end of the window it has done so much
that 1/N of the cluster could do the rest in time. Where these rows do not fit together, jobs that would end after `aim`
of their fair finish time bid with a power of their lateness instead, as in the paper.

Legend: J jobs that bid, K sizes of a job.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Plan
from fairlead.policies.rates import BelievedRates, RateSource
from fairlead.policies.shockwave import fair_finish
from fairlead.policies.shockwave.deadline_demand import served_first, tightest
from fairlead.policies.shockwave.elastic_bids import ElasticBidders, asked_size, bidders, cheapest_size
from fairlead.policies.shockwave.market import Ints, Market, Purchase, fairness_weights, solve
from fairlead.policies.shockwave.market_reasons import market_reasons
from fairlead.policies.shockwave.memory import MarketMemory
from fairlead.policies.shockwave.reference_share import ReferenceWorld, Speeds, slice_speed
from fairlead.policies.shockwave.resized_placement import place_sizes
from fairlead.policies.shockwave.rigid import (
    Shockwave,
    begins_round,
    check_options,
    is_stale,
    market_gpus,
    remember,
    replace_weights,
)
from fairlead.policies.shockwave.schedule import choose
from fairlead.policies.shockwave.sharing_incentive import deadlines, fairness_demand, makespan_demand
from fairlead.policies.wait_reason import is_bound

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class ShockwaveElastic(Shockwave):
    """The market over elastic jobs: rounds on any number of GPUs, and no job worse off than with 1/N of the cluster."""

    adapts: ClassVar[str] = "gpus"

    #: A job counts as late from this share of its fair finish time on: what narrow jobs save is spent on ending early.
    aim: float = 0.7
    #: How much later than with 1/N of the cluster a job may end, as a share of that time; infinite: no promise.
    tolerance: float = 0.1
    _rates: BelievedRates = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options("shockwave-elastic", self)
        if not (self.tolerance >= 0.0 and 0.0 < self.aim < math.inf):
            raise InvalidSpec(
                f"shockwave-elastic: tolerance is {self.tolerance} and aim {self.aim}; expected at least 0 and above 0"
            )

    def plan(self, view: Snapshot) -> Plan:
        return _plan(view, self, self._rates)


# -- one decision ------------------------------------------------------------------------------------------------------


def _plan(view: Snapshot, options: ShockwaveElastic, rates: RateSource) -> Plan:
    memory = MarketMemory.of(view)
    gpus = market_gpus(view)
    is_boundary = begins_round(view, memory, options.round_s)
    jobs = bidders(view, rates, gpus, options)
    reference = _referred(view, memory, jobs, gpus, options.round_s)
    crowded = fair_finish.crowding(view, memory, jobs.ids, gpus)
    if is_boundary:
        if is_stale(view, memory, options.resolve_every):
            due_J = _due(view, reference, jobs)
            _buy(view, memory, jobs, options, due_J, crowded, gpus)
        order, sizes = _select(view, memory, jobs, reference, crowded, options, gpus)
        memory.ends_at = view.now + options.round_s
    else:
        order = _fill_order(memory, jobs, range(len(jobs.jobs)))
        sizes = {job.id: job.allocation.total for job in jobs.jobs if job.allocation}
    wider = _wider(jobs) if is_boundary else {}
    names = [jobs.jobs[at].id for at in order]
    allocations = place_sizes(view, sizes, names, spare=_spare(memory, jobs), wider=wider)
    if is_boundary:
        memory.serve(allocations)
    bound = [job.id for job in view.jobs.values() if is_bound(job)]
    reasons = market_reasons(
        view,
        allocations,
        memory,
        order=[*bound, *(jobs.jobs[at].id for at in order)],
        window=options.window,
        is_boundary=is_boundary,
        reference_ends=cache(lambda: reference.forecast().finish),
    )
    memory.reference = reference.memo()
    review_at = memory.ends_at if view.jobs else math.inf
    return Plan(allocations, reasons, bound=memory.gap, review_at=review_at, memo=memory.memo())


#: A start takes no more than this share of a turn in the reference world: a longer one would get longer turns.
_LONGEST_START = 0.5


def _referred(view: Snapshot, memory: MarketMemory, jobs: ElasticBidders, gpus: int, round_s: float) -> ReferenceWorld:
    """The reference world, now."""
    world = ReferenceWorld.of(memory.reference, view.now)
    world.advance(view.now)
    live = {}
    for at, job in enumerate(jobs.jobs):
        sizes = [int(width) for width in jobs.width_JK[at] if width]
        start = min(_LONGEST_START, (job.start_s or 0.0) / round_s)
        live[job.id] = Speeds(sizes, jobs.speed_JK[at, : len(sizes)].tolist(), start)
    left = {job.id: 1.0 - progress for job, progress in zip(jobs.jobs, jobs.progress_J.tolist(), strict=True)}
    world.update(live, gpus, left=left, guessed=jobs.guessed)
    return world


def _due(view: Snapshot, world: ReferenceWorld, jobs: ElasticBidders) -> Floats:
    """When each job ends in the reference world; now for those that have ended there."""
    ends = world.forecast().finish
    return np.array([ends.get(job.id, view.now) for job in jobs.jobs], dtype=np.float64)


def _kept_width(jobs: ElasticBidders, size_J: Ints) -> Ints:
    """GPUs of each job on that size; what it holds where that is as fast and not more than twice as many."""
    width_J = jobs.width_JK[np.arange(len(size_J)), size_J]
    for at, job in enumerate(jobs.jobs):
        held = job.allocation.total
        speed = jobs.speed_JK[at][jobs.width_JK[at] == held].max(initial=0.0)
        if 0 < held <= 2 * width_J[at] and speed >= jobs.speed_JK[at, size_J[at]]:
            width_J[at] = held
    return width_J


def _buy(
    view: Snapshot,
    memory: MarketMemory,
    jobs: ElasticBidders,
    options: ShockwaveElastic,
    due_J: Floats,
    crowded: fair_finish.Crowding,
    gpus: int,
) -> None:
    left_J = np.maximum(1e-9, 1.0 - jobs.progress_J)
    slice_gpus = gpus / max(1, len(jobs.jobs))
    fair_J = np.array(
        [
            max(slice_speed(Speeds([int(w) for w in width if w], speed[width > 0].tolist()), slice_gpus), 1e-12)
            for width, speed in zip(jobs.width_JK, jobs.speed_JK, strict=True)
        ]
    )
    submitted_J = np.array([job.submitted_at for job in jobs.jobs])
    window_s = options.window * options.round_s
    # Work to be done by the end of the window: what 1/N of the cluster could no longer do afterwards in time.
    last_J = submitted_J + (due_J - submitted_J) * (1.0 + options.tolerance)
    after_J = np.maximum(0.0, last_J - view.now - window_s) * fair_J
    least_J = np.maximum(0.0, left_J - after_J)
    age_s_J = view.now - submitted_J
    rho_J = fair_finish.lateness(age_s_J, jobs.remaining_s_J, crowded.fair_s(jobs.whole_s_J), crowded) / options.aim
    due_s_J = crowded.fair_s(jobs.whole_s_J) - (view.now - submitted_J)
    market = Market(
        width_JK=jobs.width_JK,
        rate_JK=np.where(_worthwhile(jobs, left_J, due_s_J, gpus), jobs.speed_JK, 0.0) * options.round_s,
        progress_J=1.0 - left_J,
        weight_J=np.array([job.spec.weight for job in jobs.jobs]),
        least_J=least_J,
        gpus=gpus,
        rounds=options.window,
        makespan_weight=options.makespan_weight,
    )
    purchase = solve(market, time_limit_s=options.time_limit_s / 2.0)
    weight_J = fairness_weights(rho_J, left_J / fair_J / options.round_s, power=options.fairness_power)
    if not purchase.fair:
        purchase = solve(replace_weights(market, weight_J), time_limit_s=options.time_limit_s / 2.0)
        memory.weight = {job.id: w for job, w in zip(jobs.jobs, weight_J.tolist(), strict=True) if w != 1.0}
    else:
        memory.weight = {}
    size_J, count_J = _settled(jobs, market, purchase)
    memory.gpus = {job.id: size for job, size in zip(jobs.jobs, size_J.tolist(), strict=True)}
    remember(memory, view, jobs.ids, purchase, count_J, options.window)


#: A size is bid for if a job that runs on it for all but this share of its time still ends in time.
_MARGIN = 1.0


def _worthwhile(jobs: ElasticBidders, left_J: Floats, due_s_J: Floats, gpus: int) -> Bools:
    """Sizes that are bid for: those on which a job can end by its fair finish, and what it asked for.

    While not all jobs can run at once none is wider than it asked for: a job that is late would buy speed with GPUs
    that do more for other jobs.
    """
    asked_J = np.array(
        [asked_size(job, [int(w) for w in width_K if w]) for job, width_K in zip(jobs.jobs, jobs.width_JK, strict=True)]
    )
    is_crowded = sum(cheapest_size(jobs, at) for at in range(len(jobs.jobs))) > gpus
    needs_s_JK = np.full(jobs.speed_JK.shape, np.inf)
    np.divide(
        np.broadcast_to(left_J[:, None], needs_s_JK.shape), jobs.speed_JK, out=needs_s_JK, where=jobs.speed_JK > 0.0
    )
    in_time_JK = _MARGIN * needs_s_JK <= due_s_J[:, None]
    if is_crowded:
        in_time_JK &= jobs.width_JK <= asked_J[:, None]
    worth_JK: Bools = in_time_JK | (jobs.width_JK == asked_J[:, None])
    return worth_JK


def _settled(jobs: ElasticBidders, market: Market, purchase: Purchase) -> tuple[Ints, Ints]:
    """One size for the window for each job, and the rounds on it that do the work it bought.

    Of the sizes on which that work fits into the window it is the one that takes the fewest GPU-rounds: a market that
    buys rounds on several sizes means one between them. A running job keeps its size if that does the work, too, and is
    not more than twice the other.
    """
    size_J, count_J = np.zeros(len(jobs.jobs), dtype=np.int64), np.zeros(len(jobs.jobs), dtype=np.int64)
    for at, job in enumerate(jobs.jobs):
        work = float(purchase.count_JK[at] @ market.rate_JK[at])
        if work <= 0.0:
            size_J[at] = job.allocation.total or cheapest_size(jobs, at)
            continue
        work = min(work, float(market.left[at]))
        rate_K, width_K = market.rate_JK[at], market.width_JK[at]
        most = float(market.rounds + 1)
        rounds_K = np.divide(work, rate_K, out=np.full(len(rate_K), most + 1.0), where=market.most[at] > 0)
        fits_K = np.ceil(rounds_K - _PART) <= market.rounds
        if not fits_K.any():  # rounds on several sizes, the fastest for part of the time: it gets that for all of it
            fits_K = rounds_K <= rounds_K.min()
        best = int(np.argmin(np.where(fits_K, np.ceil(rounds_K - _PART) * width_K, np.inf)))
        held = int(np.argmax(width_K == job.allocation.total)) if job.allocation else best
        if fits_K[held] and width_K[best] <= 2 * width_K[held] and width_K[held] <= 2 * width_K[best]:
            best = held
        size_J[at] = width_K[best]
        count_J[at] = max(1, math.ceil(rounds_K[best] - _PART))
    return size_J, np.minimum(count_J, market.rounds)


#: A part of a round that is not worth one of its own.
_PART = 0.25


def _spare(memory: MarketMemory, jobs: ElasticBidders) -> Mapping[str, int]:
    """What a job gets of GPUs that are left over: what it buys its rounds with, or its cheapest size."""
    return {
        job.id: memory.gpus[job.id] if memory.count.get(job.id) else cheapest_size(jobs, at)
        for at, job in enumerate(jobs.jobs)
    }


def _wider(jobs: ElasticBidders) -> Mapping[str, Mapping[int, int]]:
    """By job and number of GPUs: the next larger size that pays for a restart.

    The longest jobs come first: with GPUs that no other job wants they are what the makespan rests on.
    """
    found: dict[str, dict[int, int]] = {}
    for at in np.argsort(-jobs.remaining_s_J, kind="stable").tolist():
        job, steps = jobs.jobs[at], {}
        sizes = [(int(w), float(v)) for w, v in zip(jobs.width_JK[at], jobs.speed_JK[at], strict=True) if w]
        pause_s = max(job.start_s or 0.0, job.rescale_s or 0.0)
        left = max(0.0, 1.0 - float(jobs.progress_J[at]))
        for (small, slow), (large, fast) in itertools.pairwise(sizes):
            saved_s = left / slow - left / fast if slow > 0.0 and fast > slow else 0.0
            if saved_s > _WORTH * pause_s and fast > slow * (1.0 + _GROWTH * (large / small - 1.0)):
                steps[small] = large
        if steps:
            found[job.id] = steps
    return found


#: A job grows into idle GPUs if that saves it so many times the pause, and this share of what as many GPUs could.
_WORTH, _GROWTH = 5.0, 0.2


def _select(
    view: Snapshot,
    memory: MarketMemory,
    jobs: ElasticBidders,
    world: ReferenceWorld,
    crowded: fair_finish.Crowding,
    options: ShockwaveElastic,
    gpus: int,
) -> tuple[list[int], dict[str, int]]:
    """The order of service of a round, and the GPUs of the jobs that the round was placed for."""
    count_J = np.array([memory.count.get(job.id, 0) for job in jobs.jobs], dtype=np.int64)
    bought_J = np.array([memory.gpus.get(job.id, 0) or cheapest_size(jobs, at) for at, job in enumerate(jobs.jobs)])
    rank = np.argsort(-_score(memory, jobs, bought_J, options), kind="stable").tolist()
    rounds = max(1, memory.rounds_left)

    def served(first: Mapping[int, int]) -> dict[int, int]:
        width_J = bought_J.copy()
        width_J[list(first)] = list(first.values())
        runs_J = choose(count_J, width_J, rank, gpus=gpus, rounds=rounds, first=list(first))
        return {at: int(width_J[at]) for at in [*first, *rank] if runs_J[at]}

    promised = deadlines(view, world, jobs, round_s=options.round_s)
    demands = [fairness_demand(promised, jobs, crowded, gpus), makespan_demand(promised, gpus)]
    if math.isfinite(options.tolerance):
        demands.insert(0, tightest(promised, stretch=1.0 + options.tolerance))
    asked = [(each, _kept_width(jobs, each.size_J)) for each in demands]
    sizes = served(served_first(asked, promised, served, gpus=gpus))
    rest = _fill_order(memory, jobs, [at for at in rank if at not in sizes])
    return [*sizes, *rest], {jobs.jobs[at].id: width for at, width in sizes.items()}


def _score(memory: MarketMemory, jobs: ElasticBidders, width_J: Ints, options: ShockwaveElastic) -> Floats:
    """The rule of Smith: weight over work. Running jobs rank higher by `keep`."""
    weight_J = np.array([memory.weight.get(job.id, 1.0) for job in jobs.jobs])
    runs_J = np.array([bool(job.allocation) for job in jobs.jobs])
    best_J = jobs.speed_JK.max(axis=1, initial=0.0)
    left_J = np.maximum(1e-9, 1.0 - jobs.progress_J)
    remaining_s_J = np.divide(left_J, best_J, out=np.full(len(left_J), np.inf), where=best_J > 0.0)
    score_J: Floats = weight_J / np.maximum(remaining_s_J * width_J, 1e-9) * np.where(runs_J, options.keep, 1.0)
    return score_J


def _fill_order(memory: MarketMemory, jobs: ElasticBidders, among: Sequence[int]) -> list[int]:
    """The order in which jobs get GPUs that are left: bought rounds first, then the longest expected time left."""
    best_J = jobs.speed_JK.max(axis=1, initial=0.0)
    left_s_J = np.maximum(0.0, 1.0 - jobs.progress_J) / np.maximum(best_J, 1e-300)
    return sorted(among, key=lambda at: (memory.count.get(jobs.jobs[at].id, 0) == 0, -left_s_J[at], at))
