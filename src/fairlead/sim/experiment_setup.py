"""What an experiment is, and the world that it makes of a trace: jobs with their truths, nodes, and what befalls them.

An Experiment is plain text and numbers, so that it can be sent to another process and written into a result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.node_order import in_order
from fairlead.core.types import Belief, JobSpec, Node
from fairlead.plugins import make_policy
from fairlead.sim.adapting import Freedom, adapts, asked_gpus, freedom, narrower
from fairlead.sim.alone import consolidated
from fairlead.sim.cadence_note import notes_on_cadence
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.cluster import nodes_of, parse_cluster
from fairlead.sim.costs import CostModel, Costs
from fairlead.sim.foreknown import one_gpu_lore
from fairlead.sim.gpu_types import check_speeds_apply, notes_on_speeds, speeds_of, with_speeds
from fairlead.sim.metrics import Window
from fairlead.sim.noise import promised_s
from fairlead.sim.offered_load import Demand, Yardstick
from fairlead.sim.traces import Trace, TraceJob, read_trace, reshape
from fairlead.sim.truth import FixedDuration, Setting, Truth
from fairlead.sim.world import Failing, Outage, SimJob

#: Where nothing else is said: the size of the Pollux and Muri experiments.
DEFAULT_CLUSTER = "16x4"


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
    #: The offered load on the cluster (see `offered_load.py`), reached by moving arrivals; None: as the trace has it.
    load: float | None = None
    #: Arrivals come this many times as fast as in the trace.
    arrival_factor: float = 1.0
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
    #: How fast each GPU type of the cluster is, for jobs of which the trace has nothing but a duration: a100=2,k80=0.3.
    speeds: str | None = None
    #: Standard deviation of the logarithm of errors in what jobs report of their speed, and in promised run times.
    noise: float = 0.0
    estimate_error: float = 0.0
    #: Jobs count that arrive from so long after the first one on, and for so long; all of them if left out.
    warmup_s: float = 0.0
    window_s: float | None = None
    #: When a run is over: at the `end`, when every job has ended; or with the `window`, when all have that count.
    stop: str = "end"

    @property
    def window(self) -> Window:
        return Window(self.warmup_s, math.inf if self.window_s is None else self.window_s)

    @property
    def by_chance(self) -> bool:
        """Whether another seed gives another run."""
        return self.resample or self.failures_h is not None or self.noise > 0.0 or self.estimate_error > 0.0


@dataclass(frozen=True, slots=True)
class Inputs:
    """Objects that take the place of what an experiment names by text."""

    trace: Trace | None = None
    policy: Policy | None = None
    nodes: tuple[Node, ...] | None = None

    def trace_of(self, experiment: Experiment) -> Trace:
        return _read(experiment.trace, experiment.format) if self.trace is None else self.trace

    def policy_of(self, experiment: Experiment) -> Policy:
        return make_policy(experiment.policy) if self.policy is None else self.policy


NAMED = Inputs()


# -- from a trace to a world ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """What the simulator is given."""

    jobs: Sequence[SimJob]
    #: In the order of snapshots.
    nodes: Sequence[Node]
    outages: Sequence[Outage]
    left_out: Mapping[str, int]
    clipped: int
    #: Nodes that fail for as long as the run lasts; None if those of `outages` are all.
    failing: Failing | None = None
    notes: tuple[str, ...] = ()
    #: What is known of models before the first job comes.
    lore: Mapping[str, Belief] = field(default_factory=dict)


def prepare(experiment: Experiment, inputs: Inputs = NAMED) -> World:
    """The world of an experiment; raises InvalidSpec for what cannot be meant."""
    _check_meant(experiment)
    trace = _reshaped(inputs.trace_of(experiment), experiment)
    listed = _nodes(experiment, trace) if inputs.nodes is None else inputs.nodes
    nodes: Sequence[Node] = in_order(listed)  # what a list is ordered by is nothing to go by
    speeds = speeds_of(experiment.speeds, nodes)
    library, costs = Library.beside(experiment.trace, experiment.profiles), CostModel.parse(experiment.costs)
    node_gpus: dict[str, int] = {}
    for node in nodes:
        node_gpus[node.gpu_type] = max(node.gpus, node_gpus.get(node.gpu_type, 0))
    jobs, total, paces = [], _gpus_by_type(nodes), []
    policy = inputs.policy_of(experiment)
    adapt = adapts(experiment.adapt, policy)
    fitting = list(_fitting(trace.jobs, nodes, experiment.oversized))
    for job in fitting:
        may = narrower(adapt, job)
        truth = truth_of(job, library, tuple(node_gpus), adapt=may, speeds=speeds)
        pace = _pace_by_type(job, truth, node_gpus, may)
        gpu_types = _usable_types(job, pace)
        paces.append(pace)
        room, known = _room(total, gpu_types), gpu_types or tuple(node_gpus)
        free = freedom(job, truth, adapt=may, room=room, gpu_types=known, batch_limit=experiment.batch_limit)
        sim_job = _cast(job, truth, gpu_types, free, _costs_of(job, costs, experiment))
        if job.estimate_s is None:
            estimate_s = _promise(sim_job.spec.estimate_s, job.id, experiment)
            sim_job = replace(sim_job, spec=replace(sim_job.spec, estimate_s=estimate_s))
        if experiment.in_place:
            sim_job = replace(sim_job, spec=replace(sim_job.spec, in_place=True))
        jobs.append(sim_job)
    if not jobs:
        raise InvalidSpec(f"{trace.source} has no jobs to simulate")
    demands = list(demands_of(jobs).values())
    check_speeds_apply(experiment.speeds, demands)
    if experiment.load is not None:
        factor = _factor(experiment.load, demands, nodes)
        trace = reshape.scale_arrivals(trace, factor)
        jobs = [_moved(job, job.submit_at / factor) for job in jobs]
    _check_window(experiment.window, jobs)
    dropped = len(trace.jobs) - len(jobs)
    asked = {job.id: job.gpus for job in trace.jobs}
    return World(
        jobs,
        with_speeds(nodes, speeds, paces),
        outages=_outages(trace, _counted_nodes(experiment, listed)) if experiment.failures_h is None else (),
        left_out={**trace.skipped, **({"larger than the cluster": dropped} if dropped else {})},
        clipped=sum(job.gpus < asked[job.id] for job in fitting),
        failing=_failing(experiment),
        notes=(
            *notes_on_speeds(experiment.speeds, demands, nodes),
            *_notes_on_costs(experiment, fitting),
            *notes_on_cadence(experiment.policy, policy, experiment.cadence),
        ),
        lore=one_gpu_lore(jobs, tuple(node_gpus)) if experiment.foreknown == "one-gpu" else {},
    )


def _promise(true_s: float | None, job_id: str, experiment: Experiment) -> float | None:
    """What a user promises where the trace has no promise: nothing, the truth, or the truth with an error."""
    if experiment.estimates == "none":
        if experiment.estimate_error:
            raise InvalidSpec("--estimate-error is an error of promised run times; leave out --estimates none")
        return None
    if true_s is None or not experiment.estimate_error:
        return true_s
    return promised_s(true_s, error=experiment.estimate_error, seed=experiment.seed, job=job_id)


def _check_window(window: Window, jobs: Sequence[SimJob]) -> None:
    first_s, last_s = min(job.submit_at for job in jobs), max(job.submit_at for job in jobs)
    if not any(window.counts(job.submit_at - first_s) for job in jobs):
        raise InvalidSpec(
            f"no job arrives in the measured window: it begins {window.warmup_s:g} s after the first submission, and "
            f"the last one is after {last_s - first_s:.0f} s. Choose a shorter --warmup or a longer --window"
        )


#: Settings that are one of a few words.
_WORDS = {
    "foreknown": ("nothing", "one-gpu"),
    "batch_limit": ("application", "requested"),
    "estimates": ("exact", "none"),
    "oversized": ("error", "drop", "clip"),
    "stop": ("end", "window"),
}


def _check_meant(experiment: Experiment) -> None:
    for name, allowed in _WORDS.items():
        if (value := getattr(experiment, name)) not in allowed:
            raise InvalidSpec(f"{name} is {value!r}; expected {' or '.join(allowed)}")
    for name in ("report_every_s", "retune_every_s", "provision_s", "interference", "noise", "estimate_error"):
        if not (isinstance(value := getattr(experiment, name), int | float) and 0.0 <= value < math.inf):
            raise InvalidSpec(f"{name} is {value!r}; expected a finite number of at least 0")
    if not (isinstance(experiment.seed, int) and experiment.seed >= 0):
        raise InvalidSpec(f"seed is {experiment.seed!r}; expected a whole number of at least 0")
    if experiment.load is not None and experiment.arrival_factor != 1.0:
        raise InvalidSpec(
            f"load is {experiment.load:g} and arrival_factor {experiment.arrival_factor:g}: both move arrivals; give "
            "one of them"
        )


def demands_of(jobs: Sequence[SimJob]) -> dict[str, Demand]:
    return {job.spec.id: Demand(job.spec.gpus, job.spec.gpu_types, job.truth, job.submit_at) for job in jobs}


def _factor(load: float, jobs: Sequence[Demand], nodes: Sequence[Node]) -> float:
    """How many times as fast jobs have to arrive to offer this load."""
    offered = Yardstick(nodes).load(jobs)
    if not offered:
        what = "all its jobs arrive at once" if offered is None else "its jobs have nothing to do"
        raise InvalidSpec(f"a load of {load:g} cannot be offered by this trace: {what}; leave --load out")
    return load / offered


def _moved(job: SimJob, submit_at: float) -> SimJob:
    """The job submitted at another time; its deadline moves along."""
    deadline = job.spec.deadline
    moved = None if deadline is None else max(0.0, deadline - job.submit_at + submit_at)
    return replace(job, submit_at=submit_at, spec=replace(job.spec, deadline=moved))


def _failing(experiment: Experiment) -> Failing | None:
    if experiment.failures_h is None:
        return None
    mtbf_h, repair_h = experiment.failures_h
    return Failing(mtbf_h * 3600.0, repair_h * 3600.0, experiment.seed)


def default_cluster(trace: str, format: str | None) -> str | None:
    """What to simulate if no cluster is named: None for the trace's own nodes."""
    return None if _read(trace, format).nodes else DEFAULT_CLUSTER


