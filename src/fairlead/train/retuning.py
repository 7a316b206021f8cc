"""When the leader looks again at how a step is split, and what it has decided but not told yet.

All others hear of it beside the gradients of a step, so that everybody changes the batch at the same time.
"""

from __future__ import annotations

import time

from fairlead.train.link import Plan
from fairlead.train.progress import Progress
from fairlead.train.schedules import Split
from fairlead.train.tuner import Tuner

#: Seconds and steps between two looks.
RETUNE_S, RETUNE_STEPS = 3.0, 10

#: Instead of a split: it stays what it is.
UNCHANGED: Split = (0, 0)


class Retuning:
    """The decisions of one leader."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner
        self._looked_at = time.monotonic(), 0
        #: From the step after the next on, and of the next generation.
        self.next_split = self.their_split = UNCHANGED

    def split_for(self, plan: Plan, progress: Progress) -> Split:
        """How the workers of a generation share a step: (samples at a time, how often before the last time)."""
        now = (progress.per_gpu_batch, progress.accumulation)
        return self._tuner.choose(len(set(plan.nodes)), plan.world, now, progress.passes(self._tuner.length))

    def prepare(self, plan: Plan, progress: Progress) -> None:
        """For the next generation."""
        self.their_split = self.split_for(plan, progress)

    def look(self, plan: Plan, progress: Progress, *, leads: bool) -> None:
        """Once in a while, if the batch may change."""
        self.next_split = UNCHANGED
        now, (looked_at, step) = time.monotonic(), self._looked_at
        early = now - looked_at < RETUNE_S or progress.step - step < RETUNE_STEPS
        if not leads or not self._tuner.adaptive or early:
            return
        self._looked_at = now, progress.step
        chosen = self.split_for(plan, progress)
        if chosen != (progress.per_gpu_batch, progress.accumulation):
            self.next_split = chosen
