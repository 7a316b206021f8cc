"""What jobs wrote: which part of it, by whom it may be read, and how it is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from still import StillLog, StillPlane

from fairlead.backends.inbox import Clock, Inbox
from fairlead.backends.local import LocalBackend
from fairlead.backends.machine import describe
from fairlead.core.errors import InvalidSpec
from fairlead.server.logs import LONGEST_LINE, MOST_LINES, Follower, Wanted, read


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        plane.submit()
        yield plane


def text(plane: StillPlane, query: str = "", user: str = "ann") -> str:
    response = plane.ask("GET", f"/api/v1/jobs/1/logs{query}", user)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    return response.text


# -- all at once -------------------------------------------------------------------------------------------------------


def test_a_job_that_wrote_nothing_has_an_empty_log(plane: StillPlane) -> None:
    assert text(plane) == ""


def test_the_log_of_one_worker_is_as_it_was_written(plane: StillPlane) -> None:
    plane.write_log("1", "eins\nzwei ä\n".encode())
    assert text(plane) == "eins\nzwei ä\n"


def test_lines_of_several_workers_begin_with_their_rank(plane: StillPlane) -> None:
    plane.write_log("1", b"a\nb", rank=0)
    plane.write_log("1", b"c\n", rank=1)
    assert text(plane) == "[0] a\n[0] b\n[1] c\n"
    assert text(plane, "?rank=1") == "c\n"


def test_a_worker_or_an_attempt_that_is_not_there_is_an_error_that_names_those_that_are(plane: StillPlane) -> None:
    assert text(plane, "?rank=7") == text(plane, "?attempt=4") == ""  # nobody has written anything yet
    for rank in range(3):
        plane.write_log("1", b"a\n", rank=rank)
    for query, detail in [
        ("rank=7", "job 1 has no worker of rank 7; there are ranks 0 to 2"),
        ("attempt=4", "job 1 has no attempt 4; there is attempt 1"),
        ("attempt=4&rank=7", "job 1 has no attempt 4; there is attempt 1"),
    ]:
        response = plane.ask("GET", f"/api/v1/jobs/1/logs?{query}")
        assert (response.status_code, response.json()["detail"]) == (404, detail)
    plane.controller.exits("1")
    assert plane.ask("GET", "/api/v1/jobs/1/logs/stream?rank=7").status_code == 404


def test_the_last_attempt_is_shown_unless_asked_otherwise(plane: StillPlane) -> None:
    plane.write_log("1", b"old\n", attempt=1)
    plane.write_log("1", b"new\n", attempt=2)
    assert text(plane) == "new\n"
    assert text(plane, "?attempt=1") == "old\n"
    assert text(plane, "?attempt=all") == "old\nnew\n"
    refused = plane.ask("GET", "/api/v1/jobs/1/logs?attempt=3")
    assert refused.json()["detail"] == "job 1 has no attempt 3; there are attempts 1, 2"


@pytest.mark.parametrize("ends", ["\n", ""])
@pytest.mark.parametrize("tail", [0, 1, 2, 5, 6, 100])
def test_a_tail_is_the_last_so_many_lines(plane: StillPlane, tail: int, ends: str) -> None:
    lines = [f"line {n}" for n in range(6)]
    plane.write_log("1", ("\n".join(lines) + ends).encode())
    assert text(plane, f"?tail={tail}").splitlines() == (lines[-tail:] if tail else [])


def test_a_tail_is_found_in_a_file_that_is_larger_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"{n} {'x' * (n % 977)}" for n in range(2000)]
    path.write_text("\n".join(lines) + "\n")
    file = StillLog(1, 0, path, path.with_suffix(".index"))
    for tail in (1, 150, 151, 1999, 2000):
        assert b"".join(read([file], Wanted(tail=tail))).decode().splitlines() == lines[-tail:]


def test_what_was_written_since_a_time_is_found_by_the_index(plane: StillPlane) -> None:
    now = plane.controller.now()
    index = f"{now - 100} 4\n{now - 50} 8\n{now - 10} 12\nhalf a li"
    plane.write_log("1", b"aaa\nbbb\nccc\n", index=index)
    assert text(plane, "?since=60s") == "bbb\nccc\n"
    assert text(plane, f"?since={now - 49}") == "ccc\n"
    assert text(plane, "?since=1h") == "aaa\nbbb\nccc\n"
    assert text(plane, "?since=1s") == ""
    assert text(plane, "?since=1h&tail=1") == "ccc\n"


def test_bytes_that_are_no_text_are_shown_with_marks(plane: StillPlane) -> None:
    plane.write_log("1", b"\xff\xfe\x00ok\n")
    assert "ok" in text(plane)


@pytest.mark.parametrize(
    "query", ["rank=-1", "rank=x", "attempt=-1", "attempt=x", "tail=-1", "tail=1e9", "since=soon", "since=-1"]
)
def test_a_part_that_makes_no_sense_is_refused(plane: StillPlane, query: str) -> None:
    for path in ("logs", "logs/stream"):
        assert plane.ask("GET", f"/api/v1/jobs/1/{path}?{query}").status_code == 422


def test_logs_are_for_the_owner_and_admins(plane: StillPlane) -> None:
    plane.write_log("1", b"private\n")
    assert text(plane, user="root") == "private\n"
    for user in ("bob", "eve"):
        for path in ("logs", "logs/stream"):
            response = plane.ask("GET", f"/api/v1/jobs/1/{path}", user)
            assert response.status_code == 404
            assert "private" not in response.text


# -- files that are not what they seem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trick", ["link", "pipe", "directory", "gone"])
def test_only_a_regular_file_is_read(plane: StillPlane, trick: str) -> None:
    secret = plane.directory / "secret"
    secret.write_text("secretword\n")
    path = plane.write_log("1", b"x")
    path.unlink()
    if trick == "link":
        path.symlink_to(secret)
    elif trick == "pipe":
        os.mkfifo(path)
    elif trick == "directory":
        path.mkdir()
    assert text(plane) == ""
    follower = Follower(Wanted())
    assert follower.look(plane.log_files["1"], final=True) == []


@pytest.mark.parametrize("above", ["logs", "attempt"])
def test_no_directory_above_a_log_is_followed_if_it_is_a_link(tmp_path: Path, above: str) -> None:
    """To the logs of another job, say, which are none of this one's user's business."""
    machine = describe(gpus=1, nodes=None)
    backend = LocalBackend(tmp_path, machine, Inbox(Clock()), prepare=lambda start: pytest.fail(str(start)))
    others, own = backend.files("1", 1).logs, backend.files("2", 1).logs
    others.mkdir(parents=True)
    (others / "rank-0.log").write_text("private\n")
    (others / "rank-0.index").write_text("0.0 3\n")
    link = own if above == "logs" else own.parent
    link.parent.mkdir(parents=True)
    link.symlink_to(others if above == "logs" else others.parent)
    assert b"".join(read(backend.logs("1"), Wanted())) == b"private\n"
    assert b"".join(read(backend.logs("2"), Wanted())) == b""
    assert Follower(Wanted()).look(backend.logs("2"), final=True) == []


def test_names_that_no_log_has_are_passed_over(tmp_path: Path) -> None:
    machine = describe(gpus=1, nodes=None)
    backend = LocalBackend(tmp_path, machine, Inbox(Clock()), prepare=lambda start: pytest.fail(str(start)))
    for name in ("attempt-1/logs/rank-0.log", "attempt-x/logs/rank-0.log", "attempt-1/logs/rank-.log"):
        path = tmp_path / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [(file.attempt, file.rank) for file in backend.logs("1")] == [(1, 0)]


# -- as they grow ------------------------------------------------------------------------------------------------------


def texts(lines: list[Any]) -> list[str]:
    return [line.text for line in lines]


def test_a_follower_is_told_whole_lines_as_they_come(plane: StillPlane) -> None:
    follower = Follower(Wanted())
    assert follower.look([], final=False) == []
    plane.write_log("1", b"one\ntw")
    files = plane.log_files["1"]
    assert texts(follower.look(files, final=False)) == ["one"]
    assert follower.look(files, final=False) == []
    plane.write_log("1", b"o\n")
    assert texts(follower.look(files, final=False)) == ["two"]
    plane.write_log("1", b"no line feed")
    assert follower.look(files, final=False) == []
    assert texts(follower.look(files, final=True)) == ["no line feed"]


def test_a_follower_goes_on_with_the_next_attempt(plane: StillPlane) -> None:
    follower = Follower(Wanted())
    plane.write_log("1", b"first", attempt=1)
    plane.write_log("1", b"second\n", attempt=2)
    assert texts(follower.look(plane.log_files["1"], final=False)) == ["second"]
    plane.write_log("1", b"unfinished", attempt=2)
    plane.write_log("1", b"third\n", attempt=3)
    found = follower.look(plane.log_files["1"], final=False)
    assert [(line.attempt, line.text) for line in found] == [(2, "unfinished"), (3, "third")]


def test_a_follower_that_comes_back_goes_on_after_the_last_line_it_was_told(plane: StillPlane) -> None:
    for rank in (0, 1):
        plane.write_log("1", b"".join(b"%d\n" % n for n in range(5)), rank=rank)
    files = plane.log_files["1"]
    whole = Follower(Wanted()).look(files, final=False)
    assert len(whole) == 10
    for number, line in enumerate(whole):
        rest = Follower.at(line.position, Wanted()).look(files, final=False)
        assert [(r.rank, r.text) for r in rest] == [(r.rank, r.text) for r in whole[number + 1 :]]


def test_a_follower_may_begin_near_the_end(plane: StillPlane) -> None:
    plane.write_log("1", b"a\nb\nc\n")
    assert texts(Follower(Wanted(tail=1)).look(plane.log_files["1"], final=False)) == ["c"]


def test_one_look_is_bounded_and_so_is_a_line(plane: StillPlane) -> None:
    plane.write_log("1", b"x\n" * (MOST_LINES + 5) + b"y" * (2 * LONGEST_LINE + 3))
    follower, files = Follower(Wanted()), plane.log_files["1"]
    assert len(follower.look(files, final=False)) == MOST_LINES
    rest = follower.look(files, final=True)
    rest += follower.look(files, final=True)
    assert [len(line.text) for line in rest] == [1] * 5 + [LONGEST_LINE, LONGEST_LINE, 3]


@pytest.mark.parametrize(
    "position", ["x", "1_2", "1_../../etc/passwd", "1_1.0.-5", "1_1.0.1e9", "1\n", "1_1.0." + "9" * 30]
)
def test_a_position_that_is_none_of_ours_is_refused(plane: StillPlane, position: str) -> None:
    with pytest.raises(InvalidSpec, match="position"):
        Follower.at(position, Wanted())
    if position.isprintable():  # or else it is no header
        response = plane.ask("GET", "/api/v1/jobs/1/logs/stream", headers={"Last-Event-ID": position})
        assert response.status_code == 422


def test_a_position_beyond_the_end_is_the_end(plane: StillPlane) -> None:
    plane.write_log("1", b"a\n")
    follower = Follower.at("1_1.0.999999", Wanted())
    assert follower.look(plane.log_files["1"], final=False) == []
    plane.write_log("1", b"b\n")
    assert texts(follower.look(plane.log_files["1"], final=False)) == ["b"]
