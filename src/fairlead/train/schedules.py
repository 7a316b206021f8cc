"""When a job changes its batch size while it trains, and to what.

    goodput     the batch with the highest predicted goodput, if it is worth the change (Pollux)
    doubling    twice the batch each time that the gradient noise scale has outgrown it (KungFu, McCandlish et al.)
    accordion   the initial batch while the gradient changes fast, the largest one otherwise (Agarwal et al., 2021)
    fixed       the initial batch on any number of GPUs

A schedule decides and does nothing: what it knows is in the situation and in its own few numbers, so that replicas with
the same state choose the same. It keeps to the bounds of the batch, which come from `tune.candidates`. Torch is not
imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.types import Batch
from fairlead.goodput.efficiency import efficiency
from fairlead.goodput.throughput import ThroughputParams, throughput
from fairlead.goodput.tune import best_batch, candidates

#: Names of regimes. A schedule that knows no others is always stable.
CRITICAL, STABLE = "critical", "stable"

Split = tuple[int, int]

#: How many numbers a schedule may remember. All members are told them in every step, so whoever leads next has them.
MEMORY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a decision may depend on. None is what is not known yet."""

    nodes: int
    gpus: int
    #: As it is now; after a change of GPUs possibly no longer allowed.
    per_gpu_batch: int
    accumulation: int
    batch: Batch
    params: ThroughputParams | None = None
    noise_scale: float | None = None
    #: Best without its noise, `sqrt(NoiseScale.sqr)`: the length of a plain gradient changes with the batch.
    grad_norm: float | None = None
    #: Epochs done, with the part of the current one.
    epoch: float = 0.0

    @property
    def total(self) -> int:
        """Samples per update with the split as it is now."""
        return self.gpus * self.per_gpu_batch * (self.accumulation + 1)


