"""How an attempt ends: one rule for the state and for whoever else reads a journal."""

from __future__ import annotations

from typing import Protocol

from fairlead.core.messages import JobExited, JobStopped
from fairlead.core.types import JobSpec, Phase

#: An exit code by which an attempt asks to be queued again: 128 + SIGTERM.
REQUEUE_ME = 143

#: However often it failed, a job waits no longer than this for another try.
LONGEST_BACKOFF_S = 300.0


class Standing(Protocol):
    """What the rule has to know of a job before the end."""

    @property
    def spec(self) -> JobSpec: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def failures(self) -> int: ...
    @property
    def cancelled(self) -> bool: ...


def requeued(job: Standing) -> Phase:
    """The phase of a job whose attempt is over, but not its work."""
    return Phase.CANCELLED if job.cancelled else Phase.PENDING


def after_the_end(event: JobExited | JobStopped, job: Standing) -> tuple[Phase, int]:
    """The phase that follows, and the failures there were then. An end that was asked for is not a failure."""
    if isinstance(event, JobStopped):
        return requeued(job), job.failures
    if event.code == 0:
        return Phase.SUCCEEDED, job.failures
    if event.code == REQUEUE_ME or job.cancelled or job.phase is Phase.STOPPING:
        return requeued(job), job.failures
    failures, spec = job.failures + 1, job.spec
    hopeless = event.final or (spec.restart_on and event.code not in spec.restart_on)
    return (Phase.FAILED if hopeless or failures > spec.max_restarts else Phase.PENDING), failures


def tried_again_at(job: Standing, failures: int, now: float) -> float:
    """When the next attempt may begin, after so many failures."""
    return now + min(LONGEST_BACKOFF_S, job.spec.backoff_s * 2.0 ** min(failures - 1, 64))
