"""`fairlead nodes`, `drain`, `undrain` and `queues`: the cluster itself."""

from __future__ import annotations

import time

import click

from fairlead.cli.live.columns import NODES, NODES_WIDE, QUEUES, QUEUES_WIDE
from fairlead.cli.live.connect import QUIET, say, talks
from fairlead.cli.live.showing import Form, list_options
from fairlead.cli.live.watching import show_now_or_watch
from fairlead.cli.live.wording import clean, clock, counted, span
from fairlead.client.calls import Client


@click.command()
@list_options
@talks
def nodes(client: Client, output: str, no_headers: bool, quiet: bool, watch: bool) -> None:
    """List the nodes, their GPUs and who is on them."""
    form = Form("name" if quiet else output, not no_headers, NODES, NODES_WIDE)
    show_now_or_watch(client.nodes, form, watch=watch, empty="there are no nodes")


@click.command()
@list_options
@talks
def queues(client: Client, output: str, no_headers: bool, quiet: bool, watch: bool) -> None:
    """List the queues: what they are guaranteed and entitled to, what they use, and who is in them."""
    form = Form("name" if quiet else output, not no_headers, QUEUES, QUEUES_WIDE, name="name")
    show_now_or_watch(client.queues, form, watch=watch, empty="there are no queues")


@click.command()
@click.argument("node")
@click.option("--by", metavar="WHEN", help="When it has to be empty: 18:00, +2h or 2026-11-20T18:00.  [default: never]")
@QUIET
@talks
def drain(client: Client, node: str, by: str | None, quiet: bool) -> None:
    """Let nobody new onto a node. Jobs that are there may stay, unless --by says when they have to be gone."""
    at = None
    if by is not None:
        from fairlead.jobfile import deadline_at

        at = deadline_at(by, time.time(), field="--by")
    found = client.drain(node, by=at)
    if not quiet:
        on_it = found["jobs"]
        due = "" if at is None else f", and is empty by {clock(at, time.time())} (in {span(at - time.time())})"
        here = f"; {counted(len(on_it), 'job')} on it now: {', '.join(map(clean, on_it))}" if on_it else ""
        say(f"node {clean(node)} takes nobody new{due}{here}")


@click.command()
@click.argument("node")
@QUIET
@talks
def undrain(client: Client, node: str, quiet: bool) -> None:
    """Open a node again."""
    client.undrain(node)
    if not quiet:
        say(f"node {clean(node)} is open again")
