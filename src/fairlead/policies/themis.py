"""Finish-time fairness by partial auctions of leased GPUs (Themis, NSDI 2020).

A job's finish-time fairness is

    rho = its time in the shared cluster / its time alone on 1/N of it

with N the mean number of jobs while it has been there (`finish_time.py`): up to 1, sharing costs the job nothing. GPUs
are given out as leases of `lease_s`. When leases end or jobs come, the free GPUs are offered:

1. **Filter.** Of the jobs that hold no lease the share 1 - f with the greatest rho may bid, and at least as many as
   ask for all free GPUs. A small share is fairer in the short term; a large one finds better placements.
2. **Bids.** Each states its rho on every GPU type and number of nodes, and its rho if it gets nothing for a lease.
3. **Winners** are those that make the product of all values, 1 / rho, the greatest (`auction.py`).
4. **Hidden payments.** A winner keeps only part of what it won. The paper's applications have many jobs and lose some
   of their GPUs; a gang cannot, so it loses the same part of the GPU-time: its lease is that much shorter.
5. **Leftovers** go to the other jobs: first to those that can stay where they are, then at random.

A job that is given the GPUs it has goes on without a stop. While the bidder with the greatest rho needs more GPUs than
are free, no new lease outlives the time at which it can have them: narrow jobs do not pass a wide one for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core.errors import InvalidSpec
from fairlead.core.memo import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Plan
from fairlead.policies.auction import Bid, Outcome, Pool, Where, hold_auction
from fairlead.policies.finish_time import MORE_NODES, FinishTimes
from fairlead.policies.gpu_speeds import draw
from fairlead.policies.lease_reasons import Lease, Leasing, Reservation, lease_reasons
from fairlead.policies.placing import realise
from fairlead.policies.rates import BelievedRates, RateSource
from fairlead.policies.remaining_time import fewest_nodes
from fairlead.policies.wait_reason import accepts, gpu_type_of, is_bound, open_gpus

#: The key of its memory in `Snapshot.memo`.
_MEMO = "themis"

#: A lease that ends within this share of its length ends now: clocks are not exact.
_ALMOST = 1e-6

#: A job is started for this share of a lease or more; one that runs may stay for less.
_WORTH_STARTING = 0.25


@dataclass(frozen=True)
class Themis:
    """The jobs that sharing has slowed down most bid for GPUs, which are leased for a time."""

    #: Share of the jobs without a lease that may not bid: those with the least rho. The greater, the fairer at once.
    f: float = 0.8
    #: Length of a lease, in seconds.
    lease_s: float = 1200.0
    #: Of the draw among jobs for what is left over.
    seed: int = 0
    _source: RateSource = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.f <= 1.0:
            raise InvalidSpec(f"themis: f is {self.f}; expected a share from 0 to 1")
        if not 0.0 < self.lease_s < math.inf:
            raise InvalidSpec(f"themis: lease_s is {self.lease_s}; expected a positive number of seconds")
        if self.seed < 0:
            raise InvalidSpec(f"themis: seed is {self.seed}; expected a whole number of at least 0")

    def plan(self, view: Snapshot) -> Plan:
        # 1. Which leases go on, and which GPUs are free without them?
        leases, auctions = _remembered(view, view.now + _ALMOST * self.lease_s)
        kept = [job for job in view.jobs.values() if job.allocation and (is_bound(job) or job.id in leases)]
        market = _Market(view, self._source, kept, leases, self.lease_s)
        if market.is_due:
            # 2. Filter, bids, winners, payments.
            market.auction(market.worst_off(1.0 - self.f))
            # 3. What is left goes to the others.
            market.leave(sorted(market.jobs, key=lambda job: draw(self.seed, job.id, auctions)))
            auctions += 1
        else:
            market.stay()
        # 4. Exactly which GPUs, and when to think again.
        allocations = _realise(view, market.where)
        granted = {job_id: lease for job_id, lease in market.leases.items() if job_id in allocations}
        waits = len(allocations) < len(view.jobs)
        return Plan(
            allocations,
            lease_reasons(view, allocations, Leasing(market.times, granted, self.lease_s, market.reservation)),
            bound=market.gap,
            review_at=min((lease.ends_at for lease in granted.values()), default=math.inf) if waits else math.inf,
            memo=_memo(granted, auctions),
        )


class _Market:
    """Free GPUs, and the jobs that hold no lease, while one plan is made."""

    def __init__(
        self, view: Snapshot, source: RateSource, kept: Sequence[Job], leases: Mapping[str, Lease], lease_s: float
    ) -> None:
        self._view, self._kept, self._lease_s = view, kept, lease_s
        self.times = FinishTimes(view, source, list(view.jobs.values()))
        #: What each job is given, by node.
        self.where: dict[str, Where] = {job.id: _counts(job.allocation) for job in kept}
        self.leases = {job_id: lease for job_id, lease in leases.items() if job_id in self.where}
        self._pool = _pool(view, kept)
        total = open_gpus(view)
        #: Jobs without a lease that could have GPUs, in order of arrival.
        self.jobs = [
            job
            for job in view.jobs.values()
            if job.id not in self.where
            and (job.allocation or any(accepts(job, t) and total[t] >= job.spec.gpus for t in total))
        ]
        self.reservation: Reservation | None = None
        self.gap: float | None = None

    @property
    def is_due(self) -> bool:
        """A job waits, or GPUs are idle that a job whose lease is over might prefer to its own."""
        held = sum(sum(self._open(job).values()) for job in self.jobs)
        idle = sum(self._pool.total.values()) - held
        return any(not job.allocation for job in self.jobs) or (bool(self.jobs) and idle > 0)

    def stay(self) -> None:
        """No job wants the GPUs of the jobs whose leases are over; without a lease they are given up when asked for."""
        for job in self.jobs:
            if job.allocation:
                self.where[job.id] = _counts(job.allocation)

    def idle_rho(self, job: Job) -> float:
        """If it gets nothing for a lease."""
        pause_s = job.start_s or 0.0
        return self.times.rho(job, self._lease_s + pause_s + self.times.best_s(job))

    def worst_off(self, share: float) -> list[Job]:
        """The share of the jobs with the greatest rho, or more of them if they would not ask for all free GPUs."""
        jobs = sorted(self.jobs, key=lambda job: -self.idle_rho(job))
        count, free = max(1, math.ceil(share * len(jobs) - 1e-9)), sum(self._pool.total.values())
        while count < len(jobs) and sum(job.spec.gpus for job in jobs[:count]) < free:
            count += 1
        return jobs[:count]

    def auction(self, bidders: Sequence[Job]) -> None:
        """Serve the winners among the bidders, which come with the greatest rho first."""
        outcome = hold_auction([self._bid(job) for job in bidders], self._pool)
        self.gap = 1.0 - math.exp(min(0.0, outcome.gain - outcome.bound) / len(bidders))
        self.reservation = self._reserve(bidders, outcome)
        for job in bidders:
            if (win := outcome.wins.get(job.id)) is not None:
                self._grant(job, win.where, stays=win.stays, share=outcome.kept[job.id])

    def leave(self, drawn: Sequence[Job]) -> None:
        """Give what is left to the jobs without GPUs: to those that stay where they are, then in the order drawn."""
        for job in self.jobs:
            if job.id not in self.where and job.allocation and self._pool.has(held := self._open(job)):
                self._grant(job, held, stays=True, share=1.0)
        for job in drawn:
            if job.id in self.where:
                continue
            bid = self._bid(job)
            fitting = {t: where for t in bid.rho if (where := self._pool.fit(t, job.spec.gpus)) is not None}
            best = min(fitting, key=lambda t: bid.rho_on(t, len(fitting[t])), default=None)
            if best is not None:
                self._grant(job, fitting[best], stays=False, share=1.0)

    def _bid(self, job: Job) -> Bid:
        times, pause_s = self.times, job.start_s or 0.0
        tables = {}
        for gpu_type in _types(self._view):
            if accepts(job, gpu_type):
                most = fewest_nodes(self._view, gpu_type, job.spec.gpus) + MORE_NODES
                left_s = [times.left_s(job, gpu_type, nodes) for nodes in range(1, most + 1)]
                if math.isfinite(left_s[0]):
                    tables[gpu_type] = [times.rho(job, pause_s + seconds) for seconds in left_s]
        if not job.allocation:
            return Bid(job.id, job.spec.gpus, self.idle_rho(job), tables)
        on = gpu_type_of(self._view, job.allocation)
        held_rho = times.rho(job, times.left_s(job, on, len(job.allocation.shares)))
        return Bid(job.id, job.spec.gpus, self.idle_rho(job), tables, self._open(job), held_rho)

    def _open(self, job: Job) -> Where:
        """What it holds on nodes that others could use."""
        return {node: count for node, count in _counts(job.allocation).items() if self._view.nodes[node].open}

    def _reserve(self, bidders: Sequence[Job], outcome: Outcome) -> Reservation | None:
        """Of the first bidder that needs more GPUs than are free: when leases that go on leave it enough, and where."""
        for job in bidders:
            usable = [t for t in _types(self._view) if accepts(job, t)]
            if job.id in outcome.wins or any(self._pool.total.get(t, 0) >= job.spec.gpus for t in usable):
                continue
            found = [(at, t) for t in usable if (at := self._enough_at(t, job.spec.gpus)) < math.inf]
            if found:
                until, gpu_type = min(found)
                return Reservation(job.id, gpu_type, until)
        return None

    def _enough_at(self, gpu_type: str, gpus: int) -> float:
        free = self._pool.total.get(gpu_type, 0)
        ending = [
            (self.leases[job.id].ends_at, sum(self._open(job).values()))
            for job in self._kept
            if job.id in self.leases and gpu_type_of(self._view, job.allocation) == gpu_type
        ]
        for ends_at, more in sorted(ending):
            free += more
            if free >= gpus:
                return ends_at
        return math.inf

    def _grant(self, job: Job, where: Where, *, stays: bool, share: float) -> None:
        """A lease for the share of its length and what a start takes, unless it would be too short to be worth that."""
        lease_s = self._lease_s * share + (0.0 if stays else job.start_s or 0.0)
        taken = job.allocation.nodes if stays else tuple(where)
        if self.reservation is not None and self._view.nodes[taken[0]].gpu_type == self.reservation.gpu_type:
            lease_s = min(lease_s, self.reservation.until - self._view.now)
            if not stays and lease_s < _WORTH_STARTING * self._lease_s:
                return
        self._pool.take(where)
        self.where[job.id] = _counts(job.allocation) if stays else where
        self.leases[job.id] = Lease(self._view.now + lease_s, share)


def _types(view: Snapshot) -> tuple[str, ...]:
    return view.node_columns.gpu_types


def _counts(allocation: Allocation) -> dict[str, int]:
    return {node: len(gpus) for node, gpus in allocation}


def _pool(view: Snapshot, kept: Sequence[Job]) -> Pool:
    """What open nodes have free beside the jobs that keep theirs."""
    free: dict[str, dict[str, int]] = {t: {} for t in _types(view)}
    for node in view.nodes.values():
        if node.open:
            free[node.gpu_type][node.id] = node.gpus
    for job in kept:
        for node_id, count in _counts(job.allocation).items():
            node = view.nodes[node_id]
            if node.open:
                free[node.gpu_type][node_id] -= count
    return Pool(free)


def _realise(view: Snapshot, where: Mapping[str, Where]) -> dict[str, Allocation]:
    row = {name: place for place, name in enumerate(view.node_columns.ids)}
    ids = [job_id for job_id in view.jobs if job_id in where]
    return realise(view, ids, [{row[node]: count for node, count in where[job_id].items()} for job_id in ids])


def _remembered(view: Snapshot, now: float) -> tuple[dict[str, Lease], int]:
    """Leases that are not over, and how many auctions there were."""
    kept = view.memo.get(_MEMO, {})
    leases = {job_id: Lease(ends_at, share) for job_id, (ends_at, share) in kept.get("leases", {}).items()}
    return {job_id: lease for job_id, lease in leases.items() if lease.ends_at > now}, kept.get("auctions", 0)


def _memo(leases: Mapping[str, Lease], auctions: int) -> Memo:
    return {_MEMO: {"leases": {job_id: list(lease) for job_id, lease in leases.items()}, "auctions": auctions}}
