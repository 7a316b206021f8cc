"""The store, on both databases: what is written is read; one controller; submissions that can be repeated."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, text

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.core.messages import (
    JobExited,
    JobReported,
    JobStarted,
    JobSubmitted,
    Message,
    NodeJoined,
    Start,
    Tick,
    decode,
    encode,
)
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node
from fairlead.journal import replay
from fairlead.server.database import APPLICATION_ID
from fairlead.server.journal import SqlJournal, pack, recover
from fairlead.server.store import Conflict, NewJob, Store, Submitted, User
from fairlead.server.tables import metadata

LIFE: list[Message] = [
    NodeJoined(0.0, Node("n0", 4, labels={"rack": "ü"})),
    JobSubmitted(0.1, JobSpec(id="1", gpus=2)),
    Start(0.1, "1", 1, Allocation.of({"n0": [0, 1]})),
    JobStarted(1 / 3, "1", 1),
    JobReported(1.5, "1", 1, 0.5, 8, 2.0),
    JobExited(2.5, "1", 1),
]


def job(name: str = "train", element: int | None = None, queue: str = "default") -> NewJob:
    return NewJob(name=name, queue=queue, document={"run": "true", "ü": [1.5]}, secrets={"KEY": "x"}, element=element)


def submit(store: Store, *rows: NewJob, user: str = "ada", key: str | None = None, digest: str = "d") -> Submitted:
    return store.submit(rows or [job()], user=user, at=7.0, key=key, digest=digest).result()


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Somebody else's hand in the database."""
    with create_engine(url).begin() as connection:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


# -- opening ---------------------------------------------------------------------------------------------------------


