"""Resource elasticity (Or, Zhang, Freedman, MLSys '20) in small, and real: a job that finds its own number of workers.

Real processes train a real model with real gradients over real gloo, under a real agent. What is not real is the
accelerator: every sample takes a worker `sample_s` of sleep, and averaging takes all of them (k - 1)^2 `worker_s`. So
throughput grows with the workers and then no more, as on GPUs, though this machine may have few cores. What processes
take to boot is real, and the larger part of what they do.

* static: it keeps the size it began with;
* in place: `Steering` resizes the agent while it trains;
* checkpoint-restart: the same search, but at each change the agent is stopped, which saves, and another one started.

Run as a program, this file is the worker.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fairlead.core.errors import BackendError
from fairlead.goodput.search import Measured, Search
from fairlead.train.agent import PREEMPTED, Agent, Slot
from fairlead.train.history import History
from fairlead.train.steering import Steering
from fairlead.train.wire import Message

STATIC, IN_PLACE, RESTART = "static", "in place", "checkpoint-restart"
WAYS = (STATIC, IN_PLACE, RESTART)

#: How long one run may take before it is given up.
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Emulated:
    """A job whose speed is known: with k workers a step takes about batch / k * sample_s + (k - 1)^2 * worker_s.

    By default that is 0.29 s with one, 0.17 with two and 0.22 with three: two are worthwhile.
    """

    batch: int = 48
    steps: int = 200
    sample_s: float = 0.006
    worker_s: float = 0.03
    #: The paper's search, with fewer steps for each size: the whole job is a minute and not an hour.
    least: int = 1
    most: int = 3
    step: int = 1
    every_steps: int = 10
    enough_steps: int = 15

    def search(self, start: int) -> Search:
        return Search(
            self.least, self.most, self.step, start, every_steps=self.every_steps, enough_steps=self.enough_steps
        )


class Step(NamedTuple):
    """One update of the model, as whoever led wrote it down."""

    at: float
    number: int
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What was measured of one job. Means over changes are None where there were none."""

    way: str
    start: int
    target: int
    #: From the start of the first process to the end of the last.
    jct_s: float
    #: Seconds that workers held their slots, from their start on, all together.
    gpu_s: float
    find_s: float | None
    growths: int
    shrinks: int
    grow_s: float | None
    shrink_s: float | None


def run_real(emulated: Emulated, way: str, start: int) -> RealRun:
    """Train once. Raises BackendError if that fails."""
    with TemporaryDirectory(prefix="fairlead-elasticity-") as directory:
        job = _Job(emulated, Path(directory))
        try:
            asyncio.run(asyncio.wait_for(job.train(way, start), PATIENCE_S))
        except TimeoutError:
            raise BackendError(f"{way} from {start} workers: not over after {PATIENCE_S:g} s{job.told()}") from None
        steps = [Step(*json.loads(line)) for line in (job.directory / "steps").read_text().splitlines()]
    return measured_run(way, steps, jct_s=job.ended_at - job.began_at, gpu_s=job.gpu_s)


def measured_run(way: str, steps: Sequence[Step], *, jct_s: float, gpu_s: float) -> RealRun:
    """Of a change it is measured how long no step ended, less what a step usually takes at the new size."""
    grow_s: list[float] = []
    shrink_s: list[float] = []
    found_at = steps[0].at
    for place, (before, after) in enumerate(pairwise(steps), start=1):
        if before.workers == after.workers:
            continue
        found_at = after.at
        pause_s = after.at - before.at - _usual_s(steps[place:])
        (grow_s if after.workers > before.workers else shrink_s).append(max(0.0, pause_s))
    return RealRun(
        way=way,
        start=steps[0].workers,
        target=steps[-1].workers,
        jct_s=jct_s,
        gpu_s=gpu_s,
        find_s=None if way == STATIC else found_at - steps[0].at,
        growths=len(grow_s),
        shrinks=len(shrink_s),
        grow_s=fmean(grow_s) if grow_s else None,
        shrink_s=fmean(shrink_s) if shrink_s else None,
    )


def _usual_s(steps: Sequence[Step]) -> float:
    """The median time of a step until the next change; 0 if there was but one."""
    here = [after.at - before.at for before, after in pairwise(steps) if before.workers == after.workers]
    until = next((place for place, step in enumerate(steps) if step.workers != steps[0].workers), len(steps))
    return median(here[: until - 1]) if until > 1 else 0.0


