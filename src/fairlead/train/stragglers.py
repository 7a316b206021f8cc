"""Who is slower than the others (Or et al., section 3.3), and how a step is shared so that nobody waits for them.

A worker's speed is the samples it computes per second, as a fraction of the median over all workers, smoothed. Nobody
is exempt. Everybody sees the same times, so everybody comes to the same shares. A smaller share for a slower worker
changes no statistics: the samples of a step are the same, only dealt differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

#: The weight of the latest step, and the fraction of the median below which a worker is a straggler: the paper's.
SMOOTHING, STRAGGLING = 0.1, 0.8

#: Speeds that differ by less than this are equal: to deal anew for less would only cost what was fetched ahead.
EQUAL = 0.1


class Speeds:
    """Of the workers of a job, by name."""

    def __init__(self) -> None:
        self._fraction: dict[str, float] = {}
        #: The fractions as they were when a step was last dealt anew.
        self._dealt: dict[str, float] = {}

    def record(self, workers: Sequence[str], samples: Sequence[int], compute_s: Sequence[float]) -> None:
        """What a step took each. Whoever had nothing to do tells nothing."""
        rates = {
            name: count / seconds
            for name, count, seconds in zip(workers, samples, compute_s, strict=True)
            if count > 0 and seconds > 0.0
        }
        if len(rates) < 2:
            return
        middle = median(rates.values())
        for name, rate in rates.items():
            fraction = rate / middle
            before = self._fraction.get(name, fraction)
            self._fraction[name] = before + SMOOTHING * (fraction - before)
        if any(abs(self._fraction[name] - self._dealt.get(name, 1.0)) > EQUAL / 2 for name in rates):
            self._dealt = dict(self._fraction)

    def shares(self, workers: Sequence[str]) -> list[float]:
        """How much of a step each should take; equal unless somebody differs noticeably."""
        fractions = [self._dealt.get(name, 1.0) for name in workers]
        if max(fractions) - min(fractions) <= EQUAL:
            return [1.0] * len(workers)
        return fractions

    def stragglers(self, workers: Sequence[str]) -> list[str]:
        return [name for name in workers if self._fraction.get(name, 1.0) < STRAGGLING]

    def forget(self) -> None:
        """Everybody."""
        self._fraction, self._dealt = {}, {}

    def state_dict(self) -> dict[str, dict[str, float]]:
        return {"fraction": dict(self._fraction), "dealt": dict(self._dealt)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self._fraction, self._dealt = dict(state["fraction"]), dict(state["dealt"])