def test_the_migrations_lead_to_the_tables(store_url: str) -> None:
    Store.open(store_url).close()
    with create_engine(store_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        assert len(inspect(connection).get_table_names()) == len(metadata.tables) + 1


def test_a_store_that_is_opened_again_has_what_it_had(store_url: str) -> None:
    with Store.open(store_url) as store:
        submit(store)
        store.write(LIFE, {"requests": "1"}, epoch=store.claim(who="first"))
    with Store.open(store_url) as store:
        assert store.job("1") is not None
        assert list(store.read()) == list(enumerate(LIFE, 1))
        assert store.marks() == {"requests": "1"}
        assert store.claim(who="second") == 2


OPEN = "import sys; from fairlead.server.store import Store; Store.open(sys.argv[1]).close()"


def test_several_processes_may_open_a_new_store_at_once(store_url: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", OPEN, store_url]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4


def test_a_store_of_a_newer_fairlead_asks_for_an_upgrade(store_url: str) -> None:
    Store.open(store_url).close()
    execute(store_url, "UPDATE alembic_version SET version_num = '999'")
    with pytest.raises(InvalidSpec, match=r"written by a newer Fairlead .*version 999"):
        Store.open(store_url)


def test_tables_that_cannot_be_made_leave_the_database_as_it_was(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        execute(store_url, f"PRAGMA application_id = {APPLICATION_ID}")
    execute(store_url, "CREATE TABLE users (name TEXT)")
    with pytest.raises(BackendError, match=r"cannot open database .*already exists"):
        Store.open(store_url)
    assert inspect(create_engine(store_url)).get_table_names() == ["users"]


def test_only_the_owner_may_read_the_files_of_a_store(tmp_path: Path, sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.claim(who="me")
        assert {path.suffix for path in tmp_path.iterdir()} == {".db", ".db-wal", ".db-shm", ".lock"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_what_is_no_database_of_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    words, other = tmp_path / "words", tmp_path / "other"
    words.write_text("job,gpus\n" * 1000)
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY)")
    before = words.read_bytes(), other.read_bytes()
    with pytest.raises(BackendError, match=r"cannot open database .*words: file is not a database"):
        Store.open(f"sqlite:///{words}")
    with pytest.raises(InvalidSpec, match="other is an SQLite file, but not a Fairlead database"):
        Store.open(f"sqlite:///{other}")
    assert (words.read_bytes(), other.read_bytes()) == before


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("fairlead.db", InvalidSpec, "a database URL is like"),
        ("sqlite://", InvalidSpec, "is not supported; use"),
        ("sqlite:///:memory:", InvalidSpec, "is not supported; use"),
        ("mysql://ada:secret@host/db", InvalidSpec, r"mysql://ada:\*\*\*@host/db' is not supported"),
        ("sqlite:////nowhere/at/all.db", BackendError, "cannot open database /nowhere/at/all.db: No such file"),
        ("postgresql://ada:secret@127.0.0.1:1/db", BackendError, r"cannot open .*ada:\*\*\*@127.*onnection refused"),
    ],
)
def test_a_url_that_leads_nowhere_is_explained_without_its_password(url: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    with pytest.raises(BackendError, match="is closed"):
        submit(store)
    store.close()


# -- the journal -----------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_from_any_place_and_in_either_direction(store: Store) -> None:
    epoch = store.claim(who="me")
    assert store.last_seq() == 0
    assert store.write(LIFE[:2], {}, epoch=epoch) == 2
    assert store.write(LIFE[2:], {}, epoch=epoch) == store.last_seq() == 6
    numbered = list(enumerate(LIFE, 1))
    assert list(store.read()) == numbered
    assert list(store.read(4)) == numbered[4:]
    assert list(store.read(1, limit=2)) == numbered[1:3]
    assert list(store.read(2, limit=3, newest_first=True)) == numbered[:2:-1][:3]
    assert list(store.read(job="1")) == numbered[1:]
    assert list(store.read(1, job="1", limit=2, newest_first=True)) == numbered[:3:-1]
    assert list(store.read(6)) == list(store.read(job="2")) == list(store.read(limit=0)) == []


def test_a_long_journal_is_read_in_pages_without_a_seam(store: Store) -> None:
    ticks = [Tick(float(second)) for second in range(5001)]
    store.write(ticks, {}, epoch=store.claim(who="me"))
    numbered = list(enumerate(ticks, 1))
    assert list(store.read()) == numbered
    assert list(store.read(newest_first=True)) == numbered[::-1]
    assert list(store.read(limit=4000)) == numbered[:4000]
    assert list(store.read(3, limit=4100, newest_first=True)) == numbered[::-1][:4100]


def test_the_record_of_a_message_has_what_it_is_about(store: Store) -> None:
    store.write(LIFE, {}, epoch=store.claim(who="me"))
    records = list(store.records())
    assert [record.job for record in records] == [None, "1", "1", "1", "1", "1"]
    assert [record.type for record in records] == [type(message).__name__ for message in LIFE]
    assert [record.at for record in records] == [message.at for message in LIFE]


def test_marks_are_moved_and_removed(store: Store) -> None:
    epoch = store.claim(who="me")
    store.write([], {"a": "0"}, epoch=epoch)
    store.write([], {"a": "1", "b": "1"}, epoch=epoch)
    store.write(LIFE[:1], {"a": "2"}, epoch=epoch)
    assert store.marks() == {"a": "2", "b": "1"}
    store.write([], {"a": None, "c": "3"}, epoch=epoch)
    store.write(LIFE[1:2], {}, epoch=epoch)
    assert store.marks() == {"b": "1", "c": "3"}


def test_the_loops_journal_writes_messages_and_marks_at_once_and_then_tells(store: Store) -> None:
    journal = SqlJournal(store, epoch=store.claim(who="me"))
    told: list[tuple[int, int, dict[str, str]]] = []
    journal.on_commit(lambda seq: told.append((seq, store.last_seq(), store.marks())))
    journal.commit()
    journal.append(LIFE[0])
    journal.append(LIFE[1])
    journal.mark("requests", "9")
    with pytest.raises(InvalidSpec, match="finite"):
        journal.append(Tick(float("nan")))
    assert list(store.read()) == []
    journal.commit()
    journal.mark("requests", None)
    journal.commit()
    journal.commit()
    assert told == [(2, 2, {"requests": "9"}), (2, 2, {})]
    assert journal.seq == 2
    assert list(store.read()) == [(1, LIFE[0]), (2, LIFE[1])]


def test_a_commit_that_fails_can_be_repeated(store: Store, store_url: str) -> None:
    journal = SqlJournal(store, epoch=store.claim(who="me"))
    journal.append(LIFE[0])
    journal.mark("a", "1")
    execute(store_url, "UPDATE controller SET epoch = epoch + 1")
    with pytest.raises(BackendError):
        journal.commit()
    assert (journal.seq, store.last_seq(), store.marks()) == (0, 0, {})
    execute(store_url, "UPDATE controller SET epoch = epoch - 1")
    journal.commit()
    assert (journal.seq, list(store.read()), store.marks()) == (1, [(1, LIFE[0])], {"a": "1"})


# -- recovery --------------------------------------------------------------------------------------------------------


def as_saved(messages: list[Message]) -> dict[str, Any]:
    return {"messages": [encode(message) for message in messages]}


def as_loaded(data: dict[str, Any]) -> State:
    return replay(decode(message) for message in data["messages"])


def no_state() -> State:
    raise AssertionError("there is a snapshot to begin with")


def test_without_a_snapshot_everything_is_replayed(store: Store) -> None:
    store.write(LIFE, {}, epoch=store.claim(who="me"))
    assert recover(store, State, as_loaded) == (replay(LIFE), 6)


def test_a_snapshot_saves_the_replay_of_what_came_before(store: Store, store_url: str) -> None:
    store.write(LIFE, {}, epoch=store.claim(who="me"))
    store.save_snapshot(4, as_saved(LIFE[:4]))
    execute(store_url, "DELETE FROM journal WHERE seq <= 4")
    told: list[tuple[int, int]] = []
    state = recover(store, no_state, as_loaded, progress=lambda done, total: told.append((done, total)))
    assert state == (replay(LIFE), 6)
    assert told == [(2, 2)]
    assert recover(store, no_state, as_loaded) == state


def test_progress_is_told_now_and_then(store: Store) -> None:
    store.write([Tick(float(second)) for second in range(2500)], {}, epoch=store.claim(who="me"))
    told: list[tuple[int, int]] = []
    recover(store, State, as_loaded, progress=lambda done, total: told.append((done, total)))
    assert told == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_the_newest_three_snapshots_are_kept_and_the_marks_since(store: Store, store_url: str) -> None:
    epoch = store.claim(who="me")
    for number in range(1, 7):
        store.write([Tick(float(number))], {"a": str(number), "b": None}, epoch=epoch)
        store.save_snapshot(number, {"number": number})
        store.save_snapshot(number, {"number": number, "again": True})
    assert store.latest_snapshot() == (6, {"number": 6, "again": True})
    assert execute(store_url, "SELECT seq FROM snapshots ORDER BY seq") == [(4,), (5,), (6,)]
    kept = [(key, seq) for key in "ab" for seq in (4, 5, 6)]
    assert execute(store_url, "SELECT key, seq FROM marks ORDER BY key, seq") == kept
    assert store.marks() == {"a": "6"}


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.integers() | st.text(max_size=3), max_size=130) | st.floats(-9, 9))
)
def test_a_snapshot_in_pieces_reads_as_the_whole(state: dict[str, Any]) -> None:
    assert json.loads(zlib.decompress(pack(state))) == state
    in_parts = {name: iter(value) if isinstance(value, list) else value for name, value in state.items()}
    assert json.loads(zlib.decompress(pack(in_parts))) == state


