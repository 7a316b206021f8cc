"""The tables of the store, the two databases that can hold them, SQLite and PostgreSQL, and the thread that writes.

A change of a table needs a migration beside it; a test compares the two. JSON is kept as text, because everything in
it is read and written whole. Times are seconds since 1970.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    NullPool,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, SQLAlchemyError

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.server import migrations

T = TypeVar("T")

#: SQLite counts up by itself only in a column that is called INTEGER, which holds 64 bits there.
Number = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_index",
    }
)

#: Everything that happened and was decided. Numbers have no gaps, but for what is in quarantine.
journal = Table(
    "journal",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    #: Number of the first message of the same commit. A commit is kept or given up as a whole.
    Column("turn", Number, nullable=False),
    Column("at", Double, nullable=False),
    Column("type", Text, nullable=False),
    #: The job it is about, if it is about one.
    Column("job", Text, nullable=True),
    Column("body", Text, nullable=False),
    #: crc32 of the body.
    Column("crc", BigInteger, nullable=False),
    Index(None, "job", "seq"),
)

#: Messages that were taken out of the journal. Their numbers are not given again.
quarantine = Table(
    "quarantine",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("type", Text, nullable=False),
    Column("job", Text, nullable=True),
    Column("body", Text, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
)

#: How far the loop has read its sources, in step with the journal. The highest `seq` of a key counts; older ones are
#: kept for a journal that loses its end, and no value means that the key is gone.
marks = Table(
    "marks",
    metadata,
    Column("key", Text, primary_key=True),
    #: The last message of the journal when the mark was made.
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("value", Text, nullable=True),
)

#: States of the loop, each as after message `seq`.
snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    #: Compressed JSON, and the crc32 of these bytes.
    Column("body", LargeBinary, nullable=False),
    Column("crc", BigInteger, nullable=False),
)

#: What users asked for, in order. The loop reads on at its mark.
requests = Table(
    "requests",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("user", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

#: One row for each job file that was handed in, whatever the number of jobs it makes. Never deleted: the next job's
#: number is one more than the highest here.
submissions = Table(
    "submissions",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("request", Number, ForeignKey("requests.seq"), nullable=False),
    Column("user", Text, nullable=False),
    Column("idempotency_key", Text, nullable=True),
    Column("digest", Text, nullable=False),
    UniqueConstraint("user", "idempotency_key"),
)

#: Jobs as they were handed in, and how they ended. What they do in between is in the journal.
jobs = Table(
    "jobs",
    metadata,
    #: Order of arrival.
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("number", Number, ForeignKey("submissions.number"), nullable=False, index=True),
    #: Which of an array.
    Column("element", Number, nullable=True),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("secrets", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("phase", Text, nullable=True),
    Column("ended_at", Double, nullable=True),
    Column("outcome", Text, nullable=True),
    Index(None, "user", "seq"),
    Index(None, "queue", "seq"),
    sqlite_autoincrement=True,
)

#: What is worth telling about a job and is not in the journal.
notes = Table(
    "notes",
    metadata,
    Column("seq", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("job", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index(None, "job", "seq"),
    sqlite_autoincrement=True,
)

users = Table(
    "users",
    metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("disabled", Boolean, nullable=False),
)

#: The one row that says who may write the journal.
controller = Table(
    "controller",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    #: Goes up with each controller; only the last one writes.
    Column("epoch", Number, nullable=False),
    Column("who", Text, nullable=False),
    Column("since", Double, nullable=False),
)


# -- the databases ---------------------------------------------------------------------------------------------------

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


def find_database(url: str) -> Database:
    """The database of an SQLAlchemy URL, with all its tables in place."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidSpec(f"a database URL is like {_EXAMPLES}; what was given cannot be read") from None
    kind = parsed.get_backend_name()
    database: Database
    if kind == "sqlite" and parsed.database and parsed.database != ":memory:" and not parsed.query:
        database = Sqlite(Path(parsed.database).absolute())
    elif kind == "postgresql":
        database = Postgres(parsed.set(drivername="postgresql+psycopg"))
    else:
        raise InvalidSpec(f"database {parsed.render_as_string(hide_password=True)!r} is not supported; use {_EXAMPLES}")
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


#: What is raised for a value that does not fit: text with a NUL, a number of more than 64 bits.
_NOT_STORABLE = (DataError, UnicodeError, OverflowError)


def reason(error: Exception) -> str:
    """What the database itself said, on one line."""
    words = str(getattr(error, "orig", None) or error).strip()
    return words.splitlines()[0] if words else type(error).__name__


