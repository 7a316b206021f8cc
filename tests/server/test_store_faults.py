"""The store when things go wrong: killed processes, full disks, lost connections, damaged records."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from fairlead.core.errors import BackendError
from fairlead.core.messages import JobSubmitted, Message, NodeJoined, Start, Tick
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Node
from fairlead.journal import replay
from fairlead.server.journal import recover
from fairlead.server.store import NewJob, Store

if TYPE_CHECKING:
    from postgres import Server


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Somebody else's hand in the database."""
    with create_engine(url).begin() as connection:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


def submit(store: Store, *, size: int = 10) -> str:
    row = NewJob(name="train", queue="default", document={"run": "x" * size})
    return store.submit([row], user="ada", at=0.0, key=None, digest="").result().ids[0]


def ticks(first: int, count: int) -> list[Message]:
    return [Tick(float(second)) for second in range(first, first + count)]


def no_load(data: dict[str, Any]) -> State:
    raise AssertionError(f"there should be no snapshot, but there is {data}")


# -- a process that is killed ----------------------------------------------------------------------------------------

#: Submits arrays of three and writes turns of three messages with a mark; tells of each when it is done.
WRITER = """
import os, sys, threading
from fairlead.core.messages import Tick
from fairlead.server.store import NewJob, Store

store = Store.open(sys.argv[1])
epoch = store.claim(who="the one that will be killed")

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def submit(thread):
    for number in range(100_000):
        rows = [NewJob(name=f"{thread}-{number}", queue="q", document={}, element=element) for element in range(3)]
        tell("jobs", *store.submit(rows, user=f"u{thread}", at=0.0, key=str(number), digest="").result().ids)

tell("ready")
for thread in range(4):
    threading.Thread(target=submit, args=(thread,), daemon=True).start()
for turn in range(1, 100_000):
    store.write([Tick(3.0 * turn + second) for second in range(3)], {"turn": str(turn)}, epoch=epoch)
    tell("turn", turn)
"""


def claimed(url: str) -> Store:
    """A store whose controller we are, as soon as the database has noticed that the last one is dead."""
    store = Store.open(url)
    for _ in range(200):
        with suppress(BackendError):
            store.claim(who="the next")
            return store
        time.sleep(0.05)
    raise AssertionError("the lock of the killed process was not freed")


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(5)])
def test_a_process_that_is_killed_leaves_all_it_told_of_and_nothing_half(store_url: str, seed: int) -> None:
    chance = random.Random(seed)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, store_url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    lines = [writer.stdout.readline() for _ in range(chance.randrange(200))]
    time.sleep(chance.random() * 0.05)
    writer.send_signal(signal.SIGKILL)
    lines += writer.communicate()[0].splitlines()
    assert writer.returncode == -signal.SIGKILL
    told = [line.split() for line in lines]

    with claimed(store_url) as store:
        assert store.mend() == []
        jobs = {row.id for row in store.list_jobs(limit=10**6)}
        asked = [request.body["ids"] for request in store.requests()]
        assert jobs == {job for ids in asked for job in ids}
        assert all(len(ids) == 3 for ids in asked)
        assert jobs >= {job for words in told if words[0] == "jobs" for job in words[1:]}

        turns = int(store.marks().get("turn", "0"))
        assert [seq for seq, _ in store.read()] == list(range(1, 3 * turns + 1))
        assert turns >= max((int(words[1]) for words in told if words[0] == "turn"), default=0)
        assert recover(store, State, no_load)[1] == 3 * turns

        assert submit(store) == str(len(asked) + 1)


def test_the_lock_of_a_process_that_is_killed_is_free(store_url: str) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, store_url], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    with Store.open(store_url) as store, pytest.raises(BackendError, match="the one that will be killed"):
        store.claim(who="me")
    writer.kill()
    writer.communicate()
    claimed(store_url).close()


