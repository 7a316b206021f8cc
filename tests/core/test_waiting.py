"""Jobs that may not run for now: on hold, behind others, or between two tries; and what use is remembered."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fairlead.core.errors import InvalidTransition
from fairlead.core.loop import Cadence
from fairlead.core.messages import (
    JobExited,
    JobHeld,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.plan import changes, reconcile
from fairlead.core.state import State
from fairlead.core.types import NOTHING, SHORT_BACKOFF_S, Allocation, JobSpec, Node, Phase, Plan
from fairlead.core.usage import Ledger

WHOLE = Allocation.of({"n0": range(4)})


def state_with(*specs: JobSpec) -> State:
    state = State()
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    for spec in specs:
        state.apply(JobSubmitted(0.0, spec))
    return state


def run(state: State, job_id: str, at: float = 1.0) -> None:
    attempt = state.live[job_id].attempt + 1
    state.issue(Start(at, job_id, attempt, Allocation.of({"n0": [0]})))
    state.apply(JobStarted(at, job_id, attempt))


def test_a_job_on_hold_is_not_for_the_policy_until_it_is_let_go() -> None:
    state = state_with(JobSpec(id="a"), JobSpec(id="b"))
    assert state.apply(JobHeld(1.0, "a"))
    assert not state.apply(JobHeld(1.0, "a"))
    assert list(state.snapshot().jobs) == ["b"]
    with pytest.raises(InvalidTransition, match="may not run now"):
        state.issue(Start(2.0, "a", 1, WHOLE))
    assert state.apply(JobHeld(2.0, "a", on_hold=False))
    assert list(state.snapshot().jobs) == ["a", "b"]  # it keeps its place in the line
    assert state.snapshot().columns.ids == ("a", "b")


@pytest.mark.parametrize(("in_place", "command"), [(True, Resize(2.0, "a", 1, NOTHING)), (False, Stop(2.0, "a", 1))])
def test_a_running_job_that_is_put_on_hold_gives_up_its_gpus(in_place: bool, command: Resize | Stop) -> None:
    state = state_with(JobSpec(id="a", in_place=in_place, preemptible=False))
    run(state, "a")
    state.apply(JobHeld(2.0, "a"))
    plan = Plan()
    assert not state.follows(plan)
    view = state.snapshot()
    assert [job.id for job in view.barred] == ["a"]
    assert reconcile(view, plan, changes(view, plan)) == [command]


@pytest.mark.parametrize("in_place", [True, False])
def test_one_that_only_starts_is_stopped(in_place: bool) -> None:
    state = state_with(JobSpec(id="a", in_place=in_place))
    state.issue(Start(1.0, "a", 1, Allocation.of({"n0": [0]})))
    state.apply(JobHeld(2.0, "a"))
    assert not state.follows(Plan())
    view = state.snapshot()
    assert reconcile(view, Plan(), []) == [Stop(2.0, "a", 1)]
    state.issue(Stop(2.0, "a", 1))
    assert reconcile(state.snapshot(), Plan(), []) == []


def test_a_suspended_job_on_hold_needs_nothing_more() -> None:
    state = state_with(JobSpec(id="a", in_place=True))
    run(state, "a")
    state.apply(JobHeld(2.0, "a"))
    state.issue(Resize(2.0, "a", 1, NOTHING))
    state.apply(JobRescaled(3.0, "a", 1))
    view = state.snapshot()
    assert state.follows(Plan())
    assert reconcile(view, Plan(), changes(view, Plan())) == []
    state.apply(JobHeld(4.0, "a", on_hold=False))
    assert list(state.snapshot().jobs) == ["a"]


def test_a_job_waits_until_all_it_depends_on_have_succeeded() -> None:
    state = state_with(JobSpec(id="a"), JobSpec(id="b"), JobSpec(id="c", depends_on=("a", "b")), JobSpec(id="d"))
    assert list(state.snapshot().jobs) == ["a", "b", "d"]
    for place, job_id in enumerate(("a", "b")):
        assert state.live["c"].waits_for == ("a", "b")[place:]
        run(state, job_id)
        state.apply(JobExited(2.0, job_id, 1))
    assert list(state.snapshot().jobs) == ["c", "d"]
    state.apply(JobSubmitted(3.0, JobSpec(id="e", depends_on=("a",))))
    assert "e" in state.snapshot().jobs


@pytest.mark.parametrize("fate", ["failed", "unknown"])
def test_nobody_can_depend_on_a_job_that_will_never_succeed(fate: str) -> None:
    state = state_with(JobSpec(id="failed", max_restarts=0))
    run(state, "failed")
    state.apply(JobExited(2.0, "failed", 1, code=1))
    with pytest.raises(InvalidTransition, match="depends on job"):
        state.apply(JobSubmitted(3.0, JobSpec(id="b", depends_on=(fate,))))
    assert state.job("b") is None


def test_a_failed_job_is_tried_again_after_a_while_that_doubles() -> None:
    state = state_with(JobSpec(id="a", backoff_s=20.0, max_restarts=9), JobSpec(id="b"))
    run(state, "a")
    state.apply(JobExited(2.0, "a", 1, code=3, detail="out of luck", last_line="no luck"))
    job = state.live["a"]
    assert (job.phase, job.not_before, job.exit_code, job.detail) == (Phase.PENDING, 22.0, 3, "out of luck")
    assert job.last_line == "no luck"
    assert (list(state.snapshot().jobs), state.wakes_at) == (["b"], 22.0)
    assert Cadence().next(state.now, Plan(), state.wakes_at) == 22.0
    state.apply(Tick(22.0))
    assert (list(state.snapshot().jobs), state.wakes_at) == (["a", "b"], math.inf)
    run(state, "a", at=23.0)
    state.apply(JobExited(24.0, "a", 2, code=3))
    assert state.live["a"].not_before == 64.0


def test_a_short_back_off_is_spent_on_the_gpus_of_the_next_attempt() -> None:
    state = state_with(JobSpec(id="a", backoff_s=SHORT_BACKOFF_S, max_restarts=9), JobSpec(id="b"))
    run(state, "a")
    state.apply(JobExited(2.0, "a", 1, code=3))
    assert (list(state.snapshot().jobs), state.wakes_at) == (["a", "b"], math.inf)
    state.issue(Start(2.0, "a", 2, Allocation.of({"n0": [0]})))
    assert (state.live["a"].phase, state.live["a"].not_before) == (Phase.STARTING, 12.0)
    assert "a" in state.snapshot().allocations
    state.apply(JobStarted(15.0, "a", 2))
    assert state.live["a"].start_s == 3.0  # of its start, and not of its wait
    state.apply(JobExited(16.0, "a", 2, code=3))  # twice as long, which is too long to keep GPUs for
    assert (list(state.snapshot().jobs), state.wakes_at) == (["b"], 36.0)


@pytest.mark.parametrize(
    ("spec", "event", "phase"),
    [
        (JobSpec(id="a", restart_on=(7,)), JobExited(2.0, "a", 1, code=7), Phase.PENDING),
        (JobSpec(id="a", restart_on=(7,)), JobExited(2.0, "a", 1, code=1), Phase.FAILED),
        (JobSpec(id="a"), JobExited(2.0, "a", 1, code=1, final=True), Phase.FAILED),
        (JobSpec(id="a", restart_on=(7,)), JobExited(2.0, "a", 1, code=143), Phase.PENDING),
    ],
)
def test_only_some_failures_are_tried_again(spec: JobSpec, event: JobExited, phase: Phase) -> None:
    state = state_with(spec)
    run(state, "a")
    state.apply(event)
    job = state.job("a")
    assert job is not None
    assert job.phase is phase


def test_a_new_priority_is_seen_in_the_columns() -> None:
    state = state_with(JobSpec(id="a"), JobSpec(id="b"))
    state.apply(JobReprioritised(1.0, "b", 5))
    assert state.snapshot().columns.priority_J.tolist() == [0.0, 5.0]
    assert not state.apply(JobReprioritised(1.0, "b", 5))


def test_a_drained_node_knows_by_when() -> None:
    state = state_with()
    assert state.apply(NodeDrained(1.0, "n0", by=60.0))
    assert (state.nodes["n0"].draining, state.nodes["n0"].drain_by) == (True, 60.0)
    assert state.apply(NodeDrained(2.0, "n0", draining=False))
    assert state.nodes["n0"] == Node("n0", 4)


def test_only_the_last_finished_jobs_are_kept() -> None:
    state = State(keep_finished=2)
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    for name in "abc":
        state.apply(JobSubmitted(0.0, JobSpec(id=name)))
        run(state, name)
        state.apply(JobExited(2.0, name, 1))
    assert list(state.finished) == ["b", "c"]
    assert State.of(state.facts()) == state


def test_use_is_counted_by_queue_and_tenant_and_fades() -> None:
    state = State(half_life_s=100.0)
    state.apply(NodeJoined(0.0, Node("n0", 4)))
    state.apply(JobSubmitted(0.0, JobSpec(id="a", gpus=4, tenant="ann", queue="q")))
    state.issue(Start(0.0, "a", 1, WHOLE))
    state.apply(JobStarted(0.0, "a", 1))
    state.apply(Tick(100.0))
    running = state.snapshot().usage["q", "ann"]
    assert running == pytest.approx(4 * 100.0 / math.log(2.0) * 0.5)
    state.apply(JobExited(100.0, "a", 1))
    assert state.snapshot().usage["q", "ann"] == pytest.approx(running)
    state.apply(Tick(200.0))
    assert state.snapshot().usage["q", "ann"] == pytest.approx(running / 2)


def test_use_counted_in_pieces_is_use_counted_at_once() -> None:
    whole, pieces, spec = Ledger(50.0), Ledger(50.0), JobSpec(id="a")
    whole.add(spec, 3, 0.0, 90.0)
    for since in range(0, 90, 30):
        pieces.add(spec, 3, float(since), since + 30.0)
    assert pieces.at(90.0, ()) == pytest.approx(whole.at(90.0, ()))
    assert replace(whole).entries is whole.entries
    assert whole.copy().entries is not whole.entries


def test_a_job_that_trains_on_while_it_changes_its_gpus_is_served() -> None:
    state = state_with(JobSpec(id="a", gpus_max=4, in_place=True))
    run(state, "a", at=0.0)
    state.apply(JobReported(10.0, "a", 1, 0.1))
    state.issue(Resize(10.0, "a", 1, WHOLE))
    state.apply(JobReported(14.0, "a", 1, 0.1))  # it stands still
    assert state.live["a"].run_s == 10.0
    state.apply(JobReported(20.0, "a", 1, 0.2))
    assert (state.live["a"].run_s, state.live["a"].service_gpu_s) == (16.0, 16.0)  # on the one GPU it had
    state.apply(JobRescaled(21.0, "a", 1))
    state.apply(JobReported(31.0, "a", 1, 0.6))
    assert (state.live["a"].run_s, state.live["a"].service_gpu_s) == (26.0, 56.0)
