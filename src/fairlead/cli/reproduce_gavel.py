"""`fairlead reproduce gavel`: load against completion time on three GPU types, next to the published curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.markup import escape

from fairlead.cli.errors import ends_on_signals, reports_errors
from fairlead.cli.options import number_list, policy_list
from fairlead.cli.output import OUTPUT, complain_if_unfinished, counted, csv_of, progress_bar
from fairlead.cli.table import print_table
from fairlead.sim import reproduction_gavel as paper
from fairlead.sim.many import run_many
from fairlead.sim.report.wording import NONE, duration
from fairlead.sim.reproduction_gavel import GavelRerun

#: Without --policies and --workloads. The full runs of all take hours of CPU time; these show the paper's headline.
DEFAULT_POLICIES = ("fifo", "fifo_perf", "max_min_fairness", "max_min_fairness_perf", "allox")
QUICK_POLICIES = ("fifo", "max_min_fairness", "max_min_fairness_perf")
DEFAULT_LOADS, QUICK_LOADS = (2.0, 4.0, 5.2), (4.0, 5.2)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Where {paper.TABLE_NAME} of the artifact is. [default: its figures, which come along]",
)
@click.option("--quick", is_flag=True, help="A third of the cluster and a few of the jobs: under a minute.")
@click.option(
    "--workloads",
    metavar="single,multiple,static",
    default="single",
    show_default=True,
    help="Jobs of one GPU, of several, and all jobs at the start.",
)
@click.option(
    "--policies",
    metavar="A,B,C",
    help=f"By the artifact's names ({', '.join(paper.POLICIES)}) or as in `compare`. "
    f"[default: {','.join(DEFAULT_POLICIES)}]",
)
@click.option(
    "--loads",
    metavar="2,4,5.2",
    help="Jobs an hour, or jobs in all if static; `all` for every one that was published. [default: 2,4,5.2]",
)
@click.option("--seeds", metavar="0,1,2", default="0", show_default=True, help="Of the generated jobs.")
@click.option("--workers", type=click.IntRange(min=1), help="Parallel processes; as many as there are cores.")
@OUTPUT
@reports_errors
@ends_on_signals  # fmt: skip
def gavel(
    data: Path | None,
    quick: bool,
    workloads: str,
    policies: str | None,
    loads: str | None,
    seeds: str,
    workers: int | None,
    output: str,
) -> None:
    """Gavel (OSDI '20): 36 V100, 36 P100 and 36 K80 GPUs, rounds of six minutes.

    Jobs are generated as the paper states, with its job types and speeds. Exits with 1 if jobs remain unfinished in any
    run, with 2 if the input cannot be used.
    """
    scale = paper.QUICK if quick else paper.FULL
    names = policy_list(policies) if policies else list(QUICK_POLICIES if quick else DEFAULT_POLICIES)
    chosen = [name.strip() for name in workloads.split(",")]
    default = None if set(chosen) == {"static"} else (QUICK_LOADS if quick else DEFAULT_LOADS)
    numbers = default if loads is None else None if loads == "all" else number_list(loads, "loads", float)
    points = paper.points(chosen, names, numbers, number_list(seeds, "seeds", int))
    table = paper.table_in(data)
    with TemporaryDirectory(prefix="fairlead-gavel-") as directory:
        experiments = [paper.experiment_of(point, scale, table, Path(directory)) for point in points]
        with progress_bar(f"simulating {counted(len(experiments), 'run')}") as progress:
            results = run_many(experiments, workers=workers, progress=progress)
    reruns = [GavelRerun(point, scale, result) for point, result in zip(points, results, strict=True)]
    _print(reruns, output)
    complain_if_unfinished([rerun.result for rerun in reruns])


def _print(reruns: Sequence[GavelRerun], output: str) -> None:
    rows = paper.rows(reruns)
    if output == "json":
        click.echo(json.dumps(rows, indent=2, allow_nan=False))
    elif output == "csv":
        click.echo(csv_of(rows), nl=False)
    else:
        _show(reruns, rows)


def _show(reruns: Sequence[GavelRerun], rows: Sequence[dict[str, Any]]) -> None:
    for workload in dict.fromkeys(rerun.point.workload for rerun in reruns):
        _show_workload(workload, [rerun for rerun in reruns if rerun.point.workload == workload])
        _show_gain(workload, [row for row in rows if row["workload"] == workload])
    total_s = sum(rerun.result.cpu_s for rerun in reruns)
    click.echo(f"{counted(len(reruns), 'run')} took {duration(total_s)} of CPU time in all.")


def _show_workload(workload: str, reruns: Sequence[GavelRerun]) -> None:
    """One row for each policy, and for each load ours and what was published, in hours."""
    loads = sorted({rerun.point.load for rerun in reruns})
    what = "makespan by jobs" if workload == "static" else "mean JCT by jobs an hour"
    lines = [["policy", *(text for load in loads for text in (f"{load:g}", "published"))]]
    for policy in dict.fromkeys(rerun.point.policy for rerun in reruns):
        cells = [escape(policy)]
        for load in loads:
            runs = [rerun for rerun in reruns if (rerun.point.policy, rerun.point.load) == (policy, load)]
            cells += [_hours(_mean([rerun.ours_s for rerun in runs])), _hours(runs[0].published_s if runs else None)]
        lines.append(cells)
    print_table(f"Gavel (OSDI '20), {workload}, {reruns[0].scale.cluster}: {what}, in hours", lines)


def _show_gain(workload: str, rows: Sequence[dict[str, Any]]) -> None:
    """The headline: how many times longer jobs take if the policy does not know which GPU type suits which job."""
    aware = [row for row in rows if row["over_agnostic"] is not None]
    if not aware:
        return
    loads = sorted({row["load"] for row in aware})
    lines = [["policy", "over", *(text for load in loads for text in (f"{load:g}", "published"))]]
    for policy in dict.fromkeys(row["policy"] for row in aware):
        cells = [paper.AGNOSTIC[policy], policy]
        for load in loads:
            runs = [row for row in aware if (row["policy"], row["load"]) == (policy, load)]
            cells.append(_times(_mean([row["over_agnostic"] for row in runs])))
            cells.append(_times(runs[0]["published_over_agnostic"] if runs else None))
        lines.append(cells)
    print_table(
        f"{workload}: mean JCT without knowledge of which GPU type suits a job, over that with it", lines, heads=2
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return None if not known or len(known) < len(values) else sum(known) / len(known)


def _hours(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds / 3600.0:.2f}"


def _times(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}"
