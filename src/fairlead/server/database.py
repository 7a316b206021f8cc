"""The two databases that can hold the tables, SQLite and PostgreSQL: how they are opened, and who may control them."""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.server import migrations

T = TypeVar("T")

#: What marks an SQLite file as ours ("FLS1").
APPLICATION_ID = 0x464C5331
#: The numbers of PostgreSQL's advisory locks: of the controller, and of whoever writes just now.
_CONTROLLER_LOCK, _WRITER_LOCK = 0x464C5331_00000001, 0x464C5331_00000002
_PATIENCE_S = 10


class Database(Protocol):
    """Where the tables are, and how one writer at a time and one controller at a time are made sure of.

    Every connection is in autocommit mode: readers see what is committed, and a writer says `begin` itself.
    """

    #: For messages; without a password.
    name: str
    #: Of those who only read.
    readers: Engine
    #: What opens a transaction that no other writer's overlaps, so that numbers are given in the order of commits.
    begin: tuple[str, ...]

    def connect(self) -> Connection:
        """A connection that may write."""

    def hold(self, connection: Connection) -> bool:
        """Try to become the only controller; it ends with this process or, in PostgreSQL, with this connection."""

    def holds(self, connection: Connection) -> bool: ...

    def let_go(self, connection: Connection) -> None: ...

    def close(self) -> None: ...


class Sqlite:
    """A file in WAL mode, with a lock file beside it."""

    begin: tuple[str, ...] = ("BEGIN IMMEDIATE",)

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._lock: int | None = None
        self._lock_path = path.with_name(path.name + ".lock")
        try:  # nobody else's business: there are users' secrets in it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise BackendError(f"cannot open database {path}: {error.strerror}") from error
        url = URL.create("sqlite", database=str(path))
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "connect_args": {"timeout": _PATIENCE_S}}
        self.readers = create_engine(url, pool_size=8, max_overflow=56, pool_reset_on_return=None, **options)
        event.listen(self.readers, "connect", partial(_pragmas, "query_only = ON"))
        self._writers = create_engine(url, poolclass=NullPool, **options)
        event.listen(self._writers, "connect", partial(_pragmas, "synchronous = FULL", "foreign_keys = ON"))

    def connect(self) -> Connection:
        connection = self._writers.connect()
        try:
            tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
            application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
            if tables and application != APPLICATION_ID:
                raise InvalidSpec(f"{self.name} is an SQLite file, but not a Fairlead database; choose another name")
            if not tables:
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def hold(self, connection: Connection) -> bool:
        try:
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BackendError(f"cannot lock database {self.name} with {self._lock_path}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def holds(self, connection: Connection) -> bool:
        return self._lock is not None

    def let_go(self, connection: Connection) -> None:
        self._drop_lock()

    def close(self) -> None:
        self._drop_lock()
        self.readers.dispose()
        self._writers.dispose()

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _pragmas(*pragmas_and_event: Any) -> None:
    """Set up a new SQLite connection; the event passes the connection and its record after the pragmas."""
    *pragmas, connection, _ = pragmas_and_event
    # Damaged text is read as it is, so that its checksum can say which message it was.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


class Postgres:
    """A PostgreSQL database. Being the controller belongs to the connection that writes: without it, no write."""

    begin: tuple[str, ...] = ("BEGIN", f"SELECT pg_advisory_xact_lock({_WRITER_LOCK})")

    def __init__(self, url: URL) -> None:
        self.name = url.render_as_string(hide_password=True)
        self._holder: Connection | None = None
        # Whichever side loses the other without a word notices within a minute, and the lock is free again.
        wanted: dict[str, Any] = {
            "application_name": "fairlead",
            "connect_timeout": _PATIENCE_S,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "options": "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3",
        }
        options: dict[str, Any] = {
            "isolation_level": "AUTOCOMMIT",
            "connect_args": {key: value for key, value in wanted.items() if key not in url.query},
        }
        try:
            self.readers = create_engine(url, pool_size=8, max_overflow=24, pool_pre_ping=True, **options)
            self._writers = create_engine(url, poolclass=NullPool, **options)
        except ImportError as error:
            raise InvalidSpec(f"{error.name} is missing; install it with: pip install 'fairlead[postgres]'") from None

    def connect(self) -> Connection:
        connection = self._writers.connect()
        # An answer to a user means that it is on disk, whatever the server's default is.
        connection.exec_driver_sql(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        return connection

    def hold(self, connection: Connection) -> bool:
        if connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_CONTROLLER_LOCK})").scalar_one():
            self._holder = connection
        return self._holder is connection

    def holds(self, connection: Connection) -> bool:
        return self._holder is connection

    def let_go(self, connection: Connection) -> None:
        if self.holds(connection):
            self._holder = None
            connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_CONTROLLER_LOCK})")

    def close(self) -> None:
        self.readers.dispose()
        self._writers.dispose()


def open_database(url: str) -> Sqlite | Postgres:
    """The database of an SQLAlchemy URL, as it is. A file that is not there is made, and is empty."""
    parsed = _parse(url)
    if (path := sqlite_path(url)) is not None:
        return Sqlite(path)
    if parsed.get_backend_name() == "postgresql":
        return Postgres(parsed.set(drivername="postgresql+psycopg"))
    raise InvalidSpec(f"database {parsed.render_as_string(hide_password=True)!r} is not supported; use {_EXAMPLES}")


def sqlite_path(url: str) -> Path | None:
    """The file that a URL names; None if it names no file."""
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database and parsed.database != ":memory:" and not parsed.query:
        return Path(parsed.database).absolute()
    return None


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        raise InvalidSpec(f"a database URL is like {_EXAMPLES}; what was given cannot be read") from None


def find_database(url: str) -> Database:
    """The same, with all its tables in place."""
    database = open_database(url)
    try:
        _migrate(database)
    except SQLAlchemyError as error:
        database.close()
        raise BackendError(f"cannot open database {database.name}: {reason(error)}") from error
    except FairleadError:
        database.close()
        raise
    return database


_EXAMPLES = "sqlite:////var/lib/fairlead/fairlead.db or postgresql://user@host/name"


def _migrate(database: Database) -> None:
    with database.connect() as connection:
        if migrations.is_current(connection):
            return
        for statement in database.begin:
            connection.exec_driver_sql(statement)
        try:
            migrations.upgrade(connection)
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")


def taken(database: Database, connection: Connection) -> BackendError:
    """What to say to a second controller."""
    who, since = connection.exec_driver_sql("SELECT who, since FROM controller").one()
    at = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return BackendError(
        f"another controller uses database {database.name}: {who}, since {at}. There can be only one: stop that one "
        "first, or give this one a database of its own"
    )


def is_disk_full(error: BaseException) -> bool:
    """As SQLite and PostgreSQL say it."""
    return any(words in str(error) for words in ("disk is full", "No space left on device"))


def reason(error: Exception) -> str:
    """What the database itself said, on one line."""
    words = str(getattr(error, "orig", None) or error).strip()
    return words.splitlines()[0] if words else type(error).__name__
