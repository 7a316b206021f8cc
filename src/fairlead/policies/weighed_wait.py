"""Why a job waits under a policy that maximises an objective: the one fact that decides, with its numbers.

    too-large    the open nodes that it accepts have fewer GPUs than it needs
    no-room      they have enough, but it achieves nothing on any number of them that it may have
    behind       enough GPUs are free, and are kept for a job that a rule serves first
    fragmented   enough GPUs are free, but on several nodes that jobs which span nodes share
    unplaced     enough GPUs are free, and the search has not found how to use them
    waiting      fewer GPUs are free than it needs, and what could be taken from other jobs is not enough either
    outweighed   fewer GPUs are free than it needs, and to take them from other jobs would cost the objective more

So "outweighed" is only said where the exchange is possible, and tells what it would cost and gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.allocator import Problem
from fairlead.policies.displacement import Displacement, Offer, cost_of
from fairlead.policies.wait_reason import (
    BEHIND,
    NAMED,
    WAITING,
    Discipline,
    Waits,
    accepts,
    held_until,
    named,
    time_left_s,
)
from fairlead.policies.weighing import Choices, fewest

NO_ROOM, FRAGMENTED, UNPLACED, OUTWEIGHED = "no-room", "fragmented", "unplaced", "outweighed"

#: No speed-up is worth so much: beyond it a figure is the price of a GPU that a rule owes the job (`Problem.scale`).
PRICE = 1e3


def is_price(problem: Problem, change: float) -> bool:
    return problem.scale is not None and abs(change) > PRICE


@dataclass(frozen=True)
class Standing:
    """What a rule beside the objective owes a job: it may keep its GPUs for a while, or has had too little so far."""

    lease_s: float = 0.0
    behind_gpu_s: float = 0.0

    def __str__(self) -> str:
        if self.lease_s > 0.0:
            return f"its lease lasts {self.lease_s:.0f} s more"
        return f"it is {self.behind_gpu_s:.0f} GPU-s behind its floor"


@dataclass(frozen=True)
class Rules:
    """What decides beside the objective: what a job is owed (`standing`), and the job that GPUs are kept for."""

    standing: Callable[[str], Standing | None] = lambda _: None
    reserved: str | None = None


@dataclass(frozen=True)
class _Trade:
    """GPUs of one type for a job that waits: what it would gain by them, and what those lose that have them."""

    gain: float
    loss: float
    offers: Sequence[Offer]


class WeighedWaits:
    """Reasons of all jobs that a plan gives nothing. What several of them need is computed once."""

    def __init__(
        self,
        view: Snapshot,
        allocations: Mapping[str, Allocation],
        options: Choices,
        problem: Problem,
        rules: Rules,
    ) -> None:
        self._view, self._allocations, self._options, self._problem = view, allocations, options, problem
        self._rules = rules
        self._room = Waits(view, allocations, Discipline(""))
        self._displacement = Displacement(view, allocations, options, problem)

    def reason(self, job: Job, j: int, found: Mapping[str, float]) -> Reason:
        """`found` are the figures that any job gets."""
        needs, (total, free) = fewest(job), self._room.most(job)
        numbers = {**found, "needs": needs, "free": free, "total": total}
        what = f"needs {counted(needs, 'GPU')}"
        if total < needs:
            return replace(self._room.too_large(job, needs), numbers=numbers)
        if not (self._options.one_JTS[j].any() or self._options.many_JTS[j].any()):
            text = f"{what}, and the nodes open to it have {total}, but it achieves nothing on any number it may have"
            return Reason(NO_ROOM, f"{text}: its batch cannot be divided among them", numbers)
        if free >= needs:
            return self._despite(job, f"{what} and {free} {are(free)} free", numbers)
        up = f"gives its {counted(job.allocation.total, 'GPU')} up: " if job.allocation else ""
        return self._for_lack(job, j, f"{up}{what}, {free} {are(free)} free", numbers)

    # -- enough GPUs are free ----------------------------------------------------------------------------------------

    def _despite(self, job: Job, enough: str, numbers: dict[str, float]) -> Reason:
        if (kept := self._kept_for(job)) is not None:
            return Reason(BEHIND, f"{enough}, but they are kept for {kept[1]}", numbers, (kept[0],))
        by_node, spanning = self._gaps(job)
        if max(by_node.values(), default=0) < numbers["needs"] and spanning:
            where = ", ".join(f"{gpus} on {node}" for node, gpus in list(by_node.items())[:NAMED])
            also = " and ".join(named(other) for other in spanning[:NAMED])
            spans = "spans nodes and is there" if len(spanning) == 1 else "span nodes and are there"
            text = f"{enough}, but not on one node ({where}), and {also} {spans}: jobs that span nodes share none"
            return Reason(FRAGMENTED, text, numbers, tuple(other.id for other in spanning))
        return Reason(UNPLACED, f"{enough}, but the search has found no better use of them yet", numbers)

    def _kept_for(self, job: Job) -> tuple[str, str] | None:
        """The other job that gets what comes free, and what is to be said of it."""
        reserved = self._view.jobs.get(self._rules.reserved or "")
        if reserved is None or reserved.id == job.id:
            return None
        standing = self._rules.standing(reserved.id)
        owed = f": {standing}" if standing else ""
        return reserved.id, f"{named(reserved)}, which needs {counted(fewest(reserved), 'GPU')}{owed}"

    def _gaps(self, job: Job) -> tuple[dict[str, int], list[Job]]:
        """Free GPUs by node where the job could go, and the jobs on these nodes that span several."""
        taken: dict[str, int] = {}
        for allocation in self._allocations.values():
            for node, mask in allocation.masks:
                taken[node] = taken.get(node, 0) + mask.bit_count()
        gaps = {
            node.id: node.gpus - taken.get(node.id, 0)
            for node in self._view.nodes.values()
            if node.open and accepts(job, node.gpu_type) and node.gpus > taken.get(node.id, 0)
        }
        spanning = [
            self._view.jobs[job_id]
            for job_id, allocation in self._allocations.items()
            if len(allocation.shares) > 1 and not gaps.keys().isdisjoint(allocation.nodes)
        ]
        return gaps, spanning

    # -- too few GPUs are free ---------------------------------------------------------------------------------------

    def _for_lack(self, job: Job, j: int, lack: str, numbers: dict[str, float]) -> Reason:
        if (kept := self._kept_for(job)) is not None:
            text = f"{lack}, and what comes free is kept for {kept[1]}"
            return Reason(WAITING, text, numbers, (kept[0],))
        kinds = [
            kind
            for kind, name in enumerate(self._options.gpu_types)
            if accepts(job, name) and self._problem.capacity[kind] >= numbers["needs"]
        ]
        trades = [trade for kind in kinds if (trade := self._trade(j, kind, int(numbers["needs"]))) is not None]
        if not trades:
            return self._stuck(kinds, lack, numbers)
        best = max(trades, key=lambda trade: trade.gain - trade.loss)
        numbers |= {"objective_gain": best.gain, "objective_loss": best.loss}
        jobs = tuple(offer.job.id for offer in best.offers)
        if best.loss < best.gain and not self._is_even(best):
            return Reason(WAITING, f"{lack}{self._facts(best.offers)}", numbers, jobs)
        return Reason(OUTWEIGHED, f"{lack}; {self._price(job, best)}", numbers, jobs)

    def _trade(self, j: int, kind: int, needs: int) -> _Trade | None:
        lacking = needs - self._room.free_of(self._options.gpu_types[kind])
        loss, offers = self._displacement.cheapest(kind, max(0, lacking))
        gain = float(self._problem.idle_J[j]) - self._gaining_cost(j, kind, needs)
        return _Trade(gain, loss, offers) if math.isfinite(loss) and math.isfinite(gain) else None

    def _gaining_cost(self, j: int, kind: int, needs: int) -> float:
        """Of the GPUs that it needs; of the next size that it may have, if they are none."""
        sizes = self._problem.sizes_S
        costs = [cost_of(self._problem, j, kind, int(size)) for size in sizes[sizes >= needs]]
        return next((cost for cost in costs if math.isfinite(cost)), math.inf)

    def _is_even(self, trade: _Trade) -> bool:
        """Differences that an objective of many jobs rounds away."""
        return bool(np.isclose(trade.loss, trade.gain, rtol=1e-6, atol=1e-12))

    def _price(self, job: Job, trade: _Trade) -> str:
        """What an exchange would cost and gain; in words where a rule owes the GPUs to a job."""
        if is_price(self._problem, trade.loss):
            owed = [
                f"{named(offer.job)} {_has(offer)}{f', and {standing}' if standing else ', which it is owed'}"
                for offer in trade.offers[:NAMED]
                for standing in [self._rules.standing(offer.job.id)]
            ]
            own = self._rules.standing(job.id)
            return "; ".join(owed) + (f"; this job: {own}" if own else "")
        what = " and ".join(_taken(offer) for offer in trade.offers[:NAMED])
        if len(trade.offers) > NAMED:
            what += f" and GPUs from {counted(len(trade.offers) - NAMED, 'more job')}"
        loss, gain = _apart(trade.loss, trade.gain)
        return f"to {what} would cost the objective {loss}, and this job would add {gain}"

    def _facts(self, offers: Sequence[Offer]) -> str:
        return "".join(f"; {named(offer.job)} {_has(offer)}" for offer in offers[:NAMED])

    def _stuck(self, kinds: Sequence[int], lack: str, numbers: dict[str, float]) -> Reason:
        """Jobs that can neither be stopped nor shrunk hold too much: on the type where they end soonest."""
        best: tuple[float, list[tuple[Job, int]]] | None = None
        for kind in kinds:
            free = self._room.free_of(self._options.gpu_types[kind])
            lacking = int(numbers["needs"]) - free - self._displacement.most(kind)
            found: list[tuple[Job, int]] = []
            there = [(job, self._allocations[job.id].total) for job in self._displacement.stuck(kind)]
            for job, gpus in sorted(there, key=lambda pair: (time_left_s(self._view, pair[0]), -pair[1])):
                if lacking > 0:
                    found.append((job, gpus))
                    lacking -= gpus
            ends_s = max((time_left_s(self._view, job) for job, _ in found), default=math.inf)
            if best is None or ends_s < best[0]:
                best = ends_s, found
        holders = [] if best is None else best[1]
        text = "".join(f"; {self._keeps(job, gpus)}" for job, gpus in holders[:NAMED])
        if rest := holders[NAMED:]:
            more = sum(gpus for _, gpus in rest)
            text += f"; {counted(len(rest), 'more job')} {'holds' if len(rest) == 1 else 'hold'} {more}"
        numbers["held_elsewhere"] = sum(gpus for _, gpus in holders)
        return Reason(WAITING, lack + text, numbers, tuple(job.id for job, _ in holders))

    def _keeps(self, job: Job, gpus: int) -> str:
        if job.spec.preemptible:  # it could be stopped, but not now
            return f"{named(job)} has {gpus}, and is left alone while it is {job.phase.value}"
        rigid = job.spec.least >= gpus
        return held_until(self._view, job, gpus, because="cannot shrink" if rigid else "must not be stopped")


def _apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart, if nine do."""
    pairs = ((f"{one:.{digits}g}", f"{other:.{digits}g}") for digits in range(3, 10))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{one:.3g}", f"{other:.3g}"))


def _has(offer: Offer) -> str:
    rigid = f" and {'cannot shrink' if offer.job.spec.least >= offer.has else f'needs {offer.job.spec.least}'}"
    return f"holds {offer.has}{rigid}"


def _taken(offer: Offer) -> str:
    if offer.left:
        return f"take {offer.has - offer.left} of {named(offer.job)}'s {counted(offer.has, 'GPU')}"
    rigid = " and cannot shrink" if offer.job.spec.least >= offer.has else ""
    return f"stop {named(offer.job)}, which holds {offer.has}{rigid},"
