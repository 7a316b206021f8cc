"""First come, first served: strictly, and with backfill. Neither preempts; a job gets exactly what it asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.policies.filling import start_waiting, waiting
from fairlead.policies.gpu_speeds import check_gpu_type, speeds_by
from fairlead.policies.reasons import queued_reasons, served_reasons
from fairlead.policies.wait_reason import Discipline


@dataclass(frozen=True)
class Fifo:
    """Strict order of arrival: the first job that does not fit holds up everyone behind it."""

    starvation_free: ClassVar[bool] = True

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("fifo", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        speeds = speeds_by(self.gpu_type, self.seed, view)
        allocations = start_waiting(view, waiting(view), skip=False, speeds=speeds)
        discipline = Discipline("strict order of arrival", order=lambda: list(view.jobs), strict=True)
        return Plan(allocations, served_reasons(view, allocations, discipline))


@dataclass(frozen=True)
class Backfill:
    """Order of arrival, but whoever fits may pass whoever does not, so a large job can wait for ever."""

    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        check_gpu_type("backfill", self.gpu_type, self.seed)

    def plan(self, view: Snapshot) -> Plan:
        speeds = speeds_by(self.gpu_type, self.seed, view)
        allocations = start_waiting(view, waiting(view), skip=True, speeds=speeds)
        rule = "order of arrival, small jobs may pass"
        return Plan(allocations, queued_reasons(view, allocations, rule, order=lambda: list(view.jobs)))
