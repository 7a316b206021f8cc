"""The gradient noise scale: how many samples a batch needs before its gradient is more signal than noise.

The gradient of one sample has the mean mu and a covariance of trace tr. Their ratio phi = tr / |mu|^2, in samples, says
how large a batch pays off (McCandlish et al., 2018). Nobody sees mu or tr, but a step shows two lengths whose
difference is due to noise alone. Let n groups (replicas, or micro-batches) have b_i samples and mean gradients g_i, and
let B = sum b_i, w_i = b_i / B and G = sum w_i g_i. Then, whether or not the b_i are equal,

    E sum w_i |g_i|^2 = |mu|^2 + n tr / B        each g_i has the variance tr / b_i, and w_i / b_i = 1 / B
    E |G|^2           = |mu|^2 +   tr / B

so that tr = (sum w_i |g_i|^2 - |G|^2) B / (n - 1) and |mu|^2 = |G|^2 - tr / B without bias. One group alone shows no
such difference. Two consecutive steps do, if mu hardly moved between them: E |g - g'|^2 = tr (1 / b + 1 / b') and
E <g, g'> = |mu|^2. It does move, and along g': with learning rate r and curvature h, <g, g'> falls short of |mu|^2 by
about r h tr / b'. So pairs overstate phi near a minimum, where steps do little but undo each other's noise.

With an optimiser that divides the gradient by its own scale, the noise that counts is that of the divided gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairlead.goodput import efficiency

#: Reported where the gradient drowns in noise and the ratio has no bound.
NOISE_SCALE_MAX = 1e12

#: Steps at the initial batch over which the past is forgotten, as in AdaptDL.
HORIZON_STEPS = 1000.0

#: No element's mean square counts as less than this part of its neighbours'. Adam adds the square of a gradient before
#: it divides by it; we divide by what was there before, so that it does not depend on what is measured. There an
#: element that has hardly had a gradient so far would outweigh all others, in the first steps ten billion times.
LEAST_V = 0.01

#: Elements that are summed in their own precision; the sum of these sums has 64 bits. On a CPU a chunk stays in the
#: cache, and `dot` adds up in a row: over 26 million 32-bit floats at once it is wrong by 1e-3, in chunks by 4e-7. A
#: GPU adds up in a tree, and pays for every launch.
CPU_CHUNK, GPU_CHUNK = 1 << 17, 1 << 24


@dataclass(slots=True)
class NoiseScale:
    """Exponential means of |mu|^2 and tr, each for itself: a mean of noisy ratios would be far off.

    A step weighs as many samples as it has, so that a change of the batch changes neither the mean nor its horizon.
    """

    #: After so many samples an estimate has lost all but 1/e of its weight.
    horizon_samples: float
    #: Steps that told nothing because a gradient was infinite or not a number; mixed precision has some.
    skipped: int = field(default=0, init=False)
    _sqr_sum: float = field(default=0.0, init=False)
    _trace_sum: float = field(default=0.0, init=False)
    #: Approaches 1; the sums are divided by it, or else the first means would be too small.
    _weight: float = field(default=0.0, init=False)
    #: Nothing but pairs was seen. Their bias is forgotten at once when the first groups are.
    _only_pairs: bool = field(default=True, init=False)

    @staticmethod
    def for_batch(initial_batch: int, horizon_steps: float = HORIZON_STEPS) -> NoiseScale:
        """With the horizon counted in steps at the initial batch."""
        return NoiseScale(horizon_steps * initial_batch)

    def update(self, local_sqr: float, mean_sqr: float, groups: int, batch: int) -> None:
        """One step: sum w_i |g_i|^2 and |G|^2. Groups without a sample do not count; `batch` is B."""
        if groups < 2 or batch < groups:
            raise ValueError(f"{groups} groups of {batch} samples in all show no noise; see update_pair for one group")
        trace = (local_sqr - mean_sqr) * batch / (groups - 1)
        if self._only_pairs and math.isfinite(trace):
            self._only_pairs = False
            self._sqr_sum = self._trace_sum = self._weight = 0.0
        self._add(mean_sqr - trace / batch, trace, batch)

    def update_pair(self, difference_sqr: float, inner: float, batch: int, previous_batch: int) -> None:
        """One step of one group after another one: |g - g'|^2 and <g, g'>."""
        if batch < 1 or previous_batch < 1:
            raise ValueError(f"batches of {batch} and {previous_batch} samples; expected at least 1 each")
        self._add(inner, difference_sqr / (1.0 / batch + 1.0 / previous_batch), batch)

    def _add(self, sqr: float, trace: float, batch: int) -> None:
        if not (math.isfinite(sqr) and math.isfinite(trace)):
            self.skipped += 1
            return
        kept = math.exp(-batch / self.horizon_samples)
        self._sqr_sum = kept * self._sqr_sum + (1.0 - kept) * sqr
        self._trace_sum = kept * self._trace_sum + (1.0 - kept) * trace
        self._weight = kept * self._weight + (1.0 - kept)

    @property
    def sqr(self) -> float | None:
        """|mu|^2, the squared length of the gradient without its noise; None before any estimate."""
        return max(self._sqr_sum / self._weight, 0.0) if self._weight else None

    @property
    def trace(self) -> float | None:
        """The variance of one sample's gradient, summed over parameters; None before any estimate."""
        return max(self._trace_sum / self._weight, 0.0) if self._weight else None

    @property
    def scale(self) -> float | None:
        """phi in samples, from 0 to NOISE_SCALE_MAX; None before any estimate."""
        sqr, trace = self.sqr, self.trace
        if sqr is None or trace is None:
            return None
        if trace >= NOISE_SCALE_MAX * sqr:
            return NOISE_SCALE_MAX if trace > 0.0 else 0.0
        return trace / sqr

    def gain(self, batch: int, initial_batch: int) -> float:
        """Progress of one step in steps at the initial batch: (tr / M0 + |mu|^2) / (tr / M + |mu|^2).

        Between 1 and M / M0, and the smaller of these before any estimate.
        """
        low, high = sorted((1.0, batch / initial_batch))
        sqr, trace = self.sqr or 0.0, self.trace or 0.0
        if sqr == trace == 0.0:
            return low
        gained = efficiency.gain(sqr, trace / initial_batch, batch / initial_batch)
        return min(max(float(gained), low), high)

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint or a new replica needs; the horizon is the user's."""
        return {
            "sqr_sum": self._sqr_sum,
            "trace_sum": self._trace_sum,
            "weight": self._weight,
            "only_pairs": float(self._only_pairs),
            "skipped": float(self.skipped),
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._sqr_sum, self._trace_sum, self._weight = state["sqr_sum"], state["trace_sum"], state["weight"]
        self._only_pairs, self.skipped = bool(state["only_pairs"]), int(state["skipped"])


# -- over tensors ----------------------------------------------------------------------------------------------------


class Divisor(NamedTuple):
    """By what Adam divides a parameter's gradient: sqrt(v / c) + eps, which is (sqrt(v) + eps sqrt(c)) / sqrt(c).

    Sums of squares are multiplied with c in the end, rather than every element with its root.
    """

    #: Of one dimension.
    v: Tensor
    #: eps sqrt(c) and c. Tensors where the optimiser counts its steps on a GPU: to read them would wait for the GPU.
    shift: float | Tensor
    correction: float | Tensor


def squared_norm(flat: Tensor, divisor: Divisor | None = None) -> Tensor:
    """|g|^2 of a tensor of one dimension, divided as by Adam, as 64-bit float on its device."""
    parts = [torch.dot(part, part) for (part,) in _chunks(divisor, flat)]
    return _summed(parts, divisor)


def compared(flat: Tensor, other: Tensor, divisor: Divisor | None = None) -> tuple[Tensor, Tensor]:
    """(|g - g'|^2, <g, g'>), both divided alike: what `update_pair` needs of two steps' gradients."""
    differences, inners = [], []
    for part, before in _chunks(divisor, flat, other):
        inners.append(torch.dot(part, before))
        change = part - before
        differences.append(torch.dot(change, change))
    return _summed(differences, divisor), _summed(inners, divisor)


def _chunks(divisor: Divisor | None, *flats: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Of several gradients at the same places, divided while they are in the cache; at least one, if it is empty."""
    length = len(flats[0])
    size = CPU_CHUNK if flats[0].device.type == "cpu" else GPU_CHUNK
    for start in range(0, max(1, length), size):
        parts = tuple(_wide(flat[start : start + size]) for flat in flats)
        if divisor is not None:
            v = _wide(divisor.v[start : start + size])
            root = torch.maximum(v, LEAST_V * v.mean()).sqrt_()
            # Where no element ever had a gradient, none has a scale: all are left out.
            torch.threshold_(root, 0.0, math.inf).add_(divisor.shift)
            parts = tuple(part / root for part in parts)
        yield parts


def _wide(part: Tensor) -> Tensor:
    """In at least 32 bits: squares of half-precision gradients overflow, and their sum soon stops growing."""
    return part.float() if part.dtype.itemsize < 4 else part


def _summed(parts: list[Tensor], divisor: Divisor | None) -> Tensor:
    total = torch.stack(parts).sum(dtype=torch.float64)
    return total if divisor is None else total * divisor.correction


class Preconditioner:
    """What Adam divides gradients by, read from its own state. Only reads the optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._known = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
        #: The place of each parameter's group: the groups themselves are replaced when a state is loaded.
        self._place: dict[int, int] = {}

    def divisor(self, parameter: Tensor) -> Divisor | None:
        """None for optimisers other than Adam and AdamW, and before their first step."""
        if not self._known or not self._optimizer.state:
            return None
        state: Mapping[str, Any] = self._optimizer.state.get(parameter, {})
        if "exp_avg_sq" not in state:
            return Divisor(torch.zeros_like(parameter).reshape(-1), 0.0, 1.0)
        group = self._group(parameter)
        v: Tensor = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
        step: Tensor = state["step"]
        count = step.item() if step.device.type == "cpu" else step.double()
        beta2 = float(group["betas"][1])
        correction = 1.0 - beta2**count
        return Divisor(v.reshape(-1), float(group["eps"]) * correction**0.5, correction)

    def _group(self, parameter: Tensor) -> dict[str, Any]:
        groups = self._optimizer.param_groups
        if id(parameter) not in self._place:
            self._place = {id(each): place for place, group in enumerate(groups) for each in group["params"]}
        return groups[self._place[id(parameter)]]
