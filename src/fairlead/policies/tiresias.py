"""Discretised two-dimensional least attained service (Tiresias, NSDI 2019).

A job's attained service is GPUs x time. Queues hold jobs by service: everyone begins in the first and falls into
the next when its service reaches a threshold. Lower queues get what higher ones leave. Within a queue:

1. whoever runs there goes on, the one that has run longest first;
2. then those that ran there and were pushed out, the latest first;
3. then those that have not run in it yet, in order of falling into it (for the first queue: of arrival).

So a job that falls goes behind those that wait for the queue it falls into. A job that does not fit is skipped.

That is how the authors' simulator does it. The one in Pollux's artifact differs in three ways, each an option here:
within a queue jobs go in the order in which they came into it, whether they run or not; service is counted from when
GPUs are given; and jobs are put on the emptiest nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.memo import Memo
from fairlead.core.snapshot import Columns, Floats, Snapshot
from fairlead.core.types import Allocation, Job, Plan, Reason
from fairlead.policies.filling import Indices, all_fit, run_first
from fairlead.policies.gpu_speeds import check_gpu_type, speeds_by
from fairlead.policies.reasons import Reasons, queued_reasons
from fairlead.policies.spreading import spread
from fairlead.policies.upgrade import left_as_run

#: Service is compared with thresholds to this precision, so that rounding does not make a job almost fall for ever.
_TOLERANCE_GPU_S = 1e-3

#: The key of its memory in `Snapshot.memo`.
_MEMO = "tiresias"

_CHOICES = {"within": ("running", "entry"), "service": ("run", "held"), "placing": ("tight", "spread")}


@dataclass(frozen=True)
class Tiresias:
    """Jobs that have had the least GPU-time go first, in coarse classes."""

    #: GPU-seconds of service at which a job falls into the next queue; separated by `/` on the command line.
    thresholds: tuple[float, ...] = (3250.0, 7200.0)
    #: A job that waited this many times as long as it has run starts again in the first queue; 0 never promotes.
    #: Large jobs can starve even so: in the first queue they are skipped as long as small ones keep coming.
    promote: float = 0.0
    #: Who goes first within a queue: `running` (see the module), or `entry`, who came into it first.
    within: str = "running"
    #: What counts as service: `run`, or `held`, which includes starting up.
    service: str = "run"
    #: Where a job starts: `tight`, on the fewest nodes and in the tightest gap, or `spread`, on the emptiest nodes.
    placing: str = "tight"
    #: Of several GPU types with room: `fastest`, the one believed fastest for the job, or `any`, which is drawn.
    gpu_type: str = "fastest"
    #: Of that draw.
    seed: int = 0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False))
        if not rising or not all(0 < t < math.inf for t in self.thresholds):
            raise InvalidSpec(f"tiresias: thresholds are {self.thresholds}; expected positive numbers that rise")
        if not 0 <= self.promote < math.inf:
            raise InvalidSpec(f"tiresias: promote is {self.promote}; expected a number of at least 0")
        check_gpu_type("tiresias", self.gpu_type, self.seed)
        for option, allowed in _CHOICES.items():
            if getattr(self, option) not in allowed:
                raise InvalidSpec(f"tiresias: {option} is {getattr(self, option)!r}; expected {' or '.join(allowed)}")

    def plan(self, view: Snapshot) -> Plan:
        memory = _Memory.of(view)
        upgrades = self.gpu_type == "fastest" and len(view.node_columns.gpu_types) > 1
        orderless = self.within == "running" and self.placing == "tight" and not upgrades
        everyone = all_fit(view) if orderless else None
        if everyone is not None:  # then it does not matter which job is in which queue
            return Plan(everyone, self._reasons(view, everyone, None, memory.forgiven), memo=memory.memo())
        columns = view.columns
        service_J = self._promoted(view, memory.forgiven) if self.promote else self._service(view)
        limits = self._limits
        queue_J = self._queue(service_J)
        if self.within == "entry":
            entered, order_J = _in_turn(columns, queue_J, memory.entered)
            memory.entered |= entered
        else:
            order_J = _order(columns, queue_J, service_J - limits[queue_J], view.now)
        speeds = speeds_by(self.gpu_type, self.seed, view)
        left_s_J = left_as_run(view) if upgrades else None
        allocations, chosen = run_first(view, order_J, speeds=speeds, left_s_J=left_s_J)
        if self.placing == "spread":
            allocations = spread(view, allocations, [columns.ids[job] for job in chosen])
        fall_in_s = (limits[queue_J[chosen] + 1] - service_J[chosen]) / columns.gpus_J[chosen]
        review_at = view.now + float(fall_in_s.min(initial=math.inf))
        if self.promote:
            review_at = min(review_at, float(self._promotion_at(columns, service_J, queue_J).min(initial=math.inf)))
        reasons = self._reasons(view, allocations, order_J, memory.forgiven)
        return Plan(allocations, reasons, review_at=review_at, memo=memory.memo())

    def _service(self, view: Snapshot) -> Floats:
        if self.service == "held":
            return np.array([job.held_at(view.now) for job in view.jobs.values()])
        return view.columns.service_gpu_s_J

    @property
    def _limits(self) -> Floats:
        return np.array((0.0, *self.thresholds, math.inf))

    def _queue(self, service: Floats) -> Indices:
        return np.searchsorted(self._limits, service + _TOLERANCE_GPU_S, side="right") - 1

    def _reasons(
        self,
        view: Snapshot,
        allocations: Mapping[str, Allocation],
        order_J: Indices | None,
        forgiven: Mapping[str, float],
    ) -> Reasons:
        order = None if order_J is None else lambda: [view.columns.ids[job] for job in order_J]
        reasons = queued_reasons(view, allocations, "least attained service first", order=order, preempts=True)

        def explain(job: Job) -> Reason:
            had = job.held_at(view.now) if self.service == "held" else job.service_at(view.now)
            service = had - forgiven.get(job.id, 0.0)
            queue = int(self._queue(np.array(service))) + 1
            why = reasons[job.id]
            text = f"{why.text}; queue {queue} of {len(self.thresholds) + 1} after {service:.0f} GPU-s"
            return replace(why, text=text, numbers={**why.numbers, "queue": queue, "service_gpu_s": service})

        return Reasons(view, explain)

    def _promoted(self, view: Snapshot, forgiven: dict[str, float]) -> Floats:
        """Service since the last promotion. Promotes every job that has waited long enough, and notes it."""
        columns = view.columns
        had_J = self._service(view)
        service_J = had_J.copy()
        if forgiven:
            service_J -= np.array([forgiven.get(job_id, 0.0) for job_id in columns.ids])
        promoted = self._promotion_at(columns, service_J, self._queue(service_J)) <= view.now + _TOLERANCE_GPU_S
        for job in np.flatnonzero(promoted):
            forgiven[columns.ids[job]] = float(had_J[job])
        service_J[promoted] = 0.0
        return service_J

    def _promotion_at(self, columns: Columns, service_J: Floats, queue_J: Indices) -> Floats:
        """When each job that waits in a lower queue has waited `promote` times as long as it ran since the last."""
        waits_J = (columns.held_J == 0) & (queue_J > 0)
        waited_at: Floats = columns.last_ran_at_J + self.promote * service_J / columns.gpus_J
        return np.where(waits_J, waited_at, math.inf)


@dataclass(slots=True)
class _Memory:
    """What a snapshot does not say of its jobs; part of `Plan.memo`."""

    #: GPU-seconds of service forgiven at a job's last promotion.
    forgiven: dict[str, float]
    #: With `entry`: the queue that a job was last seen in, and its turn there.
    entered: dict[str, list[int]]

    @classmethod
    def of(cls, view: Snapshot) -> _Memory:
        kept = view.memo.get(_MEMO, {})
        forgiven, entered = kept.get("forgiven", {}), kept.get("entered", {})
        return cls(
            {job_id: gpu_s for job_id, gpu_s in forgiven.items() if view.is_live(job_id)},
            {job_id: seen for job_id, seen in entered.items() if view.is_live(job_id)},
        )

    def memo(self) -> Memo:
        kept = {"forgiven": self.forgiven, "entered": self.entered}
        return {_MEMO: {name: found for name, found in kept.items() if found}} if any(kept.values()) else {}


def _in_turn(
    columns: Columns, queue_J: Indices, before: Mapping[str, list[int]]
) -> tuple[dict[str, list[int]], Indices]:
    """By queue, and within it by when each job was first seen there; those seen at once in order of arrival."""
    turn = max((turn for _, turn in before.values()), default=0)
    entered: dict[str, list[int]] = {}
    for job_id, queue in zip(columns.ids, queue_J.tolist(), strict=True):
        seen = before.get(job_id)
        if seen is None or seen[0] != queue:
            turn += 1
            seen = [queue, turn]
        entered[job_id] = seen
    turn_J = np.array([turn for _, turn in entered.values()], dtype=np.int64)
    return entered, np.lexsort((turn_J, queue_J))


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
