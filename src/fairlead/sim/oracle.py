"""What a policy that declared itself an oracle is told of step times: the simulator's side of `StepOracle`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fairlead.core.types import Node
from fairlead.sim.alone import consolidated
from fairlead.sim.backend import SimBackend
from fairlead.sim.measured import MeasuredTruth
from fairlead.sim.truth import Setting, Truth
from fairlead.sim.tuned import TunedTruth


class SimStepOracle:
    """True steps where a truth has them. Of other jobs, seconds on what they asked for, and how much faster more is."""

    def __init__(self, backend: SimBackend, nodes: Sequence[Node]) -> None:
        self._backend = backend
        self._node_gpus: dict[str, int] = {}  # the largest node of each type
        for node in nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 0))

    def steps_left(self, job_id: str) -> float:
        job, progress = self._backend.whereabouts(job_id)
        if isinstance(job.truth, MeasuredTruth | TunedTruth):
            return job.truth.steps_left(progress)
        return job.truth.remaining_s(progress)

    def step_s(self, job_id: str, gpus: int) -> float:
        job, progress = self._backend.whereabouts(job_id)
        if isinstance(job.truth, MeasuredTruth | TunedTruth):
            return job.truth.step_s(gpus)
        accepted = job.spec.gpu_types or tuple(self._node_gpus)
        gpu_type = next((name for name in accepted if name in self._node_gpus), "")
        asked, speed = (self._speed(job.truth, progress, count, gpu_type) for count in (job.spec.gpus, gpus))
        return asked / speed if speed > 0.0 else math.inf

    def _speed(self, truth: Truth, progress: float, gpus: int, gpu_type: str) -> float:
        where = consolidated(gpus, node_gpus=self._node_gpus.get(gpu_type, 1))
        return truth.pace(Setting(progress, where, gpu_type)).speed
