"""What one job went through, as far as it is measured. It knows messages and time; GPUs are only keys to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fairlead.core.types import JobSpec, Phase


@dataclass(slots=True, eq=False)
class Life:
    """What one job went through, accounted up to `at`. Changed by `Ledger` only."""

    spec: JobSpec
    number: int
    submitted_at: float
    at: float
    phase: Phase = Phase.PENDING
    attempt: int = 0
    failures: int = 0
    cancelled: bool = False
    first_started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    rescales: int = 0
    #: Seconds with at least one GPU, seconds RUNNING, and seconds STARTING in the first attempt.
    held_s: float = 0.0
    run_s: float = 0.0
    first_start_s: float = 0.0
    #: GPU-seconds held, whatever for.
    held_gpu_s: float = 0.0
    #: What is measured of the cluster: GPU-seconds between these two moments.
    from_s: float = -math.inf
    to_s: float = math.inf
    #: GPU-seconds by what they were good for. `fresh` is RUNNING time that the next checkpoint or end will judge.
    fresh_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    restart_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    #: GPUs held now, each with since when, and what they count for: 1/n for a GPU with n holders.
    holding: dict[int, float] = field(default_factory=dict)
    rate: float = 0.0
    #: GPUs that the last Resize gave up, free once it is done.
    releasing: tuple[int, ...] = ()

    def account(self, now: float) -> None:
        """Charge the time since `at` to what the job did in it."""
        if self.holding and now > self.at:
            span_s = now - self.at
            self.held_s += span_s
            self.held_gpu_s += span_s * self.rate
            counted_s = max(0.0, min(now, self.to_s) - max(self.at, self.from_s))
            if self.phase is Phase.RUNNING:
                self.run_s += span_s
                self.fresh_gpu_s += counted_s * self.rate
            else:
                self.restart_gpu_s += counted_s * self.rate
                if self.phase is Phase.STARTING and self.attempt == 1:
                    self.first_start_s += span_s
        self.at = now

    def judge(self, *, lost: bool) -> None:
        """Decide what the RUNNING time since the last checkpoint was good for."""
        if lost:
            self.lost_gpu_s += self.fresh_gpu_s
        else:
            self.useful_gpu_s += self.fresh_gpu_s
        self.fresh_gpu_s = 0.0