class Schedule(Protocol):
    """When to change the batch, and to what."""

    @property
    def regime(self) -> str: ...

    def choose(self, situation: Situation) -> Split:
        """(per-GPU batch, accumulation) from now on; the least there is where GPUs are too many for any batch."""
        ...

    def state_dict(self) -> dict[str, float]:
        """At most `MEMORY` numbers, always of the same names."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None: ...


class _Stateless:
    """Half of the protocol for those who remember nothing."""

    @property
    def regime(self) -> str:
        return STABLE

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        pass


@dataclass(frozen=True)
class Fixed(_Stateless):
    """What the user chose, as nearly as the GPUs can share it."""

    def choose(self, situation: Situation) -> Split:
        return nearest(situation.batch.initial, situation)


@dataclass(frozen=True)
class Goodput(_Stateless):
    """The best batch of the fitted model. Without a model or a noise scale the initial one: no other is vouched for."""

    #: A change has to promise so many times the present goodput, as in AdaptDL: estimates move a little all the time.
    worth: float = 1.05

    def choose(self, situation: Situation) -> Split:
        params, noise_scale = situation.params, situation.noise_scale
        if params is None or noise_scale is None:
            return nearest(situation.batch.initial, situation)
        m, s, best = best_batch(params, noise_scale, situation.nodes, situation.gpus, situation.batch)
        now = _goodput(situation, params, noise_scale) if allowed(situation) else 0.0
        return (m, s) if best >= self.worth * now else (situation.per_gpu_batch, situation.accumulation)


@dataclass(slots=True)
class Doubling:
    """Doubles once per decision while noise scale >= margin x batch, up to the largest batch; never shrinks.

    KungFu watches the smoothed noise scale while training, and leaves it to its user to grow the batch with it. The
    jobs of Shockwave double where the noise scale is above its mean of the last ten epochs, which depends on its unit
    and trend but not on the batch. Compared with the batch it is a rule that ends: with a margin of 2 the doubled batch
    is at most the noise scale, where training takes twice the samples that it would with tiny batches (McCandlish et
    al., section 2).
    """

    margin: float = 2.0
    #: Samples per update that were reached, on whatever GPUs; 0 before the first decision. It may be between two
    #: batches that the present GPUs can share.
    reached: int = field(default=0, init=False)

    @property
    def regime(self) -> str:
        return STABLE

    def choose(self, situation: Situation) -> Split:
        reached = self.reached or situation.batch.initial
        noise, most = situation.noise_scale, largest(situation)
        if noise is not None and noise >= self.margin * reached:
            reached = max(reached, min(2 * reached, most))
        self.reached = reached
        return nearest(reached, situation)

    def state_dict(self) -> dict[str, float]:
        return {"reached": float(self.reached)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.reached = int(state["reached"])


@dataclass(slots=True)
class Accordion:
    """Critical if the norm of the gradient changed by a share of `eta` or more since the last check.

    So it is at the beginning, when there is nothing to compare with, and where the last norm was 0. Between checks, and
    without a finite norm to check, the regime stays what it was.
    """

    eta: float = 0.5
    interval_epochs: float = 10.0
    regime: str = field(default=CRITICAL, init=False)
    #: At the last check; negative before the first.
    _norm: float = field(default=-1.0, init=False)
    _checked_epoch: float = field(default=0.0, init=False)

    def choose(self, situation: Situation) -> Split:
        norm = situation.grad_norm
        if norm is not None and math.isfinite(norm) and self._due(situation.epoch):
            self._check(norm, situation.epoch)
        return nearest(situation.batch.initial if self.regime == CRITICAL else largest(situation), situation)

    def _due(self, epoch: float) -> bool:
        return self._norm < 0.0 or epoch >= self._checked_epoch + self.interval_epochs

    def _check(self, norm: float, epoch: float) -> None:
        last = self._norm
        changed = last <= 0.0 or abs(norm - last) >= self.eta * last
        self.regime = CRITICAL if changed else STABLE
        self._norm, self._checked_epoch = norm, epoch

    def state_dict(self) -> dict[str, float]:
        return {"critical": float(self.regime == CRITICAL), "checked_epoch": self._checked_epoch, "norm": self._norm}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.regime = CRITICAL if state["critical"] else STABLE
        self._norm, self._checked_epoch = state["norm"], state["checked_epoch"]


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "goodput": Goodput,
    "doubling": Doubling,
    "accordion": Accordion,
    "fixed": Fixed,
}

DEFAULT = "goodput"


def schedule(name: str = DEFAULT) -> Schedule:
    """A new schedule of this name, with its default options."""
    if name not in SCHEDULES:
        raise InvalidSpec(f"schedule is {name!r}, which is not known{did_you_mean(name, SCHEDULES)}")
    return SCHEDULES[name]()


# -- splitting a batch among GPUs ------------------------------------------------------------------------------------


def nearest(total: int, situation: Situation) -> Split:
    """The split whose samples per update come nearest to `total`; of two as near the smaller."""
    m_C, s_C = candidates(situation.gpus, situation.batch)
    if not len(m_C):
        return situation.batch.min_per_gpu, 0
    M_C = situation.gpus * m_C * (s_C + 1)
    found = int(np.lexsort((M_C, abs(M_C - total)))[0])
    return int(m_C[found]), int(s_C[found])


def largest(situation: Situation) -> int:
    """The most samples per update that the GPUs can share; the initial batch if they are too many for any."""
    m_C, s_C = candidates(situation.gpus, situation.batch)
    return int((situation.gpus * m_C * (s_C + 1)).max(initial=situation.batch.initial))


def allowed(situation: Situation) -> bool:
    """The split as it is now keeps to the bounds of the batch on the GPUs as they are now."""
    batch, per_gpu, total = situation.batch, situation.per_gpu_batch, situation.total
    m_C, s_C = candidates(situation.gpus, batch)
    if not len(m_C) or per_gpu < batch.min_per_gpu or per_gpu > (batch.max_per_gpu or per_gpu):
        return False
    if situation.gpus == 1 and total > batch.initial and situation.accumulation == 0:
        return False  # as in `candidates`: one gradient does not tell the noise from the signal
    M_C = situation.gpus * m_C * (s_C + 1)
    return int(M_C.min()) <= total <= int(M_C.max())


def _goodput(situation: Situation, params: ThroughputParams, noise_scale: float) -> float:
    """With the split as it is now, in samples per second."""
    per_gpu, accumulation = situation.per_gpu_batch, situation.accumulation
    speed = throughput(params, situation.nodes, situation.gpus, per_gpu, accumulation)
    return float(speed * efficiency(noise_scale, situation.total, situation.batch.initial))
