"""What jobs demand of a cluster: how long each runs alone there, and how much work all of them offer.

The *offered load* is the true work of the jobs over what the cluster can do while they arrive:

    load = sum over jobs of GPUs x time alone / (GPUs of the cluster x time from the first arrival to the last)

Time alone is on the GPUs that the job asked for, on as few nodes as possible, without starts, restarts or waiting.
Where a job is not equally fast on all GPU types it may use, its time is the one at which these types together, each
busy all the time, would get through such jobs: the harmonic mean, weighted by the GPUs of each type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fairlead.core.types import Node
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.truth import FixedDuration, Setting, Truth
from fairlead.sim.tuned import TunedTruth


@dataclass(frozen=True)
class Demand:
    """What one job asks for, and what it really is."""

    gpus: int
    #: The types it accepts; none stated: any.
    gpu_types: tuple[str, ...]
    truth: Truth
    arrives_at: float


class Yardstick:
    """An empty cluster, by which jobs are measured. Remembers the truths it has measured, which jobs share."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.gpus: dict[str, int] = {}
        self.node_gpus: dict[str, int] = {}
        for node in nodes:
            self.gpus[node.gpu_type] = self.gpus.get(node.gpu_type, 0) + node.gpus
            self.node_gpus[node.gpu_type] = max(node.gpus, self.node_gpus.get(node.gpu_type, 0))
        #: By identity: truths are immutable, but not all of them can be hashed quickly. Kept, so that no other gets it.
        self._known: dict[tuple[int, int, str], tuple[Truth, float]] = {}

    @cached_property
    def capacity(self) -> int:
        return sum(self.gpus.values())

    def alone_s(self, job: Demand) -> dict[str, float]:
        """By GPU type, seconds of the whole run; without types that it may not or cannot use.

        A job that this cluster could not hold has its work all the same: if it accepts no type that is there it counts
        as accepting all, and if it is too wide for each of them, they count as wide enough.
        """
        accepted = [gpu_type for gpu_type in self.gpus if gpu_type in job.gpu_types] or list(self.gpus)
        wide = [gpu_type for gpu_type in accepted if self.gpus[gpu_type] >= job.gpus]
        times_s = {gpu_type: self._time_s(job, gpu_type) for gpu_type in wide or accepted}
        return {gpu_type: time_s for gpu_type, time_s in times_s.items() if math.isfinite(time_s)}

    def best_s(self, job: Demand) -> float | None:
        """Its time on the type that is fastest for it; None if it can run nowhere."""
        return min(self.alone_s(job).values(), default=None)

    def work_gpu_s(self, job: Demand) -> float | None:
        """Its GPUs for as long as it takes on all types that it may use; None if it can run nowhere."""
        times_s = self.alone_s(job)
        if not times_s:
            return None
        if 0.0 in times_s.values():
            return 0.0
        per_s = math.fsum(self.gpus[gpu_type] / time_s for gpu_type, time_s in times_s.items())
        return job.gpus * sum(self.gpus[gpu_type] for gpu_type in times_s) / per_s

    def load(self, jobs: Sequence[Demand]) -> float | None:
        """The offered load; None if all jobs arrive at once, or one of them can run nowhere."""
        work = [self.work_gpu_s(job) for job in jobs]
        arrivals = [job.arrives_at for job in jobs]
        span_s = max(arrivals) - min(arrivals) if jobs else 0.0
        known = [each for each in work if each is not None]
        if span_s == 0.0 or len(known) < len(work):
            return None
        return math.fsum(known) / (self.capacity * span_s)

    def _time_s(self, job: Demand, gpu_type: str) -> float:
        truth = job.truth.asked if isinstance(job.truth, TunedTruth) else job.truth
        if isinstance(truth, FixedDuration):
            return _paced_s(truth, job.gpus, gpu_type)
        key = id(truth), job.gpus, gpu_type
        if key not in self._known:
            held = consolidated(job.gpus, node_gpus=self.node_gpus[gpu_type])
            self._known[key] = truth, RunAlone.of(truth, held, gpu_type).remaining_s(0.0)
        return self._known[key][1]


def _paced_s(truth: FixedDuration, gpus: int, gpu_type: str) -> float:
    """One look at its pace tells all of it, and where its nodes are does not matter: a long trace has many of them."""
    speed = truth.pace(Setting(0.0, consolidated(gpus, node_gpus=gpus), gpu_type)).speed
    return truth.total / speed if speed > 0.0 else math.inf
