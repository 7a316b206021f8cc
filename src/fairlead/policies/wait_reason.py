"""Why a job waits: the one fact that decides, found in a snapshot and in a plan for it.

A policy that serves jobs in an order describes that order as a `Discipline`. From it, the snapshot and the plan
`Waits` finds, for one job that the plan gives nothing:

    too-large   the open nodes that it accepts have fewer GPUs than it needs
    behind      enough GPUs are free, but jobs that are ahead of it wait for more
    preempted   it holds GPUs, and jobs that are ahead of it get them
    waiting     fewer GPUs are free than it needs; some jobs hold the others

The jobs that a reason names are a remedy (`Reason.jobs`): without all of them the policy would place the job, or leave
it alone. So a holder is named only if its GPUs count when it is the job's turn, and as few are named as are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import are, counted

#: The codes of this module.
TOO_LARGE, BEHIND, PREEMPTED, WAITING = "too-large", "behind", "preempted", "waiting"

#: Jobs that a sentence names; of more it tells how many there are.
NAMED = 3


@dataclass(frozen=True)
class Discipline:
    """How a policy serves jobs, as far as a wait depends on it."""

    #: The order in a few words: "strict order of arrival".
    rule: str
    #: Ids of live jobs, the one that is served first first; None if it is not known. Called once, when it is needed.
    order: Callable[[], Sequence[str]] | None = None
    #: Jobs that come later in the order lose their GPUs to jobs that come earlier.
    preempts: bool = False
    #: A job that cannot be served holds up all that come later, whatever they need.
    strict: bool = False
    #: Each job is first served the fewest GPUs it can run on, and not what it asked for.
    resizes: bool = False
    #: What ends the hold of a job from which nothing may be taken before, such as "the round ends in 90 s".
    until: str = ""
    #: Whether a job can run on a GPU type that it accepts; None if it can on each.
    suits: Callable[[Job, str], bool] | None = None
    #: Why a job for which enough GPUs are free may not pass those ahead of it, and the numbers of that; may be empty.
    bar: Callable[[Job], tuple[str, Mapping[str, float]]] | None = None

    def takes(self, job: Job, gpu_type: str) -> bool:
        return accepts(job, gpu_type) and (self.suits is None or self.suits(job, gpu_type))

    def needs(self, job: Job) -> int:
        """GPUs that a job which holds nothing is served at first."""
        return job.spec.least if self.resizes else job.spec.gpus


def accepts(job: Job, gpu_type: str) -> bool:
    return not job.spec.gpu_types or gpu_type in job.spec.gpu_types


def is_bound(job: Job) -> bool:
    """It holds GPUs that no policy may take from it."""
    return bool(job.allocation) and not job.spec.preemptible


def nothing_to_share(view: Snapshot) -> str:
    """Why no time is left to share or to sell, for a reason's text; empty if some is."""
    bound = sum(on_open_nodes(view, job.allocation) for job in view.jobs.values() if is_bound(job))
    is_all = 0 < bound >= sum(node.usable for node in view.nodes.values())
    return "all GPUs are held by jobs that must not be stopped" if is_all else ""


def named(job: Job) -> str:
    """Job 1 (holder)."""
    name = job.spec.name
    return f"job {job.id}" + (f" ({name})" if name and name != job.id else "")


def open_gpus(view: Snapshot) -> dict[str, int]:
    """GPUs on open nodes, by type."""
    found: dict[str, int] = {}
    for node in view.nodes.values():
        if node.open:
            found[node.gpu_type] = found.get(node.gpu_type, 0) + node.gpus
    return found


def on_open_nodes(view: Snapshot, allocation: Allocation) -> int:
    """GPUs of it that another job could have."""
    return sum(mask.bit_count() for node, mask in allocation.masks if view.nodes[node].open)


def gpu_type_of(view: Snapshot, allocation: Allocation) -> str:
    return view.nodes[allocation.nodes[0]].gpu_type


def time_left_s(view: Snapshot, job: Job) -> float:
    """What its time limit leaves a job; infinite if it states none."""
    return math.inf if job.spec.estimate_s is None else max(0.0, job.spec.estimate_s - job.run_at(view.now))


def held_until(view: Snapshot, job: Job, gpus: int, *, because: str = "") -> str:
    """How long a job keeps GPUs that nothing takes from it: "holds 3 until it ends: it states no time limit"."""
    left_s = time_left_s(view, job)
    if 0.0 < left_s < math.inf:
        return f"{named(job)} holds {gpus} for up to {left_s:.0f} s, by its time limit" + (
            f", and {because}" if because else ""
        )
    limit = "it states no time limit" if left_s else "its time limit is over"
    return f"{named(job)} holds {gpus} until it ends: {limit}" + (f" and {because}" if because else "")


