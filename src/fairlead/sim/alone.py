"""A job's run alone on what it asked for: what an oracle is told, and what finish-time fairness compares with."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

from fairlead.core.types import Allocation
from fairlead.sim.truth import Setting, Truth


@lru_cache(maxsize=4096)
def consolidated(gpus: int, *, node_gpus: int) -> Allocation:
    """So many GPUs on as few nodes of `node_gpus` as possible, none of them anyone else's."""
    nodes = range(0, gpus, node_gpus)
    return Allocation.of({f"alone-{start:06d}": range(min(node_gpus, gpus - start)) for start in nodes})


@dataclass(frozen=True, slots=True)
class RunAlone:
    """Between marks k and k + 1 the job runs at speed k; at mark k it has left_s[k] seconds to go."""

    marks: tuple[float, ...]
    speeds: tuple[float, ...]
    left_s: tuple[float, ...]

    @staticmethod
    def of(truth: Truth, allocation: Allocation, gpu_type: str) -> RunAlone:
        """Follow the truth from boundary to boundary; a job that cannot run here has infinitely long to go."""
        marks: list[float] = [0.0]
        speeds: list[float] = []
        while marks[-1] < truth.total:
            pace = truth.pace(Setting(marks[-1], allocation, gpu_type))
            assert pace.until > marks[-1], f"{truth} stands still at {marks[-1]}"
            due_s = _time_s(pace.until - marks[-1], pace.speed)
            lasts_s = pace.lasts_s(due_s)
            speeds.append(pace.speed if lasts_s == due_s else _speed(pace.until - marks[-1], lasts_s))
            marks.append(pace.until)
        left_s = [0.0]
        for k in range(len(speeds) - 1, -1, -1):
            left_s.append(left_s[-1] + _time_s(marks[k + 1] - marks[k], speeds[k]))
        return RunAlone(tuple(marks), tuple(speeds), tuple(reversed(left_s)))

    def remaining_s(self, progress: float) -> float:
        if progress >= self.marks[-1]:
            return 0.0
        k = bisect_right(self.marks, progress) - 1
        return self.left_s[k + 1] + _time_s(self.marks[k + 1] - progress, self.speeds[k])


def _speed(way: float, time_s: float) -> float:
    return way / time_s if time_s > 0.0 else math.inf


def _time_s(way: float, speed: float) -> float:
    return way / speed if speed > 0.0 else math.inf
