"""Jobs that grow, shrink, pause, lose workers and go on: real processes, real gloo, and the trajectory of one alone."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

from driving import SCRIPT, TIMEOUT_S, Drive, rows, slots, trajectory

from fairlead.core.errors import InvalidSpec
from fairlead.train.agent import PREEMPTED, Agent, Patience
from fairlead.train.order import Audit


def alone(out: Path, steps: int, **options: Any) -> dict[int, dict[str, Any]]:
    """The same job in one process without an agent."""
    out.mkdir(parents=True, exist_ok=True)
    given = {"epochs": 10_000, "finish_at": steps - 1, **options}
    env = {**os.environ, "OUT": str(out), "OPTIONS": json.dumps(given)}
    subprocess.run([sys.executable, str(SCRIPT)], env=env, check=True, timeout=TIMEOUT_S)
    return trajectory(out)


def assert_same(found: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    """To what the order of additions changes."""
    assert list(found) == list(range(len(found)))  # no step is missing
    for step, row in found.items():
        assert row["loss"] == pytest.approx(expected[step]["loss"], rel=1e-9), step
        assert row["weights"] == pytest.approx(expected[step]["weights"], rel=1e-9), step


def assert_every_sample_once(found: dict[int, dict[str, Any]]) -> None:
    """Each step begins where the one before has ended."""
    for before, after in itertools.pairwise(found.values()):
        assert after["position"] == (before["position"] + before["total"]) % 1000
        assert after["epoch"] == before["epoch"] + (after["position"] == 0)


def test_a_job_that_grows_shrinks_and_sleeps_trains_as_if_nothing_had_happened(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        for workers in (2, 4, 3):
            await drive.size(workers)
        drive.agent.suspend()
        await drive.until(lambda: sum(event["kind"] == "suspended" for event in drive.events) == 3)
        asleep = drive.steps()
        drive.agent.resume()
        await drive.until(lambda: drive.steps() > asleep + 5)
        await drive.size(1)

    drive = Drive(tmp_path / "job")
    assert drive.run(1, play) == PREEMPTED
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {1, 2, 3, 4}
    assert_same(found, alone(tmp_path / "alone", len(found)))
    assert_every_sample_once(found)


@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_happens_every_sample_is_used_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resized and killed at random, with samples fetched ahead by processes: an audit of every sample of every step."""
    audit = tmp_path / "audit"
    audit.mkdir()
    monkeypatch.setenv("FAIRLEAD_AUDIT", str(audit))
    chance = random.Random(seed)

    async def play(drive: Drive) -> None:
        await drive.settled(2)
        for _ in range(3):
            workers = chance.choice([1, 2, 3])
            drive.agent.resize(slots(workers))
            if chance.random() < 0.5:
                drive.kill(chance.randrange(len(drive.agent.members)))
                await drive.until(lambda: not drive.agent.settled)
            await drive.settled(workers)
        epoch = rows(drive.out)[-1]["epoch"]
        await drive.until(lambda: any(row["epoch"] > epoch for row in rows(drive.out)))

    drive = Drive(tmp_path / "job", num_workers=seed)
    assert drive.run(2, play) == PREEMPTED
    found = trajectory(drive.out)
    assert_same(found, alone(tmp_path / "alone", len(found)))
    whole = max(row["epoch"] for row in found.values())
    assert whole >= 1
    Audit.merged(audit.iterdir()).check(1000, epochs=range(whole))


def test_with_a_batch_that_grows_all_replicas_stay_alike(tmp_path: Path) -> None:
    """Whoever takes part in a step has the same weights after it, and the same progress, to the last bit."""

    async def play(drive: Drive) -> None:
        await drive.settled(3)
        await drive.until(lambda: rows(drive.out)[-1]["total"] > 30)
        await drive.size(2)

    drive = Drive(tmp_path / "job", max_batch_size=300, schedule="doubling")
    assert drive.run(3, play) == PREEMPTED
    by_step: dict[int, set[tuple[float, float, int]]] = {}
    for row in rows(drive.out):
        by_step.setdefault(row["step"], set()).add((row["weights"], row["progress"], row["total"]))
    assert [step for step, seen in by_step.items() if len(seen) > 1] == []


