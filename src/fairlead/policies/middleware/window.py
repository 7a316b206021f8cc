"""A long queue costs no more than a short one: of the jobs that wait, the inner policy sees the first ones.

Who is first: higher priority, then who has processes that only sleep, then turn by turn one job of each user of each
queue, in order of arrival. So nobody fills the window, however many jobs they hand in. Who holds GPUs is always seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Phase, Plan, Reason
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.middleware.wearing import pass_on
from fairlead.policies.reasons import Reasons
from fairlead.policies.tiresias import Tiresias

#: Too many others wait before it.
QUEUE = "far-back"


@dataclass(frozen=True)
class Window:
    """The first of those that wait, and all that run; another policy plans for them."""

    wears = True

    #: The policy that plans.
    inner: Policy = field(default_factory=Tiresias)
    #: Waiting jobs that it sees.
    most: int = 256
    #: As the inner policy says.
    adapts: str = field(init=False, repr=False, compare=False)
    needs_oracle: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise InvalidSpec(f"window: most is {self.most}; expected at least 1")
        pass_on(self, self.inner)

    def plan(self, view: Snapshot) -> Plan:
        if len(view.jobs) - len(view.allocations) <= self.most:
            return self.inner.plan(view)
        order = _order(view)
        ahead = {job.id: place for place, job in enumerate(order)}
        plan = self.inner.plan(imagined(view, hidden={job.id for job in order[self.most :]}))

        def explain(job: Job) -> Reason:
            place = ahead.get(job.id, 0)
            if place < self.most:
                return plan.reasons[job.id]
            text = f"waits: {place} jobs are before it, taking turns by user; the first {self.most} are looked at"
            return Reason(QUEUE, text, {"ahead": place, "window": self.most})

        return replace(plan, reasons=Reasons(view, explain))


def _order(view: Snapshot) -> list[Job]:
    """Those that hold nothing, the first one first."""
    turns: Counter[tuple[int, str, str]] = Counter()
    keys: list[tuple[int, bool, int, int, Job]] = []
    for place, job in enumerate(view.jobs.values()):
        if not job.allocation:
            spec = job.spec
            account = (spec.priority, spec.queue, spec.tenant)
            keys.append((-spec.priority, job.phase is Phase.PENDING, turns[account], place, job))
            turns[account] += 1
    keys.sort(key=lambda key: key[:4])
    return [job for *_, job in keys]
