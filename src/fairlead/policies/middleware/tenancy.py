"""Queues with quotas, fair shares and limits, around any policy.

    1. propose    The inner policy plans as if there were no queues.
    2. judge      Does everybody have what it is entitled to (`shares`, `judging`)? Then that is the plan.
    3. bound      Who has too much is shown to the inner policy with less: jobs that can shrink are smaller, and where
                  that is not enough jobs are hidden (`bounding`). It plans again; and if now somebody else has too
                  much, once more with everybody bounded. So it is asked three times at most.
    4. lend       What nobody takes goes back to those who were bounded (`lending`).

So the inner policy decides who goes first, with how many GPUs and where, within each user's part; and a cluster on
which nobody is short is planned as if this were not there. Jobs that must not be preempted keep what they hold, and
begin only where no quota is at stake (`guarding`).

Everything is decided by the snapshot. What the inner policy remembers (`Plan.memo`) is what it noted with its proposal,
for which it saw all jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Phase, Plan
from fairlead.policies.middleware.bounding import Bounds, bound, bounded
from fairlead.policies.middleware.claims import Claims, claims
from fairlead.policies.middleware.guarding import guarded
from fairlead.policies.middleware.imagining import carried_out, imagined
from fairlead.policies.middleware.judging import Verdict, judge
from fairlead.policies.middleware.lending import lend, out_of_the_question, regrow
from fairlead.policies.middleware.queues import Queue, all_queues
from fairlead.policies.middleware.shares import Shares, shares
from fairlead.policies.middleware.telling import Outcome, reasons
from fairlead.policies.middleware.wearing import Wearer


@dataclass(frozen=True)
class Tenancy(Wearer):
    """Quotas, borrowing, fair shares and limits for queues and their users; another policy plans within them."""

    #: The queues there are; none for a single one in which all users have equal shares.
    queues: tuple[Queue, ...] | None = None
    #: Look again after so many seconds while somebody has less than its share; 0 waits for something to happen.
    review_s: float = 60.0
    _rules: Mapping[str, Queue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.review_s < math.inf:
            raise InvalidSpec(f"tenancy: review_s is {self.review_s}; expected a finite number of at least 0")
        super().__post_init__()
        object.__setattr__(self, "_rules", all_queues(self.queues or ()))

    def plan(self, view: Snapshot) -> Plan:
        if self._is_alone(view):
            return self._as_it_was(view, self.inner.plan(view))
        found = claims(view, self._rules, adapts=self.adapts)
        guard = {found.jobs[place].id: gpus for place, gpus in guarded(found).items()}
        seen = imagined(view, hidden=guard)
        if guard:
            found = claims(seen, self._rules, adapts=self.adapts)
        share = shares(found, view.usage)
        first = self.inner.plan(seen)  # 1. propose
        verdict = judge(seen, found, share, first)  # 2. judge
        within, bounds, last = first, None, verdict
        if not verdict.is_fine:  # 3. bound
            within, bounds, last = self._within(seen, found, share, verdict)
        wishes = {**self._stopped(seen, within), **self._shrunk(seen, within)}
        if bounds is None:
            planned = lend(seen, found, within.allocations, wishes) if wishes else within.allocations
        else:  # 4. lend
            planned = lend(seen, found, within.allocations, {**last.wishes, **first.allocations, **wishes})
            planned = self._used_up(seen, found, planned, bounds)
        outcome = Outcome(found, guard, verdict, bounds, first.allocations, within, planned)
        review_at = within.review_at
        if self.review_s and last.short_U.any():
            review_at = min(review_at, view.now + self.review_s)
        return replace(
            within,
            allocations=planned,
            reasons=reasons(view, outcome),
            nodes=first.nodes,
            review_at=review_at,
            memo=first.memo,
        )

    def _is_alone(self, view: Snapshot) -> bool:
        """One user, and nothing that is denied or guaranteed to anybody."""
        if any(queue.is_limited or queue.quota for queue in self._rules.values()):
            return False
        jobs = iter(view.jobs.values())
        first = next(jobs, None)
        if first is None:
            return True
        account = first.spec.queue, first.spec.tenant
        return all((job.spec.queue, job.spec.tenant) == account for job in jobs)

    def _within(self, view: Snapshot, found: Claims, share: Shares, verdict: Verdict) -> tuple[Plan, Bounds, Verdict]:
        """A plan in which nobody has too much, what it was bounded by, and how it was judged before."""
        bounds = bound(found, share, verdict, everyone=False)
        plan = self.inner.plan(bounded(view, found, bounds))
        again = judge(view, found, share, plan)
        if again.is_fine:
            return plan, bounds, again
        bounds = bound(found, share, again, everyone=True)
        return self.inner.plan(bounded(view, found, bounds)), bounds, again

    def _used_up(
        self, view: Snapshot, found: Claims, planned: dict[str, Allocation], bounds: Bounds
    ) -> dict[str, Allocation]:
        """If even so something is left for one who was hidden: whom would the inner policy give it to?"""
        cannot = out_of_the_question(view, found, planned, bounds.most_J)
        if cannot is None:
            return planned
        then = self.inner.plan(imagined(carried_out(view, Plan(planned)), hidden=cannot))
        return lend(view, found, planned, {**then.allocations, **planned})

    def _as_it_was(self, view: Snapshot, plan: Plan) -> Plan:
        """Who was made to shrink while there were others takes back what it asked for."""
        wishes = self._shrunk(view, plan)
        return replace(plan, allocations={**plan.allocations, **wishes}) if wishes else plan

    def _stopped(self, view: Snapshot, plan: Plan) -> dict[str, Allocation]:
        """Jobs that could go on with fewer GPUs, and are stopped by a policy that knows only all or nothing."""
        if self.adapts != "nothing":
            return {}
        gone = [view.jobs[job_id] for job_id in view.allocations if job_id not in plan.allocations]
        return {job.id: job.allocation for job in gone if job.spec.in_place and job.phase is Phase.RUNNING}

    def _shrunk(self, view: Snapshot, plan: Plan) -> dict[str, Allocation]:
        """Jobs that go on with fewer GPUs than they asked for, and what they could have of those that are idle.

        Only around a policy that would never resize them itself.
        """
        if self.adapts != "nothing":
            return {}
        columns = view.columns
        most: dict[str, int] = {}
        for place in np.flatnonzero((columns.held_J > 0) & (columns.held_J < columns.gpus_J)).tolist():
            job = view.jobs[columns.ids[place]]
            goes_on = plan.allocations.get(job.id) == job.allocation
            if goes_on and job.spec.in_place and job.spec.preemptible and job.phase is Phase.RUNNING:
                most[job.id] = job.spec.gpus
        grown = regrow(view, plan.allocations, most) if most else {}
        return {job_id: grown[job_id] for job_id in most if grown[job_id] != plan.allocations[job_id]}
