"""Where a worker is in its step, how long its steps take, and what it tells the scheduler about that."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fairlead.train.link import Plan
from fairlead.train.progress import Progress
from fairlead.train.tuner import GPU_TYPE, Tuner

#: Seconds between two reports, unless the agent wants them more or less often.
REPORT_S = float(os.environ.get("FAIRLEAD_REPORT_S", "5"))


class Chronicle:
    """Of one worker. Everybody keeps one, but only the leader's is told."""

    def __init__(self) -> None:
        self.phase, self._phase_at = "booting", time.monotonic()
        self._usual_s = 0.0
        self._reported_at = time.monotonic()
        #: (workers, samples, seconds) of every step since the last report.
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=1000)
        #: When the last step ended; and the pause that began then, until it is known how long steps take now.
        self._step_at: float | None = None
        self._interrupted = False
        self._gap_s: float | None = None

    def enter(self, phase: str) -> None:
        self.phase, self._phase_at = phase, time.monotonic()

    @property
    def in_phase_s(self) -> float:
        return time.monotonic() - self._phase_at

    def interrupted(self) -> None:
        """The time until the next step ends is not that of a step."""
        self._interrupted = True

    def step_done(
        self, tuner: Tuner, plan: Plan, progress: Progress, dealt: Sequence[int], compute_s: Sequence[float]
    ) -> float | None:
        """Note how many samples each member was dealt, and how long it took them. Returns how long training stood still
        when it was interrupted, once that is known."""
        now, began, total = time.monotonic(), self._step_at, sum(dealt)
        self._step_at = now
        pause_s = None
        if began is not None and self._interrupted:
            self._gap_s = now - began
        elif began is not None:
            step_s = now - began
            if self._gap_s is not None:
                pause_s, self._gap_s = max(0.0, self._gap_s - step_s), None
            self._usual_s = step_s if self._usual_s == 0.0 else 0.9 * self._usual_s + 0.1 * step_s
            self._recent.append((plan.world, total, step_s))
            split = (progress.per_gpu_batch, progress.accumulation)
            if total == plan.world * split[0] * (split[1] + 1):  # and not the rest of an epoch
                configuration = (GPU_TYPE, len(set(plan.nodes)), plan.world, *split)
                tuner.profile.record(configuration, step_s, max(0.0, step_s - max(compute_s)))
        self._interrupted = False
        tuner.speeds.record(plan.members, dealt, compute_s)
        return pause_s

    def beat(self, progress: Progress) -> dict[str, Any]:
        """Where this worker is, for its agent."""
        return {
            "step": progress.step,
            "epoch": progress.epoch,
            "phase": self.phase,
            "since_s": self.in_phase_s,
            "usual_s": self._usual_s,
        }

    @property
    def report_is_due(self) -> bool:
        return time.monotonic() - self._reported_at >= REPORT_S

    def forget(self) -> None:
        """Somebody else tells of the steps so far."""
        self._recent.clear()

    def report(self, tuner: Tuner, plan: Plan, progress: Progress, total: int, done: float) -> dict[str, Any]:
        """For the scheduler: how far the job is, from 0 to 1, and what was learned since the last report."""
        self._reported_at = time.monotonic()
        recent = list(self._recent)
        self._recent.clear()
        return {
            "step": progress.step,
            "epoch": progress.epoch,
            "progress": done,
            "batch": total,
            "noise_scale": tuner.noise.scale,
            "regime": tuner.regime,
            "stragglers": tuner.speeds.stragglers(plan.members),
            "bounds": asdict(tuner.batch),
            "observations": [asdict(seen) for seen in tuner.profile.observations()],
            "steps": recent,
        }
