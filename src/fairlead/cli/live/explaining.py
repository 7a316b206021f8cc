"""`fairlead explain ID`: why a live job is where it is."""

from __future__ import annotations

from typing import Any

import click

from fairlead.cli.live.completing import JOB_ID
from fairlead.cli.live.connect import talks
from fairlead.cli.live.showing import output_option, print_data
from fairlead.cli.live.wording import clean
from fairlead.client.calls import Client
from fairlead.client.errors import NotFound, Problem
from fairlead.client.resources import Explanation


@click.command("explain")
@JOB_ID
@output_option("table", "json", "yaml")
@talks
def explain_job(client: Client, job_id: str, output: str) -> None:
    """Explain why a live job is where it is, with the numbers of the decision."""
    try:
        told = client.explain(job_id)
    except NotFound as error:
        looks_like_a_file = "/" in job_id or "." in job_id.strip(".0123456789")
        detail = f"there is neither a job nor a file {job_id!r}" if looks_like_a_file else str(error)
        raise NotFound(Problem(404, detail=detail)) from None
    if output != "table":
        print_data(_data(told), output)
        return
    for sentence in told["text"]:
        click.echo(clean(sentence))


def _data(told: Explanation) -> dict[str, Any]:
    """For programs: code, sentence and what it rests on come first. A job that is over without a reason is `ended`."""
    reason = told["reason"]
    evidence: dict[str, Any] = {}
    if reason is not None:
        evidence = {**reason.get("numbers", {}), "jobs": reason.get("jobs", [])}
    return {
        "id": told["id"],
        "code": "ended" if reason is None else reason["code"],
        "text": told["text"][0] if reason is None else reason["text"],
        "evidence": evidence,
        "reason": reason,
        "sentences": told["text"],
    }
