"""A service under attack: it is killed again and again while jobs are submitted, and so are supervisors and workers.

    python benchmarks/kill_storm.py [--service-kills 40] [--process-kills 30] [--jobs-per-kill 10] [--seed 0]
                                    [-o table|json]

service    kills of the server by SIGKILL at random moments, each followed by `fairlead up`, under steady submissions.
           Every submission that was answered must succeed, after exactly one run of its command
processes  kills of guardians, supervisors and job processes of longer jobs, one at a time or two together. Every job
           must succeed, its last attempt whole, with no more runs than attempts
left       processes of the service's jobs that are alive at the end

It exits with 1 if anything was lost, run twice or left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console
from rich.table import Table

from fairlead.backends.processes import COOKIE
from fairlead.client import Client, find_server
from fairlead.client.errors import ClientError
from fairlead.client.resources import ENDED
from fairlead.core.errors import FairleadError

FAIRLEAD = [sys.executable, "-m", "fairlead"]
#: A job writes a line when it begins and one when it is done.
COMMAND = "echo begun >> {out}; sleep {seconds}; echo done >> {out}"
PATIENCE_S = 300.0


class Victim:
    """The service, its state directory, and what its jobs write down."""

    def __init__(self, directory: Path) -> None:
        self.state, self.runs = directory / "state", directory / "runs"
        self.runs.mkdir()
        self.submitted: dict[str, Path] = {}
        self._lock = threading.Lock()

    def up(self) -> None:
        command = [*FAIRLEAD, "up", "--detach", "--gpus", "4", "--port", "0", "--state", str(self.state)]
        env = {**os.environ, "FAIRLEAD_SCHEDULER_MINIMUM_RUN": "0s", "FAIRLEAD_SCHEDULER_POLICY": "fifo"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)

    @property
    def pid(self) -> int:
        return int(json.loads((self.state / "server.json").read_text())["pid"])

    def submit(self, key: str, seconds: float, *, restarts: int = 0) -> None:
        """Once it is answered, it counts; the key is given again until it is."""
        out = self.runs / key
        document = {
            "name": key,
            "run": ["sh", "-c", COMMAND.format(out=out, seconds=seconds)],
            "workdir": str(self.runs),
            "max_restarts": restarts,
        }
        late = time.monotonic() + PATIENCE_S
        while time.monotonic() < late:
            try:
                with Client(find_server(self.state)) as client:
                    answered = client.submit(document, key=key)
                with self._lock:
                    self.submitted[str(answered["ids"][0])] = out
                return
            except (ClientError, FairleadError, httpx.HTTPError, OSError):
                time.sleep(0.05)  # it was killed while it was asked
        raise SystemExit(f"error: nothing answered for {PATIENCE_S:g} s")

    def jobs(self) -> list[dict[str, Any]]:
        with Client(find_server(self.state)) as client:
            return list(client.jobs(all="true"))

    def wait(self) -> list[dict[str, Any]]:
        late = time.monotonic() + PATIENCE_S
        while time.monotonic() < late:
            jobs = self.jobs()
            if all(job["state"] in ENDED for job in jobs):
                return jobs
            time.sleep(0.5)
        raise SystemExit("error: not all jobs have ended")

    def processes(self) -> Iterator[int]:
        """Of jobs, found by their environment."""
        mark = f"{COOKIE}=".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                environment = path.read_bytes()
            except OSError:
                continue
            if mark in environment and str(self.state).encode() in environment:
                yield int(path.parent.name)

    def chain(self) -> list[int]:
        """Guardians, supervisors and processes of jobs that are alive."""
        found = set(self.processes())
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.state / "jobs").encode() in path.read_bytes():
                    found.add(int(path.parent.name))
            except OSError:
                continue
        return sorted(found - {os.getpid()})

    def everything(self) -> list[int]:
        """Also the server, if it is alive."""
        return [*([self.pid] if (self.state / "server.json").exists() else []), *self.chain()]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_service(victim: Victim, draw: random.Random, kills: int, jobs_per_kill: int) -> None:
    """Submissions go on in a thread of their own, whatever becomes of the service."""

    def keep_submitting() -> None:
        for number in range(kills * jobs_per_kill):
            victim.submit(f"service-{number}", 0.2)

    submitting = threading.Thread(target=keep_submitting)
    submitting.start()
    for number in range(kills):
        time.sleep(draw.uniform(0.05, 1.5))
        kill(victim.pid)
        click.echo(f"kill {number + 1} of {kills}: {len(victim.submitted)} submitted", err=True)
        victim.up()
    submitting.join()


def kill_processes(victim: Victim, draw: random.Random, kills: int) -> None:
    for number in range(8):
        victim.submit(f"process-{number}", 6.0, restarts=100)
    for number in range(kills):
        time.sleep(draw.uniform(0.2, 1.0))
        alive = victim.chain()
        for pid in draw.sample(alive, min(len(alive), draw.choice((1, 1, 2)))):
            kill(pid)
        click.echo(f"kill {number + 1} of {kills}: {len(alive)} processes were alive", err=True)
        if not alive:
            victim.submit(f"process-more-{number}", 6.0, restarts=100)


def judge(victim: Victim, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """What was lost, run twice, or succeeded without having run."""
    by_id = {str(job["id"]): job for job in jobs}
    wrong: Counter[str] = Counter()
    for job_id, out in victim.submitted.items():
        job = by_id.get(job_id)
        lines = out.read_text().split() if out.exists() else []
        if job is None:
            wrong["lost"] += 1
        elif job["state"] != "SUCCEEDED":
            wrong["not succeeded"] += 1
        elif not lines or lines[-1] != "done":
            wrong["succeeded without its command"] += 1
        elif out.name.startswith("service") and lines != ["begun", "done"]:
            wrong["run twice"] += 1
        elif lines.count("begun") > job["attempt"]:
            wrong["more runs than attempts"] += 1
    wrong["unknown jobs"] = len(by_id.keys() - victim.submitted.keys())
    return {"jobs": len(victim.submitted), "wrong": {name: count for name, count in wrong.items() if count}}


@click.command()
@click.option("--service-kills", default=40, show_default=True)
@click.option("--process-kills", default=30, show_default=True)
@click.option("--jobs-per-kill", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(service_kills: int, process_kills: int, jobs_per_kill: int, seed: int, output: str) -> None:
    directory = Path(tempfile.mkdtemp(prefix="fairlead-storm-"))
    victim, draw, began = Victim(directory), random.Random(seed), time.monotonic()
    try:
        victim.up()
        kill_service(victim, draw, service_kills, jobs_per_kill)
        victim.wait()  # these may fail no attempt, and so must be over before processes are killed
        kill_processes(victim, draw, process_kills)
        found = judge(victim, victim.wait())
        subprocess.run([*FAIRLEAD, "down", "--state", str(victim.state)], check=True, stdout=subprocess.DEVNULL)
        time.sleep(1.0)
        left = victim.chain()
    finally:
        for pid in victim.everything():
            kill(pid)
        shutil.rmtree(directory, ignore_errors=True)
    found |= {"service_kills": service_kills, "process_kills": process_kills, "left": len(left)}
    found["seconds"] = round(time.monotonic() - began, 1)
    show(found, output)
    sys.exit(1 if found["wrong"] or left else 0)


def show(found: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    table = Table("", "", show_header=False, box=None)
    for name, value in found.items():
        table.add_row(name, str(value))
    Console().print(table)


if __name__ == "__main__":
    main()
