"""The world in which every job has 1/N of the cluster to itself: what the sharing incentive compares with.

Each job of the reference world has an equal slice of the GPUs, N being the jobs that have not ended *there*: a job that
ended early in the real cluster keeps its slice until it would have ended, as another job would otherwise be promised
what its neighbour's luck has freed. (Of a job whose length was a guess it is not known when that would have been: it
leaves when it ends.) On a slice it trains on whole GPUs, in whichever way is fastest: on GPUs of its own
all the time, or on more of them than its slice has in turns of a round, each of which begins with a start.

The GPUs that are divided are those that any order of service can keep busy: where jobs need at least w GPUs at once,
w - 1 of them may be free while such a job waits (`divided_gpus`). Jobs that can run on one GPU divide the whole
cluster.

The world is data in a memo: share of the work left of each job, and its speeds by number of GPUs, which follow what is
believed of a job as long as it is live.

Legend: V jobs that have not ended in the reference world, K sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fairlead.core.snapshot import Floats


class Speeds(NamedTuple):
    """How fast a job is: numbers of GPUs, and the share of its work that it does in a second on each."""

    sizes: Sequence[int]
    rates: Sequence[float]
    #: Share of a turn of a round that its start takes.
    start: float = 0.0


def slice_speed(speeds: Speeds, slice_gpus: float) -> float:
    """Share of its work that a job does in a second on so many GPUs, which may be a fraction."""
    width_VK, rate_VK, start_V = _speed_arrays([speeds])
    return float(_slice_speeds(width_VK, rate_VK, start_V, slice_gpus)[0])


def _slice_speeds(width_VK: Floats, rate_VK: Floats, start_V: Floats, slice_gpus: float) -> Floats:
    """GPUs of its own a job has all the time, more of them than its slice has in turns."""
    turns_VK = slice_gpus / width_VK * (1.0 - start_V[:, None])
    speed_V: Floats = (rate_VK * np.where(width_VK <= slice_gpus, 1.0, turns_VK)).max(axis=1, initial=0.0)
    return speed_V


def divided_gpus(gpus: int, least: Iterable[int]) -> int:
    """GPUs of the slices together, for jobs that need at least so many at once each; those that do not fit aside."""
    widest = max((size for size in least if size <= gpus), default=1)
    return max(0, gpus - widest + 1)


@dataclass(frozen=True, slots=True)
class ReferenceForecast:
    """What happens in the reference world if no job comes. Legend: E ends of jobs, V jobs that have not ended there."""

    #: When each job ended there or will end; infinite if it cannot run.
    finish: Mapping[str, float]
    ids: tuple[str, ...]
    #: Now, and when jobs end; shares of the work that each has done by then since now.
    time_E: Floats
    work_EV: Floats

    def spent(self, cost_V: Floats, until_H: Floats) -> Floats:
        """What the work until each of these times counts, if the whole work of a job counts as much as its cost."""
        spent_H: Floats = np.interp(until_H, self.time_E, self.work_EV @ cost_V)
        return spent_H


@dataclass(slots=True)
class ReferenceWorld:
    """Jobs on equal slices, at a moment."""

    at: float
    left: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, Speeds] = field(default_factory=dict)
    #: GPUs of all slices together.
    gpus: int = 0
    #: When jobs ended here that are live in the real cluster.
    ended: dict[str, float] = field(default_factory=dict)
    #: Jobs whose length is a guess.
    guessed: frozenset[str] = frozenset()

    @staticmethod
    def of(memo: Mapping[str, Any], now: float) -> ReferenceWorld:
        if not memo:
            return ReferenceWorld(now)
        return ReferenceWorld(
            float(memo["at"]),
            dict(memo["left"]),
            {name: Speeds(*each) for name, each in memo["speeds"].items()},
            int(memo["gpus"]),
            dict(memo["ended"]),
            frozenset(memo.get("guessed", ())),
        )

    def memo(self) -> dict[str, Any]:
        speeds = {name: [list(sizes), list(rates), start] for name, (sizes, rates, start) in self.speeds.items()}
        kept = {"at": self.at, "left": dict(self.left), "speeds": speeds, "gpus": self.gpus, "ended": self.ended}
        return {**kept, "guessed": sorted(self.guessed)}

    def advance(self, now: float) -> None:
        """Let the jobs train until `now`; those that end leave their slices to the rest."""
        ahead = self._course(now)
        left_V = np.array([self.left[name] for name in ahead.ids]) - ahead.work_EV[-1]
        self.ended |= {name: at for name, at in ahead.finish.items() if math.isfinite(at)}
        left = zip(ahead.ids, np.maximum(0.0, left_V).tolist(), strict=True)
        self.left = {name: rest for name, rest in left if name not in self.ended}
        self.at = max(self.at, now)

    def update(
        self,
        live: Mapping[str, Speeds],
        gpus: int,
        *,
        left: Mapping[str, float] | None = None,
        guessed: frozenset[str] = frozenset(),
    ) -> None:
        """What is believed now of live jobs; new ones come with all to do, or what `left` says.

        `gpus` is what the cluster has for them.
        """
        for name in self.guessed - live.keys():
            self.left.pop(name, None)
        self.guessed = guessed
        for name, speeds in live.items():
            if name not in self.speeds:
                self.left[name] = 1.0 if left is None else left[name]
            self.speeds[name] = speeds
        self.speeds = {name: each for name, each in self.speeds.items() if name in live or name in self.left}
        self.ended = {name: at for name, at in self.ended.items() if name in live}
        self.gpus = divided_gpus(gpus, (min(each.sizes) for each in self.speeds.values()))

    def least_gpu_s(self, name: str) -> float:
        """GPU-seconds of the whole work of a job on the size that takes fewest; 0 if it cannot run."""
        sizes, rates, _ = self.speeds[name]
        return min((size / rate for size, rate in zip(sizes, rates, strict=True) if rate > 0.0), default=0.0)

    def forecast(self) -> ReferenceForecast:
        found = self._course(math.inf)
        return replace(found, finish={**self.ended, **found.finish})

    def _course(self, until: float) -> ReferenceForecast:
        """From now until then, from one end of a job to the next."""
        names = tuple(self.left)
        left_V = np.array([self.left[name] for name in names], dtype=np.float64)
        width_VK, rate_VK, start_V = _speed_arrays([self.speeds[name] for name in names])
        live_V = np.ones(len(names), dtype=bool)
        finish = dict.fromkeys(names, math.inf)
        now, times, works = self.at, [self.at], [np.zeros(len(names))]
        while live_V.any() and self.gpus > 0 and now < until:
            slice_gpus = self.gpus / int(live_V.sum())
            speed_V = _slice_speeds(width_VK, rate_VK, start_V, slice_gpus) * live_V
            due_V = np.divide(left_V, speed_V, out=np.full(len(names), np.inf), where=speed_V > 0.0)
            step = min(float(due_V[live_V].min()), until - now)
            if math.isinf(step):
                break
            now += step
            done_V = live_V & (due_V <= step * (1.0 + 1e-12))
            work_V = np.where(done_V, left_V, np.minimum(left_V, speed_V * step))
            left_V, live_V = left_V - work_V, live_V & ~done_V
            times.append(now)
            works.append(works[-1] + work_V)
            finish.update((names[at], now) for at in np.flatnonzero(done_V).tolist())
        return ReferenceForecast(finish, names, np.array(times), np.stack(works))


def _speed_arrays(speeds: Sequence[Speeds]) -> tuple[Floats, Floats, Floats]:
    """GPUs and rates of each size, and starts; a size that a job does not have is one GPU at no speed."""
    most = max((len(each.sizes) for each in speeds), default=1)
    width_VK, rate_VK = np.ones((len(speeds), most)), np.zeros((len(speeds), most))
    for at, (sizes, rates, _) in enumerate(speeds):
        width_VK[at, : len(sizes)], rate_VK[at, : len(sizes)] = sizes, rates
    return width_VK, rate_VK, np.array([each.start for each in speeds], dtype=np.float64)
