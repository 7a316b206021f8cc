"""Why a job is where it is, for everybody who asks: what its user decided, what it waits for, or what the plan says.

A policy gives reasons for the jobs it may place. The others are not in its view, and their reasons are here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime

from fairlead.core.types import Job, Launch, Phase, Reason
from fairlead.core.wording import counted
from fairlead.server.lock_waits import lock_reason
from fairlead.server.published import Published

log = logging.getLogger(__name__)

#: Who cancels a job that can never start.
ITSELF = "fairlead"

#: An elastic job whose workers have not begun to train after so many seconds has this for a reason.
SILENT_S = 60.0

#: What a person can do about it, by code.
ADVICE: Mapping[str, str] = {
    "too-large": "Ask for fewer GPUs or for other types, or wait until nodes come.",
    "outside": "It goes on when they have left; `fairlead nodes` tells on which nodes they are.",
    "held": "Release it when it should go on.",
    "dependency": "It goes on by itself when they have succeeded.",
    "dependency-failed": "It can never start: submit it again without them.",
    "backoff": "It is tried again by itself.",
    "checkpoint-lock": "It goes on when that process ends; to run both at once, give each a directory of its own.",
    "pinned": "Give it a fixed number of GPUs, elastic: restart, or a script that uses fairlead.train.",
    "silent": "Its log tells how far it is.",
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
        keeps = f", on the {counted(job.allocation.total, 'GPU')} it keeps meanwhile" if job.allocation else ""
        text = (
            f"failed {counted(job.failures, 'time')}, the last with exit code {job.exit_code}{_last_words(job)}; "
            f"it is tried again at {clock(job.not_before)}{keeps}"
        )
        numbers = {"failures": job.failures, "max_restarts": job.spec.max_restarts, "seconds": left_s}
        return Reason("backoff", text, numbers)
    if (locked := lock_reason(published.lock_waits, job, published.now)) is not None:
        return locked
    if job.phase is Phase.STARTING and job.spec.in_place and published.now - job.since >= SILENT_S:
        return _silent(job, published.now - job.since)
    if job.pinned_from is not None and job.phase is Phase.RUNNING:
        return Reason("pinned", _pinned(job), {"gpus": job.allocation.total})
    return _planned(published, job)


def _end(job: Job) -> Reason | None:
    if job.phase is Phase.SUCCEEDED:
        return None
    if job.phase is Phase.CANCELLED:
        lost = job.cancelled_by == ITSELF and job.waits_for
        return Reason("dependency-failed" if lost else "cancelled", _cancelled(job))
    how, detail = ending(job.exit_code, job.detail)
    text = f"failed{how} on attempt {job.attempt}{f': {detail}' if detail else ''}{_last_words(job)}"
    return Reason("failed", text, {"failures": job.failures, "max_restarts": job.spec.max_restarts})


def _last_words(job: Job) -> str:
    return f'; it last printed "{job.last_line}"' if job.last_line else ""


def _pinned(job: Job) -> str:
    """Of a job with a range of GPUs whose command turned out to know nothing of that."""
    gpus, once = job.allocation.total, job.spec.launch is Launch.ONCE
    why = "is started once for all of them" if once else "does not use fairlead.train"
    copies = f"; each has a copy of the command, and the {gpus} copies do not train together" if gpus > 1 else ""
    fixed = f"runs on {counted(gpus, 'GPU')}: its command {why}, so it cannot change size while it runs"
    return fixed if once else fixed + copies


def _cancelled(job: Job) -> str:
    """A job that could not be taken in was cancelled by nobody, and its detail says why."""
    by, why = job.cancelled_by, job.cancelled_why if job.cancelled else job.detail
    return f"was cancelled{f' by {by}' if by else ''}{f': {why}' if why else ''}"


def _silent(job: Job, seconds: float) -> Reason:
    """An elastic job has started once its workers train together."""
    text = (
        f"holds {counted(job.allocation.total, 'GPU')}, but does not train after {seconds:.0f} s: its setup, or what "
        "its script does before it trains, takes long"
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
