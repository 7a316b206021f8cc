"""`fairlead user`: who may ask the server for what. For its admins."""

from __future__ import annotations

import click

from fairlead.cli.live.columns import USERS
from fairlead.cli.live.connect import QUIET, say, talks
from fairlead.cli.live.showing import Form, list_options
from fairlead.cli.live.watching import show_now_or_watch
from fairlead.cli.live.wording import clean
from fairlead.client.calls import Client


@click.group()
def user() -> None:
    """Add, list and remove users. Only admins may."""


@user.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["user", "viewer", "admin"]),
    default="user",
    show_default=True,
    help="A user rules their own jobs, a viewer changes nothing, an admin may do everything.",
)
@QUIET
@talks  # fmt: skip
def add(client: Client, name: str, role: str, quiet: bool) -> None:
    """Add a user, and print the token that shows who they are. It is told only once."""
    token = client.add_user(name, role=role)["token"]
    click.echo(token)
    if not quiet:
        say(f"this is the token of {clean(name)} ({role}), and told only now. They set:")
        say(f"  export FAIRLEAD_URL={client.url} FAIRLEAD_TOKEN=...")


@user.command()
@list_options
@talks
def ls(client: Client, output: str, no_headers: bool, quiet: bool, watch: bool) -> None:
    """List the users and their roles."""
    form = Form("name" if quiet else output, not no_headers, USERS, USERS, name="name")
    show_now_or_watch(client.users, form, watch=watch, empty="there are no users")


@user.command()
@click.argument("name")
@QUIET
@talks
def rm(client: Client, name: str, quiet: bool) -> None:
    """Remove a user. Their token is good for nothing any more; their jobs stay."""
    client.remove_user(name)
    if not quiet:
        say(f"user {clean(name)} is removed")
