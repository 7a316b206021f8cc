"""The journal: what was committed is there, whatever became of the writer; what is no journal is refused by name."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    encode,
)
from fairlead.core.types import Allocation, JobSpec, Node, Observation
from fairlead.journal import FileJournal, MemoryJournal, checksum, read_journal, replay, save_journal

LIFE: list[Message] = [
    NodeJoined(0.0, Node("n0", 4, labels={"rack": "ü"})),
    JobSubmitted(0.1, JobSpec(id="a", gpus=2)),
    Start(0.1, "a", 1, Allocation.of({"n0": [0, 1]})),
    JobStarted(1 / 3, "a", 1),
    JobReported(1.5, "a", 1, 0.5, 8, 2.0, (Observation("gpu", 1, 2, 4, 0, 0.1, 0.0),)),
    JobExited(2.5, "a", 1),
]


def read(path: Path, after: int = 0) -> list[Message]:
    return [message for _, message in read_journal(path, after=after)]


def write(path: Path, messages: list[Message] = LIFE) -> None:
    with FileJournal(path) as journal:
        for message in messages:
            journal.append(message)


def ticks(count: int) -> list[Message]:
    return [Tick(float(second)) for second in range(count)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.journal"


# -- writing and reading ---------------------------------------------------------------------------------------------


def test_a_journal_in_memory_is_replayed_to_the_state_it_came_from() -> None:
    journal = MemoryJournal()
    for message in LIFE:
        journal.append(message)
    journal.commit()
    assert list(journal) == LIFE
    assert replay(journal) == replay(LIFE)


def test_what_is_written_is_read_numbered_and_replays_to_an_equal_state(path: Path) -> None:
    write(path)
    assert list(read_journal(path)) == list(enumerate(LIFE, 1))
    assert read(path, after=4) == LIFE[4:]
    assert replay(read(path)) == replay(LIFE)


def test_a_journal_that_is_opened_again_goes_on_where_it_ended(path: Path) -> None:
    write(path, LIFE[:2])
    write(path, LIFE[2:])
    assert list(read_journal(path)) == list(enumerate(LIFE, 1))


def test_what_is_not_committed_is_not_there(path: Path) -> None:
    with FileJournal(path) as journal:
        journal.append(LIFE[0])
        assert read(path) == []
        journal.commit()
        journal.commit()
        journal.append(LIFE[1])
        assert read(path) == LIFE[:1]
    assert read(path) == LIFE[:2]


def test_a_reader_follows_a_writer(path: Path) -> None:
    seen: list[Message] = []
    with FileJournal(path) as journal:
        for number, message in enumerate(LIFE):
            journal.append(message)
            journal.commit()
            seen += read(path, after=number)
    assert seen == LIFE


def test_a_reader_in_the_middle_of_reading_does_not_hold_up_the_writer_and_sees_one_moment(path: Path) -> None:
    write(path, ticks(10))
    with FileJournal(path) as journal:
        reader = read_journal(path)
        first = next(reader)
        for message in ticks(1000):
            journal.append(message)
        journal.commit()
        assert [message for _, message in (first, *reader)] == ticks(10)
    assert len(read(path)) == 1010


def test_after_folding_one_file_holds_everything(path: Path, tmp_path: Path) -> None:
    with FileJournal(path) as journal:
        for message in LIFE:
            journal.append(message)
        journal.fold()
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
    assert read(copy) == LIFE


def test_a_message_that_has_no_json_form_is_refused_and_the_others_are_kept(path: Path) -> None:
    with FileJournal(path) as journal:
        journal.append(LIFE[0])
        with pytest.raises(InvalidSpec, match="finite"):
            journal.append(Tick(float("nan")))
    assert read(path) == LIFE[:1]


# -- one writer ------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_while_the_first_lives(path: Path) -> None:
    with FileJournal(path) as journal:
        with pytest.raises(BackendError, match=r"another process is writing .*run\.journal; a journal has one writer"):
            FileJournal(path)
        with pytest.raises(BackendError, match="one writer"):
            save_journal(path, LIFE)
        journal.append(LIFE[0])
    with FileJournal(path):
        pass
    assert read(path) == LIFE[:1]


WRITER = """
import sys
from pathlib import Path
from fairlead.core.messages import Tick
from fairlead.journal import FileJournal
journal = FileJournal(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    journal.append(Tick(float(number)))
    if number % 3 == 2:
        journal.commit()
        print(number + 1, flush=True)
print("done", flush=True)
sys.stdin.read()
"""


def start_writer(path: Path, count: int) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def kill(writer: subprocess.Popen[str]) -> list[str]:
    """The lines it had still written."""
    writer.send_signal(signal.SIGKILL)
    assert writer.stdout is not None
    lines = writer.stdout.read()  # `communicate` would pass over those that came together with the last one
    assert writer.wait() == -signal.SIGKILL
    return lines.splitlines()


def test_a_second_writer_in_another_process_is_refused_until_the_first_is_dead(path: Path) -> None:
    writer = start_writer(path, 0)
    with pytest.raises(BackendError, match="one writer"):
        FileJournal(path)
    kill(writer)
    write(path)
    assert read(path) == LIFE


@pytest.mark.parametrize("after_lines", [0, 1, 7, 40])
def test_a_writer_that_is_killed_leaves_everything_it_had_committed(path: Path, after_lines: int) -> None:
    writer = start_writer(path, 100_000)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(after_lines)]
    lines += kill(writer)
    committed = max((int(line) for line in lines), default=0)
    left = read(path)
    assert committed <= len(left) <= committed + 3  # killed between the commit and the line that tells of it
    assert left == ticks(len(left))
    assert replay(left) == replay(ticks(len(left)))
    write(path, LIFE)
    assert read(path) == left + LIFE


def test_another_process_reads_while_this_one_writes(path: Path) -> None:
    code = "import sys, fairlead.journal as j; print(len([*j.read_journal(j.Path(sys.argv[1]))]))"
    with FileJournal(path) as journal:
        for message in LIFE:
            journal.append(message)
        journal.commit()
        journal.append(LIFE[-1])
        assert subprocess.check_output([sys.executable, "-c", code, str(path)]) == b"6\n"


# -- what is no journal ----------------------------------------------------------------------------------------------


def test_a_file_that_is_missing_or_a_folder_is_no_journal(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="there is no journal at"):
        read(path)
    with pytest.raises(InvalidSpec, match=r"is a directory without fairlead\.db; .* name that: postgresql://"):
        read(tmp_path)
    assert names(tmp_path) == []


def test_a_file_of_another_kind_is_refused_by_readers_and_left_alone_by_writers(path: Path) -> None:
    path.write_text("job,gpus\n" * 1000)
    with pytest.raises(InvalidSpec, match=r"run\.journal is not a readable journal"):
        read(path)
    with pytest.raises(BackendError, match=r"cannot open journal .*run\.journal"):
        FileJournal(path)
    assert path.read_text() == "job,gpus\n" * 1000
    path.unlink()
    write(path)  # the refusal did not keep the lock


def test_an_sqlite_file_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY, body TEXT)")
    before = path.read_bytes()
    for attempt in (lambda: read(path), lambda: FileJournal(path)):
        with pytest.raises(InvalidSpec, match=r"run\.journal is an SQLite file, but neither a Fairlead journal"):
            attempt()
    assert path.read_bytes() == before


def change(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, values)
    db.close()


def test_a_journal_from_the_future_asks_for_an_upgrade(path: Path) -> None:
    write(path)
    change(path, "PRAGMA user_version = 3")
    for attempt in (lambda: read(path), lambda: FileJournal(path)):
        with pytest.raises(InvalidSpec, match=r"run\.journal was written by a newer Fairlead \(journal version 3\)"):
            attempt()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"v":1,"type":"JobSta', "Unterminated string"),
        ("", "Expecting value"),
        ("[1,2]", "a message is a JSON object, not list"),
        ('{"v":9,"type":"Tick","at":0}', "message version 9 is unknown"),
        ('{"v":1,"type":"Tock","at":0}', "message type 'Tock' is unknown"),
        ('{"v":1,"type":"Tick","at":1e999}', "Tick.at is inf"),
        ('{"v":1,"type":"Tick"}', "Tick lacks at"),
        ("[" * 100_000, "recursion"),
        (b"\xff\xfe\x00", "it is damaged"),
    ],
)
def test_a_damaged_message_is_named_by_file_and_number(path: Path, body: object, words: str) -> None:
    write(path)
    crc = checksum(body) if isinstance(body, str) else 0
    change(path, "UPDATE journal SET body = ?, crc = ? WHERE seq = 3", body, crc)
    messages = read_journal(path)
    assert [next(messages), next(messages)] == [(1, LIFE[0]), (2, LIFE[1])]
    with pytest.raises(InvalidSpec, match=r"run\.journal, message 3: ") as caught:
        next(messages)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 10_000


def test_a_message_that_was_changed_is_found_by_its_checksum(path: Path) -> None:
    write(path)
    change(path, "UPDATE journal SET body = replace(body, '1', '2') WHERE seq = 3")
    with pytest.raises(InvalidSpec, match=r"run\.journal, message 3: it is damaged"):
        read(path)


def test_a_journal_with_a_hole_is_refused(path: Path) -> None:
    write(path)
    change(path, "DELETE FROM journal WHERE seq = 3")
    with pytest.raises(InvalidSpec, match=r"run\.journal: message 3 is missing; the journal has a hole"):
        read(path)


def test_a_journal_of_the_first_version_is_read_and_not_written(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA application_id = 0x464C4A31")
    db.execute("PRAGMA user_version = 1")
    db.execute(
        "CREATE TABLE messages (seq INTEGER PRIMARY KEY, at REAL NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL)"
    )
    for message in LIFE:
        row = (message.at, type(message).__name__, json.dumps(encode(message)))
        db.execute("INSERT INTO messages (at, type, body) VALUES (?, ?, ?)", row)
    db.commit()
    db.close()
    assert read(path) == LIFE
    with pytest.raises(InvalidSpec, match="of version 1, which can be read only"):
        FileJournal(path)


def test_a_journal_with_damaged_pages_is_refused_by_name(path: Path) -> None:
    write(path, ticks(5000))
    data = bytearray(path.read_bytes())
    data[20_000:60_000] = b"\x5a" * 40_000
    path.write_bytes(data)
    with pytest.raises(InvalidSpec, match=r"run\.journal"):
        read(path)


def test_a_journal_where_no_file_can_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="No such file or directory"):
        FileJournal(tmp_path / "nowhere" / "run.journal")
    with pytest.raises(BackendError, match="No such file or directory"):
        save_journal(tmp_path / "nowhere" / "run.journal", LIFE)


# -- whole journals at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.journal", "run[1]*.journal", "a b%?#.journal"])
def test_a_saved_journal_is_one_file_that_can_be_read_and_continued(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_journal(path, LIFE)
    assert names(tmp_path) == [name]
    assert read(path) == LIFE
    save_journal(path, ticks(3))
    assert read(path) == ticks(3)
    write(path, LIFE)
    assert read(path) == ticks(3) + LIFE


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(path: Path, tmp_path: Path) -> None:
    def broken() -> Iterator[Message]:
        yield from LIFE[:3]
        raise RuntimeError("the simulation failed")

    save_journal(path, LIFE)
    before, listing = path.read_bytes(), names(tmp_path)
    for messages, error in [(broken(), RuntimeError), (iter([Tick(float("inf"))]), InvalidSpec)]:
        with pytest.raises(error):
            save_journal(path, messages)
        assert path.read_bytes() == before
        assert names(tmp_path) == listing
    assert read(path) == LIFE


def test_a_save_does_not_disturb_the_drafts_of_others(path: Path, tmp_path: Path) -> None:
    other = tmp_path / f".{path.name}.{os.getpid()}7"  # as of a process whose number begins like ours
    other.write_text("mine")
    save_journal(path, LIFE)
    assert other.read_text() == "mine"


def test_a_save_over_the_journal_of_a_killed_writer_is_not_mixed_with_its_last_commits(path: Path) -> None:
    writer = start_writer(path, 300)
    assert writer.stdout is not None
    while writer.stdout.readline() != "done\n":
        pass
    kill(writer)
    assert path.with_name(path.name + "-wal").stat().st_size > 0
    save_journal(path, LIFE)
    assert read(path) == LIFE


def test_a_save_onto_a_folder_says_why_not(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot write journal"):
        save_journal(tmp_path, LIFE)


@pytest.mark.slow
def test_a_commit_that_fails_can_be_repeated_and_a_writer_that_gives_up_lets_go(path: Path) -> None:
    journal = FileJournal(path)
    journal.append(LIFE[0])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendError, match="cannot write to the journal: database is locked"):
        journal.commit()
    other.execute("ROLLBACK")
    journal.commit()
    assert read(path) == LIFE[:1]
    journal.append(LIFE[1])
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendError, match="cannot write to the journal: database is locked"):
        journal.close()
    other.close()
    write(path, LIFE[1:])
    assert read(path) == LIFE


def test_reading_a_saved_journal_leaves_nothing_beside_it(tmp_path: Path) -> None:
    save_journal(tmp_path / "whole.db", [Tick(1.0)])
    assert [message for _, message in read_journal(tmp_path / "whole.db")] == [Tick(1.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["whole.db"]
