"""Shockwave (Zheng et al., NSDI '23): its canonical trace, rerun next to the figures published with its artifact.

120 jobs whose batch sizes change, 32 V100s, rounds of 120 s, 20 s for each start. Two ways to simulate:

    rounds  the rules of the artifact's simulator (`round_world.py`), and policies with its bookkeeping of rounds: what
            is published can be matched job by job
    event   our own simulator: GPUs are free once a job ends, jobs arrive when they do, batches change with their epoch

Figures are those of the artifact: rho is a job's completion time over its profiled run time alone times the jobs of the
trace per GPU (at least 1), and a job is treated unfairly if that is above 1.05.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core.capability import Capability, needs_of, require
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import POLICIES, make_policy
from fairlead.sim.casting import SCHEDULES_NAME, TABLE_NAMES, Library
from fairlead.sim.experiment import Experiment, prepare, run_experiment
from fairlead.sim.regimes import DATASETS, GnsSchedules, RegimeTruth, epochs_of
from fairlead.sim.round_world import RoundJob, RoundWorld
from fairlead.sim.shockwave_profile import profiled_batches, profiled_s
from fairlead.sim.shockwave_workload import TRACE_NAME as TRACE_NAME
from fairlead.sim.stepwise_job import StepwiseJob
from fairlead.sim.tables import ThroughputTable, load_json
from fairlead.sim.traces import Trace, TraceJob, read_trace

PUBLISHED_NAME, JOBS = "published_jobs-120.json", 120
GPUS, NODE_GPUS, GPU_TYPE = 32, 4, "v100"
ROUND_S, RESTART_S = 120.0, 20.0
#: A job whose rho is above this is treated unfairly.
UNFAIR = 1.05
#: Of its profiled run time, after which the artifact's simulator ends a job.
_LIMIT = 1.5
#: The artifact gives a job up after five rounds in which it does nothing.
_RESTARTS = 5

SEMANTICS = ("event", "rounds")


@dataclass(frozen=True, slots=True)
class Entrant:
    """A row of the comparison: how the artifact calls a policy, and what that is here."""

    name: str
    #: Our policy under the artifact's rules (empty: it is not compared there), and under our own.
    rounds: str
    event: str

    def spec(self, semantics: str) -> str:
        return self.rounds if semantics == "rounds" else self.event


_ARTIFACT, _OURS = "round_s=120,mechanism=shockwave", "round_s=120"


def _gavel(objective: str, rounds: str) -> str:
    """The artifact's Gavel knows true speeds, counts steps, and knows nothing of GPU types."""
    return f"gavel-oracle:objective={objective},heterogeneity=agnostic,unit=steps,{rounds}"


#: The artifact's policies by its names, and ours after them. One whose policy is not there is left out by default.
ENTRANTS: tuple[Entrant, ...] = (
    Entrant("gandiva_fair", f"gandiva-fair:owes=time,{_ARTIFACT}", f"gandiva-fair:owes=time,{_OURS}"),
    Entrant("isolated", f"isolated:{_ARTIFACT}", f"isolated:{_OURS}"),
    Entrant("max_min_fairness", _gavel("max-min", _ARTIFACT), _gavel("max-min", _OURS)),
    Entrant("min_total_duration", _gavel("makespan", _ARTIFACT), _gavel("makespan", _OURS)),
    Entrant("max_sum_throughput", _gavel("max-sum-throughput", _ARTIFACT), _gavel("max-sum-throughput", _OURS)),
    Entrant("finish_time_fairness", _gavel("finish-time-fairness", _ARTIFACT), _gavel("finish-time-fairness", _OURS)),
    Entrant("fifo", f"fifo-rounds:admits=released,{_ARTIFACT}", "fifo"),
    Entrant("allox", f"allox-oracle:alpha=0.2,gangs=time,{_ARTIFACT}", "allox:alpha=0.2"),
    Entrant("shockwave", "shockwave", "shockwave"),
    Entrant("shockwave-oracle", "shockwave-oracle", "shockwave-oracle"),
    Entrant("shockwave-elastic", "shockwave-elastic", "shockwave-elastic"),
    Entrant("pilot", "", "pilot"),
    Entrant("pollux", "", "pollux"),
)


def entrants(names: Sequence[str], semantics: str = "event") -> list[Entrant]:
    """By the artifact's names or as policies with their options; all that there are if none are named.

    Under the artifact's rules jobs have one size, so that `pilot` and `pollux` are compared event by event only.
    """
    if not names:
        return [each for each in ENTRANTS if each.spec(semantics).split(":")[0] in POLICIES]
    known = {each.name: each for each in ENTRANTS if each.spec(semantics)}
    return [known.get(name) or Entrant(name, name, name) for name in names]


