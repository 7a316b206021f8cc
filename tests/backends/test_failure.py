"""Attempts that fail: what they printed last, errors that repeat themselves, and the wait before the next try."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from world import World

from fairlead.backends.failure import QUICK_S, last_line, repeats
from fairlead.core.messages import JobExited, JobStopped

MISSING = (sys.executable, "-c", "import nothing_of_this_name")
SAID = "ModuleNotFoundError: No module named 'nothing_of_this_name'"


def ends_again(world: World, attempt: int) -> JobExited:
    world.again("j", attempt)
    world.until(lambda: len(world.ends("j")) == attempt and not world.carriers())
    end = world.ends("j")[-1]
    assert isinstance(end, JobExited)
    return end


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"one\ntwo", "two"),
        (b"error: no such file\n\n  \n=======\n", "error: no such file"),
        (b"\x1b[31mred\x1b[0m\x07 alert\n", "red  alert"),
        (b"10 %\r20 %\r30 %", "30 %"),
        (b"x" * 20_000, "x" * 197 + "..."),
        ("\xe4\n".encode("latin-1"), "\ufffd"),
    ],
)
def test_the_last_line_is_one_that_says_something(tmp_path: Path, written: bytes, line: str) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(written)
    assert last_line(log) == (line if any(each.isalnum() for each in line) else "")


def test_what_a_job_put_in_the_place_of_its_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert [last_line(tmp_path / name) for name in ("link", "pipe", "none", ".")] == ["", "", "", ""]


ONCE: dict[str, Any] = {"code": 1, "last_line": "KeyError: 'lr'", "lasted_s": 3.0, "stopped": False}


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (ONCE, ONCE, True),
        (None, ONCE, False),
        ({**ONCE, "stopped": True}, ONCE, False),
        ({**ONCE, "code": 2}, ONCE, False),
        ({**ONCE, "last_line": "KeyError: 'epochs'"}, ONCE, False),
        ({**ONCE, "lasted_s": QUICK_S + 1.0}, ONCE, False),
        (ONCE, {**ONCE, "lasted_s": QUICK_S + 1.0}, False),
        ({"code": 1}, ONCE, False),  # as an older supervisor wrote it
        ({**ONCE, "code": 137}, {**ONCE, "code": 137}, False),  # killed from outside
        ({**ONCE, "last_line": ""}, {**ONCE, "last_line": ""}, False),  # nothing says that it is the same error
    ],
)
def test_only_a_quick_failure_in_the_same_words_repeats_itself(
    before: dict[str, Any] | None, now: dict[str, Any], same: bool
) -> None:
    assert repeats(before, now) is same


@pytest.mark.parametrize("elastic", [False, True])
def test_a_second_failure_at_once_with_the_same_last_line_is_final(world: World, elastic: bool) -> None:
    world.start("j", MISSING, elastic=elastic)
    first = world.exit("j")
    assert (first.code, first.last_line, first.final) == (1, SAID, False)
    second = ends_again(world, 2)
    assert (second.code, second.last_line, second.final) == (1, SAID, True)
    assert second.detail.endswith("exit code 1, as the attempt before did and with the same last line")


def test_a_failure_with_other_words_or_one_the_user_wants_tried_again_is_not(world: World) -> None:
    world.start("j", "date +%N; exit 3")
    assert not world.exit("j").final
    assert not ends_again(world, 2).final
    world.tasks["j"] |= {"command": ("bash", "-c", "echo no luck; exit 3"), "restart_on": (3,)}
    assert not ends_again(world, 3).final
    assert not ends_again(world, 4).final


def test_a_setup_that_fails_says_what_it_printed(world: World) -> None:
    world.start("j", "true", setup="echo there is no such package >&2; exit 4")
    end = world.exit("j")
    assert (end.code, end.last_line) == (4, "there is no such package")
    assert ends_again(world, 2).final


def test_the_command_waits_for_the_end_of_the_back_off(world: World) -> None:
    begun = time.time()
    world.start("j", "date +%s.%N", delay_s=1.5)
    assert world.exit("j").code == 0
    assert float(world.log("j")) >= begun + 1.5


def test_a_job_can_be_stopped_while_it_waits(world: World) -> None:
    world.start("j", "echo begun", delay_s=1000.0)
    world.supervisor("j")
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert not world.backend.files("j", 1).log(0).exists()
