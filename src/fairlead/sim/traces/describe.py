"""What is in a trace, in numbers: for people as a table, for programs as a dictionary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Node
from fairlead.sim.casting import Library, truth_of
from fairlead.sim.cluster import nodes_of
from fairlead.sim.gpu_types import Speeds, check_speeds_apply, notes_on_speeds, speeds_of
from fairlead.sim.offered_load import Demand, Yardstick
from fairlead.sim.traces.record import Trace, TraceJob


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity is spread: mean, percentiles and the coefficient of variation (1 for a Poisson process' gaps)."""

    mean: float
    p50: float
    p90: float
    p99: float
    cv: float | None

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        if not values:
            return None
        array = np.array(values, dtype=float)
        p50, p90, p99 = (float(value) for value in np.quantile(array, (0.5, 0.9, 0.99)))
        mean = float(array.mean())
        return cls(mean, p50, p90, p99, float(array.std() / mean) if mean else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """None where the trace does not tell: no durations, or a single instant of arrival."""

    source: str
    format: str
    jobs: int
    #: From the first submission to the last.
    span_s: float
    origin: float | None
    tenants: Mapping[str, int]
    models: Mapping[str, int]
    gpu_counts: Mapping[int, int]
    outcomes: Mapping[str, int]
    jobs_with_duration: int
    duration_s: Spread | None
    gpu_hours: float | None
    arrivals_per_h: float | None
    interarrival_s: Spread | None
    cluster_gpus: int | None
    #: True work of the jobs over what the cluster can do while they arrive (see `offered_load.py`).
    load: float | None
    deadline_share: float
    elastic_share: float
    nodes: int
    failures: int
    skipped: Mapping[str, int]
    #: What the load leaves open, such as speeds that nothing tells.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(
    trace: Trace, *, nodes: Sequence[Node] = (), library: Library | None = None, speeds: str | None = None
) -> TraceStatistics:
    """`nodes` are what the load is relative to; without them, the trace's own. `library` knows how fast jobs train.

    `speeds` are those of GPU types, as the user states them (a100=2,k80=0.3), for jobs that are plain durations.
    """
    cluster = tuple(nodes) or nodes_of(trace.nodes)
    if speeds is not None and not cluster:
        raise InvalidSpec(f"--speeds {speeds!r} are those of a cluster's GPU types; name the cluster with --cluster")
    gpus = sum(node.gpus for node in cluster) or None
    submit_s = [job.submit_s for job in trace.jobs]
    span_s = submit_s[-1] - submit_s[0] if submit_s else 0.0
    timed = [job for job in trace.jobs if job.duration_s is not None]
    demands = _demands(trace, cluster, library or Library(), speeds)
    work_gpu_s = _work_gpu_s(trace, cluster, demands)
    jobs = len(trace.jobs)
    return TraceStatistics(
        source=trace.source,
        format=trace.format,
        jobs=jobs,
        span_s=span_s,
        origin=trace.origin,
        tenants=_counted(job.tenant for job in trace.jobs),
        models=_counted(job.model for job in trace.jobs if job.model is not None),
        gpu_counts=dict(sorted(Counter(job.gpus for job in trace.jobs).items())),
        outcomes=_counted(job.outcome for job in trace.jobs if job.outcome),
        jobs_with_duration=len(timed),
        duration_s=Spread.of([job.duration_s for job in timed if job.duration_s is not None]),
        gpu_hours=None if work_gpu_s is None else work_gpu_s / 3600,
        arrivals_per_h=(jobs - 1) / span_s * 3600 if span_s else None,
        interarrival_s=Spread.of([later - earlier for earlier, later in pairwise(submit_s)]),
        cluster_gpus=gpus,
        load=work_gpu_s / (gpus * span_s) if gpus and span_s and work_gpu_s is not None else None,
        deadline_share=sum(job.deadline_s is not None for job in trace.jobs) / jobs if jobs else 0.0,
        elastic_share=sum(job.gpus_min < job.gpus_max for job in trace.jobs) / jobs if jobs else 0.0,
        nodes=len(trace.nodes),
        failures=len(trace.failures),
        skipped=dict(trace.skipped),
        notes=notes_on_speeds(speeds, demands or (), cluster),
    )


def demands_on(
    jobs: Sequence[TraceJob], library: Library, nodes: Sequence[Node], speeds: Speeds | None = None
) -> list[Demand]:
    """What each job asks of these nodes. Raises InvalidSpec where nothing tells how fast a job is."""
    gpu_types = tuple(dict.fromkeys(node.gpu_type for node in nodes))
    return [
        Demand(job.gpus, job.gpu_types, truth_of(job, library, gpu_types, speeds=speeds or {}), job.submit_s)
        for job in jobs
    ]


