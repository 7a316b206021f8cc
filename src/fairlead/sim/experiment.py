"""Trace x cluster x policy x cadence x costs x seed -> Result.

An Experiment is plain text and numbers, so that it can be sent to another process and written into a result.
Two equal experiments on equal files give the same journal, bit for bit.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fairlead.core.errors import FairleadError, InvalidPlan, InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Belief, JobSpec, Node, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim.adapting import Freedom, adapts, asked_gpus, freedom, narrower
from fairlead.sim.alone import consolidated
from fairlead.sim.backend import SimBackend
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.cluster import nodes_of, parse_cluster
from fairlead.sim.costs import CostModel, Costs
from fairlead.sim.foreknown import one_gpu_lore
from fairlead.sim.metrics import Measured, measure
from fairlead.sim.oracle import SimStepOracle
from fairlead.sim.traces import Trace, TraceJob, read_trace, reshape
from fairlead.sim.truth import FixedDuration, Setting, Truth
from fairlead.sim.world import Outage, SimJob

#: Where nothing else is said: the size of the Pollux and Muri experiments.
DEFAULT_CLUSTER = "16x4"

#: Called now and then with the share of jobs that have ended.
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything that determines a run."""

    trace: str
    policy: str
    #: None takes the nodes the trace names, or else DEFAULT_CLUSTER.
    cluster: str | None = None
    format: str | None = None
    #: Where measured profiles or throughput tables are, if not beside the trace.
    profiles: str | None = None
    cadence: str = "event"
    costs: str = "default"
    seed: int = 0
    #: Arrivals come this many times as fast.
    load: float = 1.0
    #: Only the first so many jobs.
    jobs: int | None = None
    #: Draw as many jobs from the trace, with the seed, instead of replaying it.
    resample: bool = False
    #: Mean hours between failures of a node and until its repair.
    failures_h: tuple[float, float] | None = None
    interference: float = 0.0
    report_every_s: float = 0.0
    #: Run times users promise where the trace has none: exact, or none.
    estimates: str = "exact"
    #: What to do with a job that no node set can hold: error, drop or clip.
    oversized: str = "error"
    #: What jobs may change of themselves: nothing, gpus, batch, or auto for what the policy makes use of.
    adapt: str = "auto"
    #: Every job can change its GPUs without a restart, whatever the trace says.
    in_place: bool = False
    #: Jobs that tune their batch do so at every multiple of this; 0 means only when something else changes.
    retune_every_s: float = 30.0
    #: What is known of applications before the first job comes: nothing, or one-gpu, a pass on one GPU of each type.
    foreknown: str = "nothing"
    #: The largest batch that policies count on of a job that tunes its own: the application's, or the one it asked for.
    batch_limit: str = "application"
    #: A node that the policy rents joins after so long, and costs from then on.
    provision_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an experiment."""

    experiment: Experiment
    measured: Measured
    #: Jobs of the trace that were not simulated, by reason.
    left_out: Mapping[str, int]
    #: Jobs cut down to the size of the cluster.
    clipped: int
    #: The policy knew how long jobs would run.
    oracle: bool
    decisions: int
    decision_ms_mean: float
    decision_ms_p99: float
    wall_s: float
    cpu_s: float

    def to_dict(self) -> dict[str, Any]:
        """The experiment's settings, its metrics and what deciding cost, flat; JSON without NaN."""
        timing = {name: getattr(self, name) for name in ("decisions", "decision_ms_mean", "decision_ms_p99")}
        timing |= {"wall_s": self.wall_s, "cpu_s": self.cpu_s}
        setting = {f"setting_{name}": value for name, value in asdict(self.experiment).items() if name != "policy"}
        figures = self.measured.summary.to_dict() | {"left_out": sum(self.left_out.values())}
        return {"policy": self.experiment.policy, **figures, **timing, **setting}


