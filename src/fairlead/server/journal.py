"""The journal in a database: its records, the marks and snapshots that go with them, and how the loop writes them.

The functions on a connection run inside the store's transactions. What was committed together, a turn of the loop,
stays together: a record that cannot be trusted takes its whole turn with it, and the marks of that turn too, so that
the loop reads again what it had read, and decides again.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, literal, select

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.core.messages import Message, decode
from fairlead.core.state import State
from fairlead.journal import checksum, entry, to_json
from fairlead.server.gently import gently
from fairlead.server.tables import journal, marks, quarantine, snapshots

if TYPE_CHECKING:
    from fairlead.server.store import Store

#: How many snapshots are kept. One is enough, unless it is damaged.
SNAPSHOTS_KEPT = 3


@dataclass(frozen=True, slots=True)
class Record:
    """A message as it lies in the journal. Its body is the JSON of `encode`."""

    seq: int
    at: float
    type: str
    job: str | None
    body: str

    @property
    def message(self) -> Message:
        try:
            return decode(json.loads(self.body))
        except (InvalidSpec, ValueError, RecursionError) as error:
            raise BackendError(f"message {self.seq} of the journal cannot be read: {error}") from error


# -- records and marks -----------------------------------------------------------------------------------------------

_INSERT = insert(journal)
_INSERT_MARK = insert(marks)
_DELETE_MARKS_AT = delete(marks).where(marks.c.key == bindparam("mark"), marks.c.seq == bindparam("last"))
_newer = marks.alias()
_MARKS = select(marks.c.key, marks.c.value).where(
    marks.c.value.is_not(None), ~exists().where(_newer.c.key == marks.c.key, _newer.c.seq > marks.c.seq)
)
#: The highest number given so far. Numbers of records in quarantine are not given again.
LAST_IN_JOURNAL = select(func.coalesce(func.max(journal.c.seq), 0)).scalar_subquery()
LAST_IN_QUARANTINE = select(func.coalesce(func.max(quarantine.c.seq), 0)).scalar_subquery()
_LAST = select(LAST_IN_JOURNAL, LAST_IN_QUARANTINE)


def last_seq(connection: Connection) -> int:
    return int(max(*connection.execute(_LAST).one()))


def write(
    connection: Connection, entries: Sequence[Mapping[str, Any]], new_marks: Mapping[str, str | None], *, last: int
) -> int:
    """One turn, after record number `last`. The number of its last record."""
    if entries:
        turn = last + 1
        connection.execute(_INSERT, [{"seq": seq, "turn": turn, **fields} for seq, fields in enumerate(entries, turn)])
        last += len(entries)
    elif new_marks:  # a turn without a record moves the marks of the one before
        connection.execute(_DELETE_MARKS_AT, [{"mark": key, "last": last} for key in new_marks])
    if new_marks:
        connection.execute(
            _INSERT_MARK, [{"key": key, "seq": last, "value": value} for key, value in new_marks.items()]
        )
    return last


def read_marks(connection: Connection) -> dict[str, str]:
    return {row.key: row.value for row in connection.execute(_MARKS)}


def _prune_marks(connection: Connection, oldest: int) -> None:
    """Forget the marks that only a cut before message `oldest` would bring back."""
    replaced = exists().where(_newer.c.key == marks.c.key, _newer.c.seq > marks.c.seq, _newer.c.seq <= oldest)
    connection.execute(delete(marks).where(marks.c.seq <= oldest, replaced))
    gone = ~exists().where(_newer.c.key == marks.c.key, _newer.c.seq > marks.c.seq)
    connection.execute(delete(marks).where(marks.c.seq <= oldest, marks.c.value.is_(None), gone))


# -- damage ----------------------------------------------------------------------------------------------------------


def damaged(seq: int, why: str) -> BackendError:
    return BackendError(
        f"message {seq} of the journal {why}. Restore a backup of the database, or give up everything from there on "
        f"with Store.truncate({seq - 1})"
    )


WRONG_CHECKSUM = "does not match its checksum"


def check_gap(connection: Connection, before: int, seq: int) -> None:
    """Record `seq` came after record `before`: is everything between them in quarantine?"""
    between = select(func.count()).select_from(quarantine).where(quarantine.c.seq > before, quarantine.c.seq < seq)
    if connection.execute(between).scalar_one() != seq - before - 1:
        raise damaged(before + 1, "is missing")


def mend(connection: Connection) -> list[str]:
    """Put a damaged last turn into quarantine, drop damaged snapshots, and say so."""
    told = _mend_snapshots(connection)
    last = connection.execute(select(journal.c.seq, journal.c.turn).order_by(journal.c.seq.desc()).limit(1)).first()
    if last is None or (seq := _first_damaged(connection, last.turn)) is None:
        return told
    before = connection.execute(
        select(journal.c.turn).where(journal.c.seq < last.turn).order_by(journal.c.seq.desc()).limit(1)
    ).scalar()
    if before is not None and (earlier := _first_damaged(connection, before)) is not None and earlier < last.turn:
        raise damaged(earlier, WRONG_CHECKSUM)
    _quarantine(connection, last.turn, f"message {seq} {WRONG_CHECKSUM}")
    again = _is_readable(connection, last.turn)
    if again:
        # A snapshot that has seen that turn goes, too, or the state would know what the journal does not tell.
        connection.execute(delete(snapshots).where(snapshots.c.seq >= last.turn))
        connection.execute(delete(marks).where(marks.c.seq >= last.turn))
    what = f"message {last.seq}" if last.turn == last.seq else f"messages {last.turn} to {last.seq}, written together,"
    told.append(
        f"message {seq} of the journal {WRONG_CHECKSUM}: {what} went to quarantine"
        + ("; that turn will be decided again" if again else ", and the snapshot goes on without")
    )
    return told


def _is_readable(connection: Connection, end: int) -> bool:
    """Can the state before record `end` be had without a snapshot that was made later?"""
    older = connection.execute(select(func.max(snapshots.c.seq)).where(snapshots.c.seq < end)).scalar() or 0
    return _first_damaged(connection, older + 1) is None


def _first_damaged(connection: Connection, first: int) -> int | None:
    rows = connection.execute(
        select(journal.c.seq, journal.c.body, journal.c.crc).where(journal.c.seq >= first).order_by(journal.c.seq)
    )
    return next((seq for seq, body, crc in rows.all() if checksum(body) != crc), None)


def truncate(connection: Connection, seq: int) -> int:
    """Put every turn that goes beyond record `seq` into quarantine. The number of the last record that stays."""
    first = connection.execute(
        select(journal.c.turn).where(journal.c.seq > seq).order_by(journal.c.seq).limit(1)
    ).scalar()
    if first is not None:
        _quarantine(connection, first, f"given up by truncating after message {seq}")
        connection.execute(delete(snapshots).where(snapshots.c.seq >= first))
        connection.execute(delete(marks).where(marks.c.seq >= first))
    return int(connection.execute(select(LAST_IN_JOURNAL)).scalar_one())


def _quarantine(connection: Connection, first: int, why: str) -> None:
    columns = [column.name for column in quarantine.c if column.name != "why"]
    rows = select(*(journal.c[name] for name in columns), literal(why)).where(journal.c.seq >= first)
    connection.execute(insert(quarantine).from_select([*columns, "why"], rows))
    connection.execute(delete(journal).where(journal.c.seq >= first))


# -- snapshots -------------------------------------------------------------------------------------------------------


#: Jobs of a snapshot that are written down at a time.
PIECE = 20


def pack(state: Mapping[str, Any]) -> bytes:
    """The form of a state in the database: JSON, compressed with more regard to time than to size.

    Its lists may as well be iterators. They are written down in pieces: while Python does ten thousand jobs in one go,
    no other thread gets a word in.
    """
    squeezer = zlib.compressobj(1)
    packed = [squeezer.compress(piece.encode()) for piece in gently(_pieces(state), at_a_time=1)]
    return b"".join([*packed, squeezer.flush()])


def _pieces(state: Mapping[str, Any]) -> Iterator[str]:
    """What `to_json` would say, in parts."""
    for place, (name, value) in enumerate(state.items()):
        yield f"{',' if place else '{'}{to_json(name)}:"
        if isinstance(value, list | Iterator):
            lead, items = "[", iter(value)
            while chunk := list(islice(items, PIECE)):
                yield lead + to_json(chunk)[1:-1]
                lead = ","
            yield "[]" if lead == "[" else "]"
        else:
            yield to_json(value)
    yield "}" if state else "{}"


def save_snapshot(connection: Connection, seq: int, body: bytes) -> None:
    connection.execute(delete(snapshots).where(snapshots.c.seq == seq))
    connection.execute(insert(snapshots), [{"seq": seq, "at": time.time(), "body": body, "crc": zlib.crc32(body)}])
    newest = connection.execute(select(snapshots.c.seq).order_by(snapshots.c.seq.desc()).limit(SNAPSHOTS_KEPT))
    oldest = min(newest.scalars())
    connection.execute(delete(snapshots).where(snapshots.c.seq < oldest))
    turn = connection.execute(select(func.max(journal.c.turn))).scalar() or 0
    _prune_marks(connection, min(oldest, turn - 1))  # the last turn may turn out to be damaged, and is then cut


def latest_snapshot(connection: Connection) -> tuple[int, dict[str, Any]] | None:
    """The newest that is whole."""
    for seq in connection.execute(select(snapshots.c.seq).order_by(snapshots.c.seq.desc())).scalars().all():
        row = connection.execute(select(snapshots.c.body, snapshots.c.crc).where(snapshots.c.seq == seq)).first()
        if row is not None and zlib.crc32(row.body) == row.crc:
            return seq, json.loads(zlib.decompress(row.body))
    return None


def _mend_snapshots(connection: Connection) -> list[str]:
    told = []
    for seq, body, crc in connection.execute(select(snapshots.c.seq, snapshots.c.body, snapshots.c.crc)).all():
        if zlib.crc32(body) != crc:
            connection.execute(delete(snapshots).where(snapshots.c.seq == seq))
            told.append(
                f"the snapshot after message {seq} {WRONG_CHECKSUM} and was dropped; the journal is read instead"
            )
    return told


# -- the loop's side -------------------------------------------------------------------------------------------------


class SqlJournal:
    """The loop's journal (see `fairlead.core.loop.Journal`). Belongs to the loop's thread, and to one epoch."""

    def __init__(self, store: Store, *, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._entries: list[dict[str, Any]] = []
        self._marks: dict[str, str | None] = {}
        self._hooks: list[Callable[[int], None]] = []
        #: Number of the last message committed: what a snapshot of the state taken now is called.
        self.seq = store.last_seq()

    def append(self, message: Message) -> None:
        self._entries.append(entry(message))

    def mark(self, key: str, value: str | None) -> None:
        """Remember how far a source was read, together with what came of it; None forgets the key."""
        self._marks[key] = value

    def on_commit(self, hook: Callable[[int], None]) -> None:
        """Call `hook` with the number of the last message, after each commit that wrote something."""
        self._hooks.append(hook)

    def commit(self) -> None:
        """After this returns, a crash loses nothing appended or marked before. If it fails, it can be repeated."""
        if not self._entries and not self._marks:
            return
        self.seq = self._store.write_entries(self._entries, self._marks, epoch=self._epoch)
        self._entries.clear()
        self._marks.clear()
        for hook in self._hooks:
            hook(self.seq)


def recover(
    store: Store,
    make_state: Callable[[], State],
    load: Callable[[dict[str, Any]], State],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[State, int]:
    """The state after the last message, and that message's number.

    Loads the newest snapshot, or makes an empty state, and replays the rest. `progress` is told now and then how many
    messages were replayed, and of how many.
    """
    snapshot = store.latest_snapshot()
    after, state = (0, make_state()) if snapshot is None else (snapshot[0], load(snapshot[1]))
    last, count = store.last_seq(), 0
    for count, (_, message) in enumerate(store.read(after), 1):
        state.replay(message)
        if progress is not None and count % 1000 == 0:
            progress(count, last - after)
    if progress is not None:
        progress(count, count)
    return state, last
