"""Least attained service: who falls, who goes first within a queue, who is promoted, when to ask again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import GivenJob, Scenario, job, make_view, placement

ONE_QUEUE = Tiresias(thresholds=(1e9,))


def test_everyone_begins_in_the_first_queue_in_order_of_arrival() -> None:
    jobs = [job("a", 2), job("b", 2), job("c", 2)]
    plan = Scenario(nodes="1x4", jobs=jobs, expected={"a": 2, "b": 2}).check(Tiresias())
    assert plan.reasons["c"].numbers["queue"] == 1


@pytest.mark.parametrize(("now", "runs"), [(812.0, "old"), (812.5, "new"), (900.0, "new")])
def test_a_job_falls_when_gpus_times_time_reaches_the_threshold(now: float, runs: str) -> None:
    jobs = [job("old", 4, on="n0[0,1,2,3]"), job("new", 4, submitted_at=800.0)]  # 4 GPUs x 812.5 s = 3250 GPU-s
    plan = Scenario(nodes="1x4", jobs=jobs, now=now, expected={runs: 4}).check(Tiresias())
    assert plan.reasons["old"].numbers == pytest.approx(
        {**plan.reasons["old"].numbers, "queue": 1 if now < 812.5 else 2, "service_gpu_s": 4 * now}
    )


def test_a_job_falls_through_every_queue_to_the_last() -> None:
    jobs = [job("old", 1, on="n0[0]"), job("new", 1, submitted_at=1e6)]
    plan = Tiresias(thresholds=(10.0, 20.0, 30.0)).plan(make_view("1x1", jobs, now=1e6))
    assert plan.reasons["old"].numbers["queue"] == 4
    assert "queue 4 of 4 after 1000000 GPU-s" in plan.reasons["old"].text


def test_lower_queues_get_what_higher_ones_leave() -> None:
    jobs = [job("fallen", 3, on="n0[0,1,2]"), job("wide", 3, submitted_at=5000.0), job("one", 1, submitted_at=5000.0)]
    Scenario(nodes="1x4", jobs=jobs, now=5000.0, expected={"wide": 3, "one": 1}).check(Tiresias())


def test_a_job_that_does_not_fit_is_skipped() -> None:
    jobs = [job("runs", 2, on="n0[0,1]"), job("wide", 4, submitted_at=1.0), job("pair", 2, submitted_at=2.0)]
    Scenario(nodes="1x4", jobs=jobs, now=3.0, expected={"runs": "n0[0,1]", "pair": "n0[2,3]"}).check(ONE_QUEUE)


def test_within_a_queue_whoever_runs_goes_on() -> None:
    jobs = [job("early", 4), job("runs", 4, submitted_at=10.0, on="n0[0,1,2,3]")]
    Scenario(nodes="1x4", jobs=jobs, now=11.0, expected={"runs": 4}).check(ONE_QUEUE)


@pytest.mark.parametrize("first", ["x", "y"])
def test_of_those_who_run_in_a_queue_the_one_that_has_run_there_longest_stays(first: str) -> None:
    second = "xy".replace(first, "")
    began = {first: 0.0, second: 50.0}
    jobs = [job(name, 2, submitted_at=began[name], on=on) for name, on in (("x", "n0[0,1]"), ("y", "n0[2,3]"))]
    jobs.append(job("new", 2, submitted_at=500.0))  # in the first queue, the others have fallen into the second
    Scenario(nodes="1x4", jobs=jobs, now=500.0, expected={"new": 2, first: 2}).check(Tiresias(thresholds=(100.0,)))


def test_those_pushed_out_go_before_those_who_never_ran_in_the_queue() -> None:
    jobs = [job("fresh", 1), job("pushed", 1, submitted_at=1.0, stints=[("n0[0]", 1.0, 10.0)])]
    Scenario(nodes="1x1", jobs=jobs, now=20.0, expected={"pushed": 1}).check(ONE_QUEUE)


def test_of_those_pushed_out_the_latest_goes_first() -> None:
    jobs = [job("before", 1, stints=[("n0[0]", 0.0, 10.0)]), job("later", 1, stints=[("n0[0]", 10.0, 20.0)])]
    Scenario(nodes="1x1", jobs=jobs, now=30.0, expected={"later": 1}).check(ONE_QUEUE)


def test_those_who_fell_and_never_ran_in_the_queue_go_in_order_of_falling() -> None:
    later = job("fell-later", 1, stints=[("n0[1]", 50.0, 150.0)])  # arrived first
    sooner = job("fell-sooner", 1, stints=[("n0[0]", 0.0, 100.0)])
    blocker = job("blocker", 1, submitted_at=200.0)
    expected = {"blocker": 1, "fell-sooner": 1}
    policy = Tiresias(thresholds=(100.0,))
    Scenario(nodes="1x2", jobs=[later, sooner, blocker], now=200.0, expected=expected).check(policy)


def test_a_job_that_falls_goes_behind_those_who_wait_for_the_queue_it_falls_into() -> None:
    waits = job("waits", 1, submitted_at=5.0, stints=[("n0[0]", 5.0, 105.0)])
    falls = job("falls", 1, stints=[("n0[0]", 105.0, None)])
    policy = Tiresias(thresholds=(100.0,))
    Scenario(nodes="1x1", jobs=[falls, waits], now=204.0, expected={"falls": 1}).check(policy)
    Scenario(nodes="1x1", jobs=[falls, waits], now=205.0, expected={"waits": 1}).check(policy)


# -- when to ask again ---------------------------------------------------------------------------------------------


def test_it_asks_again_when_the_next_running_job_falls() -> None:
    jobs = [job("four", 4, on="n0[0,1,2,3]"), job("two", 2, on="n1[0,1]"), job("waits", 4)]
    assert Tiresias().plan(make_view("2x4", jobs, now=100.0)).review_at == pytest.approx(812.5)
    jobs = [job("four", 4, submitted_at=99.0, on="n0[0,1,2,3]"), *jobs[1:]]
    assert Tiresias().plan(make_view("2x4", jobs, now=100.0)).review_at == pytest.approx(99.0 + 812.5)


def test_it_need_not_be_asked_again_if_nobody_waits_or_nobody_can_fall() -> None:
    assert Tiresias().plan(make_view("1x4", [job("a", 4, on="n0[0,1,2,3]")], now=1.0)).review_at == math.inf
    jobs = [job("a", 4, on="n0[0,1,2,3]"), job("b", 4, stints=[("n0[0,1,2,3]", 0.0, 1e5)])]
    assert Tiresias().plan(make_view("1x4", jobs, now=1e6)).review_at == math.inf


# -- promotion -----------------------------------------------------------------------------------------------------

#: `waits` ran 100 s and fell into the last queue; `runs` has fallen there too, and runs since.
PROMOTED_AT_300 = [job("waits", 1, stints=[("n0[0]", 0.0, 100.0)]), job("runs", 1, stints=[("n0[0]", 100.0, None)])]


@pytest.mark.parametrize(
    ("promote", "now", "runs"), [(0.0, 1e6, "runs"), (2.0, 299.0, "runs"), (2.0, 300.0, "waits"), (8.0, 300.0, "runs")]
)
def test_a_job_that_waited_long_enough_starts_again_in_the_first_queue(promote: float, now: float, runs: str) -> None:
    policy = Tiresias(thresholds=(50.0,), promote=promote)
    Scenario(nodes="1x1", jobs=PROMOTED_AT_300, now=now, expected={runs: 1}).check(policy)


def test_it_asks_again_when_the_next_job_is_promoted() -> None:
    policy = Tiresias(thresholds=(50.0,), promote=2.0)
    assert policy.plan(make_view("1x1", PROMOTED_AT_300, now=200.0)).review_at == pytest.approx(300.0)


def test_a_promoted_job_is_served_as_if_it_were_new_and_falls_again() -> None:
    policy = Tiresias(thresholds=(50.0,), promote=2.0)
    plan = policy.plan(make_view("1x1", PROMOTED_AT_300, now=300.0))
    assert plan.reasons["waits"].numbers["service_gpu_s"] == 0.0
    resumed: list[GivenJob] = [
        job("waits", 1, stints=[("n0[0]", 0.0, 100.0), ("n0[0]", 300.0, None)]),
        job("runs", 1, stints=[("n0[0]", 100.0, 300.0)]),
    ]
    later = replace(make_view("1x1", resumed, now=340.0), memo=plan.memo)
    assert policy.plan(later).review_at == pytest.approx(350.0)
    assert placement(policy.plan(replace(later, now=351.0))) == {"waits": "n0[0]"}
    assert placement(Tiresias(thresholds=(50.0,)).plan(make_view("1x1", resumed, now=301.0))) == {"waits": "n0[0]"}


def test_a_job_that_waits_in_the_first_queue_is_not_promoted() -> None:
    runs = job("runs", 1, preemptible=False, stints=[("n0[0]", 10.0, None)])
    jobs = [job("waits", 1, stints=[("n0[0]", 0.0, 10.0)]), runs]
    policy = Tiresias(thresholds=(50.0,), promote=2.0)
    plan = policy.plan(make_view("1x1", jobs, now=1000.0))
    assert plan.reasons["waits"].numbers["service_gpu_s"] == 10.0


def test_a_promoted_job_is_not_passed_by_those_who_arrive_after_it() -> None:
    jobs = [PROMOTED_AT_300[0], job("newcomer", 1, submitted_at=310.0)]
    policy = Tiresias(thresholds=(50.0,), promote=2.0)
    Scenario(nodes="1x1", jobs=jobs, now=320.0, expected={"waits": 1}).check(policy)


def test_what_was_forgiven_is_forgotten_with_the_job() -> None:
    policy = Tiresias(thresholds=(50.0,), promote=2.0)
    memo = policy.plan(make_view("1x1", PROMOTED_AT_300, now=300.0)).memo
    assert memo["tiresias"]["forgiven"].keys() == {"waits"}
    later = replace(make_view("1x1", [job("a"), job("b")], now=400.0), memo=memo)
    assert policy.plan(later).memo == {}


def test_it_does_not_claim_to_be_free_of_starvation_because_it_is_not() -> None:
    """A large job that has never run is skipped in the first queue for ever if small ones keep coming."""
    assert not getattr(Tiresias(promote=1.0), "starvation_free", False)


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thresholds", [(0.0,), (-1.0,), (2.0, 1.0), (1.0, 1.0), (math.inf,), (math.nan,)])
def test_thresholds_are_positive_and_rise(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(InvalidSpec, match=r"thresholds are .* expected positive numbers that rise"):
        Tiresias(thresholds=thresholds)


@pytest.mark.parametrize("promote", [-1.0, math.inf, math.nan])
def test_promote_is_a_number_of_at_least_zero(promote: float) -> None:
    with pytest.raises(InvalidSpec, match=r"promote is .* expected a number of at least 0"):
        Tiresias(promote=promote)


def test_without_thresholds_there_is_one_queue() -> None:
    jobs = [job("a", 1, on="n0[0]"), job("b", 1)]
    plan = Scenario(nodes="1x1", jobs=jobs, now=1e6, expected={"a": 1}).check(Tiresias(thresholds=()))
    assert plan.review_at == math.inf
