"""What jobs that share their GPUs report: kept, and kept apart from what they do alone."""

from __future__ import annotations

import pytest

from fairlead.core.learning import MOST_PLACES, informed
from fairlead.core.messages import (
    JobExited,
    JobReported,
    JobStarted,
    JobSubmitted,
    Message,
    NodeJoined,
    Start,
    Stop,
    decode,
    encode,
)
from fairlead.core.state import State
from fairlead.core.types import Allocation, Job, JobSpec, Node, Observation

ONE, OTHER = Allocation.of({"n0": [0]}), Allocation.of({"n0": [1]})


def seen(step_s: float, *partners: str, per_gpu_batch: int = 32) -> Observation:
    return Observation("t4", 1, 1, per_gpu_batch, 0, step_s, 0.0, partners=partners)


def told(at: float, job: str, progress: float = 0.0, *observations: Observation) -> JobReported:
    return JobReported(at, job, 1, progress=progress, observations=observations)


def world(*messages: Message) -> State:
    """Jobs a (resnet) and b (lm) on a node with two GPUs."""
    state = State()
    begin = [
        NodeJoined(0.0, Node("n0", 2, "t4")),
        JobSubmitted(0.0, JobSpec(id="a", labels={"model": "resnet"})),
        JobSubmitted(0.0, JobSpec(id="b", labels={"model": "lm"})),
    ]
    for message in (*begin, *messages):
        state.replay(message)
    return state


def started(at: float, job: str, where: Allocation = ONE) -> tuple[Message, ...]:
    return Start(at, job, 1, where), JobStarted(at, job, 1)


def job_of(state: State, job_id: str = "a") -> Job:
    job = state.job(job_id)
    assert job is not None
    return job


def test_jobs_that_run_on_the_same_gpu_are_partners_until_one_leaves() -> None:
    state = world(*started(1.0, "a"), Start(2.0, "b", 1, ONE))
    assert job_of(state).partners == ()  # the other one does not train yet
    state.replay(JobStarted(3.0, "b", 1))
    assert (job_of(state).partners, job_of(state).partners_since) == (("lm",), 3.0)
    assert job_of(state, "b").partners == ("resnet",)
    state.replay(Stop(5.0, "b", 1))
    assert (job_of(state).partners, job_of(state).partners_since) == ((), 5.0)
    assert job_of(state, "b").partners == ()


def test_jobs_beside_each_other_on_other_gpus_are_no_partners() -> None:
    state = world(*started(1.0, "a"), *started(1.0, "b", OTHER))
    assert job_of(state).partners == job_of(state, "b").partners == ()


def test_what_is_measured_beside_others_is_pooled_apart() -> None:
    state = world(*started(1.0, "a"), told(2.0, "a", 0.1, seen(1.0)), told(3.0, "a", 0.2, seen(2.0, "lm")))
    state.replay(told(4.0, "a", 0.3, seen(4.0, "lm"), seen(3.0, "gan")))
    belief = job_of(state).belief
    assert belief.observations == (seen(1.0),)
    assert [(each.step_s, each.partners, each.steps) for each in belief.packed] == [
        (3.0, ("lm",), 2),
        (3.0, ("gan",), 1),
    ]


def test_a_model_is_known_by_what_it_keeps_of_its_speed_beside_each_other_model() -> None:
    state = world(*started(1.0, "a"), told(2.0, "a", 0.1, seen(1.0)), told(3.0, "a", 0.2, seen(2.0, "lm")))
    (share,) = state.snapshot().lore["resnet"].shares
    assert (share.partners, share.share) == (("lm",), 0.5)
    assert state.snapshot().lore["resnet"].observations == (seen(1.0),)
    newcomer = Job(JobSpec(id="c", labels={"model": "resnet"}), 0.0)
    assert informed(newcomer, state.snapshot().lore).shares == (share,)


