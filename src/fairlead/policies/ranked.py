"""Policies that are nothing but an order: the first in it run, the others lose their GPUs to them.

`srtf` and `srtf-gpu` are oracles: they know the true remaining time, which only the simulator can tell them.
They are yardsticks, not schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Plan
from fairlead.policies.filling import run_first
from fairlead.policies.gpu_speeds import Speeds, check_gpu_type, speeds_by
from fairlead.policies.reasons import queued_reasons
from fairlead.policies.upgrade import left_as_run


@dataclass(frozen=True)
class FewestGpus:
    """Jobs that ask for the fewest GPUs go first; among equals, order of arrival. A large job can wait for ever."""

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("smallest", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        speeds = speeds_by(self.gpu_type, self.seed, view)
        left_s_J = left_as_run(view) if self.gpu_type == "fastest" else None
        return _ranked(view, view.columns.gpus_J, "fewest GPUs first", speeds, left_s_J)


@dataclass(frozen=True)
class ShortestRemainingTimeOracle:
    """The job with the least true remaining time goes first."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("srtf", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        left_s_J, speeds = _remaining_s(view, "srtf"), speeds_by(self.gpu_type, self.seed, view)
        moves = self.gpu_type == "fastest"
        return _ranked(view, left_s_J, "shortest remaining time first", speeds, left_s_J if moves else None)


@dataclass(frozen=True)
class ShortestRemainingGpuTimeOracle:
    """The job with the least true remaining time x GPUs goes first."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("srtf-gpu", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        left_s_J, speeds = _remaining_s(view, "srtf-gpu"), speeds_by(self.gpu_type, self.seed, view)
        rank_J, moves = left_s_J * view.columns.gpus_J, self.gpu_type == "fastest"
        return _ranked(view, rank_J, "shortest remaining GPU-time first", speeds, left_s_J if moves else None)


def _ranked(view: Snapshot, rank_J: Floats, rule: str, speeds: Speeds, left_s_J: Floats | None) -> Plan:
    order_J = np.argsort(rank_J, kind="stable")
    allocations, _ = run_first(view, order_J, speeds=speeds, left_s_J=left_s_J)
    reasons = queued_reasons(
        view, allocations, rule, order=lambda: [view.columns.ids[job] for job in order_J], preempts=True
    )
    return Plan(allocations, reasons)


def _remaining_s(view: Snapshot, name: str) -> Floats:
    if view.oracle is None:
        raise InvalidSpec(f"{name} is an oracle: it needs true remaining times, which only the simulator knows")
    return np.array([view.oracle(job_id) for job_id in view.columns.ids])
