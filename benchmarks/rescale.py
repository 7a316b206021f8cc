"""How long training stands still when workers come, go or die: ours against an elastic restart of torchrun.

    python benchmarks/rescale.py [--model mlp1m --model tf25m] [--small] [--no-torchrun] [-o table|json]

mlp1m   0.98 M parameters       tf25m   a transformer of 26 M parameters, 8 layers, width 512; both with Adam

grow    from 2 to 4 workers     shrink  from 4 to 2     death   one of 4 is killed       (--small: 1 and 2 instead)

The pause is the time from the end of the last step before the change to the beginning of the first one that is
completed after it, as the leader sees it. How much longer that one takes than the median of those that follow is told
beside it: it contains what others do meanwhile, and on a busy machine little else than chance. Ours is the median of
several changes of one run. Torchrun restarts all workers from a checkpoint in memory, written every 5 steps, with
settings that suit it: one agent for each worker, a last call of 1 s instead of 30, a sign of life every second instead
of every 5. There, to shrink is to end agents with SIGTERM, and after a death there are as many workers as before. That
up to 4 steps are done again is not counted as a pause.

The floor of growing: nobody can have the state before each of the old workers has copied its part of it once. That is
what the copy takes on this machine when nothing else runs, into memory that is there already.

One thread for each process. With more workers than cores, the pauses contain the work that others do meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from rescale_script import CASES
from rich.console import Console
from rich.table import Table

from fairlead.train.agent import Agent, Slot
from fairlead.train.wire import Message

SCRIPT = Path(__file__).with_name("rescale_script.py")
DIRECTIONS = ("grow", "shrink", "death")
#: How long anything may take before it is given up.
PATIENCE_S = 90.0
#: Steps to let pass before a change, and as many after it to know what is usual.
STEPS = {"mlp1m": 30, "tf25m": 6}
#: Files in memory, where there are such, so that no disk slows a checkpoint.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ENV = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


class Stuck(Exception):
    """Something did not happen in time."""


class Step(NamedTuple):
    began: float
    at: float
    number: int
    world: int
    pid: int


class Pause(NamedTuple):
    seconds: float
    #: By so much the first step after it was slower than the next ones.
    slower_s: float
    #: Steps that were done again.
    lost: int


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    model: str
    small: int
    large: int
    changes: int
    restarts: int

    @property
    def steps(self) -> int:
        return STEPS[self.model]

    def title(self, direction: str) -> str:
        ends = {"grow": (self.small, self.large), "shrink": (self.large, self.small)}
        return "{} {} -> {}".format(direction, *ends.get(direction, (self.large, self.large - 1)))


# -- what the leader noted ---------------------------------------------------------------------------------------------


class Steps:
    """The file of steps, read as it grows."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "steps"
        self.all: list[Step] = []
        self._read = 0

    def look(self) -> None:
        with contextlib.suppress(FileNotFoundError), self.path.open() as file:
            file.seek(self._read)
            for line in file:
                if line.endswith("\n"):
                    self._read += len(line)
                    began, at, *rest = line.split()
                    self.all.append(Step(float(began), float(at), *map(int, rest)))

    def steady(self, world: int, count: int) -> bool:
        """The latest `count` steps were done by the same `world` workers."""
        self.look()
        recent = self.all[-count:]
        return len(recent) == count and {(step.world, step.pid) for step in recent} == {(world, recent[0].pid)}

    def changed(self, since: float, world: int) -> bool:
        """Somebody else trains than before, and as many as that."""
        self.look()
        return any(step.world == world for step in self.changes(since).values())

    def pause(self, since: float, world: int) -> Pause:
        """Of the change, or of all changes on the way to this size together."""
        seconds, slower_s, lost = 0.0, 0.0, 0
        for place, step in self.changes(since).items():
            before = self.all[place - 1]
            same = itertools.takewhile(lambda later, step=step: later[3:] == step[3:], self.all[place:])  # type: ignore[misc]
            first, *others = [each.at - each.began for each in same]
            seconds += step.began - before.at
            slower_s += first - statistics.median(others) if others else 0.0
            lost += before.number + 1 - step.number
            if step.world == world:
                break
        return Pause(seconds, slower_s, lost)

    def changes(self, since: float) -> dict[int, Step]:
        """The first step of each new set of workers, by its place."""
        return {
            place: step
            for place, step in enumerate(self.all)
            if place
            and step.at > since
            and (step.world, step.pid) != (self.all[place - 1].world, self.all[place - 1].pid)
        }


async def until(condition: Callable[[], bool], what: str) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > patience:
            raise Stuck(f"{what}: not within {PATIENCE_S:g} s")
        await asyncio.sleep(0.1)


# -- ours --------------------------------------------------------------------------------------------------------------


