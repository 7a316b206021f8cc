"""The control plane under load, over real HTTP. Prints figures; asserts nothing.

    python benchmarks/api_load.py [--queued 10000] [--rate 200] [--seconds 30] [--listeners 100] [--messages 1000000]
                                  [--policy pilot] [-o table|json]

queued     so many jobs wait behind four that hold all GPUs; how fast they were taken in
submit     submissions at a steady rate, one a request, each answered after it is safe on disk: latencies in ms
healthz    the same rate of requests that do nothing: the reference
listeners  so many clients of the stream of events are connected meanwhile; how many events reached them
decisions  of the policy meanwhile, how long each took, and how late the loop was at most
memory     of the server in MB, before and after the steady load
start      seconds until a server with a journal of so many messages is ready, with its last snapshot and without
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fairlead.client import find_server
from fairlead.core import codec
from fairlead.core.messages import JobExited, JobReported, JobStarted, JobSubmitted, Message, NodeJoined, Start
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node
from fairlead.server.store import Store

FAIRLEAD = [sys.executable, "-m", "fairlead"]


def note(text: str) -> None:
    click.echo(text, err=True)


class Wire:
    """As much of HTTP as is needed here, on connections that are kept: the one who asks must not be what is slow."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._port = int(port)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body."""
        data = b"" if body is None else json.dumps(body).encode()
        kind = "" if body is None else "Content-Type: application/json\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{self._head}{kind}"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        while self._idle:
            try:
                return await self._exchange(*self._idle.pop(), request)
            except (OSError, asyncio.IncompleteReadError):
                continue  # the server has closed it, as it does with those that were idle for long
        return await self._exchange(*await asyncio.open_connection(self._host, self._port), request)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, bytes]:
        writer.write(request)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split("\r\n")[0])
        text = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(answer.split()[1]), text

    async def listen(self, path: str, heard: list[int], place: int) -> None:
        """Count the events of a stream."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{self._head}\r\n".encode())
        while piece := await reader.read(1 << 18):
            heard[place] += piece.count(b"data: {")


class Plane:
    """A server of our own."""

    def __init__(self, state: Path, policy: str) -> None:
        self.state = state
        began = time.monotonic()
        env = {**os.environ, "FAIRLEAD_SERVER_RATE": "100000"}
        command = [*FAIRLEAD, "up", "--detach", "--gpus", "4", "--state", str(state), "--port", "0"]
        subprocess.run([*command, "--policy", policy], check=True, stdout=subprocess.DEVNULL, env=env)
        self.start_s = time.monotonic() - began
        self.pid = json.loads((state / "server.json").read_text())["pid"]
        server = find_server(state)
        self.url, self.headers = server.url, {"Authorization": f"Bearer {server.token}"}

    def wire(self) -> Wire:
        return Wire(self.url, self.headers)

    @property
    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def down(self) -> None:
        subprocess.run([*FAIRLEAD, "down", "--state", str(self.state)], check=False, stderr=subprocess.DEVNULL)


def job(name: str, seconds: int) -> dict[str, Any]:
    return {"name": name, "run": ["sleep", str(seconds)], "gpus": 1, "time_limit": seconds + 60}


async def fill(wire: Wire, count: int) -> float:
    """Jobs a second."""
    for place in range(4):
        await wire.ask("POST", "/api/v1/jobs", job(f"holder-{place}", 3600))
    began, left = time.monotonic(), iter(range(count))

    async def work() -> None:
        for place in left:
            status, answer = await wire.ask("POST", "/api/v1/jobs", job(f"queued-{place}", 60))
            assert status == 201, answer

    await asyncio.gather(*(work() for _ in range(16)))
    return count / (time.monotonic() - began)


async def steady(rate: float, seconds: float, ask: Callable[[int], Awaitable[tuple[int, bytes]]]) -> dict[str, float]:
    """Requests when they are due, whether or not those before were answered. Latency counts from when it was due."""
    latencies: list[float] = []
    failed = 0

    async def one(place: int, due: float) -> None:
        nonlocal failed
        try:
            failed += (await ask(place))[0] >= 400
        except (OSError, asyncio.IncompleteReadError):
            failed += 1
        latencies.append(1000.0 * (time.monotonic() - due))

    began, tasks = time.monotonic(), []
    for place in range(int(rate * seconds)):
        due = began + place / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.ensure_future(one(place, due)))
    await asyncio.gather(*tasks)
    took_s = time.monotonic() - began
    p50, p99, worst = np.percentile(latencies, [50, 99, 100]).tolist()
    return {
        "rate": len(latencies) / took_s,
        "failed": failed,
        "p50_ms": p50,
        "p99_ms": p99,
        "worst_ms": worst,
    }


async def metrics(wire: Wire) -> dict[str, float]:
    """Those without labels."""
    text = (await wire.ask("GET", "/metrics"))[1].decode()
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, value in pairs}


async def load(plane: Plane, queued: int, rate: float, seconds: float, listeners: int) -> list[dict[str, Any]]:
    wire = plane.wire()
    reference = await steady(rate, min(seconds, 10.0), lambda _: wire.ask("GET", "/healthz"))
    note(f"filling the queue with {queued:,} jobs")
    filled = await fill(wire, queued)
    heard = [0] * listeners
    streams = [asyncio.ensure_future(wire.listen("/api/v1/events", heard, place)) for place in range(listeners)]
    await asyncio.sleep(5.0)
    before, memory_mb, lag_s = await metrics(wire), plane.memory_mb, 0.0
    note(f"{rate:g} submissions a second for {seconds:g} s, with {listeners} listeners")

    async def watch() -> None:
        nonlocal lag_s
        while True:
            await asyncio.sleep(1.0)
            lag_s = max(lag_s, (await metrics(wire))["fairlead_loop_lag_seconds"])

    watching = asyncio.ensure_future(watch())
    submit = await steady(rate, seconds, lambda place: wire.ask("POST", "/api/v1/jobs", job(f"load-{place}", 60)))
    after = await metrics(wire)
    for task in (watching, *streams):
        task.cancel()
    name = "fairlead_decision_seconds"
    decisions = after[f"{name}_count"] - before[f"{name}_count"]
    return [
        {"what": "queued", "jobs": queued, "per_s": filled},
        {"what": "submit", **submit},
        {"what": "healthz", **reference, "submit_p99_ratio": submit["p99_ms"] / reference["p99_ms"]},
        {"what": "listeners", "clients": listeners, "events_each": float(np.mean(heard)) if heard else 0.0},
        {
            "what": "decisions",
            "per_s": decisions / seconds,
            "mean_ms": 1000.0 * (after[f"{name}_sum"] - before[f"{name}_sum"]) / max(1.0, decisions),
            "worst_lag_s": lag_s,
        },
        {"what": "memory", "before_mb": memory_mb, "after_mb": plane.memory_mb},
    ]


# -- a long journal ----------------------------------------------------------------------------------------------------


def life(number: int) -> list[Message]:
    """Of a job that was done by the node of the past: 20 messages."""
    at, name = 1e9 + number, f"{number}"
    head: list[Message] = [
        JobSubmitted(at, JobSpec(id=name, name="old")),
        Start(at, name, 1, Allocation.of({"past": [number % 4]})),
        JobStarted(at, name, 1),
    ]
    reports: list[Message] = [JobReported(at + place / 16, name, 1, place / 16) for place in range(16)]
    return [*head, *reports, JobExited(at + 1, name, 1)]


def write_history(state: Path, messages: int, *, snapshot: bool) -> None:
    """A journal of so many messages; with a snapshot, as the server makes them, 5,000 messages before its end."""
    state.mkdir(mode=0o700)
    known = State(keep_finished=1000)
    with Store.open(f"sqlite:///{state}/fairlead.db") as store:
        epoch = store.claim(who="benchmark")
        written = store.write([NodeJoined(1e9, node := Node("past", 4))], {}, epoch=epoch)
        known.apply(NodeJoined(1e9, node))
        taken = not snapshot
        for number in range(1, messages // 20 + 1):
            lives = life(number)
            written = store.write(lives, {}, epoch=epoch)
            if snapshot:
                for message in lives:
                    known.issue(message) if isinstance(message, Start) else known.apply(message)
                if not taken and written >= messages - 5000:
                    store.save_snapshot(written, codec.encode(known.facts()))
                    taken = True


def start_up(messages: int, policy: str) -> dict[str, Any]:
    figures = {}
    for label, snapshot, count in (("seconds", True, messages), ("seconds_per_100k_without", False, 100_000)):
        root = Path(tempfile.mkdtemp(prefix="fairlead-load-"))
        try:
            note(f"writing a journal of {count:,} messages")
            write_history(root / "state", count, snapshot=snapshot)
            plane = Plane(root / "state", policy)
            figures[label] = plane.start_s
            plane.down()
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return {"what": "start", "messages": messages, **figures}


@click.command()
@click.option("--queued", default=10_000, show_default=True)
@click.option("--rate", default=200.0, show_default=True, help="Submissions a second.")
@click.option("--seconds", default=30.0, show_default=True)
@click.option("--listeners", default=100, show_default=True)
@click.option("--messages", default=1_000_000, show_default=True, help="0 leaves the start-up out.")
@click.option("--policy", default="pilot", show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(queued: int, rate: float, seconds: float, listeners: int, messages: int, policy: str, output: str) -> None:
    """The control plane under load."""
    state = Path(tempfile.mkdtemp(prefix="fairlead-load-"))
    try:
        plane = Plane(state / "state", policy)
        try:
            rows = asyncio.run(load(plane, queued, rate, seconds, listeners))
        finally:
            plane.down()
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if messages:
        rows.append(start_up(messages, policy))
    if output == "json":
        click.echo(json.dumps(rows))
        return
    table = Table("what", "figures", box=None)
    for row in rows:
        told = ", ".join(f"{name} {value:,.4g}" for name, value in row.items() if name != "what")
        table.add_row(row["what"], told)
    Console().print(table)


if __name__ == "__main__":
    main()