class _Watched:
    """The policy, with a clock beside it and, if it declared itself an oracle, the truth in its view."""

    def __init__(self, policy: Policy, backend: SimBackend, nodes: Sequence[Node]) -> None:
        self._policy, self._backend = policy, backend
        self._oracle = SimStepOracle(backend, nodes) if getattr(policy, "needs_oracle", False) else None
        self.decision_s: list[float] = []

    def plan(self, view: Snapshot) -> Plan:
        if self._oracle is not None:
            view = replace(view, oracle=self._backend.remaining_s, step_oracle=self._oracle)
        begin = time.perf_counter()
        try:
            plan = self._policy.plan(view)
        except FairleadError:
            raise
        except Exception as error:  # whatever a plug-in raises is the plug-in's fault
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InvalidPlan(f"it raised {error!r} in {where.filename}, line {where.lineno}") from error
        self.decision_s.append(time.perf_counter() - begin)
        if not isinstance(plan, Plan):
            raise InvalidPlan(f"plan(view) returned {type(plan).__name__}; expected a Plan")
        return plan


def run_experiment(
    experiment: Experiment, *, progress: Progress | None = None, journal: MemoryJournal | None = None
) -> Result:
    """Simulate to the end. The journal, if given, receives every message."""
    begin_wall, begin_cpu = time.perf_counter(), time.process_time()
    policy, cadence = make_policy(experiment.policy), Cadence.parse(experiment.cadence)
    world = prepare(experiment)
    backend = _backend(experiment, world)
    watched, state = _Watched(policy, backend, world.nodes), _state(world)
    journal = MemoryJournal() if journal is None else journal
    loop_journal = journal if progress is None else _Reporting(journal, state, progress, len(world.jobs))
    try:
        run(watched, backend, state=state, journal=loop_journal, cadence=cadence)
    except InvalidPlan as error:
        raise InvalidPlan(f"policy {experiment.policy} at second {state.now:.0f}: {error}") from error
    alone_s = {job.spec.id: job.truth.remaining_s(0.0) for job in world.jobs}
    decision_ms = 1000.0 * np.array(watched.decision_s or [0.0])
    return Result(
        experiment=experiment,
        measured=measure(journal, alone_s=alone_s),
        left_out=world.left_out,
        clipped=world.clipped,
        oracle=bool(getattr(policy, "needs_oracle", False)),
        decisions=len(watched.decision_s),
        decision_ms_mean=float(decision_ms.mean()),
        decision_ms_p99=float(np.percentile(decision_ms, 99)),
        wall_s=time.perf_counter() - begin_wall,
        cpu_s=time.process_time() - begin_cpu,
    )


def _state(world: World) -> State:
    """Of a cluster that knows its applications, and nothing else."""
    return State.of(replace(State().facts(), lore=world.lore))


def _backend(experiment: Experiment, world: World) -> SimBackend:
    return SimBackend(
        world.jobs,
        world.nodes,
        outages=world.outages,
        interference=experiment.interference,
        report_every_s=experiment.report_every_s,
        retune_every_s=experiment.retune_every_s,
        provision_s=experiment.provision_s,
    )


class _Seen(Exception):
    """The moment that was asked for has come."""


def decision_at(experiment: Experiment, at_s: float) -> tuple[Snapshot, Plan]:
    """The first decision at or after a time: what the policy saw, and what it made of it."""
    world = prepare(experiment)
    backend = _backend(experiment, world)
    policy = _Watched(make_policy(experiment.policy), backend, world.nodes)
    seen: list[tuple[Snapshot, Plan]] = []

    class Watching:
        def plan(self, view: Snapshot) -> Plan:
            plan = policy.plan(view)
            if view.now >= at_s:
                seen.append((view, plan))
                raise _Seen
            return plan

    try:
        cadence = Cadence.parse(experiment.cadence)
        run(Watching(), backend, state=_state(world), journal=MemoryJournal(), cadence=cadence)
    except _Seen:
        return seen[0]
    raise InvalidSpec(f"nothing is decided at second {at_s:.0f} or later: every job has ended by then")


class _Reporting:
    """A journal that tells every so many commits how far the simulation is."""

    def __init__(self, journal: MemoryJournal, state: State, progress: Progress, jobs: int) -> None:
        self.append = journal.append
        self._state, self._progress, self._jobs, self._commits = state, progress, jobs, 0

    def commit(self) -> None:
        self._commits += 1
        if self._commits % 256 == 0:
            self._progress(len(self._state.finished) / self._jobs)


# -- from a trace to a world ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """What the simulator is given."""

    jobs: Sequence[SimJob]
    nodes: Sequence[Node]
    outages: Sequence[Outage]
    left_out: Mapping[str, int]
    clipped: int
    #: What is known of models before the first job comes.
    lore: Mapping[str, Belief] = field(default_factory=dict)


