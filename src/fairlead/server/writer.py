"""The thread that writes: it carries out what everybody wants written, and commits once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.server.database import Database, reason

T = TypeVar("T")
Item = TypeVar("Item")

#: Carries out several wishes of a kind at once: one outcome for each, which may be an error of ours.
Together = Callable[[Connection, Sequence[Item]], Sequence[T | FairleadError]]

#: What is raised for a value that does not fit: text with a NUL, a number of more than 64 bits.
_NOT_STORABLE = (DataError, UnicodeError, OverflowError)

#: Operations that are committed together at most, so that none waits long for the others.
LARGEST_GROUP = 256

#: Seconds between the beginnings of two commits while several share them: the more wait, the less each of them costs.
GATHER_S = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    together: Together[Any, Any]
    item: Any
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
        result: T = self.begin(_one_by_one, operation).result()
        return result

    def begin(self, together: Together[Item, T], item: Item) -> Future[T]:
        """The same for one of many alike: those that wait next to each other are carried out in one call."""
        task = _Task(together, item)
        with self._gate:
            if self._closed:
                raise BackendError(f"database {self._database.name} is closed")
            self._tasks.put(task)
        return task.done

    def close(self) -> None:
        """Finish what was asked for, and end."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        more, began, sharing = True, -GATHER_S, False
        while more:
            batch = [self._tasks.get()]
            if sharing:
                time.sleep(max(0.0, began + GATHER_S - time.monotonic()))
            began = time.monotonic()
            while len(batch) < LARGEST_GROUP and not self._tasks.empty():
                batch.append(self._tasks.get())
            more, sharing = batch[-1] is not None, len(batch) > 1
            # One that nobody wants any more must not be among them when they are told what became of them.
            if tasks := [task for task in batch if task is not None and task.done.set_running_or_notify_cancel()]:
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
            carry_out = self._in_savepoints if guarded else self._in_the_open
            outcomes = carry_out(tasks, connection)
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

    def _in_the_open(self, tasks: list[_Task], connection: Connection) -> list[Any]:
        outcomes: list[Any] = []
        for together, alike in groupby(tasks, key=lambda task: task.together):
            outcomes += together(connection, [task.item for task in alike])
        return outcomes

    def _in_savepoints(self, tasks: list[_Task], connection: Connection) -> list[Any]:
        outcomes: list[Any] = []
        for task in tasks:
            self._execute("SAVEPOINT operation")
            try:
                outcomes += task.together(connection, [task.item])
            except FairleadError as refusal:
                self._execute("ROLLBACK TO SAVEPOINT operation")
                outcomes.append(refusal)
            self._execute("RELEASE SAVEPOINT operation")
        return outcomes

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


def _one_by_one(connection: Connection, operations: Sequence[Callable[[Connection], Any]]) -> list[Any]:
    return [operation(connection) for operation in operations]
