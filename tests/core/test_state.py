"""The state machine: every row of the table, what comes late or twice, and what an error tells."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairlead.core.ending import REQUEUE_ME
from fairlead.core.errors import InvalidTransition
from fairlead.core.messages import (
    INTENTS,
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
)
from fairlead.core.state import ENDED, REQUEUED, SAME, SETTLED, TRANSITIONS, State
from fairlead.core.types import FINAL, NOTHING, Allocation, Job, JobSpec, Node, Observation, Phase

TWO, ONE, OTHER = Allocation.of({"n0": [0, 1]}), Allocation.of({"n0": [0]}), Allocation.of({"n1": [0, 1]})
SPEC = JobSpec(id="a", gpus=2, gpus_min=1, gpus_max=4, in_place=True, max_restarts=0)

#: The shortest way of job a into each phase, by messages at 1.0, 2.0, ...
WAYS: dict[Phase, list[Message]] = {
    Phase.PENDING: [Start(1.0, "a", 1, TWO), JobStopped(2.0, "a", 1)],
    Phase.STARTING: [Start(1.0, "a", 1, TWO)],
    Phase.RUNNING: [Start(1.0, "a", 1, TWO), JobStarted(2.0, "a", 1)],
    Phase.RESCALING: [Start(1.0, "a", 1, TWO), JobStarted(2.0, "a", 1), Resize(3.0, "a", 1, ONE)],
    Phase.SUSPENDED: [
        Start(1.0, "a", 1, TWO),
        JobStarted(2.0, "a", 1),
        Resize(3.0, "a", 1, NOTHING),
        JobRescaled(4.0, "a", 1),
    ],
    Phase.STOPPING: [Start(1.0, "a", 1, TWO), JobStarted(2.0, "a", 1), Stop(3.0, "a", 1)],
    Phase.SUCCEEDED: [Start(1.0, "a", 1, TWO), JobExited(2.0, "a", 1, 0)],
    Phase.FAILED: [Start(1.0, "a", 1, TWO), JobExited(2.0, "a", 1, 1)],
    Phase.CANCELLED: [Start(1.0, "a", 1, TWO), JobCancelled(2.0, "a"), JobStopped(3.0, "a", 1)],
}


def tell(state: State, *messages: Message) -> State:
    for message in messages:
        state.replay(message)
    return state


def fresh(spec: JobSpec = SPEC) -> State:
    nodes = [NodeJoined(0.0, Node("n0", 4)), NodeJoined(0.0, Node("n1", 4))]
    return tell(State(), *nodes, JobSubmitted(0.0, spec))


def in_phase(phase: Phase, spec: JobSpec = SPEC) -> State:
    state = tell(fresh(spec), *WAYS[phase])
    assert job_of(state).phase is phase
    return state


def job_of(state: State, job_id: str = "a") -> Job:
    job = state.job(job_id)
    assert job is not None
    return job


def everything(state: State) -> Any:
    """All a state shows to the outside, to see that nothing of it changed."""
    view = state.snapshot()
    jobs = [*state.live.items(), *state.finished.items()]
    stories = [state.story(job_id) for job_id, _ in jobs]
    columns = view.columns.service_gpu_s_J.tolist(), view.columns.held_J.tolist(), view.node_columns.free_N.tolist()
    masks = view.assigned, view.held, view.shared
    return state.now, list(state.nodes.items()), jobs, stories, view.jobs, view.allocations, masks, columns


def message_of(kind: type, attempt: int = 1) -> Message:
    if kind is JobCancelled:
        return JobCancelled(10.0, "a")
    if kind is Start:
        return Start(10.0, "a", attempt + 1, OTHER)
    if kind is Resize:
        return Resize(10.0, "a", attempt, OTHER)
    if kind is JobReported:
        return JobReported(10.0, "a", attempt, 0.5)
    made: Message = kind(10.0, "a", attempt)
    return made


#: What the named outcomes come to for job a, which holds one GPU while RESCALING and exits with code 0.
OUTCOMES = {SETTLED: Phase.RUNNING, REQUEUED: Phase.PENDING, ENDED: Phase.SUCCEEDED}
KINDS = [kind for kind in TRANSITIONS if kind is not NodeLost]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_in_every_phase_does_what_the_table_says(kind: type, phase: Phase) -> None:
    state, message = in_phase(phase), message_of(kind)
    before, following = everything(state), TRANSITIONS[kind].get(phase)
    if following is None:
        fenced = kind not in INTENTS and (phase in FINAL or phase is Phase.PENDING)
        if fenced:
            assert state.apply(message) is False  # type: ignore[arg-type]
        else:
            with pytest.raises(InvalidTransition, match="The story of job a:"):
                tell(state, message)
            assert everything(state) == before
        assert job_of(state).phase is phase
    else:
        tell(state, message)
        expected = phase if following is SAME else OUTCOMES.get(str(following), following)
        assert job_of(state).phase is expected


@pytest.mark.parametrize("phase", Phase)
def test_a_lost_node_requeues_exactly_those_who_held_gpus_there(phase: Phase) -> None:
    state = in_phase(phase)
    held = job_of(state).held.total
    assert state.apply(NodeLost(10.0, "n0")) is True
    job = job_of(state)
    expected = Phase.PENDING if phase in TRANSITIONS[NodeLost] else phase
    assert (job.phase, job.allocation, job.releasing) == (expected, NOTHING, NOTHING)
    assert bool(held) == (phase in TRANSITIONS[NodeLost])
    assert not any(state.snapshot().held.values())
    assert state.apply(NodeLost(11.0, "n0")) is False


def test_a_lost_node_takes_a_job_that_was_only_giving_up_its_gpus_there() -> None:
    state = tell(in_phase(Phase.RUNNING), Resize(5.0, "a", 1, OTHER), NodeLost(6.0, "n0"))
    assert (job_of(state).phase, job_of(state).held) == (Phase.PENDING, NOTHING)
    assert state.apply(JobRescaled(7.0, "a", 1)) is False


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in FINAL])
def test_a_cancelled_job_remembers_who_did_it_and_why_and_only_the_first(phase: Phase) -> None:
    state = in_phase(phase)
    state.apply(JobCancelled(10.0, "a", "ann", "enough of it"))
    state.apply(JobCancelled(11.0, "a", "bob", "me too"))
    assert (job_of(state).cancelled_by, job_of(state).cancelled_why) == ("ann", "enough of it")


@pytest.mark.parametrize("phase", Phase)
def test_cancelling_in_any_phase_ends_in_cancelled_once_the_processes_are_gone(phase: Phase) -> None:
    state = in_phase(phase)
    applied = state.apply(JobCancelled(10.0, "a"))
    assert applied is (phase not in FINAL)
    assert state.apply(JobCancelled(11.0, "a")) is False
    view = state.snapshot()
    assert "a" not in view.jobs
    assert view.allocations == {}
    if phase in FINAL or phase is Phase.PENDING:
        assert job_of(state).phase is (phase if phase in FINAL else Phase.CANCELLED)
        assert not view.barred
        return
    assert [job.id for job in view.barred] == ["a"]
    if phase is not Phase.STOPPING:
        state.issue(Stop(12.0, "a", 1))
    assert state.apply(JobStopped(13.0, "a", 1)) is True
    assert job_of(state).phase is Phase.CANCELLED
    assert job_of(state).preemptions == (1 if phase in (Phase.STOPPING, Phase.SUSPENDED) else 0)
    assert not any(state.snapshot().held.values())


def test_a_cancelled_job_that_ends_first_has_succeeded_or_is_cancelled_but_has_not_failed() -> None:
    for code, phase in [(0, Phase.SUCCEEDED), (1, Phase.CANCELLED), (REQUEUE_ME, Phase.CANCELLED)]:
        state = tell(in_phase(Phase.RUNNING), JobCancelled(5.0, "a"), JobExited(6.0, "a", 1, code))
        assert (job_of(state).phase, job_of(state).failures) == (phase, 0)
    stopped = tell(in_phase(Phase.STOPPING), JobExited(5.0, "a", 1, 137))  # nor has one that was told to stop
    assert (job_of(stopped).phase, job_of(stopped).failures) == (Phase.PENDING, 0)


@pytest.mark.parametrize(
    ("codes", "phase", "failures"),
    [
        ([0], Phase.SUCCEEDED, 0),
        ([1], Phase.PENDING, 1),
        ([1, 1], Phase.PENDING, 2),
        ([1, -9, 1], Phase.FAILED, 3),
        ([REQUEUE_ME] * 5, Phase.PENDING, 0),
        ([1, REQUEUE_ME, 1, 0], Phase.SUCCEEDED, 2),
    ],
)
def test_exit_codes_decide_between_another_attempt_and_the_end(codes: list[int], phase: Phase, failures: int) -> None:
    state = fresh(JobSpec(id="a", gpus=2, max_restarts=2))
    for attempt, code in enumerate(codes, 1):
        tell(state, Start(1.0, "a", attempt, TWO), JobStarted(1.0, "a", attempt), JobExited(2.0, "a", attempt, code))
    assert (job_of(state).phase, job_of(state).failures, job_of(state).attempt) == (phase, failures, len(codes))


def test_a_message_about_an_earlier_attempt_is_ignored() -> None:
    state = tell(in_phase(Phase.PENDING), Start(3.0, "a", 2, OTHER), JobStarted(4.0, "a", 2), Tick(10.0))
    before = everything(state)
    for kind in (JobStarted, JobReported, JobRescaled, JobStopped, JobExited):
        assert state.apply(message_of(kind)) is False  # type: ignore[arg-type]
    assert everything(state) == before


@pytest.mark.parametrize("attempt", [0, -1, 2, 99])
def test_a_message_about_an_attempt_that_never_was_is_refused(attempt: int) -> None:
    state = in_phase(Phase.RUNNING)
    before = everything(state)
    with pytest.raises(InvalidTransition, match=f"attempt {attempt} was never started; the last is 1"):
        state.apply(JobStopped(5.0, "a", attempt))
    for command in (Stop(5.0, "a", attempt), Resize(5.0, "a", attempt, ONE)):
        with pytest.raises(InvalidTransition, match="its attempt should be 1"):
            state.issue(command)
    assert everything(state) == before
    with pytest.raises(InvalidTransition, match="its attempt should be 2"):
        in_phase(Phase.PENDING).issue(Start(5.0, "a", 1, TWO))


def test_an_error_tells_the_whole_story_of_the_job() -> None:
    state = tell(in_phase(Phase.RUNNING), JobReported(3.0, "a", 1, 0.25))
    with pytest.raises(InvalidTransition) as caught:
        state.issue(Start(9.0, "a", 2, TWO))
    assert str(caught.value).split("\n  ") == [
        "9.0 Start attempt 2 allocation n0[0,1]: not possible while it is running. The story of job a:",
        "0.0 JobSubmitted",
        "1.0 Start attempt 1 allocation n0[0,1]",
        "2.0 JobStarted attempt 1",
        "3.0 JobReported attempt 1 progress 0.25",
    ]


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    state = in_phase(Phase.RUNNING)
    for second in range(500):
        state.apply(JobReported(3.0 + second, "a", 1, 0.5))
    story = state.story("a")
    assert story[0] == JobSubmitted(0.0, SPEC)
    assert story[-1] == JobReported(502.0, "a", 1, 0.5)
    assert len(story) <= 64


# -- commands that no cluster could follow ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "words"),
    [
        (NOTHING, "no GPUs"),
        (Allocation.of({"n7": [0]}), "n7"),
        (Allocation.of({"n0": [0], "n7": [0]}), "n7"),
        (Allocation.of({"n0": [4]}), "n0 has 4"),
        (Allocation.of({"n1": [0]}), "n1 is lost"),
    ],
)
def test_a_start_on_gpus_that_do_not_exist_is_refused_and_leaves_no_trace(allocation: Allocation, words: str) -> None:
    state = tell(in_phase(Phase.PENDING), NodeLost(3.0, "n1"))
    before = everything(state)
    with pytest.raises(InvalidTransition, match=words):
        state.issue(Start(5.0, "a", 2, allocation))
    assert everything(state) == before
    state.issue(Start(5.0, "a", 2, TWO))


def test_a_resize_to_gpus_that_do_not_exist_is_refused_and_leaves_no_trace() -> None:
    state = in_phase(Phase.RUNNING)
    before = everything(state)
    for allocation in (Allocation.of({"n7": [0]}), Allocation.of({"n0": [0, 9]})):
        with pytest.raises(InvalidTransition, match="The story of job a"):
            state.issue(Resize(5.0, "a", 1, allocation))
    assert everything(state) == before


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf])
def test_a_message_without_a_finite_time_is_refused_and_leaves_no_trace(at: float) -> None:
    state = in_phase(Phase.RUNNING)
    before = everything(state)
    for message in (Tick(at), JobReported(at, "a", 1, 0.5), Stop(at, "a", 1), JobSubmitted(at, JobSpec(id="b"))):
        with pytest.raises(InvalidTransition, match="no finite time"):
            tell(state, message)
    assert everything(state) == before


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (JobReported(5.0, "a", 1, 1.5), "progress 1.5"),
        (JobReported(5.0, "a", 1, -0.1), "progress -0.1"),
        (JobReported(5.0, "a", 1, math.nan), "progress nan"),
        (JobReported(5.0, "a", 1, 0.5, batch=0), "batch 0"),
        (JobReported(5.0, "a", 1, 0.5, noise_scale=math.nan), "noise scale nan"),
        (JobReported(5.0, "a", 1, 0.5, noise_scale=math.inf), "noise scale inf"),
    ],
)
def test_a_report_that_says_nonsense_is_refused_and_leaves_no_trace(report: JobReported, words: str) -> None:
    state = in_phase(Phase.RUNNING)
    before = everything(state)
    with pytest.raises(InvalidTransition, match=words):
        state.apply(report)
    assert everything(state) == before


def test_messages_about_jobs_and_nodes_that_do_not_exist_say_so() -> None:
    state = in_phase(Phase.RUNNING)
    for message in (Stop(5.0, "b", 1), JobStarted(5.0, "b", 1), JobCancelled(5.0, "b")):
        with pytest.raises(InvalidTransition, match="there is no job 'b'"):
            tell(state, message)
    for event in (NodeLost(5.0, "n9"), NodeDrained(5.0, "n9")):
        with pytest.raises(InvalidTransition, match="no such node; known are n0, n1"):
            state.apply(event)


# -- jobs and nodes that come again ----------------------------------------------------------------------------------


def test_a_job_handed_in_twice_is_one_job_and_a_different_one_is_refused() -> None:
    state, done = in_phase(Phase.RUNNING), in_phase(Phase.SUCCEEDED)
    assert state.apply(JobSubmitted(5.0, SPEC)) is False
    with pytest.raises(InvalidTransition, match="job id 'a' is taken by another job"):
        state.apply(JobSubmitted(5.0, JobSpec(id="a", gpus=1)))
    assert done.apply(JobSubmitted(5.0, SPEC)) is False
    assert job_of(done).phase is Phase.SUCCEEDED


def test_a_node_can_be_drained_and_opened_again_while_jobs_stay() -> None:
    state = in_phase(Phase.RUNNING)
    assert state.apply(NodeDrained(5.0, "n0")) is True
    assert state.apply(NodeDrained(6.0, "n0")) is False
    view = state.snapshot()
    assert view.nodes["n0"].draining
    assert view.allocations == {"a": TWO}
    assert view.node_columns.free_N.tolist() == [0, 4]
    assert state.apply(NodeDrained(7.0, "n0", draining=False)) is True
    assert state.snapshot().node_columns.free_N.tolist() == [2, 4]


def test_a_node_returns_with_other_gpus_only_after_it_was_lost() -> None:
    state, bigger = in_phase(Phase.RUNNING), Node("n0", 8, "new")
    assert state.apply(NodeJoined(5.0, Node("n0", 4))) is False
    for holder in (state, in_phase(Phase.STOPPING)):
        with pytest.raises(InvalidTransition, match="while jobs hold some of its 4 x gpu; report NodeLost first"):
            holder.apply(NodeJoined(5.0, bigger))
    with pytest.raises(InvalidTransition, match="a node joins healthy"):
        state.apply(NodeJoined(5.0, Node("n0", 4, healthy=False)))
    assert tell(state, NodeLost(6.0, "n0")).apply(NodeJoined(7.0, bigger)) is True
    assert state.nodes["n0"] == bigger


# -- accounts --------------------------------------------------------------------------------------------------------


def test_time_never_goes_back_and_accounts_are_exact() -> None:
    state = tell(
        fresh(),
        Start(10.0, "a", 1, TWO),
        JobStarted(15.0, "a", 1),
        JobReported(12.0, "a", 1, 0.1),  # comes late: counts as now
        Resize(25.0, "a", 1, ONE),
        JobRescaled(27.0, "a", 1),
        JobExited(37.0, "a", 1, 0),
    )
    job = job_of(state)
    assert state.now == 37.0
    assert job.service_gpu_s == 2 * (25 - 15) + 1 * (37 - 27)
    assert job.run_s == (25 - 15) + (37 - 27)
    assert (job.first_started_at, job.last_ran_at, job.since, job.preemptions) == (10.0, 37.0, 37.0, 0)


def test_a_preemption_is_counted_when_the_plan_takes_the_gpus_and_only_then() -> None:
    assert job_of(in_phase(Phase.STOPPING)).preemptions == 1
    assert job_of(in_phase(Phase.SUSPENDED)).preemptions == 1
    assert job_of(in_phase(Phase.RESCALING)).preemptions == 0
    assert job_of(tell(in_phase(Phase.SUSPENDED), Stop(9.0, "a", 1))).preemptions == 1
    assert job_of(tell(in_phase(Phase.SUSPENDED), Resize(9.0, "a", 1, NOTHING))).preemptions == 1


def test_reports_are_pooled_by_configuration_and_regimes_begin_when_the_batch_changes() -> None:
    state = in_phase(Phase.RUNNING)
    fast, slow = Observation("gpu", 1, 2, 32, 0, 1.0, 0.5, 10), Observation("gpu", 1, 2, 32, 0, 4.0, 0.5, 30)
    tell(
        state,
        JobReported(3.0, "a", 1, 0.1, batch=64, noise_scale=5.0, observations=(fast,)),
        JobReported(4.0, "a", 1, 0.2, batch=64, observations=(slow,)),
        JobReported(5.0, "a", 1, 0.3, batch=128),
    )
    belief = job_of(state).belief
    assert belief.observations == (Observation("gpu", 1, 2, 32, 0, 3.25, 0.5, 40),)
    huge = Observation("gpu", 1, 2, 32, 0, 1e308, 0.5, 2**50)
    tell(state, JobReported(6.0, "a", 1, 0.4, observations=(huge, huge)))
    assert 0.99e308 < job_of(state).belief.observations[0].step_s <= 1e308  # did not overflow
    belief = job_of(state).belief
    assert belief.regimes == ((0.1, 64), (0.3, 128))
    assert (belief.progress, belief.reported_at, belief.noise_scale) == (0.4, 6.0, 5.0)


def test_packed_jobs_hold_the_same_gpu_until_the_last_one_leaves() -> None:
    state = tell(in_phase(Phase.STARTING), JobSubmitted(0.0, JobSpec(id="b", gpus=2)), Start(1.0, "b", 1, TWO))
    assert (state.snapshot().held["n0"], state.snapshot().shared) == (0b11, True)
    tell(state, JobExited(2.0, "a", 1, 0))
    assert (state.snapshot().held["n0"], state.snapshot().shared) == (0b11, False)
    tell(state, JobExited(3.0, "b", 1, 0))
    assert (state.snapshot().held["n0"], state.snapshot().node_columns.free_N.tolist()) == (0, [4, 4])