def test_a_job_whose_script_fails_after_training_has_failed(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        assert drive._ended is not None
        await drive._ended

    drive = Drive(tmp_path / "job", epochs=1, pace_s=0.0, exit_with=7)
    assert drive.run(2, play) == 7


def test_a_job_that_is_suspended_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        drive.agent.suspend()
        await drive.until(lambda: any(event["kind"] == "suspended" for event in drive.events))
        assert drive.steps() <= 1
        drive.agent.resume()
        await drive.settled(1)

    assert Drive(tmp_path / "job").run(1, play) == PREEMPTED


def test_workers_that_are_not_wanted_any_more_are_ended(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        drive.agent.resize(slots(3))
        await drive.until(lambda: sum(event["kind"] == "started" for event in drive.events) == 3)
        drive.agent.resize(slots(1))
        await drive.until(lambda: sum(event["kind"] == "exited" for event in drive.events) == 2)
        await drive.settled(1)

    drive = Drive(tmp_path / "job")
    assert drive.run(1, play) == PREEMPTED
    assert {event["stage"] for event in drive.events if event["kind"] == "exited"} == {"left", "member"}


def test_a_job_that_is_stopped_at_once_ends(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        drive.agent.stop()

    assert Drive(tmp_path / "job").run(2, play) == PREEMPTED


def test_a_stream_is_read_by_whoever_comes(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        for workers in (3, 2):
            await drive.size(workers)

    options = {"length": 1000}
    drive = Drive(tmp_path / "job", **options)
    assert drive.run(1, play) == PREEMPTED
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {1, 2, 3}
    assert_same(found, alone(tmp_path / "alone", len(found), **options))
    assert_every_sample_once(found)


def test_a_worker_that_straggles_does_less_and_is_replaced_by_one_that_has_joined_before(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(3)
        await drive.until(lambda: any(event["kind"] == "straggler" for event in drive.events))
        await drive.until(lambda: any(event["kind"] == "left" for event in drive.events))
        await drive.settled(3)

    drive = Drive(
        tmp_path / "job",
        patience=Patience(grace_s=20.0, straggling_s=1.0),
        env={"FAIRLEAD_REPORT_S": "0.5"},
        slow="w3",
        slow_s=0.005,
    )
    assert drive.run(3, play) == PREEMPTED
    plans = [event["members"] for event in drive.events if event["kind"] == "plan"]
    assert plans == [["w1", "w2", "w3"], ["w1", "w2", "w4"]]
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {3}
    assert_same(found, alone(tmp_path / "alone", len(found)))


def test_a_worker_that_comes_between_two_epochs_does_what_the_others_do_there(tmp_path: Path) -> None:
    """An epoch is one step, so that it always does. A scheduler that they step and it does not would show."""

    async def play(drive: Drive) -> None:
        await drive.settled(1)
        for workers in (2, 3):
            await drive.size(workers)

    drive = Drive(tmp_path / "job", batch_size=1000)
    assert drive.run(1, play) == PREEMPTED
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {1, 2, 3}
    assert_same(found, alone(tmp_path / "alone", len(found), batch_size=1000))


def test_a_scheduler_that_nobody_hands_over_is_found_out(tmp_path: Path) -> None:
    """Instead of replicas that drift apart."""

    async def play(drive: Drive) -> None:
        await drive.settled(1)
        await drive.until(lambda: rows(drive.out)[-1]["epoch"] >= 2)
        drive.agent.resize(slots(2))
        assert drive._ended is not None
        await drive._ended

    drive = Drive(tmp_path / "job", forgetful=True)
    assert drive.run(1, play) == 1
    assert "give the scheduler to job.wrap" in drive.told()


def test_more_workers_than_samples_in_a_step_are_refused(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        with pytest.raises(InvalidSpec, match="3 workers are too many: this job takes at most 2; raise batch_size"):
            drive.agent.resize(slots(3))
        await drive.size(2)  # and goes on

    drive = Drive(tmp_path / "job", batch_size=2)
    assert drive.run(1, play) == PREEMPTED
    again = Drive(tmp_path / "again", batch_size=1)

    async def wait(drive: Drive) -> None:
        assert drive._ended is not None
        await drive._ended

    assert again.run(2, wait) == 1
    assert "2 workers are too many" in next(event["why"] for event in again.events if event["kind"] == "ended")


AGENT = """
import asyncio, sys
from pathlib import Path
from fairlead.train.agent import Agent, Slot
told = open(sys.argv[2], "a")
agent = Agent([sys.executable, sys.argv[1]], on_event=lambda event: print(event, file=told, flush=True))
asyncio.run(agent.run([Slot("n0", 0), Slot("n0", 1)]))
"""


def test_without_their_agent_workers_save_and_stop(tmp_path: Path) -> None:
    """It was killed, and can end nobody: so nobody is left behind, and nothing is lost."""
    env = {**os.environ, "OUT": str(tmp_path), "OPTIONS": json.dumps({"epochs": 10_000, "pace_s": 0.005})}
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(SCRIPT), str(tmp_path / "events")], env=env)
    try:
        wait_until(lambda: len(trajectory(tmp_path)) > 20)
    finally:
        agent.kill()
        agent.wait()
    wait_until(lambda: not processes_with(f"OUT={tmp_path}"))
    done = len(trajectory(tmp_path))
    found = alone(tmp_path, 5)  # goes on from the checkpoint
    assert len(found) == done + 1


def wait_until(true: Callable[[], bool]) -> None:
    late = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < late
        time.sleep(0.05)


def processes_with(variable: str) -> list[Path]:
    """Those that have it in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(path)
    return found


def test_a_killed_worker_costs_less_than_a_second_and_no_progress(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(3)
        for rank in (2, 0):  # the last, and the leader
            drive.kill(rank)
            await drive.until(lambda: not drive.agent.settled)
            await drive.settled(3)  # its replacement has come

    drive = Drive(tmp_path / "job")
    assert drive.run(3, play) == PREEMPTED
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {2, 3}
    assert_same(found, alone(tmp_path / "alone", len(found)))
    assert_every_sample_once(found)
    for lost in (event for event in drive.events if event["kind"] == "plan" and event["lost"]):
        following = min(row["at"] for row in rows(drive.out) if row["at"] > lost["at"])
        assert following - lost["at"] < 1.0


def test_a_worker_that_hangs_is_noticed_and_replaced(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(2)
        drive.kill(1, signal.SIGSTOP)
        await drive.until(lambda: any(event["kind"] == "hung" for event in drive.events))
        await drive.settled(2)

    drive = Drive(tmp_path / "job", patience=Patience(grace_s=20.0, silent_s=3.0))
    assert drive.run(2, play) == PREEMPTED
    assert_every_sample_once(trajectory(drive.out))


def test_if_everybody_is_killed_the_job_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(2)
        await drive.until(lambda: any((drive.out / "checkpoints").glob("*-step-[1-9]*.ckpt")))
        drive.kill(0)
        drive.kill(1)
        await drive.until(lambda: sum(event["kind"] == "exited" for event in drive.events) == 2)
        await drive.settled(2)

    drive = Drive(tmp_path / "job")
    assert drive.run(2, play) == PREEMPTED
    found = trajectory(drive.out)  # steps that were done again are the same again
    joined = [event["step"] for event in drive.events if event["kind"] == "joined"]
    assert max(joined[2:]) > 0
    assert_same(found, alone(tmp_path / "alone", len(found)))


def test_a_job_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    first, again = Drive(tmp_path / "job"), Drive(tmp_path / "job")
    assert first.run(2, lambda drive: drive.settled(2)) == PREEMPTED
    done = first.steps()
    assert again.run(1, lambda drive: drive.settled(1)) == PREEMPTED
    assert [event["step"] for event in again.events if event["kind"] == "joined"] == [done + 1]
    found = trajectory(again.out)
    assert_same(found, alone(tmp_path / "alone", len(found)))
    assert_every_sample_once(found)


@pytest.mark.parametrize("by_signal", [True, False])
def test_a_job_that_is_stopped_while_it_hangs_in_its_own_code_saves_the_last_step(
    by_signal: bool, tmp_path: Path
) -> None:
    """After `optimizer.step()`, but before the loader is asked again: the step counts, and is not done twice."""

    async def play(drive: Drive) -> None:
        await drive.until(lambda: (drive.out / "stalled").exists())
        if by_signal:
            drive.kill(0, signal.SIGTERM)
            assert drive._ended is not None
            await drive._ended

    out = tmp_path / "job"
    first = Drive(out, patience=Patience(grace_s=4.0), stall_at=20, grace_s=2.0)
    assert first.run(1, play) == PREEMPTED
    again = Drive(out, stall_at=20)
    assert again.run(1, lambda drive: drive.settled(1)) == PREEMPTED
    assert next(event["step"] for event in again.events if event["kind"] == "joined") == 21
    found = trajectory(out)
    assert_same(found, alone(tmp_path / "alone", len(found)))


def test_in_reproducible_mode_random_numbers_do_not_depend_on_the_workers_either(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        await drive.size(3)

    options = {"reproducible": True, "dropout": 0.5}
    drive = Drive(tmp_path / "job", **options)
    assert drive.run(1, play) == PREEMPTED
    found = trajectory(drive.out)
    assert {row["world"] for row in found.values()} == {1, 3}
    assert_same(found, alone(tmp_path / "alone", len(found), **options))


def test_the_same_script_runs_under_torchrun(tmp_path: Path) -> None:
    given = {"epochs": 2}
    env = {**os.environ, "OUT": str(tmp_path), "OPTIONS": json.dumps(given), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    subprocess.run(command, env=env, check=True, timeout=120, capture_output=True)
    found = trajectory(tmp_path)
    assert {row["world"] for row in found.values()} == {2}
    assert_same(found, alone(tmp_path / "alone", 10_000, epochs=2))


def test_a_job_ends_by_itself_when_its_epochs_are_done(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        assert drive._ended is not None
        await drive._ended

    drive = Drive(tmp_path / "job", epochs=2, pace_s=0.0)
    assert drive.run(2, play) == 0
    assert len(trajectory(drive.out)) == 2 * 34


def test_a_script_that_fails_ends_the_job_with_its_exit_code(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        assert drive._ended is not None
        await drive._ended

    drive = Drive(tmp_path / "job", batch_size=0)
    assert drive.run(2, play) == 1
    assert "failed with exit code 1" in next(event["why"] for event in drive.events if event["kind"] == "ended")
    assert sum(event["kind"] == "started" for event in drive.events) == 2  # nobody is started in vain
    assert "InvalidSpec" in drive.told()


def test_a_command_that_does_not_exist_ends_the_job() -> None:
    import asyncio

    events: list[dict[str, Any]] = []
    agent = Agent(["no-such-command"], on_event=events.append)
    assert asyncio.run(agent.run(slots(1))) == 127
    assert "cannot run no-such-command" in events[-1]["why"]


@pytest.mark.parametrize(("command", "env"), [(["true"], {"BAD": "nul\0byte"}), (["true", "nul\0byte"], {})])
def test_what_no_process_can_be_given_ends_the_job_and_is_told(command: list[str], env: dict[str, str]) -> None:
    import asyncio

    events: list[dict[str, Any]] = []
    agent = Agent(command, env=env, on_event=events.append)
    assert asyncio.run(asyncio.wait_for(agent.run(slots(2)), 10)) == 127
    assert events[-1]["why"] == "cannot run 'true': embedded null byte in its command or environment"
