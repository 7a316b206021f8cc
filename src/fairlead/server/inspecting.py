"""A look at a database that changes nothing in it: whose is it, is it current, and is it whole?

The quick look is for every start; the deep one, which reads everything, for `fairlead doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy import inspect as inspect_tables
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from fairlead.core import codec
from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.core.facts import Facts
from fairlead.core.state import State
from fairlead.journal import checksum
from fairlead.server import migrations
from fairlead.server.database import (
    APPLICATION_ID,
    Database,
    Postgres,
    Sqlite,
    open_database,
    reason,
    sqlite_path,
    taken,
)
from fairlead.server.identity import DatabaseRecord
from fairlead.server.journal import Record, check_gap, recover
from fairlead.server.store import Store
from fairlead.server.tables import cluster, journal, submissions, users

#: Tables whose indexes only matter to a person who reads a job's story; all others decide what the loop finds.
_STORIES = ("journal", "notes", "quarantine", "snapshots")
#: As SQLite says it.
_DAMAGED = ("malformed", "not a database")
#: Of what is wrong with a database.
_MOST_TOLD = 20
_PAGE = select(journal).where(journal.c.seq > bindparam("after")).order_by(journal.c.seq).limit(5000)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What was found. A database that is not current is brought up to date by the next start."""

    name: str
    current: bool
    #: Number and time of the last record; None if there is none.
    last: tuple[int, float] | None = None
    #: How many records there are.
    count: int = 0
    #: One sentence for each record that is not whole, newest first.
    damaged: tuple[str, ...] = ()
    #: The damage is in what was written last, which a start mends by itself.
    mendable: bool = False
    #: What SQLite finds wrong with the file. If anything is, nothing else was looked at.
    broken: tuple[str, ...] = ()
    #: Whether PostgreSQL would notice a damaged page; None for SQLite.
    checksums: bool | None = None


def inspect(url: str) -> Inspected | None:
    """None if there is no such file yet. Raises BackendError or InvalidSpec if it cannot be opened."""
    with _opened(url) as connected:
        if connected is None:
            return None
        database, connection = connected
        return _looked(connection, database)


@contextmanager
def _opened(url: str) -> Iterator[tuple[Database, Connection] | None]:
    """A connection that can only read; None if there is no such file, or nothing in it."""
    path = sqlite_path(url)
    if path is not None and (not path.exists() or path.stat().st_size == 0):
        yield None
        return
    database = open_database(url)
    try:
        with database.readers.connect() as connection:
            yield database, connection
    except SQLAlchemyError as error:
        damaged = isinstance(error, DatabaseError) and any(words in str(error) for words in _DAMAGED)
        remedy = "; it is damaged: restore a backup, see docs/operating.md" if damaged else ""
        raise BackendError(f"cannot open database {database.name}: {reason(error)}{remedy}") from None
    finally:
        database.close()


def find_record(url: str, directory: Path | None, *, token_hash: str | None) -> DatabaseRecord | None:
    """Which cluster a database belongs to, and whether the token in a state directory is one of its users'. None if it
    is not there, or has no tables. Raises BackendError if it is damaged."""
    with _opened(url) as connected:
        if connected is None:
            return None
        database, connection = connected
        if isinstance(database, Sqlite) and (damage := quick_damage(connection)):
            raise BackendError(
                f"database {database.name} is damaged: {damage}. Restore a backup (see docs/operating.md); "
                "`fairlead doctor` tells all that is wrong with it"
            )
        if MigrationContext.configure(connection).get_current_revision() is None:
            if isinstance(database, Sqlite) and inspect_tables(connection).get_table_names():
                _check_application(connection, database.name)
            return None
        migrations.is_current(connection)  # or it raises
        own = None
        if inspect_tables(connection).has_table("cluster"):
            own = connection.execute(select(cluster)).one()
        return DatabaseRecord(
            name=database.name,
            identity=None if own is None else own.identity,
            directory="" if own is None else own.directory,
            place="" if own is None else own.place,
            run="" if own is None else own.run,
            used=any(connection.execute(select(table).limit(1)).first() for table in (journal, submissions)),
            last_number=connection.execute(select(func.coalesce(func.max(submissions.c.number), 0))).scalar_one(),
            knows_token=None if token_hash is None else _knows(connection, token_hash),
            in_directory=directory is not None and sqlite_path(url) == directory / "fairlead.db",
        )