def test_without_a_measurement_alone_at_the_same_batch_no_share_is_known() -> None:
    state = world(*started(1.0, "a"), told(2.0, "a", 0.1, seen(1.0, per_gpu_batch=64)))
    state.replay(told(3.0, "a", 0.2, seen(2.0, "lm")))
    assert state.snapshot().lore["resnet"].shares == ()


def test_a_speed_beside_others_does_not_replace_the_speed_alone() -> None:
    state = world(*started(0.0, "a"), told(0.0, "a", 0.0), told(10.0, "a", 0.1))
    for message in (*started(10.0, "b"), told(10.0, "a", 0.1), told(20.0, "a", 0.15)):
        state.replay(message)
    belief = job_of(state).belief
    assert belief.speed is not None
    assert belief.speed.progress_per_s == pytest.approx(0.01)
    assert [(s.partners, s.progress_per_s) for s in belief.speeds] == [
        ((), pytest.approx(0.01)),
        (("lm",), pytest.approx(0.005)),
    ]
    (share,) = state.snapshot().lore["resnet"].shares
    assert share.share == pytest.approx(0.5)


def test_between_reports_that_a_partner_came_or_went_no_speed_is_learned() -> None:
    state = world(*started(0.0, "a"), told(0.0, "a", 0.0), *started(5.0, "b"))
    state.replay(told(10.0, "a", 0.1))
    assert job_of(state).belief.speeds == ()
    state.replay(JobExited(15.0, "b", 1))
    state.replay(told(20.0, "a", 0.2))
    assert job_of(state).belief.speeds == ()


def test_an_old_report_without_partners_can_be_read_and_a_new_one_comes_back_whole() -> None:
    new = told(2.0, "a", 0.1, seen(1.0), seen(2.0, "lm"))
    form = encode(new)
    assert decode(form) == new
    assert "partners" not in form["observations"][0]  # as it always was
    assert form["observations"][1]["partners"] == ["lm"]


def test_facts_with_packed_measurements_come_back_whole() -> None:
    state = world(*started(1.0, "a"), *started(1.0, "b"), told(2.0, "a", 0.1, seen(1.0), seen(2.0, "lm")))
    assert State.of(state.facts()) == state


def test_places_remembered_of_a_model_are_bounded() -> None:
    state = world(*started(0.0, "a"), told(1.0, "a", 0.0, seen(1.0)))
    state.replay(told(2.0, "a", 0.1, *(seen(2.0, f"m{k}") for k in range(MOST_PLACES + 10))))
    assert len(state.snapshot().lore["resnet"].shares) == MOST_PLACES


def blind(at: float, progress: float, *observations: Observation) -> JobReported:
    """As a process on a real machine reports: it cannot tell who else is on its GPU."""
    return JobReported(at, "a", 1, progress=progress, observations=observations, knows_partners=False)


def test_the_state_says_beside_whom_a_process_measured_that_cannot_tell() -> None:
    state = world(*started(0.0, "a"), blind(1.0, 0.1, seen(1.0)), *started(2.0, "b"))
    state.replay(blind(3.0, 0.2, seen(1.5)))  # partly alone, partly not
    assert job_of(state).belief.observations == (seen(1.0),)
    assert job_of(state).belief.packed == ()
    state.replay(blind(4.0, 0.3, seen(2.0), seen(0.1, per_gpu_batch=8)))
    assert job_of(state).belief.observations == (seen(1.0),)
    assert job_of(state).belief.packed == (seen(2.0, "lm"), seen(0.1, "lm", per_gpu_batch=8))
    assert [share.share for share in state.snapshot().lore["resnet"].shares] == [0.5]


def test_what_was_measured_on_other_gpus_before_is_not_attributed_to_partners_of_now() -> None:
    state = world(*started(0.0, "a"), *started(0.0, "b"), blind(1.0, 0.1))
    before = Observation("t4", 1, 2, 32, 0, 1.0, 0.0)
    state.replay(blind(2.0, 0.2, before))
    assert job_of(state).belief.observations == (before,)
