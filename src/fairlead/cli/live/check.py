"""`fairlead check`: is this a job, and what would come of it? Nothing is submitted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from fairlead.cli.live.asking import BeforeDashes, job_options, request_of
from fairlead.cli.live.connect import STATE, connect, errors_told, say
from fairlead.cli.live.outlook import answered, foreseen
from fairlead.cli.live.showing import output_option, print_data
from fairlead.cli.live.wording import clean, launched
from fairlead.client.errors import NoServer
from fairlead.client.resources import Check
from fairlead.jobfile import schema, to_data


@click.command(cls=BeforeDashes)
@job_options
@click.option("--schema", "prints_schema", is_flag=True, help="Print the JSON Schema of a job file, and nothing else.")
@output_option("table", "json", "yaml")
@STATE
def check(*, prints_schema: bool, output: str, state: Path | None, **options: Any) -> None:
    """Check a job FILE, or a command after --, without submitting it.

    Every mistake is told at once with its place. If a server runs, it also says whether the job fits, and whether it
    can meet its deadline and its budget.
    """
    with errors_told():
        if prints_schema:
            print_data(schema(), "yaml" if output == "yaml" else "json")
            return
        request = request_of(click.get_current_context(), **options)
        try:
            with connect(state) as client:
                told = client.check(to_data(request, secrets=True))
        except NoServer as error:
            say(f"the job is valid; what would come of it is not known, as {error}")
            return
        if output != "table":
            print_data(told, output)
            return
        for sentence in _sentences(told):
            click.echo(sentence)
        if how := launched(request):
            click.echo(how)


def _sentences(told: Check) -> list[str]:
    """That it is one; what it would be; and what would come of it."""
    now = time.time()
    array = f", and an array of {told['jobs']}" if told["jobs"] > 1 else ""
    said = [f"the job is valid{array}"]
    said += answered(told["answer"], now)
    if told["answer"] is None or told["answer"]["forecast"] is None:
        said += foreseen(told["forecast"], now, new=True) or [clean(told["why"])]
    return [sentence for sentence in said if sentence]
