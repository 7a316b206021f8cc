"""Jobs that end, or might have ended: what they saved, how long it took, and who was left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

from driving import SCRIPT, Drive, rows, slots, trajectory

from fairlead.train import group
from fairlead.train.agent import PREEMPTED, Patience
from fairlead.train.checkpoint import Store


def saved_step(drive: Drive) -> int:
    loaded = Store(drive.out / "checkpoints").latest()
    assert loaded is not None
    return loaded.step


def test_a_worker_with_an_error_of_its_own_ends_the_job_but_the_others_save(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", crash="w2", crash_at=40)
    assert drive.run(3, Drive.ended) == 1
    assert "worker w2 failed with exit code 1" in drive.kinds("ended")[0]["why"]
    assert saved_step(drive) >= 40
    assert saved_step(drive) == 1 + drive.steps()


def test_when_no_worker_may_be_replaced_any_more_the_others_save(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(2)
        drive.kill(1)
        await drive.ended()

    drive = Drive(tmp_path / "job", max_restarts=0)
    assert drive.run(2, play) == 1
    assert "killed by signal 9, and max_restarts is 0" in drive.kinds("ended")[0]["why"]
    assert saved_step(drive) == 1 + drive.steps()


def test_a_worker_that_is_killed_before_it_joins_is_not_missed_when_none_may_be_replaced(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        drive.agent.resize(slots(2))
        await drive.until(lambda: "w2" in drive.agent._workers)
        drive.agent._workers["w2"].kill()
        await drive.until(lambda: bool(drive.kinds("refused")))
        await drive.settled(1)

    assert Drive(tmp_path / "job", max_restarts=0).run(1, play) == PREEMPTED


def test_a_long_report_is_heard(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        await drive.until(lambda: len(drive.kinds("report")) >= 2)

    drive = Drive(tmp_path / "job", report_bytes=1 << 20, env={"FAIRLEAD_REPORT_S": "0.2"})
    assert drive.run(1, play) == PREEMPTED


def test_a_job_goes_on_without_a_worker_that_fails_before_it_joins(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        drive.agent.resize(slots(2))
        await drive.until(lambda: bool(drive.kinds("refused")))
        await drive.settled(1)
        await drive.size(2)  # the next one has another name, and does not fail

    drive = Drive(tmp_path / "job", fails="w2")
    assert drive.run(1, play) == PREEMPTED
    assert drive.kinds("refused")[0]["code"] == 5
    assert {row["world"] for row in trajectory(drive.out).values()} == {1, 2}


async def changing(drive: Drive, before: int, after: int) -> None:
    """Everybody is told the next size, and nobody has changed over yet."""
    await drive.settled(before)
    drive.agent.resize(slots(after))
    await drive.until(lambda: len(drive.kinds("plan")) == 2)


def assert_saved_soon(drive: Drive) -> None:
    """Without waiting for the last resort, which would be half of the grace period."""
    assert drive.kinds("ended")[0]["at"] - drive.kinds("plan")[1]["at"] < 15.0
    assert saved_step(drive) == 1 + drive.steps()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_job_that_is_stopped_while_it_changes_its_size_saves_at_once(before: int, after: int, tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", patience=Patience(grace_s=60.0), pace_s=0.05)
    assert drive.run(before, lambda drive: changing(drive, before, after)) == PREEMPTED
    assert_saved_soon(drive)


@pytest.mark.parametrize(("before", "after", "dies"), [(2, 3, 1), (3, 1, 0)])
def test_a_death_while_a_job_changes_its_size_that_ends_it_lets_the_others_save(
    before: int, after: int, dies: int, tmp_path: Path
) -> None:
    async def play(drive: Drive) -> None:
        await changing(drive, before, after)
        drive.kill(dies)
        await drive.ended()

    drive = Drive(tmp_path / "job", max_restarts=0, patience=Patience(grace_s=60.0), pace_s=0.05)
    assert drive.run(before, play) == 1
    assert_saved_soon(drive)


@pytest.mark.parametrize("left", [1, 2])
def test_a_death_while_a_job_shrinks_loses_nothing_and_nobody_is_left_behind(left: int, tmp_path: Path) -> None:
    """Whoever should have stayed is dead; those who should leave have the state, and leave once it is handed over."""

    async def play(drive: Drive) -> None:
        await changing(drive, 3, left)
        drive.kill(0)
        await drive.settled(left)
        await drive.until(lambda: len(drive.agent._workers) == left)

    drive = Drive(tmp_path / "job", pace_s=0.05)
    assert drive.run(3, play) == PREEMPTED
    joined = drive.kinds("joined")
    assert min(event["step"] for event in joined if event["generation"] > 1) > 0
    trajectory(drive.out)  # which checks that all agree


def test_a_last_save_that_takes_longer_than_half_of_the_grace_period_is_not_disturbed(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", patience=Patience(grace_s=6.0), write_s=4.0, save_every_s=1e6)
    assert drive.run(1, lambda drive: drive.settled(1)) == PREEMPTED
    assert saved_step(drive) == 1 + drive.steps()


def test_what_a_script_does_after_training_takes_as_long_as_it_takes(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", patience=Patience(grace_s=2.0), epochs=1, tail_s=6.0, write_s=3.0)
    assert drive.run(2, Drive.ended) == 0
    assert (drive.out / "after").exists()
    assert saved_step(drive) == 1 + drive.steps()


def test_a_worker_that_dies_after_training_is_no_success(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.until(lambda: len(drive.kinds("exited")) == 1)
        drive.kill(0)
        await drive.ended()

    drive = Drive(tmp_path / "job", epochs=1, tail_s=60.0)
    assert drive.run(2, play) == 137


def test_workers_with_other_data_are_refused_by_name(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", differs="w2")
    assert drive.run(2, Drive.ended) == 1
    assert "samples is 1000, here it is 1001" in drive.told()


def test_one_that_comes_with_other_data_changes_nothing_for_the_others(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(2)
        drive.agent.resize(slots(3))
        await drive.until(lambda: bool(drive.kinds("refused")))
        await drive.settled(2)

    drive = Drive(tmp_path / "job", differs="w3")
    assert drive.run(2, play) == PREEMPTED
    trajectory(drive.out)


def test_a_job_that_grows_while_it_sleeps_wakes_up_whole(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        drive.agent.suspend()
        await drive.until(lambda: bool(drive.kinds("suspended")))
        drive.agent.resize(slots(2))
        await drive.until(lambda: len(drive.kinds("started")) == 2)
        drive.agent.resume()
        await drive.settled(2)

    assert Drive(tmp_path / "job").run(1, play) == PREEMPTED


def test_a_rehearsal_is_no_reason_to_finish(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        await drive.size(2)

    assert Drive(tmp_path / "job", finish_in_rehearsal=True).run(1, play) == PREEMPTED


def test_one_worker_that_has_had_enough_is_enough(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", finish_at=50)
    assert drive.run(2, Drive.ended) == 0
    assert drive.steps() == 51  # one more, in which the others hear of it
    assert saved_step(drive) == 52
    again = Drive(tmp_path / "job")
    assert again.run(1, Drive.ended) == 0
    assert again.steps() == 51, "it is still over"


def test_one_that_has_had_enough_and_leaves_is_heard(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await changing(drive, 2, 1)
        drive.agent._heed(drive.agent._workers["w2"], {"kind": "left", "finish": True})
        await drive.ended()

    assert Drive(tmp_path / "job").run(2, play) == 0


def test_alone_it_is_enough_at_once(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", finish_at=50)
    assert drive.run(1, Drive.ended) == 0
    assert drive.steps() == 50


def test_a_loop_that_is_left_after_every_batch_lets_workers_join(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        await drive.size(2)

    drive = Drive(tmp_path / "job", breaks=True)
    assert drive.run(1, play) == PREEMPTED
    assert {row["world"] for row in trajectory(drive.out).values()} == {1, 2}


def test_without_shared_memory_the_state_is_sent(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(2)
        await drive.size(3)

    drive = Drive(tmp_path / "job", no_shared_memory=True)
    assert drive.run(2, play) == PREEMPTED
    assert trajectory(drive.out)  # which checks that all agree


def test_a_job_that_cannot_save_trains_on_and_saves_when_it_can(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        kept = drive.out / "checkpoints"
        shutil.rmtree(kept)
        kept.touch()  # a file, in which nothing can be saved
        await drive.until(lambda: len(drive.kinds("unsaved")) >= 2)
        kept.unlink()
        await drive.until(lambda: any(kept.glob("*.ckpt")))
        await drive.settled(1)

    drive = Drive(tmp_path / "job")
    assert drive.run(1, play) == PREEMPTED
    assert "cannot save step" in drive.kinds("unsaved")[0]["why"]
    assert saved_step(drive) == 1 + drive.steps()


def test_the_schedule_of_the_batch_survives_its_leader(tmp_path: Path) -> None:
    """A batch that has doubled stays so: whoever leads next would have to begin at the first one again."""

    def totals(drive: Drive) -> list[int]:
        return [row["total"] for row in sorted(rows(drive.out), key=lambda row: row["step"])]

    async def play(drive: Drive) -> None:
        await drive.until(lambda: max(totals(drive), default=0) >= 32)
        drive.kill(0)
        await drive.settled(2)
        done = drive.steps()
        await drive.until(lambda: drive.steps() >= done + 800)  # for several looks at the batch

    drive = Drive(tmp_path / "job", batch_size=4, max_batch_size=32, schedule="doubling", noise=3.0)
    assert drive.run(2, play) == PREEMPTED
    full = [row["total"] for row in trajectory(drive.out).values() if row["position"] + row["total"] < 1000]
    grown = full.index(32)
    assert set(full[grown:]) == {32}


def alone(out: Path, **options: Any) -> subprocess.Popen[str]:
    """The script in one process, without an agent."""
    out.mkdir()
    env = {**os.environ, "OUT": str(out), "OPTIONS": json.dumps({"epochs": 10_000, **options})}
    return subprocess.Popen([sys.executable, str(SCRIPT)], env=env, stderr=subprocess.PIPE, text=True)


def test_a_job_that_is_done_waits_for_threads_inside_torch() -> None:
    """The interpreter must not end under them: torch would abort, and the job would count as failed."""
    leaves = threading.Event()
    thread = group._start_within_torch(lambda: leaves.wait() and None, "inside")
    assert not group.wait_for_torch_threads(0.05)
    threading.Timer(0.2, leaves.set).start()
    assert group.wait_for_torch_threads(60.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(("script", "code"), [("raise RuntimeError('its own')", 1), ("raise SystemExit(3)", -6)])
def test_a_script_that_raised_ends_before_the_interpreter_is_taken_apart(script: str, code: int) -> None:
    """Where a thread of torch would call back into Python, and abort. A handler that is called later stands for it."""
    whole = f"""
import atexit, os
atexit.register(os.abort)  # the first to be registered is the last to be called
from fairlead.train.ending import ERROR_EXIT
ERROR_EXIT.armed = True
atexit.register(print, "cleans up", flush=True)
{script}
"""
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "cleans up\n")


def test_processes_that_fetch_ahead_end_with_the_job(tmp_path: Path) -> None:
    with alone(tmp_path / "job", epochs=1, num_workers=2) as script:
        assert script.wait(60) == 0


def test_ctrl_c_without_an_agent_saves(tmp_path: Path) -> None:
    with alone(tmp_path / "job", save_every_s=1e6, pace_s=0.01) as script:
        while len(rows(tmp_path / "job")) < 5:
            assert script.poll() is None
            time.sleep(0.02)
        script.send_signal(signal.SIGINT)
        assert script.wait(30) == PREEMPTED
        assert script.stderr is not None
        assert "saves and stops" in script.stderr.read()
    loaded = Store(tmp_path / "job" / "checkpoints").latest()
    assert loaded is not None
    assert loaded.step >= 5
