"""How the learning rate follows the batch size: by what to multiply every parameter group's own rate.

A larger batch has a less noisy gradient and can take longer steps. How much longer is what the rules disagree on. M is
the batch, M0 the initial one, for which the user chose the learning rate:

    adascale    the gain, from 1 to M / M0 by the measured noise (AdaScale, Johnson et al., 2020)
    adamscale   its square root, for optimisers that divide by the gradient's scale (as in Pollux)
    linear      M / M0 (Goyal et al., 2017)
    sqrt        sqrt(M / M0) (Krizhevsky, 2014)
    legw        sqrt(M / M0), after a warm-up that is M / M0 times as long (You et al., 2019)
    none        1

Torch is not imported, so that a job's rule can be checked where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.errors import InvalidSpec
from fairlead.plugins import did_you_mean


class Growth(NamedTuple):
    """A batch compared with the initial one."""

    #: M / M0.
    scale: float
    #: The progress of one step, in steps at the initial batch.
    gain: float


RULES: dict[str, Callable[[Growth], float]] = {
    "adascale": lambda growth: growth.gain,
    "adamscale": lambda growth: math.sqrt(growth.gain),
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

    def factor(self, batch: int, initial_batch: int, gain: float, progress_steps: float) -> float:
        """`gain` is the progress of a step at this batch, `progress_steps` that of all before, in steps at M0."""
        scale = batch / initial_batch
        length = self.warmup_steps * scale
        warm = 1.0 if progress_steps >= length else progress_steps / length
        return warm * RULES[self.name](Growth(scale, gain))


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
