"""Directories that carry the identity of their job: another job's is never adopted, read or continued."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from world import World

from fairlead.backends.identity import Identity, belongs_to, read_identity, take_directory
from fairlead.backends.local import LocalBackend
from fairlead.core.messages import JobStopped
from fairlead.core.types import Phase

MINE, OTHER = Identity("c", "1", "mine"), Identity("c", "1", "other")


class Clusters(World):
    """A world in which the database may be another one after a crash."""

    submission: str | None = "first"

    def make_backend(self) -> LocalBackend:
        backend = super().make_backend()
        backend._identify = lambda job: Identity("c", job, self.submission)
        return backend

    def replace_database(self, submission: str) -> None:
        """Another cluster's, with the same numbers."""
        self.submission = submission
        self.crash()
        self.events.clear()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    world = Clusters(tmp_path)
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


# -- directories -------------------------------------------------------------------------------------------------------


def test_a_directory_is_its_jobs_from_the_moment_it_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "jobs" / "1"
    assert belongs_to(directory, MINE)
    assert take_directory(directory, MINE) is None
    assert read_identity(directory) == MINE
    assert take_directory(directory, MINE) is None
    assert not belongs_to(directory, OTHER)
    assert not belongs_to(directory, replace(MINE, cluster="d"))
    assert not belongs_to(directory, MINE.of_attempt(1))


def test_another_jobs_directory_is_put_aside_whole(tmp_path: Path) -> None:
    directory = tmp_path / "jobs" / "1"
    take_directory(directory, MINE)
    (directory / "checkpoints").mkdir()
    moved = take_directory(directory, OTHER)
    assert moved == tmp_path / "jobs" / "aside" / "1-1"
    assert (moved / "checkpoints").is_dir()
    assert [path.name for path in directory.iterdir()] == ["identity.json"]
    assert take_directory(directory, MINE) == tmp_path / "jobs" / "aside" / "1-2"


def test_what_carries_no_identity_belongs_to_jobs_from_before_alone(tmp_path: Path) -> None:
    directory = tmp_path / "1"
    directory.mkdir()
    assert belongs_to(directory, MINE)  # it was made, and then the server was killed
    (directory / "events.jsonl").touch()
    assert not belongs_to(directory, MINE)
    assert belongs_to(directory, replace(MINE, submission=None))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster": "c"}', '{"cluster": "c", "who": 1}'])
