"""No more GPUs than a job puts to good use: the search of Or, Zhang and Freedman (MLSys '20), around any policy.

Every elastic job looks for its efficient size as `goodput/search.py` says: it grows by `step` GPUs at a time while each
of them adds more than `threshold` of what one did before, and then steps back. The size it should have next is the most
that the inner policy may give it. So a job that is alone grows step by step to what is worthwhile, which is the paper's
engine; and among many, nobody holds GPUs that would do more for another.

Throughput is what jobs report. Where a job was measured with several batches on as many GPUs, the fastest counts: it is
the job that chooses. A job that reports nothing has what it asked for.

How many steps were measured at a size is told by the time spent there, as far as reports do not say so themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.memo import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Observation, Phase, Plan, Reason
from fairlead.core.wording import counted
from fairlead.goodput.search import Decision, ScalingEfficiency, Search, Seen, Situation
from fairlead.policies.even import Even
from fairlead.policies.reasons import Reasons

#: A GPU type, and how many of them.
_Size = tuple[str, int]

_CHANGING = (Phase.STARTING, Phase.RESCALING, Phase.STOPPING)
_IN_PLACE = (Phase.RUNNING, Phase.RESCALING)

#: Times add up with errors: a step that is done but for this part of it is done.
_TOLERANCE = 1e-6


#: The key of its memory in `Snapshot.memo`.
_MEMO = "frugal"


class _Memory:
    """The most steps measured at each size without a change, by job: what a snapshot does not say."""

    def __init__(self, view: Snapshot) -> None:
        kept: Memo = view.memo.get(_MEMO, {})
        self._steps = {job_id: dict(steps) for job_id, steps in kept.items() if view.is_live(job_id)}

    def note(self, job_id: str, size: _Size, steps: int) -> None:
        known = self._steps.setdefault(job_id, {})
        known[_key(size)] = max(steps, known.get(_key(size), 0))

    def steps(self, job_id: str, size: _Size) -> int:
        found: int = self._steps.get(job_id, {}).get(_key(size), 0)
        return found

    def memo(self) -> Memo:
        return {_MEMO: self._steps} if self._steps else {}


def _key(size: _Size) -> str:
    """As JSON has keys: `4 x a100`."""
    gpu_type, gpus = size
    return f"{gpus} x {gpu_type}"


@dataclass(frozen=True, slots=True)
class _Reported:
    """A job's past as the search wants it."""

    sizes: Sequence[Seen]
    now_size: int
    #: Measured at the present size since it has that.
    since_change: int

    def seen(self) -> Sequence[Seen]:
        return self.sizes

    def steps_since_change(self, size: int) -> int:
        return self.since_change if size == self.now_size else 0


@dataclass(frozen=True)
class Frugal:
    """Limits every job to what it puts to good use; another policy shares out the GPUs within these limits."""

    wears = True

    #: The policy that shares out the GPUs.
    inner: Policy = field(default_factory=Even)
    #: A GPU more has to add more than this part of what each did before it: 0 for any gain, 1 for perfect scaling.
    threshold: float = 0.1
    #: GPUs that a job grows and shrinks by while it searches.
    step: int = 4
    #: Look again after so many seconds at a job that has not told its speed yet; 0 waits for something to happen.
    review_s: float = 15.0
    #: As the inner policy says.
    adapts: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.step < 1:
            raise InvalidSpec(f"frugal: step is {self.step}; expected at least 1 GPU")
        if not 0.0 <= self.review_s < math.inf:
            raise InvalidSpec(f"frugal: review_s is {self.review_s}; expected a finite number of at least 0")
        ScalingEfficiency(self.threshold)  # refuses what is no threshold
        object.__setattr__(self, "adapts", getattr(self.inner, "adapts", "nothing"))

    @property
    def needs(self) -> frozenset[Capability]:
        return needs_of(self.inner)

    def plan(self, view: Snapshot) -> Plan:
        elastic = [job for job in view.jobs.values() if job.spec.least < job.spec.most]
        memory = _Memory(view)
        decisions = {job.id: self._decide(view, job, memory) for job in elastic}
        plan = self.inner.plan(_limited(view, decisions))
        reviews = [self._review_at(view, job, plan.allocations.get(job.id, NOTHING)) for job in elastic]
        reasons = Reasons(view, lambda job: _explained(plan.reasons[job.id], job, decisions.get(job.id)))
        memo = {**plan.memo, **memory.memo()}
        return replace(plan, reasons=reasons, review_at=min([plan.review_at, *reviews]), memo=memo)

    def _search(self, job: Job) -> Search:
        spec = job.spec
        return Search(spec.least, spec.most, self.step, spec.gpus, ScalingEfficiency(self.threshold))

    def _decide(self, view: Snapshot, job: Job, memory: _Memory) -> Decision:
        """The most GPUs it should have now."""
        search, held = self._search(job), job.allocation.total
        steps = _steps_here(view, job)
        if steps is not None:
            memory.note(job.id, (_type(view, job), held), steps)
        seen = _seen(view, job, memory)
        if held:
            situation = Situation(changing=job.phase in _CHANGING)
            return search.next_size(_Reported(seen, held, steps or 0), held, situation)
        # Who waits may have what it should have had next.
        last = seen[-1].size if seen else job.spec.gpus
        return search.next_size(_Reported(seen, last, search.every_steps), last, Situation())

    def _review_at(self, view: Snapshot, job: Job, planned: Allocation) -> float:
        """When it will have been measured for long enough to decide, or else begin to train, if all goes as before."""
        if not planned:
            return math.inf
        unknown_at = view.now + self.review_s if self.review_s > 0.0 else math.inf
        steps, search = _steps_here(view, job), self._search(job)
        if planned != job.allocation or job.phase is not Phase.RUNNING:
            since = view.now if planned != job.allocation else job.since
            pause_s = job.rescale_s if job.spec.in_place and job.phase in _IN_PLACE else job.start_s
            known_at = unknown_at if pause_s is None else since + pause_s
        elif steps is None:
            known_at = unknown_at
        elif (wanted := next((some for some in (search.every_steps, search.enough_steps) if steps < some), 0)) == 0:
            known_at = math.inf
        else:  # one more than is wanted: the first after a change is not measured
            known_at = job.since + (wanted + 1) * _here(view, job)[0].step_s
        return known_at if known_at > view.now else unknown_at


