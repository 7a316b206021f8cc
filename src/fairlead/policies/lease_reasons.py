"""Why a job has or waits for a lease of GPUs: its finish-time fairness, and whose lease ends when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.finish_time import FinishTimes
from fairlead.policies.reasons import PLACED, Reasons
from fairlead.policies.wait_reason import (
    BEHIND,
    NAMED,
    PREEMPTED,
    WAITING,
    Discipline,
    Waits,
    accepts,
    gpu_type_of,
    held_until,
    is_bound,
    named,
    on_open_nodes,
    open_gpus,
)


class Lease(NamedTuple):
    """GPUs for a time."""

    ends_at: float
    #: Of the full length: what its hidden payment left of it.
    share: float


class Reservation(NamedTuple):
    """A job that needs more GPUs than are free: of a type, and from when on leases leave it enough."""

    job: str
    gpu_type: str
    until: float


class Leasing(NamedTuple):
    """What a plan was made of."""

    times: FinishTimes
    leases: Mapping[str, Lease]
    lease_s: float
    reservation: Reservation | None


def lease_reasons(view: Snapshot, allocations: Mapping[str, Allocation], leasing: Leasing) -> Reasons:
    """One for every live job."""
    told = _Told(view, allocations, leasing)
    return Reasons(view, told.reason)


class _Told:
    def __init__(self, view: Snapshot, allocations: Mapping[str, Allocation], leasing: Leasing) -> None:
        self._view, self._allocations, self._leasing = view, allocations, leasing
        self._waits = Waits(view, allocations, Discipline("the greatest rho bids first"))

    def reason(self, job: Job) -> Reason:
        allocation = self._allocations.get(job.id)
        if allocation is not None:
            return self._placed(job, allocation)
        total, free = self._waits.most(job)
        if total < job.spec.gpus:
            return self._waits.too_large(job, job.spec.gpus)
        rho = self._idle_rho(job)
        rivals = self._rivals(job)
        numbers = {
            "needs": job.spec.gpus,
            "free": free,
            "total": total,
            "ahead": sum(self._idle_rho(other) > rho for other in rivals),
            "rho": rho,
        }
        if job.allocation:
            return self._lost(job, rivals, numbers)
        if free >= job.spec.gpus:
            return self._kept_free(job, numbers)
        return self._waiting(job, rivals, numbers)

    def _idle_rho(self, job: Job) -> float:
        leasing = self._leasing
        return leasing.times.rho(job, leasing.lease_s + (job.start_s or 0.0) + leasing.times.best_s(job))

    def _rivals(self, job: Job) -> list[Job]:
        """Other jobs that get nothing and accept a type that the job accepts."""
        types = [t for t in self._view.node_columns.gpu_types if accepts(job, t)]
        return [
            other
            for other in self._view.jobs.values()
            if other.id != job.id and other.id not in self._allocations and any(accepts(other, t) for t in types)
        ]

    def _fairness(self, job: Job, rho: float) -> str:
        share = f"1/{self._leasing.times.contention(job):.3g}"
        guess = ", a guess" if job.id in self._leasing.times.guessed else ""
        return f"rho {rho:.2f} (its time here over its time alone on {share} of the cluster{guess})"

    def _placed(self, job: Job, allocation: Allocation) -> Reason:
        view, lease = self._view, self._leasing.leases.get(job.id)
        on, gpus = gpu_type_of(view, allocation), allocation.total
        rho = self._leasing.times.rho(job, self._leasing.times.left_s(job, on, len(allocation.shares)))
        verb = "keeps" if job.allocation == allocation else "gets"
        text = f"{verb} {counted(gpus, 'GPU')}: {allocation}; {self._fairness(job, rho)}"
        numbers = {"gpus": gpus, "rho": rho}
        if is_bound(job):
            return Reason(PLACED, f"{text}; it must not be preempted", numbers)
        if lease is None:
            return Reason(PLACED, f"{text}; its lease is over, and no job has asked for its GPUs", numbers)
        left_s = lease.ends_at - view.now
        paid = f", after a payment of {1 - lease.share:.0%} of it" if lease.share < 1.0 else ""
        text += f"; its lease ends in {left_s:.0f} s{paid}"
        return Reason(PLACED, text, {**numbers, "lease_left_s": left_s, "lease_share": lease.share})

    def _lost(self, job: Job, rivals: Sequence[Job], numbers: dict[str, float]) -> Reason:
        """Its lease is over, and its GPUs go to others."""
        view, on = self._view, gpu_type_of(self._view, job.allocation)
        takers = [
            view.jobs[job_id]
            for job_id, allocation in self._allocations.items()
            if gpu_type_of(view, allocation) == on and allocation != view.jobs[job_id].allocation
        ]
        listed = ", ".join(f"{named(each)} gets {self._allocations[each.id].total}" for each in takers[:NAMED])
        more = f" and {counted(len(takers) - NAMED, 'more job')} too" if len(takers) > NAMED else ""
        text = f"its lease of {counted(job.allocation.total, 'GPU')} is over and others won them"
        text += f": {listed}{more}" if takers else ""
        text += f"; {self._fairness(job, numbers['rho'])}"
        jobs = tuple(each.id for each in (*takers, *rivals))
        return Reason(PREEMPTED, text, {**numbers, "taken": job.allocation.total}, jobs)

    def _kept_free(self, job: Job, numbers: dict[str, float]) -> Reason:
        """Enough GPUs are free: for a job that needs more, and will have them soon."""
        free, needs = int(numbers["free"]), job.spec.gpus
        text = f"needs {counted(needs, 'GPU')} and {free} {are(free)} free"
        kept = self._leasing.reservation
        if kept is None or kept.job == job.id:
            return Reason(BEHIND, f"{text}, but other jobs bid first; {self._fairness(job, numbers['rho'])}", numbers)
        wide, soon_s = self._view.jobs[kept.job], kept.until - self._view.now
        text += f", but in {soon_s:.0f} s {named(wide)}, which needs {wide.spec.gpus}, can have them"
        text += f"; {self._fairness(job, numbers['rho'])}"
        return Reason(BEHIND, text, {**numbers, "until_s": soon_s}, (wide.id,))

    def _waiting(self, job: Job, rivals: Sequence[Job], numbers: dict[str, float]) -> Reason:
        holders = self._holders(job)
        free, needs = int(numbers["free"]), job.spec.gpus
        parts = [f"; {self._holds(holder)}" for holder in holders[:NAMED]]
        if rest := holders[NAMED:]:
            parts.append(f"; {counted(len(rest), 'more job')} {'holds' if len(rest) == 1 else 'hold'} others")
        text = f"needs {counted(needs, 'GPU')}, {free} {are(free)} free" + "".join(parts)
        text += f"; {self._fairness(job, numbers['rho'])}"
        if rivals:
            verb = "waits" if len(rivals) == 1 else "wait"
            text += f"; {counted(len(rivals), 'other job')} {verb}, {int(numbers['ahead'])} with a greater rho"
        held = sum(self._allocations[holder.id].total for holder in holders)
        jobs = tuple(each.id for each in (*holders, *rivals))
        return Reason(WAITING, text, {**numbers, "held_elsewhere": held}, jobs)

    def _holds(self, holder: Job) -> str:
        gpus, lease = self._allocations[holder.id].total, self._leasing.leases.get(holder.id)
        if lease is None:
            because = "cannot shrink" if holder.spec.least >= gpus else "must not be stopped"
            return held_until(self._view, holder, gpus, because=because)
        return f"{named(holder)} holds {gpus} until its lease ends in {lease.ends_at - self._view.now:.0f} s"

    def _holders(self, job: Job) -> list[Job]:
        """Jobs without which it would have enough GPUs: on the type where leases end first, as few as it takes."""
        best: tuple[float, list[Job]] | None = None
        for gpu_type, total in open_gpus(self._view).items():
            if not accepts(job, gpu_type) or total < job.spec.gpus:
                continue
            there = [
                (self._ends_at(job_id), on_open_nodes(self._view, allocation), job_id)
                for job_id, allocation in self._allocations.items()
                if gpu_type_of(self._view, allocation) == gpu_type and on_open_nodes(self._view, allocation)
            ]
            lacking, chosen, ends_at = job.spec.gpus - self._waits.free_of(gpu_type), [], -1.0
            for at, gpus, job_id in sorted(there):
                if lacking <= 0:
                    break
                chosen.append(self._view.jobs[job_id])
                lacking, ends_at = lacking - gpus, at
            if best is None or ends_at < best[0]:
                best = ends_at, chosen
        return [] if best is None else best[1]

    def _ends_at(self, job_id: str) -> float:
        lease = self._leasing.leases.get(job_id)
        return float("inf") if lease is None else lease.ends_at
