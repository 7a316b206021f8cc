"""`fairlead queue` and `fairlead history`: jobs in lists."""

from __future__ import annotations

from typing import Any

import click

from fairlead.cli.live.columns import HISTORY, HISTORY_WIDE, QUEUE, QUEUE_WIDE
from fairlead.cli.live.connect import say, talks, typed
from fairlead.cli.live.showing import Form, list_options
from fairlead.cli.live.watching import show_now_or_watch
from fairlead.client.calls import Client
from fairlead.client.resources import STATES, Job

_MINE = click.option("--mine", is_flag=True, help="Only your own.")
_USER = click.option("-u", "--user", metavar="NAME", help="Only this user's.")

#: Options of `queue` that leave jobs out.
_FILTERS = ("states", "user", "mine", "queue_name", "labels", "name")


@click.command()
@click.option(
    "-s",
    "--status",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only those in this state; can be repeated. {', '.join(STATES)}.",
)
@_USER
@_MINE
@click.option("--queue", "queue_name", metavar="NAME", help="Only those of this queue.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only those with this label; repeatable.")
@click.option("--name", metavar="TEXT", help="Only those with this in their name.")
@click.option("-a", "--all", "everything", is_flag=True, help="Those that ended as well.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="The newest so many.")
@list_options
@talks  # fmt: skip
def queue(client: Client, output: str, no_headers: bool, quiet: bool, watch: bool, **options: Any) -> None:
    """List the jobs that wait or run, in order of arrival.

    GPUS is how many a job has, and how many it may have. GOODPUT is useful samples per second: what it processes, times
    what each sample is worth. ETA is the time left, AGE the time since its submission.
    """
    form = Form("name" if quiet else output, not no_headers, QUEUE, QUEUE_WIDE)
    filtered = any(options[name] for name in _FILTERS)
    empty = "no jobs match" if filtered else f"no jobs; to submit one: {typed('submit -- python train.py')}"
    show_now_or_watch(lambda: _jobs(client, **options), form, watch=watch, empty=empty)


def _jobs(
    client: Client, *, states: tuple[str, ...], labels: tuple[str, ...], mine: bool, everything: bool, limit: int,
    queue_name: str | None, **filters: Any,
) -> list[Job]:  # fmt: skip
    if mine:
        filters["user"] = client.whoami()["name"]
    filters |= {
        "queue": queue_name,
        "all": everything or None,
        "state": list(states) or None,
        "label": list(labels) or None,
    }
    newest = client.jobs(limit=limit + 1, **filters)
    if len(newest) > limit:
        say(f"there are more than {limit} jobs; these are the newest. More with --limit")
    return newest[:limit][::-1]


@click.command()
@_USER
@_MINE
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The last so many.")
@list_options
@talks
def history(
    client: Client, user: str | None, mine: bool, limit: int, output: str, no_headers: bool, quiet: bool, watch: bool
) -> None:
    """List the jobs that ended, the last one first."""
    form = Form("name" if quiet else output, not no_headers, HISTORY, HISTORY_WIDE)
    if mine:
        user = client.whoami()["name"]
    show_now_or_watch(lambda: client.history(limit=limit, user=user), form, watch=watch, empty="no job has ended yet")
