"""Why a job is where it is, for everybody who asks: what its user decided, what it waits for, or what the plan says.

A policy gives reasons for the jobs it may place. The others are not in its view, and their reasons are here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from fairlead.core.types import Job, Phase, Reason
from fairlead.server.published import Published

log = logging.getLogger(__name__)

#: What a person can do about it, by code.
ADVICE: Mapping[str, str] = {
    "too-large": "Ask for fewer GPUs or for other types, or wait until nodes come.",
    "held": "Release it when it should go on.",
    "dependency": "It goes on by itself when they have succeeded.",
    "dependency-failed": "It can never start: cancel it, and submit it again without them.",
    "backoff": "It is tried again by itself.",
    "undecided": "Ask again in a moment.",
    "failed": "Its logs and events tell more.",
}


def clock(at: float) -> str:
    """For people, in UTC."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"second {at:.0f}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reason_of(published: Published, job: Job) -> Reason | None:
    """The one reason that counts; None for a job that has succeeded, and needs none."""
    if job.phase.final:
        return _end(job)
    if job.cancelled:
        return Reason("cancelled", "is cancelled and on its way out")
    if job.on_hold:
        return Reason("held", "is on hold")
    if job.waits_for:
        return _dependency(published, job)
    if job.not_before > published.now:
        left_s = job.not_before - published.now
        text = (
            f"failed {counted(job.failures, 'time')}, the last with exit code {job.exit_code}; "
            f"it is tried again at {clock(job.not_before)}"
        )
        numbers = {"failures": job.failures, "max_restarts": job.spec.max_restarts, "seconds": left_s}
        return Reason("backoff", text, numbers)
    return _planned(published, job)


def _end(job: Job) -> Reason | None:
    if job.phase is Phase.SUCCEEDED:
        return None
    if job.phase is Phase.CANCELLED:
        return Reason("cancelled", "was cancelled")
    code = "without an exit code" if job.exit_code is None else f"with exit code {job.exit_code}"
    detail = f": {job.detail}" if job.detail else ""
    text = f"failed {code} on attempt {job.attempt}{detail}"
    return Reason("failed", text, {"failures": job.failures, "max_restarts": job.spec.max_restarts})


def _dependency(published: Published, job: Job) -> Reason:
    fates = {other: found.phase for other in job.waits_for if (found := published.finished.get(other)) is not None}
    lost = [f"{other}, which {phase}" for other, phase in fates.items() if phase is Phase.FAILED]
    lost += [f"{other}, which was cancelled" for other, phase in fates.items() if phase is Phase.CANCELLED]
    if lost:
        return Reason("dependency-failed", f"depends on job {'; and on job '.join(lost)}")
    noun = "job" if len(job.waits_for) == 1 else "jobs"
    text = f"waits for {noun} {', '.join(job.waits_for)} to succeed"
    return Reason("dependency", text, {"jobs": len(job.waits_for)})


def _planned(published: Published, job: Job) -> Reason:
    try:
        reason = published.plan.reasons.get(job.id)
    except Exception:  # a policy may be anybody's, and computes reasons only now
        log.exception("the policy's reason for job %s cannot be computed", job.id)
        return Reason("unknown", "the policy failed to explain its decision; see the server's log")
    if reason is None:
        return Reason("undecided", "the policy has not decided about it yet")
    return reason
