"""`fairlead wait`: until jobs have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from fairlead.cli.live.completing import JOB_IDS
from fairlead.cli.live.connect import QUIET, TIMED_OUT, say, talks
from fairlead.cli.live.watching import job_or_elements, leaving_them_alone, wait_for
from fairlead.cli.live.wording import clean, counted, span, why
from fairlead.client.calls import Client
from fairlead.client.resources import Job, exit_code_of


@click.command()
@JOB_IDS
@click.option("--timeout", metavar="TIME", help="Give up after so long, as in 90s, 30m or 2h, and exit with 124.")
@QUIET
@talks
def wait(client: Client, job_ids: tuple[str, ...], timeout: str | None, quiet: bool) -> None:
    """Wait until jobs have ended, and exit as they did.

    The exit code is the job's own if it failed, 0 if it succeeded, 124 if its time limit was over, and 130 if it was
    cancelled. Of several jobs, it is that of the first one named that did not succeed. Ctrl-C does nothing to the job.
    """
    until = None
    if timeout is not None:
        from fairlead.jobfile import parse_duration

        until = time.monotonic() + parse_duration(timeout, field="--timeout")
    elements = [
        each
        for job_id in job_ids
        for each in job_or_elements(job_id, lambda one: [client.job(one)["id"]], lambda many: client.array(many)["ids"])
    ]
    sys.exit(wait_for_all(client, elements, until=until, quiet=quiet))


def wait_for_all(client: Client, job_ids: Sequence[str], *, until: float | None, quiet: bool) -> int:
    """The exit code: of the first that did not succeed, or 0."""
    codes = []
    with leaving_them_alone(job_ids):
        for place, job_id in enumerate(dict.fromkeys(job_ids)):
            job = wait_for(client, job_id, until=until)
            if job is None:
                open_jobs = counted(len(job_ids) - place, "job")
                say(
                    f"job {job_id} has not ended in time"
                    if len(job_ids) == 1
                    else f"{open_jobs} not waited for any longer"
                )
                return TIMED_OUT
            codes.append(exit_code_of(job))
            if not quiet:
                say(ending(job))
    return next((code for code in codes if code), 0)


def ending(job: Job) -> str:
    """How a job ended, in a sentence."""
    took = "" if job["ended_at"] is None else f" after {span(job['ended_at'] - job['submitted_at'])}"
    reason = why(job)
    return f"job {clean(job['id'])} {job['state']}{took}{f': {reason}' if reason else ''}"
