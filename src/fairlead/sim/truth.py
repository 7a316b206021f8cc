"""The hidden side of the simulator: what a job really is. No policy ever sees it.

A truth says how fast a job progresses in a given setting, and for how long that holds. Progress is counted in
the truth's own unit (seconds, steps, epochs), from 0 to `total`; between two boundaries the pace is constant, so
the simulator can jump from one to the next without losing anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Observation


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What a job has measured of itself, over all its attempts. Equal only to itself, and so quick to look up."""

    #: One per GPU type, number of nodes, number of GPUs and per-GPU batch, alone and beside each set of partners. What
    #: was measured beside others is kept apart: a job tunes by what it does alone.
    observations: tuple[Observation, ...] = ()
    #: The last one measured.
    noise_scale: float | None = None
    packed: tuple[Observation, ...] = ()

    def after(self, pace: Pace) -> Learned:
        """What it knows once it has trained at a pace; the same object if that taught nothing."""
        new = pace.observation
        known = self.observations if new is None or new.partners else _with(self.observations, new)
        packed = _with(self.packed, new) if new is not None and new.partners else self.packed
        noise_scale = self.noise_scale if pace.noise_scale is None else pace.noise_scale
        if known is self.observations and packed is self.packed and noise_scale == self.noise_scale:
            return self
        return Learned(known, noise_scale, packed)


def _with(known: tuple[Observation, ...], new: Observation) -> tuple[Observation, ...]:
    """The same object if the measurement is known."""
    place = _place(new)
    old = next((old for old in known if _place(old) == place), None)
    if old is None:
        return (*known, new)
    if old.configuration == new.configuration and old != new:  # it was measured anew
        return tuple(new if each is old else each for each in known)
    return known


def _place(observation: Observation) -> tuple[str, int, int, int, tuple[str, ...]]:
    """Without the accumulation: all micro-steps but the last are alike, so more of them teach nothing."""
    gpu_type, nodes, gpus, per_gpu_batch, _ = observation.configuration
    return gpu_type, nodes, gpus, per_gpu_batch, observation.partners


NOTHING_LEARNED = Learned()


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a job finds itself: how far it is, what it holds, and with whom it shares its GPUs."""

    progress: float
    allocation: Allocation
    gpu_type: str
    #: Truths of the jobs packed on the same GPUs.
    packed_with: tuple[Truth, ...] = ()
    #: What the job may tune its batch by. The simulator keeps it, as it does the progress.
    learned: Learned = NOTHING_LEARNED
    #: How far each of `packed_with` is, and what model each trains by its spec (sorted, so not in their order); empty
    #: if unknown.
    packed_progress: tuple[float, ...] = ()
    packed_models: tuple[str, ...] = ()

    @property
    def partners(self) -> tuple[str, ...]:
        """As an observation made here names them."""
        return self.packed_models or ("",) * len(self.packed_with)

    @property
    def mates(self) -> tuple[tuple[Truth, float], ...]:
        """The jobs packed on the same GPUs, and how far each is."""
        return tuple(zip(self.packed_with, self.packed_progress or (0.0,) * len(self.packed_with), strict=True))


@dataclass(frozen=True, slots=True)
class Pace:
    """Progress per second, until progress reaches `until`."""

    speed: float
    until: float
    #: The global batch size at this pace, where the truth has one.
    batch: int | None = None
    noise_scale: float | None = None
    #: What a profiler in the job would measure at this pace.
    observation: Observation | None = None
    #: `until` is reached a whole number of these seconds after the pace began; 0 means exactly when it is due.
    tick_s: float = 0.0

    def lasts_s(self, due_s: float) -> float:
        """Seconds until the end of a pace that is due after `due_s`: the nearest tick to it, where there are ticks."""
        return due_s if self.tick_s == 0.0 or math.isinf(due_s) else round(due_s / self.tick_s) * self.tick_s


class Truth(Protocol):
    """One job's hidden nature. Immutable: the simulator keeps the progress."""

    @property
    def total(self) -> float:
        """Progress at which the job is done."""

    def pace(self, setting: Setting) -> Pace:
        """How fast it goes here. A speed of 0 means it cannot run here at all."""

    def remaining_s(self, progress: float) -> float:
        """Seconds left if it ran alone on what it asked for: what an oracle is told."""


#: Speed of each of two jobs that share GPUs, relative to running alone, where nothing better is known.
PACKED_SPEED = 0.6


def packed_observation(setting: Setting, alone: Observation | None, share: float) -> Observation | None:
    """What a profiler measures beside other jobs, where the job keeps this share of its speed."""
    if alone is None or share <= 0.0:
        return None
    return replace(alone, step_s=alone.step_s / share, sync_s=alone.sync_s / share, partners=setting.partners)


@dataclass(frozen=True, slots=True)
class FixedDuration:
    """A gang job replayed from a trace: it needs `total` seconds on exactly the GPUs it asked for."""

    total: float
    gpus: int
    #: By GPU type that the job may have: times as fast as where `total` was recorded. Empty if nothing tells.
    speeds: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total) and self.total >= 0):
            raise InvalidSpec(f"duration is {self.total}; expected a finite number of seconds of at least 0")

    def pace(self, setting: Setting) -> Pace:
        """Other GPU counts change the speed in proportion: the trace says nothing better."""
        share = PACKED_SPEED if setting.packed_with else 1.0
        share *= self.speeds.get(setting.gpu_type, 1.0)
        return Pace(speed=share * setting.allocation.total / self.gpus, until=self.total)

    def remaining_s(self, progress: float) -> float:
        """On the fastest type it may have, as with every other truth."""
        return (self.total - progress) / max(self.speeds.values(), default=1.0)
