"""A controller dies, and another one takes up what it has left: nothing is lost, heard twice or run twice."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from world import World, alive, kill_at_once

from fairlead.backends.attempt import start_guardian
from fairlead.backends.processes import COOKIE, carriers, cookie_of
from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.core.messages import JobExited, JobReported, JobStarted, JobStopped, Start
from fairlead.core.types import Phase

#: Runs until it is told to end, and counts how often it ran.
WAITS = "echo ran >> ran; until [ -e go ]; do sleep 0.05; done"


def say(world: World, job: str, *lines: dict[str, Any]) -> None:
    """As its supervisor would."""
    with world.backend.files(job, 1).events.open("a") as events:
        for line in lines:
            events.write(json.dumps({"at": 0.0, **line}) + "\n")


def report(progress: float) -> dict[str, Any]:
    told = {"batch": 8, "noise_scale": None, "observations": [], "saved": False}
    return {"kind": "report", "progress": progress, **told}


def test_another_controller_goes_on_where_the_first_was(world: World) -> None:
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    say(world, "j", *(report(step / 100) for step in range(5)))
    world.hear("j", JobReported, count=3)
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: goes on"]
    say(world, "j", *(report(step / 100) for step in range(5, 10)))
    world.hear("j", JobReported, count=10)
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    assert [event.progress for event in world.heard("j", JobReported)] == [step / 100 for step in range(10)]
    assert len(world.heard("j", JobStarted)) == 1
    assert world.written("ran") == "ran\n"


def test_what_was_read_but_not_handed_over_is_read_again(world: World) -> None:
    """The mark goes with the event: what was still in the inbox of the first is lost with it."""
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    say(world, "j", report(0.5))
    inbox = world.backend.inbox
    while not len(inbox):
        assert alive(world.supervisor("j"))
    world.crash(world.believed("j", Phase.RUNNING, 0))
    assert world.hear("j", JobReported).progress == 0.5
    (world.work / "go").touch()
    assert world.exit("j").code == 0


def test_a_job_that_ended_while_nobody_listened_says_so(world: World) -> None:
    world.start("j", WAITS + "; exit 3")
    world.hear("j", JobStarted)
    world.backend.close()
    supervisor = world.supervisor("j")
    (world.work / "go").touch()
    world.until(lambda: not alive(supervisor))
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: has ended meanwhile"]
    assert world.exit("j").code == 3
    assert len(world.heard("j", JobStarted)) == 1


def test_a_job_whose_supervisor_was_killed_while_nobody_listened_has_failed(world: World) -> None:
    world.start("j", WAITS)
    chain, worker = world.chain("j"), world.worker("j")
    world.backend.close()
    kill_at_once(chain[1:])
    world.until(lambda: not world.backend.files("j", 1).is_alive)
    assert not alive(worker)
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: has ended meanwhile"]
    assert world.exit("j").code == 137


def test_a_job_of_which_all_guardians_were_killed_while_nobody_listened_was_lost(world: World) -> None:
    world.start("j", WAITS)
    chain, worker = world.chain("j"), world.worker("j")
    world.backend.close()
    kill_at_once(chain)
    world.until(lambda: not alive(worker))
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: was lost"]
    assert world.exit("j").code == 137


def test_what_began_before_the_machine_was_booted_was_stopped_and_has_not_failed(world: World) -> None:
    files = world.backend.files("j", 1)
    files.directory.mkdir(parents=True)
    say(
        world, "j", {"kind": "began", "pid": 1, "boot": "another one", "monotonic": 1e9}, {"kind": "started", "at": 5.0}
    )
    (files.directory / "lock").touch()
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: was lost"]
    assert isinstance(world.end("j"), JobStopped)


def test_what_ended_before_the_machine_was_booted_is_told_with_its_own_time(world: World) -> None:
    world.backend.files("j", 1).directory.mkdir(parents=True)
    began = {"kind": "began", "at": 4.0, "monotonic": 1e9, "pid": 1, "boot": "another one"}
    say(world, "j", began, {"kind": "ended", "at": 5.0, "monotonic": 1e9, "code": 0})
    world.crash(world.believed("j", Phase.RUNNING, 0))
    end = world.exit("j")
    assert (end.at, end.code) == (5.0, 0)


def test_what_was_decided_but_not_done_is_done_once(world: World) -> None:
    world.tasks["j"] = {"command": ("bash", "-c", WAITS)}
    assert world.crash(world.believed("j", Phase.STARTING, 0)) == ["job j: is started now"]
    world.hear("j", JobStarted)
    assert world.crash(world.believed("j", Phase.RUNNING, 0)) == ["job j: goes on"]
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"


def test_what_was_to_stop_before_it_began_is_not_started(world: World) -> None:
    world.tasks["j"] = {"command": ("bash", "-c", WAITS)}
    assert world.crash(world.believed("j", Phase.STOPPING, 0)) == ["job j: had not been started"]
    assert isinstance(world.end("j"), JobStopped)
    assert world.written("ran") == ""


def test_a_stop_that_was_decided_but_not_said_is_said(world: World) -> None:
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    world.crash(world.believed("j", Phase.STOPPING, 0))
    assert isinstance(world.end("j"), JobStopped)


def test_a_crash_right_after_a_start_starts_nothing_twice(world: World) -> None:
    world.start("j", WAITS)
    for _ in range(3):  # the guardian may not even have its lock yet
        world.crash(world.believed("j", Phase.STARTING, 0))
    world.hear("j", JobStarted)
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"
    assert [type(event) for event in world.heard("j")] == [JobStarted, JobExited]


def test_jobs_that_wait_or_are_over_are_left_alone(world: World) -> None:
    over = [world.believed("a", Phase.PENDING), world.believed("b", Phase.SUCCEEDED), world.believed("c", Phase.FAILED)]
    assert world.crash(*over) == []
    assert world.backend.running == []


def test_a_controller_that_is_killed_takes_nothing_with_it(world: World) -> None:
    world.tasks["j"] = {"command": ("bash", "-c", WAITS)}
    script = Path(__file__).parent / "controller.py"
    command = [sys.executable, str(script), str(world.root), str(world.work), WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"started\n"
        world.until(lambda: world.written("ran"))
        controller.kill()
    assert world.crash(world.believed("j", Phase.STARTING, 0)) == ["job j: goes on"]
    world.hear("j", JobStarted)
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"


def test_a_controller_that_is_killed_while_it_tells_what_to_run_starts_nothing(world: World) -> None:
    files = world.backend.files("j", 1)
    files.directory.mkdir(parents=True)
    half = '{"job": "j", "attempt": 1, "command": ["bash", "-c", "echo ran >> '
    command = [sys.executable, "-m", "fairlead.backends.supervisor", str(files.directory)]
    done = subprocess.run(command, input=half, text=True, capture_output=True, check=False, timeout=60.0)
    assert (done.returncode, done.stderr) == (0, "")
    world.tasks["j"] = {"command": ("bash", "-c", WAITS)}
    assert world.crash(world.believed("j", Phase.STARTING, 0)) == ["job j: is started now"]
    (world.work / "go").touch()
    assert world.exit("j").code == 0


# -- two at once ---------------------------------------------------------------------------------------------------


def test_a_start_that_is_repeated_is_harmless(world: World) -> None:
    world.start("j", WAITS)
    world.again("j", 1)
    world.hear("j", JobStarted)
    world.again("j", 1)
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"
    assert [type(event) for event in world.heard("j")] == [JobStarted, JobExited]


def test_two_controllers_that_start_the_same_attempt_run_it_once(world: World) -> None:
    other = world.make_backend()
    other.listen()
    world.tasks["j"] = {"command": ("bash", "-c", WAITS)}
    start = Start(0.0, "j", 1, world.gpus(0))
    threads = [threading.Thread(target=each.execute, args=(start,)) for each in (world.backend, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.hear("j", JobStarted)
    (world.work / "go").touch()
    assert world.exit("j").code == 0
    world.until(lambda: "j" not in other.running)
    other.close()
    assert world.written("ran") == "ran\n"
    assert [line["kind"] for line in world.lines("j") if line["kind"] != "note"] == ["began", "started", "ended"]


def test_of_many_guardians_one_begins(world: World) -> None:
    world.tasks["j"] = {"command": ("bash", "-c", "echo ran >> ran")}
    files = world.backend.files("j", 1)
    files.logs.mkdir(parents=True)
    task = world.prepare(Start(0.0, "j", 1, world.gpus(0)))
    task = replace(task, env={**task.env, COOKIE: cookie_of("j", 1, world.root)})
    guardians = [start_guardian(task, files) for _ in range(6)]
    while any(guardian.returncode is None for guardian in guardians):
        _ = files.is_alive  # to look at the lock keeps nobody from it
    assert [guardian.returncode for guardian in guardians] == [0] * 6
    assert world.written("ran") == "ran\n"
    assert [line["kind"] for line in world.lines("j") if line["kind"] != "note"] == ["began", "started", "ended"]


# -- what the state has lost ---------------------------------------------------------------------------------------


def test_an_attempt_that_runs_although_the_state_knows_nothing_of_it_is_found(world: World) -> None:
    world.start("j", WAITS, gpus=world.gpus(1, 3))
    world.hear("j", JobStarted)
    pending = [world.believed(job, Phase.PENDING, attempt=0) for job in ("i", "j", "k")]
    (stray,) = world.make_backend().strays(pending)
    assert (stray.job, stray.attempt, stray.allocation) == ("j", 1, world.gpus(1, 3))
    assert world.backend.strays([world.believed("j", Phase.RUNNING, 0)]) == []
    (world.work / "go").touch()
    world.exit("j")


def test_an_attempt_that_ended_unknown_to_the_state_is_found_too(world: World) -> None:
    world.start("j", "exit 4")
    world.exit("j")
    assert [stray.attempt for stray in world.backend.strays([world.believed("j", Phase.PENDING, attempt=0)])] == [1]


def test_an_attempt_that_was_never_begun_is_no_stray(world: World) -> None:
    files = world.backend.files("j", 1)
    files.directory.mkdir(parents=True)
    files.start.write_text("[]")
    assert world.backend.strays([world.believed("j", Phase.PENDING, attempt=0)]) == []


def test_those_on_a_node_that_is_no_more_are_ended(world: World) -> None:
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    job = world.believed("j", Phase.RUNNING, 0)
    world.backend.end_those_on("another node", [job])
    assert carriers(cookie_of("j", 1, world.root))
    world.backend.end_those_on(world.machine.nodes[0].id, [job])
    assert not carriers(cookie_of("j", 1, world.root))
    assert world.exit("j").code == 137


# -- what cannot be started or read --------------------------------------------------------------------------------


def test_a_job_that_cannot_be_meant_fails_for_good(world: World) -> None:
    def refuse(start: Start) -> Any:
        raise InvalidSpec(f"job {start.job} has no command")

    world.prepare = refuse
    world.start("j", "true")
    end = world.exit("j")
    assert (end.code, end.detail, end.final) == (1, "job j has no command", True)


@pytest.mark.parametrize("fault", [BackendError("the database is locked"), OSError(12, "Cannot allocate memory")])
def test_what_the_machine_cannot_do_now_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    monkeypatch.setattr("fairlead.backends.local.RETRY_S", 0.05)
    tries, right = [], world.prepare

    def prepare(start: Start) -> Any:
        tries.append(start)
        if len(tries) < 4:
            raise fault
        return right(start)

    world.prepare = prepare
    world.start("j", "echo ran >> ran")
    assert world.exit("j").code == 0
    assert world.written("ran") == "ran\n"
    (note,) = world.noted("cannot-start")  # and not one for every try
    assert note["why"] in str(fault)


def test_a_job_that_cannot_be_started_yet_can_be_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.backends.local.RETRY_S", 600.0)

    def refuse(start: Start) -> Any:
        raise BackendError(f"job {start.job}: the database is locked")

    world.prepare = refuse
    world.start("j", "true")
    world.until(lambda: world.noted("cannot-start"))
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


def test_lines_that_mean_nothing_are_passed_over(world: World) -> None:
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    with world.backend.files("j", 1).events.open("ab") as events:
        events.write(
            b"garbage\n\xff\xfe\n[1, 2]\n\n{}\n" + b'{"kind": "report", "at": 1.0}\n{"kind": "ended", "at": "x"}\n'
        )
    say(world, "j", report(0.25), {"kind": "unheard of"}, report(0.5))
    world.hear("j", JobReported, count=2)
    assert [event.progress for event in world.heard("j", JobReported)] == [0.25, 0.5]
    assert world.noted("unreadable")
    (world.work / "go").touch()
    assert world.exit("j").code == 0


def test_what_people_want_to_know_is_told_them_and_nobody_else(world: World) -> None:
    world.start("j", WAITS)
    world.hear("j", JobStarted)
    before = len(world.events)
    say(world, "j", {"kind": "note", "what": "worker-slow", "worker": "w2"})
    world.until(lambda: world.noted("worker-slow"))
    (note,) = world.noted("worker-slow")
    assert note == {"job": "j", "at": note["at"], "what": "worker-slow", "worker": "w2"}
    assert len(world.events) == before
    (world.work / "go").touch()
    world.exit("j")


def test_times_are_by_the_controllers_clock_whatever_the_wall_says(world: World) -> None:
    """A supervisor that began after somebody set the clock back by a day, and ahead by a day."""
    world.start("j", WAITS)
    started = world.hear("j", JobStarted)
    ticks = world.lines("j")[-1]["monotonic"]
    day = 86400.0
    say(world, "j", *({**report(0.1), "at": started.at + off, "monotonic": ticks} for off in (-day, 0.0, day)))
    world.hear("j", JobReported, count=3)
    times = {event.at for event in world.heard("j", JobReported)}
    assert len(times) == 1
    assert abs(times.pop() - started.at) < 60.0
    (world.work / "go").touch()
    world.exit("j")


def test_no_file_stays_open_for_a_job_that_is_over(world: World) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def one(job: str) -> None:
        world.start(job, "sleep 1000")
        world.hear(job, JobStarted)
        world.stop(job)
        world.end(job)

    one("first")
    before = open_files()
    for job in ("a", "b", "c"):
        one(job)
    assert open_files() <= before
