"""A CPU share holds for all that a job does, is never taken for a stop by another, and ends with the job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from world import World, alive, ended, kill_at_once

from fairlead.backends.processes import entry_of
from fairlead.backends.throttle import Throttle, check_throttle
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobStarted, JobStopped, Resize

BUSY = "exec python3 -c 'while True: pass'"

#: Of the clock ticks in which the kernel counts the time of processes, in a second.
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def types(tmp_path: Path) -> Iterator[World]:
    """A fast node and one at a quarter of its speed, two slots each."""
    world = World(tmp_path, nodes="fast=1x2,slow=1x2@25%")
    yield world
    left = world.leave()
    assert not left, f"still there after the test: {left}"


def cpu_s(pid: int) -> float:
    """That a process, and those it has waited for, have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def state(pid: int) -> str:
    entry = entry_of(pid)
    return "gone" if entry is None else entry.state


def stopped_share(pid: int, seconds: float = 2.0) -> float:
    """Of the time for which a process is stopped, or will be before it does anything more: on a busy machine it takes a
    while to notice. So this is the same whatever else the machine does."""
    until, seen = time.monotonic() + seconds, list[bool]()
    while time.monotonic() < until:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        seen.append("T" in fields["State"].split()[0] or bool(int(fields["ShdPnd"], 16) & 1 << signal.SIGSTOP - 1))
        time.sleep(0.0013)
    return sum(seen) / len(seen)


def is_throttled(pid: int, share: float = 0.75) -> bool:
    """Stopped for about this share of the time. To be tried again: a busy machine holds up the throttle itself."""
    return ended(lambda: abs(stopped_share(pid, 1.0) - share) <= 0.12, within_s=30.0)


