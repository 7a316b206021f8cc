"""ByPriority: who matters more goes first, and the rest is the inner policy's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenants import sizes

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Phase, Plan
from fairlead.policies.even import Even
from fairlead.policies.fifo import Fifo
from fairlead.policies.middleware import ByPriority, Window
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.pilot import Pilot
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import check_policy, job, make_view
from fairlead.testing.history import History, histories


def test_jobs_of_one_priority_are_left_to_the_inner_policy() -> None:
    view = make_view("1x4", [job("a", 4, priority=3), job("b", 1, priority=3)])
    assert ByPriority(Fifo()).plan(view) == Fifo().plan(view)


def test_a_job_of_higher_priority_starts_before_those_that_came_earlier() -> None:
    view = make_view("1x4", [job("early", 4), job("late", 4, priority=1)])
    plan = ByPriority(Fifo()).plan(view)
    assert sizes(plan) == {"late": 4}
    assert plan.reasons["early"].code == "priority"
    assert plan.reasons["early"].text == (
        "waits: 1 job of higher priority than its 0 needs 4 of 4 GPUs in all, and this one needs 4"
    )


def test_a_running_job_makes_way_unless_it_must_not_be_preempted() -> None:
    for preemptible, expected in ((True, {"late": 4}), (False, {"early": 4})):
        running = job("early", 4, on="n0[0,1,2,3]", preemptible=preemptible)
        view = make_view("1x4", [running, job("late", 4, priority=1)], now=10.0)
        assert sizes(ByPriority(Fifo()).plan(view)) == expected


def test_whoever_fits_beside_higher_priorities_runs_too() -> None:
    view = make_view("1x4", [job("low", 1), job("high", 2, priority=5), job("lowest", 4, priority=-1)])
    assert sizes(ByPriority(Fifo()).plan(view)) == {"low": 1, "high": 2}


def test_earlier_jobs_of_lower_priority_do_not_take_what_a_higher_one_needs() -> None:
    jobs = [job("a", 2), job("b", 2), job("high", 2, priority=1)]
    assert sizes(ByPriority(Fifo()).plan(make_view("1x4", jobs))) == {"a": 2, "high": 2}
    running = [job("a", 2), job("b", 2, on="n0[0,1]"), job("high", 2, priority=1)]
    assert sizes(ByPriority(Fifo()).plan(make_view("1x4", running, now=9.0))) == {"b": 2, "high": 2}


def test_elastic_jobs_need_no_more_than_their_least() -> None:
    jobs = [job("low", 1), job("high", 1, gpus_min=1, gpus_max=4, in_place=True, priority=5)]
    assert sizes(ByPriority(Even()).plan(make_view("1x4", jobs))) == {"low": 1, "high": 3}


def test_a_job_that_can_never_fit_keeps_nobody_waiting() -> None:
    view = make_view("1x4", [job("low", 4), job("huge", 100, priority=9)])
    assert sizes(ByPriority(Tiresias()).plan(view)) == {"low": 4}


@pytest.mark.parametrize("inner", [Fifo(), Tiresias()])
def test_it_keeps_the_contract(inner: Fifo | Tiresias) -> None:
    check_policy(ByPriority(inner), examples=20)


def test_pilot_lets_others_run_while_one_can_never_fit() -> None:
    jobs = [job("huge", 100, submitted_at=0.0), job("a", 4, submitted_at=1.0)]
    view = make_view("1x4", jobs, now=100_000.0)
    assert sizes(Pilot().plan(view)) == {"a": 4}


def test_pilot_gives_more_to_whom_weighs_more() -> None:
    for heavy in "ab":
        jobs = [job(name, 1, weight=8.0 if name == heavy else 1.0) for name in "ab"]
        assert sizes(Pilot(floor=0.0).plan(make_view("1x1", jobs))) == {heavy: 1}


class Looking:
    """Remembers what it saw."""

    def __init__(self) -> None:
        self.views: list[Snapshot] = []

    def plan(self, view: Snapshot) -> Plan:
        self.views.append(view)
        return Fifo().plan(view)


def test_of_a_long_queue_the_first_jobs_are_seen_taking_turns_by_user() -> None:
    many = [job(f"a{place}", 1, tenant="ann") for place in range(300)]
    jobs = [*many, job("b", 1, tenant="bob"), job("urgent", 1, tenant="ann", priority=1)]
    looking = Looking()
    plan = Window(looking, most=3).plan(make_view("1x2", jobs))
    assert [list(view.jobs) for view in looking.views] == [["a0", "b", "urgent"]]
    assert sizes(plan) == {"a0": 1, "b": 1}
    assert plan.reasons["a1"].code == "far-back"
    assert plan.reasons["a1"].numbers == {"ahead": 3, "window": 3}
    assert plan.reasons["a299"].numbers["ahead"] == 301


def test_a_short_queue_is_seen_whole_and_whoever_runs_is_always_seen() -> None:
    jobs = [job("runs", 2, on="n0[0,1]"), *(job(f"w{place}", 1) for place in range(5))]
    view = make_view("1x2", jobs, now=5.0)
    assert Window(Fifo(), most=5).plan(view) == Fifo().plan(view)
    assert sizes(Window(Fifo(), most=1).plan(view)) == {"runs": 2}


@given(histories(), st.integers(1, 6))
def test_what_is_seen_through_a_window_is_what_one_by_one_would_find(history: History, most: int) -> None:
    for view in history.views():
        turns: Counter[tuple[int, str, str]] = Counter()
        waiting: list[tuple[int, bool, int, int, str]] = []
        for place, each in enumerate(view.jobs.values()):
            if not each.allocation:
                account = (each.spec.priority, each.spec.queue, each.spec.tenant)
                waiting.append((-each.spec.priority, each.phase is Phase.PENDING, turns[account], place, each.id))
                turns[account] += 1
        expected = imagined(view, hidden={job_id for *_, job_id in sorted(waiting)[most:]})
        looking = Looking()
        Window(looking, most=most).plan(view)
        (seen,) = looking.views
        assert list(seen.jobs.items()) == list(expected.jobs.items())
        assert seen.allocations == expected.allocations
        assert [job.id for job in seen.barred] == [job.id for job in expected.barred]
        assert seen.columns.ids == expected.columns.ids


def test_a_window_keeps_the_contract() -> None:
    check_policy(Window(Fifo(), most=2), examples=20)
