"""A world of rounds: whole steps, starts that cost, batches that change between rounds, facts that wait for the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    Event,
    JobExited,
    JobReported,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Resize,
    Start,
    Tick,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, JobSpec, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.regimes import DATASETS
from fairlead.sim.round_world import RoundJob, RoundWorld
from fairlead.sim.shockwave_profile import profiled_batches
from fairlead.sim.stepwise_job import StepwiseJob
from fairlead.sim.tables import Entry, ThroughputTable, job_type
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob

ONE = Allocation.of({"n0": [0]})
TWO = Allocation.of({"n0": [1]})

#: Steps per second by batch of a model of 50,000 samples.
SPEEDS = {32: 10.05, 64: 6.0, 128: 3.5, 256: 2.0}
TABLE = ThroughputTable(
    "test", {"v100": {(job_type("ResNet-18", batch), 1): Entry(speed) for batch, speed in SPEEDS.items()}}
)


def steps(total: int, *, mode: str = "static", batch: int = 32, **more: object) -> StepwiseJob:
    return StepwiseJob(TABLE, "ResNet-18", mode, 1, batch, batch, total, **more)  # type: ignore[arg-type]


def a_job(name: str, total: int, *, at: float = 0.0, limit_s: float = 1e9) -> RoundJob:
    sim = SimJob(JobSpec(id=name, max_restarts=9), at, FixedDuration(1.0, 1))
    return RoundJob(sim, steps(total), limit_s)


def world_of(*jobs: RoundJob) -> RoundWorld:
    return RoundWorld(jobs, parse_cluster("v100=1x2"), round_s=120.0, restart_s=20.0)


def told(events: list[Event] | None, *kinds: type) -> list[Event]:
    assert events is not None
    return [event for event in events if isinstance(event, kinds)]


def test_a_round_ends_with_the_last_whole_step_and_tells_everything_then() -> None:
    world = world_of(a_job("a", 5000), a_job("b", 30), a_job("late", 10, at=50.0))
    assert [event.at for event in told(world.wait(1e9), JobSubmitted)] == [0.0, 0.0]
    world.execute(Start(0.0, "a", 1, ONE))
    world.execute(Start(0.0, "b", 1, TWO))
    events = world.wait(120.0)
    end = int(10.05 * 120) / 10.05
    assert told(events, JobExited) == [JobExited(30 / 10.05, "b", 1)]
    assert told(events, JobStopped) == [JobStopped(end, "a", 1)]
    assert [event.at for event in told(events, JobSubmitted)] == [50.0]
    assert told(events, Tick) == [Tick(end)]
    assert world.now == end < 120.0


def test_a_job_that_did_not_run_before_loses_the_time_of_its_start_unless_it_is_about_to_end() -> None:
    world = world_of(a_job("a", 5000), a_job("b", 5000), a_job("c", 500))
    world.wait(1e9)
    world.execute(Start(0.0, "a", 1, ONE))
    world.wait(120.0)
    begin = world.now
    for name, attempt, where in (("a", 2, ONE), ("b", 1, TWO)):
        world.execute(Start(begin, name, attempt, where))
    started = told(world.wait(1e9), JobStarted)
    assert [(event.job, event.at) for event in started] == [("a", begin), ("b", begin + 20.0)]  # type: ignore[union-attr]
    done = {name: 5000 - world.steps_left(name) for name in ("a", "b")}
    assert (done["a"], done["b"]) == (2 * 1206, pytest.approx(1206 * (120.0 - 20.0) / 120.0, abs=1.0))
    world.execute(Start(world.now, "c", 1, ONE))
    assert told(world.wait(1e9), JobExited)  # 500 steps take 50 s: it pays nothing


def test_a_tick_within_a_round_is_answered_and_a_stop_waits_for_its_end() -> None:
    world = world_of(a_job("a", 5000))
    world.wait(1e9)
    world.execute(Start(0.0, "a", 1, ONE))
    assert world.wait(60.0) == [Tick(60.0)]
    with pytest.raises(InvalidSpec, match="knows no Resize"):
        world.execute(Resize(60.0, "a", 1, TWO))
    assert told(world.wait(120.0), JobStopped)


def test_a_job_that_runs_beyond_its_limit_is_ended() -> None:
    world = world_of(a_job("a", 10**9, limit_s=100.0))
    world.wait(1e9)
    world.execute(Start(0.0, "a", 1, ONE))
    assert told(world.wait(1e9), JobExited)
    assert world.wait(1e9) is None


def test_a_job_that_is_left_without_a_step_is_taken_for_done_after_five_rounds() -> None:
    job = a_job("a", 100)
    job.steps.done = 100
    world = world_of(job)
    world.wait(1e9)
    codes = []
    for attempt in range(1, 6):
        world.execute(Start(world.now, "a", attempt, ONE))
        codes += [event.code for event in told(world.wait(1e9), JobExited)]  # type: ignore[union-attr]
    assert codes == [1, 1, 1, 1, 0]
    assert world.wait(1e9) is None


def test_the_loop_runs_a_policy_to_the_end_in_it_and_one_that_never_starts_a_job_is_given_up() -> None:
    state = State()
    jobs = [a_job(f"j{n}", 3000 + 500 * n, at=40.0 * n) for n in range(6)]
    policy = make_policy("isolated:round_s=120,mechanism=shockwave")
    run(policy, world_of(*jobs), state=state, journal=MemoryJournal(), cadence=Cadence())
    assert len(state.finished) == 6

    class Never:
        def plan(self, view: Snapshot) -> Plan:
            return Plan(review_at=view.now + 1.0)

    run(Never(), world_of(a_job("a", 10)), state=State(), journal=MemoryJournal(), cadence=Cadence())


def test_reports_tell_progress_and_the_measured_step_time() -> None:
    world = world_of(a_job("a", 5000))
    world.wait(1e9)
    world.execute(Start(0.0, "a", 1, ONE))
    (report,) = told(world.wait(1e9), JobReported)
    assert isinstance(report, JobReported)
    assert report.progress == pytest.approx(1206 / 5000)
    assert report.observations[0].step_s == pytest.approx(1 / 10.05)
    rates = world.rates("a", [("v100", 1, 1, ()), ("v100", 1, 2, ())])
    assert rates.left / rates.rate_C[0] == pytest.approx((5000 - 1206) / 10.05)
    assert rates.rate_C[1] == 0.0


# -- whole steps -----------------------------------------------------------------------------------------------------


def test_an_accordion_job_takes_its_largest_batch_outside_critical_epochs_and_keeps_its_epochs() -> None:
    per_epoch = -(-DATASETS["ResNet-18"] // 32)
    job = steps(30 * per_epoch, mode="accordion", done=9 * per_epoch)
    job.look_ahead()
    assert job.next_batch is None
    job.done = 9 * per_epoch + 1  # in its tenth epoch, which counts as done
    job.look_ahead()
    assert job.next_batch == 256
    job.rebatch("v100")
    large = -(-DATASETS["ResNet-18"] // 256)
    assert (job.batch, -(-job.total // large), job.done) == (256, 30, 10 * large)


def test_a_gns_job_doubles_one_epoch_ahead_and_only_with_a_batch_that_the_table_has() -> None:
    per_epoch = -(-DATASETS["ResNet-18"] // 32)
    job = steps(40 * per_epoch, mode="gns", schedule=((0, 32), (21, 64)), done=19 * per_epoch)
    job.look_ahead()
    assert job.next_batch is None
    job.done = 20 * per_epoch
    job.look_ahead()
    assert job.next_batch == 64
    unknown = replace(job, batch=256, next_batch=512)
    unknown.rebatch("v100")
    assert (unknown.batch, unknown.next_batch) == (256, None)


def test_the_profile_of_an_accordion_job_begins_with_a_longer_critical_regime_than_it_has() -> None:
    batches = profiled_batches("accordion", "ResNet-18", 32, gpus=1, epochs=100, gns={})
    assert batches == [32] * 31 + [256] * 69
    recommender = profiled_batches("accordion", "Recommendation", 512, gpus=1, epochs=100, gns={})
    assert [epoch for epoch, batch in enumerate(recommender) if batch == 512] == [
        *range(31),
        *range(60, 70),
        *range(80, 90),
    ]


def test_the_profile_of_a_gns_job_ends_with_its_first_batch_if_it_changes_more_than_once() -> None:
    gns = {("LM", 10, 1): ((0, 10), (11, 20), (21, 40))}
    assert profiled_batches("gns", "LM", 10, gpus=1, epochs=24, gns=gns) == [10] * 11 + [20] * 10 + [40] * 2 + [10]
    assert profiled_batches("gns", "LM", 10, gpus=1, epochs=20, gns=gns) == [10] * 11 + [20] * 9
    assert profiled_batches("static", "LM", 10, gpus=1, epochs=3, gns=gns) == [10, 10, 10]