def test_a_snapshot_of_the_future_is_refused(store: Store) -> None:
    store.claim(who="me")
    assert store.latest_snapshot() is None
    with pytest.raises(InvalidSpec, match="the last message is 0"):
        store.save_snapshot(1, {})


# -- one controller --------------------------------------------------------------------------------------------------


def test_a_second_controller_is_refused_by_name_while_the_first_lives(store: Store, store_url: str) -> None:
    epoch = store.claim(who="alpha, process 17")
    with Store.open(store_url) as other:
        for refused in (other, store, other):
            with pytest.raises(
                BackendError, match=r"another controller uses .*: alpha, process 17, since 2.* UTC.*stop"
            ):
                refused.claim(who="beta")
        submit(other)  # anybody may ask
        with pytest.raises(BackendError, match="is not the controller"):
            other.write(LIFE, {}, epoch=epoch)
        for operation in (other.mend, lambda: other.truncate(0), lambda: other.save_snapshot(0, {})):
            with pytest.raises(BackendError, match="is not the controller"):
                operation()
        assert store.write(LIFE, {}, epoch=epoch) == 6
        store.close()
        assert other.claim(who="beta") == epoch + 1


def test_a_controller_that_was_replaced_can_no_longer_write(store: Store, store_url: str) -> None:
    epoch = store.claim(who="alpha")
    store.write(LIFE[:1], {}, epoch=epoch)
    execute(store_url, "UPDATE controller SET epoch = epoch + 1, who = 'beta'")
    with pytest.raises(BackendError, match=r"another controller has taken over .*: beta.*stop it"):
        store.write(LIFE[1:], {"a": "1"}, epoch=epoch)
    assert store.last_seq() == 1
    assert store.marks() == {}


