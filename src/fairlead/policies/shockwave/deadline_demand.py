"""Deadlines over gangs and elastic jobs: which jobs the next round has to serve so that all can still be met.

A job with `left` work, of which it does `speed` a second on `width` GPUs, has to do at least

    forced(h) = max(0, left - speed max(0, due - h))

of it within h seconds. Counted in GPU-seconds (work times width / speed) the deadlines can be met if for every h

    sum forced(h)  <=  supply(h),                                                                      (certificate)

the GPU-seconds that may be spent on these jobs within h. A round keeps the certificate if it gives, for every h, what
the supply has in a round to jobs with forced work within h. The market's choice is left alone if it does. Otherwise the
jobs with the least laxity (time to the deadline, less time to run) come first, as few as are enough. A round filled in
such an order leaves fewer GPUs free than the widest job that waits needs.

Deadlines that cannot be met together are stretched alike, as little as is enough.

Legend: J live jobs, K sizes of a job, H horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.core.snapshot import Floats
from fairlead.policies.shockwave.market import Ints

#: Horizons: each of so many rounds, then each by this factor longer than the one before.
_EACH, _FACTOR = 48, 1.08

#: No deadline is further away than so many rounds, unless the work takes longer.
_FURTHEST = 1e5

#: Deadlines that cannot be kept are stretched to this at the most; beyond it the jobs with the least laxity come first.
_MOST_STRETCH = 64.0


#: GPU-seconds within each horizon (in seconds), from the GPU-seconds of each job's whole work and the stretch.
Supply = Callable[[Floats, Floats, float], Floats]


@dataclass(frozen=True)
class Deadlines:
    """Live jobs, what is left of their work, and when they should end."""

    width_JK: Ints
    #: Share of the work done in a second; 0 where there is no such size.
    speed_JK: Floats
    left_J: Floats
    #: Seconds of training that a start takes, for jobs that do not run.
    pause_s_J: Floats
    #: Seconds since submission, and from it to the end that is due.
    age_s_J: Floats
    fair_s_J: Floats
    round_s: float
    supply: Supply

    @property
    def fastest_s(self) -> Floats:
        """Seconds to the end on the fastest size; infinite for a job that cannot run."""
        best_J = self.speed_JK.max(axis=1, initial=0.0)
        time_s_J: Floats = np.divide(self.left_J, best_J, out=np.full(len(best_J), np.inf), where=best_J > 0.0)
        return time_s_J + self.pause_s_J

    def due_s(self, stretch: float) -> Floats:
        """Seconds to the deadline: the fair time, so many times; never sooner than is possible."""
        promised_s_J = stretch * self.fair_s_J - self.age_s_J
        due_s_J: Floats = np.maximum(promised_s_J, self.fastest_s)
        return due_s_J


def whole_supply(gpus: int) -> Supply:
    """All GPUs."""
    return lambda _gpu_s_J, horizon_s_H, _stretch: gpus * horizon_s_H


@dataclass(frozen=True)
class Demand:
    """What the jobs ask for, at one stretch."""

    stretch: float
    #: The size on which each job keeps its promise with the fewest GPU-seconds, and these GPU-seconds for all its work.
    size_J: Ints
    gpu_s_J: Floats
    laxity_s_J: Floats
    #: GPU-seconds of each job within each horizon, and what the reference world spends on all.
    forced_JH: Floats
    spent_H: Floats

    @property
    def holds(self) -> bool:
        """The certificate of the module."""
        return bool((self.forced_JH.sum(axis=0) <= self.spent_H * (1.0 + 1e-6) + 1e-6).all())

    @cached_property
    def order(self) -> list[int]:
        """Jobs that can run, the least laxity first."""
        return [int(at) for at in np.argsort(self.laxity_s_J, kind="stable") if self.gpu_s_J[at] > 0.0]

    @cached_property
    def need(self) -> Floats:
        """GPU-seconds of forced work that this round has to do for the certificate to hold at its end."""
        need = self.forced_JH.sum(axis=0) - (self.spent_H - self.spent_H[0])
        need_H: Floats = np.minimum(need, self.spent_H[0])
        return need_H


#: A GPU less is worth this share of the GPU-seconds: of sizes that cost the same, the narrowest fits best.
_NARROW = 1e-3


def cheapest_in_time(jobs: Deadlines, due_s_J: Floats) -> Ints:
    """The size with the fewest GPU-seconds among those on which a job ends in time; the fastest if there is none."""
    width_JK, speed_JK = jobs.width_JK, jobs.speed_JK
    needs_s_JK = np.full(speed_JK.shape, np.inf)
    cost_JK = np.full(speed_JK.shape, np.inf)
    np.divide(jobs.left_J[:, None], speed_JK, out=needs_s_JK, where=speed_JK > 0.0)
    np.divide(width_JK, speed_JK, out=cost_JK, where=speed_JK > 0.0)
    cost_JK *= 1.0 + _NARROW * width_JK
    in_time_JK = needs_s_JK + jobs.pause_s_J[:, None] <= due_s_J[:, None] * (1.0 + 1e-9)
    first_J = np.where(in_time_JK, cost_JK, np.inf).argmin(axis=1)
    size_J: Ints = np.where(in_time_JK.any(axis=1), first_J, needs_s_JK.argmin(axis=1)).astype(np.int64)
    return size_J


def demand(jobs: Deadlines, *, stretch: float) -> Demand:
    each = np.arange(len(jobs.left_J))
    due_s_J = jobs.due_s(stretch)
    size_J = cheapest_in_time(jobs, due_s_J)
    speed_J, width_J = jobs.speed_JK[each, size_J], jobs.width_JK[each, size_J]
    runs_J = speed_J > 0.0
    gpu_s_J = np.divide(width_J, speed_J, out=np.zeros(len(each)), where=runs_J)
    work_J = np.where(runs_J, jobs.left_J + speed_J * jobs.pause_s_J, 0.0)
    time_s_J = np.divide(work_J, speed_J, out=np.zeros(len(each)), where=runs_J)
    due_s_J = np.where(runs_J, np.minimum(due_s_J, np.maximum(time_s_J, _FURTHEST * jobs.round_s)), 0.0)
    horizon_s_H = jobs.round_s * _horizons(float(np.max(due_s_J, initial=0.0)) / jobs.round_s)
    slack_s_JH = np.maximum(0.0, due_s_J[:, None] - horizon_s_H)
    forced_JH = gpu_s_J[:, None] * np.clip(work_J[:, None] - speed_J[:, None] * slack_s_JH, 0.0, None)
    return Demand(stretch, size_J, gpu_s_J, due_s_J - time_s_J, forced_JH, jobs.supply(gpu_s_J, horizon_s_H, stretch))


def _horizons(rounds: float) -> Floats:
    near, far = np.arange(1.0, _EACH + 1.0), []
    at = float(_EACH)
    while at < rounds:
        at *= _FACTOR
        far.append(at)
    return np.concatenate([near, far])


def tightest(jobs: Deadlines, *, stretch: float) -> Demand:
    """The demand at this stretch, or at the least one above it for which the certificate holds."""
    found = demand(jobs, stretch=stretch)
    if found.holds:
        return found
    low, high = stretch, 2.0 * stretch
    while not (found := demand(jobs, stretch=high)).holds:
        low, high = high, 2.0 * high
        if high > _MOST_STRETCH:
            return found
    while high - low > 0.01 * low:
        middle = 0.5 * (low + high)
        tried = demand(jobs, stretch=middle)
        low, high, found = (low, middle, tried) if tried.holds else (middle, high, found)
    return found


#: Which jobs a round serves, and on how many GPUs, if those given run in any case.
Serve = Callable[[Mapping[int, int]], Mapping[int, int]]


def served_first(demands: Sequence[tuple[Demand, Ints]], jobs: Deadlines, serve: Serve, *, gpus: int) -> dict[int, int]:
    """Jobs that a round has to serve in any case, and on how many GPUs, for it to meet the demands.

    The first demand goes before the next. Each has the GPUs on which it would have a job served.
    """
    first: dict[int, int] = {}
    for asked, width_J in demands:
        while added := _short(asked, jobs, width_J, first, serve(first), gpus):
            first |= added
        first |= _needed(asked, jobs, serve(first))
    return first


def _short(
    asked: Demand, jobs: Deadlines, width_J: Ints, first: Mapping[int, int], served: Mapping[int, int], gpus: int
) -> dict[int, int]:
    """Jobs to add, the least laxity first, since what is served is not enough."""
    enough = 1e-6 * jobs.round_s
    short_H = asked.need - _given_to(served, asked, jobs)
    room, added = gpus - sum(first.values()), dict[int, int]()
    for horizon in np.flatnonzero(short_H > enough).tolist():
        for at in asked.order:
            if short_H[horizon] <= enough:
                break
            width = int(width_J[at])
            if at in first or at in added or asked.forced_JH[at, horizon] <= 0.0 or width > room:
                continue
            added[at] = width
            room -= width
            if at not in served:
                short_H = short_H - _given(asked, jobs, at, width)
    return added


def _needed(asked: Demand, jobs: Deadlines, served: Mapping[int, int]) -> dict[int, int]:
    """Those of the served jobs without which the demand would not be met."""
    spare_H = np.maximum(0.0, _given_to(served, asked, jobs) - asked.need)
    needed: dict[int, int] = {}
    for at in reversed(asked.order):
        if at not in served:
            continue
        given_H = _given(asked, jobs, at, served[at])
        if (given_H <= spare_H + 1e-6 * jobs.round_s).all():
            spare_H = np.maximum(0.0, spare_H - given_H)
        else:
            needed[at] = served[at]
    return needed


def _given_to(served: Mapping[int, int], asked: Demand, jobs: Deadlines) -> Floats:
    given: Floats = sum((_given(asked, jobs, at, width) for at, width in served.items()), np.zeros(len(asked.spent_H)))
    return given


def _given(asked: Demand, jobs: Deadlines, at: int, width: int) -> Floats:
    """GPU-seconds of a job's forced work that a round on so many GPUs does, within each horizon."""
    sizes_K = jobs.width_JK[at]
    speed = float(jobs.speed_JK[at][sizes_K == width].max(initial=0.0))
    train_s = max(0.0, jobs.round_s - float(jobs.pause_s_J[at]))
    # A start costs what was added to the work for it.
    work = speed * train_s + float(jobs.speed_JK[at, asked.size_J[at]]) * float(jobs.pause_s_J[at])
    given_H: Floats = np.minimum(asked.forced_JH[at], asked.gpu_s_J[at] * work)
    return given_H
