"""Shockwave's market, rigid and elastic, on workloads that neither was chosen on. Prints figures; asserts nothing.

    python benchmarks/shockwave_workloads.py [--workloads 120/32,220/64] [--seeds 10,11] [--policies a,b] [-o json]

Each workload is jobs/GPUs, drawn by the generator of `fairlead reproduce shockwave` without data. Jobs come 40 s apart
on 32 GPUs, and as much faster on more, so that all clusters are equally loaded. The figures are those of that command,
event by event: makespan, mean completion time, worst rho, share of jobs with a rho above 1.05. The last column tells in
which of the four a policy is no worse than the first one.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fairlead.sim.reproduction_shockwave import GPUS, Entrant, read_shockwave_data, rerun
from fairlead.sim.shockwave_workload import GAP_S, write_shockwave_workload

FIGURES = ("makespan_s", "jct_mean_s", "rho_worst", "unfair_share")
SHOWN = ("jobs", "gpus", "seed", "policy", *FIGURES, "utilisation", "cpu_s", "decisions")


def compared(jobs: int, gpus: int, seed: int, policies: list[str]) -> list[dict[str, Any]]:
    """One row for each policy on one workload."""
    rows = []
    with TemporaryDirectory(prefix="fairlead-shockwave-") as made:
        write_shockwave_workload(Path(made), seed=seed, jobs=jobs, gap_s=GAP_S * GPUS / gpus)
        data = read_shockwave_data(Path(made))
        for policy in policies:
            rows.append(rerun(data, Entrant(policy, policy, policy), gpus=gpus).to_dict() | {"seed": seed})
    for row in rows:
        row["no_worse_in"] = [name for name in FIGURES if row[name] <= rows[0][name]]
    return rows


def shown(value: object) -> str:
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and value < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


@click.command()
@click.option("--workloads", default="120/32,220/64", show_default=True, help="Jobs and GPUs of each.")
@click.option("--seeds", default="10,11,12,13", show_default=True)
@click.option("--policies", default="shockwave,shockwave-elastic", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(workloads: str, seeds: str, policies: str, output: str) -> None:
    """The four figures on several workloads."""
    rows = []
    for workload in workloads.split(","):
        jobs, gpus = map(int, workload.split("/"))
        for seed in map(int, seeds.split(",")):
            rows += compared(jobs, gpus, seed, policies.split(","))
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*SHOWN, "no worse")
    for row in rows:
        table.add_row(*(shown(row[name]) for name in SHOWN), f"{len(row['no_worse_in'])} of {len(FIGURES)}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
