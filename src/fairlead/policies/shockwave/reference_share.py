"""The world in which every job has 1/N of the cluster to itself: what the sharing incentive compares with.

Each job of the reference world has an equal slice of the GPUs, N being the jobs that have not ended *there*: a job that
ended early in the real cluster keeps its slice until it would have ended, as another job would otherwise be promised
what its neighbour's luck has freed. On a slice it trains on whole GPUs for part of the time, in whichever way is
fastest.

The world is data in a memo: share of the work left of each job, and its speeds by number of GPUs, which follow what is
believed of a job as long as it is live.

Legend: J jobs of the reference world, K sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.core.snapshot import Floats

#: Numbers of GPUs, and the share of a job's work that it does in a second on each.
Speeds = tuple[Sequence[int], Sequence[float]]


def slice_speed(speeds: Speeds, slice_gpus: float) -> float:
    """Share of its work that a job does in a second on so many GPUs, which may be a fraction."""
    sizes, rates = speeds
    return max((rate * min(1.0, slice_gpus / size) for size, rate in zip(sizes, rates, strict=True)), default=0.0)


@dataclass(slots=True)
class ReferenceWorld:
    """Jobs on equal slices, at a moment."""

    at: float
    left: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, Speeds] = field(default_factory=dict)
    gpus: int = 0
    #: When jobs ended here that are live in the real cluster.
    ended: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(memo: Mapping[str, Any], now: float) -> ReferenceWorld:
        if not memo:
            return ReferenceWorld(now)
        return ReferenceWorld(
            float(memo["at"]),
            dict(memo["left"]),
            {name: (tuple(sizes), tuple(rates)) for name, (sizes, rates) in memo["speeds"].items()},
            int(memo["gpus"]),
            dict(memo["ended"]),
        )

    def memo(self) -> dict[str, Any]:
        speeds = {name: [list(sizes), list(rates)] for name, (sizes, rates) in self.speeds.items()}
        return {"at": self.at, "left": dict(self.left), "speeds": speeds, "gpus": self.gpus, "ended": self.ended}

    def advance(self, now: float) -> None:
        """Let the jobs train until `now`; those that end leave their slices to the others."""
        self.ended |= dict(self._run(now))
        self.at = max(self.at, now)

    def update(self, live: Mapping[str, Speeds], gpus: int) -> None:
        """What is believed now of live jobs; new ones come with all to do."""
        for name, speeds in live.items():
            if name not in self.speeds:
                self.left[name] = 1.0
            self.speeds[name] = speeds
        self.speeds = {name: each for name, each in self.speeds.items() if name in live or name in self.left}
        self.ended = {name: at for name, at in self.ended.items() if name in live}
        self.gpus = gpus

    def finish_times(self) -> dict[str, float]:
        """When each job ended or will end there, if no other comes; infinite if it cannot run."""
        ahead = ReferenceWorld(self.at, dict(self.left), self.speeds, self.gpus)
        found = dict(ahead._run(math.inf))
        return {**{name: found.get(name, math.inf) for name in self.left}, **self.ended}

    def _run(self, until: float) -> list[tuple[str, float]]:
        """(job, when it ended) in order, up to `until`; `left` is then what is left at that time."""
        ended: list[tuple[str, float]] = []
        now = self.at
        while self.left and self.gpus > 0 and now < until:
            names = list(self.left)
            left_J = np.array([self.left[name] for name in names])
            speed_J = self._speeds(names)
            due_J = np.divide(left_J, speed_J, out=np.full(len(names), np.inf), where=speed_J > 0.0)
            step = min(float(due_J.min()), until - now)
            if math.isinf(step):
                break
            now += step
            done_J = due_J <= step * (1.0 + 1e-12)
            rest_J = np.maximum(0.0, left_J - speed_J * step)
            self.left = {
                name: rest for name, rest, done in zip(names, rest_J.tolist(), done_J, strict=True) if not done
            }
            ended += [(name, now) for name, done in zip(names, done_J, strict=True) if done]
        return ended

    def _speeds(self, names: Sequence[str]) -> Floats:
        slice_gpus = self.gpus / len(names)
        return np.array([slice_speed(self.speeds[name], slice_gpus) for name in names])
