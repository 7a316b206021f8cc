"""Jobs of `fairlead.train` under supervisors: they grow, shrink, sleep, wake elsewhere, lose workers and come back."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from world import World, alive, kill

from fairlead.core.messages import JobExited, JobPinned, JobReported, JobRescaled, JobStarted, JobStopped
from fairlead.core.types import Phase

SCRIPT = Path(__file__).parents[1] / "train" / "script.py"


def train(world: World, job: str = "j", *, gpus: int = 1, **options: Any) -> None:
    """Start one. What it does is said in `options`; see the script."""
    task = {"devices": None, "max_restarts": 3, "time_limit_s": None}
    task |= {name: options.pop(name) for name in task if name in options}
    told = {"epochs": 10_000, "pace_s": 0.005, **options}
    env = {"OUT": str(world.work), "OPTIONS": json.dumps(told), "FAIRLEAD_REPORT_S": "0.2", "OMP_NUM_THREADS": "1"}
    command = (sys.executable, str(SCRIPT))
    world.start(job, command, gpus=gpus, elastic=True, env=env, grace_s=30.0, **task)


def steps(world: World) -> set[int]:
    """All that were done, by anybody."""
    found = set()
    for path in world.work.glob("w*.jsonl"):
        found |= {
            json.loads(line)["step"] for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")
        }
    return found


def goes_on(world: World, *, gpus: int) -> None:
    """It trains on so many GPUs and tells of it."""
    done, count = max(steps(world), default=0), len(world.heard("j", JobReported))

    def tells() -> bool:
        new = world.heard("j", JobReported)[count:]
        return any(seen.gpus == gpus for report in new for seen in report.observations)

    world.until(lambda: tells() and max(steps(world)) > done)


def rescale(world: World, *gpus: int) -> None:
    count = len(world.heard("j", JobRescaled))
    world.resize("j", *gpus)
    world.hear("j", JobRescaled, count=count + 1)


def pid_of(world: World, log: int) -> int:
    return world.worker("j", log)


@pytest.mark.slow
def test_a_job_grows_shrinks_sleeps_wakes_elsewhere_stops_and_comes_back(world: World) -> None:
    train(world)
    world.hear("j", JobStarted)
    goes_on(world, gpus=1)
    rescale(world, 0, 1)
    goes_on(world, gpus=2)
    rescale(world, 1)
    goes_on(world, gpus=1)
    rescale(world)
    asleep = max(steps(world))
    world.crash(world.believed("j", Phase.SUSPENDED))  # and another controller wakes it
    assert max(steps(world)) == asleep
    rescale(world, 2, 3)
    goes_on(world, gpus=2)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    first = [type(event) for event in world.heard("j") if not isinstance(event, JobReported)]
    assert first == [JobStarted, *[JobRescaled] * 4, JobStopped]
    last = world.heard("j", JobReported)[-1]
    assert last.saved
    assert 0.0 < last.progress < 1.0
    done = max(steps(world))

    world.again("j", 2, gpus=world.gpus(0))
    world.hear("j", JobStarted, count=2)
    world.until(lambda: max(steps(world)) > done)
    world.until(
        lambda: world.heard("j", JobReported)[-1].attempt == 2 and world.heard("j", JobReported)[-1].observations
    )
    reports = world.heard("j", JobReported)
    assert all(report.progress >= last.progress for report in reports if report.attempt == 2)
    world.stop("j", attempt=2)
    world.until(lambda: len(world.ends("j")) == 2)
    told = Counter[int]()
    for report in world.heard("j", JobReported):
        for seen in report.observations:
            assert seen.gpu_type == "cpu"
            told[seen.gpus] += seen.steps
    assert set(told) == {1, 2}
    assert told.total() <= len(steps(world))  # what was told before the restart was not told again


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_people_hear_of_it(world: World) -> None:
    train(world, gpus=2)
    world.hear("j", JobStarted)
    goes_on(world, gpus=2)
    kill(pid_of(world, 1))
    world.until(lambda: world.noted("worker-lost"))
    assert world.noted("worker-lost")[0]["how"] == "signal 9"
    assert alive(pid_of(world, 2))  # the one in its place
    goes_on(world, gpus=2)
    assert not world.ends("j")
    kill(world.supervisor("j"))
    assert world.exit("j").code == 137


@pytest.mark.slow
def test_a_gpu_is_free_only_when_nobody_uses_it_any_more(world: World) -> None:
    """With devices: who leaves is gone before that is told, and who sleeps wakes as another process elsewhere."""
    train(world, gpus=2, devices=("0", "1", "2", "3"))
    world.hear("j", JobStarted)
    goes_on(world, gpus=2)
    count = len(world.heard("j", JobRescaled))
    leaving = pid_of(world, 1)
    world.resize("j", 0)
    world.hear("j", JobRescaled, count=count + 1)
    assert not alive(leaving)
    rescale(world)
    sleeper, asleep = pid_of(world, 0), max(steps(world))
    assert alive(sleeper)
    rescale(world, 2)
    assert not alive(sleeper)
    goes_on(world, gpus=1)
    assert max(steps(world)) > asleep
    visible = Path(f"/proc/{pid_of(world, 2)}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=2" in visible
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


@pytest.mark.slow
def test_a_worker_that_dies_while_all_fall_asleep_keeps_nobody_waiting(world: World) -> None:
    train(world, gpus=2)
    world.hear("j", JobStarted)
    goes_on(world, gpus=2)
    count = len(world.heard("j", JobRescaled))
    world.resize("j")
    kill(pid_of(world, 1))
    world.hear("j", JobRescaled, count=count + 1)
    rescale(world, 0)
    goes_on(world, gpus=1)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


@pytest.mark.slow
def test_who_sleeps_does_not_use_up_its_time(world: World) -> None:
    train(world, time_limit_s=15.0)
    world.hear("j", JobStarted)
    rescale(world)
    time.sleep(15.0)
    assert not world.ends("j")
    rescale(world, 0)
    ended = world.exit("j")
    assert (ended.code, ended.final) == (124, True)


@pytest.mark.slow
def test_training_that_is_over_has_succeeded_and_its_last_report_says_so(world: World) -> None:
    train(world, epochs=2, pace_s=0.0)
    assert world.exit("j").code == 0
    assert world.heard("j", JobReported)[-1].progress == 1.0
    assert [type(event) for event in world.heard("j") if not isinstance(event, JobReported)] == [JobStarted, JobExited]


@pytest.mark.slow
def test_an_error_in_the_script_is_told_with_its_code(world: World) -> None:
    train(world, fails="w1")
    end = world.exit("j")
    assert (end.code, end.final) == (5, False)
    assert "exit code 5" in end.detail


def test_a_command_of_an_elastic_job_that_is_not_there_fails_for_good(world: World) -> None:
    world.start("j", ("/nowhere/train",), elastic=True)
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert end.detail == "cannot run /nowhere/train: No such file or directory"


@pytest.mark.parametrize(("word", "value"), [("", "nul\0byte"), ("nul\0byte", "")])
def test_an_elastic_job_for_which_no_process_can_be_made_fails_for_good(world: World, word: str, value: str) -> None:
    world.start("j", ("echo", word), elastic=True, gpus=2, env={"VALUE": value})
    end = world.exit("j")
    assert (end.code, end.final) == (127, True)
    assert end.detail.endswith(": embedded null byte in its command or environment")


def test_an_elastic_job_that_boots_is_stopped_at_once(world: World) -> None:
    world.start("j", ("sleep", "1000"), elastic=True, gpus=2)
    world.worker("j", 1)
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert not world.heard("j", JobStarted)


# -- scripts that do not use the library ---------------------------------------------------------------------------


def test_a_script_that_does_not_use_the_library_can_save_before_it_stops(world: World) -> None:
    script = "trap 'echo saved >> saved; exit 0' TERM; echo >> ready; sleep 1000 & wait"
    world.start("j", script, elastic=True, gpus=2)
    world.until(lambda: (world.work / "ready").exists() and (world.work / "ready").read_text() == "\n\n")
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)
    assert (world.work / "saved").read_text() == "saved\n" * 2


def test_one_that_does_not_heed_it_is_killed_when_the_grace_period_is_over(world: World) -> None:
    world.start("j", "trap '' TERM; echo >> ready; while :; do sleep 0.1; done", elastic=True, grace_s=0.5)
    world.until(lambda: (world.work / "ready").exists())
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


def test_each_process_of_a_script_that_does_not_use_the_library_runs_to_its_end(world: World) -> None:
    script = (
        "if [ $FAIRLEAD_GPU = 0 ]; then touch first; exit 0; fi; until [ -e first ]; do :; done; sleep 1; echo done"
    )
    world.start("j", script, elastic=True, gpus=2)
    assert world.exit("j").code == 0
    assert sorted((world.log("j", 0), world.log("j", 1))) == ["", "done\n"]


def test_of_several_such_processes_one_that_fails_fails_the_job(world: World) -> None:
    script = "if [ $FAIRLEAD_GPU = 0 ]; then touch first; exit 0; fi; until [ -e first ]; do :; done; sleep 1; exit 7"
    world.start("j", script, elastic=True, gpus=2)
    assert world.exit("j").code == 7


def test_a_command_that_never_speaks_is_pinned_and_runs(world: World) -> None:
    world.start("j", "sleep 1000", elastic=True, gpus=2, pin_after_s=0.3)
    world.hear("j", JobStarted)
    assert [type(event) for event in world.heard("j")] == [JobPinned, JobStarted]
    assert world.heard("j", JobPinned)[0].pinned
    world.stop("j")
    assert isinstance(world.end("j"), JobStopped)


def test_a_command_that_ends_before_it_is_pinned_has_succeeded(world: World) -> None:
    world.start("j", "true", elastic=True, gpus=2, pin_after_s=0.3)
    assert world.exit("j").code == 0
    assert not world.heard("j", JobPinned)


#: A worker that speaks late, says all that one of the library says, and trains until it is killed; without torch.
SPEAKS_LATE = """
import time
from fairlead.train.link import connect
time.sleep(1.0)
link = connect(dict)
link.say("ready", most=4)
while True:
    link.wait(lambda: link.plan is not None)
    link.say("joined", generation=link.plan.generation)
    time.sleep(0.2)
