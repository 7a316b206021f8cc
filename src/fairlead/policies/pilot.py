"""Pilot, our own: shortest mean completion time from goodput, with a floor under everybody's share.

Think of a GPU-second as having a price lambda, in seconds of waiting. A job with work W left that runs on k GPUs at
goodput g(k) waits W / g(k) and uses k W / g(k) GPU-seconds; the k that costs least in all is the one that minimises

    (1 + lambda k) / g(k)                                                                                          (1)

whatever W is. lambda is the price at which all jobs, choosing so, want exactly the GPUs there are. The least value of
(1) is then what a sample of the job's work is worth, and a second on k GPUs earns

    v_j(k) = g_j(k) min_k' (1 + lambda k') / g_j(k')                                                               (2)

The sum of these is maximised, which is the choice of (1) where all can have it. Two things bend it:

* Hurry. The price is higher now than later whenever jobs queue up, and only long jobs can wait for later. So v_j is
  weighted by L_j^-hurry, with L_j the GPU-seconds that the job's remaining work would take on one GPU.
* Pauses. A change of GPUs costs a pause, measured per job. v_j is lowered by H / (H + pause), with H the time the
  change has to pay off in: what is left of the job, but no longer than it has been left alone since its last start,
  or is on average.

Fair by construction: a job that has held less than `floor` times the GPU-seconds of an equal share (counted from its
arrival, over all jobs that were there) is behind. What that would give it in a lease, LEASE times its pause, is
neglected: for so long it may wait until others finish. Jobs that are behind get an equal share, or all they can use of
one, before anybody gets more; where even that is too much, the furthest behind first. Whoever was given GPUs may keep
an equal share of them for a lease, so that taking turns costs little; and while the furthest behind waits for leases to
end, nobody else is given GPUs. So no job waits for ever; and with at most as many jobs as GPUs, each of which can run
on one, none is behind for longer than a lease and a start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Phase, Plan
from fairlead.policies.allocator import Problem, allocate
from fairlead.policies.appraising import Appraiser, work_left
from fairlead.policies.explaining import shut_reasons, weighed_reasons
from fairlead.policies.placing import realise
from fairlead.policies.weighed_wait import Rules, Standing
from fairlead.policies.weighing import Choices, choices

Floats = NDArray[np.float64]

#: GPU-seconds of work that a job is taken to have left of which nothing is known, and the least any is taken to have.
UNKNOWN_GPU_S, LEAST_GPU_S = 600.0, 30.0

#: Pauses until a job has had one: of a change in place, and of a restart.
RESCALE_S, RESTART_S = 2.0, 30.0

#: A price beside which waiting counts for nothing. Jobs that scale perfectly want every GPU at any price.
DEAR = 1e3

#: What each GPU that a job which is behind lacks of an equal share costs: more than all jobs could earn with it.
BEHIND = 1e4

#: Pauses in a lease: taking turns takes no more than a tenth of the time.
LEASE = 10.0


@dataclass(frozen=True)
class Pilot:
    """Shortest mean completion time from goodput, with a floor under everybody's share."""

    adapts = "batch"

    #: How much jobs with little left come first: 0 not at all, 1 as if nothing else mattered.
    hurry: float = 0.15
    #: A job with less than this part of an equal share so far is served first; 0 guarantees nothing.
    floor: float = 0.25
    #: Use what other jobs of the same model have taught.
    lore: bool = True
    #: Look again after so many seconds while a job is finding out how well it scales; 0 waits for something to happen.
    review_s: float = 15.0
    _appraiser: Appraiser = field(default_factory=Appraiser, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("hurry", "floor", "review_s"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise InvalidSpec(f"pilot: {name} is {value}; expected a number of at least 0")
        if self.floor > 1.0:
            raise InvalidSpec(f"pilot: floor is {self.floor}; an equal share for everybody is 1, so expected 0 to 1")
        if self.hurry > 1.0:
            raise InvalidSpec(f"pilot: hurry is {self.hurry}; at 1 nothing else matters, so expected 0 to 1")

    def plan(self, view: Snapshot) -> Plan:
        if not view.jobs or not any(node.open for node in view.nodes.values()):
            return Plan(dict(view.allocations), shut_reasons(view))
        options = choices(view, self._appraiser, reach=1, lore=self.lore)
        worth_J = _worth(options) * np.array([job.spec.weight for job in options.jobs])
        left_J = np.array([self._left(view, j, options) for j in range(len(options.jobs))])
        weight_J = worth_J * np.maximum(_on_one_gpu(options, left_J), LEAST_GPU_S) ** -self.hurry
        highest_J = np.maximum(options.one_JTS, options.many_JTS).max(axis=(1, 2), initial=0.0)
        highest = float((weight_J * np.maximum(highest_J, options.now_J)).max())
        weight_J /= max(highest, 1e-300)  # nobody can earn over 1
        pause_J, alone_J = _pauses(view.now, options.jobs)
        # Who holds nothing must start some time: that costs the same whenever it does.
        dear_J = np.where(options.now_J > 0.0, pause_J, 0.0)

        def cost(goodput: Floats) -> Floats:
            return np.asarray(-goodput * weight_J[:, None, None])

        def moved(goodput: Floats) -> Floats:
            left_s = left_J[:, None, None] / np.maximum(goodput, 1e-12)
            horizon_s = np.maximum(1e-3, np.minimum(alone_J[:, None, None], left_s))
            return np.asarray(goodput * horizon_s / (horizon_s + dear_J[:, None, None]))

        problem = options.problem(cost, moved=moved, idle_J=np.zeros(len(weight_J)))
        problem = replace(problem, scale=float((weight_J * highest_J).sum()))
        lease_J = LEASE * pause_J
        behind_J = self._serve_first(view, options, problem, lease_J)
        answer = allocate(problem)
        # Who cannot run on what there is would be furthest behind in the end, and nobody else would run.
        finite_JTS = np.isfinite(np.minimum(problem.one_JTS, problem.many_JTS)) & (problem.sizes_S > 0)
        reserved = None
        first = int(np.where(finite_JTS.any(axis=(1, 2)), behind_J, -np.inf).argmax())
        if behind_J[first] > 0.0 and not answer.where[first] and not options.jobs[first].allocation:
            problem, reserved = _reserved(problem, first), options.jobs[first].id
            answer = allocate(problem)
        allocations = realise(view, [job.id for job in options.jobs], answer.where)
        rules = Rules(lambda job_id: self._standing(view.now, options.jobs, job_id, lease_J, behind_J), reserved)
        earned, possible = -answer.cost, -answer.bound
        return Plan(
            allocations,
            weighed_reasons(view, allocations, options, problem, rules=rules),
            bound=min(1.0, max(0.0, 1.0 - earned / possible)) if possible > 0.0 else None,
            review_at=self._review_at(view, options, allocations, _Turns(behind_J, lease_J)),
        )

    def _left(self, view: Snapshot, j: int, options: Choices) -> float:
        """Samples of work a job has left: measured, or by its user's promise, or a guess."""
        job, appraisals = options.jobs[j], options.appraisals[j]
        measured = work_left(job, view.lore if self.lore else {}, appraisals)
        if measured is not None:
            return measured
        appraisal = appraisals[options.gpu_types[0]]
        if job.spec.estimate_s is None:
            return UNKNOWN_GPU_S * appraisal.goodput(1, 1)
        # Nobody knows its speed, so it scales perfectly: then on what it asked for as on the most it may have so far.
        promised, known = job.spec.gpus, min(job.spec.gpus, appraisal.most)
        speed = appraisal.goodput(1, known) * promised / known
        return max(0.0, job.spec.estimate_s - job.run_at(view.now)) * speed

    def _serve_first(self, view: Snapshot, options: Choices, problem: Problem, lease_J: Floats) -> Floats:
        """Make it dear to give less than an equal share to jobs that are behind, the further the dearer; and dearest to
        take it from those whose lease has not run out. Returns how far behind each is, in GPU-seconds."""
        share = options.gpus / len(options.jobs)
        held_J = np.array([job.held_at(view.now) for job in options.jobs])
        due_J = np.array([view.fair_gpu_s - job.fair_from_gpu_s for job in options.jobs])
        behind_J = self.floor * (due_J - share * lease_J) - held_J
        furthest = float(behind_J.max())
        for j, job in enumerate(options.jobs):
            can_use = max(appraisal.most for appraisal in options.appraisals[j].values())
            enough = max(job.spec.least, min(max(1, math.floor(share)), can_use))
            if self.floor and job.allocation and view.now - job.since < lease_J[j]:
                enough, urgency = min(enough, job.allocation.total), 3.0
            elif behind_J[j] > 0.0:
                urgency = 1.0 + behind_J[j] / furthest
            else:
                continue
            _add_price(problem, j, BEHIND * urgency * np.maximum(0, enough - problem.sizes_S))
        return np.asarray(behind_J)

    def _standing(
        self, now: float, jobs: Sequence[Job], job_id: str, lease_J: Floats, behind_J: Floats
    ) -> Standing | None:
        """What the floor owes a job: as `_serve_first` has it."""
        j = next(j for j, job in enumerate(jobs) if job.id == job_id)
        left_s = float(lease_J[j]) - (now - jobs[j].since)
        if self.floor and jobs[j].allocation and left_s > 0.0:
            return Standing(lease_s=left_s)
        return Standing(behind_gpu_s=float(behind_J[j])) if behind_J[j] > 0.0 else None

    def _review_at(
        self, view: Snapshot, options: Choices, allocations: Mapping[str, Allocation], turns: _Turns
    ) -> float:
        """Soon, while a job waits, or one that runs could have more GPUs once it is measured on those it has.

        If no job can change its size there is nothing to be learned: then when a job's turn comes, if ever.
        """
        if not self.review_s:
            return math.inf
        rigid = all(job.spec.least == job.spec.most for job in options.jobs)
        for job, by_type in zip(options.jobs, options.appraisals, strict=True):
            allocation = allocations.get(job.id)
            if allocation is None:
                if any(job.spec.least <= appraisal.most for appraisal in by_type.values()):  # it may be behind by then
                    return self._next_turn(view, options, allocations, turns) if rigid else view.now + self.review_s
                continue
            appraisal = by_type[view.nodes[allocation.nodes[0]].gpu_type]
            if not rigid and (appraisal.fit is None or allocation.total == appraisal.most < job.spec.most):
                return view.now + self.review_s
        return math.inf

    def _next_turn(
        self, view: Snapshot, options: Choices, allocations: Mapping[str, Allocation], turns: _Turns
    ) -> float:
        """When the plan for jobs that cannot be resized may change though nothing happens: a job falls behind, or a
        lease ends. Until then time only speaks for those that run: they have less left. In whole multiples of
        `review_s`, as if it had looked all the time."""
        share = options.gpus / len(options.jobs)
        first_s = math.inf
        for job, behind, lease_s in zip(options.jobs, turns.behind_J, turns.lease_J, strict=True):
            holds = allocations[job.id].total if job.id in allocations else 0
            begun = view.now if allocations.get(job.id) != job.allocation else job.since
            left_s = begun + lease_s - view.now
            if self.floor and holds and left_s > 0.0:
                first_s = min(first_s, left_s)
            elif behind > 0.0 and holds:
                first_s = 0.0  # until it has caught up, it and a waiting job may change places at any time
            elif behind <= 0.0 and self.floor * share > holds:
                first_s = min(first_s, -behind / (self.floor * share - holds))
        return (
            view.now + self.review_s * max(1.0, math.ceil(first_s / self.review_s)) if first_s < math.inf else first_s
        )


@dataclass(frozen=True)
class _Turns:
    """How far behind each job is, in GPU-seconds, and how long each may keep GPUs it was given."""

    behind_J: Floats
    lease_J: Floats


def _add_price(problem: Problem, j: int, lacking_S: Floats) -> None:
    """Make each choice of a job dearer by what it lacks; nothing by what every choice lacks, since nobody can help."""
    stay_gpus = sum(problem.held[j].values())
    stay = float(lacking_S[min(int(np.searchsorted(problem.sizes_S, stay_gpus)), len(lacking_S) - 1)])
    possible_S = np.isfinite(np.minimum(problem.one_JTS[j], problem.many_JTS[j])).any(axis=0)
    least = min(
        float(lacking_S[possible_S].min(initial=np.inf)),
        float(lacking_S[0]) if np.isfinite(problem.idle_J[j]) else np.inf,
        stay if np.isfinite(problem.stay_J[j]) else np.inf,
    )
    lacking_S = lacking_S - (least if np.isfinite(least) else 0.0)
    problem.one_JTS[j] += lacking_S
    problem.many_JTS[j] += lacking_S
    problem.idle_J[j] += lacking_S[0]
    problem.stay_J[j] += stay - (least if np.isfinite(least) else 0.0)


def _reserved(problem: Problem, first: int) -> Problem:
    """The same, but nobody else is given more than it holds: what comes free is kept until it is enough."""
    held_J = np.array([sum(nodes.values()) for nodes in problem.held])
    more_JS = problem.sizes_S > held_J[:, None]
    more_JS[first] = False
    one_JTS, many_JTS = (
        np.where(more_JS[:, None, :], np.inf, cost_JTS) for cost_JTS in (problem.one_JTS, problem.many_JTS)
    )
    return replace(problem, one_JTS=one_JTS, many_JTS=many_JTS)


def _worth(options: Choices) -> Floats:
    """The least of (1) at the clearing price: what a sample of each job's work costs, in seconds of waiting.

    Faster GPU types are dearer in proportion to how much faster they are.
    """
    goodput_JTS = np.maximum(options.one_JTS, options.many_JTS)
    with np.errstate(divide="ignore"):
        per_sample_JTS = 1.0 / goodput_JTS
    speed_T = _relative_speeds(options)
    use_TS = speed_T[:, None] * options.sizes_S  # a choice's GPUs, in GPUs of the first type
    use_X, per_sample_JX = use_TS.ravel(), per_sample_JTS.reshape(len(goodput_JTS), -1)
    capacity = float(speed_T @ np.bincount(options.type_N, weights=options.gpus_N, minlength=len(speed_T)))
    low, high = 1e-9, 1e-9
    while use_X[((1.0 + high * use_X) * per_sample_JX).argmin(axis=1)].sum() > capacity and high < DEAR:
        low, high = high, 8.0 * high
    for _ in range(24):
        middle = math.sqrt(low * high)
        if use_X[((1.0 + middle * use_X) * per_sample_JX).argmin(axis=1)].sum() > capacity:
            low = middle
        else:
            high = middle
    worth_J = ((1.0 + high * use_X) * per_sample_JX).min(axis=1)
    return np.where(np.isfinite(worth_J), worth_J, 0.0)


def _relative_speeds(options: Choices) -> Floats:
    """Of each GPU type: the median, over the jobs, of goodput on one GPU relative to the first type."""
    first, found = options.gpu_types[0], []
    for gpu_type in options.gpu_types:
        ratios = [
            by_type[gpu_type].goodput(1, 1) / by_type[first].goodput(1, 1)
            for by_type in options.appraisals
            if by_type[first].goodput(1, 1) > 0.0 and by_type[gpu_type].goodput(1, 1) > 0.0
        ]
        found.append(float(np.median(ratios)) if ratios else 1.0)
    return np.array(found)


def _on_one_gpu(options: Choices, left_J: Floats) -> Floats:
    """GPU-seconds that the work would take on as few GPUs of the first type as the job can run on."""
    first = options.gpu_types[0]
    single_J = np.array(
        [
            by_type[first].goodput(1, job.spec.least) / job.spec.least
            for job, by_type in zip(options.jobs, options.appraisals, strict=True)
        ]
    )
    return np.asarray(np.divide(left_J, single_J, out=np.full(len(left_J), UNKNOWN_GPU_S), where=single_J > 0.0))


def _pauses(now: float, jobs: Sequence[Job]) -> tuple[Floats, Floats]:
    """What a change of GPUs costs each job, and how long it is usually left alone; both in seconds."""
    pause, alone = [], []
    for job in jobs:
        measured_s, usual_s = (job.rescale_s, RESCALE_S) if job.spec.in_place else (job.start_s, RESTART_S)
        pause.append(usual_s if measured_s is None else measured_s)
        running_s = now - job.since if job.phase is Phase.RUNNING else 0.0
        alone.append(max(1.0, running_s, (now - job.submitted_at) / max(1, job.attempt)))
    return np.array(pause), np.array(alone)
