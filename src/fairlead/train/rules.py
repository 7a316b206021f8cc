"""How the learning rate follows the batch size: by what to multiply every parameter group's own rate.

A larger batch has a less noisy gradient and can take longer steps. How much longer is what the rules disagree on. M is
the batch, M0 the initial one, for which the user chose the learning rate:

    adascale    the gain, from 1 to M / M0 by the measured noise (AdaScale, Johnson et al., 2020)
    adamscale   its square root, for optimisers that divide by the gradient's scale (as in Pollux); see `Moment`
    linear      M / M0 (Goyal et al., 2017)
    sqrt        sqrt(M / M0) (Krizhevsky, 2014)
    legw        sqrt(M / M0), after a warm-up that is M / M0 times as long (You et al., 2019)
    none        1

Torch is not imported, so that a job's rule can be checked where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean


class Growth(NamedTuple):
    """A batch compared with the initial one."""

    #: M / M0.
    scale: float
    #: The progress of one step, in steps at the initial batch.
    gain: float
    #: What the optimiser divides by, squared, compared with what it would be at the initial batch.
    moment: float


RULES: dict[str, Callable[[Growth], float]] = {
    "adascale": lambda growth: growth.gain,
    "adamscale": lambda growth: growth.gain * math.sqrt(growth.moment),
    "linear": lambda growth: growth.scale,
    "sqrt": lambda growth: math.sqrt(growth.scale),
    "legw": lambda growth: math.sqrt(growth.scale),
    "none": lambda _: 1.0,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table above, and for legw the warm-up."""

    name: str
    #: How long the rate rises from 0 in a line, in steps at the initial batch.
    warmup_steps: float = 0.0

    def factor(
        self, batch: int, initial_batch: int, gain: float, progress_steps: float, moment: float | None = None
    ) -> float:
        """`gain` is the progress of a step at this batch, `progress_steps` that of all before, in steps at M0. Without
        a `moment`, the optimiser has known no other batch."""
        scale = batch / initial_batch
        length = self.warmup_steps * scale
        warm = 1.0 if progress_steps >= length else progress_steps / length
        return warm * RULES[self.name](Growth(scale, gain, 1.0 / gain if moment is None else moment))


class Moment:
    """What Adam divides by, squared, compared with what it would be at the initial batch.

    The mean square of a gradient is its signal and its noise: at a batch whose steps are worth `gain` of those at the
    initial one, it is 1 / gain of the one there. So a rate that is sqrt(gain) times as high makes steps gain times as
    long. But Adam remembers: for 1 / (1 - beta2) steps after the batch has grown, it divides by more, and takes steps
    that are too short for the progress they are counted as. The rate has to make up for that, and for the opposite
    after the batch has shrunk. `benchmarks/adam_memory.py` shows what it is worth.
    """

    def __init__(self, beta: float) -> None:
        """`beta` is what the optimiser keeps of its mean square in a step."""
        self._beta = beta
        self._sum = self._weight = 0.0

    @staticmethod
    def of(optimizer: Any) -> Moment:
        """By the first parameter group; one that has no such mean forgets it at once."""
        first = optimizer.param_groups[0]
        betas = first.get("betas")
        return Moment(float(betas[1] if betas is not None else first.get("alpha", 0.0)))

    def note(self, gain: float) -> None:
        """A step was made."""
        self._sum = self._beta * self._sum + (1.0 - self._beta) / gain
        self._weight = self._beta * self._weight + (1.0 - self._beta)

    @property
    def value(self) -> float | None:
        """None before the first step."""
        return self._sum / self._weight if self._weight else None

    def state_dict(self) -> dict[str, float]:
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._sum, self._weight = state["sum"], state["weight"]


#: Optimisers, and those derived from them, that divide the gradient by its running scale. By name: other packages have
#: their own, and torch need not be installed to ask.
ADAM_LIKE = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "FusedAdam", "RMSprop"}


def rule(name: str, *, warmup_steps: float | None = None) -> Rule:
    """The rule of this name. `warmup_steps` is for legw alone: steps at the initial batch, none if not stated."""
    if name not in RULES:
        raise InvalidSpec(f"rule is {name!r}, which is not known{did_you_mean(name, RULES)}")
    if warmup_steps is None:
        return Rule(name)
    if name != "legw":
        raise InvalidSpec(f"warmup_steps is {warmup_steps}, but rule {name!r} has no warm-up; use legw or leave it out")
    if not (math.isfinite(warmup_steps) and warmup_steps >= 0.0):
        raise InvalidSpec(f"warmup_steps is {warmup_steps}; expected a finite number of at least 0")
    return Rule(name, warmup_steps)


def default_rule(optimizer: object) -> str:
    """adamscale for Adam and its like, adascale for all others."""
    names = {cls.__name__ for cls in type(optimizer).__mro__}
    return "adamscale" if names & ADAM_LIKE else "adascale"
