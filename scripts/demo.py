"""The live demonstration behind `scripts/demo`: a service, four jobs that come at different moments, and a summary."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fairlead.cli.live.drawing import View, frame
from fairlead.cli.live.tables import Look
from fairlead.client import Client, find_server
from fairlead.client.resources import ENDED
from fairlead.core import codec
from fairlead.core.facts import Facts
from fairlead.core.loop import Cadence
from fairlead.core.messages import Resize, Start
from fairlead.core.state import State
from fairlead.core.types import Job
from fairlead.plugins import make_policy
from fairlead.server.journal import recover
from fairlead.server.store import Store
from fairlead.sim.believed import room
from fairlead.sim.forecast import Forecast, retold

ROOT = Path(__file__).resolve().parents[1]
FAIRLEAD = [sys.executable, "-m", "fairlead"]

#: When each job comes, in seconds, and what it is.
JOBS: list[tuple[float, dict[str, Any]]] = [
    (0.0, {"name": "digits", "gpus": "1-4", "script": "image_classifier.py", "epochs": 12, "max": 256}),
    (12.0, {"name": "text", "gpus": "1-4", "script": "language_model.py", "epochs": 7, "max": 128}),
    (24.0, {"name": "score", "gpus": 2, "seconds": 20}),
    (34.0, {"name": "ratings", "gpus": "1-4", "script": "recommender.py", "epochs": 24, "max": 2048}),
]

#: With --quick, everything is so many times as short.
QUICK = 6

#: Often: the jobs are short.
CADENCE = "event+5s"


@dataclass(frozen=True)
class Cluster:
    """What the service is started with, as options of `fairlead up`."""

    policy: str
    #: Nodes as in `fairlead up --nodes`.
    nodes: str

    @property
    def options(self) -> list[str]:
        """Those that are no defaults, as a user would type them."""
        cluster = ["--nodes", self.nodes] if self.nodes else ["--gpus", "4"]
        return cluster if self.policy == DEFAULT_POLICY else [*cluster, "--policy", self.policy]


DEFAULT_POLICY = "pilot"


#: Seconds after which something must be wrong.
TOO_LONG_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute instead of two")
    parser.add_argument("--policy", default=DEFAULT_POLICY, help="as in `fairlead up --policy`  [default: %(default)s]")
    parser.add_argument("--nodes", default="", help="as in `fairlead up --nodes`, e.g. 'fast=1x2,slow=1x2@50%%'")
    options = parser.parse_args()
    shorter, cluster = QUICK if options.quick else 1, Cluster(options.policy, options.nodes)
    console = Console() if sys.stdout.isatty() else Console(width=110)
    state = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
    try:
        with service(state, cluster, console):
            jobs = watch(state, console, shorter)
        summarise(state, cluster, console)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    failed = [job["id"] for job in jobs if job["state"] != "SUCCEEDED"]
    if failed:
        console.print(f"[bold red]not all jobs succeeded: {', '.join(failed)}[/]")
    return 1 if failed else 0


@contextlib.contextmanager
def service(state: Path, cluster: Cluster, console: Console) -> Iterator[None]:
    """A control plane of our own, gone at the end whatever happens."""
    up = [*FAIRLEAD, "up", "--detach", *cluster.options, "--state", str(state), "--port", "0"]
    console.print(f"[bold]$ fairlead up --detach {shlex.join(cluster.options)}[/]")
    subprocess.run(up, check=True, env={**os.environ, "FAIRLEAD_SCHEDULER_CADENCE": CADENCE})
    try:
        yield
    finally:
        console.print("[bold]$ fairlead down[/]")
        subprocess.run([*FAIRLEAD, "down", "--state", str(state)], check=False)


def document(job: dict[str, Any], shorter: int) -> dict[str, Any]:
    if "seconds" in job:
        code = f"import time; [print(i) or time.sleep(1) for i in range({job['seconds'] // shorter})]"
        run = [sys.executable, "-c", code]
    else:
        epochs = max(1, job["epochs"] // shorter)
        run = [
            sys.executable,
            f"examples/{job['script']}",
            "--epochs",
            str(epochs),
            "--max-batch-size",
            str(job["max"]),
        ]
    return {
        "name": job["name"],
        "gpus": job["gpus"],
        "run": run,
        "workdir": str(ROOT),
        "labels": {"model": job["name"]},
    }


def watch(state: Path, console: Console, shorter: int) -> list[dict[str, Any]]:
    """Submit each job when its time has come, and show all of them until they have ended."""
    coming, before, drawn = list(JOBS), {}, 0.0
    with Client(find_server(state)) as client, Live(console=console, auto_refresh=False, transient=False) as live:
        began = time.monotonic()
        while True:
            elapsed_s = time.monotonic() - began
            while coming and coming[0][0] / shorter <= elapsed_s:
                job = document(coming.pop(0)[1], shorter)
                client.submit(job, key=job["name"])
                live.console.print(f"[dim]{elapsed_s:3.0f} s[/]  submitted {job['name']} (gpus: {job['gpus']})")
            jobs = client.jobs(all="true")
            if console.is_terminal:
                look = Look(time.time(), width=console.width, bars=True)
                live.update(frame(View(jobs, client.cluster(), before), look), refresh=True)
            elif elapsed_s - drawn >= 10.0:
                drawn = elapsed_s
                look = Look(time.time(), width=console.width, bars=True, ascii=True)
                console.print(frame(View(jobs, client.cluster(), before, f"after {elapsed_s:.0f} s"), look))
            before = {job["id"]: job["goodput"] for job in jobs if job["goodput"] is not None}
            if not coming and all(job["state"] in ENDED for job in jobs):
                return jobs
            if elapsed_s > TOO_LONG_S:
                raise SystemExit("error: the jobs have not ended after ten minutes")
            time.sleep(0.5)


# -- the summary -------------------------------------------------------------------------------------------------------


def summarise(state: Path, cluster: Cluster, console: Console) -> None:
    with Store.open(f"sqlite:///{state}/fairlead.db") as store:
        known, _ = recover(store, State, lambda data: State.of(codec.decode(Facts, data, place="snapshot")))
        jobs = sorted(known.finished.values(), key=lambda job: job.submitted_at)
        achieved(jobs, console)
        rescales(store, jobs, console)
    nodes = tuple(known.nodes.values())
    widest = max(room(nodes).values())
    fixed = {
        f"simulated: FIFO, {gpus} GPU{'s' * (gpus > 1)} each": retold(
            jobs, nodes, policy=make_policy("fifo"), cadence=Cadence(), gpus=gpus
        )
        for gpus in (1, 2, 4)
        if gpus <= widest
    }
    ours = retold(jobs, nodes, policy=make_policy(cluster.policy), cadence=Cadence.parse(CADENCE))
    compare(jobs, {"as it was": None, "simulated: the same": ours, **fixed}, console)


def sheet(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table


def achieved(jobs: list[Job], console: Console) -> None:
    table = sheet("\nWhat each job achieved", "job", "took", "waited", "GPU time", "batch", "noise scale", "restarts")
    for job in jobs:
        regimes, noise = job.belief.regimes, job.belief.noise_scale
        waited_s = (job.first_started_at or job.since) - job.submitted_at
        table.add_row(
            job.spec.name,
            f"{job.since - job.submitted_at:.0f} s",
            f"{waited_s:.0f} s",
            f"{job.held_gpu_s:.0f} s",
            f"{regimes[0][1]:,} to {max(batch for _, batch in regimes):,}" if regimes else "-",
            "-" if noise is None else f"{noise:,.0f}",
            str(job.attempt - 1),
        )
    console.print(table)


def rescales(store: Store, jobs: list[Job], console: Console) -> None:
    table = sheet("\nEvery rescale, and for how long nobody trained", "job", "after", "GPUs", "pause")
    for job in jobs:
        pauses = [note for note in store.notes(job.id) if note.kind == "paused"]
        held = 0
        for _, message in store.read(job=job.id):
            if isinstance(message, Resize):
                later = [note.body["seconds"] for note in pauses if note.at >= message.at and message.allocation]
                pause = f"{1000.0 * later[0]:.0f} ms" if later else "suspended" if not message.allocation else "-"
                change = f"{held} to {message.allocation.total}"
                table.add_row(job.spec.name, f"{message.at - job.submitted_at:.0f} s", change, pause)
            if isinstance(message, Start | Resize):
                held = message.allocation.total
    console.print(table)


def compare(jobs: list[Job], others: dict[str, Forecast | None], console: Console) -> None:
    names = [job.spec.name for job in jobs]
    table = sheet("\nThe same jobs, otherwise: from submission to end", "", *names, "mean", "all done")
    begin = min(job.submitted_at for job in jobs)
    for label, told in others.items():
        ends = [job.since if told is None else told.jobs[job.id].ends_at for job in jobs]
        took = [None if end is None else end - job.submitted_at for job, end in zip(jobs, ends, strict=True)]
        known = [each for each in took if each is not None]
        whole = max((end for end in ends if end is not None), default=begin) - begin
        mean = f"{sum(known) / len(known):.0f} s" if len(known) == len(jobs) else "-"
        table.add_row(label, *("-" if each is None else f"{each:.0f} s" for each in took), mean, f"{whole:.0f} s")
    console.print(table)
    console.print("[dim]Simulated with the speeds, pauses and noise scales that were measured just now.[/]")


if __name__ == "__main__":
    sys.exit(main())
