"""A job's presence in the simulated world: what it holds, how far it is, what it learned. Knows no other job."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.core.messages import JobReported
from fairlead.core.types import NOTHING, Allocation, Job, Observation, Phase
from fairlead.sim.truth import NOTHING_LEARNED, Learned, Pace
from fairlead.sim.world import SimJob


@dataclass(slots=True, eq=False)
class Attempt:
    """From a job's submission to its end. Progress and what was learned outlive attempts. Changed by `SimBackend`."""

    job: SimJob
    attempt: int = 0
    allocation: Allocation = NOTHING
    #: What a rescale under way gives up, and still uses.
    releasing: Allocation = NOTHING
    #: Where it will be once those that boot have booted; None while nobody does. `boots` counts how often that began.
    growing_to: Allocation | None = None
    boots: int = 0
    cancelled: bool = False
    #: The attempt began to train.
    began: bool = False
    failures: int = 0
    #: Progress at `settled_at`, and what a lost node would leave of it, saved at `saved_at`.
    progress: float = 0.0
    settled_at: float = 0.0
    saved_progress: float = 0.0
    saved_at: float = 0.0
    #: It uses its GPUs; not while it is waiting, starting, rescaling, suspended or stopping.
    present: bool = False
    #: None while it makes no progress.
    pace: Pace | None = None
    #: The pace's speed after interference.
    speed: float = 0.0
    #: Every change of course makes a new version; what is in the heap for an older one is void.
    version: int = 0
    learned: Learned = NOTHING_LEARNED
    #: What it has measured since its last report: a measurement is told once.
    untold: Observation | None = None

    @property
    def id(self) -> str:
        return self.job.spec.id

    def take(self, pace: Pace, *, slowdown: float) -> bool:
        """Go on at a pace. True if the job measures something at it that it did not know."""
        self.pace, self.speed = pace, pace.speed * (1.0 - slowdown)
        self.version += 1
        known = self.learned
        self.learned = known.after(pace)
        if self.learned.observations is not known.observations or self.learned.packed is not known.packed:
            self.untold = pace.observation
        return self.learned is not known

    def due_s(self) -> float:
        """Seconds until it reaches the end of its pace, exactly."""
        assert self.pace is not None
        return (self.pace.until - self.progress) / self.speed

    def progress_at(self, now: float) -> float:
        """Where it is; never beyond the end of its pace, however the seconds are rounded."""
        if self.pace is None:
            return self.progress
        return min(self.progress + self.speed * (now - self.settled_at), self.pace.until)

    def settle(self, now: float) -> None:
        """Bring its progress up to now."""
        if self.pace is None:
            return
        every_s = self.job.costs.checkpoint_every_s
        if every_s > 0.0:
            saved_at = self.saved_at + math.floor((now - self.saved_at) / every_s) * every_s
            if saved_at > self.saved_at:
                self.saved_progress = self.progress + self.speed * max(0.0, saved_at - self.settled_at)
                self.saved_at = saved_at
        self.progress = self.progress_at(now)
        self.settled_at = now
        if every_s == 0.0:
            self.save(now)

    def save(self, now: float) -> None:
        self.saved_progress, self.saved_at = self.progress, now

    def report(self, now: float, *, saved: bool) -> JobReported:
        """What it tells of itself, and its latest measurement unless it was told before."""
        assert self.pace is not None
        untold, self.untold = self.untold, None
        total = self.job.truth.total
        return JobReported(
            now,
            self.id,
            self.attempt,
            progress=min(1.0, self.progress / total) if total > 0.0 else 1.0,
            batch=self.pace.batch,
            noise_scale=self.pace.noise_scale,
            observations=() if untold is None else (untold,),
            saved=saved,
        )


@dataclass(frozen=True, slots=True)
class Underway:
    """A job that is there when its world begins, in the middle of its life."""

    job: SimJob
    #: What the live world knows of it: its phase, attempt and GPUs.
    known: Job
    #: In the unit of its truth.
    progress: float = 0.0
    #: Seconds until the start, rescale or stop it is in is done.
    left_s: float = 0.0

    def attempt(self, now: float) -> Attempt:
        known = self.known
        return Attempt(
            self.job,
            known.attempt,
            known.allocation,
            known.releasing,
            cancelled=known.cancelled,
            began=known.phase not in (Phase.PENDING, Phase.STARTING),
            failures=known.failures,
            progress=self.progress,
            settled_at=now,
            saved_progress=self.progress,
            saved_at=now,
            learned=Learned(known.belief.observations, known.belief.noise_scale, known.belief.packed),
        )
