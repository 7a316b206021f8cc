"""How far a job is, and one pass through its loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """How far a job is. Part of its state, so everybody agrees on it."""

    epoch: int = 0
    #: Samples of this epoch that were used.
    position: int = 0
    #: Updates of the model.
    step: int = 0
    #: Updates that would have been needed with the initial batch.
    scale_invariant: float = 0.0
    per_gpu_batch: int = 0
    accumulation: int = 0
    #: The script has said that it is enough, before its last epoch.
    over: bool = False

    def reached(self, epochs: int, *, epoch_steps: float | None) -> bool:
        """So many epochs; where the batch may change, those of so many steps each at the initial batch."""
        return self.epoch >= epochs if epoch_steps is None else self.scale_invariant >= epochs * epoch_steps

    def passes(self, length: int) -> float:
        """Over data of so many samples, with the part of the present one."""
        return self.epoch + self.position / length


class Micro:
    """One pass through the loop: how many samples, which part of the step they are, and whether they complete it."""

    def __init__(self, samples: int, *, weight: float, last: bool, rehearsal: bool = False) -> None:
        self.samples, self.weight, self.last, self.rehearsal = samples, weight, last, rehearsal
        #: The gradients are complete, so the optimiser may step.
        self.complete = False
