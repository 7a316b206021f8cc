"""A small training job that writes down every step. What it does is said in the environment; see driving.py."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

import fairlead.train
import fairlead.train.checkpoint
import fairlead.train.chronicle
import fairlead.train.memory


class Untraced(types.ModuleType):
    """In place of PyTorch's compiler, which every optimiser imports only to tell it what not to trace: as much time of
    a processor as `import torch` again, for each worker of these tests. Nothing here is compiled."""

    @staticmethod
    def graph_break() -> None:
        pass

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        return function


class Points:
    """Made of their number, so that every process has the same."""

    def __init__(self, count: int, noise: float = 0.0) -> None:
        self.count, self.noise = count, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(place)
        point = torch.randn(8, generator=random, dtype=torch.float64)
        noise = torch.randn((), generator=random, dtype=torch.float64)
        return point, 0.3 * point.sum() + torch.sin(point[0]) + self.noise * noise


class Flow:
    """The same, one after the other."""

    def __init__(self, count: int) -> None:
        self.points = Points(count)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self.points[place] for place in range(len(self.points)))


def row(job: fairlead.train.Job, model: torch.nn.Module) -> dict[str, float]:
    """What is written down of a step."""
    return {
        "progress": job.progress.scale_invariant,
        "step": job.progress.step,
        "epoch": job.progress.epoch,
        "position": job.progress.position,
        "total": job.step_samples,
        "loss": job.loss,
        "weights": float(sum(p.detach().abs().sum() for p in model.parameters())),
        "world": job.world,
        "at": time.time(),
    }


def slow_writes(seconds: float) -> None:
    """As if the disk were."""
    whole = fairlead.train.checkpoint._write_whole

    def slowly(*args: Any) -> None:
        time.sleep(seconds)
        whole(*args)

    fairlead.train.checkpoint._write_whole = slowly


def long_reports(size: int) -> None:
    """As of a job that has measured very much."""
    report = fairlead.train.chronicle.Chronicle.report

    def long(*args: Any) -> dict[str, Any]:
        return {**report(*args), "long": "x" * size}

    fairlead.train.chronicle.Chronicle.report = long  # type: ignore[method-assign]


@dataclass
class Mishaps:
    """What happens to whom, and in which step."""

    out: Path
    name: str
    stall_at: int | None = None
    finish_at: int | None = None
    finish_in_rehearsal: bool = False
    crash: str = ""
    crash_at: int = 0
    fails: str = ""
    no_shared_memory: bool = False
    write_s: float = 0.0
    report_bytes: int = 0

    def before_training(self) -> None:
        if self.no_shared_memory:
            fairlead.train.memory.SHARED = self.out / "nowhere"
        if self.write_s:
            slow_writes(self.write_s)
        if self.report_bytes:
            long_reports(self.report_bytes)
        if self.name == self.fails:
            raise SystemExit(5)

    def after(self, job: fairlead.train.Job) -> None:
        """A pass through the loop."""
        step, stalled = job.progress.step, self.out / "stalled"
        if not job.reduced:
            if self.finish_in_rehearsal:
                job.finish()
            return
        if step == self.crash_at and self.name == self.crash:
            raise RuntimeError("this worker has an error of its own")
        if self.finish_at is not None and step >= self.finish_at and (job.world == 1 or not job.leader):
            job.finish()
        if step == self.stall_at and not stalled.exists():
            stalled.touch()
            time.sleep(600.0)


def train(out: Path, *, epochs: int, pace_s: float = 0.0, **options: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    name = os.environ.get("FAIRLEAD_WORKER", f"w{os.environ.get('RANK', '0')}")
    happens = {field.name: options.pop(field.name) for field in fields(Mishaps) if field.name in options}
    mishaps = Mishaps(out, name, **happens)
    dropout, slow, slow_s = options.pop("dropout", 0.0), options.pop("slow", ""), options.pop("slow_s", 0.0)
    grace_s, save_every_s = options.pop("grace_s", 10.0), options.pop("save_every_s", 0.5)
    count, noise = 1000 + (name == options.pop("differs", "")), options.pop("noise", 0.0)
    breaks, tail_s, code = options.pop("breaks", False), options.pop("tail_s", 0.0), options.pop("exit_with", 0)
    forgetful = options.pop("forgetful", False)
    mishaps.before_training()
    job = fairlead.train.init(seed=3, checkpoints=out / "checkpoints", save_every_s=save_every_s, grace_s=grace_s)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 1)
    ).double()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if forgetful:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
    model, optimizer = job.wrap(model, optimizer, scheduler=None if forgetful else scheduler)
    data = Flow(count) if "length" in options else Points(count, noise)
    loader = job.loader(data, **{"batch_size": 30, **options})
    with (out / f"{name}.jsonl").open("a") as steps:
        for _ in job.epochs(epochs):
            for inputs, targets in loader:
                time.sleep(slow_s * len(inputs) * (name == slow))
                loss = ((model(inputs).squeeze(1) - targets) ** 2).mean()
                optimizer.zero_grad()
                job.backward(loss)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if job.reduced:
                    print(json.dumps(row(job, model)), file=steps, flush=True)
                mishaps.after(job)
                time.sleep(pace_s)
                if breaks:
                    break
            scheduler.step()
    if job.leader:
        time.sleep(tail_s)
        (out / "after").touch()
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.modules["torch._dynamo"] = torch._dynamo = Untraced("torch._dynamo")  # type: ignore[assignment]
    train(Path(os.environ["OUT"]), **json.loads(os.environ["OPTIONS"]))
