"""As many nodes as are put to good use: the cloud autoscaling of Pollux (Qiao et al., OSDI '21), around any policy.

    UTILITY   = sum_j SPEEDUP_j / GPUs there are
    SPEEDUP_j = goodput of job j with what the plan gives it / its goodput on one GPU

While a job waits for GPUs, utility counts as 1. When its mean over `patience_s` is above `high`, or over
`release_after_s` below `low`, the inner policy is asked what it would do with other numbers of nodes, and by bisection
that number is found whose utility is closest to the middle between the two, with two limits:

* Nobody waits for want of nodes: whoever would run on all nodes runs.
* Nobody pays for nothing: nodes that would speed nobody up, or that the inner policy leaves empty, are not wanted.

Nodes in use are kept first, then others that are there, then the cheapest. The inner policy plans on the nodes that are
there and stay; so jobs leave those that go, and use new ones once they join. Which those are is in the plan; how they
come and go is the business of whoever carries it out.

The past says when to decide, but the decision is for now: who comes after an idle time does not wait for patience.

A job of which nothing is known is taken to scale perfectly. Where no job reports anything, utility is thus the share of
GPUs in use, and nodes come when jobs wait and go when they are idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.memo import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Node, Phase, Plan
from fairlead.policies.appraising import Appraisal, Appraiser
from fairlead.policies.pollux import Pollux

#: Sums of speed-ups that differ by less than this share are equal.
_TOLERANCE = 1e-6


#: The key of its memory in `Snapshot.memo`.
_MEMO = "autoscale"


@dataclass(slots=True)
class _Memory:
    """What a snapshot does not say; part of `Plan.memo`."""

    #: (time, utility from then on), oldest first, since the last decision on nodes.
    seen: list[tuple[float, float]]
    #: Nodes to be released once no job is on them.
    leaving: frozenset[str]

    @classmethod
    def of(cls, view: Snapshot) -> _Memory:
        kept = view.memo.get(_MEMO, {})
        return cls([(at, utility) for at, utility in kept.get("seen", ())], frozenset(kept.get("leaving", ())))

    def memo(self) -> Memo:
        return {_MEMO: {"seen": [list(each) for each in self.seen], "leaving": sorted(self.leaving)}}

    def note(self, now: float, utility: float, *, window_s: float) -> None:
        while len(self.seen) > 1 and self.seen[1][0] + window_s <= now:
            del self.seen[0]
        if not self.seen or self.seen[-1][1] != utility:  # it goes on as it was: nothing to add
            self.seen.append((now, utility))

    def mean(self, now: float, window_s: float) -> float:
        """Over the last so many seconds; NaN if we know of fewer."""
        if not self.seen or self.seen[0][0] + window_s > now:
            return math.nan
        ends = [at for at, _ in self.seen[1:]] + [now]
        spans = [max(0.0, end - max(at, now - window_s)) for (at, _), end in zip(self.seen, ends, strict=True)]
        return sum(span * utility for span, (_, utility) in zip(spans, self.seen, strict=True)) / window_s


@dataclass(frozen=True, slots=True)
class _Stock:
    """The nodes one may decide about: none that failed or that an administrator drains."""

    #: The ones to have first, first.
    order: Sequence[str]
    #: Those on which jobs may be placed now, and those of them with jobs that must not be moved.
    there: frozenset[str]
    pinned: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Trial:
    """What the inner policy would do with some nodes."""

    allocations: Mapping[str, Allocation]
    speedups: float
    gpus: int

    @property
    def utility(self) -> float:
        return self.speedups / max(1, self.gpus)


@dataclass(frozen=True)
class Autoscale:
    """Rents and releases nodes, so that those there are do enough good; another policy plans on them."""

    wears = True

    #: The policy that plans on the nodes there are.
    inner: Policy = field(default_factory=Pollux)
    #: Mean utility below which nodes are released.
    low: float = 0.35
    #: Mean utility above which nodes are rented.
    high: float = 0.65
    #: The fewest nodes to keep.
    least: int = 1
    #: The most nodes to have; none for all of them.
    most: int | None = None
    #: Utility has to be high on average over so many seconds.
    patience_s: float = 900.0
    #: Utility has to be low on average over so many seconds.
    release_after_s: float = 300.0
    #: As the inner policy says.
    adapts: str = field(init=False, repr=False, compare=False)
    _appraiser: Appraiser = field(default_factory=Appraiser, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high < math.inf:
            raise InvalidSpec(f"autoscale: low is {self.low} and high {self.high}; expected 0 <= low < high")
        if not 1 <= self.least <= (self.least if self.most is None else self.most):
            raise InvalidSpec(f"autoscale: least is {self.least} and most {self.most}; expected 1 <= least <= most")
        for name in ("patience_s", "release_after_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidSpec(f"autoscale: {name} is {getattr(self, name)}; expected a positive number of seconds")
        object.__setattr__(self, "adapts", getattr(self.inner, "adapts", "nothing"))

    @property
    def needs(self) -> frozenset[Capability]:
        return needs_of(self.inner) | {Capability.RENTING}

    def plan(self, view: Snapshot) -> Plan:
        memory, stock = _Memory.of(view), _stock(view)
        existing = stock.there | view.coming
        wanted = existing - memory.leaving | stock.pinned
        fewest, most = self._bounds(stock)
        if self._is_time(memory, view.now):
            wanted = self._wanted(view, stock)
            memory.seen.clear()
        elif not fewest <= len(wanted) <= most:  # nodes fail and return
            wanted = frozenset(stock.order[: min(max(len(wanted), fewest), most)])
        leaving = memory.leaving = existing - wanted
        here = stock.there - leaving
        plan = self.inner.plan(_imagined(view, stock, here))
        waits = any(job_id not in plan.allocations for job_id in view.jobs)
        utility = 1.0 if waits else self._speedups(view, plan.allocations) / max(1, _gpus(view, here))
        memory.note(view.now, utility, window_s=max(self.patience_s, self.release_after_s))
        may_change = len(wanted) > fewest if utility < self.low else len(wanted) < most
        return replace(
            plan,
            nodes=frozenset(view.nodes) - view.released - leaving | wanted,
            review_at=min(plan.review_at, self._review_at(memory, view.now) if may_change else math.inf),
            memo={**plan.memo, **memory.memo()},
        )

    def _bounds(self, stock: _Stock) -> tuple[int, int]:
        fewest = max(min(self.least, len(stock.order)), len(stock.pinned))
        return fewest, max(fewest, len(stock.order) if self.most is None else min(self.most, len(stock.order)))

    def _is_time(self, memory: _Memory, now: float) -> bool:
        return memory.mean(now, self.patience_s) > self.high or memory.mean(now, self.release_after_s) < self.low

    def _review_at(self, memory: _Memory, now: float) -> float:
        """When utility will have been too low or too high for long enough, if it stays as it is."""
        seen = memory.seen
        if self.low <= seen[-1][1] <= self.high:
            return math.inf
        is_low = seen[-1][1] < self.low
        window_s = self.release_after_s if is_low else self.patience_s
        since = now
        for at, utility in reversed(seen):
            if not (utility < self.low if is_low else utility > self.high):
                break
            since = at
        return since + window_s if since + window_s > now else now + window_s

    def _wanted(self, view: Snapshot, stock: _Stock) -> frozenset[str]:
        """The nodes to have: see the module."""
        fewest, most = self._bounds(stock)
        target = (self.low + self.high) / 2.0
        tried: dict[int, _Trial] = {}

        def trial(count: int) -> _Trial:
            if count not in tried:
                there = frozenset(stock.order[:count])
                allocations = self.inner.plan(_imagined(view, stock, there)).allocations
                tried[count] = _Trial(allocations, self._speedups(view, allocations), _gpus(view, there))
            return tried[count]

        def is_enough(count: int, utility: float) -> bool:
            found, whole = trial(count), trial(most)
            if not whole.allocations.keys() <= found.allocations.keys():
                return False
            return found.utility <= utility or found.speedups >= whole.speedups * (1.0 - _TOLERANCE)

        low, high = fewest, most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle, target) else (middle + 1, high)
        if low > fewest and is_enough(low - 1, 2.0 * target - trial(low).utility):  # one fewer is as close, from above
            low -= 1
        used = {node for allocation in trial(low).allocations.values() for node in allocation.nodes}
        spare = [node for node in stock.order if node not in used | stock.pinned]
        wanted = [node for node in stock.order if node in used | stock.pinned]
        return frozenset(wanted + spare[: max(0, fewest - len(wanted))])

    def _speedups(self, view: Snapshot, allocations: Mapping[str, Allocation]) -> float:
        """The sum over all jobs."""
        by_type: dict[str, list[Job]] = {}
        for job_id, allocation in allocations.items():
            by_type.setdefault(view.nodes[allocation.nodes[0]].gpu_type, []).append(view.jobs[job_id])
        total = 0.0
        for gpu_type, jobs in by_type.items():
            reach = max(max(allocations[job.id].total, job.spec.least) for job in jobs)
            appraisals = self._appraiser.appraise(view, jobs, gpu_type, reach=reach, lore=True)
            for job, appraisal in zip(jobs, appraisals, strict=True):
                total += _speedup(job, appraisal, allocations[job.id])
        return total


def _gpus(view: Snapshot, nodes: Iterable[str]) -> int:
    return sum(view.nodes[node].gpus for node in nodes)


def _speedup(job: Job, appraisal: Appraisal, allocation: Allocation) -> float:
    """Relative to one GPU; to an equal part of the fewest it can run on, if those are more."""
    least = job.spec.least
    single = (appraisal.goodput(1, least) or appraisal.goodput(2, least)) / least
    return appraisal.goodput(len(allocation.shares), allocation.total) / single if single > 0.0 else allocation.total


def _stock(view: Snapshot) -> _Stock:
    there = frozenset(node.id for node in view.nodes.values() if node.open)
    fixed = (job.allocation for job in view.jobs.values() if job.allocation and not job.spec.preemptible)
    pinned = frozenset(node for allocation in fixed for node in allocation.nodes) & there

    def rank(node: Node) -> tuple[bool, int, int, float]:
        exists = 0 if node.id in there else 1 if node.id in view.coming else 2
        return (
            node.id not in pinned,
            -view.assigned.get(node.id, 0).bit_count(),
            exists,
            node.price_per_hour / node.gpus,
        )

    choice = there | view.coming | view.released
    order = sorted((node for node in view.nodes.values() if node.id in choice), key=rank)
    return _Stock([node.id for node in order], there, pinned)


def _imagined(view: Snapshot, stock: _Stock, there: frozenset[str]) -> Snapshot:
    """The snapshot as it would be with exactly these of the nodes one may decide about."""
    if there == stock.there:
        return view
    gone = stock.there - there
    nodes = dict(view.nodes)
    nodes.update((node_id, replace(nodes[node_id], healthy=False)) for node_id in gone)
    nodes.update((node_id, replace(nodes[node_id], healthy=True, draining=False)) for node_id in there - stock.there)
    jobs = {job_id: _moved(job, gone) for job_id, job in view.jobs.items()}
    allocations = {job_id: jobs[job_id].allocation for job_id in view.allocations if jobs[job_id].allocation}
    assigned: dict[str, int] = {}
    for allocation in allocations.values():
        for node, mask in allocation.masks:
            assigned[node] = assigned.get(node, 0) | mask
    return replace(
        view, nodes=nodes, jobs=jobs, allocations=allocations, assigned=assigned, _table=None, _node_table=None
    )


def _moved(job: Job, gone: frozenset[str]) -> Job:
    """The job without what it has on nodes that go: it can shrink in place, or has to start again elsewhere."""
    if gone.isdisjoint(job.allocation.nodes):
        return job
    kept = Allocation.of({node: gpus for node, gpus in job.allocation if node not in gone})
    if job.spec.in_place and kept.total >= job.spec.least:
        return replace(job, allocation=kept)
    return replace(job, phase=Phase.PENDING, allocation=NOTHING, releasing=NOTHING)
