"""A database copied into another one, of the other kind if need be: every row, or nothing.

The copy is of the same cluster, and continues it. The source is not changed, and no server may use it meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, insert, select, tuple_
from sqlalchemy.exc import DataError, SQLAlchemyError

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.database_url import without_password
from fairlead.server.database import Database, Postgres, find_database, open_database, reason, taken
from fairlead.server.inspecting import find_record, inspect, refuse_second_controller
from fairlead.server.tables import cluster, controller, metadata

#: Rows that are in memory at a time.
_ROWS = 2000


def copy_database(source_url: str, target_url: str) -> dict[str, int]:
    """How many rows of each table were copied. Raises InvalidSpec or BackendError, with an empty target."""
    _check_source(source_url)
    _check_target(target_url)
    with ExitStack() as stack:
        source, target = open_database(source_url), find_database(target_url)
        stack.callback(source.close)
        stack.callback(target.close)
        try:
            reading = stack.enter_context(source.connect())
            if not source.hold(reading):
                raise taken(source, reading)
            stack.callback(source.let_go, reading)
            return _copy(reading, target)
        except DataError as error:
            raise InvalidSpec(f"database {target.name} cannot hold what is in {source.name}: {reason(error)}") from None
        except SQLAlchemyError as error:
            raise BackendError(f"cannot copy {source.name} to {target.name}: {reason(error)}") from None


def _check_source(url: str) -> None:
    found = inspect(url)
    if found is None:
        raise InvalidSpec(f"there is no database to copy at {without_password(url)}")
    if not found.current:
        raise InvalidSpec(
            f"database {found.name} is of an older version, or empty; start a server on it once, then copy"
        )
    if wrong := found.broken or found.damaged:
        raise BackendError(f"database {found.name} is damaged, and not copied: {wrong[0]}. Restore a backup first")


def _check_target(url: str) -> None:
    found = find_record(url, None, token_hash=None)
    if found is not None and found.used:
        raise InvalidSpec(f"database {found.name} holds a cluster already ({found.identity}); choose an empty one")
    refuse_second_controller(url)


def _copy(reading: Connection, target: Database) -> dict[str, int]:
    with target.connect() as writing:
        for statement in target.begin:
            writing.exec_driver_sql(statement)
        try:
            for table in (cluster, controller):  # of a database that was only just made
                writing.execute(delete(table))
            counts = {table.name: _copy_table(reading, writing, table) for table in metadata.sorted_tables}
            if isinstance(target, Postgres):
                _set_sequences(writing)
        except BaseException:
            writing.exec_driver_sql("ROLLBACK")
            raise
        writing.exec_driver_sql("COMMIT")
    return counts


def _copy_table(reading: Connection, writing: Connection, table: Table) -> int:
    for rows in _pages(reading, table):
        writing.execute(insert(table), [dict(row._mapping) for row in rows])
    before, after = _sum(reading, table), _sum(writing, table)
    if before != after:
        raise BackendError(f"table {table.name} is not the same in the copy: nothing was kept of it")
    return before[0]


def _pages(connection: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    key = tuple_(*table.primary_key)
    statement = select(table).order_by(*table.primary_key).limit(_ROWS)
    rows = connection.execute(statement).all()
    while rows:
        yield rows
        last = tuple(rows[-1]._mapping[column.name] for column in table.primary_key)
        rows = connection.execute(statement.where(key > tuple_(*last))).all()


def _sum(connection: Connection, table: Table) -> tuple[int, int]:
    """How many rows, and a sum over their contents, whatever order the database keeps them in."""
    count = total = 0
    for rows in _pages(connection, table):
        count += len(rows)
        total += sum(zlib.crc32(repr(tuple(row)).encode()) for row in rows)
    return count, total


def _set_sequences(connection: Connection) -> None:
    """PostgreSQL counts on from the last number that it gave, not from the highest in the table."""
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            last = connection.execute(select(func.coalesce(func.max(column), 0))).scalar_one()
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            connection.execute(select(func.setval(sequence, max(1, last), last > 0)))
