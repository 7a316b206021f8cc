"""What `rescale.py` trains: the same models, data and loop, once with fairlead and once restartable under torchrun.

    rescale_script.py MODEL {fairlead|torchrun} DIRECTORY

Whoever leads appends a line to DIRECTORY/steps for every step of the optimiser: from when to when, which one, on how
many workers, in which process. Training never ends by itself. Under torchrun DIRECTORY/checkpoint is written every few
steps and read when a process begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import fairlead.train

SAVE_EVERY = 5
SAMPLES = 1 << 14


class Case(NamedTuple):
    """A model, and data for it."""

    model: Callable[[], nn.Module]
    #: From a sample's number.
    sample: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    #: Samples of a step, over all workers.
    batch: int


class Transformer(nn.Module):
    """26.3 million parameters."""

    def __init__(self, words: int = 1000, width: int = 512, layers: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(words))).transpose(1, 2)


def make_mlp() -> nn.Module:
    """0.98 million parameters."""
    return nn.Sequential(nn.Linear(256, 800), nn.ReLU(), nn.Linear(800, 800), nn.ReLU(), nn.Linear(800, 160))


def numbers(place: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(place)
    return torch.randn(256, generator=random), torch.tensor(place % 160)


def sentence(place: int) -> tuple[torch.Tensor, torch.Tensor]:
    words = torch.randint(1000, (33,), generator=torch.Generator().manual_seed(place))
    return words[:-1], words[1:]


CASES = {"mlp1m": Case(make_mlp, numbers, batch=64), "tf25m": Case(Transformer, sentence, batch=8)}


class Data:
    def __init__(self, case: Case) -> None:
        self._sample = case.sample

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._sample(place)


def note(steps: TextIO, began: float, step: int, world: int) -> None:
    print(began, time.monotonic(), step, world, os.getpid(), file=steps, flush=True)


def train_with_fairlead(case: Case, directory: Path) -> None:
    job = fairlead.train.init()
    model = case.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(Data(case), case.batch)
    with (directory / "steps").open("a") as steps:
        for _ in job.epochs(1 << 30):
            for inputs, targets in loader:
                began = time.monotonic()
                loss = functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                job.backward(loss)
                optimizer.step()
                if job.leader and job.reduced:
                    note(steps, began, job.progress.step + 1, job.world)


def train_restartable(case: Case, directory: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    inner = case.model()
    optimizer = torch.optim.Adam(inner.parameters(), lr=1e-4)
    step = load(inner, optimizer, directory / "checkpoint")
    model = DistributedDataParallel(inner, gradient_as_bucket_view=True)
    data = Data(case)
    with (directory / "steps").open("a") as steps:
        while True:
            began, start = time.monotonic(), step * case.batch
            mine = [data[place % SAMPLES] for place in range(start + rank, start + case.batch, world)]
            inputs, targets = (torch.stack(tensors) for tensors in zip(*mine, strict=True))
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                note(steps, began, step, world)
                if step % SAVE_EVERY == 0:
                    save(inner, optimizer, step, directory / "checkpoint")


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
    partial.rename(path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """How many steps have been done."""
    if not path.exists():
        return 0
    saved = torch.load(path, mmap=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


WAYS = {"fairlead": train_with_fairlead, "torchrun": train_restartable}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    WAYS[sys.argv[2]](CASES[sys.argv[1]], Path(sys.argv[3]))