def lasts(seconds: float, true: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not true():
            return False
        time.sleep(0.003)
    return True


@pytest.mark.slow
def test_a_job_on_a_slow_node_is_stopped_for_its_share_of_the_time_and_one_on_a_fast_node_never(types: World) -> None:
    types.start("fast", BUSY, gpus=types.gpus(0))
    types.start("slow", BUSY, gpus=types.gpus(0, node=1))
    fast, slow = types.worker("fast"), types.worker("slow")
    types.until(lambda: cpu_s(fast) > 0.2)
    before_s = cpu_s(slow)
    # Not by the CPU time that each got: where many wait for a processor, one that was stopped goes first.
    assert stopped_share(fast, 0.5) == 0.0
    assert is_throttled(slow)
    types.until(lambda: cpu_s(slow) > before_s + 0.2)
    for job in ("fast", "slow"):
        types.stop(job)
    types.end("fast")


@pytest.mark.slow
def test_the_share_holds_for_children_daemons_and_the_setup(types: World) -> None:
    daemon = "setsid sh -c 'echo $$ >> pids; while :; do :; done' & "
    setup = "echo $$ >> setup; until [ -e go ]; do :; done"
    run = f"echo $$ >> pids; {daemon} (sh -c 'echo $$ >> pids; while :; do :; done' &); while :; do :; done"
    types.start("j", run, setup=setup, gpus=types.gpus(0, node=1))
    (first,) = types.pids("setup")
    assert is_throttled(first)
    (types.work / "go").touch()
    for pid in types.pids("pids", 3):
        assert is_throttled(pid)
    types.stop("j")
    types.end("j")


def test_a_job_is_told_the_type_of_its_gpus(types: World) -> None:
    types.start("a", "echo $FAIRLEAD_GPU_TYPE", gpus=types.gpus(0))
    types.start("b", "echo $FAIRLEAD_GPU_TYPE", gpus=types.gpus(0, 1, node=1), elastic=True)
    types.start("c", "echo $FAIRLEAD_GPU_TYPE", gpus=types.gpus(1), launch="once")
    assert [types.exit(job).code for job in "abc"] == [0, 0, 0]
    told = [types.log("a"), types.log("b"), types.log("b", rank=1), types.log("c")]
    assert told == ["fast\n", "slow\n", "slow\n", "fast\n"]


def stays_stopped(pid: int) -> bool:
    """Stopped by another, it is not continued by the throttle. To be tried again: two stops at one instant are one."""
    os.kill(pid, signal.SIGSTOP)
    return ended(lambda: state(pid) == "T", within_s=1.0) and lasts(0.1, lambda: state(pid) == "T")


# -- stops by others -----------------------------------------------------------------------------------------------


def test_a_process_that_another_has_stopped_stays_stopped_until_that_lets_it_go(types: World) -> None:
    types.start("j", BUSY, gpus=types.gpus(0, node=1))
    pid = types.worker("j")
    types.until(lambda: cpu_s(pid) > 0.1)
    for _ in range(10):  # whether it was stopped by us at that moment or not
        assert ended(lambda: stays_stopped(pid), within_s=5.0)
        os.kill(pid, signal.SIGCONT)
        assert ended(lambda: state(pid) != "T", within_s=5.0)
    types.stop("j")
    assert isinstance(types.end("j"), JobStopped)


def test_only_the_stops_of_the_throttle_are_its_own() -> None:
    ours = Throttle(os.getpid())
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(1.0)
    try:
        ours.stop(1.0)
        assert ended(lambda: state(child) == "T")
        assert ours.holds(child)
        os.kill(child, signal.SIGSTOP)  # once more, by another
        assert not ours.holds(child)
        ours.resume(1.0)
        assert lasts(0.1, lambda: state(child) == "T")
        ours.stop(1.0)  # it is stopped already, but not by us
        assert not ours.holds(child)
        ours.resume(1.0)
        assert lasts(0.1, lambda: state(child) == "T")
        os.kill(child, signal.SIGCONT)
        assert ended(lambda: state(child) == "S")
        ours.stop(1.0)
        assert ours.holds(child)
    finally:
        ours.resume(1.0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# -- the end -------------------------------------------------------------------------------------------------------


def test_a_throttled_job_hears_at_once_that_it_should_stop(types: World) -> None:
    script = "trap 'echo saved > saved; exit 0' TERM; echo $$ > pid; while :; do :; done"
    types.start("j", script, gpus=types.gpus(0, node=1), cpu_shares={types.machine.nodes[1].id: 0.01})
    types.pids("pid")
    types.hear("j", JobStarted)
    time.sleep(0.5)
    began = time.monotonic()
    types.stop("j")
    assert isinstance(types.end("j"), JobStopped)
    assert types.written("saved") == "saved\n"
    assert time.monotonic() - began < 5.0  # of the ten that it would have


@pytest.mark.slow
def test_a_job_that_is_stopped_is_no_longer_slowed(types: World) -> None:
    script = "trap '' TERM; echo $$ > pid; while :; do :; done"
    types.start("j", script, gpus=types.gpus(0, node=1), grace_s=4.0)
    (pid,) = types.pids("pid")
    types.until(lambda: stopped_share(pid, 0.3) > 0.4)
    types.stop("j")
    types.until(lambda: types.backend.files("j", 1).notice.exists())
    assert stopped_share(pid, 1.0) == 0.0
    types.end("j")


@pytest.mark.parametrize("whom", ["supervisor", "supervisor and guardian"])
def test_nothing_is_left_stopped_or_running_where_the_supervisor_is_killed(types: World, whom: str) -> None:
    run = "echo $$ >> pids; (setsid sh -c 'echo $$ >> pids; while :; do :; done' &); while :; do :; done"
    types.start("j", run, gpus=types.gpus(0, node=1), cpu_shares={types.machine.nodes[1].id: 0.05})
    pids, chain = types.pids("pids", 2), types.chain("j")
    kill_at_once(chain[2:] if whom == "supervisor" else chain[1:])
    assert ended(lambda: not any(map(alive, pids)), within_s=20.0)
    assert types.exit("j").code == 137


# -- where there is none -------------------------------------------------------------------------------------------


def test_a_share_is_refused_where_it_cannot_be_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    check_throttle()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(InvalidSpec, match="a CPU share, which needs Linux"):
        check_throttle()


@pytest.mark.slow
def test_a_worker_that_boots_slowly_is_not_taken_for_one_that_another_has_stopped(types: World) -> None:
    """It says nothing for longer than the ten seconds that a worker may be silent, and is stopped most of the time."""
    quick = "import time; end = time.monotonic() + 13.0\nwhile time.monotonic() < end: pass"
    run = ("python3", "-c", quick)
    types.start("j", run, gpus=types.gpus(0, node=1), elastic=True, cpu_shares={types.machine.nodes[1].id: 0.1})
    assert types.exit("j").code == 0
    assert not types.noted("worker-hung")


@pytest.mark.slow
def test_a_job_that_moves_in_place_has_the_share_of_each_worker_s_own_slot(types: World) -> None:
    """Its old workers train on until the new ones have come."""
    slow, fast = types.gpus(0, node=1), types.gpus(0)
    types.start("j", "while :; do :; done", gpus=slow, elastic=True)
    first = types.worker("j")
    types.until(lambda: stopped_share(first, 0.3) > 0.4)
    types.backend.execute(Resize(0.0, "j", 1, slow | fast))
    second = types.worker("j", 1)
    assert stopped_share(second, 1.0) == 0.0
    assert is_throttled(first)
    types.stop("j")
    types.end("j")
