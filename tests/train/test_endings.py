"""Jobs that end, or might have ended: what they saved, how long it took, and who was left behind."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

from driving import Drive, rows, slots, trajectory

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


def test_a_job_that_is_stopped_while_it_grows_does_not_wait_for_those_who_have_not_joined(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(1)
        drive.agent.resize(slots(3))
        await drive.until(lambda: len(drive.kinds("plan")) == 2)  # they are members now, but nobody has joined

    drive = Drive(tmp_path / "job", patience=Patience(grace_s=60.0))
    began: list[float] = []

    async def timed(drive: Drive) -> None:
        await play(drive)
        began.append(time.monotonic())

    assert drive.run(1, timed) == PREEMPTED
    assert time.monotonic() - began[0] < 15.0
    assert saved_step(drive) == 1 + drive.steps()


def test_a_job_that_is_stopped_while_it_shrinks_saves_what_it_has_learned(tmp_path: Path) -> None:
    async def play(drive: Drive) -> None:
        await drive.settled(3)
        drive.agent.resize(slots(1))

    drive = Drive(tmp_path / "job", patience=Patience(grace_s=60.0))
    began = time.monotonic()
    assert drive.run(3, play) == PREEMPTED
    assert time.monotonic() - began < 50.0
    assert saved_step(drive) == 1 + drive.steps()


def test_one_worker_that_has_had_enough_is_enough(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "job", finish_at=50)
    assert drive.run(2, Drive.ended) == 0
    assert drive.steps() == 51  # one more, in which the others hear of it
    assert saved_step(drive) == 52
    again = Drive(tmp_path / "job")
    assert again.run(1, Drive.ended) == 0
    assert again.steps() == 51, "it is still over"


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