# -- the writer ------------------------------------------------------------------------------------------------------

#: Operations that are committed together at most, so that none waits long for the others.
LARGEST_GROUP = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    operation: Callable[[Connection], Any]
    done: Future[Any] = field(default_factory=Future)


class Writer:
    """One thread with the only connection that writes. It carries out all operations that wait, and commits once.

    An operation is a function of the connection that can be carried out again, should the first attempt come to
    nothing. One that refuses with an error of ours leaves no trace and does not harm the others.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._gate = Lock()  # nothing is put behind the None that ends the queue
        self._closed = False
        self._connection: Connection | None = None
        self._thread = Thread(target=self._serve, name="fairlead-writer", daemon=True)
        self._thread.start()

    def run(self, operation: Callable[[Connection], T]) -> T:
        """The operation's result, once it is committed."""
        task = _Task(operation)
        with self._gate:
            if self._closed:
                raise BackendError(f"database {self._database.name} is closed")
            self._tasks.put(task)
        result: T = task.done.result()
        return result

    def close(self) -> None:
        """Finish what was asked for, and end."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        more = True
        while more:
            batch = [self._tasks.get()]
            while len(batch) < LARGEST_GROUP and not self._tasks.empty():
                batch.append(self._tasks.get())
            more = batch[-1] is not None
            if tasks := [task for task in batch if task is not None]:
                self._commit(tasks)
        self._disconnect()

    def _commit(self, tasks: list[_Task], *, guarded: bool = False) -> bool:
        """Complete all tasks. False if the database could not be reached for it."""
        try:
            connection = self._begin()
        except Exception as error:
            self._fail(tasks, error)
            return False
        try:
            carry_out = self._in_savepoint if guarded else self._in_the_open
            outcomes = [carry_out(task, connection) for task in tasks]
        except Exception as error:
            self._roll_back()
            if len(tasks) > 1:
                # As few refuse, and savepoints cost two more trips to the database each, it was tried without.
                if isinstance(error, FairleadError) and not guarded:
                    return self._commit(tasks, guarded=True)
                return self._commit_one_by_one(tasks)
            self._fail(tasks, error)
            return True
        try:
            self._execute("COMMIT")
        except Exception as error:
            self._roll_back()
            lost = isinstance(error, DBAPIError) and error.connection_invalidated
            self._fail(tasks, error, "; whether it was written is not known" if lost else "")
            return True
        for task, outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, FairleadError):
                task.done.set_exception(outcome)
            else:
                task.done.set_result(outcome)
        return True

    def _commit_one_by_one(self, tasks: list[_Task]) -> bool:
        """Something made the transaction unfit for all: find out whose fault it was."""
        for number, task in enumerate(tasks, 1):
            if not self._commit([task]):
                self._fail(tasks[number:], BackendError(f"cannot reach database {self._database.name}"))
                return False
        return True

    def _begin(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.connect()
        try:
            for statement in self._database.begin:
                self._execute(statement)
        except Exception:
            self._roll_back()
            raise
        return self._connection

    def _in_the_open(self, task: _Task, connection: Connection) -> Any:
        return task.operation(connection)

    def _in_savepoint(self, task: _Task, connection: Connection) -> Any:
        self._execute("SAVEPOINT operation")
        try:
            outcome = task.operation(connection)
        except FairleadError as refusal:
            self._execute("ROLLBACK TO SAVEPOINT operation")
            outcome = refusal
        self._execute("RELEASE SAVEPOINT operation")
        return outcome

    def _execute(self, statement: str) -> None:
        assert self._connection is not None
        self._connection.exec_driver_sql(statement)

    def _roll_back(self) -> None:
        """Keep the connection if it is sound: in PostgreSQL, being the controller depends on it."""
        try:
            self._execute("ROLLBACK")
        except Exception:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
            self._connection = None

    def _fail(self, tasks: list[_Task], error: Exception, more: str = "") -> None:
        for task in tasks:
            told = self._told(error, more)
            if told is not error:
                told.__cause__ = error
            task.done.set_exception(told)

    def _told(self, error: Exception, more: str) -> Exception:
        if isinstance(error, _NOT_STORABLE):
            return InvalidSpec(f"database {self._database.name} cannot hold what was given: {reason(error)}")
        if isinstance(error, SQLAlchemyError):
            return BackendError(f"cannot write to database {self._database.name}: {reason(error)}{more}")
        return error
