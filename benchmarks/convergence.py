"""Does a batch that grows train as well as a small one, in fewer steps? The examples, over several seeds.

    python benchmarks/convergence.py [--seeds 0,1,2,3,4] [--schedule doubling] [-o table|json]

Each example is run as a user would run it, with its batch fixed and with one that may grow to several times that, for
the same progress: `job.epochs` counts what updates are worth, so the second run takes fewer steps but more samples. The
metric is that of the example, on data it has never seen. `difference` is adaptive less fixed, over the seeds, and
`noise` twice the standard error of that difference: within it, the two are not to be told apart.

The schedule is `doubling` unless stated: on one worker of a CPU a step takes as long as its samples, so `goodput` does
well to leave the batch alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parents[1] / "examples"
#: How far the batch may grow: to eight times the one it begins with.
MOST = {"image_classifier": 256, "language_model": 128, "recommender": 2048}
#: Metrics of which more is better.
HIGHER = {"accuracy"}


class Result(NamedTuple):
    metric: str
    value: float
    steps: int


def run(example: str, seed: int, options: Sequence[str]) -> Result:
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), "--seed", str(seed), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{example} with seed {seed} failed:\n{done.stderr}")
    last = json.loads(done.stdout.strip().splitlines()[-1])
    result = Result(last["metric"], last["value"], last["steps"])
    click.echo(
        f"{example} seed {seed} {' '.join(options) or 'fixed'}: {result.value} in {result.steps} steps", err=True
    )
    return result


def measure(example: str, seeds: Sequence[int], schedule: str, processes: int) -> dict[str, Any]:
    grown = ["--max-batch-size", str(MOST[example]), "--schedule", schedule]
    with ThreadPoolExecutor(processes) as pool:
        pairs = [(pool.submit(run, example, seed, []), pool.submit(run, example, seed, grown)) for seed in seeds]
        results = [(fixed.result(), adaptive.result()) for fixed, adaptive in pairs]
    differences = [adaptive.value - fixed.value for fixed, adaptive in results]
    metric = results[0][0].metric
    worse = statistics.mean(differences) * (-1.0 if metric in HIGHER else 1.0)
    noise = 2.0 * statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else None
    return {
        "example": example,
        "metric": metric,
        "fixed": statistics.mean(fixed.value for fixed, _ in results),
        "adaptive": statistics.mean(adaptive.value for _, adaptive in results),
        "difference": statistics.mean(differences),
        "noise": noise,
        "within_noise_or_better": noise is not None and worse <= noise,
        "fixed_steps": statistics.mean(fixed.steps for fixed, _ in results),
        "adaptive_steps": statistics.mean(adaptive.steps for _, adaptive in results),
        "seeds": list(seeds),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="A fixed batch against one that grows")
    for name in ("example", "metric"):
        table.add_column(name)
    for name in ("fixed", "adaptive", "difference", "noise", "fixed steps", "adaptive steps", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        known = [f"{row[name]:.4f}" for name in ("fixed", "adaptive")]
        noise = "" if row["noise"] is None else f"{row['noise']:.4f}"
        steps = [row["fixed_steps"], row["adaptive_steps"]]
        told = [f"{row['difference']:+.4f}", noise, *(f"{count:.0f}" for count in steps), f"{steps[1] / steps[0]:.2f}"]
        table.add_row(row["example"], row["metric"], *known, *told)
    Console().print(table)


@click.command(help=__doc__.split("\n")[0])
@click.option("--example", "examples", type=click.Choice(list(MOST)), multiple=True, default=list(MOST))
@click.option("--seeds", default="0,1,2,3,4", show_default=True)
@click.option("--schedule", default="doubling", show_default=True, help="doubling, accordion or goodput.")
@click.option("--processes", default=2, show_default=True, help="How many are run at the same time.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(examples: tuple[str, ...], seeds: str, schedule: str, processes: int, output: str) -> None:
    rows = [measure(example, [int(seed) for seed in seeds.split(",")], schedule, processes) for example in examples]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