# -- running ---------------------------------------------------------------------------------------------------------


class _Restarting:
    """An agent that is resized by being stopped."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.wanted: int | None = None

    @property
    def members(self) -> list[Slot]:
        return self._agent.members

    @property
    def settled(self) -> bool:
        return self._agent.settled and self.wanted is None

    def resize(self, slots: Sequence[Slot]) -> None:
        self.wanted = len(slots)
        self._agent.stop()


class _Job:
    """One run, by one agent or by several one after the other."""

    def __init__(self, emulated: Emulated, directory: Path) -> None:
        self.emulated, self.directory = emulated, directory
        self.began_at, self.ended_at, self.gpu_s = math.nan, math.nan, 0.0
        self._slots = [Slot("localhost", gpu) for gpu in range(emulated.most)]
        self._measured = Measured(horizon_steps=math.inf)  # the paper forgets nothing

    async def train(self, way: str, start: int) -> None:
        if way == STATIC:
            await self._train_static(start)
        elif way == IN_PLACE:
            await self._train_in_place(start)
        else:
            await self._train_restarting(start)

    async def _train_static(self, start: int) -> None:
        history = History()
        agent = self._agent(history.note)
        self._check(await agent.run(self._slots[:start]))
        self.gpu_s += history.gpu_s

    async def _train_in_place(self, start: int) -> None:
        steering = Steering(self._slots, self.emulated.search(start), measured=self._measured)
        agent = self._agent(lambda event: steering.hear(event, agent))
        self._check(await agent.run(steering.first))
        self.gpu_s += steering.history.gpu_s

    async def _train_restarting(self, start: int) -> None:
        size: int | None = start
        while size is not None:
            size = await self._train_until_resized(size)

    async def _train_until_resized(self, size: int) -> int | None:
        """The size to go on with; None if the job is done."""
        steering = Steering(self._slots, self.emulated.search(size), measured=self._measured)
        agent = self._agent(lambda event: steering.hear(event, restarting))
        restarting = _Restarting(agent)
        code = await agent.run(self._slots[:size])
        self.gpu_s += steering.history.gpu_s
        if code == PREEMPTED and restarting.wanted is not None:
            return restarting.wanted
        self._check(code)
        return None

    def _agent(self, hear: Callable[[Message], object]) -> Agent:
        def note(event: Message) -> None:
            self.began_at = event["at"] if math.isnan(self.began_at) else self.began_at
            self.ended_at = event["at"]
            hear(event)

        command = [sys.executable, "-m", __name__, str(self.directory), json.dumps(asdict(self.emulated))]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "FAIRLEAD_REPORT_S": "0.5"}
        return Agent(command, env=env, logs=self.directory / "logs", on_event=note)

    def _check(self, code: int) -> None:
        if code != 0:
            raise BackendError(f"the job failed with exit code {code}{self.told()}")

    def told(self) -> str:
        """What the workers said last."""
        logs = sorted(self.directory.glob("logs/*"))
        return "".join(f"\n{path.name}: {path.read_text(errors='replace')[-500:]}" for path in logs)


# -- the worker ------------------------------------------------------------------------------------------------------


def work(directory: Path, emulated: Emulated) -> None:
    """Train until all steps are done, or until told to stop."""
    import torch

    import fairlead.train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    points = torch.randn(emulated.batch * emulated.steps, 64, generator=random)
    data = torch.utils.data.TensorDataset(points, (points.sum(1) > 0.0).long())
    job = fairlead.train.init(checkpoints=directory / "checkpoints")
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2))
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(data, emulated.batch)
    with (directory / "steps").open("a") as steps:
        for _ in job.epochs(1):
            for inputs, labels in loader:
                time.sleep(len(inputs) * emulated.sample_s)
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                job.backward(loss)
                if job.reduced:
                    time.sleep((job.world - 1) ** 2 * emulated.worker_s)
                optimizer.step()
                if job.leader and job.reduced:
                    print(json.dumps([time.time(), job.progress.step + 1, job.world]), file=steps, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]), Emulated(**json.loads(sys.argv[2])))
