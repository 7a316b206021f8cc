"""What reports teach of a job and of its model, and the accounts that a fair share and a pause are judged by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.learning import MOST_MODELS, YOUNG
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    Command,
    Event,
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Resize,
    Start,
    Stop,
    Tick,
    decode,
    encode,
)
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, Belief, Job, JobSpec, Node, Observation, Speed
from fairlead.journal import MemoryJournal, replay
from fairlead.policies.pilot import Pilot
from fairlead.sim.applications import APPLICATIONS, GoodputTruth
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import DEFAULT
from fairlead.sim.world import Outage, SimJob

ONE, TWO = Allocation.of({"n0": [0]}), Allocation.of({"n0": [0, 1]})
BOTH = Allocation.of({"n0": [0, 1], "n1": [0]})


def tell(state: State, *messages: Message) -> State:
    for message in messages:
        state.replay(message)
    return state


def spec(job_id: str = "a", model: str | None = "resnet", **more: Any) -> JobSpec:
    labels = {} if model is None else {"model": model}
    return JobSpec(id=job_id, gpus=2, gpus_min=1, gpus_max=4, in_place=True, labels=labels, **more)


def running(job_id: str = "a", model: str | None = "resnet", *, on: Allocation = TWO) -> State:
    """A job that runs since second 10."""
    nodes = NodeJoined(0.0, Node("n0", 4, "t4")), NodeJoined(0.0, Node("n1", 4, "t4"))
    begins = JobSubmitted(0.0, spec(job_id, model)), Start(0.0, job_id, 1, on), JobStarted(10.0, job_id, 1)
    return tell(State(), *nodes, *begins)


def report(at: float, progress: float, *, job: str = "a", attempt: int = 1, **more: Any) -> JobReported:
    return JobReported(at, job, attempt, progress, **more)


def seen(
    gpus: int, step_s: float = 1.0, *, nodes: int = 1, per_gpu_batch: int = 32, gpu_type: str = "t4"
) -> Observation:
    return Observation(gpu_type, nodes, gpus, per_gpu_batch, 0, step_s, 0.0)


def job_of(state: State, job_id: str = "a") -> Job:
    job = state.job(job_id)
    assert job is not None
    return job


def speed_of(state: State) -> Speed | None:
    return job_of(state).belief.speed


def lore_of(state: State, model: str = "resnet") -> Belief:
    return state.snapshot().lore[model]


# -- speed -------------------------------------------------------------------------------------------------------------


def test_speed_is_the_progress_between_two_reports_over_the_time_it_took() -> None:
    state = tell(running(), report(20.0, 0.1))
    assert speed_of(state) is None
    tell(state, report(40.0, 0.3))
    assert speed_of(state) == Speed(pytest.approx(0.2 / 20.0), "t4", 1, 2)
    tell(state, report(50.0, 0.35))
    assert speed_of(state) == Speed(pytest.approx(0.05 / 10.0), "t4", 1, 2)  # the latest counts, not the mean


def test_speed_says_on_which_gpus_it_was_measured() -> None:
    state = tell(running(on=BOTH), report(20.0, 0.1), report(30.0, 0.2))
    assert speed_of(state) == Speed(pytest.approx(0.01), "t4", 2, 3)


def test_the_first_report_after_a_start_can_come_at_the_moment_of_the_start() -> None:
    state = tell(running(), report(10.0, 0.0), report(30.0, 0.2))
    assert speed_of(state) == Speed(pytest.approx(0.01), "t4", 1, 2)


def test_a_rescale_does_not_spoil_the_speed_and_the_next_two_reports_measure_the_new_one() -> None:
    state = tell(running(), report(20.0, 0.1), report(30.0, 0.2))
    before = speed_of(state)
    tell(state, Resize(35.0, "a", 1, ONE), report(36.0, 0.25), JobRescaled(40.0, "a", 1))
    assert speed_of(state) == before
    tell(state, report(50.0, 0.3))  # 5 s of these on two GPUs, 5 s on none, 10 s on one
    assert speed_of(state) == before
    tell(state, report(60.0, 0.35))
    assert speed_of(state) == Speed(pytest.approx(0.005), "t4", 1, 1)


def test_a_restart_does_not_spoil_the_speed_and_the_next_two_reports_measure_the_new_one() -> None:
    state = tell(running(), report(20.0, 0.1), report(30.0, 0.2))
    before = speed_of(state)
    tell(state, Stop(30.0, "a", 1), report(35.0, 0.2, saved=True), JobStopped(35.0, "a", 1))
    tell(state, Start(100.0, "a", 2, ONE), JobStarted(130.0, "a", 2), report(140.0, 0.25, attempt=2))
    assert speed_of(state) == before
    tell(state, report(150.0, 0.3, attempt=2))
    assert speed_of(state) == Speed(pytest.approx(0.005), "t4", 1, 1)


def test_a_suspension_does_not_spoil_the_speed() -> None:
    state = tell(running(), report(20.0, 0.1), report(30.0, 0.2))
    before = speed_of(state)
    tell(state, Resize(30.0, "a", 1, NOTHING), JobRescaled(31.0, "a", 1), report(40.0, 0.2))
    tell(state, Resize(90.0, "a", 1, TWO), JobRescaled(92.0, "a", 1), report(102.0, 0.3))
    assert speed_of(state) == before


def test_a_job_that_fell_back_keeps_its_speed_until_it_is_measured_again() -> None:
    state = tell(running(), report(20.0, 0.3), report(30.0, 0.4))
    before = speed_of(state)
    tell(state, report(40.0, 0.1))
    assert (job_of(state).belief.progress, speed_of(state)) == (0.1, before)
    tell(state, report(50.0, 0.1))  # nothing done: no speed
    assert speed_of(state) == before
    tell(state, report(60.0, 0.3))
    assert speed_of(state) == Speed(pytest.approx(0.02), "t4", 1, 2)


def test_a_report_that_comes_at_the_same_moment_tells_no_speed() -> None:
    state = tell(running(), report(20.0, 0.1), report(20.0, 0.2))
    assert speed_of(state) is None
    tell(state, report(30.0, 0.3))
    assert speed_of(state) == Speed(pytest.approx(0.01), "t4", 1, 2)


def test_a_late_report_tells_no_speed() -> None:
    state = tell(running(), report(20.0, 0.1), Tick(60.0), report(60.0, 0.5))
    before = speed_of(state)
    tell(state, report(50.0, 0.6))
    assert speed_of(state) == before


def test_the_time_between_is_that_spent_running_whatever_else_was_told_in_it() -> None:
    state = tell(running(), report(20.0, 0.1), Tick(25.0), JobSubmitted(26.0, spec("b")), NodeDrained(27.0, "n1"))
    tell(state, JobStarted(28.0, "a", 1), report(30.0, 0.2))
    assert speed_of(state) == Speed(pytest.approx(0.01), "t4", 1, 2)


# -- lore --------------------------------------------------------------------------------------------------------------


def test_lore_is_the_latest_measurement_of_each_number_of_nodes_and_gpus_by_model() -> None:
    state = running()
    tell(state, report(20.0, 0.05, observations=(seen(2, 1.0), seen(1, 0.8))))
    tell(state, report(30.0, 0.06, observations=(seen(2, 2.0, per_gpu_batch=64), seen(2, 3.0, nodes=2))))
    assert set(lore_of(state).observations) == {seen(2, 2.0, per_gpu_batch=64), seen(1, 0.8), seen(2, 3.0, nodes=2)}
    assert len(job_of(state).belief.observations) == 4  # the job itself remembers each batch too


def test_lore_tells_gpu_types_apart() -> None:
    state = tell(running(), report(20.0, 0.0, observations=(seen(1), seen(1, gpu_type="a100"))))
    assert {o.gpu_type for o in lore_of(state).observations} == {"t4", "a100"}


def test_models_are_told_apart_and_a_job_without_a_model_teaches_nobody() -> None:
    state = tell(running(model=None), report(20.0, 0.0, observations=(seen(2),), noise_scale=5.0))
    assert state.snapshot().lore == {}
    tell(state, JobSubmitted(20.0, spec("b", "bert")), Start(20.0, "b", 1, Allocation.of({"n1": [0]})))
    tell(state, JobStarted(20.0, "b", 1), report(30.0, 0.0, job="b", observations=(seen(1),), noise_scale=7.0))
    assert list(state.snapshot().lore) == ["bert"]
    assert lore_of(state, "bert") == Belief(observations=(seen(1),), noise_scale=7.0)


def test_lore_outlives_the_job() -> None:
    state = tell(running(), report(20.0, 0.0, observations=(seen(2),)), JobExited(30.0, "a", 1))
    assert lore_of(state).observations == (seen(2),)


def test_the_noise_scale_and_the_speed_of_a_young_job_are_kept_when_it_grows_old() -> None:
    state = tell(running(), report(20.0, 0.0, noise_scale=100.0), report(30.0, 0.05, noise_scale=150.0))
    young = lore_of(state)
    assert (young.noise_scale, young.speed) == (150.0, Speed(pytest.approx(0.005), "t4", 1, 2))
    tell(state, report(40.0, YOUNG, noise_scale=200.0))
    assert lore_of(state).noise_scale == 200.0
    tell(state, report(50.0, YOUNG + 0.01, noise_scale=900.0), report(60.0, 0.9, noise_scale=9000.0))
    assert lore_of(state).noise_scale == 200.0
    assert lore_of(state).speed == Speed(pytest.approx(0.005), "t4", 1, 2)
    assert job_of(state).belief.noise_scale == 9000.0


def test_what_an_old_job_says_is_better_than_nothing() -> None:
    state = tell(running(), report(20.0, 0.5, noise_scale=9000.0), report(30.0, 0.6))
    assert lore_of(state).noise_scale == 9000.0
    assert lore_of(state).speed == Speed(pytest.approx(0.01), "t4", 1, 2)


def test_a_young_job_puts_right_what_an_old_one_said() -> None:
    state = tell(running(), report(20.0, 0.5, noise_scale=9000.0), report(30.0, 0.6))
    tell(state, JobSubmitted(30.0, spec("b")), Start(30.0, "b", 1, Allocation.of({"n1": [0]})))
    tell(state, JobStarted(30.0, "b", 1), report(40.0, 0.01, job="b", noise_scale=100.0))
    assert lore_of(state).noise_scale == 100.0
    assert lore_of(state).speed == Speed(pytest.approx(0.01), "t4", 1, 2)  # the young one has none yet
    tell(state, report(50.0, 0.02, job="b"))
    assert lore_of(state).speed == Speed(pytest.approx(0.001), "t4", 1, 1)


def test_an_old_job_does_not_replace_the_noise_scale_of_a_young_one_that_has_no_speed_yet() -> None:
    state = tell(running(), report(20.0, 0.01, noise_scale=100.0))
    tell(state, JobSubmitted(20.0, spec("b")), Start(20.0, "b", 1, Allocation.of({"n1": [0]})))
    tell(state, JobStarted(20.0, "b", 1), report(30.0, 0.9, job="b", noise_scale=9000.0))
    assert lore_of(state).noise_scale == 100.0


def test_a_report_that_teaches_nothing_leaves_the_lore_as_it_is() -> None:
    state = tell(running(), report(20.0, 0.0, observations=(seen(2),)))
    before = state.snapshot().lore
    tell(state, report(30.0, 0.0), report(31.0, 0.0, observations=(seen(2),)))
    assert state.snapshot().lore is before


def test_a_snapshot_keeps_the_lore_of_its_moment() -> None:
    state = tell(running(), report(20.0, 0.0, observations=(seen(2),)))
    view = state.snapshot()
    tell(state, report(30.0, 0.0, observations=(seen(3),)))
    assert view.lore["resnet"].observations == (seen(2),)
    assert lore_of(state).observations == (seen(2), seen(3))


def test_so_many_models_are_remembered_and_the_one_that_taught_nothing_for_longest_is_forgotten_first() -> None:
    state = State()
    tell(state, NodeJoined(0.0, Node("n0", MOST_MODELS + 10, "t4")))
    count = MOST_MODELS + 2
    for number in range(count):
        name, at = f"j{number}", float(number)
        tell(state, JobSubmitted(at, spec(name, f"model-{number}")))
        tell(state, Start(at, name, 1, Allocation.of({"n0": [number]})), JobStarted(at, name, 1))
        tell(state, report(at, 0.0, job=name, observations=(seen(1),)))
        if number == MOST_MODELS - 1:
            tell(state, report(at, 0.0, job="j0", observations=(seen(1, 2.0),)))  # speaks once more
    lore = state.snapshot().lore
    assert len(lore) == MOST_MODELS
    assert "model-0" in lore
    assert {"model-1", "model-2"}.isdisjoint(lore)
    assert list(lore)[-1] == f"model-{count - 1}"


# -- start-up and rescales ---------------------------------------------------------------------------------------------


def test_a_start_takes_as_long_as_it_kept_the_job_from_training() -> None:
    state = running()
    assert (job_of(state).start_s, job_of(state).rescale_s) == (10.0, None)
    tell(state, Stop(20.0, "a", 1), JobStopped(25.0, "a", 1), Start(100.0, "a", 2, ONE), JobStarted(130.0, "a", 2))
    assert (job_of(state).start_s, job_of(state).rescale_s) == (30.0, None)  # the last one counts


def test_a_change_in_place_takes_as_long_as_it_kept_the_job_from_training() -> None:
    state = tell(running(), Resize(20.0, "a", 1, ONE), report(21.0, 0.1))
    assert job_of(state).rescale_s is None
    tell(state, JobRescaled(22.5, "a", 1))
    assert (job_of(state).start_s, job_of(state).rescale_s) == (10.0, 2.5)
    tell(state, Resize(30.0, "a", 1, NOTHING), JobRescaled(34.0, "a", 1))
    assert job_of(state).rescale_s == 2.5  # it does not train: nobody knows yet
    tell(state, Resize(50.0, "a", 1, TWO), JobRescaled(51.0, "a", 1))
    assert (job_of(state).start_s, job_of(state).rescale_s) == (10.0, 1.0)


def test_a_start_that_never_came_to_training_tells_nothing() -> None:
    state = tell(running(), Stop(20.0, "a", 1), JobStopped(25.0, "a", 1), Start(30.0, "a", 2, ONE))
    tell(state, Stop(90.0, "a", 2), JobStopped(95.0, "a", 2))
    assert job_of(state).start_s == 10.0


# -- what it held and what would have been fair ------------------------------------------------------------------------


def test_held_gpu_seconds_count_start_up_and_rescales_but_not_waiting_and_leaving() -> None:
    state = running()  # two GPUs from 0, running from 10
    assert job_of(state).held_at(10.0) == 2 * 10
    tell(state, Resize(20.0, "a", 1, ONE), JobRescaled(25.0, "a", 1))
    assert job_of(state).held_at(30.0) == 2 * 20 + 1 * 10
    assert job_of(state).service_at(30.0) == 2 * 10 + 1 * 5
    tell(state, Stop(40.0, "a", 1))
    assert job_of(state).held_at(50.0) == 2 * 20 + 1 * 20
    tell(state, JobStopped(60.0, "a", 1), Start(100.0, "a", 2, BOTH))
    assert job_of(state).held_at(110.0) == 2 * 20 + 1 * 20 + 3 * 10
    tell(state, NodeLost(110.0, "n1"), Tick(200.0))
    assert job_of(state).held_at(200.0) == 2 * 20 + 1 * 20 + 3 * 10


def test_the_fair_share_is_what_each_job_would_have_had_if_all_had_shared_equally() -> None:
    """By hand: open GPUs over jobs, times seconds; a job counts from its arrival to its end or cancellation."""
    state = State()
    tell(state, NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.0, spec("a")), Tick(10.0))
    assert state.fair_gpu_s == 10 * 4 / 1
    tell(state, JobSubmitted(10.0, spec("b")), Tick(20.0))
    assert state.fair_gpu_s == 40 + 10 * 4 / 2
    tell(state, NodeJoined(20.0, Node("n1", 8)), Tick(30.0))
    assert state.fair_gpu_s == 60 + 10 * 12 / 2
    tell(state, NodeDrained(30.0, "n0"), Tick(40.0))
    assert state.fair_gpu_s == 120 + 10 * 8 / 2
    tell(state, NodeDrained(40.0, "n0", draining=False), NodeLost(50.0, "n1"), Tick(60.0))
    assert state.fair_gpu_s == 160 + 10 * 12 / 2 + 10 * 4 / 2
    tell(state, NodeJoined(60.0, Node("n1", 2)), JobSubmitted(70.0, spec("c")), JobCancelled(80.0, "a"), Tick(90.0))
    assert state.fair_gpu_s == 240 + 10 * 6 / 2 + 10 * 6 / 3 + 10 * 6 / 2
    view = state.snapshot()
    assert view.fair_gpu_s == 320.0
    assert {job.id: job.fair_from_gpu_s for job in view.jobs.values()} == {"b": 40.0, "c": 270.0}
    assert job_of(state).fair_from_gpu_s == 0.0


def test_a_job_that_ended_no_longer_has_a_share_and_one_that_waits_does() -> None:
    nodes = [NodeJoined(0.0, Node("n0", 4))]
    state = tell(State(), *nodes, JobSubmitted(0.0, spec("a")), JobSubmitted(0.0, spec("b")))
    tell(state, Start(0.0, "a", 1, TWO), JobStarted(5.0, "a", 1), JobExited(10.0, "a", 1), Tick(20.0))
    assert state.fair_gpu_s == 10 * 4 / 2 + 10 * 4 / 1


def test_a_job_that_is_cancelled_while_it_runs_no_longer_has_a_share() -> None:
    state = tell(running(), JobSubmitted(0.0, spec("b")), JobCancelled(10.0, "a"))
    fair_gpu_s = state.fair_gpu_s
    tell(state, Tick(20.0))
    assert state.fair_gpu_s - fair_gpu_s == 10 * 8 / 1


def test_commands_and_late_messages_advance_the_fair_share_like_any_other_time() -> None:
    state = tell(State(), NodeJoined(0.0, Node("n0", 4)), JobSubmitted(0.0, spec("a")), Start(10.0, "a", 1, TWO))
    assert state.fair_gpu_s == 40.0
    tell(state, JobStarted(5.0, "a", 1))  # late
    assert state.fair_gpu_s == 40.0
    tell(state, JobSubmitted(7.0, spec("b")))  # late: it comes now
    assert job_of(state, "b").fair_from_gpu_s == 40.0
    tell(state, Tick(20.0))
    assert state.fair_gpu_s == 40.0 + 10 * 4 / 2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("+-nd"), st.floats(0.0, 100.0)), max_size=30))
def test_what_all_would_have_had_adds_up_to_what_there_was_while_there_were_jobs(
    steps: list[tuple[str, float]],
) -> None:
    """Nodes join (n) and drain (d), jobs come (+) and are cancelled (-): sums of shares against GPUs x seconds."""
    state, came, total = State(), 0, 0.0
    shares: dict[str, float] = {}
    for kind, wait_s in steps:
        gpus = sum(node.gpus for node in state.nodes.values() if node.open)
        tell(state, Tick(state.now + wait_s))
        if state.live:
            total += gpus * wait_s
        if kind == "+":
            came += 1
            tell(state, JobSubmitted(state.now, spec(f"j{came}")))
        elif kind == "-" and state.live:
            job = next(iter(state.live.values()))
            shares[job.id] = state.fair_gpu_s - job.fair_from_gpu_s
            tell(state, JobCancelled(state.now, job.id))
        elif kind == "n":
            tell(state, NodeJoined(state.now, Node(f"n{len(state.nodes)}", 1 + len(state.nodes) % 3)))
        elif kind == "d" and state.nodes:
            tell(state, NodeDrained(state.now, next(iter(state.nodes))))
    shares |= {job.id: state.fair_gpu_s - job.fair_from_gpu_s for job in state.live.values()}
    assert sum(shares.values()) == pytest.approx(total, rel=1e-9, abs=1e-6)


# -- replay ------------------------------------------------------------------------------------------------------------


def assert_equal_states(one: State, other: State) -> None:
    """State equality does not look at all that a policy sees: a snapshot has it."""
    assert one == other
    view, seen_again = one.snapshot(), other.snapshot()
    assert view == seen_again
    assert (view.fair_gpu_s, list(view.lore.items())) == (seen_again.fair_gpu_s, list(seen_again.lore.items()))
    assert list(view.jobs.items()) == list(seen_again.jobs.items())


def random_past(seed: int) -> list[Message]:
    """Three jobs of two models that run, report, rescale, stop and fail, on nodes that come and go."""
    draw, state, past = random.Random(seed), State(), list[Message]()

    def happen(*messages: Message) -> None:
        past.extend(messages)
        tell(state, *messages)

    happen(NodeJoined(0.0, Node("n0", 4, "t4")), NodeJoined(0.0, Node("n1", 4, "t4")))
    for number in range(80):
        at = state.now + draw.choice([0.0, 1.5, 30.0])
        kind = draw.random()
        if kind < 0.1 and number:
            happen(NodeDrained(at, "n1", draw.random() < 0.5))
            continue
        job_id = draw.choice("abc")
        job = state.job(job_id)
        if job is None:
            happen(JobSubmitted(at, spec(job_id, draw.choice(["resnet", "bert"]))))
            continue
        share = Allocation.of({"n0": ["abc".index(job_id)]})
        match job.phase:
            case "pending":
                happen(Start(at, job_id, job.attempt + 1, share))
            case "starting":
                happen(JobStarted(at, job_id, job.attempt))
            case "running" if kind < 0.2:
                happen(Stop(at, job_id, job.attempt), JobStopped(at + 1.0, job_id, job.attempt))
            case "running" if kind < 0.3:
                happen(Resize(at, job_id, job.attempt, NOTHING), JobRescaled(at + 1.0, job_id, job.attempt))
            case "suspended":
                happen(Resize(at, job_id, job.attempt, share), JobRescaled(at + 2.0, job_id, job.attempt))
            case "running":
                observations = (seen(1, draw.random()),) if draw.random() < 0.5 else ()
                noise_scale = draw.choice([None, 100.0 * draw.random()])
                now = {"observations": observations, "noise_scale": noise_scale}
                happen(report(at, draw.random() ** 3, job=job_id, attempt=job.attempt, **now))
    return past


@pytest.mark.parametrize("seed", range(20))
def test_the_same_messages_again_lead_to_the_same_lore_and_accounts(seed: int) -> None:
    past = random_past(seed)
    one = tell(State(), *past)
    assert any(job.belief.speed for job in (*one.live.values(), *one.finished.values())) or one.snapshot().lore
    assert_equal_states(one, replay(past))
    assert_equal_states(one, replay(decode(encode(message)) for message in past))


class Hour:
    """A simulated world that ends after an hour."""

    def __init__(self, backend: SimBackend) -> None:
        self._backend, self._now = backend, 0.0

    def wait(self, until: float) -> Sequence[Event] | None:
        events = None if self._now > 3600.0 else self._backend.wait(min(until, self._now + 60.0))
        self._now = max([self._now, *(event.at for event in events or ())])
        return events

    def execute(self, command: Command) -> None:
        self._backend.execute(command)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ["small-cnn", "recommender"])
def test_a_journal_rebuilds_what_was_learned_in_a_simulation_with_a_failure(model: str, seed: int) -> None:
    draw = random.Random(seed)
    jobs = [
        SimJob(spec(f"j{number}", model), 200.0 * number * draw.random(), GoodputTruth(APPLICATIONS[model]), DEFAULT)
        for number in range(3)
    ]
    outages = [Outage("n1", 300.0, 400.0)]
    world = Hour(SimBackend(jobs, parse_cluster("t4=2x2"), outages=outages, report_every_s=20.0))
    state, journal = State(), MemoryJournal()
    run(Pilot(), world, state=state, journal=journal, cadence=Cadence())
    assert state.snapshot().lore[model].observations
    assert lore_of(state, model).speed is not None
    assert state.fair_gpu_s > 0.0
    assert_equal_states(state, replay(journal))
