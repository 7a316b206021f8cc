"""A look at a database that changes nothing in it: is it ours, is it current, and is the end of its journal whole?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, func, select
from sqlalchemy import inspect as inspect_tables
from sqlalchemy.exc import SQLAlchemyError

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.server import migrations
from fairlead.server.database import (
    APPLICATION_ID,
    Database,
    Sqlite,
    open_database,
    reason,
    sqlite_path,
    taken,
)
from fairlead.server.identity import DatabaseRecord
from fairlead.server.journal import Record, check_gap, checksum
from fairlead.server.tables import cluster, controller, journal, submissions, users

#: Records at the end of the journal that are read.
LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Inspected:
    """What was found. A database that is not current is brought up to date by the next start."""

    name: str
    current: bool
    #: Number and time of the last record; None if there is none.
    last: tuple[int, float] | None = None
    #: How many of the last records were read.
    looked_at: int = 0
    #: One sentence for each record that is not whole, newest first.
    damaged: tuple[str, ...] = ()
    #: The damage is in what was written last, which a start mends by itself.
    mendable: bool = False


def inspect(url: str) -> Inspected | None:
    """None if there is no such file yet. Raises BackendError or InvalidSpec if it cannot be opened."""
    with _opened(url) as connected:
        if connected is None:
            return None
        database, connection = connected
        return _looked(connection, database.name, sqlite=isinstance(database, Sqlite))


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
        raise BackendError(f"cannot open database {database.name}: {reason(error)}") from None
    finally:
        database.close()


def find_record(url: str, directory: Path, *, token_hash: str | None) -> DatabaseRecord | None:
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
            epoch=connection.execute(select(controller.c.epoch)).scalar_one(),
            used=any(connection.execute(select(table).limit(1)).first() for table in (journal, submissions)),
            last_number=connection.execute(select(func.coalesce(func.max(submissions.c.number), 0))).scalar_one(),
            knows_token=None if token_hash is None else _knows(connection, token_hash),
            in_directory=sqlite_path(url) == directory / "fairlead.db",
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
    """What SQLite's quick check finds first; empty if it finds nothing."""
    try:
        told = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
    except SQLAlchemyError as error:
        return reason(error)
    return "" if told == "ok" else told.replace("\n", ": ")


def _looked(connection: Connection, name: str, *, sqlite: bool) -> Inspected:
    if sqlite:
        _check_application(connection, name)
    if not migrations.is_current(connection):
        return Inspected(name, current=False)
    rows = connection.execute(select(journal).order_by(journal.c.seq.desc()).limit(LOOKED_AT)).all()
    if not rows:
        return Inspected(name, current=True)
    damaged, whole_turn = [], True
    after = None
    for row in rows:
        told = _damage(connection, row.seq, after, Record(row.seq, row.at, row.type, row.job, row.body), row.crc)
        if told:
            damaged.append(told)
            whole_turn = whole_turn and row.turn == rows[0].turn
        after = row.seq
    return Inspected(name, True, (rows[0].seq, rows[0].at), len(rows), tuple(damaged), bool(damaged) and whole_turn)


def _damage(connection: Connection, seq: int, after: int | None, record: Record, crc: int) -> str:
    try:
        if after is not None and after != seq + 1:
            check_gap(connection, seq, after)
        if checksum(record.body) != crc:
            return f"message {seq} does not match its checksum"
        record.message  # noqa: B018  # it is read for what it may raise
    except BackendError as error:
        return str(error)
    return ""
