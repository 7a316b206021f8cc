"""The noise scale, measured while a job trains: in which steps, and by whom.

The leader learns from the gradients of a step, and tells everybody beside those of the next one: so all replicas have
the same estimate at the same step, and it survives whoever leads.

A worker that is alone computes two gradients in such a step, of half of the samples each (`loader`). To compare its
gradient with that of the step before would need no second one, but is biased where steps are large (`noise`): with it,
the batch of an example grew to where the model learned less. It is left for steps of one sample.
"""

from __future__ import annotations

import torch

from fairlead.train import numbers as place
from fairlead.train.noise import NoiseScale
from fairlead.train.reducer import Reducer

#: Measured is one of so many steps, and all of the first ones, but none before Adam knows the scale of gradients.
MEASURED_ONE_IN, MEASURED_FIRST, WARM_UP = 8, 16, 10


class Meter:
    """For one worker."""

    def __init__(self) -> None:
        self.measuring = False
        #: As the leader: what is learned but not told yet. All decide by what was told, or replicas would differ.
        self._learned: NoiseScale | None = None
        #: Mean gradients of the step before, its samples and loss scale, where a step has but one gradient: that of one
        #: sample.
        self._previous: tuple[list[torch.Tensor], int, float] | None = None
        #: Memory for these, since to get it takes longer than to copy.
        self._room: list[torch.Tensor] = []

    def due(self, step: int, *, adaptive: bool) -> bool:
        """Whether this step is measured: nobody asks for the noise where the batch cannot change."""
        often = step < WARM_UP + MEASURED_FIRST or step % MEASURED_ONE_IN == 0
        return adaptive and step >= WARM_UP and (often or self._previous is not None)

    def begin(self, step: int, *, adaptive: bool) -> bool:
        self.measuring = self.due(step, adaptive=adaptive)
        return self.measuring

    def changed(self) -> None:
        """There are other workers now, who do not know what one of them has learned or kept."""
        self._previous = self._learned = None

    def tell(self, numbers: torch.Tensor, noise: NoiseScale) -> None:
        """As the leader: what is known so far."""
        state = (self._learned or noise).state_dict()
        known = [state[name] for name in place.NOISE_FIELDS]
        numbers[place.NOISE : place.SCHEDULE] = torch.tensor(known, dtype=torch.float64)

    def learn(
        self, numbers: torch.Tensor, noise: NoiseScale, reducer: Reducer, total: int, *, leader: bool, loss_scale: float
    ) -> None:
        """What the leader knew, everybody knows now; and the leader learns from this step.

        Gradients of a loss that was multiplied with `loss_scale` are as many times too long.
        """
        told = numbers[place.NOISE : place.SCHEDULE].tolist()
        noise.load_state_dict(dict(zip(place.NOISE_FIELDS, told, strict=True)))
        if not self.measuring or not leader:
            return
        if self._learned is None:
            self._learned = NoiseScale(noise.horizon_samples)
            self._learned.load_state_dict(noise.state_dict())
        self._update(numbers, self._learned, reducer, total, loss_scale)

    def _update(
        self, numbers: torch.Tensor, noise: NoiseScale, reducer: Reducer, total: int, loss_scale: float
    ) -> None:
        unit = loss_scale**-2
        groups = int(numbers[place.GROUPS])
        if groups >= 2:
            noise.update(unit * float(numbers[place.LOCAL_SQR]), unit * reducer.mean_sqr(), groups, total)
        elif self._previous is not None and self._previous[2] == loss_scale:
            gradients, batch, _ = self._previous
            difference, inner = reducer.compare(gradients)
            noise.update_pair(unit * difference, unit * inner, total, batch)
        if groups != 1 or self._previous is not None:
            self._previous = None
            return
        flats = [bucket.flat for bucket in reducer.buckets]
        self._room = self._room or [torch.empty_like(flat) for flat in flats]
        for room, flat in zip(self._room, flats, strict=True):
            room.copy_(flat)
        self._previous = self._room, total, loss_scale
