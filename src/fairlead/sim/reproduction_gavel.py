"""Gavel (Narayanan et al., OSDI '20): mean completion time against load on three GPU types, and static makespan.

    single     one GPU each, Poisson arrivals at several rates; the mean completion time of a window of jobs
    multiple   the same with jobs of 1 to 8 GPUs
    static     all jobs at the start; the time until the last one ends

on 36 V100, 36 P100 and 36 K80 GPUs, with rounds of six minutes and no cost of a restart, as in the paper. Its window
are jobs 4,000 to 5,000, after the cluster has settled; jobs go on arriving behind it until the last job of the window
has ended, so that none of them is served better than the others. The policies are told the true speeds, as in the paper
(`gavel-oracle` and others).

`quick` is a third of the cluster and a few of the jobs: it shows the order of the policies, and not the published
figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.plugins import make_policy
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.gavel_workload import gavel_trace, published_table, table_json
from fairlead.sim.tables import ThroughputTable, load_table
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.traces.files import write_text
from fairlead.sim.traces.record import Trace

TABLE_NAME = "simulation_throughputs.json"
ROUND_S = 360.0

#: The name in the artifact, and the policy of ours that stands for it.
POLICIES: Mapping[str, str] = {
    # FIFO alone leaves GPUs free there that the first job in line does not want.
    "fifo": "gavel-oracle:objective=fifo,heterogeneity=agnostic,leftovers=keep",
    "fifo_perf": "gavel-oracle:objective=fifo,leftovers=keep",
    "max_min_fairness": "gavel-oracle:objective=max-min,heterogeneity=agnostic",
    "max_min_fairness_perf": "gavel-oracle:objective=max-min",
    "max_min_fairness_packed": "gavel-oracle:objective=max-min,sharing=pairs",
    "finish_time_fairness": "gavel-oracle:objective=finish-time-fairness,heterogeneity=agnostic",
    "finish_time_fairness_perf": "gavel-oracle:objective=finish-time-fairness",
    "min_total_duration_perf": "gavel-oracle:objective=makespan",
    "min_total_duration_packed": "gavel-oracle:objective=makespan,sharing=pairs",
    "allox": "allox-oracle",
    # The artifact adds up, over its three GPU types, what a pair gets done, and parts it below 1.
    "gandiva": "random-pairs-oracle:least=0.3333",
}

#: Of a policy that knows which GPU type suits which job: the same without that knowledge.
AGNOSTIC: Mapping[str, str] = {
    "fifo_perf": "fifo",
    "max_min_fairness_perf": "max_min_fairness",
    "max_min_fairness_packed": "max_min_fairness",
    "finish_time_fairness_perf": "finish_time_fairness",
}

_H = 3600.0

#: Mean completion time in hours by jobs an hour, and makespan in hours by jobs: the text outputs of its notebooks.
PUBLISHED_H: Mapping[str, Mapping[str, Mapping[float, float]]] = {
    "single": {
        "fifo": {0.4: 17.58, 2.0: 18.32, 3.2: 22.21, 4.0: 25.38, 4.8: 99.19, 5.2: 151.67},
        "fifo_perf": {0.4: 15.31, 2.0: 15.45, 3.2: 15.95, 4.0: 17.08, 4.8: 22.24, 5.2: 56.69, 5.6: 104.12, 6.0: 150.04},
        "max_min_fairness": {0.4: 23.26, 2.0: 23.47, 3.2: 23.59, 4.0: 23.49, 4.8: 35.79, 5.2: 63.78, 5.6: 95.99},
        "max_min_fairness_perf": {
            0.4: 17.58, 2.0: 16.95, 3.2: 16.08, 4.0: 16.82, 4.8: 18.97, 5.2: 22.02, 5.6: 28.96, 6.0: 41.23,
        },
        "max_min_fairness_packed": {
            0.4: 18.42, 2.0: 18.26, 3.2: 16.18, 4.0: 16.96, 4.8: 18.67, 5.2: 19.14, 5.6: 19.64, 6.0: 20.42,
        },
        "gandiva": {0.4: 17.58, 2.0: 17.61, 3.2: 17.83, 4.0: 18.88, 4.8: 30.46, 5.2: 34.32, 5.6: 42.54},
        "allox": {0.4: 17.58, 2.0: 16.93, 3.2: 16.43, 4.0: 17.13, 4.8: 20.92, 5.2: 21.96, 5.6: 25.32},
        "finish_time_fairness": {
            0.4: 23.26, 2.0: 23.47, 3.2: 23.58, 4.0: 23.43, 4.8: 34.93, 5.2: 64.46, 5.6: 85.54, 6.0: 109.14,
        },
        "finish_time_fairness_perf": {
            0.4: 17.58, 2.0: 17.07, 3.2: 16.57, 4.0: 17.57, 4.8: 20.43, 5.2: 23.38, 5.6: 30.47, 6.0: 43.05,
        },
    },
    "multiple": {
        "fifo": {0.2: 18.56, 1.0: 19.92, 2.0: 37.56, 2.4: 129.27, 2.6: 304.76},
        "max_min_fairness": {0.2: 25.93, 1.0: 26.10, 2.0: 28.91, 2.4: 38.71, 2.6: 70.54},
        "max_min_fairness_perf": {0.2: 18.55, 1.0: 18.54, 2.0: 21.90, 2.4: 30.03, 2.6: 36.44},
        "max_min_fairness_packed": {0.2: 18.72, 1.0: 19.01, 2.0: 20.85, 2.4: 26.22, 2.6: 30.51},
        "gandiva": {0.2: 18.55, 1.0: 18.96, 2.0: 25.16, 2.4: 38.79, 2.6: 60.43},
        "finish_time_fairness": {0.2: 25.93, 1.0: 26.12, 2.0: 28.87, 2.4: 38.65, 2.6: 64.38},
        "finish_time_fairness_perf": {0.2: 18.55, 1.0: 18.51, 2.0: 21.80, 2.4: 27.93, 2.6: 33.90},
    },
    "static": {
        "fifo": {100: 182.3, 300: 295.6, 500: 426.6, 700: 619.5},
        "gandiva": {100: 166.6, 300: 199.9, 500: 263.9, 700: 347.3},
        "min_total_duration_perf": {100: 161.2, 300: 161.2, 500: 169.4, 700: 244.2},
        "min_total_duration_packed": {100: 163.6, 300: 161.2, 500: 168.1, 700: 226.2},
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """How large an experiment is."""

    #: Nodes of four GPUs, of each of the three types.
    nodes: int = 9
    #: The jobs whose completion times count, and how many may come behind them until the last of these has ended.
    window: tuple[int, int] = (4000, 5000)
    behind: int = 5000

    @property
    def cluster(self) -> str:
        return ",".join(f"{gpu_type}={self.nodes}x4" for gpu_type in ("v100", "p100", "k80"))

    @property
    def gpus(self) -> int:
        return 12 * self.nodes


FULL = Scale()
#: A third of the cluster, so that loads are a third as well, and a few of the jobs.
QUICK = Scale(nodes=3, window=(60, 110), behind=400)


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at one load: jobs an hour on the whole cluster, or jobs in all where the workload is static."""

    workload: str
    policy: str
    load: float
    seed: int

    @property
    def published_h(self) -> float | None:
        return PUBLISHED_H[self.workload].get(self.policy, {}).get(self.load)