class Ours:
    """One job under an agent."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.steps = plan, Steps(directory)
        self.pids: dict[str, int] = {}
        self.members: list[str] = []
        command = [sys.executable, str(SCRIPT), plan.model, "fairlead", str(directory)]
        #: What was measured, even if it ends badly.
        self.pauses: dict[str, list[Pause]] = {direction: [] for direction in DIRECTIONS}
        env = {**os.environ, **ENV}
        self.agent = Agent(command, env=env, logs=directory, max_restarts=99, on_event=self._hear)

    def _hear(self, event: Message) -> None:
        if event["kind"] == "started":
            self.pids[event["worker"]] = event["pid"]
        elif event["kind"] == "plan":
            self.members = event["members"]

    async def run(self) -> None:
        plan, pauses = self.plan, self.pauses
        job = asyncio.create_task(self.agent.run(slots(plan.small)))
        try:
            await self._steady(plan.small, job)
            for _ in range(plan.changes):
                pauses["grow"].append(await self._change(lambda: self.agent.resize(slots(plan.large)), plan.large, job))
                pauses["shrink"].append(
                    await self._change(lambda: self.agent.resize(slots(plan.small)), plan.small, job)
                )
            await self._change(lambda: self.agent.resize(slots(plan.large)), plan.large, job)
            for _ in range(plan.changes):
                pauses["death"].append(await self._change(self._kill_one, plan.large - 1, job))
                await self._steady(plan.large, job)  # the agent has found a substitute
        finally:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await asyncio.sleep(0.5)  # until asyncio has seen that they are gone

    def _kill_one(self) -> None:
        """Not the leader, who notes the steps."""
        os.kill(self.pids[self.members[-1]], signal.SIGKILL)

    async def _change(self, act: Callable[[], None], world: int, job: asyncio.Task[int]) -> Pause:
        since = time.monotonic()
        act()
        await until(lambda: job.done() or self.steps.changed(since, world), f"{world} workers")
        # After a death the substitute may come before so many steps have been done without it.
        await until(
            lambda: job.done() or self.steps.steady(world, self.plan.steps) or len(self.steps.changes(since)) > 1,
            f"steps with {world} workers",
        )
        pause = self.steps.pause(since, world)
        click.echo(f"{self.plan.model}: to {world} workers, {1e3 * pause.seconds:.1f} ms", err=True)
        return pause

    async def _steady(self, world: int, job: asyncio.Task[int]) -> None:
        def reached() -> bool:
            return self.agent.settled and self.steps.steady(world, self.plan.steps)

        await until(lambda: job.done() or reached(), f"steps with {world} workers")
        if job.done():
            raise Stuck(f"the job ended with code {job.result()}")


def slots(count: int) -> list[Slot]:
    return [Slot("here", gpu) for gpu in range(count)]


# -- torchrun ----------------------------------------------------------------------------------------------------------


class Torchrun:
    """Agents of torchrun with one worker each. The first holds what they have in common, and is never ended."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory, self.steps = plan, directory, Steps(directory)
        self.port = free_port()
        self.agents: list[subprocess.Popen[bytes]] = []

    async def run(self, direction: str) -> Pause:
        plan = self.plan
        before = plan.small if direction == "grow" else plan.large
        after = plan.small if direction == "shrink" else plan.large
        self._start(1)
        await until(lambda: listening(self.port), "torchrun's store")  # whoever is first holds it
        self._start(before - 1)
        await until(lambda: self.steps.steady(before, plan.steps), f"torchrun with {before} workers")
        since = time.monotonic()
        if direction == "grow":
            self._start(after - before)
        elif direction == "shrink":
            for agent in self.agents[after:]:
                agent.terminate()
        else:
            os.kill(worker_of(self.agents[-1].pid), signal.SIGKILL)
        await until(lambda: self.steps.changed(since, after), f"torchrun with {after} workers after {direction}")
        await until(lambda: self.steps.steady(after, plan.steps), f"torchrun training on after {direction}")
        return self.steps.pause(since, after)

    def _start(self, count: int) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{self.plan.small}:{self.plan.large}"]
        command += ["--nproc-per-node", "1", "--max-restarts", "99", "--monitor-interval", "0.1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "rescale"]
        command += ["--rdzv-conf", RENDEZVOUS, str(SCRIPT), self.plan.model, "torchrun", str(self.directory)]
        for _ in range(count):
            with (self.directory / f"agent{len(self.agents)}.log").open("wb") as log:
                env = {**os.environ, **ENV}
                agent = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            self.agents.append(agent)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def worker_of(agent: int) -> int:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return int(children[-1])


# -- both --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cleared_directory() -> Iterator[Path]:
    """A directory that every process of a run is told, so that whoever was is ended, however it began."""
    with tempfile.TemporaryDirectory(prefix="rescale-", dir=MEMORY) as name:
        try:
            yield Path(name)
        finally:
            while found := processes_told(name):
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)


