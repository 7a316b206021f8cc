"""Nothing of a job outlives its end: not if it is stopped, and not if those who see to it are killed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from world import World, alive, ended, kill, kill_at_once

from fairlead.core.messages import JobExited, JobStarted, JobStopped

#: Two processes that have forked twice and have sessions of their own, and write down who they are.
DAEMONS = """for n in 1 2; do (setsid bash -c 'trap "" TERM HUP; echo $$ >> daemons; exec sleep 1000' &); done
until [ $(wc -l < daemons) -ge 2 ]; do sleep 0.05; done 2>/dev/null; """


def test_a_stop_gives_notice_and_then_asks(world: World) -> None:
    script = "trap 'cat $FAIRLEAD_PREEMPT_FILE > notice; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    world.start("j", script)
    world.until(lambda: (world.work / "ready").exists())
    before = time.time()
    world.stop("j", grace_s=20.0, why="a job of higher priority needs the GPU", by="job 7")
    end = world.end("j")
    assert isinstance(end, JobStopped)
    notice = json.loads(world.written("notice"))
    assert before + 20.0 <= notice.pop("deadline") <= time.time() + 20.0
    assert notice == {"why": "a job of higher priority needs the GPU", "by": "job 7"}
    assert [type(event) for event in world.heard("j")] == [JobStarted, JobStopped]


def test_who_ignores_it_is_killed_with_its_whole_group_when_the_time_is_up(world: World) -> None:
    world.start(
        "j", "trap '' TERM; sleep 1000 & echo $! >> pids; echo $$ >> pids; while :; do sleep 0.05; done", gpus=2
    )
    pids = world.pids("pids", 4)
    world.stop("j", grace_s=0.5)
    assert isinstance(world.end("j"), JobStopped)
    began, stopped = (line["monotonic"] for line in world.lines("j") if line["kind"] in ("began", "ended"))
    assert stopped - began >= 0.5
    assert not any(alive(pid) for pid in pids)


def test_who_is_suspended_by_a_signal_can_be_asked_all_the_same(world: World) -> None:
    world.start("j", "trap 'touch asked; exit 0' TERM; touch ready; while :; do sleep 0.05; done", grace_s=60.0)
    world.until(lambda: (world.work / "ready").exists())
    os.killpg(world.worker("j"), signal.SIGSTOP)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert (world.work / "asked").exists()


def test_who_is_suspended_and_deaf_is_killed(world: World) -> None:
    world.start("j", "trap '' TERM; touch ready; kill -STOP $$; while :; do kill -STOP $$; done")
    world.until(lambda: (world.work / "ready").exists())
    world.stop("j", grace_s=0.3)
    assert isinstance(world.end("j"), JobStopped)


def test_daemons_are_ended_with_the_job(world: World) -> None:
    world.start("j", DAEMONS + "exit 0")
    assert world.exit("j").code == 0
    assert not any(alive(pid) for pid in world.pids("daemons", 2))


def test_daemons_are_ended_when_the_job_is_stopped(world: World) -> None:
    world.start("j", DAEMONS + "sleep 1000")
    daemons = world.pids("daemons", 2)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert not any(alive(pid) for pid in daemons)


def test_daemons_that_have_ended_leave_no_zombies(world: World) -> None:
    world.start(
        "j", "for n in 1 2 3 4 5; do (setsid bash -c 'echo $$ >> short' &); done; until [ -e go ]; do sleep 0.05; done"
    )
    short = world.pids("short", 5)
    world.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in short))
    (world.work / "go").touch()
    assert world.exit("j").code == 0


def test_a_stop_that_comes_before_anything_runs_is_not_lost(world: World) -> None:
    world.start("j", "sleep 1000", setup="sleep 1000")
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


def test_stops_may_be_repeated(world: World) -> None:
    world.start("j", "trap 'echo asked >> asked; sleep 0.2; exit 1' TERM; touch ready; while :; do sleep 0.05; done")
    world.until(lambda: (world.work / "ready").exists())
    for _ in range(5):
        world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert world.written("asked") == "asked\n"
    world.stop("j")  # it has ended meanwhile: that is harmless too
    world.resize("j", 1)


def test_orders_for_another_attempt_are_not_followed(world: World) -> None:
    world.start("j", "until [ -e go ]; do sleep 0.05; done")
    world.worker("j")
    world.stop("j", attempt=2)
    world.resize("j", 1, attempt=2)
    assert not world.backend.files("j", 1).orders.exists()
    (world.work / "go").touch()
    assert world.exit("j").code == 0


def test_an_order_that_is_nonsense_does_not_make_it_deaf_to_others(world: World) -> None:
    world.start("j", "sleep 1000")
    world.worker("j")
    with world.backend.files("j", 1).orders.open("a") as orders:
        orders.write('{"order": "stop", "grace_s": "soon"}\n{"no": "order"}\nno json\n')
    world.until(lambda: len(world.noted("order-refused")) == 2)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


# -- whoever sees to it is killed ----------------------------------------------------------------------------------


@pytest.fixture
def family(world: World) -> tuple[World, list[int]]:
    """A job with daemons and children, on two GPUs; and everything that it consists of."""
    world.start("j", DAEMONS + "sleep 1000 & echo $! >> daemons; echo $$ >> daemons; wait", gpus=2, grace_s=5.0)
    pids = world.pids("daemons", 8)
    assert all(alive(pid) for pid in pids)
    return world, pids


def test_a_killed_supervisor_takes_everything_with_it(family: tuple[World, list[int]]) -> None:
    world, pids = family
    kill(world.supervisor("j"))
    end = world.exit("j")
    assert (end.code, end.detail, end.final) == (137, "its supervisor was killed", False)
    assert not any(alive(pid) for pid in pids)


def test_a_killed_guardian_stops_the_job_as_if_it_were_preempted(family: tuple[World, list[int]]) -> None:
    world, pids = family
    supervisor = world.supervisor("j")
    kill(world.guardian("j"))
    assert isinstance(world.end("j"), JobStopped)
    assert not any(alive(pid) for pid in [*pids, supervisor])


def test_if_all_are_killed_what_is_left_is_known_by_its_cookie(family: tuple[World, list[int]]) -> None:
    world, pids = family
    kill_at_once(world.chain("j"))
    end = world.exit("j")
    assert (end.code, end.detail) == (137, "everything that ran it was killed")
    assert not any(alive(pid) for pid in pids)


def test_if_everybody_is_killed_at_once_it_is_told_once(family: tuple[World, list[int]]) -> None:
    world, pids = family
    everybody = [*world.chain("j"), world.worker("j", 0), world.worker("j", 1), *pids]
    for pid in everybody:
        kill(pid)
    end = world.exit("j")
    assert end.code == 137
    assert len(world.ends("j")) == 1


def test_a_supervisor_that_is_killed_while_it_stops_a_job_leaves_nothing(world: World) -> None:
    world.start("j", "trap 'touch asked' TERM; " + DAEMONS + "while :; do sleep 0.05; done", grace_s=60.0)
    daemons = world.pids("daemons", 2)
    world.stop("j")
    world.until(lambda: (world.work / "asked").exists())
    kill(world.supervisor("j"))
    assert isinstance(world.end("j"), JobExited)  # the state knows that it was to stop
    assert not any(alive(pid) for pid in daemons)


@pytest.mark.parametrize("who", ["guardian", "supervisor"])
def test_a_polite_signal_to_either_stops_the_job(world: World, who: str) -> None:
    world.start("j", "trap 'touch asked; exit 0' TERM; touch ready; while :; do sleep 0.05; done")
    world.until(lambda: (world.work / "ready").exists())
    kill(world.guardian("j") if who == "guardian" else world.supervisor("j"), signal.SIGTERM)
    assert isinstance(world.end("j"), JobStopped)
    assert (world.work / "asked").exists()


def test_a_guardian_that_is_killed_before_anything_began_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.backends.local.RETRY_S", 0.1)
    lock = world.backend.files("j", 1)
    lock.directory.mkdir(parents=True)
    held = lock.lock()  # as if another one were just about to begin
    assert held is not None
    world.start("j", "echo ran >> ran")
    assert ended(lambda: world.carriers())
    for pid in world.carriers():
        kill(pid)
    os.close(held)
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"
    assert len(world.noted("cannot-start")) == 1