def _read(path: str, format: str | None) -> Trace:
    """The trace in a file; read once as long as the file stays what it is. A database is read once."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return _read_once(path, format, None)
    return _read_once(path, format, (status.st_mtime_ns, status.st_size, status.st_ino))


@lru_cache(maxsize=2)  # a worker process runs many experiments on one file
def _read_once(path: str, format: str | None, _: tuple[int, int, int] | None) -> Trace:
    return read_trace(path, format)


def _reshaped(trace: Trace, experiment: Experiment) -> Trace:
    if experiment.jobs is not None:
        trace = reshape.first(trace, experiment.jobs)
    if experiment.resample:
        trace = reshape.resample(trace, len(trace.jobs), seed=experiment.seed)
    factor = experiment.arrival_factor
    return trace if factor == 1.0 else reshape.scale_arrivals(trace, factor)


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


def _pace_by_type(job: TraceJob, truth: Truth, node_gpus: Mapping[str, int], adapt: str) -> dict[str, float]:
    """How fast a job would be on each GPU type that it accepts; empty for a plain duration, which does not tell."""
    if isinstance(truth, FixedDuration):
        return {}
    accepted = {name: size for name, size in node_gpus.items() if not job.gpu_types or name in job.gpu_types}
    gpus = asked_gpus(job, truth, tuple(accepted), adapt=adapt)
    return {
        gpu_type: truth.pace(Setting(0.0, consolidated(gpus[gpu_type], node_gpus=size), gpu_type)).speed
        for gpu_type, size in accepted.items()
    }


def _usable_types(job: TraceJob, pace: Mapping[str, float]) -> tuple[str, ...]:
    """The GPU types a job accepts, less those it would not run on: a user knows what a model's memory needs."""
    usable = tuple(gpu_type for gpu_type, speed in pace.items() if speed > 0)
    if pace and not usable:
        raise InvalidSpec(f"job {job.id} cannot run on {job.gpus} GPUs of {' or '.join(pace)}")
    return job.gpu_types if len(usable) == len(pace) else usable


def _counted_nodes(experiment: Experiment, listed: Sequence[Node]) -> Sequence[Node]:
    """As the failures of a trace count nodes: in the order of its own, or else by what nodes are."""
    return listed if experiment.cluster is None else in_order(listed)


def _notes_on_costs(experiment: Experiment, jobs: Sequence[TraceJob]) -> tuple[str, ...]:
    recorded = sum(job.recording is not None for job in jobs)
    if not recorded or experiment.costs != "default":
        return ()
    which = "all jobs" if recorded == len(jobs) else f"{recorded:,} of {len(jobs):,} jobs"
    return (
        f"starts and changes of {which} take as long as they were recorded; --costs start=S,... states other times",
    )


def _costs_of(job: TraceJob, costs: CostModel, experiment: Experiment) -> Costs:
    """What was measured of the job, unless the experiment says otherwise."""
    recording = job.recording
    if recording is None or experiment.costs != "default":
        return costs.of(job.model)
    return replace(
        costs.of(job.model),
        start_s=recording.start_s,
        restart_s=recording.restart_s,
        save_s=recording.save_s,
        rescale_s=recording.rescale_s,
        boot_s=recording.start_s if job.in_place else 0.0,  # a worker that joins boots as one that begins
    )


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