def shut_nodes(view: Snapshot, job: Job) -> str:
    """What the nodes have that the job accepts and that take no new jobs: "; 4 more are on node n1, which drains"."""
    parts = []
    for verb, singular in (("drain", "drains"), ("are lost", "is lost")):
        nodes = [
            n
            for n in view.nodes.values()
            if accepts(job, n.gpu_type) and not n.open and n.healthy == (verb == "drain") and n.id not in view.released
        ]
        if nodes:
            gpus, ids = sum(n.gpus for n in nodes), ", ".join(n.id for n in nodes[:NAMED])
            more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
            which = f"node {ids}, which {singular}" if len(nodes) == 1 else f"nodes {ids}{more}, which {verb}"
            parts.append(f"; {gpus} more {are(gpus)} on {which}")
    return "".join(parts)


@dataclass(frozen=True)
class Holder:
    """A job that has GPUs when it is another one's turn."""

    job: Job
    #: GPUs that it has in the plan, and those of them that count at that turn.
    gpus: int
    counts: int
    #: It comes earlier in the order; else it keeps them because nothing may take them.
    is_ahead: bool


class Waits:
    """Reasons of all jobs that a plan gives nothing. What several of them need is computed once."""

    def __init__(self, view: Snapshot, allocations: Mapping[str, Allocation], discipline: Discipline) -> None:
        self._view, self._allocations, self._discipline = view, allocations, discipline

    @cached_property
    def _total(self) -> dict[str, int]:
        return open_gpus(self._view)

    @cached_property
    def _free(self) -> dict[str, int]:
        free = dict(self._total)
        for allocation in self._allocations.values():
            for node_id, mask in allocation.masks:
                if (node := self._view.nodes[node_id]).open:
                    free[node.gpu_type] -= mask.bit_count()
        return free

    @cached_property
    def _place(self) -> dict[str, int]:
        """Of each job in the order; empty if the order is not known."""
        order = self._discipline.order
        return {} if order is None else {job_id: place for place, job_id in enumerate(order())}

    def most(self, job: Job) -> tuple[int, int]:
        """GPUs of one type that the job accepts, on open nodes: the most there are, and the most that are free."""
        types = [gpu_type for gpu_type in self._total if self._discipline.takes(job, gpu_type)]
        return (
            max((self._total[gpu_type] for gpu_type in types), default=0),
            max((self._free[gpu_type] for gpu_type in types), default=0),
        )

    def free_of(self, gpu_type: str) -> int:
        """GPUs of a type on open nodes that the plan gives to no job."""
        return self._free.get(gpu_type, 0)

    def too_large(self, job: Job, needs: int) -> Reason:
        """The reason of a job that needs more than the nodes open to it have."""
        total, free = self.most(job)
        text = f"needs {counted(needs, 'GPU')}; the nodes open to it have {total}{shut_nodes(self._view, job)}"
        return Reason(TOO_LARGE, text, {"needs": needs, "free": free, "total": total})

    def reason(self, job: Job) -> Reason:
        needs, (total, free) = self._discipline.needs(job), self.most(job)
        numbers: dict[str, float] = {"needs": needs, "free": free, "total": total}
        what = f"needs {counted(needs, 'GPU')}"
        if total < needs:
            return self.too_large(job, needs)
        ahead = self._ahead(job)
        numbers |= {"ahead": len(ahead)} if self._place else {}
        if job.allocation:
            return self._preempted(job, ahead, numbers)
        if free >= needs:
            return self._behind(job, ahead, f"{what} and {free} {are(free)} free", numbers)
        holders = self._holders(job, needs)
        numbers["held_elsewhere"] = sum(holder.gpus for holder in holders)
        text = f"{what}, {free} {are(free)} free" + self._held(holders) + self._queue(ahead)
        return Reason(WAITING, text, numbers, (*(holder.job.id for holder in holders), *(other.id for other in ahead)))

    # -- jobs that wait too ------------------------------------------------------------------------------------------

    def _ahead(self, job: Job) -> list[Job]:
        """Jobs that hold and get nothing, come earlier, and could have GPUs that the job waits for."""
        mine = self._place.get(job.id, -1)
        types = [gpu_type for gpu_type in self._total if self._discipline.takes(job, gpu_type)]
        return [
            other
            for job_id, place in self._place.items()
            if place < mine and job_id not in self._allocations and (other := self._view.jobs.get(job_id)) is not None
            if self._discipline.strict
            or any(self._discipline.takes(other, t) and self._discipline.needs(other) <= self._total[t] for t in types)
        ]

    def _queue(self, ahead: Sequence[Job]) -> str:
        if not ahead:
            return ""
        gpus = sum(self._discipline.needs(other) for other in ahead)
        if len(ahead) == 1:
            return f"; {named(ahead[0])}, which needs {gpus}, is ahead of it ({self._discipline.rule})"
        first = f"{named(ahead[0])} first"
        return f"; {len(ahead)} jobs that need {gpus} are ahead of it, {first} ({self._discipline.rule})"

    def _behind(self, job: Job, ahead: Sequence[Job], enough: str, numbers: dict[str, float]) -> Reason:
        bar, more = ("", {}) if self._discipline.bar is None else self._discipline.bar(job)
        if ahead:
            text = f"{enough}, but{self._queue(ahead)[1:]}"
        else:
            text = f"{enough}, but jobs ahead of it wait ({self._discipline.rule})"
        return Reason(BEHIND, text + (f"; {bar}" if bar else ""), {**numbers, **more}, tuple(o.id for o in ahead))

    def _preempted(self, job: Job, ahead: Sequence[Job], numbers: dict[str, float]) -> Reason:
        """Jobs that come earlier and get more than they have; and those that would, if these were not there."""
        held, mine = gpu_type_of(self._view, job.allocation), self._place.get(job.id, math.inf)
        takers = [
            self._view.jobs[job_id]
            for job_id, allocation in self._allocations.items()
            if allocation.total > self._view.jobs[job_id].allocation.total
            and gpu_type_of(self._view, allocation) == held
            and self._place.get(job_id, -1) < mine
        ]
        listed = [f"{named(one)} gets {self._allocations[one.id].total}" for one in takers[:NAMED]]
        listed += [f"{counted(len(takers) - NAMED, 'more job')} too"] if len(takers) > NAMED else []
        text = f"gives its {counted(job.allocation.total, 'GPU')} to jobs that go first ({self._discipline.rule})"
        text += f": {', '.join(listed)}" if listed else ""
        jobs = tuple(other.id for other in (*takers, *ahead))
        return Reason(PREEMPTED, text, {**numbers, "taken": job.allocation.total}, jobs)

    # -- jobs that have the GPUs -------------------------------------------------------------------------------------

    def _holders(self, job: Job, needs: int) -> list[Holder]:
        """Jobs without which it would have enough: of the type where they end soonest, and as few as are enough."""
        best: tuple[float, int, list[Holder]] | None = None
        for gpu_type, total in self._total.items():
            if not self._discipline.takes(job, gpu_type) or total < needs:
                continue
            there = self._at_its_turn(job, gpu_type)
            lacking = needs - (total - sum(holder.counts for holder in there))
            chosen = _enough(there, lacking, lambda holder: time_left_s(self._view, holder.job))
            ends_s = max((time_left_s(self._view, holder.job) for holder in chosen), default=0.0)
            if best is None or (ends_s, len(chosen)) < best[:2]:
                best = ends_s, len(chosen), chosen
        return [] if best is None else best[2]

    def _at_its_turn(self, job: Job, gpu_type: str) -> list[Holder]:
        """Who has GPUs of a type when it is the job's turn."""
        discipline, view, found = self._discipline, self._view, []
        mine = self._place.get(job.id, math.inf)
        for job_id, allocation in self._allocations.items():
            if gpu_type_of(view, allocation) != gpu_type or not (usable := on_open_nodes(view, allocation)):
                continue
            other = view.jobs[job_id]
            earlier = self._place.get(job_id, -1) < mine
            if discipline.preempts and not earlier and not is_bound(other):
                continue  # it has what the job cannot use, and would lose it at once
            shrinks = discipline.resizes and not is_bound(other)
            counts = min(usable, other.spec.least) if shrinks else usable
            found.append(Holder(other, allocation.total, counts, is_ahead=discipline.preempts and not is_bound(other)))
        return found

    def _held(self, holders: Sequence[Holder]) -> str:
        parts = [f"; {self._keeps(holder)}" for holder in holders[:NAMED]]
        if rest := holders[NAMED:]:
            gpus = sum(holder.gpus for holder in rest)
            parts.append(f"; {counted(len(rest), 'more job')} {'holds' if len(rest) == 1 else 'hold'} {gpus}")
        return "".join(parts)

    def _keeps(self, holder: Holder) -> str:
        """What a holder has, and what would have to happen so that it has it no more."""
        job, discipline = holder.job, self._discipline
        rigid = "cannot shrink" if job.spec.least >= holder.gpus else ""
        if holder.is_ahead:
            floor = f", cannot run on fewer than {job.spec.least}" if discipline.resizes else ""
            return f"{named(job)} holds {holder.gpus}{floor} and goes first ({discipline.rule})"
        if discipline.until and not is_bound(job):
            return f"{named(job)} holds {holder.gpus} until it ends, or {discipline.until}"
        if discipline.preempts:
            return held_until(self._view, job, holder.gpus, because=rigid or "must not be stopped")
        because = rigid or "this policy neither preempts nor shrinks it"
        return held_until(self._view, job, holder.gpus, because=because)


def _enough(holders: Sequence[Holder], lacking: int, ends_s: Callable[[Holder], float]) -> list[Holder]:
    """The holders that end soonest until what they have is enough, without those that turn out not to be needed."""
    chosen: list[Holder] = []
    for holder in sorted(holders, key=lambda holder: (ends_s(holder), -holder.counts)):
        if lacking <= 0:
            break
        if holder.counts:
            chosen.append(holder)
            lacking -= holder.counts
    for holder in list(chosen):
        if lacking + holder.counts <= 0:
            chosen.remove(holder)
            lacking += holder.counts
    return chosen
