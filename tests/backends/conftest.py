"""What the tests of the local backend share: a world of real processes, and the proof that nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four CPU slots on one node. When a test is over, nothing of it may run any more."""
    world = World(tmp_path)
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[World]:
    """Two nodes with two slots each."""
    world = World(tmp_path, nodes="2x2")
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One of 128 KiB."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(where)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], capture_output=True, check=True)
