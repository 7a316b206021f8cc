"""From an order to a plan: compared with the same rule written as a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.messages import NodeDrained
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Phase, Plan
from fairlead.policies.filling import all_fit, run_first, start_waiting, waiting
from fairlead.testing import job, make_state, make_view
from fairlead.testing.history import History, histories


def view_of(sizes: list[int], running: int) -> Snapshot:
    """16 GPUs on 4 nodes; the first `running` jobs run, packed one after the other as far as they fit."""
    jobs, next_gpu = [], 0
    for place, gpus in enumerate(sizes):
        on = None
        if place < running and next_gpu + gpus <= 16:
            parts: dict[int, list[int]] = {}
            for gpu in range(next_gpu, next_gpu + gpus):
                parts.setdefault(gpu // 4, []).append(gpu % 4)
            on = " ".join(f"n{node}[{','.join(map(str, gpus_))}]" for node, gpus_ in parts.items())
            next_gpu += gpus
        jobs.append(job(f"j{place:02d}", gpus, on=on))
    return make_view("4x4", jobs)


SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=12)


@settings(deadline=None)
@given(SIZES, st.integers(0, 12), st.randoms(use_true_random=False))
def test_whoever_comes_first_and_fits_runs(sizes: list[int], running: int, random: object) -> None:
    view = view_of(sizes, running)
    order = list(range(len(sizes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    left, expected = 16, []
    for place in order:
        if sizes[place] <= left:
            left -= sizes[place]
            expected.append(place)
    allocations, chosen = run_first(view, np.array(order, dtype=np.int64))
    assert chosen.tolist() == expected
    assert set(allocations) == {f"j{place:02d}" for place in expected}
    for job_id, where in allocations.items():
        assert where == view.allocations.get(job_id, where), "whoever runs on stays where it is"


@settings(deadline=None)
@given(SIZES, st.integers(0, 12), st.booleans())
def test_waiting_jobs_start_in_order_until_one_does_not_fit_or_all_were_tried(
    sizes: list[int], running: int, skip: bool
) -> None:
    view = view_of(sizes, running)
    left = 16 - sum(where.total for where in view.allocations.values())
    expected = set(view.allocations)
    for name, gpus in ((f"j{place:02d}", gpus) for place, gpus in enumerate(sizes)):
        if name in view.allocations:
            continue
        if gpus <= left:
            left -= gpus
            expected.add(name)
        elif not skip:
            break
    assert set(start_waiting(view, waiting(view), skip=skip)) == expected


@settings(max_examples=60, deadline=None)
@given(histories())
def test_in_whatever_state_the_cluster_is_no_accepted_idle_gpus_are_left_to_a_waiting_job_that_fits(
    history: History,
) -> None:
    for view in history.views():
        allocations = start_waiting(view, waiting(view), skip=True)
        free: dict[str, int] = {}
        for node in view.nodes.values():
            used = sum(len(dict(where.shares).get(node.id, ())) for where in allocations.values())
            free[node.gpu_type] = free.get(node.gpu_type, 0) + (node.gpus - used if node.open else 0)
        for waits in (j for j in view.jobs.values() if j.id not in allocations):
            assert all(free.get(t, 0) < waits.spec.gpus for t in waits.spec.gpu_types or free)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_unpreemptible_come_before_everyone_in_any_order(history: History) -> None:
    for view in history.views():
        order = np.arange(len(view.jobs))[::-1]
        allocations, _ = run_first(view, order)
        kept = [j for j in view.jobs.values() if j.allocation and not j.spec.preemptible]
        assert all(allocations[j.id] == j.allocation for j in kept)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_both_ways_give_plans_that_can_be_carried_out(history: History) -> None:
    for view in history.views():
        for allocations in (
            start_waiting(view, waiting(view), skip=False),
            run_first(view, np.arange(len(view.jobs)))[0],
        ):
            plan = Plan(allocations)
            check(view, plan, changes(view, plan))


def test_all_fit_if_nobody_waits_or_there_is_room_for_everyone_who_does() -> None:
    assert all_fit(make_view("1x4")) == {}
    placed = all_fit(make_view("1x4", [job("a", 1, on="n0[0]"), job("b", 3)]))
    assert placed is not None
    assert {name: allocation.total for name, allocation in placed.items()} == {"a": 1, "b": 3}
    assert all_fit(make_view("1x4", [job("a", 1, on="n0[0]"), job("b", 3), job("c", 1)])) is None


def test_nobody_waits_in_an_empty_cluster_or_if_all_have_gpus() -> None:
    assert waiting(make_view("1x4")).tolist() == []
    assert waiting(make_view("1x4", [job("a", 1, on="n0[0]")])).tolist() == []
    assert waiting(make_view("1x4", [job("a", 1, on="n0[0]"), job("b"), job("c")])).tolist() == [1, 2]


def test_a_job_that_was_told_to_stop_waits() -> None:
    assert waiting(make_view("1x4", [job("a", 4, on="n0[0,1,2,3]", phase=Phase.STOPPING)], now=1.0)).tolist() == [0]


def test_nobody_is_preempted_for_gpus_that_a_newcomer_could_not_have() -> None:
    """b comes first but could not use the GPUs of a, whose node is draining."""
    for nodes in ("2x4", "2x4,k80=1x1"):
        state = make_state(nodes, [job("a", 4, on="n0[0,1,2,3]"), job("c", 4, on="n1[0,1,2,3]"), job("b", 4)])
        state.apply(NodeDrained(1.0, "n0"))
        view = state.snapshot()
        allocations, _ = run_first(view, np.array([2, 0, 1]))
        assert {name: str(allocation) for name, allocation in allocations.items()} == {
            "a": "n0[0,1,2,3]",
            "b": "n1[0,1,2,3]",
        }


def test_a_job_that_loses_its_gpus_moves_to_another_type_that_is_idle() -> None:
    """W accepts only the type that R is on; R accepts any."""
    jobs = [job("R", 4, on="n0[0,1,2,3]"), job("W", 2, gpu_types=("a",))]
    allocations, _ = run_first(make_view("a=1x4,b=1x4", jobs, now=1.0), np.array([1, 0]))
    assert {name: str(allocation) for name, allocation in allocations.items()} == {"R": "n1[0,1,2,3]", "W": "n0[0,1]"}