def true_work_gpu_s(jobs: Sequence[TraceJob], demands: Sequence[Demand], nodes: Sequence[Node]) -> list[float]:
    """Of each job, what it takes of these nodes. Raises InvalidSpec for one that could not run there."""
    yardstick, found = Yardstick(nodes), []
    for job, demand in zip(jobs, demands, strict=True):
        work = yardstick.work_gpu_s(demand)
        if work is None:
            raise InvalidSpec(f"job {job.id} cannot run on {job.gpus} GPUs of any type of this cluster; use another")
        found.append(work)
    return found


def _demands(trace: Trace, nodes: Sequence[Node], library: Library, speeds: str | None) -> list[Demand] | None:
    """None if it is not known of each job how fast it is, or there are no nodes."""
    stated = speeds_of(speeds, nodes)
    try:
        demands = demands_on(trace.jobs, library, nodes, stated) if nodes else None
    except InvalidSpec:  # an unknown model
        return None
    check_speeds_apply(speeds, demands or ())
    return demands


def _work_gpu_s(trace: Trace, nodes: Sequence[Node], demands: Sequence[Demand] | None) -> float | None:
    """Of all jobs: on these nodes, or without any by the durations in the trace. None if it is not known of each."""
    if nodes:
        try:
            return None if demands is None else math.fsum(true_work_gpu_s(trace.jobs, demands, nodes))
        except InvalidSpec:  # a job that is too large
            return None
    if any(job.duration_s is None for job in trace.jobs):
        return None
    return math.fsum(job.gpus * (job.duration_s or 0.0) for job in trace.jobs)


def _counted(names: Iterable[str]) -> dict[str, int]:
    """Most frequent first, then by name."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def as_table(statistics: TraceStatistics) -> Table:
    s = statistics
    rows: list[tuple[str, str | None]] = [
        ("format", s.format),
        ("jobs", f"{s.jobs:,}"),
        ("span", as_time(s.span_s)),
        ("arrivals", None if s.arrivals_per_h is None else f"{s.arrivals_per_h:,.2f} per hour"),
        ("time between arrivals", _spread(s.interarrival_s)),
        ("duration", _spread(s.duration_s) or "not in the trace"),
        ("jobs with a duration", None if s.jobs_with_duration == s.jobs else f"{s.jobs_with_duration:,}"),
        ("GPUs asked for", _shares({str(gpus): count for gpus, count in s.gpu_counts.items()}, s.jobs)),
        ("GPU-hours", None if s.gpu_hours is None else f"{s.gpu_hours:,.1f}"),
        ("load", None if s.load is None else f"{s.load:.3f} of {s.cluster_gpus:,} GPUs"),
        (f"tenants ({len(s.tenants)})", _shares(s.tenants, s.jobs)),
        (f"models ({len(s.models)})", _shares(s.models, s.jobs)),
        ("outcomes", _shares(s.outcomes, s.jobs)),
        ("with a deadline", f"{s.deadline_share:.1%}" if s.deadline_share else None),
        ("elastic", f"{s.elastic_share:.1%}" if s.elastic_share else None),
        ("nodes", f"{s.nodes:,}" if s.nodes else None),
        ("failures", f"{s.failures:,}" if s.failures else None),
        *((f"left out: {reason}", f"{count:,}") for reason, count in s.skipped.items()),
    ]
    table = Table("", "", title=escape(s.source), title_justify="left", show_header=False)
    for name, value in rows:
        if value:
            table.add_row(escape(name), escape(value))
    return table


def _spread(spread: Spread | None) -> str | None:
    if spread is None:
        return None
    cv = "" if spread.cv is None else f", CV {spread.cv:.2f}"
    return (
        f"mean {as_time(spread.mean)}, p50 {as_time(spread.p50)}, "
        f"p90 {as_time(spread.p90)}, p99 {as_time(spread.p99)}{cv}"
    )


def _shares(counts: Mapping[str, int], total: int, most: int = 8) -> str | None:
    """`1: 93.2 %, 2: 2.2 %, ...`, the first few in the order given."""
    shown = ", ".join(f"{name}: {count / total:.1%}" for name, count in list(counts.items())[:most])
    return shown + (f", and {len(counts) - most} more" if len(counts) > most else "") or None


def as_time(seconds: float) -> str:
    """Seconds in the unit a person would choose."""
    for unit, length_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:,.1f} {unit}"
    return f"{seconds:.3g} s"