def prepare(experiment: Experiment) -> World:
    """The world of an experiment; raises InvalidSpec for what cannot be meant."""
    for name, allowed in (("foreknown", ("nothing", "one-gpu")), ("batch_limit", ("application", "requested"))):
        if (value := getattr(experiment, name)) not in allowed:
            raise InvalidSpec(f"{name} is {value!r}; expected {' or '.join(allowed)}")
    trace = _reshaped(_read(experiment.trace, experiment.format), experiment)
    nodes = _nodes(experiment, trace)
    library, costs = Library.beside(experiment.trace, experiment.profiles), CostModel.parse(experiment.costs)
    node_gpus: dict[str, int] = {}
    for node in nodes:
        node_gpus[node.gpu_type] = max(node.gpus, node_gpus.get(node.gpu_type, 0))
    jobs, total = [], _gpus_by_type(nodes)
    adapt = adapts(experiment.adapt, make_policy(experiment.policy))
    fitting = list(_fitting(trace.jobs, nodes, experiment.oversized))
    for job in fitting:
        may = narrower(adapt, job)
        truth = truth_of(job, library, tuple(node_gpus), adapt=may)
        gpu_types = _usable_types(job, truth, node_gpus, may)
        free = freedom(
            job,
            truth,
            adapt=may,
            room=_room(total, gpu_types),
            gpu_types=gpu_types or tuple(node_gpus),
            batch_limit=experiment.batch_limit,
        )
        sim_job = _cast(job, truth, gpu_types, free, costs.of(job.model))
        if experiment.estimates == "none" and job.estimate_s is None:
            sim_job = replace(sim_job, spec=replace(sim_job.spec, estimate_s=None))
        if experiment.in_place:
            sim_job = replace(sim_job, spec=replace(sim_job.spec, in_place=True))
        jobs.append(sim_job)
    if not jobs:
        raise InvalidSpec(f"{trace.source} has no jobs to simulate")
    if experiment.failures_h is not None:
        trace = _with_failures(trace, jobs, nodes, experiment)
    dropped = len(trace.jobs) - len(jobs)
    asked = {job.id: job.gpus for job in trace.jobs}
    clipped = sum(job.gpus < asked[job.id] for job in fitting)
    left_out = {**trace.skipped, **({"larger than the cluster": dropped} if dropped else {})}
    lore = one_gpu_lore(jobs, tuple(node_gpus)) if experiment.foreknown == "one-gpu" else {}
    return World(jobs, nodes, _outages(trace, nodes), left_out, clipped, lore)


def _with_failures(trace: Trace, jobs: Sequence[SimJob], nodes: Sequence[Node], experiment: Experiment) -> Trace:
    """Failures for as long as the run could last: four times what the work takes if no GPU is ever idle."""
    assert experiment.failures_h is not None
    mtbf_h, repair_h = experiment.failures_h
    alone_s = [job.truth.remaining_s(0.0) for job in jobs]
    work_gpu_s = sum(job.spec.gpus * seconds for job, seconds in zip(jobs, alone_s, strict=True))
    busy_s = work_gpu_s / sum(node.gpus for node in nodes) + max(alone_s)
    return reshape.inject_failures(
        trace,
        nodes=len(nodes),
        mtbf_s=mtbf_h * 3600.0,
        repair_s=repair_h * 3600.0,
        seed=experiment.seed,
        horizon_s=jobs[-1].submit_at + 4.0 * busy_s,
    )


def default_cluster(trace: str, format: str | None) -> str | None:
    """What to simulate if nobody says: None for the trace's own nodes."""
    return None if _read(trace, format).nodes else DEFAULT_CLUSTER


@lru_cache(maxsize=2)  # a worker process runs many experiments on one file
def _read(path: str, format: str | None) -> Trace:
    return read_trace(path, format)


def _reshaped(trace: Trace, experiment: Experiment) -> Trace:
    if experiment.jobs is not None:
        trace = reshape.first(trace, experiment.jobs)
    if experiment.resample:
        trace = reshape.resample(trace, len(trace.jobs), seed=experiment.seed)
    return trace if experiment.load == 1.0 else reshape.scale_load(trace, experiment.load)


def _nodes(experiment: Experiment, trace: Trace) -> tuple[Node, ...]:
    if experiment.cluster is not None:
        return parse_cluster(experiment.cluster)
    return nodes_of(trace.nodes) if trace.nodes else parse_cluster(DEFAULT_CLUSTER)


