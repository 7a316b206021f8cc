"""One worker of `noise_scale.py`: several ways to train a model, step by step in turns, in one process.

    noise_scale_script.py MODEL BATCH TOKENS ROUNDS      with RANK, WORLD_SIZE, MASTER_ADDR and PORTS in the environment

Every way has a model, an optimiser and a loop of its own, written as a generator that yields after every update; so
whoever calls `next` decides who trains now. Prints {way: [{step: CPU seconds} of a round, ...]}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from rescale_script import CASES
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fairlead.train
from fairlead.train import meter, stragglers

#: Steps in which the noise is measured as often as a job does that: a round.
CADENCE = meter.MEASURED_ONE_IN
#: Steps that one does before it is the turn of the next. What is small stays in the cache, as it does in a job of one's
#: own; what is large does not anyway, and the shorter the turns, the more alike the machine is for all.
TURN_STEPS = {"mlp1m": CADENCE, "tf25m": 1}
#: The steps of a round in which those take part of which every step, or every other one, is like any other.
ALIKE = {"mlp1m": range(CADENCE), "tf25m": range(2, 4)}
#: Steps of everybody that are not counted.
WARM_UP = 2
#: Steps until the data begins again.
EPOCH_STEPS = 64


class Task(NamedTuple):
    model: Callable[[], nn.Module]
    data: TensorDataset
    #: Samples of a step for each worker.
    batch: int
    world: int


class Way(NamedTuple):
    """A loop that trains, and in which steps of a round it does."""

    loop: Iterator[None]
    steps: range
    #: So many of the first steps of a job are all measured. None here: it would take long until they are over.
    measured_first: int = 0


def make_task(model: str, batch: int, tokens: int, world: int) -> Task:
    random = torch.Generator().manual_seed(0)
    length = EPOCH_STEPS * batch * world
    if model == "tf25m":
        words = torch.randint(1000, (length, tokens + 1), generator=random)
        data = TensorDataset(words[:, :-1], words[:, 1:])
    else:
        data = TensorDataset(torch.randn(length, 256, generator=random), torch.arange(length) % 160)
    return Task(CASES[model].model, data, batch, world)


def train_with_ddp(task: Task, *, view: bool = False) -> Iterator[None]:
    inner = task.model()
    model = DistributedDataParallel(inner, gradient_as_bucket_view=view)
    optimizer = torch.optim.Adam(inner.parameters(), lr=1e-4)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(task.data)
    loader = DataLoader(task.data, task.batch, sampler=sampler)
    for epoch in range(1 << 30):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield


def train_with_fairlead(task: Task, port: str, *, adaptive: bool = True) -> Iterator[None]:
    total = task.batch * task.world
    job = fairlead.train.init()
    model = task.model()
    model, optimizer = job.wrap(model, torch.optim.Adam(model.parameters(), lr=1e-4))
    largest = 2 * total if adaptive else None
    loader = job.loader(task.data, total, max_batch_size=largest, schedule="fixed")
    os.environ["MASTER_PORT"] = port  # read when the first epoch begins; every job needs a store of its own
    for _ in job.epochs(1 << 30):
        for inputs, targets in loader:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            job.backward(loss)
            optimizer.step()
            yield


def make_ways(task: Task, ports: list[str], alike: range) -> dict[str, Way]:
    every = range(CADENCE)
    return {
        "ddp": Way(train_with_ddp(task), every),
        "ours": Way(train_with_fairlead(task, ports[0]), every),
        "ddp_view": Way(train_with_ddp(task, view=True), alike),
        "ours_fixed": Way(train_with_fairlead(task, ports[1], adaptive=False), alike),
        "ours_every_step": Way(train_with_fairlead(task, ports[2]), alike, measured_first=1 << 62),
    }


def step_cpu_s(way: Way) -> float:
    """Of all threads of this process."""
    meter.MEASURED_FIRST = way.measured_first
    began = time.process_time()
    next(way.loop)
    return time.process_time() - began


def run_round(ways: dict[str, Way], turn_steps: int) -> dict[str, dict[int, float]]:
    """Who begins changes from turn to turn, so that nobody always follows the same one."""
    seconds: dict[str, dict[int, float]] = {name: {} for name in ways}
    names = list(ways)
    for start in range(0, CADENCE, turn_steps):
        for name in names:
            gc.collect()
            for step in range(start, start + turn_steps):
                if step in ways[name].steps:
                    seconds[name][step] = step_cpu_s(ways[name])
        names.reverse()
    return seconds


def main(model: str, batch: int, tokens: int, rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ports = os.environ["PORTS"].split(",")
    os.environ["MASTER_PORT"] = ports.pop()
    dist.init_process_group("gloo")
    # On a busy machine one worker may seem slower than the other, and would be given fewer samples than with DDP.
    stragglers.EQUAL = float("inf")
    ways = make_ways(make_task(model, batch, tokens, dist.get_world_size()), ports, ALIKE[model])
    seconds: dict[str, list[dict[int, float]]] = {name: [] for name in ways}
    for way in ways.values():
        for _ in range(WARM_UP):
            step_cpu_s(way)
    for place in range(rounds):
        for name, steps in run_round(ways, TURN_STEPS[model]).items():
            seconds[name].append(steps)
        print(f"round {place + 1} of {rounds}", file=sys.stderr, flush=True)
    print(json.dumps(seconds), flush=True)
    os._exit(0)  # the loops never end


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
