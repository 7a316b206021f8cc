"""What a script calls after each pass through its loop, so that it has its effect once in a step.

Learning rates follow the batch, schedulers follow the progress, and a gradient scaler sees only complete gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.train import numbers as place


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


def rate_of(optimizer: torch.optim.Optimizer | None) -> float:
    """All its learning rates in one number."""
    return 0.0 if optimizer is None else sum(float(group["lr"]) for group in optimizer.param_groups)


def check_rates(numbers: torch.Tensor, world: int, rate: float) -> None:
    """A scheduler that nobody hands over has another state in a worker that came later."""
    mean, mean_sqr = (float(numbers[at]) / world for at in (place.RATE, place.RATE_SQR))
    if mean_sqr - mean * mean > 1e-9 * mean_sqr:
        raise InvalidSpec(
            f"the workers' learning rates differ (here it is {rate:g}); "
            "give the scheduler to job.wrap(model, optimizer, scheduler=...), so that new workers get its state"
        )


def check_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise InvalidSpec("job.backward: expected the loss as a tensor of one number, the mean over the samples")


def following(scheduler: Any, done: Callable[[], float], *, too_often: Callable[[], bool]) -> Callable[[], None]:
    """The scheduler's step, as often as is needed to be where the job is."""
    step = scheduler.step

    def follow() -> None:
        if too_often():
            raise InvalidSpec(
                "scheduler.step() was called within an epoch, but counts epochs; call it after the loop, "
                'or say job.wrap(..., scheduler_every="step")'
            )
        while scheduler.last_epoch < int(done() + 1e-9):
            step()

    return follow


def guarded_scaler(parts: Iterable[Any], complete: Callable[[], bool]) -> torch.amp.GradScaler | None:
    """The gradient scaler among some parts, which from now on only sees gradients that are complete: so its scale
    changes between two steps, and never within one."""
    scaler = next((part for part in parts if isinstance(part, torch.amp.GradScaler)), None)
    for name in ("unscale_", "step", "update") if scaler is not None else ():
        setattr(scaler, name, _only_if(complete, getattr(scaler, name)))
    return scaler


def _only_if(true: Callable[[], bool], function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if true() else None

    return guarded


def nothing(set_to_none: bool = True) -> None:
    """Instead of `zero_grad`: gradients are views of buckets, and are cleared when a step begins."""