def _seen(view: Snapshot, job: Job, memory: _Memory) -> list[Seen]:
    """All sizes it told of on GPUs of its type, smallest first."""
    gpu_type, best = _type(view, job), dict[int, Observation]()
    reported: dict[int, int] = {}
    for new in job.belief.observations:
        if new.gpu_type != gpu_type or new.step_s == 0.0:
            continue
        reported[new.gpus] = reported.get(new.gpus, 0) + new.steps
        if new.gpus not in best or _throughput(new) > _throughput(best[new.gpus]):
            best[new.gpus] = new
    return [
        Seen(size, _throughput(each), each.step_s, max(reported[size], memory.steps(job.id, (gpu_type, size))))
        for size, each in sorted(best.items())
    ]


def _type(view: Snapshot, job: Job) -> str:
    """Of the GPUs it holds, or else of those it told of last."""
    if job.allocation:
        return view.nodes[job.allocation.nodes[0]].gpu_type
    return job.belief.observations[-1].gpu_type if job.belief.observations else ""


def _throughput(seen: Observation) -> float:
    """Samples per second of all GPUs together."""
    return seen.gpus * seen.per_gpu_batch * (seen.accumulation + 1) / seen.step_s


def _here(view: Snapshot, job: Job) -> list[Observation]:
    """What it told of the size it has, the latest first."""
    size = _type(view, job), job.allocation.total
    return [o for o in reversed(job.belief.observations) if (o.gpu_type, o.gpus) == size and o.step_s > 0.0]


def _steps_here(view: Snapshot, job: Job) -> int | None:
    """Measured since it has the size it has; None if it does not train or has not told its speed yet."""
    told = _here(view, job) if job.phase is Phase.RUNNING else []
    if not told:
        return None
    done = (view.now - job.since) / told[0].step_s + _TOLERANCE
    return max(0, math.floor(done) - 1)


def _limited(view: Snapshot, decisions: dict[str, Decision]) -> Snapshot:
    """The snapshot in which nobody can use more than was decided."""
    jobs = dict(view.jobs)
    for job_id, decision in decisions.items():
        spec, held = jobs[job_id].spec, jobs[job_id].allocation.total
        most = decision.size if spec.preemptible else max(decision.size, held)
        if most < spec.most:
            jobs[job_id] = replace(jobs[job_id], spec=replace(spec, gpus=min(spec.gpus, most), gpus_max=most))
    return replace(view, jobs=jobs, _table=None)


def _explained(reason: Reason, job: Job, decision: Decision | None) -> Reason:
    if decision is None:
        return reason
    # Of a job that waits it would be wrong to say that it goes from one size to another.
    why = decision.why if job.allocation else f"It may have up to {counted(decision.size, 'GPU')}."
    return replace(reason, text=f"{reason.text}. {why}", numbers={**reason.numbers, "limit": decision.size})
