"""`fairlead database`: copy a database into another one, and say on purpose which one a state directory belongs to."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.live.connect import errors_told, say
from fairlead.cli.surroundings import SERVER_PACKAGES, missing
from fairlead.cli.up import CONFIG, STATE, config_told, directory_of
from fairlead.core.errors import BackendError
from fairlead.server.config import load


@click.group()
def database() -> None:
    """Move a database, or let a state directory go on with another one. No server may run meanwhile."""
    if lacking := missing(SERVER_PACKAGES):
        with errors_told():
            raise BackendError(f"{', '.join(lacking)}: not installed; install it with: pip install 'fairlead[server]'")


@database.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def copy(source: str, target: str) -> None:
    """Copy every row of the database FROM into TO, which has to be empty: SQLite to PostgreSQL, or back.

    Both are URLs: sqlite:////absolute/path.db or postgresql://user@host/name. FROM is not changed.
    """
    from fairlead.server.database_copy import copy_database

    with errors_told():
        counts = copy_database(source, target)
        say(f"copied {counts['jobs']} jobs and {counts['journal']} messages, and compared them")


@database.command()
@STATE
@CONFIG
@click.option("--database", "url", metavar="URL", help="The database.  [default: the one that `fairlead up` would use]")
@click.option("--end-jobs", is_flag=True, help="End jobs that still run here and that the database does not know.")
def adopt(*, state: Path | None, file: Path | None, url: str | None, end_jobs: bool) -> None:
    """Say that a database belongs to this state directory from now on.

    `fairlead up` refuses a database of another cluster, one that is older than the directory and in another place, and
    one that is lost. If that is what you mean, say it here, once. Jobs of another cluster are put aside, not removed.
    """
    from fairlead.server.cluster import adopt as adopt_database

    with errors_told(), config_told():
        directory = directory_of(state)
        config = load(directory.path, file=file, flags={"server.database": url})
        told = adopt_database(
            directory, config.database_url(directory.path), end_jobs=end_jobs, grace_s=config.jobs.grace_period
        )
        for line in told:
            say(line)
