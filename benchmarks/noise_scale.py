"""What it costs to measure the gradient noise scale while a job trains: ours against plain DistributedDataParallel.

    python benchmarks/noise_scale.py [--case mlp1m:64 --case tf25m:8x128] [--workers 1 --workers 2] [-o table|json]

mlp1m   0.98 M parameters       tf25m   a transformer of 26 M parameters, 8 layers, width 512; both with Adam

A case is a model and each worker's samples, for tf25m with their length in tokens. 8x128 is as little as one would
train such a model with (a GPU would take 32x128 or more, which takes 9 s for each step here): what measuring costs
depends on the parameters alone, so with larger batches it is less. With --case tf25m:4x32 hardly anything else is seen.

ddp     DistributedDataParallel as it is by default, with DataLoader and DistributedSampler
view    the same with gradient_as_bucket_view
ours    a job of fairlead.train whose batch may change (but does not, here): the noise is measured in one of 8
        steps, by two halves of its batch if there is one worker
fixed   the same with a batch that cannot change: nothing is measured
every   the noise is measured in every step

Everything of a step counts, from the data to the optimiser, as CPU time of all threads of a process; the mean over
the workers. They take turns in the same processes, with one thread each for the model. Overheads are relative to ddp:
for each of the 8 steps the median over the rounds of the ratio to what ddp took in its turn, and of these the mean. The
interval holds 95 of 100 estimates from rounds that are drawn anew from those that were seen. On a busy machine see
"fastest": the same with each step's least CPU time over the rounds instead of the median of ratios.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

SCRIPT = Path(__file__).with_name("noise_scale_script.py")
#: For whom overheads are told, beside "ours".
OTHERS = {"ddp_view": "view", "ours_fixed": "fixed", "ours_every_step": "every"}
#: Models and their rounds by default, so that all of it takes some minutes.
ROUNDS = {"mlp1m:64": 20, "tf25m:8x128": 3}
RESAMPLES = 2000


class Case(NamedTuple):
    model: str
    batch: int
    tokens: int

    @staticmethod
    def parse(text: str) -> Case:
        with contextlib.suppress(ValueError):
            model, size = text.split(":")
            batch, tokens = map(int, size.split("x")) if model == "tf25m" else (int(size), 1)
            if model in ("mlp1m", "tf25m") and min(batch, tokens) > 0:
                return Case(model, batch, tokens)
        raise click.BadParameter(f"{text!r}; expected for example {' or '.join(ROUNDS)}")


#: {way: one dictionary for each round, with the CPU seconds of each of its steps}
Seconds = dict[str, list[dict[str, float]]]


def measure(case: Case, workers: int, rounds: int) -> dict[str, Any]:
    seconds = [json.loads(said) for said in run(case, workers, rounds)]
    mean = {name: np.mean([steps(rank, name) for rank in seconds], axis=0) for name in seconds[0]}
    leader = {name: steps(seconds[0], name) for name in seconds[0]}
    # The others do not take part in all steps of a round: they are compared with ddp in the steps in which they do.
    at = {name: [int(step) for step in seconds[0][name][0]] for name in mean}
    ratios = {name: mean[name] / mean["ddp"][:, at[name]] for name in mean}
    return {
        "model": case.model,
        "workers": workers,
        "batch": case.batch,
        "tokens": case.batch * case.tokens,
        "rounds": rounds,
        "ddp_cpu_s": float(np.median(mean["ddp"])),
        "ours_cpu_s": float(np.median(mean["ours"], axis=0).mean()),
        "overhead": overhead(ratios["ours"]),
        "interval": interval(ratios["ours"]),
        "overhead_of_leader": overhead(leader["ours"] / leader["ddp"]),
        "overhead_of_fastest": overhead(fastest(mean["ours"]) / fastest(mean["ddp"])),
        "others": {
            name: {"overhead": overhead(ratios[way]), "interval": interval(ratios[way])} for way, name in OTHERS.items()
        },
    }


def steps(seconds: Seconds, way: str) -> NDArray[np.float64]:
    """[rounds, steps]"""
    return np.array([list(each.values()) for each in seconds[way]])


def overhead(ratios_RS: NDArray[np.float64]) -> float:
    return float(np.median(ratios_RS, axis=0).mean()) - 1.0


def fastest(seconds_RS: NDArray[np.float64]) -> NDArray[np.float64]:
    """What others do on the machine only adds to CPU time, by caches that they empty."""
    return np.array([seconds_RS.min(axis=0)])


def interval(ratios_RS: NDArray[np.float64]) -> tuple[float, float]:
    random = np.random.default_rng(0)
    R, S = ratios_RS.shape
    drawn = [overhead(ratios_RS[random.integers(R, size=(R, S)), np.arange(S)]) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


# -- the workers -------------------------------------------------------------------------------------------------------


def run(case: Case, workers: int, rounds: int) -> list[str]:
    """What each of them printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
    env["PORTS"] = ",".join(map(str, free_ports(4)))
    command = [sys.executable, str(SCRIPT), *map(str, (*case, rounds))]
    click.echo(f"{case.model}, {case.batch} x {case.tokens}, {workers} workers", err=True)
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, str(rank)) for rank in range(workers)]
        with contextlib.ExitStack() as stack:
            for rank, file in enumerate(files):
                quiet = None if rank == 0 else subprocess.DEVNULL
                out = stack.enter_context(file.open("w"))
                process = subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=out, stderr=quiet)
                stack.enter_context(ended(process))
        return [file.read_text() for file in files]


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """By itself if all is well."""
    try:
        yield
        if process.wait() != 0:
            raise click.ClickException(f"a worker ended with code {process.returncode}; see what it printed")
    finally:
        process.kill()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


# -- output ------------------------------------------------------------------------------------------------------------


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="CPU time of a step, and how much more than plain DDP it is")
    table.add_column("model", no_wrap=True)
    for name in ("workers", "batch", "tokens", "ddp ms", "ours ms", "ours", "interval", "fastest", *OTHERS.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = row["interval"]
        table.add_row(
            row["model"],
            *(str(row[name]) for name in ("workers", "batch", "tokens")),
            *(f"{1e3 * row[name]:.1f}" for name in ("ddp_cpu_s", "ours_cpu_s")),
            f"{row['overhead']:+.1%}",
            f"{low:+.1%} to {high:+.1%}",
            f"{row['overhead_of_fastest']:+.1%}",
            *(f"{row['others'][name]['overhead']:+.1%}" for name in OTHERS.values()),
        )
    Console().print(table)


@click.command(help=__doc__.split("\n")[0])
@click.option(
    "--case",
    "cases",
    multiple=True,
    default=list(ROUNDS),
    show_default=True,
    help="mlp1m:SAMPLES or tf25m:SAMPLESxTOKENS, of each worker.",
)
@click.option("--workers", "worlds", type=click.IntRange(1), multiple=True, default=[1, 2], show_default=True)
@click.option("--rounds", type=click.IntRange(1), help="Of 8 steps for each case; by default some minutes in all.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(cases: tuple[str, ...], worlds: tuple[int, ...], rounds: int | None, output: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers are ended
    parsed = {text: Case.parse(text) for text in cases}
    rows = [
        measure(case, workers, rounds or ROUNDS.get(text, 2)) for text, case in parsed.items() for workers in worlds
    ]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
