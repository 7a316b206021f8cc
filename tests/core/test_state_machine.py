"""Any message in any order: it applies, is ignored, or is refused by name; and the state is never corrupted.

Two kinds of rules: arbitrary messages, mostly wrong, and steps that can really come next, so that the wrong ones meet
states from deep inside a job's life.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fairlead.core import codec
from fairlead.core.errors import InvalidTransition
from fairlead.core.facts import Facts
from fairlead.core.messages import (
    INTENTS,
    JobCancelled,
    JobExited,
    JobHeld,
    JobPinned,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Release,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
    decode,
    encode,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import FINAL, NOTHING, Allocation, Job, JobSpec, Node, Observation, Phase
from fairlead.journal import replay

SPECS = [
    JobSpec(id="a", gpus=1, max_restarts=1),
    JobSpec(id="b", gpus=2, gpus_min=1, gpus_max=4, in_place=True),
    JobSpec(id="c", gpus=2, preemptible=False, gpu_types=("fast",), max_restarts=0),
    JobSpec(id="d", gpus=1, gpus_max=8, in_place=True, priority=-3),
    JobSpec(id="e", gpus=1, depends_on=("a", "d"), backoff_s=5.0, max_restarts=9, tenant="eve", queue="q"),
    JobSpec(id="a", gpus=3),  # the same id again: refused once a is known
]
NODES = [
    Node("n0", 2),
    Node("n1", 4, "fast"),
    Node("n1", 3, "fast", labels={"rack": "r"}),  # returns smaller
    Node("n0", 2, draining=True),
    Node("n0", 2, "other"),
    Node("n2", 1, healthy=False),
]

HUGE = Observation("gpu", 1, 2, 8, 0, 1e308, 0.0, 2**50)  # two of them would overflow a sum

job_ids = st.sampled_from(["a", "b", "c", "d", "e", "nobody"])
node_ids = st.sampled_from(["n0", "n1", "n2", "nowhere"])
delays = st.sampled_from([0.0, 0.25, 10.0, 1000.0, -5.0, -1e6])  # negative: it comes late
times = delays | st.sampled_from([math.nan, math.inf, -math.inf])
attempts = st.integers(-1, 4)
allocations = st.dictionaries(
    st.sampled_from(["n0", "n1", "n1", "n2", "nowhere"]), st.sets(st.integers(0, 4), min_size=1), max_size=2
).map(Allocation.of)
observations = st.lists(st.sampled_from([Observation("gpu", 1, 1, 8, 0, 1.0, 0.5), HUGE]), max_size=2).map(tuple)
progress = st.sampled_from([0.0, 0.5, 1.0, 1.5, -1.0, math.nan])
arbitrary = st.one_of(
    st.builds(JobSubmitted, times, st.sampled_from(SPECS)),
    st.builds(JobCancelled, times, job_ids),
    st.builds(JobHeld, times, job_ids, st.booleans()),
    st.builds(JobReprioritised, times, job_ids, st.integers(-2, 2)),
    st.builds(JobStarted, times, job_ids, attempts),
    st.builds(
        JobReported,
        times,
        job_ids,
        attempts,
        progress,
        st.sampled_from([None, 8, 16, 0, -4]),
        st.sampled_from([None, 1.0, math.inf, math.nan]),
        observations,
    ),
    st.builds(JobPinned, times, job_ids, attempts, st.booleans()),
    st.builds(JobRescaled, times, job_ids, attempts),
    st.builds(JobStopped, times, job_ids, attempts),
    st.builds(JobExited, times, job_ids, attempts, st.sampled_from([0, 1, 143, -9])),
    st.builds(NodeJoined, times, st.sampled_from(NODES)),
    st.builds(NodeLost, times, node_ids),
    st.builds(NodeDrained, times, node_ids, st.booleans(), st.sampled_from([None, 7.0])),
    st.builds(OutsidersSeen, times, node_ids, st.sampled_from([(), (0,), (1, 0), (0, 9), (-1,)])),
    st.builds(Tick, times),
    st.builds(Start, times, job_ids, attempts, allocations),
    st.builds(Resize, times, job_ids, attempts, allocations),
    st.builds(Stop, times, job_ids, attempts),
    st.builds(Rent, times, node_ids),
    st.builds(Release, times, node_ids),
)


def everything(state: State) -> Any:
    """All a state shows to the outside; as text, so that NaN equals NaN."""
    view = state.snapshot()
    stories = {job_id: state.story(job_id) for job_id in (*state.live, *state.finished, "nobody")}
    orders = (sorted(state.released), sorted(state.coming), sorted(view.released), sorted(view.coming))
    facts = (state.now, state.nodes, orders, list(state.live.items()), list(state.finished.items()), stories)
    arrays = [column.tolist() for column in (view.columns.service_gpu_s_J, view.columns.run_s_J, view.columns.held_J)]
    seen = (view.jobs, view.allocations, view.assigned, view.held, view.shared, view.barred)
    return repr((facts, arrays, view.node_columns, seen))


def all_but_the_time(state: State) -> Any:
    stories = {job_id: state.story(job_id) for job_id in (*state.live, *state.finished)}
    view = state.snapshot()
    seen = (view.assigned, view.held, view.shared, view.barred)  # not who may run: that changes as time passes
    orders = (sorted(state.released), sorted(state.coming))
    return repr((state.nodes, orders, list(state.live.items()), list(state.finished.items()), stories, seen))


class AnyMessage(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.told: list[Message] = []  # what a journal would hold
        self.earlier: dict[str, Job] = {}
        self.views: list[tuple[Snapshot, str]] = []
        for node in NODES[:2]:
            self.tell(NodeJoined(0.0, node))

    def tell(self, message: Message) -> None:
        state = self.state
        before, but_the_time, now = everything(state), all_but_the_time(state), state.now
        self.earlier = {**state.live, **state.finished}
        try:
            if isinstance(message, INTENTS):
                state.issue(message)  # type: ignore[arg-type]
                applied = True
            else:
                applied = state.apply(message)  # type: ignore[arg-type]
        except InvalidTransition:
            assert everything(state) == before, f"{message} was refused, but left a trace"
            return
        assert state.now >= now
        if applied:
            self.told.append(message)
        else:
            assert all_but_the_time(state) == but_the_time, f"{message} was ignored, but left a trace"
            self.told.append(Tick(state.now))

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(message=arbitrary)
    def something_arrives(self, message: Message) -> None:
        at = self.state.now + message.at if math.isfinite(message.at) else message.at
        self.tell(type(message)(**{**_fields(message), "at": at}))

    @rule(spec=st.sampled_from(SPECS[:5]))
    def a_job_arrives(self, spec: JobSpec) -> None:
        self.tell(JobSubmitted(self.state.now, spec))

    @rule(data=st.data(), delay=delays)
    def a_job_takes_its_next_step(self, data: st.DataObject, delay: float) -> None:
        if not self.state.live:
            return
        job = data.draw(st.sampled_from(list(self.state.live.values())))
        at, alike = self.state.now + delay, (job.id, job.attempt)
        steps: list[Message] = {
            Phase.PENDING: [Start(at, job.id, job.attempt + 1, a) for a in self.possible(job)],
            Phase.STARTING: [JobStarted(at, *alike), Stop(at, *alike), JobExited(at, *alike, 1)],
            Phase.RUNNING: [
                *(Resize(at, *alike, a) for a in (NOTHING, *self.possible(job))),
                Stop(at, *alike),
                JobReported(at, *alike, 0.5, 8, 1.0, (HUGE, Observation("gpu", 1, 1, 8, 0, 1.0, 0.5))),
                JobExited(at, *alike, 0),
            ],
            Phase.RESCALING: [JobRescaled(at, *alike), Stop(at, *alike)],
            Phase.SUSPENDED: [Resize(at, *alike, a) for a in self.possible(job)] + [Stop(at, *alike)],
            Phase.STOPPING: [JobStopped(at, *alike), JobExited(at, *alike, 1), JobReported(at, *alike, 1.0)],
        }[job.phase]
        if steps:
            self.tell(data.draw(st.sampled_from(steps)))

    def possible(self, job: Job) -> list[Allocation]:
        usable = [node for node in self.state.nodes.values() if node.healthy]
        wholes = [Allocation.of({node.id: range(node.gpus)}) for node in usable]
        firsts = [Allocation.of({node.id: [node.gpus - 1]}) for node in usable]
        spread = [Allocation.of({node.id: [0] for node in usable})] if len(usable) > 1 else []
        return [*wholes, *firsts, *spread]

    @rule(data=st.data())
    def something_is_said_again(self, data: st.DataObject) -> None:
        self.tell(data.draw(st.sampled_from(self.told)))

    @rule()
    def somebody_takes_a_snapshot(self) -> None:
        view = self.state.snapshot()
        self.views.append((view, _seen(view)))

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_as_its_phase_says(self) -> None:
        state = self.state
        assert not state.live.keys() & state.finished.keys()
        for job in (*state.live.values(), *state.finished.values()):
            assert_job(job, state)
            if earlier := self.earlier.get(job.id):
                assert_grew(earlier, job)

    @rule(data=st.data(), delay=delays)
    def a_node_comes_or_goes(self, data: st.DataObject, delay: float) -> None:
        node = data.draw(st.sampled_from(list(self.state.nodes.values())))
        at = self.state.now + delay
        self.tell(
            NodeJoined(at, replace(node, healthy=True))
            if node.id in self.state.coming
            else Rent(at, node.id)
            if node.id in self.state.released
            else Release(at, node.id)
        )

    @invariant()
    def what_was_released_or_rented_is_not_there_yet(self) -> None:
        state = self.state
        assert not state.released & state.coming
        for node_id in state.released | state.coming:
            assert not state.nodes[node_id].healthy

    @invariant()
    def every_index_agrees_with_the_jobs(self) -> None:
        view, live = self.state.snapshot(), list(self.state.live.values())
        schedulable = {job.id: job for job in live if job.may_run(self.state.now)}
        assert list(view.jobs.items()) == list(schedulable.items())
        assert view.allocations == {job.id: job.allocation for job in schedulable.values() if job.allocation}
        assigned = [gpu for job in schedulable.values() for gpu in _gpus(job.allocation)]
        assert _gpus_of_masks(view.assigned) == set(assigned)
        assert view.shared == (len(set(assigned)) < len(assigned))
        assert _gpus_of_masks(view.held) == {gpu for job in live for gpu in _gpus(job.held)}
        assert (
            {job.id for job in live if job.cancelled and job.phase is not Phase.STOPPING}
            <= {job.id for job in view.barred}
            <= {job.id for job in live if job.cancelled or job.on_hold}
        )
        assert_arrays(view, set(assigned))

    def teardown(self) -> None:
        again = replay(self.told)
        assert again == self.state
        facts = json.loads(json.dumps(codec.encode(self.state.facts()), allow_nan=False))
        restored = State.of(codec.decode(Facts, facts, place="facts"))
        assert restored == self.state
        was, now = self.state.snapshot(), restored.snapshot()
        assert (now.jobs, now.allocations, now.barred, now.usage) == (was.jobs, was.allocations, was.barred, was.usage)
        assert list(now.jobs) == list(was.jobs)
        assert _gpus_of_masks(now.held) == _gpus_of_masks(was.held)
        assert everything(again).replace("_version", "") == everything(self.state).replace("_version", "")
        assert replay([decode(json.loads(json.dumps(encode(message)))) for message in self.told]) == self.state
        for view, seen in self.views:
            assert _seen(view) == seen
            assert_arrays(view, {gpu for allocation in view.allocations.values() for gpu in _gpus(allocation)})


def assert_job(job: Job, state: State) -> None:
    allocated, releasing = set(_gpus(job.allocation)), set(_gpus(job.releasing))
    assert not allocated & releasing
    assert (job.id in state.finished) == (job.phase in FINAL)
    if job.phase in FINAL or job.phase in (Phase.PENDING, Phase.SUSPENDED):
        assert not job.held
    if job.phase in (Phase.STARTING, Phase.RUNNING):
        assert allocated
        assert not releasing
    if job.phase is Phase.STOPPING:
        assert not allocated
    if job.phase not in FINAL and job.phase is not Phase.PENDING:
        assert job.attempt >= 1
        assert job.first_started_at is not None
    assert job.phase is not Phase.CANCELLED or job.cancelled
    assert not (job.cancelled and job.phase is Phase.PENDING)
    assert (job.phase is Phase.FAILED) == (job.failures > job.spec.max_restarts)
    assert 0.0 <= job.submitted_at <= job.since <= job.accounted_at <= state.now
    for node, gpu in allocated | releasing:
        assert state.nodes[node].healthy
        assert gpu < state.nodes[node].gpus


def assert_grew(earlier: Job, job: Job) -> None:
    for count in ("attempt", "failures", "preemptions", "service_gpu_s", "run_s", "since", "accounted_at", "cancelled"):
        assert getattr(job, count) >= getattr(earlier, count)
    assert replace(job.spec, priority=0) == replace(earlier.spec, priority=0)
    assert job.submitted_at == earlier.submitted_at
    assert earlier.phase not in FINAL or job == earlier


def assert_arrays(view: Snapshot, assigned: set[tuple[str, int]]) -> None:
    columns, jobs = view.columns, list(view.jobs.values())
    assert columns.ids == tuple(view.jobs)
    assert columns.service_gpu_s_J.tolist() == [job.service_at(view.now) for job in jobs]
    assert columns.run_s_J.tolist() == [job.run_at(view.now) for job in jobs]
    assert columns.held_J.tolist() == [job.allocation.total for job in jobs]
    nodes = list(view.nodes.values())
    free = [node.gpus - sum(n == node.id for n, _ in assigned) if node.open else 0 for node in nodes]
    assert view.node_columns.free_N.tolist() == free


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in type(message).__dataclass_fields__}


def _gpus(allocation: Allocation) -> list[tuple[str, int]]:
    return [(node, gpu) for node, gpus in allocation for gpu in gpus]


def _gpus_of_masks(masks: Any) -> set[tuple[str, int]]:
    return {(node, gpu) for node, mask in masks.items() for gpu in range(mask.bit_length()) if mask >> gpu & 1}


def _seen(view: Snapshot) -> str:
    return repr((view.now, list(view.jobs.items()), view.nodes, view.allocations, view.assigned, view.held))


def test_no_sequence_of_messages_corrupts_the_state() -> None:
    run_state_machine_as_test(AnyMessage, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))


@pytest.mark.slow
def test_no_long_sequence_of_messages_corrupts_the_state() -> None:
    run_state_machine_as_test(AnyMessage, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