# -- wishes of users -------------------------------------------------------------------------------------------------


def test_jobs_are_numbered_and_arrays_share_a_number(store: Store) -> None:
    assert submit(store) == Submitted(("1",), True, 1)
    assert submit(store, job("a", 0), job("b", 7)).ids == ("2.0", "2.7")
    assert store.request("cancel", user="eve", at=8.0, body={"job": "1"}) == 3
    assert submit(store).ids == ("3",)
    assert [(request.seq, request.user, request.kind, request.body) for request in store.requests(1)] == [
        (2, "ada", "submit", {"ids": ["2.0", "2.7"]}),
        (3, "eve", "cancel", {"job": "1"}),
        (4, "ada", "submit", {"ids": ["3"]}),
    ]
    row = store.job("2.7")
    assert row is not None
    assert (row.number, row.element, row.user, row.name, row.queue) == (2, 7, "ada", "b", "default")
    assert (row.document, row.secrets) == ({"run": "true", "ü": [1.5]}, {"KEY": "x"})
    assert (row.submitted_at, row.phase, row.ended_at, row.outcome) == (7.0, None, None, None)
    assert "secrets" not in repr(row)
    assert "secrets" not in repr(job())


def test_a_submission_with_the_same_key_is_the_same_submission(store: Store) -> None:
    first = submit(store, job("a", 0), job("a", 1), key="k")
    assert submit(store, job("a", 0), job("a", 1), key="k") == Submitted(first.ids, False, first.seq)
    assert submit(store, key="k", user="eve").fresh
    assert submit(store).fresh
    assert submit(store).fresh
    with pytest.raises(Conflict, match=r"key 'k' was used by ada for another submission \(job 1.0\).*new key"):
        submit(store, key="k", digest="other")
    assert len(store.requests()) == 4


@pytest.mark.parametrize("elements", [[], [None, None], [1, 1], [0, None]])
def test_an_array_has_different_elements(store: Store, elements: list[int | None]) -> None:
    rows = [job("a", element) for element in elements]
    with pytest.raises(InvalidSpec, match="one job, or an array of different elements"):
        store.submit(rows, user="ada", at=0.0, key=None, digest="").result()


def test_many_may_ask_at_once_and_one_that_is_refused_does_not_harm_the_others(store: Store) -> None:
    submit(store, key="taken")

    def ask(number: int) -> str:
        try:
            if number % 5 == 0:
                return submit(store, key="taken", digest="other").ids[0]
            return submit(store, key=f"{number // 2}").ids[0]
        except Conflict:
            return "refused"

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, range(200)))
    assert all((answer == "refused") == (number % 5 == 0) for number, answer in enumerate(answers))
    ids = {answer for answer in answers if answer != "refused"}
    assert {row.id for row in store.list_jobs(limit=1000)} == ids | {"1"}
    assert [request.body["ids"][0] for request in store.requests()] == [str(n + 1) for n in range(len(ids) + 1)]


