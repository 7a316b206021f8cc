"""Learning rates that follow the batch, and schedulers that follow the progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def scaled_rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Within it all learning rates are so many times as high. Schedulers never see that."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def following(scheduler: Any, done: Callable[[], float]) -> Callable[[], None]:
    """The scheduler's step, as often as is needed to be where the job is."""
    step = scheduler.step

    def follow() -> None:
        while scheduler.last_epoch < int(done() + 1e-9):
            step()

    return follow


def nothing(set_to_none: bool = True) -> None:
    """Instead of `zero_grad`: gradients are views of buckets, and are cleared when a step begins."""
