"""`fairlead logs`: what a job printed, and what it prints now."""

from __future__ import annotations

import math
import re
import sys
import time
from typing import Any

import click

from fairlead.cli.live.completing import JOB_ID
from fairlead.cli.live.connect import QUIET, say, talks
from fairlead.cli.live.wait import ending
from fairlead.cli.live.watching import leaving_them_alone, wait_for
from fairlead.client.calls import Client
from fairlead.client.resources import exit_code_of
from fairlead.core.errors import InvalidSpec


@click.command()
@JOB_ID
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the job has ended, and exit as it did.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Only what this worker printed.")
@click.option("--attempt", metavar="N|all", help="Of another attempt, or of all of them.  [default: the last]")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last so many lines.")
@click.option("--since", metavar="TIME", help="Only what is newer: 10m, 2h; or a time such as 18:00.")
@QUIET
@talks
def logs(client: Client, job_id: str, follows: bool, since: str | None, quiet: bool, **which: Any) -> None:
    """Show a job's output. Every attempt and every worker has its own, and none is ever overwritten."""
    if since is not None:
        which["since"] = f"{_moment(since):.3f}"
    if which["attempt"] is not None and not re.fullmatch(r"[0-9]{1,9}|all", which["attempt"]):
        raise InvalidSpec(f"--attempt is {which['attempt']!r}; expected a number, or all")
    if follows:
        sys.exit(follow(client, job_id, quiet=quiet, **which))
    for piece in client.logs(job_id, **which):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def follow(client: Client, job_id: str, *, quiet: bool, **which: Any) -> int:
    """Print a job's output until it ends; the exit code that says how it did."""
    ranks, attempt = set[int](), None
    with leaving_them_alone([job_id]):
        for line in client.follow_logs(job_id, **which):
            if attempt is not None and line["attempt"] != attempt and not quiet:
                say(f"attempt {line['attempt']} begins")
            attempt = line["attempt"]
            ranks.add(line["rank"])
            click.echo(f"[{line['rank']}] {line['text']}" if len(ranks) > 1 else line["text"])
        job = wait_for(client, job_id)
    assert job is not None  # no time was set
    if not quiet:
        say(ending(job))
    return exit_code_of(job)


def _moment(text: str) -> float:
    """UNIX time, from how long ago it was or from when."""
    from fairlead.jobfile import InvalidJob, deadline_at, parse_duration

    now = time.time()
    try:
        return now - parse_duration(text, field="--since")
    except InvalidJob:
        pass
    try:
        at = math.inf if text.startswith("+") else deadline_at(text, now, field="--since")
    except InvalidJob:
        at = math.inf
    if at == math.inf:
        raise InvalidSpec(
            f"--since is {text[:40]!r}; expected how long ago, such as 10m or 2h, or when, such as 18:00 or 2026-07-01"
        )
    return at if at <= now else at - 86400.0  # a time of day is the last one, not the next
