"""Notes that workers without an agent leave: passed on once each, and nothing that a job writes there does harm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from world import World

from fairlead.backends.worker_notes import WorkerNotes
from fairlead.train.wire import MOST_NOTES, MOST_NOTES_BYTES, encode


def append(path: Path, kind: str, **fields: Any) -> None:
    with path.open("ab") as file:
        file.write(encode(kind, **fields))


def test_each_is_read_once_when_its_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = WorkerNotes(path, 2)
    assert notes.read() == []
    append(path, "begins", step=0, worker="w0", self=1, kind_of="other")
    assert notes.read() == [{"worker": "w0", "step": 0, "what": "begins", "attempt": 2}]
    with path.open("ab") as file:
        file.write(b'{"kind": "complete", ')
    assert notes.read() == []
    with path.open("ab") as file:
        file.write(b'"step": 7}\n')
    assert notes.read() == [{"step": 7, "what": "complete", "attempt": 2}]


def test_what_is_no_note_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(b'nonsense\n[1]\n{"kind": "ended", "code": 0}\n{"kind": ["begins"]}\n{"step": 1}\n\xff\n')
    append(path, "begins", step=3)
    assert [note["step"] for note in WorkerNotes(path, 1).read()] == [3]


def test_no_link_is_followed_and_nothing_but_a_file_is_read(tmp_path: Path) -> None:
    append(tmp_path / "real", "begins", step=0)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ".", "absent"):
        assert WorkerNotes(tmp_path / name, 1).read() == []


def test_no_more_is_read_than_a_job_has_to_say(tmp_path: Path) -> None:
    many, long = tmp_path / "many", tmp_path / "long"
    for _ in range(2 * MOST_NOTES):
        append(many, "begins", step=0)
    assert len(WorkerNotes(many, 1).read()) == MOST_NOTES
    append(long, "begins", step=0)
    with long.open("ab") as file:
        file.write(b"x" * 2 * MOST_NOTES_BYTES)
    notes = WorkerNotes(long, 1)
    assert len(notes.read()) == 1
    append(long, "begins", step=1)
    assert notes.read() == []


@pytest.mark.slow
def test_a_note_of_a_worker_without_an_agent_is_heard_before_its_end(world: World) -> None:
    note = json.dumps({"kind": "begins", "text": "begins at step 0", "step": 0})
    world.start("j", f"echo '{note}' >> $FAIRLEAD_NOTES")
    world.exit("j")
    (heard,) = world.noted("begins", "j")
    assert (heard["text"], heard["step"], heard["attempt"]) == ("begins at step 0", 0, 1)
    assert [line["kind"] for line in world.lines("j")][-2:] == ["note", "ended"]
