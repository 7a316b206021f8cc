"""Memory that workers share, where there is little of it."""

from __future__ import annotations

from pathlib import Path

from fairlead.train.memory import Memory, found, made


def test_memory_that_is_too_large_is_not_made_and_leaves_nothing_behind(tmp_path: Path) -> None:
    assert made(tmp_path / "too-large", 1 << 60) is None
    assert list(tmp_path.iterdir()) == []


def test_what_one_makes_another_finds(tmp_path: Path) -> None:
    mine = made(tmp_path / "shared", 4096)
    assert mine is not None
    mine.map[:5] = b"hello"
    theirs = found(tmp_path / "shared")
    assert theirs is not None
    assert theirs.map[:5] == b"hello"
    mine.forget()
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_has_made_or_not_finished_is_not_found(tmp_path: Path) -> None:
    assert found(tmp_path / "nothing") is None
    (tmp_path / "empty").touch()
    assert found(tmp_path / "empty") is None


def test_memory_that_exists_is_not_taken_from_whoever_made_it(tmp_path: Path) -> None:
    Memory(tmp_path / "shared", 4096)
    assert made(tmp_path / "shared", 4096) is None
    assert (tmp_path / "shared").exists()
