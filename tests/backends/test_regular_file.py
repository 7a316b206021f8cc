"""A job puts links, pipes and devices where others keep files about it: nothing is followed, and nothing hangs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from world import World, alive

from fairlead.backends.files import Appender, AttemptFiles, Tail, open_log
from fairlead.backends.regular_file import APPEND, NotRegular, make_folder, open_append, open_regular, write_whole
from fairlead.core.messages import JobExited, JobStarted
from fairlead.core.types import Phase


def link(path: Path) -> None:
    path.symlink_to(path.with_name("victim"))


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("not there"))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may not be long
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("trap", [link, link_to_nothing, device, os.mkfifo, os.mkdir, unix_socket])
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, trap: Callable[[Path], None]) -> None:
    (tmp_path / "victim").write_text("mine")
    path = tmp_path / "file"
    trap(path)
    for flags in (os.O_RDONLY, APPEND, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotRegular, match="no regular file") as caught:
            open_regular(path, flags)
        assert caught.value.filename == str(path)
    with pytest.raises(NotRegular):
        Tail(path).read()
    with pytest.raises(NotRegular):
        Appender(path).append({"kind": "x"})
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "not there").exists()


def test_no_directory_on_the_way_may_be_a_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "jobs", tmp_path / "elsewhere"
    (root / "1" / "attempt-1").mkdir(parents=True)
    (elsewhere / "logs").mkdir(parents=True)
    (root / "1" / "attempt-1" / "logs").symlink_to(elsewhere / "logs")
    (root / "1" / "attempt-2").symlink_to(elsewhere)
    for attempt in (1, 2):
        path = root / "1" / f"attempt-{attempt}" / "logs" / "rank-0.log"
        for write in (open_log, lambda path: open_append(path, root=root), lambda path: make_folder(path, root=root)):
            with pytest.raises(NotRegular):
                write(path)
        with pytest.raises(NotRegular):
            write_whole(path, "text", root=root)
    assert list((elsewhere / "logs").iterdir()) == []


def test_what_is_above_the_root_may_be_a_link(tmp_path: Path) -> None:
    """A home directory often is."""
    (tmp_path / "real").mkdir()
    root = tmp_path / "jobs"
    root.symlink_to(tmp_path / "real")
    make_folder(root / "1" / "attempt-1" / "logs", root=root)
    with open_append(root / "1" / "attempt-1" / "logs" / "rank-0.log", root=root) as log:
        log.write(b"hello")
    assert (tmp_path / "real/1/attempt-1/logs/rank-0.log").read_text() == "hello"
    with pytest.raises(FileNotFoundError):
        open_regular(root / "2" / "none", os.O_RDONLY, root=root)


def test_what_is_written_whole_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    path = tmp_path / "preempt.json"
    link(path)
    write_whole(path, "notice")
    assert path.read_text() == "notice"
    assert (tmp_path / "victim").read_text() == "mine"
    assert {each.name for each in tmp_path.iterdir()} == {"victim", "preempt.json"}


def test_a_descriptor_blocks_as_usual(tmp_path: Path) -> None:
    with open_append(tmp_path / "log") as log:
        assert os.get_blocking(log.fileno())


# -- with real jobs --------------------------------------------------------------------------------------------------

ITS = "d=$(dirname $FAIRLEAD_PREEMPT_FILE); "


def test_the_supervisor_does_not_append_through_a_link_that_the_job_puts_at_its_index(world: World) -> None:
    (world.work / "victim").write_text("mine\n")
    script = ITS + "rm -f $d/logs/rank-0.index; ln -s $PWD/victim $d/logs/rank-0.index; echo hello"
    world.start("j", script)
    assert world.exit("j").code == 0
    assert world.backend.files("j", 1).log(0).with_suffix(".index").is_symlink()
    assert world.written("victim") == "mine\n"


@pytest.mark.parametrize("trap", ["mkfifo", "ln -s /dev/zero"])
def test_a_job_that_spoils_what_is_said_of_it_is_ended_and_others_are_heard(world: World, trap: str) -> None:
    world.start("j", f"{ITS} echo $$ >> pids; rm $d/events.jsonl; {trap} $d/events.jsonl; sleep 1000")
    world.start("other", "until [ -e go ]; do sleep 0.05; done", gpus=world.gpus(1))
    assert world.hear("j", JobExited).code == 137
    assert not any(map(alive, world.pids("pids")))
    (world.work / "go").touch()
    assert world.exit("other").code == 0


@pytest.mark.parametrize("trap", ["mkfifo", "ln -s /dev/zero"])
def test_a_job_that_spoils_its_lock_has_nothing_that_guards_it_for_a_controller_that_comes_back(
    world: World, trap: str
) -> None:
    world.start("j", f"{ITS} rm $d/lock; {trap} $d/lock; echo $$ >> pids; sleep 1000")
    world.hear("j", JobStarted)
    pids = world.pids("pids")
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: was lost"]
    assert world.exit("j").code == 137
    assert not any(map(alive, pids))


@pytest.mark.parametrize("how", ["it is told to stop", "a controller comes back"])
def test_a_job_that_spoils_its_orders_is_ended_when_it_cannot_be_told(world: World, how: str) -> None:
    world.start("j", f"{ITS} mkfifo $d/orders.jsonl; echo $$ >> pids; sleep 1000")
    world.hear("j", JobStarted)
    pids = world.pids("pids")
    if how == "it is told to stop":
        world.stop("j")
    else:
        world.crash(world.believed("j", Phase.STOPPING, 0))
    end = world.exit("j")
    assert end.code == 137
    assert "orders.jsonl is, or lies behind, a link or something else that is no regular file" in end.detail
    assert not any(map(alive, pids))


def test_a_controller_that_comes_back_to_spoilt_events_ends_the_job_and_goes_on(world: World) -> None:
    world.start("j", "until [ -e go ]; do sleep 0.05; done")
    world.hear("j", JobStarted)
    world.backend.close()
    events = AttemptFiles(world.root / "j" / "attempt-1").events
    events.unlink()
    os.mkfifo(events)
    (told,) = world.crash(world.believed("j", Phase.RUNNING, 0))
    assert told.startswith("job j: was ended, as ")
    assert world.exit("j").code == 137


@pytest.mark.parametrize("what", ["attempt-2", "attempt-2/logs"])
def test_a_directory_that_an_earlier_attempt_has_replaced_is_not_followed(world: World, what: str) -> None:
    script = f"{ITS} [ -d elsewhere ] && exit 4; mkdir elsewhere; mkdir -p $(dirname $d/../{what}); "
    world.start("j", script + f"ln -s $PWD/elsewhere $d/../{what}; exit 3")
    assert world.exit("j").code == 3
    world.events.clear()
    world.again("j", 2)
    end = world.exit("j")
    put_aside = end.code == 4  # it runs in a directory of its own
    assert put_aside or (end.final and "logs is, or lies behind, a link" in end.detail)
    assert list((world.work / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["identity.json", "attempt-1/identity.json"])
def test_a_pipe_in_place_of_an_identity_holds_nothing_up(world: World, name: str) -> None:
    world.start("j", f"{ITS} rm -f $d/../{name}; mkfifo $d/../{name}; echo hello")
    assert world.exit("j").code == 0
    assert world.backend.logs("j") == []  # nothing says any more that they are its own
