"""The policy gavel: what it reads from a snapshot, serves, remembers and explains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

import fairlead
from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import Remember
from fairlead.core.snapshot import Snapshot
from fairlead.plugins import make_policy
from fairlead.policies.gavel import Gavel, GavelOracle
from fairlead.policies.gavel.inputs import Inputs
from fairlead.policies.gavel.problem import Concession, Shares
from fairlead.testing import check_policy
from fairlead.testing.scenario import job, make_state, make_view


def seconds_left(view: Snapshot, **left_s: float) -> Snapshot:
    return replace(view, oracle=lambda job_id: left_s.get(job_id, 100.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "objective=finish-time-fairness",
        "objective=hierarchical,entities=queue",
        "objective=cost-slo",
        "objective=nash,discount=strategy-proof",
        "objective=sjf,leftovers=keep",
        "objective=makespan,heterogeneity=agnostic",
        "objective=max-sum-throughput,unit=relative,partitions=2",
        "sharing=pairs",
        "mechanism=gavel",
    ],
)
def test_every_objective_keeps_the_contract(options: str) -> None:
    check_policy(make_policy(f"gavel:{options}"), examples=10)


def test_a_job_is_told_the_share_that_it_is_owed_and_what_it_received() -> None:
    view = make_view("1x1", [job("a", 1), job("b", 1)])
    reasons = Gavel().plan(view).reasons
    for name in ("a", "b"):
        assert reasons[name].numbers["owed"] == pytest.approx(0.5, abs=1e-6)
        assert reasons[name].numbers["received"] == 0.0
        assert "owed 50% of the time, has had 0%" in reasons[name].text


def test_a_plan_that_is_optimal_says_so() -> None:
    view = make_view("1x2", [job("a", 1), job("b", 1), job("c", 1)])
    assert Gavel().plan(view).bound == 0.0
    assert Gavel(objective="fifo").plan(view).bound is None


def test_fifo_that_takes_all_types_for_equal_needs_no_rounds_once_the_jobs_in_front_run() -> None:
    agnostic = Gavel(objective="fifo", heterogeneity="agnostic", leftovers="keep")
    waiting = [job("a", 1), job("b", 1), job("c", 1)]
    assert agnostic.plan(make_view("1x2", waiting)).review_at == math.inf
    assert Gavel(objective="fifo", leftovers="keep").plan(make_view("1x2", waiting)).review_at == 360.0
    assert Gavel(heterogeneity="agnostic").plan(make_view("1x2", waiting)).review_at == 360.0
    # In the middle of a round a job of no claim holds the GPUs of one that has a claim: the round's end matters.
    begun = agnostic.plan(make_view("1x2", [job("late", 1, submitted_at=5.0)], now=5.0))
    blocked = [job("wide", 2, submitted_at=0.0), job("late", 1, on="n0[0]", submitted_at=5.0)]
    plan = agnostic.plan(replace(make_view("1x2", blocked, now=50.0), memo=begun.memo))
    assert "wide" not in plan.allocations
    assert plan.review_at == 365.0


def test_finish_time_fairness_remembers_what_isolation_would_have_taken() -> None:
    """Two jobs on two GPUs: alone with half of the cluster each runs at full rate. 60 s of work done are 60 s."""
    policy = GavelOracle(objective="finish-time-fairness", round_s=60.0)
    jobs = [job("a", 1, on="n0[0]"), job("b", 1, on="n0[1]")]
    first = policy.plan(seconds_left(make_view("1x2", jobs, now=10.0), a=1000.0, b=1000.0))
    assert first.memo["gavel"]["isolated"]["a"] == pytest.approx([0.0, 1000.0, 1.0])
    state = make_state("1x2", jobs, now=70.0)
    state.issue(Remember(70.0, first.memo))
    later = policy.plan(seconds_left(state.snapshot(), a=940.0, b=1000.0))
    assert later.memo["gavel"]["isolated"]["a"] == pytest.approx([60.0, 940.0, 1.0])
    assert later.memo["gavel"]["isolated"]["b"] == pytest.approx([0.0, 1000.0, 1.0])


def test_within_a_round_shares_stay_in_force_until_a_job_comes() -> None:
    jobs = [job("a", 1, on="n0[0]"), job("b", 1)]
    first = Gavel().plan(make_view("1x1", jobs, now=10.0))
    same, more = make_state("1x1", jobs, now=70.0), make_state("1x1", [*jobs, job("c", 1)], now=70.0)
    for state in (same, more):
        state.issue(Remember(70.0, first.memo))
    assert Gavel().plan(same.snapshot()).memo["gavel"] == first.memo["gavel"]
    owed = Gavel().plan(more.snapshot()).memo["rounds"]["owed"]
    assert {name: sum(by_type.values()) for name, by_type in owed.items()} == pytest.approx(
        {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=1e-6
    )


def test_a_job_that_may_not_be_preempted_keeps_its_gpus_and_the_others_share_the_rest() -> None:
    view = make_view("1x2", [job("kept", 1, on="n0[0]", preemptible=False), job("a", 1), job("b", 1)])
    plan = Gavel().plan(view)
    assert plan.allocations["kept"] == view.jobs["kept"].allocation
    assert plan.reasons["a"].numbers["owed"] == pytest.approx(0.5, abs=1e-6)


def test_deadlines_that_are_given_up_are_named_in_the_memory_of_the_plan() -> None:
    jobs = [job("early", 1, deadline=150.0), job("late", 1, deadline=160.0)]
    plan = GavelOracle(objective="cost-slo").plan(seconds_left(make_view("1x1", jobs), early=100.0, late=100.0))
    assert plan.memo["gavel"]["dropped"] == {"late": pytest.approx(100.0)}


def test_a_job_whose_deadline_is_given_up_is_told_so_and_it_is_kept_once_the_earlier_one_is_gone() -> None:
    policy = GavelOracle(objective="cost-slo")
    jobs = [job("early", 1, deadline=150.0), job("late", 1, deadline=160.0), job("hopeless", 1, deadline=50.0)]
    left = {"early": 100.0, "late": 100.0, "hopeless": 100.0}
    reasons = policy.plan(seconds_left(make_view("1x1", jobs), **left)).reasons
    assert "its deadline in 160 s is given up: there are too few GPUs to keep it as well as" in reasons["late"].text
    assert (reasons["late"].numbers["deadline_in_s"], reasons["late"].numbers["least_s"]) == pytest.approx(
        (160.0, 100.0)
    )
    assert "its deadline in 50 s is given up: with the GPUs that suit it best" in reasons["hopeless"].text
    assert "given up" not in reasons["early"].text
    assert "least_s" not in reasons["early"].numbers
    # What the reasons name, done: without the earlier deadline, and with one that can be kept.
    jobs = [job("late", 1, deadline=160.0), job("hopeless", 1, deadline=5e3)]
    reasons = policy.plan(seconds_left(make_view("1x1", jobs), **left)).reasons
    assert not any("given up" in reason.text for reason in reasons.values())


def test_a_deadline_that_was_given_up_is_told_as_long_as_the_shares_are_in_force() -> None:
    policy = GavelOracle(objective="cost-slo")
    jobs = [job("early", 1, deadline=150.0, on="n0[0]"), job("late", 1, deadline=160.0)]
    first = policy.plan(seconds_left(make_view("1x1", jobs), early=100.0, late=100.0))
    state = make_state("1x1", jobs, now=30.0)
    state.issue(Remember(30.0, first.memo))
    later = policy.plan(seconds_left(state.snapshot(), early=70.0, late=100.0))
    assert "its deadline in 130 s is given up" in later.reasons["late"].text


def test_what_the_whole_plan_had_to_give_up_is_told_to_every_job() -> None:
    @dataclass(frozen=True)
    class Hard(Gavel):
        def shares(self, inputs: Inputs) -> Shares:
            return replace(super().shares(inputs), notes=(Concession.NO_WELFARE,))

    plan = Hard(objective="nash").plan(make_view("1x1", [job("a", 1), job("b", 1)]))
    assert plan.memo["gavel"]["notes"] == ["no-welfare"]
    for reason in plan.reasons.values():
        assert "; the numbers are too uneven for Nash welfare: shares are by max-min fairness instead (" in reason.text
        assert reason.numbers["no_welfare"] == 1.0


def test_the_shortest_job_runs_first() -> None:
    view = seconds_left(make_view("1x1", [job("long", 1), job("short", 1)]), long=900.0, short=9.0)
    assert list(GavelOracle(objective="sjf").plan(view).allocations) == ["short"]


def test_pairs_need_a_world_that_packs_and_nothing_else_does() -> None:
    assert needs_of(Gavel()) == frozenset()
    assert needs_of(Gavel(sharing="pairs")) == {Capability.PACKING}
    assert needs_of(GavelOracle(sharing="pairs")) == {Capability.PACKING, Capability.ORACLE}


@pytest.mark.parametrize(
    "options", ["objective=best", "sharing=all", "partitions=0", "entity_weights=a=-1", "round_s=0", "unit=epochs"]
)
def test_an_option_that_cannot_be_meant_is_refused(options: str) -> None:
    with pytest.raises(InvalidSpec):
        make_policy(f"gavel:{options}")


@pytest.mark.parametrize(("objective", "solved"), [("max-min", 1), ("nash", 1), ("finish-time-fairness", 3)])
def test_shares_that_rest_on_what_has_not_changed_are_not_solved_again(objective: str, solved: int) -> None:
    calls = []

    @dataclass(frozen=True)
    class Counted(Gavel):
        def shares(self, inputs: Inputs) -> Shares:
            calls.append(len(inputs.jobs))
            return super().shares(inputs)

    jobs = [job("a", 4, estimate_s=9e3), job("b", 4, estimate_s=9e3)]
    memo: Any = {}
    for at in (0.0, 360.0, 720.0):
        memo = Counted(objective=objective).plan(replace(make_view("1x4", jobs, now=at), memo=memo)).memo
    assert len(calls) == solved
    more = [*jobs, job("c", 4, estimate_s=9e3, submitted_at=720.0)]
    Counted(objective=objective).plan(replace(make_view("1x4", more, now=1080.0), memo=memo))
    assert calls[solved:] == [3], "and with another job they are"


def test_a_plan_that_gives_something_up_is_one_that_the_loop_can_carry_out() -> None:
    """Through the loop, which checks plans and writes their memory down: a word of an enumeration is no plain text."""
    late = [{"id": f"j{n}", "submit_s": 0.0, "duration_s": 1000.0, "gpus": 1, "deadline_s": 100.0} for n in range(3)]
    result = fairlead.simulate(late, "gavel:objective=cost-slo", cluster="a=1x1@1,b=1x1@2")
    assert result.measured.summary.completed == 3


def test_in_parts_a_job_is_owed_something_on_a_type_that_no_part_would_have_enough_of() -> None:
    wide = job("x", 2, gpu_types=("b",))
    small = [job(f"s{number}", 1, gpu_types=("b",)) for number in range(6)]
    plan = make_policy("gavel:partitions=2").plan(make_view("a=2x8,b=1x2", [wide, *small], now=10.0))
    assert plan.reasons["x"].numbers["owed"] > 0.0
