"""`fairlead submit`: hand in a job. Its id goes to standard output, everything for people to standard error."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import click

from fairlead.cli.live.asking import BeforeDashes, job_options, request_of
from fairlead.cli.live.connect import QUIET, say, talks, typed
from fairlead.cli.live.logs import follow
from fairlead.cli.live.outlook import answered
from fairlead.cli.live.wait import wait_for_all
from fairlead.cli.live.wording import clean, counted, launched
from fairlead.client.calls import Client
from fairlead.client.resources import Submitted
from fairlead.core.errors import InvalidSpec
from fairlead.jobfile import to_data


@click.command(cls=BeforeDashes)
@job_options
@click.option("--wait", "wait", is_flag=True, help="Wait for its end, and exit with its code.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Show its output as it comes, and exit with its code.")
@click.option("--strict", is_flag=True, help="Submit nothing if it cannot meet its deadline or its budget.")
@click.option("--key", metavar="KEY", help="The same key means the same job: a second submission changes nothing.")
@QUIET
@talks
def submit(
    client: Client, *, wait: bool, follows: bool, strict: bool, key: str | None, quiet: bool, **options: Any
) -> None:
    """Hand in a job: a FILE, or a command after --.

    Its id is printed alone, for scripts: ID=$(fairlead submit job.yaml). Options win over the file. The job runs in
    this directory, unless it says otherwise. A file of - is standard input.
    """
    request = request_of(click.get_current_context(), **options)
    if follows and len(request.array) > 1:
        raise InvalidSpec(f"--follow shows one job, and the array has {len(request.array)}; use --wait")
    try:
        answer = client.submit(to_data(request, secrets=True), key=key or uuid.uuid4().hex, strict=strict)
    except KeyboardInterrupt:
        say(f"interrupted; whether it was submitted says: {typed('queue --mine')}")
        raise
    if not follows:
        for job_id in answer["ids"]:
            click.echo(clean(job_id))
        sys.stdout.flush()
    if not quiet:
        _tell(answer, follows=follows or wait)
        if how := launched(request):
            say(how)
    if follows:
        sys.exit(follow(client, answer["ids"][0], quiet=quiet))
    if wait:
        sys.exit(wait_for_all(client, answer["ids"], until=None, quiet=quiet))


def _tell(answer: Submitted, *, follows: bool) -> None:
    """What became of it, and what to type next."""
    ids, jobs = answer["ids"], answer["jobs"]
    name = clean(jobs[0]["name"]) if jobs else ""
    what = f"job {ids[0]}" if len(ids) == 1 else f"{counted(len(ids), 'job')}, {ids[0]} to {ids[-1]}"
    said = f"submitted {what}{f' ({name})' if name else ''}"
    say(said if follows else f"{said}; to see its output: {typed(f'logs -f {ids[0]}')}")
    for sentence in answered(answer.get("answer"), time.time()):
        say(sentence)
