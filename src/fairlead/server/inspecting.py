"""A look at a database that changes nothing in it: is it ours, is it current, and is the end of its journal whole?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, make_url, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.journal import checksum
from fairlead.server import migrations
from fairlead.server.database import APPLICATION_ID, Database, Postgres, Sqlite, reason
from fairlead.server.journal import Record, check_gap
from fairlead.server.keys import without_password
from fairlead.server.tables import journal

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
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidSpec(f"{without_password(url)} is no database URL") from None
    database: Database
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if not path.exists() or path.stat().st_size == 0:
            return None
        database = Sqlite(path)
    else:
        database = Postgres(parsed.set(drivername="postgresql+psycopg"))
    try:
        with database.readers.connect() as connection:
            return _looked(connection, database.name, sqlite=isinstance(database, Sqlite))
    except SQLAlchemyError as error:
        raise BackendError(f"cannot read database {database.name}: {reason(error)}") from None
    finally:
        database.close()


def _looked(connection: Connection, name: str, *, sqlite: bool) -> Inspected:
    if sqlite and connection.exec_driver_sql("PRAGMA application_id").scalar_one() != APPLICATION_ID:
        raise InvalidSpec(f"{name} is an SQLite file, but not a Fairlead database")
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
