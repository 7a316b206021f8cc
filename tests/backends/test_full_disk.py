"""The disk with everything about jobs on it is full: nothing is lost, and nobody fails for that."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World, alive, kill

from fairlead.core.messages import JobExited, JobStarted, JobStopped

PAGE = 4096


@pytest.fixture
def crowded(tmp_path: Path, small_disk: Path) -> Iterator[World]:
    """A world on a small disk. Its jobs work elsewhere."""
    world = World(tmp_path, root=small_disk / "jobs")
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


def fill(world: World, job: str | None = None) -> Path:
    """Not a byte goes into it any more, also not into the file of events: that is filled up to its last page."""
    if job is not None:
        events = world.backend.files(job, 1).events
        line = {"kind": "padding", "at": 0.0, "x": ""}
        line["x"] = "x" * (PAGE - (events.stat().st_size + len(json.dumps(line)) + 1) % PAGE)
        with events.open("a") as file:
            file.write(json.dumps(line) + "\n")
        assert events.stat().st_size % PAGE == 0
    filler = world.root.parent / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * PAGE):
            pass
    assert os.statvfs(filler).f_bavail == 0
    return filler


def test_the_end_of_a_job_is_told_when_there_is_room(crowded: World) -> None:
    world = crowded
    world.start("j", "until [ -e go ]; do sleep 0.05; done; exit 3")
    world.hear("j", JobStarted)
    worker, supervisor = world.worker("j"), world.supervisor("j")
    filler = fill(world, "j")
    size = world.backend.files("j", 1).events.stat().st_size
    (world.work / "go").touch()
    world.until(lambda: not alive(worker))
    now = world.backend.inbox.clock.now()
    world.until(lambda: world.backend.inbox.clock.now() > now + 1.0)  # it has tried, and will try again
    assert alive(supervisor)
    assert not world.ends("j")
    assert world.backend.files("j", 1).events.stat().st_size == size
    filler.unlink()
    assert world.exit("j").code == 3
    assert [type(event) for event in world.heard("j")] == [JobStarted, JobExited]


def test_a_killed_supervisor_is_told_of_when_there_is_room(crowded: World) -> None:
    world = crowded
    world.start("j", "sleep 1000")
    world.hear("j", JobStarted)
    worker = world.worker("j")
    filler = fill(world, "j")
    kill(world.supervisor("j"))
    world.until(lambda: not alive(worker))
    filler.unlink()
    assert world.exit("j").detail == "its supervisor was killed"


def test_a_stop_is_said_when_there_is_room(crowded: World) -> None:
    world = crowded
    world.start("j", "sleep 1000")
    world.hear("j", JobStarted)
    filler = fill(world, "j")
    world.stop("j")
    assert world.backend.files("j", 1).orders.read_text() == ""
    filler.unlink()
    assert isinstance(world.end("j"), JobStopped)


def test_a_start_is_tried_again_until_there_is_room(crowded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.backends.local.RETRY_S", 0.1)
    world = crowded
    world.root.mkdir()
    filler = fill(world)
    world.start("j", "echo ran >> ran")
    world.until(lambda: world.noted("cannot-start"))
    assert world.noted("cannot-start")[0]["why"] == "No space left on device"
    assert world.backend.running == ["j"]
    filler.unlink()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"


def test_a_start_that_waits_for_room_can_be_stopped(crowded: World) -> None:
    world = crowded
    world.root.mkdir()
    fill(world)
    world.start("j", "echo ran >> ran")
    world.until(lambda: world.noted("cannot-start"))
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert world.written("ran") == ""


def test_nothing_runs_before_it_is_known_to_have_begun(crowded: World) -> None:
    world = crowded
    files = world.backend.files("j", 1)
    files.directory.mkdir(parents=True)
    files.events.write_text("x" * (PAGE - 1) + "\n")
    files.start.write_text("x" * 3 * PAGE)
    filler = fill(world)
    files.start.unlink()  # room for this and for two identities, and for nothing else
    world.start("j", "echo ran >> ran")
    world.until(lambda: files.is_alive)
    now = world.backend.inbox.clock.now()
    world.until(lambda: world.backend.inbox.clock.now() > now + 1.0)
    assert world.written("ran") == ""
    filler.unlink()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"
