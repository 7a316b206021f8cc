"""A database with a damaged page: it is refused at the start, with the remedy, or the damage does not matter."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from fairlead.core import codec
from fairlead.core.errors import BackendError
from fairlead.core.messages import Tick
from fairlead.core.state import State
from fairlead.server.inspecting import find_record, inspect
from fairlead.server.store import NewJob, Store
from fairlead.server.tables import journal, metadata, snapshots

PAGE = 4096
#: What the loop reads back and would not notice the damage of by itself.
UNCHECKED = [table for table in metadata.sorted_tables if table not in (journal, snapshots)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every table that grows, and indexes of more than one page."""
    path = tmp_path_factory.mktemp("damage") / "fairlead.db"
    with Store.open(f"sqlite:///{path}") as store:
        epoch = store.claim(who="a test")
        rows = [
            NewJob(name="a", queue="default", document={"run": "x" * 60}, secrets={}, element=number)
            for number in range(400)
        ]
        store.submit(rows, user="ada", at=1.0, key="k", digest="d").result()
        for begin in range(0, 300, 50):
            store.write([Tick(float(begin + number)) for number in range(50)], {"requests": "1"}, epoch=epoch)
        store.note([f"1.{number}" for number in range(100)], "worker", 1.0, {"pid": 7})
        store.save_snapshot(store.last_seq(), codec.encode(State().facts()))
    return path


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """By the table, and by the index that finds jobs by their id."""
    found = {}
    with Store.open(f"sqlite:///{path}") as store, store._reading() as connection:
        for table in UNCHECKED:
            found[table.name] = [tuple(row) for row in connection.execute(select(table))]
        found["by id"] = [(job_id, row.seq) for job_id, row in sorted(store.jobs(f"1.{n}" for n in range(400)).items())]
    return found


def is_refused(path: Path) -> bool:
    try:
        find_record(f"sqlite:///{path}", None, token_hash=None)
    except BackendError as error:
        told = str(error)
    else:
        return False
    assert "estore a backup" in told
    return True


def overwrite(page: bytes, other: bytes, chance: random.Random) -> bytes:  # noqa: ARG001
    return chance.randbytes(PAGE)


def swap(page: bytes, other: bytes, chance: random.Random) -> bytes:  # noqa: ARG001
    return other


def empty(page: bytes, other: bytes, chance: random.Random) -> bytes:  # noqa: ARG001
    return bytes(PAGE)


@pytest.mark.parametrize("damage", [overwrite, swap, empty])
def test_every_page_that_matters_is_looked_at(
    sound: Path, tmp_path: Path, damage: Callable[[bytes, bytes, random.Random], bytes]
) -> None:
    whole, chance = sound.read_bytes(), random.Random(7)
    expected, refused = contents(sound), 0
    pages = [whole[begin : begin + PAGE] for begin in range(0, len(whole), PAGE)]
    assert len(pages) > 50
    for number, page in enumerate(pages):
        harmed = damage(page, chance.choice(pages[1:]), chance)
        if harmed == page:
            continue
        path = tmp_path / "fairlead.db"
        for each in tmp_path.iterdir():
            each.unlink()
        path.write_bytes(b"".join((*pages[:number], harmed, *pages[number + 1 :])))
        if is_refused(path):
            refused += 1
        else:
            assert contents(path) == expected, f"page {number + 1} is damaged, and nothing was said"
    assert refused > 0.8 * len(pages)


def test_doctor_looks_deeper(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "fairlead.db"
    path.write_bytes(sound.read_bytes())
    found = inspect(f"sqlite:///{path}")
    assert found is not None
    assert (found.broken, found.damaged, found.count) == ((), (), 300)
    with sqlite3.connect(path) as database:  # an index that the start does not compare with its table
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'notes_job_seq_index'").fetchone()
        (other,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'journal_job_seq_index'"
        ).fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((other - 1) * PAGE)
        page = file.read(PAGE)
        file.seek((root - 1) * PAGE)
        file.write(page)
    found = inspect(f"sqlite:///{path}")
    assert found is not None
    assert found.broken


def test_doctor_reads_the_journal_to_its_beginning(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "fairlead.db"
    path.write_bytes(sound.read_bytes())
    with sqlite3.connect(path) as database:
        database.execute("UPDATE journal SET body = replace(body, 'Tick', 'Tock') WHERE seq = 2")
    database.close()
    found = inspect(f"sqlite:///{path}")
    assert found is not None
    assert found.damaged == ("message 2 does not match its checksum",)
    assert not found.mendable


def test_doctor_replays_what_came_after_the_last_snapshot(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "fairlead.db"
    path.write_bytes(sound.read_bytes())
    with Store.open(f"sqlite:///{path}") as store:
        store.claim(who="a test")
        store.save_snapshot(store.last_seq(), {"no": "state"})
    found = inspect(f"sqlite:///{path}")
    assert found is not None
    assert "the journal cannot be replayed" in found.damaged[0]
