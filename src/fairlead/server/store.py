"""What outlives the process: the journal, the wishes of users, their jobs, and who may write.

Three rules of this file:
1. All writing goes through one thread, which commits for everybody who waits. Whoever returns from a method that
   writes, has it on disk; a method that raises has written nothing, unless the error says that this is not known.
2. Reading never waits for writing, nor writing for reading.
3. What only the controller may write is refused once another has claimed the store, or the lock was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import time
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.exc import SQLAlchemyError

from fairlead.core.errors import BackendError, FairleadError, InvalidSpec
from fairlead.core.messages import Message
from fairlead.journal import checksum, entry, to_json
from fairlead.server import journal as records
from fairlead.server.database import Database, find_database, reason, taken
from fairlead.server.journal import Record
from fairlead.server.tables import cluster, controller, jobs, journal, notes, requests, submissions, users
from fairlead.server.writer import Writer

T = TypeVar("T")


class Conflict(InvalidSpec):
    """What was asked contradicts what is already there."""


class NotController(BackendError):
    """Somebody else is, or nobody is any more: whoever gets this has to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that has no id yet. Jobs of an array have an element each; a job alone has none."""

    name: str
    queue: str
    document: Mapping[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    element: int | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission: the jobs' ids, whether they are new, and the number of the request."""

    ids: tuple[str, ...]
    fresh: bool
    seq: int


