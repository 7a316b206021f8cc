"""Paces that end on whole ticks: when exactly, and what a decision at that very instant gets to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Plan
from fairlead.journal import MemoryJournal
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.backend import SimBackend
from fairlead.sim.costs import FREE, Costs
from fairlead.sim.measured import MeasuredTruth, load_profile
from fairlead.sim.truth import Pace, Setting
from fairlead.sim.world import SimJob

A, B = Allocation.of({"n0": (0, 1)}), Allocation.of({"n0": (2,)})


@dataclass(frozen=True)
class Epochs:
    """Epochs of so many seconds each on two GPUs, every one of which ends on a whole tick."""

    seconds: tuple[float, ...]
    tick_s: float = 1.0

    @property
    def total(self) -> float:
        return sum(self.seconds)

    def pace(self, setting: Setting) -> Pace:
        ends = [sum(self.seconds[: k + 1]) for k in range(len(self.seconds))]
        until = next((end for end in ends if end > setting.progress), ends[-1])
        return Pace(setting.allocation.total / 2, until, tick_s=self.tick_s)

    def remaining_s(self, progress: float) -> float:
        return RunAlone.of(self, consolidated(2, node_gpus=4), "gpu").remaining_s(progress)


@dataclass(frozen=True)
class Follow:
    """From each time on, where the job is. Remembers whom it saw, when, and what was left of the job then."""

    plans: Mapping[float, Allocation]
    backend: SimBackend
    seen: list[tuple[float, float]] = field(default_factory=list)

    def plan(self, view: Snapshot) -> Plan:
        if "a" not in view.jobs:
            return Plan()
        self.seen.append((view.now, self.backend.remaining_s("a")))
        where = self.plans[max(at for at in self.plans if at <= view.now)]
        later = min((at for at in self.plans if at > view.now), default=math.inf)
        return Plan({"a": where} if where else {}, review_at=later)


def simulate(
    truth: Epochs, plans: Mapping[float, Allocation], *, cadence: str = "event", costs: Costs = FREE
) -> tuple[float, Follow]:
    """When the job ended, and what the policy saw."""
    job = SimJob(JobSpec(id="a", gpus=2, gpus_min=1), 0.0, truth, costs)
    backend, state = SimBackend([job], [Node("n0", 4)]), State()
    policy = Follow(plans, backend)
    run(policy, backend, state=state, journal=MemoryJournal(), cadence=Cadence.parse(cadence))
    return state.finished["a"].since, policy


@pytest.mark.parametrize(
    ("seconds", "end"),
    [((10.4,), 10.0), ((10.6,), 11.0), ((10.4, 10.4), 20.0), ((10.6, 10.6, 0.3), 22.0), ((0.4, 0.4, 0.4), 0.0)],
)
def test_every_epoch_is_rounded_to_whole_seconds_from_where_the_last_one_ended(
    seconds: tuple[float, ...], end: float
) -> None:
    truth = Epochs(seconds)
    assert simulate(truth, {0.0: A})[0] == end
    assert truth.remaining_s(0.0) == end


def test_a_truth_without_ticks_ends_exactly_when_it_is_due() -> None:
    assert simulate(Epochs((10.4, 10.4), tick_s=0.0), {0.0: A})[0] == pytest.approx(20.8)


def test_ticks_need_not_be_seconds() -> None:
    assert simulate(Epochs((10.4, 10.4), tick_s=5.0), {0.0: A})[0] == 20.0


def test_asking_in_the_middle_of_an_epoch_does_not_change_when_it_ends() -> None:
    assert simulate(Epochs((150.7, 10.2)), {0.0: A}, cadence="7s")[0] == 7.0 + 151.0 + 10.0


def test_a_change_of_speed_begins_to_round_anew() -> None:
    # 60 of 100.6 s are done; the other 40.6 take 81.2 s on half of the GPUs, so 81 s.
    assert simulate(Epochs((100.6,)), {0.0: A, 60.0: B})[0] == 60.0 + 81.0
    assert simulate(Epochs((100.6,)), {0.0: A, 60.0: B}, costs=Costs(restart_s=30.0))[0] == 60.0 + 30.0 + 81.0


def test_a_job_that_is_done_before_the_instant_of_a_decision_is_gone_by_then() -> None:
    end, policy = simulate(Epochs((59.6,)), {0.0: A}, cadence="60s")
    assert end == 120.0
    assert [at for at, _ in policy.seen] == [60.0]


def test_a_job_that_is_done_after_the_instant_of_a_decision_is_still_seen_though_it_ends_then() -> None:
    """It is due at 120.3 s, so the decision at 120 s finds it at work, and does not have its GPUs to give."""
    end, policy = simulate(Epochs((60.3,)), {0.0: A}, cadence="60s")
    assert end == 120.0
    assert [at for at, _ in policy.seen] == [60.0, 120.0]


def test_a_decision_at_that_instant_can_still_take_its_gpus() -> None:
    end, _ = simulate(Epochs((60.3,)), {0.0: A, 120.0: NOTHING, 180.0: A}, cadence="60s", costs=Costs(restart_s=30.0))
    assert end == 180.0 + 30.0  # the 0.3 s that were left are rounded to none


def test_progress_never_runs_ahead_of_an_epoch_that_was_rounded_up() -> None:
    _, policy = simulate(Epochs((59.6, 59.6)), {0.0: A}, cadence="59.8s")
    left_s = dict(policy.seen)
    assert left_s[119.6] == 60.0  # the second epoch has not begun, though the first was due at 119.4


def test_measured_jobs_end_their_epochs_on_whole_seconds(write_profile: Callable[[], Path]) -> None:
    truth = MeasuredTruth(load_profile(write_profile()), 2, 32)
    run_alone = truth.alone
    assert all(left.is_integer() for left in run_alone.left_s)
    exact = [500.0 / truth.pace(Setting(500.0 * e, truth.reference, "")).speed for e in range(3)]
    assert truth.remaining_s(0.0) == sum(round(seconds) for seconds in exact)
    assert truth.remaining_s(0.0) != pytest.approx(sum(exact))