"""


def test_a_command_that_speaks_late_is_unpinned_and_can_be_resized(world: World) -> None:
    world.start("j", (sys.executable, "-c", SPEAKS_LATE), elastic=True, gpus=1, pin_after_s=0.3, grace_s=0.5)
    assert not world.hear("j", JobPinned, count=2).pinned
    kinds = [type(event) for event in world.heard("j")]
    assert kinds == [JobPinned, JobStarted, JobStarted, JobPinned]
    rescale(world, 0, 1)
    world.stop("j")
    world.end("j")


def test_a_command_that_speaks_in_time_is_never_pinned(world: World) -> None:
    script = SPEAKS_LATE.replace("time.sleep(1.0)", "").replace('link.say("ready"', 'time.sleep(3.0); link.say("ready"')
    world.start("j", (sys.executable, "-c", script), elastic=True, gpus=1, pin_after_s=2.5, grace_s=0.5)
    world.hear("j", JobStarted)
    assert not world.heard("j", JobPinned)
    world.stop("j")
    world.end("j")


def test_the_workers_of_an_elastic_job_see_no_gpus_if_they_have_none(world: World) -> None:
    world.start("j", "echo [$CUDA_VISIBLE_DEVICES] $FAIRLEAD_GPU", elastic=True, env={"CUDA_VISIBLE_DEVICES": "7"})
    world.end("j")
    assert world.log("j") == "[] 0\n"
