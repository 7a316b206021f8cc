"""Measured jobs that retune their own batch, as the agent in a Pollux job does (Qiao et al., OSDI '21, section 4.1).

Such a job knows nothing of its profile but what it has measured so far (`Setting.learned`): it fits the throughput
model to that and takes the batch with the highest predicted goodput. So it tunes badly at first, and better as it
gets to know more configurations; how fast it then really trains is what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fairlead.goodput.fit import fit
from fairlead.goodput.tune import best_batch
from fairlead.sim.measured import MeasuredProfile, MeasuredTruth, Placement, placement_of
from fairlead.sim.truth import Learned, Pace, Setting


@dataclass(frozen=True)
class TunedTruth:
    """A job whose batch is its own choice. Its user's request remains what `remaining_s` assumes."""

    asked: MeasuredTruth

    @property
    def total(self) -> float:
        return self.asked.total

    def pace(self, setting: Setting) -> Pace:
        profile = self.asked.profile
        return profile.pace(setting, *tuned_split(profile, setting.learned, setting.gpu_type, placement_of(setting)))

    def remaining_s(self, progress: float) -> float:
        return self.asked.remaining_s(progress)

    def steps_left(self, progress: float) -> float:
        return self.asked.steps_left(progress)

    def step_s(self, gpus: int) -> float:
        return self.asked.step_s(gpus)


@lru_cache(maxsize=4096)
def tuned_split(profile: MeasuredProfile, learned: Learned, gpu_type: str, placement: Placement) -> tuple[int, int]:
    """(per-GPU batch, accumulation); a per-GPU batch of 0 means there are too many GPUs for any batch.

    Of the profile only the bounds of the batch are used, which its user knows. Remembered, since whoever asks how a job
    would go on asks again when it does.
    """
    placement = profile.on(placement)
    batch, gpus = profile.bounds(placement), sum(placement)
    observations = tuple(seen for seen in learned.observations if seen.gpu_type == gpu_type)
    if not observations or learned.noise_scale is None:
        return profile.split_on(max(batch.initial, batch.min_per_gpu * gpus), placement)
    m, s, goodput = best_batch(fit(observations).params, learned.noise_scale, len(placement), gpus, batch)
    return (m, s) if goodput > 0.0 else (0, 0)
