"""Why a job is where it is, for everybody who asks: what its user decided, what it waits for, or what the plan says.

A policy gives reasons for the jobs it may place. The others are not in its view, and their reasons are here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime

from fairlead.backends.elastic import SILENT_S
from fairlead.core.types import Job, Phase, Reason
from fairlead.core.wording import counted
from fairlead.server.lock_waits import lock_reason
from fairlead.server.published import Published

log = logging.getLogger(__name__)

#: Who cancels a job that can never start.
ITSELF = "fairlead"

#: What a person can do about it, by code.
ADVICE: Mapping[str, str] = {
    "too-large": "Ask for fewer GPUs or for other types, or wait until nodes come.",
    "outside": "It goes on when they have left; `fairlead nodes` tells on which nodes they are.",
    "held": "Release it when it should go on.",
    "dependency": "It goes on by itself when they have succeeded.",
    "dependency-failed": "It can never start: submit it again without them.",
    "backoff": "It is tried again by itself.",
    "checkpoint-lock": "It goes on when that process ends; to run both at once, give each a directory of its own.",
    "silent": "If its script does not use fairlead.train, submit it with a fixed number of GPUs, or elastic: restart.",
    "undecided": "Ask again in a moment.",
    "failed": "Its logs and events tell more.",
}


def clock(at: float) -> str:
    """For people, in the server's time, which is named."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        return f"second {at:.0f}"


def ending(code: int | None, detail: str) -> tuple[str, str]:
    """What follows a word such as `failed`, and what follows a colon after it: so that the exit code is said once.

    Whoever tells the detail knows of no other sentence, and often names the code in it.
    """
    if code is None:
        return " without an exit code", detail
    said = f"exit code {code}"
    if detail == f"it ended with {said}":
        return f" with {said}", ""
    if re.search(rf"\b{said}\b", detail):
        return "", detail
    return f" with {said}", detail


def reason_of(published: Published, job: Job) -> Reason | None:
    """The one reason that counts; None for a job that has succeeded, and needs none."""
    if job.phase.final:
        return _end(job)
    if job.cancelled:
        return Reason("cancelled", f"{_cancelled(job)}; it is on its way out")
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
    if (locked := lock_reason(published.lock_waits, job, published.now)) is not None:
        return locked
    if job.phase is Phase.STARTING and job.spec.in_place and published.now - job.since >= SILENT_S:
        return _silent(job, published.now - job.since)
    return _planned(published, job)


def _end(job: Job) -> Reason | None:
    if job.phase is Phase.SUCCEEDED:
        return None
    if job.phase is Phase.CANCELLED:
        lost = job.cancelled_by == ITSELF and job.waits_for
        return Reason("dependency-failed" if lost else "cancelled", _cancelled(job))
    how, detail = ending(job.exit_code, job.detail)
    text = f"failed{how} on attempt {job.attempt}{f': {detail}' if detail else ''}"
    return Reason("failed", text, {"failures": job.failures, "max_restarts": job.spec.max_restarts})


def _cancelled(job: Job) -> str:
    """A job that could not be taken in was cancelled by nobody, and its detail says why."""
    by, why = job.cancelled_by, job.cancelled_why if job.cancelled else job.detail
    return f"was cancelled{f' by {by}' if by else ''}{f': {why}' if why else ''}"


def _silent(job: Job, seconds: float) -> Reason:
    """An elastic job has started once its workers say so, and some never do."""
    text = (
        f"holds {counted(job.allocation.total, 'GPU')}, but has not reported for {seconds:.0f} s: its setup may take "
        "long, or its script does not use fairlead.train; it then runs to its end on the GPUs it has"
    )
    return Reason("silent", text, {"gpus": job.allocation.total, "seconds": seconds})


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
