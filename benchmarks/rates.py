"""How long it takes to ask for the rates of many jobs on three GPU types.

    python benchmarks/rates.py [--jobs 1024,4096] [-o table|json]

Jobs of 26 models ask for 1 to 8 GPUs; as many run as the cluster holds, have measured their steps, with an error each,
and reported twice. `alone` asks for three types x four sizes; `pairs` for these, and beside each of the 26
models. `first_ms` is the first time, `again_ms` if nothing has changed, `moved_ms` if one job in ten has reported anew.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fairlead.core.messages import JobReported, JobStarted, JobSubmitted, NodeJoined, Start
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node, Observation
from fairlead.policies.rates import BelievedRates, Configuration

SPEED = {"v100": 4.0, "p100": 2.0, "k80": 1.0}
SIZES = (1, 2, 4, 8)
MODELS = tuple(f"model-{k}" for k in range(26))


def cluster(jobs: int) -> State:
    """One node of eight GPUs for every three jobs, each with one job."""
    rng, state = random.Random(0), State()
    for kind in SPEED:
        for k in range(jobs // 9):
            state.apply(NodeJoined(0.0, Node(f"{kind}-{k}", 8, kind)))
    nodes = list(state.nodes.values())
    for k in range(jobs):
        labels, gpus = {"model": MODELS[k % len(MODELS)]}, rng.choice((1, 1, 1, *SIZES[1:]))
        state.apply(JobSubmitted(0.0, JobSpec(id=f"j{k}", gpus=gpus, labels=labels, estimate_s=1000.0 + k)))
        if k < len(nodes):
            where = nodes[k * 7919 % len(nodes)]
            state.issue(Start(0.0, f"j{k}", 1, Allocation.of({where.id: range(gpus)})))
            state.apply(JobStarted(1.0, f"j{k}", 1))
            step_s = 0.1 * (1 + k % len(MODELS)) / SPEED[where.gpu_type] * (1.0 + 0.1 * rng.random())
            seen = Observation(where.gpu_type, 1, gpus, 32, 0, step_s, 0.0)
            state.apply(JobReported(2.0, f"j{k}", 1, progress=0.1, batch=32 * gpus, observations=(seen,)))
            state.apply(JobReported(12.0, f"j{k}", 1, progress=0.11, batch=32 * gpus))
    return state


def measure(jobs: int, asked: str) -> dict[str, Any]:
    state = cluster(jobs)
    view = state.snapshot()
    configurations = [Configuration(kind, gpus) for kind in SPEED for gpus in SIZES]
    if asked == "pairs":
        configurations += [replace(each, partners=(model,)) for each in configurations for model in MODELS]
    rates = BelievedRates()
    first_ms = _ms(rates, view, configurations)
    again_ms = min(_ms(rates, view, configurations) for _ in range(5))
    for job in list(state.live.values())[::10]:
        if job.allocation:
            progress = job.belief.progress + 0.01
            seen = tuple(replace(o, step_s=o.step_s * 1.1) for o in job.belief.observations)
            state.apply(JobReported(22.0, job.id, 1, progress=progress, observations=seen))
    moved_ms = _ms(rates, state.snapshot(), configurations)
    figures = {"first_ms": first_ms, "again_ms": again_ms, "moved_ms": moved_ms}
    return {"jobs": jobs, "asked": asked, "configurations": len(configurations), **figures}


def _ms(rates: BelievedRates, view: Snapshot, configurations: list[Configuration]) -> float:
    begin = time.process_time()
    rates.rates(view, list(view.jobs.values()), configurations)
    return round(1000.0 * (time.process_time() - begin), 2)


@click.command(help=__doc__.split("\n")[0])
@click.option("--jobs", default="1024,4096", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(jobs: str, output: str) -> None:
    rows = [measure(int(count), asked) for count in jobs.split(",") for asked in ("alone", "pairs")]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*rows[0], title="CPU milliseconds to ask for rates")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