# -- a disk that is full ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root, with the right to mount, can make a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_refuses_what_does_not_fit_and_the_store_goes_on_when_there_is_room(small_disk: Path) -> None:
    with Store.open(f"sqlite:///{small_disk}/fairlead.db") as store:
        epoch = store.claim(who="me")
        store.write(ticks(0, 10), {"a": "1"}, epoch=epoch)
        fill(small_disk / "ballast")

        def ask(_: int) -> str | None:
            try:
                return submit(store, size=20_000)
            except BackendError as error:
                return None if "database or disk is full" in str(error) else str(error)

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(ask, range(80)))
        assert None in answers
        accepted = {answer for answer in answers if answer is not None}
        with pytest.raises(BackendError, match=r"cannot write to database .*: database or disk is full"):
            store.write(ticks(10, 30_000), {"a": "2"}, epoch=epoch)
        assert {row.id for row in store.list_jobs(limit=1000)} == accepted
        assert (store.last_seq(), store.marks()) == (10, {"a": "1"})

        (small_disk / "ballast").unlink()
        assert store.write(ticks(10, 100), {"a": "2"}, epoch=epoch) == 110
        accepted.add(submit(store))
        assert {row.id for row in store.list_jobs(limit=1000)} == accepted
        assert [row.id for row in store.list_jobs(limit=1)] == [str(len(accepted))]


#: The same where no disk can be mounted: no file of this process may grow beyond a limit.
LIMITED = """
import resource, sys
from fairlead.core.errors import BackendError
from fairlead.core.messages import Tick
from fairlead.server.store import Store

store = Store.open(sys.argv[1])
epoch = store.claim(who="me")
messages = [Tick(float(second)) for second in range(2000)]
store.write(messages, {"turn": "1"}, epoch=epoch)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
written = 1
try:
    while True:
        store.write(messages, {"turn": str(written + 1)}, epoch=epoch)
        written += 1
except BackendError as error:
    print(error)
assert store.last_seq() == 2000 * written, store.last_seq()
assert store.marks() == {"turn": str(written)}
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert store.write(messages, {"turn": "last"}, epoch=epoch) == 2000 * (written + 1)
assert len(list(store.read())) == 2000 * (written + 1)
"""


def test_a_write_that_fails_leaves_nothing_and_can_be_repeated(sqlite_url: str) -> None:
    words = subprocess.check_output([sys.executable, "-c", LIMITED, sqlite_url], text=True)
    assert words.startswith("cannot write to database ")
    assert "disk" in words
    with Store.open(sqlite_url) as store:
        assert store.marks() == {"turn": "last"}


