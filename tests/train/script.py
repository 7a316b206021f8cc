"""A small training job that writes down every step. What it does is said in the environment; see driving.py."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import fairlead.train
import fairlead.train.memory


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


def stall_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        time.sleep(600.0)


def train(out: Path, *, epochs: int, pace_s: float = 0.0, **options: object) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dropout = float(str(options.pop("dropout", 0.0)))
    grace_s = float(str(options.pop("grace_s", 10.0)))
    data: object = Flow(1000) if "length" in options else Points(1000, float(str(options.pop("noise", 0.0))))
    name = os.environ.get("FAIRLEAD_WORKER", f"w{os.environ.get('RANK', '0')}")
    slow, slow_s = options.pop("slow", None), float(str(options.pop("slow_s", 0.0)))
    stall_at, finish_at, crash_at = (options.pop(f"{what}_at", None) for what in ("stall", "finish", "crash"))
    crash, breaks = options.pop("crash", None), bool(options.pop("breaks", False))
    if options.pop("no_shared_memory", False):
        fairlead.train.memory.SHARED = out / "nowhere"
    if name == options.pop("fails", None):
        raise SystemExit(5)
    forgetful, code = options.pop("forgetful", False), int(str(options.pop("exit_with", 0)))
    job = fairlead.train.init(seed=3, checkpoints=out / "checkpoints", save_every_s=0.5, grace_s=grace_s)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(32, 1)
    ).double()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if forgetful:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 / (1 + epoch))
    model, optimizer = job.wrap(model, optimizer, scheduler=None if forgetful else scheduler)
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
                    if job.progress.step == crash_at and name == crash:
                        raise RuntimeError("this worker has an error of its own")
                    if job.progress.step == finish_at and (job.world == 1 or not job.leader):
                        job.finish()
                    if job.progress.step == stall_at:
                        stall_once(out / "stalled")
                time.sleep(pace_s)
                if breaks:
                    break
            scheduler.step()
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    train(Path(os.environ["OUT"]), **json.loads(os.environ["OPTIONS"]))
