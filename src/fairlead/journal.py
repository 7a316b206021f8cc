"""The journal: everything that happened and was decided, in order, append-only, with one writer.

Two forms: in memory for a simulation, and an SQLite file in WAL mode, which others can read while it is written.
Replaying a journal rebuilds an equal state.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.core.messages import COMMANDS, Message, decode, encode
from fairlead.core.state import State

#: What marks an SQLite file as a journal ("FLJ1"), and the version of its tables.
APPLICATION_ID = 0x464C4A31
SCHEMA_VERSION = 1

_SCHEMA = "CREATE TABLE messages (seq INTEGER PRIMARY KEY, at REAL NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL)"


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
        self._pending: list[tuple[float, str, str]] = []

    def append(self, message: Message) -> None:
        body = json.dumps(encode(message), separators=(",", ":"), allow_nan=False)
        self._pending.append((message.at, type(message).__name__, body))

    def commit(self) -> None:
        """After this returns, a crash loses nothing appended before."""
        if not self._pending:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO messages (at, type, body) VALUES (?, ?, ?)", self._pending)
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


def read_journal(path: Path, *, after: int = 0) -> Iterator[tuple[int, Message]]:
    """Numbered messages of a journal file, oldest first, beginning after number `after`. Safe while it is written."""
    if not path.is_file():
        raise InvalidSpec(f"there is no journal at {path}")
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        _check_is_journal(db, path)
        for seq, body in db.execute("SELECT seq, body FROM messages WHERE seq > ? ORDER BY seq", (after,)):
            try:
                yield seq, decode(json.loads(body))
            except (InvalidSpec, ValueError, RecursionError) as error:
                raise InvalidSpec(f"{path}, message {seq}: {error}") from error
    except sqlite3.Error as error:
        raise InvalidSpec(f"{path} is not a readable journal: {error}") from error
    finally:
        db.close()


def replay(messages: Iterable[Message]) -> State:
    """The state a journal leads to."""
    state = State()
    for message in messages:
        if isinstance(message, COMMANDS):
            state.issue(message)  # type: ignore[arg-type]  # COMMANDS is the union as a tuple
        else:
            state.apply(message)  # type: ignore[arg-type]
    return state


def _open_or_create(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(_SCHEMA)
        _check_is_journal(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _check_is_journal(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise InvalidSpec(f"{path} is an SQLite file, but not a Fairlead journal")
    if version > SCHEMA_VERSION:
        raise InvalidSpec(f"{path} was written by a newer Fairlead (journal version {version}); upgrade to read it")


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