def _knows(connection: Connection, token_hash: str) -> bool:
    return connection.execute(select(users.c.name).where(users.c.token_hash == token_hash)).first() is not None


def refuse_second_controller(url: str) -> None:
    """Raises BackendError if a server uses this database."""
    with _opened(url) as connected:
        if connected is None:
            return
        database, _ = connected
        with database.connect() as connection:
            if not database.hold(connection):
                raise taken(database, connection)
            database.let_go(connection)


def _check_application(connection: Connection, name: str) -> None:
    if connection.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID:
        raise InvalidSpec(f"{name} is an SQLite file, but not a Fairlead database; choose another name")


def quick_damage(connection: Connection) -> str:
    """What SQLite finds first; empty if it finds nothing.

    Of every page, that it is what it should be: about 2 s for each GB. Of the tables that the loop looks things up in,
    also that their indexes are right. The journal's messages and the snapshots have checksums of their own.
    """
    try:
        tables = inspect_tables(connection).get_table_names()
        looked_up = (table for table in tables if table not in _STORIES)
        for pragma in ("quick_check(1)", *(f"integrity_check({table})" for table in looked_up)):
            told = str(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar())
            if told != "ok":
                return told.replace("\n", ": ")
        for table in {"cluster", "controller"}.intersection(tables):
            if connection.exec_driver_sql(f"SELECT id FROM {table}").all() != [(1,)]:
                return f"table {table} should have the one row 1"
        return next(iter(_alone(connection)), "")
    except SQLAlchemyError as error:
        return reason(error)


def _alone(connection: Connection) -> list[str]:
    """Rows that refer to others which are missing."""
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return [f"row {row[1]} of table {row[0]} refers to a row of {row[2]} that is missing" for row in rows]


def _looked(connection: Connection, database: Database) -> Inspected:
    name = database.name
    if isinstance(database, Sqlite):
        if damage := _deep_damage(connection):
            return Inspected(name, current=True, broken=damage)
        _check_application(connection, name)
    if not migrations.is_current(connection):
        return Inspected(name, current=False)
    found = _check_journal(connection, name)
    if not found.damaged and (why := _cannot_be_replayed(database)):
        found = replace(found, damaged=(why,))
    if isinstance(database, Postgres):
        on = connection.exec_driver_sql("SHOW data_checksums").scalar_one() == "on"
        found = replace(found, checksums=on)
    return found


def _check_journal(connection: Connection, name: str) -> Inspected:
    """Every record: its checksum, its message, and that none is missing."""
    damaged: list[tuple[int, str]] = []  # the turn it is of, and what is wrong
    last, before, count = None, 0, 0
    while rows := connection.execute(_PAGE, {"after": before}).all():
        for row in rows:
            record = Record(row.seq, row.at, row.type, row.job, row.body)
            if told := _damage(connection, before, record, row.crc):
                damaged.append((row.turn, told))
            before, last = row.seq, row
        count += len(rows)
    if last is None:
        return Inspected(name, current=True)
    newest_first = tuple(text for _, text in reversed(damaged))
    mendable = bool(damaged) and all(turn == last.turn for turn, _ in damaged)
    return Inspected(name, True, (last.seq, last.at), count, newest_first, mendable)


def _damage(connection: Connection, before: int, record: Record, crc: int) -> str:
    try:
        if record.seq != before + 1:
            check_gap(connection, before, record.seq)
        if checksum(record.body) != crc:
            return f"message {record.seq} does not match its checksum"
        record.message  # noqa: B018  # it is read for what it may raise
    except BackendError as error:
        return str(error)
    return ""


def _cannot_be_replayed(database: Database) -> str:
    """Do what a start does: load the newest snapshot, and apply what came after. Empty if that succeeds."""
    store = Store(database)
    try:
        recover(store, State, lambda data: State.of(codec.decode(Facts, data, place="snapshot")))
    except FairleadError as error:
        return f"the journal cannot be replayed: {error}"
    finally:
        store.close()
    return ""


def _deep_damage(connection: Connection) -> tuple[str, ...]:
    """All that SQLite finds wrong, up to a limit."""
    try:
        told = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST_TOLD})")]
        alone = _alone(connection)
    except SQLAlchemyError as error:
        return (reason(error),)
    lines = [line for text in told if text != "ok" for line in text.splitlines()]
    return (*lines, *alone)
