"""What a simulation is given: jobs to come, and nodes that will be away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import JobSpec
from fairlead.sim.costs import FREE, Costs
from fairlead.sim.truth import Truth


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job to come: what the user will ask, when, and what it really is."""

    spec: JobSpec
    submit_at: float
    truth: Truth
    costs: Costs = FREE
    cancel_at: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.submit_at < math.inf:
            raise InvalidSpec(f"job {self.spec.id} is submitted at {self.submit_at}; expected a time of at least 0")
        if self.cancel_at is not None and not self.submit_at <= self.cancel_at < math.inf:
            raise InvalidSpec(
                f"job {self.spec.id} is cancelled at {self.cancel_at}; expected a time after its submission "
                f"at {self.submit_at}"
            )


@dataclass(frozen=True, slots=True)
class Outage:
    """A node that is lost at `at` and comes back at `until`."""

    node: str
    at: float
    until: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.at <= self.until < math.inf:
            raise InvalidSpec(
                f"node {self.node} is lost at {self.at} and back at {self.until}; expected 0 <= lost <= back"
            )


@dataclass(frozen=True, slots=True)
class Failing:
    """Nodes that fail again and again, for as long as a run lasts: means of exponential times."""

    mtbf_s: float
    repair_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (1.0 <= self.mtbf_s < math.inf and 0.0 <= self.repair_s < math.inf):
            raise InvalidSpec(
                f"nodes fail after {self.mtbf_s:g} s and are repaired after {self.repair_s:g} s on average; expected "
                "at least a second between failures, and 0 or more until the repair"
            )

    def outages(self, place: int, node: str) -> Iterator[Outage]:
        """Of the node at a place in the cluster, without end."""
        for at_s, down_s in draw_failures(place, mtbf_s=self.mtbf_s, repair_s=self.repair_s, seed=self.seed):
            yield Outage(node, at_s, at_s + down_s)


def draw_failures(place: int, *, mtbf_s: float, repair_s: float, seed: int) -> Iterator[tuple[float, float]]:
    """When the node at a place in the cluster fails, and for how long, without end; other nodes have no part in it."""
    rng = np.random.default_rng([seed, place])
    at_s = 0.0
    while True:
        at_s += float(rng.exponential(mtbf_s))
        down_s = float(rng.exponential(repair_s))
        yield at_s, down_s
        at_s += down_s
