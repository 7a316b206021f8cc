"""The emptiest nodes first, and Tiresias by the rules of Pollux's artifact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Phase
from fairlead.plugins import make_policy
from fairlead.policies.spreading import spread, take_emptiest
from fairlead.policies.tiresias import Tiresias
from fairlead.testing import Scenario, check_policy, job, make_view, placement
from fairlead.testing.scenario import allocation


def test_gpus_come_from_the_node_with_the_most_free_again_and_again() -> None:
    free_N = np.array([1, 3, 4, 3])
    assert take_emptiest(free_N, 8) == {2: 4, 1: 3, 3: 1}
    assert free_N.tolist() == [1, 0, 0, 2]
    assert take_emptiest(free_N, 0) == {}


def test_those_who_start_are_spread_in_the_order_given_and_those_who_stay_are_left_alone() -> None:
    jobs = [job("stays", 1, on="n1[0]"), job("goes", 2, on="n0[0,1]"), job("x", 2), job("y", 3)]
    view = make_view("2x4", jobs, now=1.0)
    tight = {name: allocation(on) for name, on in (("stays", "n1[0]"), ("x", "n1[1,2]"), ("y", "n0[0,1,2]"))}
    assert {k: str(v) for k, v in spread(view, tight, ["x", "y"]).items()} == {
        "stays": "n1[0]",
        "x": "n0[0,1]",
        "y": "n1[1,2,3]",
    }


def test_a_type_is_never_mixed() -> None:
    view = make_view("v100=1x2,t4=2x2", [job("x", 2), job("y", 1)])
    tight = {"x": allocation("n1[0,1]"), "y": allocation("n0[0]")}
    assert {k: str(v) for k, v in spread(view, tight, ["x", "y"]).items()} == {"x": "n1[0,1]", "y": "n0[0]"}


# -- tiresias --------------------------------------------------------------------------------------------------------


def test_tiresias_can_put_jobs_on_the_emptiest_nodes() -> None:
    jobs = [job("runs", 2, on="n0[0,1]"), job("new", 2, submitted_at=1.0)]
    Scenario(nodes="2x4", jobs=jobs, now=1.0, expected={"runs": 2, "new": "n0[2,3]"}).check(Tiresias())
    Scenario(nodes="2x4", jobs=jobs, now=1.0, expected={"runs": 2, "new": "n1[0,1]"}).check(Tiresias(placing="spread"))


def test_by_entry_who_came_first_takes_the_gpus_of_who_runs() -> None:
    jobs = [job("early", 4), job("runs", 4, submitted_at=10.0, on="n0[0,1,2,3]")]
    Scenario(nodes="1x4", jobs=jobs, now=11.0, expected={"early": 4}).check(Tiresias(within="entry"))


def test_by_entry_a_lower_queue_goes_in_the_order_in_which_falls_were_noticed() -> None:
    jobs = [job("first", 1, on="n0[0]"), job("second", 2, on="n0[1,2]"), job("new", 1, submitted_at=60.0)]
    policy, forgetful = (Tiresias(thresholds=(100.0,), within="entry") for _ in range(2))
    memo = policy.plan(make_view("1x3", jobs, now=60.0)).memo  # `second` has fallen
    at_120 = make_view("1x3", jobs, now=120.0)  # and now `first`
    assert placement(policy.plan(replace(at_120, memo=memo))).keys() == {"new", "second"}
    assert placement(forgetful.plan(at_120)).keys() == {"new", "first"}


@pytest.mark.parametrize(("service", "runs"), [("run", "old"), ("held", "new")])
def test_starting_up_counts_as_service_if_wanted(service: str, runs: str) -> None:
    old = job("old", 4, on="n0[0,1,2,3]", phase=Phase.STARTING)
    jobs = [old, job("new", 4, submitted_at=90.0)]
    policy = Tiresias(thresholds=(200.0,), service=service)
    plan = Scenario(nodes="1x4", jobs=jobs, now=100.0, expected={runs: 4}).check(policy)
    assert plan.reasons["old"].numbers["service_gpu_s"] == (400.0 if service == "held" else 0.0)


@pytest.mark.parametrize("option", ["within", "service", "placing"])
def test_an_option_that_is_not_one_of_the_choices_is_refused(option: str) -> None:
    with pytest.raises(InvalidSpec, match=f"tiresias: {option} is 'x'; expected "):
        make_policy(f"tiresias:{option}=x")


@pytest.mark.parametrize("options", ["within=entry,promote=2", "placing=spread", "thresholds=60/600,placing=spread"])
@pytest.mark.parametrize("service", ["run", "held"])
def test_with_any_of_them_it_keeps_the_contract(options: str, service: str) -> None:
    check_policy(make_policy(f"tiresias:{options},service={service}"), examples=20)