@dataclass(frozen=True, slots=True)
class Request:
    """A wish of a user, as the loop reads it. Of kind "submit" the body has the new jobs' `ids`."""

    seq: int
    at: float
    user: str
    kind: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it was handed in and, once it has ended, how."""

    #: Order of arrival: what `list_jobs` goes on before.
    seq: int
    id: str
    number: int
    element: int | None
    user: str
    name: str
    queue: str
    document: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)
    submitted_at: float
    phase: str | None
    ended_at: float | None
    outcome: dict[str, Any] | None
    #: What its directory has to carry; None for jobs that came before this was kept.
    submission: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth telling about a job."""

    seq: int
    at: float
    job: str
    kind: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may use the server. The token itself is nowhere."""

    name: str
    role: str
    token_hash: str = field(repr=False)
    created_at: float
    disabled: bool


# -- the store -------------------------------------------------------------------------------------------------------

_STANDING = select(controller.c.epoch, controller.c.who, records.LAST_IN_JOURNAL, records.LAST_IN_QUARANTINE)
_CLAIM = update(controller).values(epoch=controller.c.epoch + 1, who=bindparam("by"), since=bindparam("now"))

_PAGE = 2000
_RECORD = select(journal.c.seq, journal.c.at, journal.c.type, journal.c.job, journal.c.body, journal.c.crc).limit(
    bindparam("size")
)
_BETWEEN = _RECORD.where(journal.c.seq > bindparam("low"), journal.c.seq < bindparam("high"))
_OF_JOB = _BETWEEN.where(journal.c.job == bindparam("of"))
#: (of one job, newest first) -> a page of records.
_PAGES = {
    (of_job, newest_first): statement.order_by(journal.c.seq.desc() if newest_first else journal.c.seq)
    for of_job, statement in ((False, _BETWEEN), (True, _OF_JOB))
    for newest_first in (False, True)
}

_INSERT_REQUEST = insert(requests)
_REQUESTS = select(requests).where(requests.c.seq > bindparam("after")).order_by(requests.c.seq)
_INSERT_SUBMISSION = insert(submissions)
#: The last numbers given to a request and to a job. No other writer gives any meanwhile.
_LAST_NUMBERS = select(
    select(func.coalesce(func.max(requests.c.seq), 0)).scalar_subquery(),
    select(func.coalesce(func.max(submissions.c.number), 0)).scalar_subquery(),
)
_OF_KEYS = select(submissions).where(
    tuple_(submissions.c.user, submissions.c.idempotency_key).in_(bindparam("keys", expanding=True))
)
_IDS = select(jobs.c.id).where(jobs.c.number == bindparam("of")).order_by(jobs.c.seq)
_INSERT_JOB = insert(jobs)
_END_JOB = update(jobs).where(jobs.c.id == bindparam("of"))
_JOB = select(jobs).where(jobs.c.id == bindparam("of"))
_JOBS = select(jobs).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_INSERT_NOTE = insert(notes)
_NOTES = (
    select(notes)
    .where(notes.c.job == bindparam("of"), notes.c.seq > bindparam("after"))
    .order_by(notes.c.seq)
    .limit(bindparam("size"))
)


class Store:
    """A database with everything in it. Any thread may call it; the journal is the controller's alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = Writer(database)
        self._epoch: int | None = None  # ours, since we claimed
        #: The highest job number that was ever given, where that is known to be more than the database knows of.
        self.floor = 0
        #: Hears of the highest number before it is given to a job for good; what it raises refuses the submission.
        self.on_number: Callable[[int], None] = lambda number: None  # noqa: ARG005

    @classmethod
    def open(cls, url: str) -> Self:
        """Make or find the tables at `url`: sqlite:////absolute/path or postgresql://user@host/name."""
        return cls(find_database(url))

    def close(self) -> None:
        """Finish what is being written, and let go of everything."""
        if self._epoch is not None:  # PostgreSQL takes its time to notice that somebody has left
            with suppress(FairleadError):
                self._writer.run(self._database.let_go)
        self._writer.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._database.readers.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise BackendError(f"cannot read database {self._database.name}: {reason(error)}") from error

    # -- one cluster --

    @property
    def name(self) -> str:
        """For messages; without a password."""
        return self._database.name

    def identity(self) -> str:
        """Of the cluster it belongs to."""
        with self._reading() as connection:
            return str(connection.execute(select(cluster.c.identity)).scalar_one())

    def settle(self, **columns: str) -> None:
        """Note what cluster it belongs to, and which state directory uses it."""
        self._writer.run(lambda connection: connection.execute(update(cluster).values(columns)))

    # -- one controller --

    def claim(self, *, who: str) -> int:
        """Become the controller until this process ends or `close`. `who` tells others: host and process."""
        try:
            epoch = self._epoch = self._writer.run(lambda connection: self._take(connection, who))
        except Exception:
            if self._epoch is None:  # a lock without an epoch is in everybody's way
                with suppress(FairleadError):
                    self._writer.run(self._database.let_go)
            raise
        return epoch

    def _take(self, connection: Connection, who: str) -> int:
        if not self._database.holds(connection):
            self._epoch = None
        if self._epoch is not None or not (self._database.holds(connection) or self._database.hold(connection)):
            raise taken(self._database, connection)
        connection.execute(_CLAIM, {"by": who, "now": time()})
        return int(connection.execute(select(controller.c.epoch)).scalar_one())

    def _fence(self, connection: Connection, epoch: int | None) -> int:
        """Refuse anybody but the controller. The last number of the journal."""
        row = connection.execute(_STANDING).one()
        if epoch is None or (row.epoch == epoch and not (self._epoch == epoch and self._database.holds(connection))):
            raise NotController(
                f"this process is not the controller of database {self._database.name}, or no longer since it lost its "
                "connection: claim it first, or start the controller again"
            )
        if row.epoch != epoch:
            raise NotController(
                f"another controller has taken over database {self._database.name}: {row.who}. This one may no longer "
                f"write (it has epoch {epoch} of {row.epoch}); stop it"
            )
        return int(max(row[2], row[3]))

    # -- the journal --

    def write(self, messages: Sequence[Message], marks: Mapping[str, str | None], *, epoch: int) -> int:
        """One turn of the loop: all of it or nothing. The number of the last message."""
        return self.write_entries([entry(message) for message in messages], marks, epoch=epoch)

    def write_entries(
        self, entries: Sequence[Mapping[str, Any]], marks: Mapping[str, str | None], *, epoch: int
    ) -> int:
        """The same for messages that went through `journal.entry`."""
        return self._writer.run(
            lambda connection: records.write(connection, entries, marks, last=self._fence(connection, epoch))
        )

    def records(
        self, after: int = 0, *, job: str | None = None, limit: int | None = None, newest_first: bool = False
    ) -> Iterator[Record]:
        """Records with a number above `after`, checked; of one job, if given. What is written meanwhile is read too."""
        low, high, left = after, 2**62, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = self._page(job, newest_first, {"low": low, "high": high, "of": job, "size": size})
            yield from page
            if len(page) < size:
                return
            left = None if left is None else left - size
            low, high = (low, page[-1].seq) if newest_first else (page[-1].seq, high)

    def _page(self, job: str | None, newest_first: bool, span: Mapping[str, Any]) -> list[Record]:
        gapless = job is None and not newest_first
        page, before = [], span["low"]
        with self._reading() as connection:
            rows = connection.execute(_PAGES[job is not None, newest_first], span).all()
            for seq, at, kind, about, body, crc in rows:
                if checksum(body) != crc:
                    raise records.damaged(seq, records.WRONG_CHECKSUM)
                if gapless and seq != before + 1:
                    records.check_gap(connection, before, seq)
                page.append(Record(seq, at, kind, about, body))
                before = seq
        return page

    def read(
        self, after: int = 0, *, job: str | None = None, limit: int | None = None, newest_first: bool = False
    ) -> Iterator[tuple[int, Message]]:
        """Numbered messages, as `records` finds them."""
        for record in self.records(after, job=job, limit=limit, newest_first=newest_first):
            yield record.seq, record.message

    def last_seq(self) -> int:
        """The highest number given to a message, be it in the journal or in quarantine."""
        with self._reading() as connection:
            return records.last_seq(connection)

    def marks(self) -> dict[str, str]:
        with self._reading() as connection:
            return records.read_marks(connection)

    def mend(self) -> list[str]:
        """Put aside what is damaged at the end of the journal, and say what was done. For a controller that starts.

        A damaged record in the middle raises BackendError, here or while it is read: a person has to decide.
        """
        return self._controlling(records.mend)

    def truncate(self, seq: int) -> int:
        """Give up everything after message `seq`, into quarantine. The last message that is left."""
        return self._controlling(lambda connection: records.truncate(connection, seq))

    def save_snapshot(self, seq: int, state: Mapping[str, Any]) -> None:
        """Keep the state after message `seq`, so that a start need not replay what came before."""
        body = records.pack(state)

        def save(connection: Connection) -> None:
            if seq > (last := records.last_seq(connection)):
                raise InvalidSpec(f"a snapshot after message {seq} is not possible; the last message is {last}")
            records.save_snapshot(connection, seq, body)

        self._controlling(save)

    def latest_snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """The newest snapshot that is whole."""
        with self._reading() as connection:
            return records.latest_snapshot(connection)

    def _controlling(self, operation: Callable[[Connection], T]) -> T:
        def fenced(connection: Connection) -> T:
            self._fence(connection, self._epoch)
            return operation(connection)

        return self._writer.run(fenced)

    # -- wishes of users --

    def submit(
        self, rows: Sequence[NewJob], *, user: str, at: float, key: str | None, digest: str
    ) -> Future[Submitted]:
        """Take in a job, or all jobs of an array. The same user's same `key` is the same submission.

        `digest` tells whether it really is: with another one, Conflict is raised.
        """
        elements = [row.element for row in rows]
        if not rows or len(set(elements)) < len(rows) or (None in elements and len(rows) > 1):
            raise InvalidSpec(f"a submission is one job, or an array of different elements; got elements {elements}")
        identity = str(uuid4())
        ready = [
            {
                "element": row.element,
                "user": user,
                "name": row.name,
                "queue": row.queue,
                "document": to_json(row.document),
                "secrets": to_json(row.secrets),
                "submitted_at": at,
                "submission": identity,
            }
            for row in rows
        ]
        return self._writer.begin(self._take_in, _Submission(ready, user, at, key, digest))

    def _take_in(self, connection: Connection, wanted: Sequence[_Submission]) -> list[Submitted | FairleadError]:
        outcomes, last = _take_in(connection, wanted, after=self.floor)
        self.on_number(last)
        return outcomes

    def submission(self, user: str, key: str) -> tuple[str, Submitted] | None:
        """What was submitted before under this key: its digest, and what became of it."""
        with self._reading() as connection:
            return _of_keys(connection, [(user, key)]).get((user, key))

    def request(self, kind: str, *, user: str, at: float, body: Mapping[str, Any]) -> int:
        """Take in any other wish; its number."""
        values = {"at": at, "user": user, "kind": kind, "body": to_json(body)}

        def take_in(connection: Connection) -> int:
            seq = int(connection.execute(_LAST_NUMBERS).one()[0]) + 1
            connection.execute(_INSERT_REQUEST, [{"seq": seq, **values}])
            return seq

        return self._writer.run(take_in)

    def requests(self, after: int = 0) -> list[Request]:
        with self._reading() as connection:
            rows = connection.execute(_REQUESTS, {"after": after}).all()
        return [Request(row.seq, row.at, row.user, row.kind, json.loads(row.body)) for row in rows]

    # -- documents and history --

    def job(self, job_id: str) -> JobRow | None:
        with self._reading() as connection:
            row = connection.execute(_JOB, {"of": job_id}).first()
        return None if row is None else _job_row(row)

    def jobs(self, ids: Iterable[str]) -> dict[str, JobRow]:
        """The jobs of these ids that there are."""
        wanted, found = list(ids), {}
        with self._reading() as connection:
            for start in range(0, len(wanted), 500):
                for row in connection.execute(_JOBS, {"ids": wanted[start : start + 500]}):
                    found[row.id] = _job_row(row)
        return found

    def list_jobs(
        self,
        *,
        user: str | None = None,
        queue: str | None = None,
        phase: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        """Newest first. `before` is the `seq` of the last one of the page before; `phase` is known of ended jobs."""
        statement = select(jobs).order_by(jobs.c.seq.desc()).limit(limit)
        for column, value in ((jobs.c.user, user), (jobs.c.queue, queue), (jobs.c.phase, phase)):
            if value is not None:
                statement = statement.where(column == value)
        if before is not None:
            statement = statement.where(jobs.c.seq < before)
        with self._reading() as connection:
            return [_job_row(row) for row in connection.execute(statement)]

    def end_job(self, job_id: str, *, phase: str, at: float, outcome: Mapping[str, Any]) -> None:
        """Record how a job ended. Done again, the last one counts."""
        values = {"phase": phase, "ended_at": at, "outcome": to_json(outcome)}

        def end(connection: Connection) -> None:
            if connection.execute(_END_JOB.values(values), {"of": job_id}).rowcount == 0:
                raise InvalidSpec(f"there is no job {job_id!r}")

        self._writer.run(end)

    def elements(self, number: int) -> tuple[str, ...]:
        """The ids of the jobs that were handed in together under this number, in order; none if there are none."""
        with self._reading() as connection:
            return tuple(connection.execute(_IDS, {"of": number}).scalars())

    def note(self, of: Iterable[str], kind: str, at: float, body: Mapping[str, Any]) -> None:
        """The same about each of some jobs."""
        values = {"kind": kind, "at": at, "body": to_json(body)}
        rows = [{"job": job, **values} for job in of]
        self._writer.run(lambda connection: connection.execute(_INSERT_NOTE, rows))

    def notes(self, job: str, after: int = 0, limit: int = 1000) -> list[Note]:
        with self._reading() as connection:
            rows = connection.execute(_NOTES, {"of": job, "after": after, "size": limit}).all()
        return [Note(row.seq, row.at, row.job, row.kind, json.loads(row.body)) for row in rows]

    # -- users --

    def put_user(self, user: User) -> None:
        """Add a user, or replace the one of that name. No two have the same token."""

        def put(connection: Connection) -> None:
            other = connection.execute(
                select(users.c.name).where(users.c.token_hash == user.token_hash, users.c.name != user.name)
            ).scalar()
            if other is not None:
                raise Conflict(f"user {user.name!r} cannot have the token of {other!r}; make a new one")
            connection.execute(delete(users).where(users.c.name == user.name))
            values = {name: getattr(user, name) for name in User.__slots__}
            connection.execute(insert(users), values)

        self._writer.run(put)

    def user_by_token_hash(self, token_hash: str) -> User | None:
        """Also one that is disabled: the caller says so."""
        with self._reading() as connection:
            row = connection.execute(select(users).where(users.c.token_hash == token_hash)).first()
        return None if row is None else User(*row)

    def users(self) -> list[User]:
        with self._reading() as connection:
            return [User(*row) for row in connection.execute(select(users).order_by(users.c.name))]

    def remove_user(self, name: str) -> bool:
        """Was there one?"""
        return self._writer.run(
            lambda connection: connection.execute(delete(users).where(users.c.name == name)).rowcount > 0
        )


@dataclass(frozen=True, slots=True)
class _Submission:
    """What `Store.submit` was given; its jobs as they go into the table, but for their numbers."""

    jobs: Sequence[Mapping[str, Any]]
    user: str
    at: float
    key: str | None
    digest: str


def _take_in(
    connection: Connection, wanted: Sequence[_Submission], *, after: int
) -> tuple[list[Submitted | FairleadError], int]:
    """All of them with as few statements as one needs, with numbers beyond `after`. And the last number given."""
    seq, number = (int(last) for last in connection.execute(_LAST_NUMBERS).one())
    number = max(number, after)
    known = _of_keys(connection, [(each.user, each.key) for each in wanted if each.key is not None])
    outcomes: list[Submitted | FairleadError] = []
    new_requests, new_submissions, new_jobs = [], [], []
    for each in wanted:
        if each.key is not None and (each.user, each.key) in known:
            outcomes.append(_as_before(each, *known[each.user, each.key]))
            continue
        seq, number = seq + 1, number + 1
        ids = tuple(str(number) if job["element"] is None else f"{number}.{job['element']}" for job in each.jobs)
        new_requests.append(
            {"seq": seq, "at": each.at, "user": each.user, "kind": "submit", "body": to_json({"ids": ids})}
        )
        new_submissions.append(
            {
                "number": number,
                "request": seq,
                "user": each.user,
                "idempotency_key": each.key,
                "digest": each.digest,
            }
        )
        new_jobs += [{"id": id_, "number": number, **job} for id_, job in zip(ids, each.jobs, strict=True)]
        outcomes.append(Submitted(ids, True, seq))
        if each.key is not None:
            known[each.user, each.key] = (each.digest, Submitted(ids, False, seq))
    if new_jobs:
        connection.execute(_INSERT_REQUEST, new_requests)
        connection.execute(_INSERT_SUBMISSION, new_submissions)
        connection.execute(_INSERT_JOB, new_jobs)
    return outcomes, number


def _of_keys(connection: Connection, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, Submitted]]:
    """What was submitted before under any of these (user, key): its digest, and what became of it."""
    found = {}
    for row in connection.execute(_OF_KEYS, {"keys": keys}).all() if keys else ():
        ids = tuple(connection.execute(_IDS, {"of": row.number}).scalars())
        found[row.user, row.idempotency_key] = (row.digest, Submitted(ids, False, row.request))
    return found


def _as_before(wanted: _Submission, digest: str, before: Submitted) -> Submitted | Conflict:
    if wanted.digest == digest:
        return before
    return Conflict(
        f"idempotency key {wanted.key!r} was used by {wanted.user} for another submission (job {before.ids[0]}); "
        "send that one again unchanged, or use a new key"
    )


def _job_row(row: Row[Any]) -> JobRow:
    values = dict(row._mapping)
    for name in ("document", "secrets", "outcome"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return JobRow(**values)
