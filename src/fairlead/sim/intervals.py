"""Means over seeds with their 95 % confidence intervals, by Student's t.

The interval says how far the mean over all seeds may lie from the mean over these, if runs of different seeds are
independent and their figures roughly normal. Two policies are compared seed by seed: what a seed does to both of them
cancels out in the differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` values, and half the width of its confidence interval; None for a single value."""

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)

    @property
    def excludes_zero(self) -> bool:
        """A difference with this interval is there, as far as the seeds can tell. One seed cannot tell."""
        return self.half is not None and not self.low <= 0.0 <= self.high

    def to_dict(self) -> dict[str, Any]:
        """For JSON: a single value has a mean and no interval."""
        return {"mean": self.mean, "ci95": None if self.half is None else [self.low, self.high], "n": self.n}


def interval(values: Sequence[float]) -> Interval | None:
    """None for no values."""
    if not values:
        return None
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return Interval(mean, None, 1)
    quantile = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(n), n)


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a policy from a baseline: the mean of the differences seed by seed, and its share of the baseline's mean."""

    absolute: Interval
    #: None where the baseline's mean is 0.
    relative: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the difference in the figure's own unit, and as a share of the baseline."""
        relative = None if self.relative is None else self.relative.to_dict()
        return {**self.absolute.to_dict(), "relative": relative}


def difference(values: Mapping[str, float], baseline: Mapping[str, float]) -> Difference | None:
    """Both by seed; only seeds that both have are compared. None if there are none."""
    seeds = [seed for seed in values if seed in baseline]
    absolute = interval([values[seed] - baseline[seed] for seed in seeds])
    if absolute is None:
        return None
    mean = statistics.fmean(baseline[seed] for seed in seeds)
    if mean == 0.0:
        return Difference(absolute, None)
    half = None if absolute.half is None else absolute.half / abs(mean)
    return Difference(absolute, Interval(absolute.mean / mean, half, absolute.n))
