"""Discretised two-dimensional least attained service (Tiresias, NSDI 2019).

A job's attained service is GPUs x time. Queues hold jobs by service: everyone begins in the first and falls into
the next when its service reaches a threshold. Lower queues get what higher ones leave. Within a queue:

1. whoever runs there goes on, the one that has run longest first;
2. then those that ran there and were pushed out, the latest first;
3. then those that have not run in it yet, in order of falling into it (for the first queue: of arrival).

So a job that falls goes behind those that wait for the queue it falls into. A job that does not fit is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Columns, Floats, Snapshot
from fairlead.core.types import Allocation, Job, Plan, Reason
from fairlead.policies.filling import Indices, all_fit, run_first
from fairlead.policies.reasons import Reasons, queued_reasons

#: Service is compared with thresholds to this precision, so that rounding does not make a job almost fall for ever.
_TOLERANCE_GPU_S = 1e-3


@dataclass(frozen=True)
class Tiresias:
    """Jobs that have had the least GPU-time go first, in coarse classes."""

    #: GPU-seconds of service at which a job falls into the next queue; separated by `/` on the command line.
    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    #: A job that waited this many times as long as it has run starts again in the first queue; 0 never promotes.
    #: Large jobs can starve even so: in the first queue they are skipped as long as small ones keep coming.
    promote: float = 0.0
    #: Service forgiven at a promotion. The policy's only memory; if it is lost, promotions are.
    _forgiven: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False))
        if not rising or not all(0 < t < math.inf for t in self.thresholds):
            raise InvalidSpec(f"tiresias: thresholds are {self.thresholds}; expected positive numbers that rise")
        if not 0 <= self.promote < math.inf:
            raise InvalidSpec(f"tiresias: promote is {self.promote}; expected a number of at least 0")

    def plan(self, view: Snapshot) -> Plan:
        everyone = all_fit(view)
        if everyone is not None:  # then it does not matter who is in which queue
            return Plan(everyone, self._reasons(view, everyone))
        columns = view.columns
        service_J = self._remembered(view) if self.promote else columns.service_gpu_s_J
        limits = self._limits
        queue_J = self._queue(service_J)
        allocations, chosen = run_first(view, _order(columns, queue_J, service_J - limits[queue_J], view.now))
        fall_in_s = (limits[queue_J[chosen] + 1] - service_J[chosen]) / columns.gpus_J[chosen]
        review_at = view.now + float(fall_in_s.min(initial=math.inf))
        if self.promote:
            review_at = min(review_at, float(self._promotion_at(columns, service_J, queue_J).min(initial=math.inf)))
        return Plan(allocations, self._reasons(view, allocations), review_at=review_at)

    @property
    def _limits(self) -> Floats:
        return np.array((0.0, *self.thresholds, math.inf))

    def _queue(self, service: Floats) -> Indices:
        return np.searchsorted(self._limits, service + _TOLERANCE_GPU_S, side="right") - 1

    def _reasons(self, view: Snapshot, allocations: Mapping[str, Allocation]) -> Reasons:
        reasons = queued_reasons(view, allocations, "least attained service first")
        forgiven = self._forgiven.copy()  # as of now: a reason may be read later

        def explain(job: Job) -> Reason:
            service = job.service_at(view.now) - forgiven.get(job.id, 0.0)
            queue = int(self._queue(np.array(service))) + 1
            why = reasons[job.id]
            text = f"{why.text}; queue {queue} of {len(self.thresholds) + 1} after {service:.0f} GPU-s"
            return Reason(why.code, text, {**why.numbers, "queue": queue, "service_gpu_s": service})

        return Reasons(view, explain)

    def _remembered(self, view: Snapshot) -> Floats:
        """Service since the last promotion, promoting whoever has waited long enough."""
        columns = view.columns
        for job_id in self._forgiven.keys() - view.jobs.keys():
            del self._forgiven[job_id]
        service_J = columns.service_gpu_s_J.copy()
        if self._forgiven:
            service_J -= np.array([self._forgiven.get(job_id, 0.0) for job_id in columns.ids])
        promoted = self._promotion_at(columns, service_J, self._queue(service_J)) <= view.now + _TOLERANCE_GPU_S
        for job in np.flatnonzero(promoted):
            self._forgiven[columns.ids[job]] = float(columns.service_gpu_s_J[job])
        service_J[promoted] = 0.0
        return service_J

    def _promotion_at(self, columns: Columns, service_J: Floats, queue_J: Indices) -> Floats:
        """When each job that waits in a lower queue has waited `promote` times as long as it ran since the last."""
        waits_J = (columns.held_J == 0) & (queue_J > 0)
        waited_at: Floats = columns.last_ran_at_J + self.promote * service_J / columns.gpus_J
        return np.where(waits_J, waited_at, math.inf)


def _order(columns: Columns, queue_J: Indices, over_gpu_s_J: Floats, now: float) -> Indices:
    """See the module: by queue, then by group within it, then by the group's own rule.

    `over_gpu_s_J` is the service each job has had beyond the threshold of its queue.
    """
    holds_J = columns.held_J > 0
    fresh_J = over_gpu_s_J <= _TOLERANCE_GPU_S
    just_fell_J = fresh_J & (queue_J > 0) & (columns.last_ran_at_J == now) & (columns.since_J < now)
    runs_J = holds_J & ~just_fell_J
    group_J = np.where(runs_J, 0, np.where(fresh_J, 2, 1))
    began_here_J = np.maximum(columns.since_J, now - over_gpu_s_J / columns.gpus_J)
    came_J = np.maximum(columns.submitted_at_J, columns.last_ran_at_J)  # who fell or was promoted came when it last ran
    rule_J = np.where(runs_J, began_here_J, np.where(fresh_J, came_J, -columns.last_ran_at_J))
    return np.lexsort((rule_J, group_J, queue_J))
