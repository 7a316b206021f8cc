"""A job that counts whole steps and changes its batch between rounds, as in the simulator of Shockwave's artifact.

That simulator looks at a job's epoch after each round, and changes its batch at the end of the next round in which it
runs. The job's steps, those that it did and those that it has in all, are then counted anew at the new batch: its
epochs stay as many, and one that has begun counts as done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.sim.regimes import ACCORDION, DATASETS, Schedule
from fairlead.sim.tables import ThroughputTable, job_type


@dataclass(slots=True)
class StepwiseJob:
    """Changed by `RoundWorld` only."""

    table: ThroughputTable
    model: str
    mode: str
    gpus: int
    #: The batch it began with, and what it has now.
    first_batch: int
    batch: int
    #: Steps in all, and steps done, at the batch it has now.
    total: int
    done: int = 0
    #: Of a gns job.
    schedule: Schedule = ()
    #: The batch it will have after the next round in which it runs; None if that stays as it is.
    next_batch: int | None = None

    @property
    def left(self) -> int:
        return self.total - self.done

    @property
    def progress(self) -> float:
        """Share of its work."""
        return min(1.0, self.done / self.total)

    @property
    def epochs_done(self) -> float:
        return self.done / self._per_epoch(self.batch)

    def steps_per_s(self, gpu_type: str, batch: int | None = None) -> float:
        """0 if it cannot run there."""
        key = job_type(self.model, self.batch if batch is None else batch), self.gpus
        entry = self.table.entry(gpu_type, key)
        return 0.0 if entry is None else entry.alone

    def look_ahead(self) -> None:
        """After a round: is it time for another batch?"""
        epoch = math.ceil(self.epochs_done)
        if self.mode == "gns" and max(self._planned(epoch), self._planned(epoch + 1)) > self.batch:
            self.next_batch = 2 * self.batch
        elif self.mode == "accordion" and self.model in ACCORDION:
            planned = ACCORDION[self.model].batch_in(epoch, self.first_batch)
            if planned != self.batch:
                self.next_batch = planned

    def rebatch(self, gpu_type: str) -> None:
        """Go over to the batch that was found due, if it runs with it at all."""
        new, self.next_batch = self.next_batch, None
        if new is None or new == self.batch or not self.steps_per_s(gpu_type, new):
            return
        before, after = self._per_epoch(self.batch), self._per_epoch(new)
        epochs = math.ceil(self.total / before)
        total = math.ceil(self.total * (1 / (new / self.batch)))
        self.total = total if math.ceil(total / after) == epochs else after * epochs
        self.done = math.ceil(self.done / before) * after
        self.batch = new

    def _per_epoch(self, batch: int) -> int:
        return math.ceil(DATASETS[self.model] / batch)

    def _planned(self, epoch: int) -> int:
        return max((size for first, size in self.schedule if first <= epoch), default=self.first_batch)
