"""A snapshot's arrays say what its jobs and nodes say, after any history, and still do when the state moves on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, Job, JobSpec, Node, Phase


def assert_columns_tell_the_jobs(view: Snapshot) -> None:
    """Compare with a rebuild that shares nothing with the one under test."""
    columns, jobs, now = view.columns, list(view.jobs.values()), view.now
    assert columns.ids == tuple(view.jobs)
    expected = {
        "gpus_J": [job.spec.gpus for job in jobs],
        "submitted_at_J": [job.submitted_at for job in jobs],
        "priority_J": [job.spec.priority for job in jobs],
        "preemptible_J": [job.spec.preemptible for job in jobs],
        "held_J": [job.allocation.total for job in jobs],
        "service_gpu_s_J": [job.service_at(now) for job in jobs],
        "run_s_J": [job.run_at(now) for job in jobs],
        "last_ran_at_J": [
            now if job.phase is Phase.RUNNING else -math.inf if job.last_ran_at is None else job.last_ran_at
            for job in jobs
        ],
        "since_J": [job.since for job in jobs],
        "estimate_s_J": [math.inf if job.spec.estimate_s is None else job.spec.estimate_s for job in jobs],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(columns, name), np.array(values, dtype=float), err_msg=name)
    assert [columns.demands[place] for place in columns.demand_J] == [(j.spec.gpus, j.spec.gpu_types) for j in jobs]


def assert_node_columns_tell_the_nodes(view: Snapshot) -> None:
    columns = view.node_columns
    assert columns.ids == tuple(view.nodes)
    taken = {(node, gpu) for allocation in view.allocations.values() for node, gpus in allocation for gpu in gpus}
    free = [node.gpus - sum(n == node.id for n, _ in taken) if node.open else 0 for node in view.nodes.values()]
    assert columns.free_N.tolist() == free
    assert [columns.gpu_types[kind] for kind in columns.type_N] == [node.gpu_type for node in view.nodes.values()]


def assert_masks_tell_the_jobs(view: Snapshot, live: list[Job]) -> None:
    assert view.allocations == {job.id: job.allocation for job in view.jobs.values() if job.allocation}
    for masks, allocations in [
        (view.assigned, list(view.allocations.values())),
        (view.held, [job.held for job in live]),
    ]:
        expected = dict.fromkeys(masks, 0)
        for allocation in allocations:
            for node, mask in allocation.masks:
                expected[node] |= mask
        assert dict(masks) == expected
    assert view.shared == (
        sum(a.total for a in view.allocations.values()) > sum(mask.bit_count() for mask in view.assigned.values())
    )


def frozen(view: Snapshot) -> str:
    return repr((view.now, list(view.jobs.items()), view.nodes, view.allocations, view.assigned, view.held))


def history(seed: int, steps: int) -> Iterator[State]:
    """A random life of a cluster, in which only what can happen happens; yields the one state after every message."""
    chance, state, jobs = random.Random(seed), State(), 0
    for place in range(chance.randint(1, 80)):
        state.apply(NodeJoined(0.0, Node(f"n{place}", chance.randint(1, 4), chance.choice(["old", "new"]))))
    for _ in range(steps):
        now = state.now + chance.choice([0.0, 0.5, 7.0])
        job = chance.choice([*state.live.values()]) if state.live else None
        node = chance.choice([*state.nodes.values()])
        some = Allocation.of({node.id: chance.sample(range(node.gpus), chance.randint(1, node.gpus))})
        kind = chance.random()
        if job is None or kind < 0.25:
            jobs += 1
            estimate_s = chance.choice([None, 60.0])
            state.apply(JobSubmitted(now, JobSpec(id=f"j{jobs}", gpus=chance.randint(1, 3), estimate_s=estimate_s)))
        elif kind < 0.28:
            state.apply(JobCancelled(now, job.id))
        elif kind < 0.30:
            state.apply(NodeLost(now, node.id))
        elif kind < 0.34:
            state.apply(NodeJoined(now, state.nodes[node.id] if node.healthy else Node(node.id, 2, "newer")))
        elif kind < 0.36:
            state.apply(NodeDrained(now, node.id, draining=chance.random() < 0.5))
        elif kind < 0.38:
            state.apply(Tick(now))
        else:
            _one_step(state, job, now, some if state.nodes[node.id].healthy else NOTHING, chance)
        yield state


def _one_step(state: State, job: Job, now: float, some: Allocation, chance: random.Random) -> None:
    match job.phase:
        case Phase.PENDING if some:
            state.issue(Start(now, job.id, job.attempt + 1, some))
        case Phase.STARTING:
            state.apply(JobStarted(now, job.id, job.attempt))
        case Phase.RUNNING if chance.random() < 0.5:
            state.issue(Resize(now, job.id, job.attempt, chance.choice([some, NOTHING])))
        case Phase.RUNNING:
            end = chance.choice([JobExited, JobStopped, Stop])(now, job.id, job.attempt)
            state.issue(end) if isinstance(end, Stop) else state.apply(end)
        case Phase.RESCALING:
            state.apply(JobReported(now, job.id, job.attempt, 0.5))
            state.apply(JobRescaled(now, job.id, job.attempt))
        case Phase.SUSPENDED:
            state.issue(Resize(now, job.id, job.attempt, some))
        case Phase.STOPPING:
            state.apply(JobStopped(now, job.id, job.attempt))


def assert_everything_agrees(view: Snapshot) -> None:
    assert_columns_tell_the_jobs(view)
    assert_node_columns_tell_the_nodes(view)


@pytest.mark.parametrize("seed", range(20))
def test_the_arrays_equal_a_rebuild_from_the_jobs_after_any_history(seed: int) -> None:
    for state in history(seed, steps=250):
        view = state.snapshot()
        assert_everything_agrees(view)
        assert_masks_tell_the_jobs(view, list(state.live.values()))
        assert list(view.jobs) == [job.id for job in state.live.values() if not job.cancelled]


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_stays_true_after_the_state_moved_on(seed: int) -> None:
    """Some have built their arrays at once, some build them only now."""
    taken: list[tuple[Snapshot, str]] = []
    for step, state in enumerate(history(seed, steps=300)):
        if step % 7 == 0:
            view = state.snapshot()
            taken.append((view, frozen(view)))
            if step % 2:
                assert view.columns is view.columns
                assert view.node_columns is view.node_columns
    for view, before in taken:
        assert frozen(view) == before
        assert_everything_agrees(view)


def test_the_table_grows_and_packs_while_hundreds_of_jobs_come_and_go() -> None:
    state, chance = State(), random.Random(1)
    state.apply(NodeJoined(0.0, Node("n0", 8)))
    for number in range(1000):
        state.apply(JobSubmitted(float(number), JobSpec(id=f"j{number}", gpus=1 + number % 5, priority=number)))
        most = 300 if number < 500 else 20  # first a crowd, then it thins out
        while len(state.live) > most:
            state.apply(JobCancelled(float(number), chance.choice(list(state.live))))
        if number % 50 == 0 or number > 990:
            assert_everything_agrees(state.snapshot())
    assert len(state.snapshot().columns.ids) == 20


def test_an_empty_state_has_empty_columns() -> None:
    view = State().snapshot()
    assert view.columns.ids == ()
    assert view.columns.gpus_J.shape == (0,)
    assert view.node_columns.free_N.shape == (0,)


def test_who_changes_the_arrays_of_one_snapshot_does_not_change_those_of_the_next() -> None:
    state = State()
    state.apply(NodeJoined(0.0, Node("n0", 8)))
    state.apply(JobSubmitted(0.0, JobSpec(id="a", gpus=2)))
    view = state.snapshot()
    view.columns.service_gpu_s_J[:] = 99.0
    view.columns.gpus_J[:] = 99.0
    view.node_columns.free_N[:] = 99
    view.node_columns.type_N[:] = 99
    assert_everything_agrees(state.snapshot())