def points(
    workloads: Sequence[str], policies: Sequence[str], loads: Sequence[float] | None, seeds: Sequence[int]
) -> list[Point]:
    """All of them, each once; without loads, those that were published of a policy, or of max-min fairness for one of
    our own."""
    found: list[Point] = []
    if min(seeds, default=0) < 0:
        raise InvalidSpec(f"--seeds names {min(seeds)}; expected numbers of at least 0")
    for workload in workloads:
        if workload not in PUBLISHED_H:
            raise InvalidSpec(f"--workloads names {workload!r}; expected {', '.join(PUBLISHED_H)}")
        for load in loads or ():
            if not 0.0 < load < math.inf:
                raise InvalidSpec(f"--loads names {load:g}; expected numbers above 0, or all")
            if workload == "static" and load != round(load):
                raise InvalidSpec(f"--loads names {load:g}; a static workload has a whole number of jobs, such as 100")
        published = PUBLISHED_H[workload]
        every = sorted({load for by_load in published.values() for load in by_load})
        for policy in policies:
            make_policy(POLICIES.get(policy, policy))
            found += [
                Point(workload, policy, load, seed)
                for load in (loads or list(published.get(policy, every)))
                for seed in seeds
            ]
    return list(dict.fromkeys(found))


def experiment_of(point: Point, scale: Scale, table: ThroughputTable, directory: Path) -> Experiment:
    """Writes the workload, and the table beside it, into the directory, unless they are there."""
    share = scale.gpus / FULL.gpus
    static = point.workload == "static"
    trace = gavel_trace(
        table,
        jobs=max(1, round(point.load * share)) if static else scale.window[1] + scale.behind,
        per_hour=None if static else point.load * share,
        seed=point.seed,
        multi_gpu=point.workload != "single",
        at_start=0 if static else scale.gpus,
    )
    place = directory / f"{point.workload}-{point.load:g}-{point.seed}.jsonl"
    if not place.exists():
        write_text(place, to_jsonl(trace))
        write_text(directory / TABLE_NAME, table_json(table))
    policy = POLICIES.get(point.policy, point.policy)
    experiment = Experiment(trace=str(place), policy=policy, cluster=scale.cluster, costs="none", cadence="event")
    if static:
        return experiment
    begin_s, end_s = (_between(trace, place) for place in scale.window)
    return replace(experiment, warmup_s=begin_s, window_s=end_s - begin_s, stop="window")


