"""A long queue costs no more than a short one: of the jobs that wait, the inner policy sees the first ones.

Who is first: higher priority, then who has processes that only sleep, then turn by turn one job of each user of each
queue, in order of arrival. So nobody fills the window, however many jobs they hand in. Who holds GPUs is always seen.

Legend: J live jobs in order of arrival, W those of them that hold nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache as lazily

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Columns, Snapshot
from fairlead.core.types import Job, Plan, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.middleware.imagining import narrowed
from fairlead.policies.middleware.wearing import Wearer
from fairlead.policies.reasons import Reasons

#: Too many others wait before it.
QUEUE = "far-back"


@dataclass(frozen=True)
class Window(Wearer):
    """The first of those that wait, and all that run; another policy plans for them."""

    #: Waiting jobs that it sees.
    most: int = 256

    def __post_init__(self) -> None:
        if self.most < 1:
            raise InvalidSpec(f"window: most is {self.most}; expected at least 1")
        super().__post_init__()

    def plan(self, view: Snapshot) -> Plan:
        if len(view.jobs) - len(view.allocations) <= self.most:
            return self.inner.plan(view)
        order_W = _order(view.columns)
        kept_J = view.columns.held_J > 0
        kept_J[order_W[: self.most]] = True
        plan = self.inner.plan(narrowed(view, kept_J))
        place_J = np.zeros(len(kept_J), dtype=np.int64)
        place_J[order_W] = np.arange(len(order_W))
        place_of = lazily(lambda: dict(zip(view.columns.ids, place_J.tolist(), strict=True)))

        def explain(job: Job) -> Reason:
            place = place_of()[job.id]
            if place < self.most:
                return plan.reasons[job.id]
            ahead = f"{counted(place, 'job')} {are(place)} before it"
            text = f"waits: {ahead}, taking turns by user; the first {self.most} are looked at"
            return Reason(QUEUE, text, {"ahead": place, "window": self.most})

        return replace(plan, reasons=Reasons(view, explain))


def _order(columns: Columns) -> NDArray[np.int64]:
    """Those that hold nothing, the first one first."""
    waits_W = np.flatnonzero(columns.held_J == 0)
    urgency_W, account_W = -columns.priority_J[waits_W], columns.account_J[waits_W]
    grouped = np.lexsort((account_W, urgency_W))  # keeps the order of arrival within each
    begins = np.ones(len(waits_W), dtype=bool)
    begins[1:] = (np.diff(urgency_W[grouped]) != 0) | (np.diff(account_W[grouped]) != 0)
    numbers = np.arange(len(waits_W))
    turn_W = np.empty(len(waits_W), dtype=np.int64)
    turn_W[grouped] = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    order: NDArray[np.int64] = waits_W[np.lexsort((turn_W, columns.pending_J[waits_W], urgency_W))]
    return order
