"""Which cluster a state directory and a database belong to, and whether the two belong together.

Both carry the identity of their cluster, made once with the database. `check_pair` is a pure decision from what each of
them says: a new cluster, the same one, or a refusal with both identities and the remedy. Without it, a database that
was restored, replaced or lost would give numbers again, and what older jobs left in `jobs/` would be taken for the new
ones'. Needs none of the server's packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import BackendError


class ForeignDatabase(BackendError):
    """The database and the state directory are not of the same cluster, or not of the same time."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}. {remedy}")
        self.found, self.remedy = found, remedy


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What `cluster.json` in a state directory says."""

    #: The cluster's identity.
    cluster: str
    #: The directory's own: two directories may hold the same cluster, one after the other.
    directory: str
    #: The database that it last ran with, without a password, and the identity of that run.
    database: str = ""
    run: str = ""
    #: Up to here it was told that the database does not know of all numbers that were given.
    told: int = 0
    #: Where the directory was when this was written.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRecord:
    """A state directory, as far as it matters here."""

    path: Path
    cluster: ClusterFile | None
    #: Something is in jobs/.
    has_jobs: bool = False
    #: The highest number of a job that was ever given here.
    highest: int = 0
    #: What a command needs to mean this directory and the database in question.
    options: str = ""
    #: The directory that this one is a copy of, if that is still there.
    original: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRecord:
    """A database that is there and has tables, as far as it matters here."""

    name: str
    #: None: its tables are from before there were identities.
    identity: str | None = None
    #: The state directory it last ran with, and where that is. Empty: it has not run since there are identities.
    directory: str = ""
    place: str = ""
    #: The identity of the last run.
    run: str = ""
    #: It has a journal or jobs.
    used: bool = False
    #: The highest number of a job in it.
    last_number: int = 0
    #: Whether the token in the state directory is one of its users'; None if there is no token.
    knows_token: bool | None = None
    #: It is the file fairlead.db of the state directory.
    in_directory: bool = False

    @property
    def settled(self) -> bool:
        return self.identity is not None and self.directory != ""


class CopiedDirectory(ForeignDatabase):
    """A state directory of which there are two; no command can make both right."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A state directory and a database that belong together."""

    #: The identity that both have from now on; None: the one that the database has, or is about to be made with.
    identity: str | None = None
    #: What a person should know.
    notice: str = ""


def check_pair(directory: DirectoryRecord, database: DatabaseRecord | None, *, name: str) -> Pair:
    """Raises ForeignDatabase. A database of None is not there yet, or has no tables; `name` is what it is called."""
    if directory.original is not None:
        raise CopiedDirectory(
            f"state directory {directory.path} is a copy of {directory.original}, which is still there: jobs would run "
            "twice, and the processes of one would be taken for the other's",
            f"Use that one with --state {directory.original}; to make the copy the only one, remove the other first; "
            f"to begin a cluster of its own here, remove cluster.json, jobs/ and the database from {directory.path}",
        )
    own = None if directory.cluster is None else directory.cluster.cluster
    if database is None or (not database.used and database.identity != own):
        if own is not None or directory.has_jobs:
            raise _lost(directory, name, "is not there, or empty" if database is None else "has no history")
        return Pair()
    if directory.cluster is None or not database.settled:
        return _check_upgrade(directory, database)
    if directory.cluster.cluster != database.identity:
        raise _foreign(directory, database)
    return _check_age(directory, directory.cluster, database)


def _check_upgrade(directory: DirectoryRecord, database: DatabaseRecord) -> Pair:
    """At least one of them has not run since there are identities. That they belong together is told by the token."""
    known = directory.cluster.cluster if directory.cluster is not None else None
    if directory.cluster is not None and database.identity == known:
        return _check_age(directory, directory.cluster, database)
    together = database.in_directory if database.knows_token is None else database.knows_token
    if database.settled or not together:
        raise _foreign(directory, database)
    return Pair(known, _told_if_older(directory, database))


def _check_age(directory: DirectoryRecord, cluster: ClusterFile, database: DatabaseRecord) -> Pair:
    """Of the same cluster; but is it also the database that the directory was last used with?"""
    if database.run == cluster.run:
        return Pair(None, _told_if_older(directory, database))
    if database.directory not in ("", cluster.directory):
        raise ForeignDatabase(
            f"{_both(directory, database)}; but it was last used by another state directory, {database.place}, and "
            "jobs would run twice",
            f"Use that one with --state DIR; if it is gone for good, say so with {_adopt(directory)}",
        )
    if cluster.database not in ("", database.name):
        raise ForeignDatabase(
            f"{_both(directory, database)}; but the state directory was last used with {cluster.database}, and "
            f"{database.name} does not know of that",
            f"Name that one with --database URL or [server] database; to go on from {database.name}, and lose what "
            f"it does not know, say so with {_adopt(directory)}",
        )
    return Pair(None, _told_if_older(directory, database))


def _told_if_older(directory: DirectoryRecord, database: DatabaseRecord) -> str:
    first, last = database.last_number + 1, directory.highest
    if first > last or (directory.cluster is not None and last <= directory.cluster.told):
        return ""
    jobs = f"job {last}" if first == last else f"jobs {first} to {last}"
    return (
        f"database {database.name} knows jobs up to {database.last_number}, but numbers up to {last} were given: it "
        f"was restored from an older backup. What became of {jobs} is unknown now; what they wrote stays in "
        f"{directory.path / 'jobs'}, and new jobs are numbered from {last + 1}"
    )


def _lost(directory: DirectoryRecord, name: str, found: str) -> ForeignDatabase:
    cluster = directory.cluster
    whose = f"belongs to cluster {cluster.cluster}" if cluster is not None else "has jobs of a cluster"
    before = f", last with database {cluster.database}" if cluster is not None and cluster.database else ""
    return ForeignDatabase(
        f"database {name} {found}, but state directory {directory.path} {whose}{before}",
        "Restore a backup of the database, or name the one in use with --database URL; to begin a new cluster here, "
        f"with the old jobs put aside, say so with {_adopt(directory)}",
    )


def _foreign(directory: DirectoryRecord, database: DatabaseRecord) -> ForeignDatabase:
    cluster = directory.cluster
    own = f" (the directory's is {cluster.database})" if cluster is not None and cluster.database else ""
    other = f" (the database's is {database.place})" if database.place else ""
    aside = ", with what is in jobs/ put aside" if directory.has_jobs else ""
    return ForeignDatabase(
        f"{_both(directory, database)}: they do not belong together",
        f"Name the right database with --database URL{own}, or the right state directory with --state DIR{other}; to "
        f"move the database here on purpose{aside}, say so with {_adopt(directory)}",
    )


def _both(directory: DirectoryRecord, database: DatabaseRecord) -> str:
    cluster = directory.cluster
    here = f"belongs to cluster {cluster.cluster}" if cluster is not None else "belongs to no cluster yet"
    if cluster is None and directory.has_jobs:
        here = "has jobs of a cluster without an identity"
    there = f"to cluster {database.identity}" if database.identity is not None else "to a cluster without an identity"
    return f"state directory {directory.path} {here}, and database {database.name} {there}"


def _adopt(directory: DirectoryRecord) -> str:
    return f"`fairlead database adopt{directory.options}`"
