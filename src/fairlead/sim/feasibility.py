"""Before a submission: can this job meet its deadline and stay within its budget, and if not, with how many GPUs?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fairlead.core.loop import Cadence, Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, JobSpec
from fairlead.core.wording import counted
from fairlead.sim.believed import BelievedTruth, Believer
from fairlead.sim.forecast import USUAL, Effort, JobForecast, about, forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Whether a job can meet its deadline and its budget, and why, in a sentence."""

    verdict: Literal["feasible", "feasible with other GPUs", "infeasible", "unknown"]
    why: str
    #: Exactly so many are needed; None if it is feasible as it was asked for, or not at all.
    gpus: int | None = None
    #: Of the job as it was asked for; None if that was not tried.
    forecast: JobForecast | None = None


def feasibility(
    view: Snapshot,
    spec: JobSpec,
    *,
    policy: Policy,
    cadence: Cadence,
    now: float | None = None,
    others: Sequence[Job] = (),
    effort: Effort = USUAL,
) -> Answer:
    """Could this job, submitted now, end before its deadline and within its budget?

    First as it was asked for; if it cannot, fixed to other numbers of GPUs, the fewest first.
    """
    at = max(view.now, now or view.now)
    believer = Believer(tuple(view.jobs.values()), tuple(view.nodes.values()), view.lore, view.now)
    truth = believer.truth(Job(spec, at))
    if not truth.known:
        help = "give time_limit, or a label model that it shares with jobs which have reported their progress"
        return Answer(verdict="unknown", why=f"nothing is known of its speed: {help}")
    case = _Case(spec, at, believer, truth)
    if hopeless := case.hopeless():
        return Answer(verdict="infeasible", why=hopeless)

    def look(asked: JobSpec) -> JobForecast:
        plain = replace(effort, samples=0)
        seen = forecast(view, policy=policy, cadence=cadence, also=(asked,), others=others, now=at, effort=plain)
        return seen.jobs[spec.id]

    first = look(spec)
    if case.meets(first.ends_at, first.cost):
        return Answer(verdict="feasible", why=case.told(first), forecast=first)
    for size in case.sizes():
        if (size, size) == (spec.least, spec.most):
            continue
        found = look(believer.fixed(spec, truth, size))
        if case.meets(found.ends_at, found.cost):
            why = f"{case.falls_short(first)}; with {case.gpus(size)} {case.told(found, 'would end')}{case.guess(size)}"
            return Answer(verdict="feasible with other GPUs", why=why, gpus=size, forecast=first)
    if first.ends_at is None:
        return Answer(verdict="unknown", why=first.why, forecast=first)
    return Answer(verdict="infeasible", why=case.missed(first), forecast=first)


class _Case:
    """A job that has a deadline or a budget, and how it would do alone in the cluster."""

    def __init__(self, spec: JobSpec, at: float, believer: Believer, truth: BelievedTruth) -> None:
        self._spec, self._at = spec, at
        self._deadline = math.inf if spec.deadline is None else spec.deadline
        self._budget = math.inf if spec.budget is None else spec.budget
        self._alone = believer.alone(Job(spec, at), truth)
        self._room = max(self._alone, default=0)
        self._modelled = truth.scaling.modelled
        #: On the numbers of GPUs that it may have.
        self._asked = {n: found for n, found in self._alone.items() if spec.least <= n <= spec.most} or self._alone

    def meets(self, ends_at: float | None, cost: float | None) -> bool:
        return ends_at is not None and ends_at <= self._deadline and (cost or 0.0) <= self._budget

    def sizes(self) -> list[int]:
        """Those worth a try: alone in the cluster they would do."""
        return [count for count, (seconds, cost) in self._alone.items() if self.meets(self._at + seconds, cost)]

    def hopeless(self) -> str:
        """Why it cannot be done even in an empty cluster; empty if it can."""
        if self._spec.least > self._room:
            kind = " or ".join(self._spec.gpu_types) or "one type"
            return f"it needs {counted(self._spec.least, 'GPU')} of {kind}, and there are {self._room}"
        if self.sizes():
            return ""
        quickest = min(self._alone, key=lambda count: self._alone[count][0])
        cheapest = min(self._alone, key=lambda count: self._alone[count][1])
        seconds, dear = self._alone[quickest]
        if self._at + seconds > self._deadline:
            needs = f"it needs about {about(seconds)}{self.guess(quickest)}"
            return f"even alone on {self.gpus(quickest)} {needs}; {self._due()}"
        seconds, least = self._alone[cheapest]
        words = f"even on {self.gpus(cheapest)} it costs about {least:.3g}"
        if least <= self._budget:
            words = (
                f"in time it costs about {dear:.3g}, on {self.gpus(quickest)}; for {least:.3g} it needs about "
                f"{about(seconds)}, on {self.gpus(cheapest)}, and {self._due()}"
            )
        return f"{words}; the budget is {self._budget:g}"

    def guess(self, gpus: int) -> str:
        """What a time on other GPUs than were asked for rests on, where that is no measurement."""
        return "" if self._modelled or gpus in self._asked else ", if it is as much faster as it has more GPUs"

    def falls_short(self, found: JobForecast) -> str:
        """How the job as it was asked for does not meet them."""
        if found.ends_at is None:
            return "as it was asked for, it cannot be told when it ends"
        words = f"as it was asked for, it ends in about {about(found.ends_at - self._at)}"
        if found.ends_at > self._deadline:
            return f"{words}, {about(found.ends_at - self._deadline)} after its deadline"
        return f"{words}, and costs about {found.cost or 0.0:.3g} of {self._budget:g}"

    def told(self, found: JobForecast, ends: str = "ends") -> str:
        """How it meets them."""
        assert found.ends_at is not None, "it does"
        words = f"it {ends} in about {about(found.ends_at - self._at)}"
        if self._spec.deadline is not None:
            words += f", {about(self._spec.deadline - found.ends_at)} before its deadline"
        if self._spec.budget is not None:
            words += f", and costs about {found.cost or 0.0:.3g} of {self._budget:g}"
        return words

    def missed(self, found: JobForecast) -> str:
        """How it does not, though it could alone."""
        assert found.ends_at is not None, "or it is unknown"
        if found.ends_at <= self._deadline:
            return f"it costs about {found.cost or 0.0:.3g}; the budget is {self._budget:g}"
        alone_s, late_s = min(seconds for seconds, _ in self._asked.values()), found.ends_at - self._at
        if self._at + alone_s > self._deadline:
            return f"on the GPUs it asks for it needs about {about(alone_s)}, also alone; {self._due()}"
        return (
            f"alone it needs about {about(alone_s)}, but behind and beside others it ends in about {about(late_s)}; "
            f"{self._due()}"
        )

    def _due(self) -> str:
        left_s = self._deadline - self._at
        return f"the deadline is in {about(left_s)}" if left_s > 0.0 else f"the deadline was {about(-left_s)} ago"

    def gpus(self, count: int) -> str:
        return f"all {count} GPUs" if count == self._room > 1 else counted(count, "GPU")
