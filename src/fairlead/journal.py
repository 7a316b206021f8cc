"""The journal: everything that happened and was decided, in order, append-only, with one writer.

Three places, one form. In memory, for a simulation. A file: SQLite in WAL mode, which others can read while it is
written. And the database of a service, SQLite or PostgreSQL, whose table `journal` is the same; `read_journal` reads
all of them. Replaying a journal rebuilds an equal state.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.core.messages import JobSubmitted, Message, decode, encode
from fairlead.core.state import State
from fairlead.database_url import HIDDEN, is_postgres, without_password

#: What marks an SQLite file as a journal ("FLJ1") or as the database of a service ("FLS1"), which has one in it: a
#: service must not take a mere journal for its database. And the version of a journal's table.
APPLICATION_ID, SERVICE_ID = 0x464C4A31, 0x464C5331
SCHEMA_VERSION = 2

#: As in `server/tables.py`; a test compares the two.
_SCHEMA = """
CREATE TABLE journal (
    seq INTEGER NOT NULL PRIMARY KEY, turn INTEGER NOT NULL, at DOUBLE NOT NULL, type TEXT NOT NULL, job TEXT,
    body TEXT NOT NULL, crc BIGINT NOT NULL
)
"""
#: The database in a state directory, unless the service uses another.
STATE_DATABASE = "fairlead.db"

_INSERT = "INSERT INTO journal (seq, turn, at, type, job, body, crc) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT seq, body, crc FROM journal WHERE seq > {after} ORDER BY seq"
#: Version 1 had no checksums.
_SELECT_V1 = "SELECT seq, body, NULL FROM messages WHERE seq > {after} ORDER BY seq"


def to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def checksum(body: str) -> int:
    return zlib.crc32(body.encode())


def entry(message: Message) -> dict[str, Any]:
    """The columns of a message, but for its number and turn. Raises InvalidSpec if it has no JSON form."""
    body = to_json(encode(message))
    return {
        "at": message.at,
        "type": type(message).__name__,
        "job": message.spec.id if isinstance(message, JobSubmitted) else getattr(message, "job", None),
        "body": body,
        "crc": checksum(body),
    }


class MemoryJournal:
    """A list with the journal's manners."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        #: The journal's append; the list's own, because a simulation calls it a million times.
        self.append = self.messages.append

    def commit(self) -> None:
        """Nothing outlives this process anyway."""

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)


