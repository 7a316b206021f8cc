"""How long a decision of Shockwave's market takes on a large cluster. Prints figures; asserts nothing.

    python benchmarks/shockwave.py [--jobs 500,1000,2000] [--gpus 256] [--rounds 5] [--seed 0] [-o table|json]

Jobs have Gavel's widths (70 % one GPU, 10 % two, 15 % four, 5 % eight) and log-normal run times that their users state;
half of them hold GPUs as far as those go. A row for each policy:

purchase   a decision at the beginning of a round at which the jobs bid (the market is solved)
round      a decision at the beginning of a round at which they do not: rounds are placed only
between    a decision within a round

Milliseconds of CPU time, median and worst of the repetitions, and the gap that the plan states.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.plugins import make_policy
from fairlead.testing import GivenJob, job, make_view

POLICIES = ("shockwave", "shockwave-elastic")
NODE_GPUS = 8


def workload(jobs: int, gpus: int, *, elastic: bool, seed: int) -> Snapshot:
    draw = np.random.default_rng(seed)
    width_J = draw.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05]).tolist()
    run_s_J = draw.lognormal(8.3, 1.0, jobs).tolist()
    given: list[GivenJob] = []
    node = gpu = 0
    for at, (width, run_s) in enumerate(zip(width_J, run_s_J, strict=True)):
        on = None
        if at % 2 == 0 and node < gpus // NODE_GPUS:
            if gpu + width > NODE_GPUS:
                node, gpu = node + 1, 0
            if node < gpus // NODE_GPUS:
                on = f"n{node:0{len(str(gpus // NODE_GPUS - 1))}}[{','.join(str(gpu + each) for each in range(width))}]"
                gpu += width
        span = {"gpus_min": 1, "gpus_max": 8} if elastic else {}
        given.append(job(f"j{at}", width, on=on, estimate_s=run_s, **span))
    return make_view(f"{gpus // NODE_GPUS}x{NODE_GPUS}", given, now=600.0)


def measured(policy: str, view: Snapshot, rounds: int) -> dict[str, object]:
    """Decisions of fresh policies, so that nothing is remembered but what the memo has."""
    bought = _timed([(make_policy(policy), view)] * rounds)
    plan = bought[1]
    again = replace(view, now=view.now + 120.0, memo=plan.memo)
    placed = _timed([(make_policy(policy), again)] * rounds)
    between = _timed([(make_policy(policy), replace(view, now=view.now + 60.0, memo=plan.memo))] * rounds)
    row: dict[str, object] = {"policy": policy, "jobs": len(view.jobs), "gap": plan.bound}
    for name, (times_ms, _) in (("purchase", bought), ("round", placed), ("between", between)):
        row |= {f"{name}_ms": float(np.median(times_ms)), f"{name}_worst_ms": max(times_ms)}
    return row


def _timed(cases: list[tuple[Policy, Snapshot]]) -> tuple[list[float], Plan]:
    times_ms = []
    for policy, view in cases:
        begin = time.process_time()
        plan = policy.plan(view)
        times_ms.append(1000.0 * (time.process_time() - begin))
    return times_ms, plan


@click.command()
@click.option("--jobs", default="1000", show_default=True, help="Numbers of jobs, with commas.")
@click.option("--gpus", default=256, show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Repetitions of each decision.")
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(jobs: str, gpus: int, rounds: int, seed: int, output: str) -> None:
    """Decision time of the market."""
    rows = []
    for count in map(int, jobs.split(",")):
        for name in POLICIES:
            view = workload(count, gpus, elastic=name == "shockwave-elastic", seed=seed)
            rows.append(measured(name, view, rounds) | {"gpus": gpus})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
