"""What a job learns about itself while it trains, and the batch and learning rate that follow from it.

Everything here is part of the state that workers share, and only the leader measures, so all decide alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fairlead.core.types import Batch
from fairlead.goodput.fit import fit
from fairlead.train import wire
from fairlead.train.noise import NoiseScale
from fairlead.train.profile import Profile
from fairlead.train.rules import Moment, Rule
from fairlead.train.schedules import MEMORY, Schedule, Situation, Split, nearest
from fairlead.train.stragglers import Speeds

#: The type of this worker's GPU, if the scheduler said it.
GPU_TYPE = os.environ.get(wire.GPU_TYPE, "gpu")


class Tuner:
    """Noise, step times and speeds as they were measured, and the rules that use them."""

    def __init__(
        self, batch: Batch, length: int, rule: Rule, moment: Moment, schedule: Schedule, *, most_workers: int
    ) -> None:
        """`most_workers` is how many can have a part in a step."""
        self.batch, self.length, self.most_workers = batch, length, most_workers
        self.noise = NoiseScale.for_batch(batch.initial)
        self.profile, self.speeds = Profile(), Speeds()
        self._rule, self._moment, self._schedule = rule, moment, schedule

    @property
    def adaptive(self) -> bool:
        """The batch may change."""
        return self.batch.max_total != self.batch.initial

    @property
    def epoch_steps(self) -> float:
        """Updates in an epoch at the initial batch."""
        return self.length / self.batch.initial

    @property
    def regime(self) -> str:
        return self._schedule.regime

    def gain(self, total: int) -> float:
        """How many updates at the initial batch one with so many samples is worth."""
        return self.noise.gain(total, self.batch.initial) if self.adaptive else 1.0

    def factor(self, total: int, progress: float) -> float:
        """What learning rates are multiplied with."""
        initial = self.batch.initial
        if not self.adaptive:  # the rest of an epoch is no smaller batch to adapt to
            return self._rule.factor(initial, initial, 1.0, progress)
        return self._rule.factor(total, initial, self.gain(total), progress, self._moment.value)

    def count(self, total: int) -> float:
        """A step was made; returns its progress, in steps at the initial batch."""
        gain = self.gain(total)
        self._moment.note(gain)
        return gain

    def choose(self, nodes: int, gpus: int, split: Split, epoch: float) -> Split:
        """(per-GPU batch, accumulation) from now on; before the first step, when `split` is 0, the initial batch."""
        situation = self._situation(nodes, gpus, split, epoch)
        return self._schedule.choose(situation) if split[0] > 0 else nearest(self.batch.initial, situation)

    def _situation(self, nodes: int, gpus: int, split: Split, epoch: float) -> Situation:
        observations = self.profile.observations() if self.adaptive else ()
        sqr = self.noise.sqr
        return Situation(
            nodes=nodes,
            gpus=gpus,
            per_gpu_batch=split[0],
            accumulation=split[1],
            batch=self.batch,
            params=fit(observations).params if observations else None,
            noise_scale=self.noise.scale,
            grad_norm=None if sqr is None else max(0.0, sqr) ** 0.5,
            epoch=epoch,
        )

    @property
    def memory(self) -> list[float]:
        """What the schedule remembers, in `MEMORY` numbers: it decides at the leader's, and others lead later."""
        kept = list(self._schedule.state_dict().values())
        return [*kept, *[0.0] * (MEMORY - len(kept))]

    def remember(self, memory: Sequence[float]) -> None:
        """What the leader's schedule does."""
        self._schedule.load_state_dict(dict(zip(self._schedule.state_dict(), memory, strict=False)))

    def state_dict(self) -> dict[str, Any]:
        learned = {name: part.state_dict() for name, part in self._learned().items()}
        return {**learned, "schedule": {type(self._schedule).__name__: self._schedule.state_dict()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._learned().items():
            part.load_state_dict(state[name])
        if (mine := type(self._schedule).__name__) in state["schedule"]:  # or else it begins with another one
            self._schedule.load_state_dict(state["schedule"][mine])

    def _learned(self) -> dict[str, Any]:
        return {
            "noise": self.noise,
            "profile": self.profile,
            "speeds": self.speeds,
            "moment": self._moment,
        }