# -- the data --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShockwaveData:
    """A trace, the throughput table and the batch schedules beside it, and what was published of it."""

    path: Path
    trace: Trace
    table: ThroughputTable
    gns: GnsSchedules
    #: By the artifact's name of a policy: makespan_s, avg_jct_s, utilisation, and jct_s and rho of each job.
    published: Mapping[str, Mapping[str, Any]]


def read_shockwave_data(directory: Path, trace: Path | None = None) -> ShockwaveData:
    """The artifact's data. Another trace than the canonical one has no published figures."""
    path = directory / TRACE_NAME if trace is None else trace
    if not path.is_file():
        raise InvalidSpec(f"{path} is not there; expected a trace of Shockwave's artifact, such as {TRACE_NAME}")
    table, schedules = directory / TABLE_NAMES[0], directory / SCHEDULES_NAME
    library = Library(throughputs=table if table.is_file() else None, schedules=schedules)
    if library.table is None or not schedules.is_file() or library.gns is None:
        raise InvalidSpec(
            f"{directory} has no {TABLE_NAMES[0]} and {SCHEDULES_NAME}; name Shockwave's data with --data"
        )
    found = read_trace(path)
    canonical = directory / TRACE_NAME
    is_canonical = canonical.is_file() and path.read_bytes() == canonical.read_bytes()
    figures = directory / PUBLISHED_NAME
    published = load_json(figures) if is_canonical and figures.is_file() else {}
    published = {name: each for name, each in published.items() if isinstance(each, dict)}
    return ShockwaveData(path, found, library.table, library.gns, published)


def alone_s(data: ShockwaveData, job: TraceJob) -> float:
    """Run time of a job by the artifact's profile of it."""
    model, batch = _model_of(job)
    epochs = epochs_of(model, batch, job.steps or 0.0)
    batches = profiled_batches(job.mode, model, batch, gpus=job.gpus, epochs=epochs, gns=data.gns)
    return profiled_s(data.table, model, batches, gpus=job.gpus, gpu_type=GPU_TYPE)


def _model_of(job: TraceJob) -> tuple[str, int]:
    if job.model not in DATASETS or job.batch is None or job.steps is None:
        raise InvalidSpec(f"job {job.id} is no job of Shockwave's: it needs steps and a batch of {', '.join(DATASETS)}")
    return job.model, job.batch