def processes_told(word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def measure_ours(plan: Plan) -> tuple[dict[str, list[Pause]], str]:
    """The pauses, and what went wrong."""
    with cleared_directory() as directory:
        ours = Ours(plan, directory)
        _, wrong = attempt(ours.run, directory)
    return ours.pauses, wrong


def measure_torchrun(plan: Plan, direction: str) -> tuple[list[Pause], str]:
    pauses, wrong = [], ""
    for _ in range(plan.restarts):
        with cleared_directory() as directory:
            torchrun = Torchrun(plan, directory)
            pause, wrong = attempt(lambda torchrun=torchrun: torchrun.run(direction), directory)  # type: ignore[misc]
            if pause is not None:
                pauses.append(pause)
    return pauses, wrong


def attempt(run: Callable[[], Awaitable[Any]], directory: Path) -> tuple[Any, str]:
    """What it returns, and what went wrong."""
    try:
        return asyncio.run(run()), ""  # type: ignore[arg-type]
    except Stuck as stuck:
        for log in sorted(directory.glob("*.log")):
            click.echo(f"-- {log.name}\n{log.read_text(errors='replace')[-2000:]}", err=True)
        return None, str(stuck)


def copy_s(model: str, donors: int) -> float:
    """Seconds to copy one donor's part of the state of a model and Adam into memory that is there already."""
    torch.set_num_threads(1)
    parameters = [p.detach() for p in CASES[model].model().parameters()]
    state = [*parameters, *(torch.zeros_like(p) for p in parameters), *(torch.zeros_like(p) for p in parameters)]
    flat = torch.cat([tensor.flatten() for tensor in state])
    part = list(flat[: len(flat) // donors].split(1 << 20))
    there = [torch.ones_like(tensor) for tensor in part]
    taken = []
    for _ in range(7):
        began = time.perf_counter()
        torch._foreach_copy_(there, part)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def measure(plan: Plan, *, torchrun: bool) -> list[dict[str, Any]]:
    floor_s = copy_s(plan.model, plan.small)
    ours, wrong = measure_ours(plan)
    rows = []
    for direction in DIRECTIONS:
        theirs, their_wrong = measure_torchrun(plan, direction) if torchrun else ([], "")
        rows.append(
            {
                "model": plan.model,
                "change": plan.title(direction),
                "ours_s": middle(ours[direction]),
                "ours_all_s": [round(pause.seconds, 4) for pause in ours[direction]],
                "ours_first_step_slower_s": slower(ours[direction]),
                "torchrun_s": middle(theirs),
                "torchrun_all_s": [round(pause.seconds, 4) for pause in theirs],
                "torchrun_first_step_slower_s": slower(theirs),
                "torchrun_steps_lost": [pause.lost for pause in theirs],
                "floor_s": round(floor_s, 4) if direction == "grow" else None,
                "wrong": "; ".join(filter(None, [wrong, their_wrong])),
            }
        )
        rows[-1]["ratio"] = ratio(rows[-1]["torchrun_s"], rows[-1]["ours_s"])
    return rows


def middle(pauses: Sequence[Pause]) -> float | None:
    return round(statistics.median(pause.seconds for pause in pauses), 4) if pauses else None


def slower(pauses: Sequence[Pause]) -> float | None:
    return round(statistics.median(pause.slower_s for pause in pauses), 4) if pauses else None


def ratio(theirs: float | None, ours: float | None) -> float | None:
    """None if there is nothing to compare, or if our pause is lost in the noise."""
    return round(theirs / ours, 1) if theirs and ours and ours > 0.0 else None


# -- output ------------------------------------------------------------------------------------------------------------


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title="Pauses when workers come, go or die, in ms")
    for name in ("model", "change"):
        table.add_column(name, no_wrap=True)
    for name in ("ours", "range", "then slower", "floor", "torchrun", "then slower", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        every = row["ours_all_s"]
        spread = f"{1e3 * min(every):.0f} to {1e3 * max(every):.0f}" if every else ""
        ours, theirs = (
            [milliseconds(row[f"{whose}_{what}"]) for what in ("s", "first_step_slower_s")]
            for whose in ("ours", "torchrun")
        )
        times = f"{row['ratio']:g}" if row["ratio"] else ""
        floor = milliseconds(row["floor_s"])
        table.add_row(row["model"], row["change"], ours[0], spread, ours[1], floor, *theirs, times, row["wrong"])
    Console().print(table)


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.0f}"


@click.command(help=__doc__.split("\n")[0])
@click.option(
    "--model", "models", type=click.Choice(list(CASES)), multiple=True, default=list(CASES), show_default=True
)
@click.option("--small", is_flag=True, help="1 and 2 workers instead of 2 and 4.")
@click.option("--changes", default=3, show_default=True, help="How often each of ours is measured.")
@click.option("--restarts", default=1, show_default=True, help="How often each of torchrun's is measured.")
@click.option("--torchrun/--no-torchrun", default=True, show_default=True)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(models: tuple[str, ...], small: bool, changes: int, restarts: int, torchrun: bool, output: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended
    least, most = (1, 2) if small else (2, 4)
    rows = []
    for model in models:
        rows += measure(Plan(model, least, most, changes, restarts), torchrun=torchrun)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