def test_an_identity_that_cannot_be_read_is_no_jobs(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    assert not belongs_to(tmp_path, MINE)
    assert not belongs_to(tmp_path, replace(MINE, submission=None))


# -- attempts ----------------------------------------------------------------------------------------------------------


def test_an_attempt_of_an_older_job_is_not_taken_for_the_new_ones(clusters: Clusters) -> None:
    clusters.start("1", f"echo secret; echo old >> {clusters.work}/ran; touch $FAIRLEAD_CHECKPOINTS/trained")
    assert clusters.exit("1").code == 0
    clusters.replace_database("second")
    assert clusters.backend.logs("1") == []
    clusters.start("1", f"ls $FAIRLEAD_CHECKPOINTS; echo new >> {clusters.work}/ran")
    assert clusters.exit("1").code == 0
    assert clusters.written("ran").split() == ["old", "new"]
    (log,) = clusters.backend.logs("1")
    assert log.path.read_text() == ""
    (note,) = clusters.noted("put-aside", "1")
    moved = Path(note["moved"])
    assert moved == clusters.root / "aside" / "1-1"
    assert (moved / "attempt-1" / "logs" / "rank-0.log").read_text() == "secret\n"
    assert (moved / "checkpoints" / "trained").exists()


def test_an_attempt_carries_its_identity(clusters: Clusters) -> None:
    clusters.start("1", "true")
    clusters.exit("1")
    said = json.loads((clusters.backend.files("1", 1).directory / "identity.json").read_text())
    assert said == {"cluster": "c", "job": "1", "submission": "first", "attempt": 1}


def test_what_an_older_job_said_is_not_heard_after_a_crash(clusters: Clusters) -> None:
    clusters.start("1", "exit 3")
    clusters.exit("1")
    clusters.submission = "second"
    clusters.tasks["1"] = {"command": ("bash", "-c", f"echo new >> {clusters.work}/ran")}
    clusters.events.clear()
    (told,) = clusters.crash(clusters.believed("1", Phase.RUNNING, 0))
    assert told == "job 1: is started now"
    assert clusters.exit("1").code == 0
    assert clusters.written("ran") == "new\n"


def test_an_attempt_from_before_there_were_identities_is_taken_up(clusters: Clusters) -> None:
    clusters.submission = None
    clusters.start("1", f"while [ ! -e {clusters.work}/go ]; do sleep 0.05; done")
    clusters.supervisor("1")
    for path in clusters.root.rglob("identity.json"):
        path.unlink()
    (told,) = clusters.crash(clusters.believed("1", Phase.RUNNING, 0))
    assert told == "job 1: goes on"
    (clusters.work / "go").touch()
    assert clusters.exit("1").code == 0
    assert len(clusters.backend.logs("1")) == 1


# -- attempts that no job claims ---------------------------------------------------------------------------------------

SAVES = 'trap "echo saved >> saved; exit 0" TERM; echo >> up; while :; do sleep 0.05; done'


def test_attempts_that_the_database_does_not_know_are_ended(clusters: Clusters) -> None:
    clusters.start("1", f"cd {clusters.work}; " + SAVES)
    clusters.start("2", f"cd {clusters.work}; " + SAVES, gpus=clusters.gpus(1))
    clusters.until(lambda: clusters.written("up").count("\n") == 2)
    known = clusters.believed("2", Phase.RUNNING, 1)
    clusters.crash(known)
    (told,) = clusters.backend.end_unclaimed([known], grace_s=20.0)
    assert told.startswith("job 1, attempt 1, runs here, but the database does not know that: it was asked to save")
    assert clusters.written("saved") == "saved\n"
    assert clusters.backend.running == ["2"]
    assert clusters.backend.end_unclaimed([known], grace_s=20.0) == []
    clusters.stop("2")
    clusters.end("2")


def test_an_attempt_that_goes_by_the_number_of_another_job_is_ended(clusters: Clusters) -> None:
    clusters.start("1", f"cd {clusters.work}; " + SAVES)
    clusters.until(lambda: clusters.written("up"))
    clusters.submission = "second"
    claims = clusters.believed("1", Phase.RUNNING, 0)
    backend = clusters.make_backend()
    (told,) = backend.end_unclaimed([claims], grace_s=20.0)
    assert "job 1, attempt 1" in told
    assert clusters.written("saved") == "saved\n"
    clusters.end("1")


def test_an_attempt_that_is_ahead_of_the_database_is_stopped_and_not_run_again(clusters: Clusters) -> None:
    clusters.start("1", f"cd {clusters.work}; " + SAVES)
    clusters.until(lambda: clusters.written("up"))
    clusters.stop("1")
    clusters.end("1")
    clusters.again("1", 2)
    clusters.until(lambda: clusters.written("up").count("\n") == 2)
    clusters.events.clear()
    restored = clusters.believed("1", Phase.RUNNING, 0)  # with attempt 1, as it was when the backup was made
    clusters.marks.clear()
    backend = clusters.make_backend()
    (told,) = backend.end_unclaimed([restored], grace_s=20.0)
    assert "job 1, attempt 2" in told
    assert clusters.crash(restored) == ["job 1: has ended meanwhile"]
    clusters.hear("1", JobStopped)
    clusters.again("1", 2)
    clusters.hear("1", JobStopped, count=2)
    assert clusters.written("up").count("\n") == 2
    assert clusters.written("saved").count("\n") == 2