# -- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShockwaveRun:
    """What came of a policy."""

    entrant: Entrant
    semantics: str
    gpus: int
    #: Of each job, in the order of the trace; None of one that did not end.
    jct_s: Mapping[str, float | None]
    rho: Mapping[str, float]
    makespan_s: float | None
    #: GPU-seconds of running, start-up left out.
    busy_gpu_s: float
    cpu_s: float
    decisions: int
    published: Mapping[str, Any] | None

    @property
    def policy(self) -> str:
        return self.entrant.spec(self.semantics)

    @property
    def unfinished(self) -> int:
        return sum(jct_s is None for jct_s in self.jct_s.values())

    @property
    def differences_s(self) -> list[float] | None:
        """Of each completion time from the published one."""
        if self.published is None or self.unfinished:
            return None
        ours = [jct_s for jct_s in self.jct_s.values() if jct_s is not None]
        return [abs(one - other) for one, other in zip(ours, self.published["jct_s"], strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """One row: figures, and what was published of each (None where nothing was)."""
        ended = [jct_s for jct_s in self.jct_s.values() if jct_s is not None]
        makespan_s = self.makespan_s
        row: dict[str, Any] = {
            "policy": self.entrant.name,
            "spec": self.policy,
            "semantics": self.semantics,
            "gpus": self.gpus,
            "jobs": len(self.jct_s),
            "unfinished": self.unfinished,
            "makespan_s": makespan_s,
            "jct_mean_s": sum(ended) / len(ended) if ended else None,
            "rho_worst": max(self.rho.values(), default=None),
            "unfair_share": unfair_share(list(self.rho.values())) if self.rho else None,
            "utilisation": self.busy_gpu_s / (self.gpus * makespan_s) if makespan_s else None,
            "cpu_s": self.cpu_s,
            "decisions": self.decisions,
        }
        off_s = self.differences_s
        return {**row, **_published_figures(self.published), "published_jct_off_s": max(off_s) if off_s else None}


def unfair_share(rhos: Sequence[float]) -> float:
    return sum(rho > UNFAIR for rho in rhos) / len(rhos)


def _published_figures(found: Mapping[str, Any] | None) -> dict[str, float | None]:
    names = ("makespan_s", "jct_mean_s", "rho_worst", "unfair_share", "utilisation", "cpu_s")
    figures: dict[str, float | None] = {f"published_{name}": None for name in names}
    if found is not None:
        figures["published_makespan_s"] = found["makespan_s"]
        figures["published_jct_mean_s"] = found["avg_jct_s"]
        figures["published_utilisation"] = found["utilisation"]
        figures["published_rho_worst"] = max(found["rho"])
        figures["published_unfair_share"] = unfair_share(found["rho"])
    return figures


def cluster_of(gpus: int) -> str:
    """Nodes of four V100s, and a smaller one for the rest."""
    whole, rest = divmod(gpus, NODE_GPUS)
    parts = [f"{GPU_TYPE}={whole}x{NODE_GPUS}"] if whole else []
    return ",".join([*parts, *([f"{GPU_TYPE}=1x{rest}"] if rest else [])])


def rerun(data: ShockwaveData, entrant: Entrant, *, gpus: int = GPUS, semantics: str = "event") -> ShockwaveRun:
    """Simulate a policy on the trace, under the artifact's rules or our own."""
    if semantics not in SEMANTICS:
        raise InvalidSpec(f"semantics is {semantics!r}; expected {' or '.join(SEMANTICS)}")
    simulate = _in_rounds if semantics == "rounds" else _by_events
    begin_s = time.process_time()
    finished, busy_gpu_s, decisions = simulate(data, entrant, gpus)
    cpu_s = time.process_time() - begin_s
    crowding = max(1.0, len(data.trace.jobs) / gpus)
    jct_s = {job.id: finished[job.id] - job.submit_s if job.id in finished else None for job in data.trace.jobs}
    # Rounded as the artifact rounds it, so that the same jobs are above a threshold.
    rho = {
        job.id: round(found_s / (alone_s(data, job) * crowding), 5)
        for job in data.trace.jobs
        if (found_s := jct_s[job.id]) is not None
    }
    makespan_s = max(finished.values()) if len(finished) == len(jct_s) else None
    published = data.published.get(entrant.name) if gpus == GPUS else None
    return ShockwaveRun(entrant, semantics, gpus, jct_s, rho, makespan_s, busy_gpu_s, cpu_s, decisions, published)


def _experiment(data: ShockwaveData, policy: str, gpus: int) -> Experiment:
    costs = f"start={RESTART_S:g},restart={RESTART_S:g}"
    table = data.table.source
    return Experiment(
        trace=str(data.path), policy=policy, cluster=cluster_of(gpus), cadence="event", costs=costs, profiles=table
    )


def _by_events(data: ShockwaveData, entrant: Entrant, gpus: int) -> tuple[dict[str, float], float, int]:
    """When each job ended, GPU-seconds of running, and decisions."""
    journal = MemoryJournal()
    result = run_experiment(_experiment(data, entrant.event, gpus), journal=journal)
    state = State()
    for message in journal:
        state.replay(message)
    return *_outcome(state), result.decisions


def _in_rounds(data: ShockwaveData, entrant: Entrant, gpus: int) -> tuple[dict[str, float], float, int]:
    policy = make_policy(entrant.rounds)
    require(policy, RoundWorld.can, name=entrant.rounds, world="a world of rounds")
    world = round_world(data, entrant.rounds, gpus)
    watched, state = _Watched(policy, world), State()
    run(watched, world, state=state, journal=MemoryJournal(), cadence=Cadence())
    return *_outcome(state), watched.decisions


def round_world(data: ShockwaveData, policy: str, gpus: int) -> RoundWorld:
    """The artifact's world: its jobs, and V100s."""
    world = prepare(replace(_experiment(data, policy, gpus), adapt="nothing"))  # its jobs cannot be resized
    traced = {job.id: job for job in data.trace.jobs}
    jobs = []
    for sim_job in world.jobs:
        job = traced[sim_job.spec.id]
        model, batch = _model_of(job)
        assert isinstance(sim_job.truth, RegimeTruth)
        steps = StepwiseJob(
            data.table, model, job.mode, job.gpus, batch, batch, int(job.steps or 0.0),
            schedule=data.gns.get((model, batch, job.gpus), ()),
        )  # fmt: skip
        spec = replace(sim_job.spec, max_restarts=max(_RESTARTS, sim_job.spec.max_restarts))
        jobs.append(RoundJob(replace(sim_job, spec=spec), steps, float(int(int(alone_s(data, job)) * _LIMIT))))
    return RoundWorld(jobs, world.nodes, round_s=ROUND_S, restart_s=RESTART_S)


def _outcome(state: State) -> tuple[dict[str, float], float]:
    finished = {job_id: job.since for job_id, job in state.finished.items()}
    every = [*state.finished.values(), *state.live.values()]
    return finished, sum(job.service_gpu_s for job in every)


class _Watched:
    """A policy, with the truth in its view if it declared itself an oracle."""

    def __init__(self, policy: Policy, world: RoundWorld) -> None:
        self._policy, self._world = policy, world
        self._is_oracle = Capability.ORACLE in needs_of(policy)
        self.decisions = 0

    def plan(self, view: Snapshot) -> Plan:
        self.decisions += 1
        if self._is_oracle:
            view = replace(view, oracle=self._world.remaining_s, step_oracle=self._world)
        return self._policy.plan(view)
