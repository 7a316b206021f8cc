"""Those who see to a job are killed while no controller listens: nothing of it lives on, and nothing else is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from world import World, alive, ended, kill, kill_at_once

from fairlead.backends.cgroup import Cgroup, own_groups, place, where_made
from fairlead.backends.files import AttemptFiles
from fairlead.backends.ownership import Record, belongings, left_behind, read_record, sweep
from fairlead.backends.processes import boot_id, cookie_of, entry_of
from fairlead.core import codec
from fairlead.core.messages import JobStarted
from fairlead.core.types import Phase
from fairlead.train.parent_death import die_with_parent, killed_with_us

#: A child, and a daemon in a session of its own with an empty environment; both write down who they are.
HIDDEN = """env -i setsid /bin/sh -c 'echo $$ >> pids; exec /bin/sleep 1000' &
sleep 1000 & echo $! >> pids
echo $$ >> pids; until [ -e go ]; do sleep 0.05; done"""


@pytest.fixture
def hidden(world: World) -> Iterator[tuple[World, list[int]]]:
    """A job that consists of these, all of them on record; and no controller that listens."""
    world.start("j", HIDDEN, grace_s=2.0)
    world.hear("j", JobStarted)
    pids = world.pids("pids", 3)
    assert world.worker("j") in pids
    files = world.backend.files("j", 1)
    world.until(lambda: set(pids) <= {pid for pid, _ in (read_record(files) or Record("")).processes})
    world.backend.close()
    yield world, pids
    for pid in pids:
        kill(pid)


@pytest.mark.parametrize("spared", ["supervisor", "inner guardian", "outer guardian"])
def test_whichever_two_are_killed_the_third_ends_the_job_before_any_controller_comes_back(
    hidden: tuple[World, list[int]], spared: str
) -> None:
    world, pids = hidden
    chain = dict(zip(["outer guardian", "inner guardian", "supervisor"], world.chain("j"), strict=True))
    kill_at_once([pid for name, pid in chain.items() if name != spared])
    assert ended(lambda: not any(map(alive, [*pids, *chain.values()])))
    files = world.backend.files("j", 1)
    end = files.told("ended")
    assert end is not None
    assert (end["code"], end.get("stopped", False)) in ((137, False), (143, True), (137, True))
    assert files.processes.exists() == (spared == "supervisor")  # which cannot leave its own control group
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: has ended meanwhile"]
    world.end("j")
    assert world.backend.sweep() == []
    assert not files.processes.exists()


def test_if_all_are_killed_the_worker_ends_at_once_and_the_rest_with_the_next_start(
    hidden: tuple[World, list[int]],
) -> None:
    world, pids = hidden
    kill_at_once(world.chain("j"))
    assert ended(lambda: not alive(world.worker("j")))
    (left,) = left_behind(world.root)
    assert (left.job, left.attempt) == ("j", 1)
    (line,) = world.backend.sweep()
    assert line.startswith("job j: attempt 1 had left processes behind, ended now: ")
    assert not any(map(alive, pids))
    assert left_behind(world.root) == []
    assert not world.backend.files("j", 1).processes.exists()


@pytest.mark.parametrize("known_by", ["its control group", "its record"])
def test_a_daemon_without_an_environment_is_known_by_either_means(
    hidden: tuple[World, list[int]], known_by: str
) -> None:
    world, pids = hidden
    files = world.backend.files("j", 1)
    whole = read_record(files)
    assert whole is not None
    record = whole
    if known_by == "its control group":
        if not record.cgroup:
            pytest.skip("no control group may be made here")
        record = replace(record, processes=())
    else:
        record = replace(record, cgroup="")
    kill_at_once(world.chain("j"))
    files.processes.write_text(json.dumps(codec.encode(record)))
    world.backend.sweep()
    assert not any(map(alive, pids))
    for group in filter(None, [whole.group]):
        group.remove()
        assert not group.path.exists()


def test_a_sweep_leaves_what_is_guarded_alone(hidden: tuple[World, list[int]]) -> None:
    world, pids = hidden
    assert world.backend.sweep() == []
    assert left_behind(world.root) == []
    assert all(map(alive, pids))
    kill_at_once(world.chain("j"))
    assert len(world.backend.sweep()) == 1
    assert not any(map(alive, [*pids, *world.carriers()]))


# -- what is not ours ----------------------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no job started, in a session of its own."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        process.kill()


def recorded(root: Path, *processes: tuple[int, int], boot: str | None = None, cgroup: str = "") -> AttemptFiles:
    files = AttemptFiles(root / "7" / "attempt-1")
    files.directory.mkdir(parents=True, exist_ok=True)
    record = Record(boot_id() if boot is None else boot, cgroup, processes)
    files.processes.write_text(json.dumps(codec.encode(record)))
    return files


def identity(pid: int) -> tuple[int, int]:
    entry = entry_of(pid)
    assert entry is not None
    return entry.identity


def test_a_later_process_of_the_same_number_is_left_alone(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    pid, start = identity(stranger.pid)
    recorded(tmp_path, (pid, start - 1))
    assert list(sweep(tmp_path)) == []
    recorded(tmp_path, (pid, start), boot="of another day")
    assert list(sweep(tmp_path)) == []
    recorded(tmp_path, cgroup="/sys/fs/cgroup")  # which is none of ours
    assert list(sweep(tmp_path)) == []
    assert stranger.poll() is None
    recorded(tmp_path, (pid, start))
    (left,) = sweep(tmp_path)
    assert left.pids == [pid]
    assert stranger.wait(60.0) == -signal.SIGKILL


def test_our_own_session_is_left_alone_whatever_a_record_says(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:  # in this very session
        files = recorded(tmp_path, identity(child.pid), identity(os.getpid()))
        assert belongings(files, cookie_of("7", 1, tmp_path)) == [child.pid]
        child.kill()


def test_all_of_a_session_in_which_one_is_recorded_belongs_to_the_attempt(tmp_path: Path) -> None:
    """One that was left to the first process of the machine before it was seen."""
    script = "sleep 1000 & (sleep 1000 & echo $!); echo $!; wait"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        orphan, child = (int(leader.stdout.readline()) for _ in range(2))
        recorded(tmp_path, identity(child))
        (left,) = sweep(tmp_path)
        assert left.pids == sorted([leader.pid, child, orphan])
        leader.wait(60.0)  # by the signal, or because its children have ended
    assert ended(lambda: not alive(orphan))


def test_what_is_no_record_proves_nothing(tmp_path: Path) -> None:
    files = recorded(tmp_path)
    for text in ("", "no json", "[1]", '{"boot": 1}', '{"boot": "", "processes": [["1"]]}'):
        files.processes.write_text(text)
        assert read_record(files) is None
    assert belongings(files, "a cookie that nothing carries") == []


# -- the means -----------------------------------------------------------------------------------------------------


def test_a_process_is_killed_with_the_one_that_started_it() -> None:
    script = (
        "import subprocess, time; from fairlead.train.parent_death import killed_with_us\n"
        "child = subprocess.Popen(['sleep', '1000'], preexec_fn=killed_with_us())\n"
        "print(child.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert alive(child)
        process.kill()
    assert ended(lambda: not alive(child))


def test_a_process_whose_parent_ended_before_it_could_ask_is_killed_too() -> None:
    elsewhere = os.getpid() + 1

    def too_late() -> None:
        die_with_parent(elsewhere, signal.SIGKILL)

    with subprocess.Popen(["sleep", "1000"], preexec_fn=too_late) as process:
        assert process.wait(60.0) == -signal.SIGKILL
    assert killed_with_us() is not None


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_holds_what_its_members_start(version: int) -> None:
    names = [f"{own}/fairlead.test.{os.getpid()}" for own in own_groups()]
    found = [
        Cgroup(Path(name)) for name in names if Path(name).with_name("cgroup.subtree_control").exists() == (version > 1)
    ]
    group = next((each for each in found if each.make()), None)
    if group is None:
        pytest.skip(f"no control group of version {version} may be made here")
    assert group.path.parent in [*own_groups()]
    script = "env -i setsid sleep 1000 & echo $!; wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, preexec_fn=lambda: group.join()) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        assert ended(lambda: set(group.members()) >= {process.pid, daemon})
        group.remove()
        assert group.is_ours  # something is in it
        for pid in group.members():
            kill(pid)
    assert ended(lambda: not group.members())
    group.remove()
    assert not group.path.exists()


def test_where_control_groups_are_made_is_tried_out_and_nothing_is_left_of_that() -> None:
    where = where_made()
    assert where is None or where in [*own_groups()]
    assert where is None or [path.name for path in where.glob("fairlead.probe.*")] == []


@pytest.mark.parametrize(
    ("mounts", "ours", "found"),
    [
        (["0 0 0:1 / {} rw - cgroup2 cgroup2 rw"], ["0::/"], True),
        (["0 0 0:1 / {} rw - cgroup cgroup rw,freezer"], ["6:freezer:/"], True),
        (["0 0 0:1 /docker/abc {} rw - cgroup cgroup rw,pids"], ["8:pids:/docker/abc"], True),
        (["0 0 0:1 /docker/abc {} rw - cgroup2 cgroup2 rw"], ["0::/elsewhere"], False),
        (["0 0 0:1 / {} rw - cgroup cgroup rw,memory"], ["4:memory:/"], False),
        (["0 0 0:1 / {} rw - tmpfs tmpfs rw"], ["0::/"], False),
    ],
)
def test_the_own_control_group_is_found_as_it_is_mounted(
    tmp_path: Path, mounts: list[str], ours: list[str], found: bool
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("".join(f"{line.format(tmp_path)}\n" for line in mounts))
    (tmp_path / "self/cgroup").write_text("".join(f"{line}\n" for line in ours))
    assert [path.resolve() for path in own_groups(tmp_path)] == [tmp_path] * found
    assert place("x", proc=tmp_path) is None  # there is no cgroup.procs to write to
    (tmp_path / "cgroup.procs").touch()
    placed = place("job 1/2", proc=tmp_path)
    assert (placed is not None) == found
    if placed is not None:
        assert placed.path.name.startswith("fairlead.job-1-2.")
    assert not Cgroup(tmp_path).is_ours


def test_a_sweep_of_thousands_of_attempts_that_ended_well_is_quick(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / str(number) / "attempt-1").mkdir(parents=True)
    began = time.process_time()
    assert list(sweep(tmp_path)) == []
    assert time.process_time() - began < 2.0
