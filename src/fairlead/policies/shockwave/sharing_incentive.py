"""Sharing incentive by construction: which jobs a round has to serve so that each ends as soon as on 1/N of the cluster.

Each live job is promised to end no later than in the reference world (`reference_share`), times 1 + tolerance. A job
with `left` work, of which it does `speed` a second on `width` GPUs, has to do at least

    forced(h) = max(0, left - speed max(0, due - h))

of it within h seconds. Counted in GPU-seconds (work times width / speed), the promises can be kept if for every h

    sum forced(h)  <=  GPU-seconds that the reference world spends within h on the same jobs,          (certificate)

jobs that ended early in the real cluster included on the right. The right side is never more than the GPUs there are.
It is not simply those GPUs: what the reference world leaves idle is claimed by the next job that comes, whereas a new
job brings as much to the right side as to the left, and slows the reference world, its deadlines and the demand alike.
So a new job does not break the certificate; that is the argument of virtual finish times (Fair Sojourn Protocol,
Friedman and Henderson 2003), with gangs, and jobs that cannot use the whole cluster.

A round keeps the certificate if it gives, for every h, what the reference world spends in a round to jobs with forced
work within h. The market's choice is left alone if it does. Otherwise the jobs with the least laxity (time to the
deadline, less time to run) come first, as few as are enough. Filling a round in such an order leaves fewer GPUs free
than the widest gang that waits has, which is why the reference world divides so many less.

Where beliefs were wrong and the promises cannot be kept together, all of them are stretched alike, as little as is
enough.

Legend: J live jobs, K sizes of a job, H horizons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Floats
from fairlead.policies.shockwave.market import Ints
from fairlead.policies.shockwave.reference_share import ReferenceForecast

#: Horizons: each of so many rounds, then each by this factor longer than the one before.
_EACH, _FACTOR = 48, 1.08

#: Promises that cannot be kept are stretched to this at the most; beyond it the jobs with the least laxity come first.
_MOST_STRETCH = 64.0


@dataclass(frozen=True)
class Promises:
    """Live jobs, what is left of their work, and when they end in the reference world. Times count from now."""

    width_JK: Ints
    #: Share of the work done in a second; 0 where there is no such size.
    speed_JK: Floats
    left_J: Floats
    #: Seconds of training that a start takes, for jobs that do not run.
    pause_s_J: Floats
    #: Seconds since submission, and to the end in the reference world (negative if it has ended there).
    age_s_J: Floats
    ends_in_s_J: Floats
    round_s: float
    #: The reference world ahead, from now on, and the GPU-seconds that its jobs' whole work takes at the least. For
    #: each of its jobs that is live its place here, else -1.
    now: float
    #: GPUs that the reference world divides.
    gpus: int
    reference: ReferenceForecast
    cost_V: Floats
    place_V: Ints

    def spent(self, gpu_s_J: Floats, horizon_s_H: Floats, stretch: float) -> Floats:
        """GPU-seconds within each horizon: of the reference world slowed by `stretch`, and of what that leaves idle."""
        cost_V = np.where(self.place_V >= 0, gpu_s_J[self.place_V], self.cost_V) if len(gpu_s_J) else self.cost_V
        slowed_H = self.reference.spent(cost_V, self.now + horizon_s_H / stretch)
        return slowed_H + self.gpus * horizon_s_H * max(0.0, 1.0 - 1.0 / stretch)

    @property
    def fastest_s(self) -> Floats:
        """Seconds to the end on the fastest size; infinite for a job that cannot run."""
        best_J = self.speed_JK.max(axis=1, initial=0.0)
        time_s_J: Floats = np.divide(self.left_J, best_J, out=np.full(len(best_J), np.inf), where=best_J > 0.0)
        return time_s_J + self.pause_s_J

    def due_s(self, stretch: float) -> Floats:
        """Seconds to the deadline: the time in the reference world, so many times; never sooner than is possible."""
        promised_s_J = stretch * (self.age_s_J + self.ends_in_s_J) - self.age_s_J
        due_s_J: Floats = np.maximum(promised_s_J, self.fastest_s)
        return due_s_J


@dataclass(frozen=True, slots=True)
class Demand:
    """What the promises ask for, at one stretch."""

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

    @property
    def need_H(self) -> Floats:
        """GPU-seconds of forced work that this round has to do for the certificate to hold at its end."""
        need: Floats = self.forced_JH.sum(axis=0) - (self.spent_H - self.spent_H[0])
        return np.minimum(need, self.spent_H[0])


def cheapest_in_time(promises: Promises, due_s_J: Floats) -> Ints:
    """The size with the fewest GPU-seconds among those on which a job ends in time; the fastest if there is none."""
    width_JK, speed_JK = promises.width_JK, promises.speed_JK
    needs_s_JK = np.full(speed_JK.shape, np.inf)
    cost_JK = np.full(speed_JK.shape, np.inf)
    np.divide(promises.left_J[:, None], speed_JK, out=needs_s_JK, where=speed_JK > 0.0)
    np.divide(width_JK, speed_JK, out=cost_JK, where=speed_JK > 0.0)
    in_time_JK = needs_s_JK + promises.pause_s_J[:, None] <= due_s_J[:, None] * (1.0 + 1e-9)
    first_J = np.where(in_time_JK, cost_JK, np.inf).argmin(axis=1)
    return np.where(in_time_JK.any(axis=1), first_J, needs_s_JK.argmin(axis=1)).astype(np.int64)


def demand(promises: Promises, *, stretch: float) -> Demand:
    each = np.arange(len(promises.left_J))
    due_s_J = promises.due_s(stretch)
    size_J = cheapest_in_time(promises, due_s_J)
    speed_J, width_J = promises.speed_JK[each, size_J], promises.width_JK[each, size_J]
    runs_J = speed_J > 0.0
    gpu_s_J = np.divide(width_J, speed_J, out=np.zeros(len(each)), where=runs_J)
    work_J = np.where(runs_J, promises.left_J + speed_J * promises.pause_s_J, 0.0)
    time_s_J = np.divide(work_J, speed_J, out=np.zeros(len(each)), where=runs_J)
    due_s_J = np.where(runs_J, due_s_J, 0.0)
    horizon_s_H = promises.round_s * _horizons(float(np.max(due_s_J, initial=0.0)) / promises.round_s)
    slack_s_JH = np.maximum(0.0, due_s_J[:, None] - horizon_s_H)
    forced_JH = gpu_s_J[:, None] * np.clip(work_J[:, None] - speed_J[:, None] * slack_s_JH, 0.0, None)
    return Demand(stretch, size_J, gpu_s_J, due_s_J - time_s_J, forced_JH, promises.spent(gpu_s_J, horizon_s_H, stretch))


def _horizons(rounds: float) -> Floats:
    near, far = np.arange(1.0, _EACH + 1.0), []
    at = float(_EACH)
    while at < rounds:
        at *= _FACTOR
        far.append(at)
    return np.concatenate([near, far])


def tightest(promises: Promises, *, tolerance: float) -> Demand:
    """The demand at 1 + tolerance, or at the least stretch above it for which the certificate holds."""
    found = demand(promises, stretch=1.0 + tolerance)
    if found.holds:
        return found
    low, high = 1.0 + tolerance, 2.0 * (1.0 + tolerance)
    while not (found := demand(promises, stretch=high)).holds:
        low, high = high, 2.0 * high
        if high > _MOST_STRETCH:
            return found
    while high - low > 0.01 * low:
        middle = 0.5 * (low + high)
        tried = demand(promises, stretch=middle)
        low, high, found = (low, middle, tried) if tried.holds else (middle, high, found)
    return found


def served_first(
    asked: Demand,
    promises: Promises,
    width_J: Ints,
    serve: Callable[[Sequence[int]], Sequence[tuple[int, int]]],
    *,
    gpus: int,
) -> list[int]:
    """Jobs that a round has to serve in any case, on their widths, the least laxity first; none if none need be.

    `serve` tells which jobs a round then serves, those included, and on how many GPUs.
    """
    order = [int(at) for at in np.argsort(asked.laxity_s_J, kind="stable") if asked.gpu_s_J[at] > 0.0]
    enough = 1e-6 * promises.round_s
    need_H = asked.need_H
    first: list[int] = []
    while True:
        served = serve(first)
        mine, known = set(first), {at for at, _ in served}
        short_H = need_H - sum((_given(asked, promises, *each) for each in served), np.zeros(1))
        room = gpus - sum(int(width_J[at]) for at in first)
        before = len(first)
        for horizon in np.flatnonzero(short_H > enough).tolist():
            for at in order:
                if short_H[horizon] <= enough:
                    break
                if at in mine or asked.forced_JH[at, horizon] <= 0.0 or width_J[at] > room:
                    continue
                first.append(at)
                mine.add(at)
                room -= int(width_J[at])
                if at not in known:
                    short_H = short_H - _given(asked, promises, at, int(width_J[at]))
        if len(first) == before:
            return first


def _given(asked: Demand, promises: Promises, at: int, width: int) -> Floats:
    """GPU-seconds of a job's forced work that a round on so many GPUs does, within each horizon."""
    sizes_K = promises.width_JK[at]
    speed = float(promises.speed_JK[at][sizes_K == width].max(initial=0.0))
    train_s = max(0.0, promises.round_s - float(promises.pause_s_J[at]))
    # A start costs what was added to the work for it.
    work = speed * train_s + float(promises.speed_JK[at, asked.size_J[at]]) * float(promises.pause_s_J[at])
    given_H: Floats = np.minimum(asked.forced_JH[at], asked.gpu_s_J[at] * work)
    return given_H