def test_a_value_that_a_database_cannot_hold_is_refused_alone(store: Store) -> None:
    def ask(number: int) -> bool:
        try:
            return submit(store, job("bad \ud800" if number % 4 == 0 else "good")).fresh
        except InvalidSpec:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(40))) == [number % 4 != 0 for number in range(40)]
    with pytest.raises(InvalidSpec, match="cannot hold what was given"):
        submit(store, job("huge", 10**30))


# -- documents, notes and users --------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(6):
        submit(store, job(queue="even" if number % 2 == 0 else "odd"), user="ada" if number < 4 else "eve")
    submit(store, *(job("array", element) for element in range(3)))

    def ids(**filters: Any) -> list[str]:
        return [row.id for row in store.list_jobs(**filters)]

    assert ids() == ["7.2", "7.1", "7.0", "6", "5", "4", "3", "2", "1"]
    page = store.list_jobs(limit=2)
    assert ids(before=page[-1].seq, limit=3) == ["7.0", "6", "5"]
    assert ids(user="ada", queue="odd") == ["4", "2"]
    assert set(store.jobs(["2", "7.1", "nobody"])) == {"2", "7.1"}
    assert len(store.jobs([str(n) for n in range(2000)])) == 6


def test_how_a_job_ended_is_kept(store: Store) -> None:
    submit(store)
    submit(store)
    store.end_job("1", phase="FAILED", at=9.5, outcome={"exit_code": 3})
    (row,) = store.list_jobs(phase="FAILED")
    assert (row.id, row.phase, row.ended_at, row.outcome) == ("1", "FAILED", 9.5, {"exit_code": 3})
    with pytest.raises(InvalidSpec, match="there is no job '9'"):
        store.end_job("9", phase="FAILED", at=9.5, outcome={})


def test_notes_of_a_job_are_read_in_order(store: Store) -> None:
    for n in range(4):
        store.note(["2", "1"] if n == 1 else ["1"], "log", float(n), {"line": n})
    first, *_ = store.notes("1")
    assert [(note.at, note.body) for note in store.notes("1", after=first.seq, limit=2)] == [
        (1.0, {"line": 1}),
        (2.0, {"line": 2}),
    ]
    assert [note.body for note in store.notes("2")] == [{"line": 1}]


def test_users_are_found_by_their_token(store: Store) -> None:
    ada, eve = User("ada", "admin", "aa", 1.0, False), User("eve", "user", "ee", 2.0, True)
    store.put_user(eve)
    store.put_user(ada)
    assert store.users() == [ada, eve]
    assert store.user_by_token_hash("ee") == eve
    with pytest.raises(Conflict, match="'eve' cannot have the token of 'ada'"):
        store.put_user(User("eve", "user", "aa", 2.0, False))
    store.put_user(User("ada", "admin", "a2", 3.0, False))
    assert store.user_by_token_hash("aa") is None
    assert "a2" not in repr(store.user_by_token_hash("a2"))
    assert store.remove_user("ada")
    assert not store.remove_user("ada")
    assert store.users() == [eve]


def test_reading_does_not_wait_for_a_writer_nor_a_writer_for_readers(store: Store, store_url: str) -> None:
    epoch = store.claim(who="me")
    store.write([Tick(float(second)) for second in range(10_000)], {}, epoch=epoch)
    reader = store.read()
    next(reader)
    reads: list[Callable[[], object]] = [store.marks, store.last_seq, store.users, store.latest_snapshot]
    with create_engine(store_url).connect() as other:  # in a transaction that has begun to read
        other.execute(text("SELECT * FROM journal")).fetchone()
        assert store.write(LIFE, {}, epoch=epoch) == 10_006
        submit(store)
    assert len(list(reader)) == 10_005
    with create_engine(store_url).connect() as writer:  # in a transaction that has begun to write
        writer.execute(text("DELETE FROM journal"))
        for read in reads:
            read()
        assert store.last_seq() == 10_006
