"""How fast the simulator is, and how its cost grows. Prints figures; asserts nothing.

    python benchmarks/simulator.py [philly|growth|queue ...] [--data DIR] [-o table|json]

philly  the whole 82,247-job Philly trace on 2,490 GPUs (needs --data, a directory with philly/philly.csv)
growth  generated traces of rising length at one load: the cost per job should not grow with the jobs that ended
queue   thousands of jobs waiting for 64 GPUs: what one decision costs

Each case runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.reshape import scale_load

#: Jobs simulated per second by the released Tiresias simulator under 2D-LAS (5,755 jobs on 128 GPUs in 70.5 s).
REFERENCE_JOBS_PER_S = 82.0

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def measure(case: str, experiment: Experiment) -> dict[str, Any]:
    result = run_experiment(experiment)
    jobs = result.measured.summary.jobs
    return {
        "case": case,
        "policy": experiment.policy,
        "jobs": jobs,
        "unfinished": result.measured.summary.unfinished,
        "cpu_s": round(result.cpu_s, 2),
        "us_per_job": round(1e6 * result.cpu_s / jobs, 1),
        "times_reference": round(jobs / result.cpu_s / REFERENCE_JOBS_PER_S, 1),
        "decisions": result.decisions,
        "decision_ms_mean": round(result.decision_ms_mean, 3),
        "decision_ms_p99": round(result.decision_ms_p99, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def alone(case: str, experiment: Experiment) -> dict[str, Any]:
    """Measure in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, case, experiment).result()


def philly(data: Path) -> list[dict[str, Any]]:
    trace = data / "philly" / "philly.csv"
    if not trace.is_file():
        click.echo(f"philly: skipped, {trace} is absent; say where it is with --data", err=True)
        return []
    setting = {"trace": str(trace), "cluster": "249x10", "costs": "none"}
    return [alone("philly", Experiment(policy=policy, **setting)) for policy in ("backfill", "tiresias")]


def growth(directory: Path) -> list[dict[str, Any]]:
    rows = []
    for policy in ("backfill", "tiresias"):
        first = None
        for jobs in (2_000, 8_000, 32_000):
            path = directory / f"{jobs}.jsonl"
            path.write_text(to_jsonl(generate(Workload(jobs=jobs, gpus=256, load=0.7, seed=1))))
            row = alone(f"growth {jobs}", Experiment(trace=str(path), policy=policy, cluster="64x4", costs="none"))
            first = first or row["us_per_job"]
            rows.append(row | {"times_first": round(row["us_per_job"] / first, 2)})
    return rows


def queue(directory: Path) -> list[dict[str, Any]]:
    """All jobs arrive almost at once, so nearly all of them wait nearly all of the time."""
    rows = []
    for jobs in (1_000, 10_000):
        path = directory / f"queue-{jobs}.jsonl"
        path.write_text(to_jsonl(scale_load(generate(Workload(jobs=jobs, gpus=64, load=1.0, seed=2)), 1000.0)))
        for policy in ("fifo", "backfill", "easy", "smallest", "tiresias", "srtf"):
            setting = Experiment(trace=str(path), policy=policy, cluster="16x4", costs="none", oversized="clip")
            rows.append(alone(f"queue {jobs}", setting))
    return rows


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(["philly", "growth", "queue"]))
@click.option("--data", type=click.Path(path_type=Path), default=DATA, help="Directory with philly/philly.csv.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(cases: tuple[str, ...], data: Path, output: str) -> None:
    """Run the benchmarks; all of them if none is named."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for case in cases or ("philly", "growth", "queue"):
            if case == "philly":
                rows += philly(data)
            else:
                rows += (growth if case == "growth" else queue)(Path(directory))
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names)
    for row in rows:
        table.add_row(*(str(row.get(name, "")) for name in names))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