def _between(trace: Trace, place: int) -> float:
    """A time after the arrival of a job's predecessor and before its own."""
    return (trace.jobs[place - 1].submit_s + trace.jobs[place].submit_s) / 2.0 if place else 0.0


def table_in(data: Path | None) -> ThroughputTable:
    """The authors' table in a directory, or the published figures that come along; without spread placements.

    The paper's simulator never looks at what it calls unconsolidated: there, and so here, a job is as fast on several
    nodes as on one.
    """
    if data is None:
        return published_table()
    if not (data / TABLE_NAME).is_file():
        raise InvalidSpec(f"--data {data} has no {TABLE_NAME}, the throughput table of Gavel's artifact")
    return load_table(data / TABLE_NAME, published_table().gpu_types)


@dataclass(frozen=True, slots=True)
class GavelRerun:
    """A point, its result, and what was published of it."""

    point: Point
    scale: Scale
    result: Result

    @property
    def jct_mean_s(self) -> float | None:
        """Of the jobs that count; None if one of them did not end."""
        summary = self.result.measured.summary
        return None if summary.unfinished else summary.jct_mean_s

    @property
    def ours_s(self) -> float | None:
        """What compares with the published figure."""
        static = self.point.workload == "static"
        return self.result.measured.summary.makespan_s if static else self.jct_mean_s

    @property
    def published_s(self) -> float | None:
        """None at another scale than the paper's."""
        hours = self.point.published_h
        return None if hours is None or self.scale != FULL else hours * _H

    def to_dict(self) -> dict[str, Any]:
        summary, static = self.result.measured.summary, self.point.workload == "static"
        published, ours = self.published_s, self.ours_s
        return {
            "workload": self.point.workload,
            "policy": self.point.policy,
            "policy_spec": self.result.experiment.policy,
            "load": self.point.load,
            "seed": self.point.seed,
            "makespan_s": summary.makespan_s,
            "jct_mean_s": self.jct_mean_s,
            "rho_worst": summary.rho_worst,
            "unfair_share": summary.unfair_share,
            "utilisation": summary.utilisation,
            "cpu_s": self.result.cpu_s,
            "published_makespan_s": published if static else None,
            "published_jct_mean_s": None if static else published,
            "over_published": _ratio(ours, published),
            "jobs": summary.jobs,
            "unfinished": summary.unfinished,
            "decisions": self.result.decisions,
            "decision_ms_mean": self.result.decision_ms_mean,
        }


def rows(reruns: Sequence[GavelRerun]) -> list[dict[str, Any]]:
    """One object for each run; of an aware policy also how many times longer jobs take without that knowledge."""
    by_point = {rerun.point: rerun for rerun in reruns}
    found = []
    for rerun in reruns:
        other = by_point.get(replace(rerun.point, policy=AGNOSTIC.get(rerun.point.policy, "")))
        found.append(
            rerun.to_dict()
            | {
                "over_agnostic": None if other is None else _ratio(other.ours_s, rerun.ours_s),
                "published_over_agnostic": None if other is None else _ratio(other.published_s, rerun.published_s),
            }
        )
    return found


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
