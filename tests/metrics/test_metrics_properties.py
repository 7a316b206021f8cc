"""What holds for the journal of any simulation, however restless the policy and unlucky the cluster."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import InOrder, Restless, alone, simulate

from fairlead.core.loop import Cadence, Policy
from fairlead.core.messages import Message
from fairlead.core.types import JobSpec, Node
from fairlead.journal import replay
from fairlead.sim.costs import DEFAULT, FREE, Costs
from fairlead.sim.metrics import measure
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Outage, SimJob

NODES = [Node(f"n{i}", gpus, price_per_hour=2.0) for i, gpus in enumerate((4, 2, 2))]
SLOW = Costs(start_s=7.0, restart_s=11.0, save_s=3.0, rescale_s=5.0, checkpoint_every_s=20.0)

seconds = st.floats(0.0, 300.0, allow_nan=False).map(lambda s: round(s, 2))


@st.composite
def sim_jobs(draw: st.DrawFn, number: int) -> SimJob:
    gpus = draw(st.integers(1, 4))
    spec = JobSpec(
        id=f"j{number}",
        gpus=gpus,
        gpus_min=draw(st.integers(1, gpus)),
        gpus_max=draw(st.integers(gpus, 6)),
        in_place=draw(st.booleans()),
        deadline=draw(st.none() | st.just(400.0)),
    )
    duration_s = draw(st.floats(0.0, 120.0).map(lambda s: round(s, 2)))
    return SimJob(
        spec,
        draw(seconds),
        FixedDuration(duration_s, gpus),
        costs=draw(st.sampled_from([FREE, SLOW, DEFAULT])),
        cancel_at=draw(st.none() | st.none() | st.just(350.0)),
    )


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[Message], dict[str, float], bool]:
    jobs = [draw(sim_jobs(i)) for i in range(draw(st.integers(1, 8)))]
    outages = [Outage("n1", at, at + 40.0) for at in draw(st.lists(st.sampled_from([50.0, 150.0]), unique=True))]
    policies: list[Policy] = [InOrder(), Restless(), Restless(pairs=True)]
    policy = draw(st.sampled_from(policies))
    patient = isinstance(policy, InOrder)
    # A restless policy restarts everything at every decision: it may only be asked so often, or nothing ever ends.
    cadence = Cadence() if patient else Cadence(period_s=97.0, on_events=False)
    messages = simulate(jobs, NODES, policy=policy, outages=outages, cadence=cadence)
    shares = isinstance(policy, Restless) and policy.pairs
    return messages, alone(jobs), shares


@settings(deadline=None, max_examples=150)
@given(journals())
def test_figures_are_within_their_bounds_and_gpu_hours_add_up(
    world: tuple[list[Message], dict[str, float], bool],
) -> None:
    messages, alone_s, _ = world
    measured = measure(messages, alone_s=alone_s)
    m, timeline = measured.summary, measured.timeline
    assert m.jobs == m.completed + m.cancelled + m.unfinished
    for share in (m.utilisation, m.fragmentation, m.unfair_share, m.unfair_share_110, m.jain):
        assert share is None or 0.0 <= share <= 1.0 + 1e-12
    total_gpu_h = timeline.integral(timeline.gpus) / 3600.0
    parts = (m.gpu_h_useful, m.gpu_h_restart, m.gpu_h_idle, m.gpu_h_lost)
    assert min(parts) >= 0.0
    assert math.fsum(parts) == pytest.approx(total_gpu_h, abs=1e-6)
    assert all(timeline.gpus_in_use <= timeline.gpus)
    assert all(timeline.queued >= 0)
    assert m.deadline_misses <= m.deadline_jobs
    assert all(isinstance(v, (int, list)) or v is None or math.isfinite(v) for v in m.to_dict().values())


@settings(deadline=None, max_examples=100)
@given(journals())
def test_waiting_and_holding_make_up_the_completion_time(world: tuple[list[Message], dict[str, float], bool]) -> None:
    for job in measure(world[0]).jobs:
        if job.jct_s is not None:
            assert job.queue_s + job.held_s == pytest.approx(job.jct_s, abs=1e-6)
        assert job.run_s <= job.held_s + 1e-9


@settings(deadline=None, max_examples=100)
@given(journals())
def test_every_job_is_accounted_as_the_core_accounts_it(world: tuple[list[Message], dict[str, float], bool]) -> None:
    messages, _, shares = world
    state = replay(messages)
    for outcome in measure(messages).jobs:
        job = state.job(outcome.job)
        assert job is not None
        assert (outcome.phase, outcome.starts, outcome.preemptions) == (job.phase, job.attempt, job.preemptions)
        assert outcome.first_started_at == job.first_started_at
        assert outcome.run_s == pytest.approx(job.run_at(state.now), abs=1e-6)
        if not shares:
            assert outcome.held_gpu_s >= job.service_at(state.now) - 1e-6  # held, for training or not


@settings(deadline=None, max_examples=60)
@given(journals())
def test_segments_add_up_to_the_gpus_in_use(world: tuple[list[Message], dict[str, float], bool]) -> None:
    messages, _, shares = world
    timeline = measure(messages).timeline
    if not shares:
        held = (timeline.segments.end_s - timeline.segments.start_s).sum()
        assert held == pytest.approx(timeline.integral(timeline.gpus_in_use), abs=1e-6)
    assert len(list(timeline.occupancy())) == len(timeline.segments)


def test_a_simulated_queue_of_gang_jobs_gives_the_figures_of_first_come_first_served() -> None:
    jobs = [SimJob(JobSpec(id=f"j{i}", gpus=8), 0.0, FixedDuration(100.0, 8)) for i in range(3)]
    m = measure(simulate(jobs, NODES), alone_s=alone(jobs)).summary
    assert (m.jct_mean_s, m.makespan_s, m.queue_mean_s, m.utilisation) == (200.0, 300.0, 100.0, 1.0)
    # The first had the cluster to itself while three asked for it, then two, then one: 100 / (100 * 3), and so on.
    assert m.rho_mean == pytest.approx((100 / 300 + 200 / (100 * 2.5) + 300 / (100 * 2.0)) / 3)
    assert m.rho_worst == pytest.approx(1.5)