@pytest.mark.slow
def test_a_database_that_another_program_locks_is_waited_for_and_then_reported(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        other = create_engine(sqlite_url).connect()
        other.exec_driver_sql("BEGIN IMMEDIATE")

        def ask(_: int) -> str:
            with pytest.raises(BackendError, match="database is locked") as caught:
                submit(store)
            return str(caught.value)

        with ThreadPoolExecutor(8) as threads:  # they wait together, not one after the other
            assert len(list(threads.map(ask, range(8)))) == 8
        other.close()
        assert submit(store) == "1"


def test_a_lock_file_that_cannot_be_made_is_told(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "fairlead.db.lock").mkdir()
    with Store.open(sqlite_url) as store:
        with pytest.raises(BackendError, match=r"cannot lock database .*fairlead.db.lock: Is a directory"):
            store.claim(who="me")
        (tmp_path / "fairlead.db.lock").rmdir()
        assert store.claim(who="me") == 1


# -- a connection that is lost ---------------------------------------------------------------------------------------


def cut(postgres: Server, url: str) -> None:
    """End every connection to the database from the server's side."""
    name = url.rpartition("/")[2]
    postgres.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_controller_that_loses_its_connection_may_not_write_but_can_claim_again(
    postgres: Server, postgres_url: str
) -> None:
    with Store.open(postgres_url) as store, Store.open(postgres_url) as other:
        epoch = store.claim(who="alpha")
        store.write(ticks(0, 3), {}, epoch=epoch)
        cut(postgres, postgres_url)
        with pytest.raises(BackendError, match="cannot write to database"):
            store.write(ticks(3, 3), {}, epoch=epoch)
        with pytest.raises(BackendError, match=r"not the controller .* no longer since it lost its connection"):
            store.write(ticks(3, 3), {}, epoch=epoch)
        assert store.last_seq() == 3
        assert submit(store) == "1"
        again = store.claim(who="alpha again")
        assert store.write(ticks(3, 3), {}, epoch=again) == 6

        cut(postgres, postgres_url)
        with pytest.raises(BackendError):
            store.note(["1"], "log", 0.0, {})
        taken = other.claim(who="beta")
        with pytest.raises(BackendError, match=r"another controller has taken over .*: beta"):
            store.write(ticks(6, 3), {}, epoch=again)
        with pytest.raises(BackendError, match=r"another controller uses .*: beta"):
            store.claim(who="alpha once more")
        assert other.write(ticks(6, 3), {}, epoch=taken) == 9


def test_a_database_that_is_away_for_a_while_is_used_again_when_it_is_back(postgres: Server, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    with Store.open(postgres_url) as store:
        submit(store)
        postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        cut(postgres, postgres_url)
        for _ in range(3):
            with pytest.raises(BackendError, match="cannot write to database"):
                submit(store)
            with pytest.raises(BackendError, match="cannot read database"):
                store.last_seq()
        postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert submit(store) == "2"
        assert store.job("1") is not None


# -- records that are damaged ----------------------------------------------------------------------------------------

TURNS: list[tuple[list[Message], dict[str, str | None]]] = [
    ([NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.1, JobSpec(id="1", gpus=2))], {"requests": "1", "events": "5"}),
    ([Start(0.1, "1", 1, Allocation.of({"n0": [0, 1]}))], {"events": "6"}),
    ([], {"events": "7"}),
    (ticks(1, 3), {"requests": "2", "events": None}),
    ([], {"requests": "3"}),
]
MESSAGES = [message for messages, _ in TURNS for message in messages]


@pytest.fixture
def written(store: Store) -> Store:
    """A store with three turns: messages 1 and 2, message 3, messages 4 to 6; and its marks."""
    epoch = store.claim(who="me")
    for messages, marks in TURNS:
        store.write(messages, marks, epoch=epoch)
    assert store.marks() == {"requests": "3"}
    return store


def damage(url: str, seq: int) -> None:
    execute(url, f"UPDATE journal SET body = replace(body, '1', '2') WHERE seq = {seq}")


def test_a_journal_without_damage_needs_no_mending(written: Store) -> None:
    assert written.mend() == []
    assert recover(written, State, no_load) == (replay(MESSAGES), 6)


@pytest.mark.parametrize("seq", [4, 6])
def test_a_damaged_last_turn_goes_to_quarantine_and_its_marks_go_back(written: Store, store_url: str, seq: int) -> None:
    damage(store_url, seq)
    damaged = execute(store_url, f"SELECT body FROM journal WHERE seq = {seq}")
    with pytest.raises(BackendError, match=rf"message {seq} of the journal does not match its checksum"):
        recover(written, State, no_load)
    (told,) = written.mend()
    assert told.startswith(
        f"message {seq} of the journal does not match its checksum: messages 4 to 6, written together"
    )
    assert written.mend() == []
    assert execute(store_url, f"SELECT body FROM quarantine WHERE seq = {seq}") == damaged
    assert execute(store_url, "SELECT seq, why FROM quarantine ORDER BY seq") == [
        (number, f"message {seq} does not match its checksum") for number in (4, 5, 6)
    ]
    assert written.marks() == {"requests": "1", "events": "7"}
    assert recover(written, State, no_load) == (replay(MESSAGES[:3]), 6)
    assert written.write(ticks(9, 1), {}, epoch=1) == 7  # a number that was told is not given again
    assert [number for number, _ in written.read()] == [1, 2, 3, 7]


def test_a_damaged_message_before_the_last_turn_needs_a_person(written: Store, store_url: str) -> None:
    damage(store_url, 3)
    damage(store_url, 6)
    words = r"message 3 of the journal does not match its checksum.*Restore a backup .* Store.truncate\(2\)"
    with pytest.raises(BackendError, match=words):
        written.mend()
    with pytest.raises(BackendError, match=words):
        recover(written, State, no_load)
    assert execute(store_url, "SELECT count(*) FROM quarantine") == [(0,)]
    assert written.truncate(2) == 2
    assert written.mend() == []
    assert recover(written, State, no_load) == (replay(MESSAGES[:2]), 6)
    assert written.marks() == {"requests": "1", "events": "5"}
    assert written.write(ticks(9, 1), {}, epoch=1) == 7


def test_cutting_a_journal_keeps_whole_turns(written: Store, store_url: str) -> None:
    assert written.truncate(6) == 6
    assert written.truncate(5) == 3
    assert written.marks() == {"requests": "1", "events": "7"}
    assert written.truncate(1) == 0
    assert written.marks() == {}
    assert execute(store_url, "SELECT count(*) FROM quarantine") == [(6,)]


def test_a_message_that_is_missing_is_noticed(written: Store, store_url: str) -> None:
    execute(store_url, "DELETE FROM journal WHERE seq IN (2, 3)")
    with pytest.raises(BackendError, match="message 2 of the journal is missing"):
        list(written.read())
    assert [number for number, _ in written.read(3)] == [4, 5, 6]
    with pytest.raises(BackendError, match="message 3 of the journal is missing"):
        list(written.read(2))


def test_a_message_of_a_newer_fairlead_is_not_taken_for_damage(written: Store, store_url: str) -> None:
    import zlib

    body = '{"v":9,"type":"Tick","at":1.0}'
    execute(
        store_url,
        f"UPDATE journal SET body = '{body}', crc = {zlib.crc32(body.encode())} WHERE seq = 6".replace(":", r"\:"),
    )
    assert written.mend() == []
    with pytest.raises(BackendError, match="message 6 of the journal cannot be read: message version 9 is unknown"):
        recover(written, State, no_load)


def test_text_that_is_no_text_any_more_is_damage_like_any_other(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.write(ticks(0, 2), {}, epoch=store.claim(who="me"))
        store.write(ticks(2, 1), {}, epoch=1)
        execute(sqlite_url, "UPDATE journal SET body = CAST(X'ff00fe' AS TEXT) WHERE seq = 3")
        assert len(store.mend()) == 1
        assert len(list(store.read())) == 2


def test_a_damaged_snapshot_is_dropped_for_an_older_one(written: Store, store_url: str) -> None:
    for seq in (2, 3, 6):
        written.save_snapshot(seq, {"after": seq})
    execute(store_url, "UPDATE snapshots SET crc = crc + 1 WHERE seq = 6")
    assert written.latest_snapshot() == (3, {"after": 3})
    (told,) = written.mend()
    assert told.startswith("the snapshot after message 6 does not match its checksum and was dropped")
    assert written.mend() == []
    state, last = recover(written, no_state, lambda data: replay(MESSAGES[: data["after"]]))
    assert (state, last) == (replay(MESSAGES), 6)


def no_state() -> State:
    raise AssertionError("there is a snapshot to begin with")


def test_damage_that_a_snapshot_covers_costs_nothing_but_the_record(written: Store, store_url: str) -> None:
    written.save_snapshot(6, {})
    damage(store_url, 2)
    damage(store_url, 5)
    (told,) = written.mend()
    assert "messages 4 to 6, written together, went to quarantine, and the snapshot goes on without" in told
    assert written.marks() == {"requests": "3"}
    assert recover(written, no_state, lambda _: replay(MESSAGES)) == (replay(MESSAGES), 6)
    assert written.write(ticks(9, 1), {}, epoch=1) == 7
    assert recover(written, no_state, lambda _: replay(MESSAGES)) == (replay([*MESSAGES, *ticks(9, 1)]), 7)


def test_a_snapshot_that_has_seen_a_damaged_turn_goes_with_it_if_it_can(written: Store, store_url: str) -> None:
    written.save_snapshot(3, {"after": 3})
    written.save_snapshot(6, {"after": 6})
    damage(store_url, 5)
    (told,) = written.mend()
    assert "messages 4 to 6, written together, went to quarantine; that turn will be decided again" in told
    assert written.latest_snapshot() == (3, {"after": 3})
    assert written.marks() != {"requests": "3"}
    assert recover(written, no_state, lambda _: replay(MESSAGES[:3])) == (replay(MESSAGES[:3]), 6)


def test_a_submission_that_nobody_waits_for_any_more_keeps_nobody_else_waiting(store_url: str) -> None:
    with Store.open(store_url) as store:
        row = NewJob(name="x", queue="default", document={})
        for _ in range(200):
            store.submit([row], user="ada", at=0.0, key=None, digest="").cancel()
        assert store.submit([row], user="ada", at=0.0, key=None, digest="").result(10.0).fresh


def test_a_file_with_damaged_pages_is_reported_by_name(tmp_path: Path, sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.write(ticks(0, 5000), {}, epoch=store.claim(who="me"))
    path = tmp_path / "fairlead.db"
    data = bytearray(path.read_bytes())
    data[100_000:] = b"\x5a" * (len(data) - 100_000)
    path.write_bytes(data)
    with (
        pytest.raises(BackendError, match=r"(fairlead\.db|message \d+ of the journal)"),
        Store.open(sqlite_url) as store,
    ):
        list(store.read())