def _fitting(jobs: Sequence[TraceJob], nodes: Sequence[Node], oversized: str) -> Iterator[TraceJob]:
    """The jobs the cluster can hold. A job uses one GPU type at a time, so that is what it must fit into."""
    total = _gpus_by_type(nodes)
    for job in jobs:
        room = _room(total, job.gpu_types)
        if job.gpus <= room:
            yield job
        elif oversized == "clip" and room:
            yield replace(job, gpus=room, gpus_min=min(job.gpus_min, room), gpus_max=room)
        elif oversized != "drop":
            kind = " or ".join(job.gpu_types) or "one type"
            raise InvalidSpec(
                f"job {job.id} needs {job.gpus} GPUs of {kind}; the cluster has {room} of it at most (in all: "
                f"{', '.join(f'{count} {gpu_type}' for gpu_type, count in total.items())}). Use another --cluster, "
                f"or leave such jobs out with --oversized drop{' or cut them down with --oversized clip' * (room > 0)}"
            )


def _gpus_by_type(nodes: Sequence[Node]) -> dict[str, int]:
    total: dict[str, int] = {}
    for node in nodes:
        total[node.gpu_type] = total.get(node.gpu_type, 0) + node.gpus
    return total


def _room(total: Mapping[str, int], gpu_types: Sequence[str]) -> int:
    """The most GPUs of one of these types, or of any if none are named."""
    return max((total.get(gpu_type, 0) for gpu_type in gpu_types or total), default=0)


def _usable_types(job: TraceJob, truth: Truth, node_gpus: dict[str, int], adapt: str) -> tuple[str, ...]:
    """The GPU types a job accepts, less those it would not run on: a user knows what a model's memory needs."""
    if isinstance(truth, FixedDuration):
        return job.gpu_types
    accepted = {name: size for name, size in node_gpus.items() if not job.gpu_types or name in job.gpu_types}
    gpus = asked_gpus(job, truth, tuple(accepted), adapt=adapt)
    speeds = {
        gpu_type: truth.pace(Setting(0.0, consolidated(gpus[gpu_type], node_gpus=size), gpu_type)).speed
        for gpu_type, size in accepted.items()
    }
    usable = tuple(gpu_type for gpu_type, speed in speeds.items() if speed > 0)
    if not usable:
        raise InvalidSpec(f"job {job.id} cannot run on {job.gpus} GPUs of {' or '.join(speeds) or 'the cluster'}")
    return job.gpu_types if len(usable) == len(speeds) else usable


def _cast(job: TraceJob, truth: Truth, gpu_types: tuple[str, ...], free: Freedom, costs: Costs) -> SimJob:
    estimate_s = job.estimate_s if job.estimate_s is not None else truth.remaining_s(0.0)
    spec = JobSpec(
        id=job.id,
        name=job.name or job.model or "",
        tenant=job.tenant,
        gpus=free.gpus,
        gpus_min=free.gpus_min,
        gpus_max=free.gpus_max,
        gpu_types=gpu_types,
        in_place=job.in_place,
        preemptible=job.preemptible,
        priority=job.priority,
        weight=job.weight,
        estimate_s=estimate_s if np.isfinite(estimate_s) else None,
        deadline=job.deadline_s,
        batch=free.batch,
        labels=job.labels if job.model is None else {"model": job.model, **job.labels},
    )
    return SimJob(spec, job.submit_s, truth, costs)


def _outages(trace: Trace, nodes: Sequence[Node]) -> list[Outage]:
    for failure in trace.failures:
        if failure.node >= len(nodes):
            raise InvalidSpec(
                f"{trace.source} has a failure of node {failure.node}; the cluster's nodes are 0 to {len(nodes) - 1}"
            )
    outages: list[Outage] = []
    for failure in sorted(trace.failures, key=lambda failure: (failure.node, failure.at_s)):
        node, until = nodes[failure.node].id, failure.at_s + failure.repair_s
        last = outages[-1] if outages else None
        if last is not None and last.node == node and failure.at_s <= last.until:  # it fails while it is away
            outages[-1] = Outage(node, last.at, max(last.until, until))
        else:
            outages.append(Outage(node, failure.at_s, until))
    return outages
