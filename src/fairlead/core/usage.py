"""Who has used how much, by queue and tenant, with a memory that fades: the basis of fair shares.

Use counts less the longer ago it was: half as much after each half-life. So a total never needs to be reset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlead.core.types import JobSpec

#: A week.
HALF_LIFE_S = 7 * 24 * 3600.0

#: (queue, tenant)
Account = tuple[str, str]


@dataclass(slots=True)
class Ledger:
    """GPU-seconds of each account, and the time they are as of. Only `State` adds to it; snapshots have copies."""

    half_life_s: float = HALF_LIFE_S
    entries: dict[Account, tuple[float, float]] = field(default_factory=dict)

    def add(self, spec: JobSpec, gpus: int, since: float, until: float) -> None:
        """So many GPUs were held from `since` to `until`."""
        account = (spec.queue, spec.tenant)
        used, at = self.entries.get(account, (0.0, until))
        until = max(at, until)
        self.entries[account] = (used * self._faded(until - at) + self._held(gpus, until - since), until)

    def at(self, now: float, using: Iterable[tuple[JobSpec, int, float]]) -> dict[Account, float]:
        """What each account has used by `now`, with those who hold GPUs since they were last accounted for."""
        used = {account: gpu_s * self._faded(now - at) for account, (gpu_s, at) in self.entries.items()}
        for spec, gpus, since in using:
            if gpus and now > since:
                account = (spec.queue, spec.tenant)
                used[account] = used.get(account, 0.0) + self._held(gpus, now - since)
        return used

    def copy(self) -> Ledger:
        return Ledger(self.half_life_s, self.entries.copy())

    def _faded(self, age_s: float) -> float:
        return float(2.0 ** -(max(0.0, age_s) / self.half_life_s))

    def _held(self, gpus: int, seconds: float) -> float:
        """GPU-seconds, of which the first have begun to fade."""
        return gpus * (1.0 - self._faded(seconds)) * self.half_life_s / math.log(2.0)
