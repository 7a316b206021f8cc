"""The forecast: it ends jobs when they end, says what it cannot tell, and leaves what it was given as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from measured_views import reported, view_of

from fairlead.core import messages as m
from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Job, JobSpec, Node, Observation, Phase, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.backend import SimBackend
from fairlead.sim.believed import Basis
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import DEFAULT, Costs
from fairlead.sim.forecast import Effort, Forecast, about, forecast, retold
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing.scenario import allocation, job, make_state

EVENT = Cadence()

#: In the proportions that are assumed until they were measured.
COSTS = Costs(start_s=10.0, restart_s=15.0, save_s=5.0, rescale_s=2.0)


def sim_job(job_id: str, seconds: float, gpus: int = 1, at: float = 0.0, **spec: Any) -> SimJob:
    spec = {"estimate_s": seconds, **spec}
    return SimJob(JobSpec(id=job_id, gpus=gpus, **spec), at, FixedDuration(seconds, gpus), COSTS)


class Watching:
    """A policy, and the first view it was shown at or after a time."""

    def __init__(self, policy: Policy, at: float) -> None:
        self.policy, self.at, self.view = policy, at, None

    def plan(self, view: Snapshot) -> Plan:
        if self.view is None and view.now >= self.at:
            self.view = view
        return self.policy.plan(view)


def simulate(
    jobs: Sequence[SimJob], nodes: str, policy: str, *, at: float = 0.0, cadence: str = "event", report_s: float = 0.0
) -> tuple[Snapshot | None, dict[str, float], State]:
    """The view at a time in the middle, when each job ended, and the state after all."""
    watching, state, journal = Watching(make_policy(policy), at), State(), MemoryJournal()
    world = SimBackend(jobs, parse_cluster(nodes), report_every_s=report_s)
    run(watching, world, state=state, journal=journal, cadence=Cadence.parse(cadence))
    return watching.view, {each.job: each.at for each in journal if isinstance(each, m.JobExited)}, state


def look(view: Snapshot, policy: str = "fifo", cadence: str = "event", **options: Any) -> Forecast:
    return forecast(view, policy=make_policy(policy), cadence=Cadence.parse(cadence), **options)


def ends(told: Forecast) -> dict[str, float | None]:
    return {job_id: each.ends_at for job_id, each in told.jobs.items()}


# -- the simulation itself, taken in its middle --------------------------------------------------------------------

LENGTHS = st.sampled_from((300.0, 1200.0, 4000.0, 9000.0))


@st.composite
def workloads(draw: st.DrawFn) -> list[SimJob]:
    in_place = draw(st.booleans())
    jobs = []
    for k in range(draw(st.integers(6, 14))):
        gpus, most = draw(st.sampled_from((1, 1, 2, 4))), draw(st.integers(0, 2))
        seconds = draw(LENGTHS) * draw(st.floats(0.5, 1.5))
        spec = {"gpus_min": 1, "gpus_max": gpus + most, "in_place": in_place} if most else {}
        jobs.append(sim_job(f"j{k}", seconds, gpus, **spec))
    return jobs


@pytest.mark.parametrize(
    ("policy", "cadence"),
    [
        *(("fifo", "event"), ("fifo", "60s"), ("easy", "event+60s"), ("tiresias", "event"), ("tiresias", "60s")),
        *(("even", "event"), ("even", "event+60s"), ("pollux", "event+60s"), ("frugal", "event")),
    ],
)
# The same examples each time: `pollux` remembers what is in no snapshot, so that a rare forecast of it is another.
@given(jobs=workloads(), at=st.sampled_from((130.0, 500.0, 3000.0)))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_forecast_from_the_middle_of_a_simulation_ends_every_job_when_the_simulation_did(
    policy: str, cadence: str, jobs: list[SimJob], at: float
) -> None:
    view, ended, _ = simulate(jobs, "2x4", policy, at=at, cadence=cadence)
    assume(view is not None)
    assert view is not None
    work = {each.spec.id: each.truth.total * each.spec.gpus for each in jobs}
    # Of one that has not ended a little is always taken to be left.
    assume(all(each.service_at(view.now) < 0.999 * work[each.id] for each in view.jobs.values()))
    told = look(view, policy, cadence)
    assert not told.truncated
    for job_id in view.jobs:
        assert told.jobs[job_id].ends_at == pytest.approx(ended[job_id], rel=1e-6), (policy, told.jobs[job_id])


def test_jobs_that_promised_nothing_are_forecast_by_the_speed_they_reported() -> None:
    jobs = [sim_job(f"j{k}", 3000.0 + 700.0 * k, 2, estimate_s=None) for k in range(4)]
    view, ended, _ = simulate(jobs, "2x4", "fifo", at=1000.0, cadence="event+60s", report_s=60.0)
    assert view is not None
    told = look(view)
    assert ends(told) == pytest.approx(ended, rel=1e-6)
    assert {each.basis for each in told.jobs.values()} == {Basis.SPEED}


@pytest.mark.parametrize("policy", ["even", "pollux"])
def test_elastic_jobs_with_measured_models_end_within_a_tenth_of_when_they_do(policy: str) -> None:
    app = replace(APPLICATIONS["small-cnn"], regimes=1, noise_scale=(6000.0, 6000.0))
    spec = {"gpus_min": 1, "gpus_max": 8, "batch": app.batch, "in_place": True, "labels": {"model": app.name}}
    truth = GoodputTruth(app, gpus=1)
    jobs = [SimJob(JobSpec(id=f"j{k}", **spec), 300.0 * k, truth, COSTS) for k in range(8)]  # type: ignore[arg-type]
    view, ended, _ = simulate(jobs, "2x4", policy, at=2400.0, cadence="event+60s", report_s=60.0)
    assert view is not None
    told = look(view, policy, "event+60s")
    assert len(told.jobs) >= 6
    for job_id, each in told.jobs.items():
        assert each.ends_at is not None
        assert each.ends_at - view.now == pytest.approx(ended[job_id] - view.now, rel=0.1)


def test_a_forecast_in_unix_time_is_that_of_a_simulation_which_began_then() -> None:
    begin = 1.75e9
    state = make_state("1x2", now=begin)
    for job_id in ("a", "b"):
        state.apply(m.JobSubmitted(begin, JobSpec(id=job_id, gpus=2, estimate_s=100.0)))
    told = look(state.snapshot())
    assert ends(told) == {"a": begin + 110.0, "b": begin + 220.0}


def test_what_is_forecast_and_who_decides_it_are_left_as_they_were() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0), job("b", 2, estimate_s=50.0)], now=20.0)
    facts, view, policy = state.facts(), state.snapshot(), make_policy("pollux")
    first = forecast(view, policy=policy, cadence=EVENT)
    assert state.facts() == facts
    assert view == state.snapshot()
    assert ends(forecast(view, policy=policy, cadence=EVENT)) == ends(first)


# -- a world that begins in the middle -----------------------------------------------------------------------------


def in_phase(phase: Phase) -> State:
    """A job of 100 seconds that started at 0 and, at 40, enters this phase; and now is 41."""
    state = make_state("1x2", [job("a", 1, on="n0[0]", estimate_s=100.0, in_place=True)], now=40.0)
    if phase is Phase.RESCALING:
        state.issue(m.Resize(40.0, "a", 1, allocation("n0[0,1]")))
    elif phase is Phase.SUSPENDED:
        state.issue(m.Resize(40.0, "a", 1, NOTHING))
        state.apply(m.JobRescaled(40.0, "a", 1))
    elif phase is Phase.STOPPING:
        state.issue(m.Stop(40.0, "a", 1))
    state.apply(m.Tick(41.0))
    return state


@pytest.mark.parametrize(
    ("phase", "end"),
    [
        (Phase.RUNNING, 100.0),
        # On two GPUs the last 60 seconds are 30, after a rescale of 2, of which 1 has passed.
        (Phase.RESCALING, 42.0 + 30.0),
        (Phase.SUSPENDED, 41.0 + 2.0 + 60.0),
        # A save of 5, of which 1 has passed, and a restart.
        (Phase.STOPPING, 45.0 + 15.0 + 60.0),
    ],
)
def test_a_job_goes_on_from_any_phase(phase: Phase, end: float) -> None:
    view = in_phase(phase).snapshot()
    known = replace(view.jobs["a"], start_s=10.0, spec=replace(view.jobs["a"].spec, gpus_max=2))
    told = look(replace(view, jobs={"a": known}), plan=Plan(view.allocations) if phase is Phase.RESCALING else None)
    assert told.jobs["a"].ends_at == end


def test_a_job_that_starts_needs_what_is_left_of_the_usual_start() -> None:
    state = make_state("1x2", [job("a", 1, on="n0[0]", phase=Phase.STARTING, estimate_s=100.0)], now=4.0)
    assert look(state.snapshot()).jobs["a"].ends_at == DEFAULT.start_s + 100.0


def test_a_job_that_has_outrun_its_promise_ends_in_a_little_while() -> None:
    told = look(view_of("1x2", [job("a", 2, on="n0[0,1]", estimate_s=1000.0)], now=5000.0))
    assert told.jobs["a"].ends_at == pytest.approx(5001.0)


def test_a_cancelled_job_frees_its_gpus_and_is_not_forecast() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]"), job("b", 2, estimate_s=50.0)], now=20.0)
    state.apply(m.JobCancelled(20.0, "a"))
    told = look(state.snapshot())
    assert list(told.jobs) == ["b"]
    assert told.jobs["b"].starts_at == 20.0  # to start took no time, so neither does a stop


def test_a_node_that_was_lost_stays_lost_and_one_that_was_given_back_is_not_used_by_itself() -> None:
    jobs = [job("a", 1, estimate_s=100.0), job("b", 1, estimate_s=100.0), job("c", 1, estimate_s=100.0)]
    state = make_state("3x1", jobs, lost=["n0"])
    state.issue(m.Release(0.0, "n1"))
    assert [each.starts_at for each in look(state.snapshot()).jobs.values()] == [0.0, 110.0, 220.0]


def test_a_node_on_its_way_joins() -> None:
    state = make_state("1x1", [job("a", 1, estimate_s=100.0)])
    state.issue(m.Release(0.0, "n0"))
    state.issue(m.Rent(0.0, "n0"))
    assert look(state.snapshot()).jobs["a"].starts_at == 120.0


def test_a_plan_that_was_decided_before_is_carried_on_until_the_next_tick() -> None:
    state = make_state("1x2", [job("a", 1, on="n0[0]", estimate_s=100.0), job("b", 1, estimate_s=50.0)], now=20.0)
    view = state.snapshot()
    assert look(view, cadence="60s").jobs["b"].starts_at == 20.0
    told = look(view, cadence="60s", plan=Plan(view.allocations))
    assert told.jobs["b"].starts_at == 60.0
    assert told.jobs["a"].restarts == 0


def test_a_plan_that_no_longer_holds_is_decided_anew() -> None:
    view = view_of("1x2", [job("a", 1, on="n0[0]", preemptible=False, estimate_s=100.0)], now=20.0)
    assert look(view, plan=Plan()).jobs["a"].ends_at == 100.0


# -- what cannot be told -------------------------------------------------------------------------------------------


def test_a_job_of_unknown_length_has_no_end_and_those_behind_it_no_start() -> None:
    view = view_of("1x2", [job("7", 2, on="n0[0,1]"), job("8", 1, estimate_s=50.0)], now=20.0)
    told = look(view)
    assert (told.jobs["7"].starts_at, told.jobs["7"].ends_at, told.jobs["7"].cost) == (0.0, None, None)
    assert told.jobs["7"].why == "its length is unknown: give time_limit, or report progress"
    assert (told.jobs["8"].starts_at, told.jobs["8"].why) == (None, "behind job 7, whose length is unknown")
    assert not told.truncated


def test_a_job_beside_one_of_unknown_length_is_told() -> None:
    view = view_of("1x2", [job("7", 1, on="n0[0]"), job("8", 1, estimate_s=50.0), job("9", 2)], now=20.0)
    told = look(view, "backfill")
    assert told.jobs["8"].ends_at == 70.0
    assert told.jobs["9"].why == "behind job 7, whose length is unknown"


def test_a_standstill_is_seen_before_the_horizon() -> None:
    view = view_of("1x2", [job("7", 2, on="n0[0,1]"), job("8", 2, estimate_s=50.0)], now=20.0)
    assert look(view, cadence="1s").decisions < 200


def test_a_job_that_no_cluster_of_this_size_can_hold_is_told_so() -> None:
    told = look(view_of("2x2", [job("a", 8, estimate_s=50.0)]), "backfill")
    assert told.jobs["a"].why == "it needs 8 GPUs of one type, and there are 4"


def test_what_lies_beyond_the_horizon_is_said_to() -> None:
    told = look(view_of("1x1", [job("a", 1, estimate_s=1e6)]), effort=Effort(horizon_s=86400.0 * 3))
    assert told.jobs["a"].starts_at == 0.0
    assert told.jobs["a"].why == "it does not end within 3 days"


def test_a_forecast_that_takes_too_many_decisions_is_truncated_and_says_so() -> None:
    jobs = [job(str(k), 2, estimate_s=50.0) for k in range(4)]
    told = look(view_of("1x2", jobs), effort=Effort(most_decisions=2))
    assert told.truncated
    assert told.jobs["0"].ends_at == 60.0
    assert told.jobs["3"].why.startswith("the forecast ends after 2 decisions, ")
    assert look(view_of("1x2", jobs), effort=Effort(most_s=-1.0)).decisions == 0


def test_jobs_on_hold_waiting_for_others_and_to_be_tried_again_are_told_if_they_are_given() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0)], now=10.0)
    state.apply(m.JobSubmitted(10.0, JobSpec(id="after", gpus=2, estimate_s=30.0, depends_on=("a",))))
    state.apply(m.JobSubmitted(10.0, JobSpec(id="held", estimate_s=30.0)))
    state.apply(m.JobHeld(10.0, "held"))
    state.apply(m.JobSubmitted(10.0, JobSpec(id="never", estimate_s=30.0, depends_on=("held",))))
    view = state.snapshot()
    others = [each for each in state.live.values() if each.id not in view.jobs]
    told = look(view, others=others)
    assert told.jobs["after"].starts_at == 100.0
    assert told.jobs["held"].why == "it is on hold"
    assert told.jobs["never"].why == "it waits for job held, of which no end can be told"
    assert list(look(view).jobs) == ["a"]


def test_a_job_that_is_to_be_tried_again_later_starts_then() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0, backoff_s=60.0)], now=10.0)
    state.apply(m.JobExited(10.0, "a", 1, 1))
    view = state.snapshot()
    assert look(view, others=list(state.live.values())).jobs["a"].starts_at == 70.0


# -- what is told --------------------------------------------------------------------------------------------------


def test_gpus_over_time_restarts_hours_and_cost_are_of_the_whole_life() -> None:
    nodes = [Node("n0", 4, price_per_hour=8.0)]
    given = [job("a", 1, gpus_max=4, on="n0[0]", estimate_s=7200.0)]
    told = look(make_state(nodes, given, now=3600.0).snapshot(), "even").jobs["a"]
    # An hour on 1 GPU; then it is restarted, as quickly as it was started, and does the other half on 4.
    assert told.gpus_at == ((3600.0, 1), (3600.0, 0), (3600.0, 4), (4500.0, 0))
    assert (told.restarts, told.gpu_h, told.cost) == (1, 2.0, 4.0)


def test_a_job_that_would_be_submitted_is_told_beside_the_others() -> None:
    view = view_of("1x2", [job("a", 2, on="n0[0,1]", estimate_s=100.0)], now=20.0)
    told = look(view, also=(JobSpec(id="new", gpus=1, estimate_s=30.0, depends_on=("gone",)),), now=50.0)
    assert told.jobs["new"].starts_at == 100.0
    with pytest.raises(InvalidSpec, match="'a' is taken"):
        look(view, also=(JobSpec(id="a"),))


def test_p90_is_never_before_the_plain_time_and_the_same_seed_gives_the_same() -> None:
    jobs = [job("a", 2, on="n0[0,1]", estimate_s=1000.0), job("b", 2, estimate_s=1000.0)]
    view = view_of("1x2", jobs, now=20.0)
    told = look(view, effort=Effort(samples=20, seed=3))
    a, b = told.jobs["a"], told.jobs["b"]
    assert look(view, effort=Effort(samples=20, seed=3)).jobs == told.jobs
    assert (a.starts_at, a.starts_p90, a.ends_at, told.samples) == (0.0, 0.0, 1000.0, 20)
    assert 1020.0 < (a.ends_p90 or 0.0) < 1200.0
    assert b.starts_p90 == pytest.approx(a.ends_p90)
    assert (b.ends_p90 or 0.0) > (b.ends_at or 0.0)
    assert look(view).jobs["a"].ends_p90 is None


def test_more_measured_steps_make_a_time_surer() -> None:
    def spread_s(steps: int) -> float:
        state = make_state("1x2", [job("a", 2, on="n0[0,1]")], now=10.0)
        seen = (Observation("gpu", 1, 2, 8, 0, 0.5, 0.1, steps),)
        reported(state, "a", (10.0, 0.001), (20.0, 0.002), observations=seen)
        told = look(state.snapshot(), effort=Effort(samples=20)).jobs["a"]
        return (told.ends_p90 or 0.0) - (told.ends_at or 0.0)

    assert spread_s(10_000) < 0.3 * spread_s(1)


def test_a_policy_that_breaks_down_is_named() -> None:
    class Broken:
        def plan(self, view: Snapshot) -> Plan:
            raise KeyError("x")

    view = view_of("1x2", [job("a", 1, estimate_s=9.0)])
    with pytest.raises(InvalidPlan, match="Broken at second 0: it raised KeyError"):
        forecast(view, policy=Broken(), cadence=EVENT)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40.0, "40 s"), (1500.0, "25 min"), (130.0, "2.2 min"), (12600.0, "3.5 h"), (86400.0 * 12, "12 days")],
)
def test_times_are_told_for_people(seconds: float, text: str) -> None:
    assert about(seconds) == text


# -- how it would have been ----------------------------------------------------------------------------------------


def retell(jobs: Sequence[Job], policy: str, gpus: int | None = None) -> Mapping[str, float | None]:
    return ends(retold(jobs, parse_cluster("1x4"), policy=make_policy(policy), cadence=EVENT, gpus=gpus))


def test_finished_jobs_are_retold_under_another_policy_as_they_would_have_been() -> None:
    jobs = [
        sim_job(f"j{k}", 1000.0 * (k + 1), 2, at=100.0 * k, estimate_s=None, gpus_min=1, gpus_max=4, in_place=True)
        for k in range(4)
    ]
    _, _, state = simulate(jobs, "1x4", "even", cadence="event+60s", report_s=30.0)
    done = list(state.finished.values())
    _, expected, _ = simulate(jobs, "1x4", "fifo")
    assert retell(done, "fifo") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("gpus", [1, 4])
def test_finished_jobs_are_retold_on_fixed_sizes(gpus: int) -> None:
    jobs = [sim_job(f"j{k}", 1000.0 * (k + 1), 2, at=100.0 * k, estimate_s=None) for k in range(4)]
    _, _, state = simulate(jobs, "1x4", "fifo", report_s=30.0)
    fixed = [sim_job(f"j{k}", 2000.0 * (k + 1) / gpus, gpus, at=100.0 * k) for k in range(4)]
    _, expected, _ = simulate(fixed, "1x4", "fifo")
    assert retell(list(state.finished.values()), "fifo", gpus) == pytest.approx(expected, rel=0.01)


def test_a_long_time_without_jobs_is_not_the_end_of_what_is_retold() -> None:
    done = [Job(JobSpec(id=job_id, estimate_s=9.0), at) for job_id, at in (("a", 0.0), ("b", 1e5))]
    told = retold(done, parse_cluster("1x4"), policy=make_policy("fifo"), cadence=Cadence(1.0))
    assert ends(told)["b"] == pytest.approx(1e5 + 19.0, abs=1.0)


def test_an_oracle_may_retell_but_there_must_be_a_job() -> None:
    jobs = [sim_job(f"j{k}", 1000.0 * (4 - k), 4, at=float(k)) for k in range(4)]
    _, _, state = simulate(jobs, "1x4", "fifo")
    told = retell(list(state.finished.values()), "srtf")
    assert min(told, key=lambda job_id: told[job_id] or 0.0) == "j3"
    with pytest.raises(InvalidSpec, match="no jobs to retell"):
        retell([], "fifo")
