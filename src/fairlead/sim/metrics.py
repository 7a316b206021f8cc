"""From a journal to figures: completion times, waiting, fairness, utilisation, waste, deadlines and cost.

The journal is the only input, simulated or live. docs/metrics.md defines every figure; a test asserts that none is
missing there. A figure over nothing (the mean of no jobs) is None, never NaN.

Finish-time fairness of a job is rho = JCT / (need x contention): how many times longer it took than its fair share
of the cluster would have made it take.
- need = first start + alone: what the job takes on a cluster of its own. The first start is what it was STARTING in its
  first attempt, which no scheduler can save it. alone is the time it would have trained alone on the GPUs it asked
  for, where the caller knows that (`alone_s`: the simulator does); else the seconds it was seen RUNNING. A job with
  alone 0 has no rho.
- contention = max(1, average over the job's life of GPUs requested by live jobs / GPUs of healthy nodes). Moments
  without a healthy node are left out of the average.
So an idle cluster gives 1. Two papers' own definitions have their own names, and leave the start out: `rho_themis`
takes max(1, average number of live jobs / GPUs) as the contention, `rho_shockwave` max(1, jobs in the whole trace /
GPUs). Both are blind to how many GPUs a job needs.

What a lost node destroyed is not in a journal. `gpu_h_lost` counts, for every attempt that ended with a lost node or
a failure, the GPU-time it spent RUNNING since it last reported a checkpoint, or since it began to train.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import Message
from fairlead.core.types import Phase
from fairlead.sim.ledger import Ledger
from fairlead.sim.life import Life
from fairlead.sim.timeline import Floats, Timeline

#: A job is treated unfairly if its rho is above this: Shockwave's two thresholds.
UNFAIR_RHO, UNFAIR_RHO_110 = 1.05, 1.1

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job. Times are on the journal's clock; None is what did not happen."""

    job: str
    name: str
    tenant: str
    gpus: int
    phase: Phase
    submitted_at: float
    first_started_at: float | None
    ended_at: float | None
    #: From submission to success; None for a job that did not succeed.
    jct_s: float | None
    #: Seconds without and with GPUs, from submission to the end or the last message: their sum is the life so far.
    queue_s: float
    held_s: float
    #: Seconds RUNNING.
    run_s: float
    #: GPU-seconds held, whatever for; of a shared GPU, its share.
    held_gpu_s: float
    starts: int
    preemptions: int
    rescales: int
    deadline: float | None
    deadline_missed: bool
    #: See the module; None where the job did not succeed or has no time alone. `alone_s` is without the first start.
    first_start_s: float | None
    alone_s: float | None
    contention: float | None
    rho: float | None
    rho_themis: float | None
    rho_shockwave: float | None
    #: It arrived in the measured window.
    counted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of one journal. docs/metrics.md defines each of them."""

    jobs: int
    completed: int
    cancelled: int
    unfinished: int
    unfinished_ids: tuple[str, ...]
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p90_s: float | None
    jct_p99_s: float | None
    queue_mean_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    wait_first_mean_s: float | None
    makespan_s: float | None
    rho_worst: float | None
    rho_mean: float | None
    unfair_share: float | None
    unfair_share_110: float | None
    jain: float | None
    rho_themis_worst: float | None
    rho_themis_mean: float | None
    unfair_themis_share: float | None
    rho_shockwave_worst: float | None
    rho_shockwave_mean: float | None
    unfair_shockwave_share: float | None
    utilisation: float | None
    fragmentation: float | None
    gpu_h_useful: float
    gpu_h_restart: float
    gpu_h_idle: float
    gpu_h_lost: float
    restarts_per_job: float | None
    preemptions: int
    rescales: int
    deadline_jobs: int
    deadline_misses: int
    node_hours: float
    cost: float

    def to_dict(self) -> dict[str, Any]:
        """JSON without NaN; the keys are the field names."""
        return asdict(self) | {"unfinished_ids": list(self.unfinished_ids)}


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything a journal says: the figures, what became of each job, and the cluster over time."""

    summary: Metrics
    #: In order of submission.
    jobs: tuple[JobOutcome, ...]
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured: from `warmup_s` after the first submission on, for `window_s`. All of it by default.

    Jobs count that arrive in it, whenever they end; of the cluster, what happens in it.
    """

    warmup_s: float = 0.0
    window_s: float = math.inf

    def __post_init__(self) -> None:
        if not (0.0 <= self.warmup_s < math.inf and self.window_s > 0.0):
            raise InvalidSpec(
                f"the warm-up is {self.warmup_s:g} s and the window {self.window_s:g} s; expected a warm-up of at "
                "least 0 and a window above 0"
            )

    def counts(self, since_first_s: float) -> bool:
        """Whether a job counts that arrives so long after the first one."""
        return self.warmup_s <= since_first_s < self.warmup_s + self.window_s


EVERYTHING = Window()


def measure(
    messages: Iterable[Message], *, alone_s: Mapping[str, float] | None = None, window: Window = EVERYTHING
) -> Measured:
    """Read a whole journal, oldest message first. `alone_s`: seconds each job would take alone on what it asked for."""
    ledger = Ledger(warmup_s=window.warmup_s, window_s=window.window_s)
    ledger.read(messages)
    ledger.close()
    lives, timeline = list(ledger.lives.values()), ledger.timeline()
    jobs = _outcomes(lives, timeline, now=ledger.now, alone_s=alone_s or {})
    if window != EVERYTHING:
        first_s = timeline.start_s
        jobs = tuple(replace(job, counted=window.counts(job.submitted_at - first_s)) for job in jobs)
    return Measured(_summary(jobs, lives, timeline, window), jobs, timeline)


def _outcomes(
    lives: Sequence[Life], timeline: Timeline, *, now: float, alone_s: Mapping[str, float]
) -> tuple[JobOutcome, ...]:
    ends = [now if life.ended_at is None else life.ended_at for life in lives]
    spans = np.array([life.submitted_at for life in lives]), np.array(ends)
    contentions = _contention(timeline, timeline.requested, *spans)
    by_jobs = _contention(timeline, timeline.queued + timeline.running, *spans)
    of_trace = max(1.0, len(lives) / max(1.0, float(timeline.gpus.max(initial=0.0))))
    outcomes = []
    for life, end, contention, crowd in zip(lives, ends, contentions.tolist(), by_jobs.tolist(), strict=True):
        life_s = end - life.submitted_at
        jct_s = life_s if life.phase is Phase.SUCCEEDED else None
        alone = alone_s.get(life.spec.id, life.run_s)
        fair = jct_s is not None and jct_s > 0.0 and alone > 0.0
        took_s = jct_s if fair else None
        outcomes.append(
            JobOutcome(
                job=life.spec.id,
                name=life.spec.name,
                tenant=life.spec.tenant,
                gpus=life.spec.gpus,
                phase=life.phase,
                submitted_at=life.submitted_at,
                first_started_at=life.first_started_at,
                ended_at=life.ended_at,
                jct_s=jct_s,
                queue_s=max(0.0, life_s - life.held_s),
                held_s=life.held_s,
                run_s=life.run_s,
                held_gpu_s=life.held_gpu_s,
                starts=life.attempt,
                preemptions=life.preemptions,
                rescales=life.rescales,
                deadline=life.spec.deadline,
                deadline_missed=_missed(life, end),
                first_start_s=life.first_start_s if fair else None,
                alone_s=alone if fair else None,
                contention=contention if fair else None,
                rho=None if took_s is None else took_s / ((life.first_start_s + alone) * contention),
                rho_themis=None if took_s is None else took_s / (alone * crowd),
                rho_shockwave=None if took_s is None else took_s / (alone * of_trace),
            )
        )
    return tuple(outcomes)


def _missed(life: Life, end: float) -> bool:
    """Did it succeed too late, fail, or is it live past its deadline? A cancelled job misses nothing."""
    deadline = life.spec.deadline
    if deadline is None or (life.cancelled and life.phase is not Phase.SUCCEEDED):
        return False
    return life.phase is Phase.FAILED or end > deadline


def _contention(timeline: Timeline, demand: Floats, starts: Floats, ends: Floats) -> Floats:
    """Of lives from `starts` to `ends`: at least 1, and the average of `demand` over healthy GPUs.

    The demand is a step function, so its integral is a polygon: two look-ups per job, no scan.
    """
    times, healthy = timeline.times_s, timeline.gpus > 0
    if not len(times) or not len(starts):
        return np.ones(len(starts))
    last = max(float(times[-1]), float(ends.max()))
    spans = np.diff(np.append(times, last))
    crowding = np.divide(demand, timeline.gpus, out=np.zeros(len(times)), where=healthy)
    edges = np.append(times, last) - times[0]
    demand_until = np.concatenate(([0.0], np.cumsum(crowding * spans)))
    healthy_until = np.concatenate(([0.0], np.cumsum(healthy * spans)))
    asked, had = (
        np.interp(ends - times[0], edges, until) - np.interp(starts - times[0], edges, until)
        for until in (demand_until, healthy_until)
    )
    average: Floats = np.divide(asked, had, out=np.ones(len(starts)), where=had > 0.0)
    return np.maximum(1.0, average)


def _summary(all_jobs: Sequence[JobOutcome], all_lives: Sequence[Life], whole: Timeline, window: Window) -> Metrics:
    """The jobs that count, and the cluster while it counts."""
    jobs = [job for job in all_jobs if job.counted]
    lives = [life for life, job in zip(all_lives, all_jobs, strict=True) if job.counted]
    timeline = _clipped(whole, window)
    done = [job for job in jobs if job.phase is Phase.SUCCEEDED]
    jct = np.array([job.jct_s for job in done], dtype=np.float64)
    queue = np.array([job.queue_s for job in done], dtype=np.float64)
    waits = [job.first_started_at - job.submitted_at for job in jobs if job.first_started_at is not None]
    ends = [job.ended_at for job in jobs if job.ended_at is not None]
    rho, rho_themis, rho_shockwave = (
        np.array([value for job in jobs if (value := getattr(job, name)) is not None], dtype=np.float64)
        for name in ("rho", "rho_themis", "rho_shockwave")
    )
    cancelled = [life for life in lives if life.cancelled and life.phase is not Phase.SUCCEEDED]
    unfinished = tuple(life.spec.id for life in lives if not life.cancelled and life.phase is not Phase.SUCCEEDED)
    started = [job for job in jobs if job.starts]
    idle_gpu_s = timeline.integral(timeline.gpus - timeline.gpus_in_use)
    return Metrics(
        jobs=len(jobs),
        completed=len(done),
        cancelled=len(cancelled),
        unfinished=len(unfinished),
        unfinished_ids=unfinished,
        jct_mean_s=_mean(jct),
        jct_p50_s=_percentile(jct, 50),
        jct_p90_s=_percentile(jct, 90),
        jct_p99_s=_percentile(jct, 99),
        queue_mean_s=_mean(queue),
        queue_p50_s=_percentile(queue, 50),
        queue_p99_s=_percentile(queue, 99),
        wait_first_mean_s=_mean(np.array(waits)),
        makespan_s=max(ends) - min(job.submitted_at for job in jobs) if ends else None,
        rho_worst=_worst(rho),
        rho_mean=_mean(rho),
        unfair_share=_mean(rho > UNFAIR_RHO),
        unfair_share_110=_mean(rho > UNFAIR_RHO_110),
        jain=_jain(1.0 / rho),
        rho_themis_worst=_worst(rho_themis),
        rho_themis_mean=_mean(rho_themis),
        unfair_themis_share=_mean(rho_themis > UNFAIR_RHO),
        rho_shockwave_worst=_worst(rho_shockwave),
        rho_shockwave_mean=_mean(rho_shockwave),
        unfair_shockwave_share=_mean(rho_shockwave > UNFAIR_RHO),
        utilisation=_ratio(timeline.integral(timeline.gpus_in_use), timeline.integral(timeline.gpus)),
        fragmentation=_ratio(timeline.integral(timeline.stranded), idle_gpu_s),
        gpu_h_useful=math.fsum(life.useful_gpu_s for life in all_lives) / _HOUR_S,
        gpu_h_restart=math.fsum(life.restart_gpu_s for life in all_lives) / _HOUR_S,
        gpu_h_idle=idle_gpu_s / _HOUR_S,
        gpu_h_lost=math.fsum(life.lost_gpu_s for life in all_lives) / _HOUR_S,
        restarts_per_job=_mean(np.array([job.starts - 1 for job in started])),
        preemptions=sum(job.preemptions for job in jobs),
        rescales=sum(job.rescales for job in jobs),
        deadline_jobs=sum(job.deadline is not None for job in jobs),
        deadline_misses=sum(job.deadline_missed for job in jobs),
        node_hours=timeline.integral(timeline.healthy_nodes) / _HOUR_S,
        cost=timeline.integral(timeline.price_per_hour) / _HOUR_S,
    )


def _clipped(timeline: Timeline, window: Window) -> Timeline:
    """The same series, measured in the window only."""
    if window == EVERYTHING:
        return timeline
    start_s = min(timeline.start_s + window.warmup_s, timeline.end_s)
    return replace(timeline, start_s=start_s, end_s=min(start_s + window.window_s, timeline.end_s))


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _worst(values: Floats) -> float | None:
    return float(values.max()) if len(values) else None


def _percentile(values: Floats, percent: float) -> float | None:
    """By linear interpolation between the two nearest ranks."""
    return float(np.percentile(values, percent)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0.0 else None


def _jain(shares: Floats) -> float | None:
    """(sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum())) if len(shares) else None