class FileJournal:
    """Writes a journal file. Use as a context manager; a second writer is refused while the first lives."""

    def __init__(self, path: Path) -> None:
        self._lock = _lock(path)
        try:
            self._db = _open_or_create(path)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise BackendError(f"cannot open journal {path}: {error}") from error
        except FairleadError:
            os.close(self._lock)
            raise
        self._pending: list[dict[str, Any]] = []

    def append(self, message: Message) -> None:
        self._pending.append(entry(message))

    def commit(self) -> None:
        """After this returns, a crash loses nothing appended before."""
        if not self._pending:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            (last,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()
            rows = ((seq, last + 1, *row.values()) for seq, row in enumerate(self._pending, start=last + 1))
            self._db.executemany(_INSERT, rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise BackendError(f"cannot write to the journal: {error}") from error
        self._pending.clear()

    def fold(self) -> None:
        """Commit, and give up the write-ahead file: one file holds everything, and reading it makes no other."""
        self.commit()
        self._db.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_journal(source: Path | str, *, after: int = 0) -> Iterator[tuple[int, Message]]:
    """Numbered messages, oldest first, beginning after number `after`. Safe while it is written.

    `source` is a journal file, the database of a service, a state directory that has one, or its PostgreSQL URL.
    """
    source = _database_in(Path(source)) if Path(source).is_dir() else source
    if is_postgres(source):
        yield from _read_postgres(str(source), after)
        return
    path = journal_file(source)
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        version = _journal_version(db, path)
        select = _SELECT_V1 if version == 1 else _SELECT
        rows = db.execute(select.format(after="?"), (after,))
        yield from _decoded(rows, str(path), after, _quarantined(db))
    except sqlite3.Error as error:
        raise InvalidSpec(f"{path} is not a readable journal: {error}") from error
    finally:
        db.close()


def journal_file(source: Path | str) -> Path:
    """The SQLite file of a journal, named by its path or as a URL. InvalidSpec if there is none."""
    if isinstance(source, str) and source.startswith("sqlite:///"):
        source = unquote(source.removeprefix("sqlite:///"))
    path = Path(source)
    if not path.is_file():
        raise InvalidSpec(f"there is no journal at {path}")
    return path


def _database_in(directory: Path) -> Path | str:
    """Where the service of a state directory has its journal: in another database, if it says so, else beside it."""
    named = ""
    with suppress(OSError, ValueError, AttributeError):
        named = json.loads((directory / "cluster.json").read_text(encoding="utf-8")).get("database", "")
    if HIDDEN in named:
        raise InvalidSpec(f"the service of {directory} uses {named}: name that database itself, with its password")
    if is_postgres(named) or (named and Path(named).is_file()):
        return named if is_postgres(named) else Path(named)
    if not (directory / STATE_DATABASE).is_file():
        raise InvalidSpec(
            f"{directory} is a directory without {STATE_DATABASE}; if it is of a service with another database, name "
            "that: postgresql://user@host/name"
        )
    return directory / STATE_DATABASE


def _quarantined(db: sqlite3.Connection) -> set[int]:
    """Numbers of messages that a service has taken out of its journal."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'quarantine'").fetchone() is None:
        return set()
    return {seq for (seq,) in db.execute("SELECT seq FROM quarantine")}


def _read_postgres(url: str, after: int) -> Iterator[tuple[int, Message]]:
    name, url = without_password(url), url.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        import psycopg
    except ImportError:
        raise InvalidSpec(f"to read {name}, install what PostgreSQL needs: pip install 'fairlead[postgres]'") from None
    try:
        # A cursor of the server: a long journal is not fetched as a whole.
        with psycopg.connect(url, connect_timeout=10) as db, db.cursor("fairlead_journal") as cursor:
            quarantined = {seq for (seq,) in db.execute("SELECT seq FROM quarantine").fetchall()}
            cursor.execute(_SELECT.format(after="%s"), (after,))
            yield from _decoded(cursor, name, after, quarantined)
    except psycopg.errors.UndefinedTable:
        raise InvalidSpec(f"{name} has no table `journal`; it is not the database of a Fairlead service") from None
    except psycopg.Error as error:
        raise InvalidSpec(f"{name} is not a readable journal: {str(error).strip()}") from error


def _decoded(rows: Iterable[Any], name: str, after: int, quarantined: set[int]) -> Iterator[tuple[int, Message]]:
    """Numbers have no gaps, but for messages in quarantine: a gap means that something was lost."""
    last = after
    for seq, body, crc in rows:
        if missing := [number for number in range(last + 1, min(seq, last + 1000)) if number not in quarantined]:
            raise InvalidSpec(f"{name}: message {missing[0]} is missing; the journal has a hole, restore a backup")
        last = seq
        if not isinstance(body, str) or (crc is not None and checksum(body) != crc):
            raise InvalidSpec(f"{name}, message {seq}: it is damaged, as its checksum tells; restore a backup")
        try:
            yield seq, decode(json.loads(body))
        except (InvalidSpec, ValueError, RecursionError) as error:
            raise InvalidSpec(f"{name}, message {seq}: {error}") from error


def replay(messages: Iterable[Message]) -> State:
    """The state a journal leads to."""
    state = State()
    for message in messages:
        state.replay(message)
    return state


def _open_or_create(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(_SCHEMA)
        _check_can_append(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _journal_version(db: sqlite3.Connection, path: Path) -> int:
    """Of its table; that of a service's database is today's."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application == SERVICE_ID:
        return SCHEMA_VERSION
    if application != APPLICATION_ID:
        raise InvalidSpec(f"{path} is an SQLite file, but neither a Fairlead journal nor the database of a service")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise InvalidSpec(f"{path} was written by a newer Fairlead (journal version {version}); upgrade to read it")
    return int(version)


def _check_can_append(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application == SERVICE_ID:
        raise InvalidSpec(f"{path} is the database of a service, which alone may write to it; choose another name")
    if (version := _journal_version(db, path)) < SCHEMA_VERSION:
        raise InvalidSpec(f"{path} is a journal of version {version}, which can be read only; choose another name")


def _lock(path: Path) -> int:
    """Hold the file next to the journal; the system lets go when this process ends, however it ends."""
    try:
        handle = os.open(_beside(path, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BackendError(f"cannot create journal {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BackendError(f"another process is writing {path}; a journal has one writer") from None
    return handle


def save_journal(path: Path, messages: Iterable[Message]) -> None:
    """Write a whole journal at once: afterwards the file is complete, or as it was before."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    lock = _lock(path) if _beside(path, ".lock").exists() else None
    try:
        with FileJournal(draft) as journal:
            for message in messages:
                journal.append(message)
            journal.fold()
        _clear_the_way(path)
        os.replace(draft, path)
    except OSError as error:
        raise BackendError(f"cannot write journal {path}: {error.strerror}") from error
    finally:
        for leftover in ("", "-wal", "-shm", ".lock"):
            _beside(draft, leftover).unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _clear_the_way(path: Path) -> None:
    """Fold what a killed writer left in its write-ahead file: SQLite would apply it to the file that comes instead."""
    if not _beside(path, "-wal").exists():
        return
    try:
        db = sqlite3.connect(path)
        (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        db.close()
    except sqlite3.Error as error:
        raise BackendError(f"cannot replace {path}: {error}") from error
    if busy:
        raise BackendError(f"cannot replace {path} while somebody reads it")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
