"""What Shockwave remembers from one decision to the next, as plain JSON in `Plan.memo["shockwave"]`.

The round under way, the window that was bought for, what each job bought and at which price, and how crowded the
cluster has been: all that a restarted service or a forecast needs to go on with the same rounds, counts and prices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.snapshot import Snapshot

KEY = "shockwave"


@dataclass(slots=True)
class MarketMemory:
    """Of one cluster. A plan makes a new one from the last and writes it into its memo."""

    #: When the round under way ends; -inf if none has begun.
    ends_at: float = -math.inf
    #: Rounds left in the window that was bought for, and rounds since.
    rounds_left: int = 0
    rounds_since: int = 0
    #: By job: rounds bought in the window, those not served yet, GPUs of each, and the weight it bid with.
    bought: dict[str, int] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    #: By job: rounds since the purchase in which it ran.
    received: dict[str, int] = field(default_factory=dict)
    weight: dict[str, float] = field(default_factory=dict)
    #: By job that bid: how many batch-size regimes it had reported.
    regimes: dict[str, int] = field(default_factory=dict)
    price: float = 0.0
    gap: float = 0.0
    #: How crowded the cluster has been (`fair_finish`), and what 1/N of it would have done (`reference_share`).
    crowding: dict[str, Any] = field(default_factory=dict)
    reference: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(view: Snapshot) -> MarketMemory:
        found = view.memo.get(KEY)
        if not isinstance(found, Mapping):
            return MarketMemory()
        return MarketMemory(**{name: _copied(value) for name, value in found.items()})

    def serve(self, ids: Iterable[str]) -> None:
        """A round begins that serves these jobs."""
        served = set(ids)
        self.rounds_left -= 1
        self.rounds_since += 1
        self.received |= {job_id: self.received.get(job_id, 0) + 1 for job_id in sorted(served)}
        left = {job_id: count - (job_id in served) for job_id, count in self.count.items()}
        self.count = {job_id: count for job_id, count in left.items() if count > 0}

    def memo(self) -> dict[str, Any]:
        """For `Plan.memo`."""
        content = {name: getattr(self, name) for name in self.__slots__}
        if not math.isfinite(self.ends_at):
            del content["ends_at"]
        return {KEY: content}


def _copied(value: Any) -> Any:
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, Mapping) else value
