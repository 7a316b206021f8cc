"""Autoscaling: what is decided on curves whose answer is known, and a real job that finds its size while it trains."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from emulated import BATCH, EPOCHS, POINTS, SCRIPT, expected

from fairlead.core.errors import InvalidSpec
from fairlead.goodput.search import Linear, Measured, Search, UtilityOverCost
from fairlead.train.agent import Agent, Slot
from fairlead.train.history import History
from fairlead.train.steering import Steering

Curve = Callable[[int], float]


def slots(workers: int) -> list[Slot]:
    return [Slot("n0", gpu) for gpu in range(workers)]


def until(knee: int) -> Curve:
    """Seconds of a step: perfect scaling up to `knee` workers, and none beyond."""
    return lambda workers: 1.0 / min(workers, knee)


class FakeAgent:
    """Trains as fast as a curve says, and tells of it as an agent does. New workers take `boot_s`."""

    def __init__(
        self, curve: Curve, *, steps: int = 100_000, boot_s: float = 5.0, most: int = 8, slots: int = 8
    ) -> None:
        """Only so many of its slots take a worker; on the others it fails before it joins."""
        self._takes = slots
        self._curve, self._steps, self._boot_s, self._most, self._pause_s = curve, steps, boot_s, most, 0.25
        self.now, self.step = 0.0, 0
        self.members: list[Slot] = []
        self._wanted: list[Slot] = []
        self._due_s = self._boot_s
        self._generation = 0
        self.sizes: list[int] = []
        self._fresh = self._paused = False
        self._steering: Steering | None = None

    @property
    def settled(self) -> bool:
        return self.members == self._wanted

    def resize(self, wanted: Sequence[Slot]) -> None:
        assert self.settled, "resized during a change"
        if len(wanted) > self._most:
            raise InvalidSpec(f"{len(wanted)} workers are too many")
        self._due_s = self.now + (self._boot_s if len(wanted) > len(self.members) else 0.0)
        self._wanted = list(wanted[: self._takes])
        if len(wanted) > self._takes:
            self._say("refused", worker="w", code=1, left=self._takes)

    def run(self, steering: Steering, reports: int) -> None:
        """A report every ten seconds; all workers come and go between two steps."""
        self._steering = steering
        self._say("ready", most=self._most)
        self.resize(steering.first)
        for _ in range(reports):
            end, told = self.now + 10.0, list[tuple[int, int, float]]()
            while self.now < end:
                self._change_if_due()
                if not self.members:
                    self.now = self._due_s
                    continue
                step_s = self._curve(len(self.members))
                self.now += step_s
                self.step += 1
                if self._fresh:  # its time is not known, and that of the pause before it not yet
                    self._fresh, self._paused = False, self._generation > 1
                    continue
                told.append((len(self.members), BATCH, step_s))
                if self._paused:
                    self._say("paused", generation=self._generation, seconds=self._pause_s)
                    self._paused = False
            self._say(
                "report",
                saves=False,
                worker="w0",
                step=self.step,
                progress=self.step / self._steps,
                batch=BATCH,
                steps=told,
            )

    def _change_if_due(self) -> None:
        if self.settled or self.now < self._due_s:
            return
        self.now += self._pause_s if self.members else 0.0
        self.members, self._fresh = self._wanted, True
        self.sizes.append(len(self.members))
        self._generation += 1
        names = [f"w{slot.gpu}" for slot in self.members]
        self._say("plan", generation=self._generation, members=names, lost=[])
        for name in names:
            self._say("joined", worker=name, generation=self._generation, step=self.step)

    def _say(self, kind: str, **fields: object) -> None:
        assert self._steering is not None
        self._steering.hear({"kind": kind, "at": 1e9 + self.now, **fields}, self)


# -- what is decided -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 3, 8])
@pytest.mark.parametrize("knee", [1, 2, 3, 5, 8])
def test_the_search_ends_where_more_workers_add_nothing(knee: int, start: int) -> None:
    search = Search(least=1, most=8, step=1, start=start)
    steering, agent = Steering(slots(8), search, measured=Measured(math.inf)), FakeAgent(until(knee))
    agent.run(steering, reports=60)
    assert steering.found is not None
    assert (steering.found.size, len(agent.members)) == (knee, knee)
    assert agent.sizes[0] == start


def test_a_size_that_the_job_cannot_have_is_asked_for_once() -> None:
    steering, agent = Steering(slots(8), Search(least=1, most=8, step=1, start=1)), FakeAgent(until(8), slots=3)
    agent.run(steering, reports=60)
    assert [decided.size for decided in steering.decisions] == [2, 3, 4, 3]
    assert len(agent.members) == 3


def test_every_change_is_remembered_with_its_reason_and_the_end_of_the_search_too() -> None:
    told = []
    search = Search(least=1, most=8, step=1, start=1)
    steering, agent = Steering(slots(8), search, on_decision=told.append), FakeAgent(until(2))
    agent.run(steering, reports=60)
    assert [(decided.size, decided.found) for decided in steering.decisions] == [(2, False), (3, False), (2, True)]
    assert told == steering.decisions
    assert "Goes from 3 to 2 workers: 40 samples/s with 2 workers, 40 samples/s with 3 workers" in told[-1].why
    assert [change.after for change in steering.history.transitions] == [1, 2, 3, 2]


def test_a_search_that_ends_where_it_is_says_so_once() -> None:
    steering, agent = Steering(slots(3), Search(least=1, most=3, step=1, start=1)), FakeAgent(until(8))
    agent.run(steering, reports=60)
    assert [(decided.size, decided.found) for decided in steering.decisions] == [(2, False), (3, False), (3, True)]


def test_nothing_is_decided_while_workers_come_or_go() -> None:
    """The fake refuses; a boot takes far longer than it takes to be due again."""
    steering, agent = Steering(slots(4), Search(least=1, most=4, step=1, start=1)), FakeAgent(until(4), boot_s=300.0)
    agent.run(steering, reports=110)
    assert agent.sizes[:4] == [1, 2, 3, 4]


def test_steps_taken_while_others_boot_say_nothing_of_a_size() -> None:
    """Whoever boots takes half of the processors from those who train."""
    agent = FakeAgent(lambda workers: until(3)(workers) * (1.0 if agent.settled else 2.0), boot_s=50.0)
    steering = Steering(slots(8), Search(least=1, most=8, step=1, start=1), measured=Measured(math.inf))
    agent.run(steering, reports=100)
    by_size = {seen.size: seen.throughput for seen in steering.measured.seen()}
    assert by_size == pytest.approx({1: BATCH, 2: 2 * BATCH, 3: 3 * BATCH, 4: 3 * BATCH})


def test_a_dear_worker_is_not_worthwhile_where_a_cheap_one_is() -> None:
    """Done within a day the job is worth up to 100; a worker costs 0.01 or 100 an hour."""
    found = []
    for price in (0.01, 100.0):
        rule = UtilityOverCost(Linear(100.0, 86_400.0), price / 3600.0)
        steering = Steering(slots(4), Search(least=1, most=4, step=1, start=2, worthwhile=rule))
        agent = FakeAgent(lambda workers: workers**-0.7, steps=20_000)
        agent.run(steering, reports=60)
        assert steering.found is not None
        found.append(steering.found.size)
    assert found == [4, 1]


def test_a_job_that_takes_no_more_workers_stays_below() -> None:
    steering, agent = Steering(slots(8), Search(least=1, most=8, step=1, start=1)), FakeAgent(until(8), most=3)
    agent.run(steering, reports=30)
    assert [decided.size for decided in steering.decisions] == [2, 3, 3]
    assert steering.found is not None


def test_there_have_to_be_as_many_slots_as_the_search_may_want() -> None:
    with pytest.raises(InvalidSpec, match="most is 4, but there are only 2 slots"):
        Steering(slots(2), Search(least=1, most=4, step=1, start=1))


# -- what is remembered ----------------------------------------------------------------------------------------------


def test_the_pause_of_each_change_is_remembered() -> None:
    steering, agent = Steering(slots(8), Search(least=1, most=8, step=1, start=1)), FakeAgent(until(2))
    agent.run(steering, reports=60)
    assert [change.pause_s for change in steering.history.transitions] == [None, 0.25, 0.25, 0.25]


def test_every_step_counts_also_those_that_are_not_timed() -> None:
    """The first one after each change is not; the fake does not tell of it."""
    steering, agent = Steering(slots(8), Search(least=1, most=8, step=1, start=1)), FakeAgent(until(2))
    agent.run(steering, reports=60)
    assert sum(pace.steps for pace in steering.history.paces.values()) == agent.step


def test_a_pause_that_is_told_late_belongs_to_its_own_generation() -> None:
    history = begun(1)
    join(history, 2, at=5.0)
    join(history, 3, at=9.0)
    history.note({"kind": "paused", "at": 9.1, "generation": 2, "seconds": 0.5})
    assert [change.pause_s for change in history.transitions] == [None, 0.5, None]


def test_who_joins_a_generation_that_is_already_over_does_not_complete_the_next() -> None:
    history = begun(2)
    history.note({"kind": "plan", "at": 1.0, "generation": 3, "members": ["w0", "w1"], "lost": ["w2"]})
    for generation in (2, 3):
        history.note({"kind": "joined", "at": 2.0, "worker": "w0", "generation": generation, "step": 5})
    assert len(history.transitions) == 1
    history.note({"kind": "joined", "at": 2.0, "worker": "w1", "generation": 3, "step": 5})
    assert (history.transitions[-1].lost, history.size) == (["w2"], 2)


def report(at: float, step: int, steps: Sequence[tuple[int, int, float]], progress: float = 0.5) -> dict[str, Any]:
    return {
        "kind": "report",
        "at": at,
        "step": step,
        "progress": progress,
        "batch": BATCH,
        "steps": steps,
        "saves": False,
    }


def begun(workers: int, at: float = 0.0) -> History:
    history = History()
    join(history, workers, at)
    return history


def join(history: History, workers: int, at: float, step: int = 0) -> None:
    names, generation = [f"w{place}" for place in range(workers)], len(history.transitions) + 1
    history.note({"kind": "plan", "at": at, "generation": generation, "members": names, "lost": []})
    for name in names:
        history.note({"kind": "joined", "at": at, "worker": name, "generation": generation, "step": step})


def test_steps_that_a_new_leader_tells_again_count_once() -> None:
    history = begun(2)
    history.note(report(5.0, 5, [(2, BATCH, 1.0)] * 5))
    assert len(history.note(report(7.0, 7, [(2, BATCH, 1.0)] * 7))) == 2
    assert history.paces[2].steps == 7


def test_steps_belong_to_those_who_took_them_however_late_that_is_told() -> None:
    """The leader that told nothing of its last ten steps is gone; the next report comes before everybody has joined."""
    history = begun(3)
    history.note(report(5.0, 50, [(3, BATCH, 0.1)] * 49))
    history.note({"kind": "plan", "at": 6.0, "generation": 2, "members": ["w1", "w2"], "lost": ["w0"]})
    history.note({"kind": "joined", "at": 6.1, "worker": "w1", "generation": 2, "step": 60})
    history.note(report(6.2, 62, [(2, BATCH, 0.1)]))
    history.note({"kind": "joined", "at": 6.3, "worker": "w2", "generation": 2, "step": 60})
    assert {workers: pace.steps for workers, pace in history.paces.items()} == {3: 60, 2: 2}


def test_steps_that_were_lost_and_taken_again_count_twice() -> None:
    history = begun(1)
    history.note(report(5.0, 50, [(1, BATCH, 0.1)] * 49, progress=0.5))
    join(history, 1, at=9.0, step=40)
    history.note(report(9.5, 45, [(1, BATCH, 0.1)] * 4, progress=0.45))
    assert history.paces[1].steps == 55


def test_a_single_step_has_no_speed() -> None:
    history = begun(1)
    history.note(report(1.0, 1, []))
    assert (history.paces[1].steps, history.paces[1].throughput) == (1, None)


@pytest.mark.parametrize(
    ("samples", "first", "last"),
    [
        ([64, 64, 32, 64], 64, 64),  # the rest of an epoch
        ([64, 64, 128], 64, 128),
        ([64, 64, 32, 32], 64, 32),
        ([64, 32, 16, 32], 64, 64),  # it has shrunk, but that is not certain yet
        ([], None, None),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_batch_is_that_of_whole_steps(samples: list[int], first: int, last: int, at_once: bool) -> None:
    history, steps = begun(1), [(1, each, 0.1) for each in samples]
    if at_once:
        history.note(report(1.0, len(steps), steps))
    else:
        for place, step in enumerate(steps):
            history.note(report(1.0 + place, 1 + place, [step]))
    assert (history.first_batch, history.batch) == (first, last)


def test_a_job_that_went_back_to_a_checkpoint_takes_its_steps_again() -> None:
    history = begun(2)
    history.note(report(5.0, 50, [(2, BATCH, 0.1)] * 50, progress=0.5))
    assert len(history.note(report(10.0, 30, [(2, BATCH, 0.1)] * 10, progress=0.3))) == 10
    assert history.remaining_samples is None
    history.note(report(11.0, 40, [(2, BATCH, 0.1)] * 10, progress=0.4))
    assert history.remaining_samples == pytest.approx(60 * BATCH)


def test_what_remains_is_in_proportion_to_what_was_done_since_the_job_began_here() -> None:
    history = begun(1)
    history.note(report(1.0, 500, [(1, BATCH, 0.1)] * 10, progress=0.5))
    assert history.remaining_samples is None
    history.note(report(2.0, 510, [(1, BATCH, 0.1)] * 9, progress=0.6))  # one of ten was not timed
    assert history.remaining_samples == pytest.approx(40 * BATCH)


def test_gpu_time_counts_from_the_start_of_a_worker_to_its_end() -> None:
    history = History()
    for at, kind, worker in [
        (0.0, "started", "w1"),
        (2.0, "started", "w2"),
        (5.0, "exited", "w2"),
        (9.0, "left", "w1"),
    ]:
        history.note({"kind": kind, "at": 100.0 + at, "worker": worker})
    assert history.gpu_s == pytest.approx(3.0 + 9.0)


# -- a real job ------------------------------------------------------------------------------------------------------


def test_a_real_job_finds_its_size_and_learns_what_gradient_descent_does(tmp_path: Path) -> None:
    """More than two workers are not worthwhile. Once that is found, the device becomes fast and the job ends."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; pip install 'fairlead[train]'")
    steering = Steering(slots(4), Search(least=1, most=4, step=1, start=1, every_steps=3, enough_steps=20))
    events = list[dict[str, Any]]()

    def hear(event: dict[str, Any]) -> None:
        events.append(event)
        steering.hear(event, agent)
        if steering.found is not None and agent.settled:
            (tmp_path / "fast").touch()

    env = {**os.environ, "OUT": str(tmp_path), "OPTIONS": json.dumps({"knee": 2}), "FAIRLEAD_REPORT_S": "0.3"}
    agent = Agent([sys.executable, str(SCRIPT)], env=env, logs=tmp_path / "logs", on_event=hear)
    code = asyncio.run(asyncio.wait_for(agent.run(steering.first), 100.0))
    assert code == 0, events[-20:]
    assert [decided.size for decided in steering.decisions][:3] == [2, 3, 2], steering.decisions
    changes = steering.history.transitions[:4]
    assert [change.after for change in changes] == [1, 2, 3, 2]
    assert all((change.pause_s or 0.0) < 2.0 for change in changes)  # one that is too short to be seen is not told
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["steps"] == EPOCHS * POINTS // BATCH
    assert found["weights"] == pytest.approx(expected(), rel=1e-9, abs=1e-9)
