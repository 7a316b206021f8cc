"""What it is worth to make up for Adam's memory of smaller batches (`fairlead.train.rules.Moment`).

    python benchmarks/adam_memory.py [--seeds 0,1,2,3] [-o table|json]

The recommender of the examples, whose batch grows from 256 to 2048 as fast as it may: it is asked every ten steps. The
same progress each, by the learning rate of a batch that is fixed; of one that grows, times the root of the gain at once
(Pollux, AdaptDL); and times what `adamscale` takes. How fast the batch grows depends on steps alone here, and not on
the machine, so the figures are the same everywhere.
"""

from __future__ import annotations

import json
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

EXAMPLE = Path(__file__).parents[1] / "examples" / "recommender.py"
GROWING = ["--max-batch-size", "2048", "--schedule", "doubling"]
WAYS = ("fixed", "root", "memory")


def train(way: str, seed: int) -> None:
    """In this process."""
    from fairlead.train import retuning, rules

    retuning.RETUNE_S = 0.0
    if way == "root":
        rules.Moment.value = None  # type: ignore[assignment]  # as if it had known no other batch
    sys.argv = [str(EXAMPLE), "--seed", str(seed), *([] if way == "fixed" else GROWING)]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def result(way: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", way, "--seeds", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    click.echo(f"{way} seed {seed}: {last['value']} in {last['steps']} steps", err=True)
    return last


@click.command(help=__doc__.split("\n")[0])
@click.option("--seeds", default="0,1,2,3", show_default=True)
@click.option("--one", type=click.Choice(WAYS), hidden=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(seeds: str, one: str | None, output: str) -> None:
    numbers = [int(seed) for seed in seeds.split(",")]
    if one is not None:
        train(one, numbers[0])
        return
    rows = []
    for way in WAYS:
        found = [result(way, seed) for seed in numbers]
        error, steps = ([each[name] for each in found] for name in ("value", "steps"))
        rows.append({"way": way, "error": statistics.mean(error), "steps": statistics.mean(steps), "errors": error})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("learning rate", "error", "worst", "steps", title="A recommender whose batch grows fast")
    for row in rows:
        table.add_row(row["way"], f"{row['error']:.4f}", f"{max(row['errors']):.4f}", f"{row['steps']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
