"""`fairlead cancel`, `hold`, `release`, `suspend`, `resume` and `priority`: wishes about jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from fairlead.cli.live.completing import JOB_IDS
from fairlead.cli.live.connect import FAILURE, QUIET, say, talks
from fairlead.cli.live.watching import job_or_elements
from fairlead.cli.live.wording import clean
from fairlead.client.calls import Client
from fairlead.client.errors import Conflict, NotAllowed, NotFound
from fairlead.client.resources import Array, Job


def _each(
    job_ids: Sequence[str], act: Callable[[str], Job], act_on_array: Callable[[str], Array], told: str, *, quiet: bool
) -> None:
    """Do it to all of them, and exit with 1 if one of them could not be."""
    failed = False
    for job_id in dict.fromkeys(job_ids):
        try:
            done = job_or_elements(job_id, lambda one: [act(one)["id"]], lambda many: act_on_array(many)["ids"])
        except (Conflict, NotAllowed, NotFound) as error:
            if isinstance(error, NotAllowed) and error.problem.status == 401:
                raise
            click.echo(f"error: {clean(error)}", err=True)
            failed = True
        else:
            for each in () if quiet else done:
                say(f"job {clean(each)} {told}")
    if failed:
        sys.exit(FAILURE)


def _wish(client: Client, job_ids: Sequence[str], action: str, told: str, *, quiet: bool, **body: Any) -> None:
    _each(
        job_ids,
        lambda job_id: client.act(job_id, action, **body),
        lambda number: client.act_on_array(number, action, **body),
        told,
        quiet=quiet,
    )


@click.command()
@JOB_IDS
@click.option("--why", default="", metavar="TEXT", help="To be remembered in its story.")
@QUIET
@talks
def cancel(client: Client, job_ids: tuple[str, ...], why: str, quiet: bool) -> None:
    """End jobs for good. One that runs is told to stop, and has its grace period to save its work."""
    body: dict[str, Any] = {"why": why} if why else {}
    _wish(client, job_ids, "cancel", "will be ended", quiet=quiet, **body)


@click.command()
@JOB_IDS
@QUIET
@talks
def hold(client: Client, job_ids: tuple[str, ...], quiet: bool) -> None:
    """Keep jobs from getting GPUs until they are released."""
    _wish(client, job_ids, "hold", "holds no GPUs until it is released", quiet=quiet)


@click.command()
@JOB_IDS
@QUIET
@talks
def release(client: Client, job_ids: tuple[str, ...], quiet: bool) -> None:
    """Let jobs that are on hold go on."""
    _wish(client, job_ids, "release", "may go on", quiet=quiet)


@click.command()
@JOB_IDS
@QUIET
@talks
def suspend(client: Client, job_ids: tuple[str, ...], quiet: bool) -> None:
    """Take the GPUs from running jobs until they are resumed.

    One that uses fairlead.train keeps its progress; any other command is stopped, and started anew.
    """
    _wish(client, job_ids, "suspend", "gives up its GPUs until it is resumed", quiet=quiet)


@click.command()
@JOB_IDS
@QUIET
@talks
def resume(client: Client, job_ids: tuple[str, ...], quiet: bool) -> None:
    """Let suspended jobs go on."""
    _wish(client, job_ids, "resume", "may go on", quiet=quiet)


@click.command(context_settings={"ignore_unknown_options": True})
@JOB_IDS
@click.argument("number", type=int)
@QUIET
@talks
def priority(client: Client, job_ids: tuple[str, ...], number: int, quiet: bool) -> None:
    """Give jobs another priority: the higher, the earlier, where the policy heeds priorities."""
    _each(
        job_ids,
        lambda job_id: client.reprioritise(job_id, number),
        lambda array: client.reprioritise_array(array, number),
        f"has priority {number}",
        quiet=quiet,
    )
