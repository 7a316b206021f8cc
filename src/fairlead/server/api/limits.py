"""How often somebody may ask: token buckets, one for each user or address."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Buckets that are remembered. Full ones are forgotten first: they are as good as new.
_MOST = 10_000


class Buckets:
    """Each key may take `burst` at once, and `rate_per_s` in the long run. For one thread."""

    def __init__(self, rate_per_s: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s, self._burst, self._clock = rate_per_s, float(burst), clock
        self._left: dict[str, tuple[float, float]] = {}  # key -> (tokens, as of)

    def take(self, key: str, count: float = 1.0) -> float:
        """0 if it may; otherwise the seconds after which it may."""
        now, left = self._clock(), self._now(key)
        if left < count:
            return (count - left) / self._rate_per_s
        self._left[key] = (left - count, now)
        if len(self._left) > _MOST:
            self._forget()
        return 0.0

    def _now(self, key: str) -> float:
        left, at = self._left.get(key, (self._burst, self._clock()))
        return min(self._burst, left + (self._clock() - at) * self._rate_per_s)

    def _forget(self) -> None:
        for key in [key for key in self._left if self._now(key) >= self._burst]:
            del self._left[key]
        for key in list(self._left)[: max(0, len(self._left) - _MOST // 2)]:  # half of them: this should be rare
            del self._left[key]
