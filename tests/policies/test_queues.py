"""First come first served, backfill, and the policies that are nothing but an order: nodes and jobs in, places out."""

from __future__ import annotations

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.ranked import FewestGpus, ShortestRemainingGpuTimeOracle, ShortestRemainingTimeOracle
from fairlead.testing import Scenario, job, make_view

FULL = [job("a", 4, on="n0[0,1,2,3]"), job("b", 2, on="n1[0,1]")]


def test_fifo_starts_jobs_in_order_of_arrival_while_they_fit() -> None:
    jobs = [job("a", 4), job("b", 3), job("c", 1), job("d", 1)]
    expected = {"a": "n0[0,1,2,3]", "b": "n1[0,1,2]", "c": "n1[3]"}
    Scenario(nodes="2x4", jobs=jobs, expected=expected).check(Fifo())


def test_fifo_lets_nobody_pass_the_first_that_does_not_fit() -> None:
    jobs = [*FULL, job("large", 4), job("small", 1)]
    plan = Scenario(nodes="2x4", jobs=jobs, expected={"a": 4, "b": 2}).check(Fifo())
    assert (plan.reasons["large"].code, plan.reasons["small"].code) == ("waiting", "behind")
    assert plan.reasons["large"].text == (
        "needs 4 GPUs, 2 are free; job a holds 4 until it ends: it states no time limit and cannot shrink"
    )


def test_backfill_lets_whoever_fits_pass() -> None:
    jobs = [*FULL, job("large", 4), job("small", 1), job("pair", 2), job("last", 1)]
    expected = {"a": 4, "b": 2, "small": "n1[2]", "last": "n1[3]"}
    Scenario(nodes="2x4", jobs=jobs, expected=expected).check(Backfill())


@pytest.mark.parametrize("policy", [Fifo(), Backfill()])
def test_whoever_runs_stays_even_if_it_came_later(policy: Fifo | Backfill) -> None:
    jobs = [job("early", 4), job("late", 2, submitted_at=5.0, on="n0[2,3]")]
    Scenario(nodes="1x4", jobs=jobs, expected={"late": "n0[2,3]"}, now=9.0).check(policy)


def test_a_job_waits_for_gpus_of_a_type_it_accepts() -> None:
    jobs = [job("v", 4, gpu_types=("v100",)), job("any", 4), job("k", 1, gpu_types=("k80", "v100"))]
    expected = {"v": "n1[0,1,2,3]", "any": "n0[0,1,2,3]"}
    plan = Scenario(nodes="a100=1x4,v100=1x4", jobs=jobs, expected=expected).check(Backfill())
    assert plan.reasons["k"].numbers == {"needs": 1, "free": 0, "total": 4, "ahead": 0, "held_elsewhere": 4}


def test_a_job_is_never_spread_over_gpu_types() -> None:
    plan = Scenario(nodes="a100=1x4,v100=1x4", jobs=[job("wide", 8)], expected={}).check(Backfill())
    assert plan.reasons["wide"].code == "too-large"
    assert plan.reasons["wide"].text == "needs 8 GPUs; the nodes open to it have 4"


def test_a_job_larger_than_the_open_nodes_is_told_so() -> None:
    plan = Scenario(nodes="2x4", jobs=[job("wide", 8)], draining=["n1"], expected={}).check(Backfill())
    assert plan.reasons["wide"].code == "too-large"
    assert plan.reasons["wide"].text == (
        "needs 8 GPUs; the nodes open to it have 4; 4 more are on node n1, which drains"
    )


def test_lost_and_draining_nodes_get_nothing_new() -> None:
    jobs = [job("here", 1, on="n1[3]"), *(job(name, 2) for name in "abc")]
    expected = {"here": "n1[3]", "a": "n0[0,1]", "b": "n0[2,3]"}
    Scenario(nodes="3x4", jobs=jobs, draining=["n1"], lost=["n2"], expected=expected).check(Backfill())


def test_fewest_gpus_takes_gpus_from_larger_jobs() -> None:
    jobs = [job("wide", 4, on="n0[0,1,2,3]"), job("pair", 2), job("one", 1)]
    plan = Scenario(nodes="1x4", jobs=jobs, expected={"one": 1, "pair": 2}).check(FewestGpus())
    assert plan.reasons["wide"].code == "preempted"
    assert plan.reasons["wide"].text == (
        "gives its 4 GPUs to jobs that go first (fewest GPUs first): job one gets 1, job pair gets 2"
    )


def test_fewest_gpus_goes_by_arrival_among_equals() -> None:
    jobs = [job("first", 2), job("second", 2), job("third", 2)]
    Scenario(nodes="1x4", jobs=jobs, expected={"first": 2, "second": 2}).check(FewestGpus())


def test_fewest_gpus_leaves_the_unpreemptible_alone() -> None:
    jobs = [job("wide", 3, on="n0[0,1,2]", preemptible=False), job("pair", 2), job("one", 1)]
    Scenario(nodes="1x4", jobs=jobs, expected={"wide": "n0[0,1,2]", "one": "n0[3]"}).check(FewestGpus())


def test_whoever_is_not_preempted_stays_where_it_is() -> None:
    jobs = [job("one", 1, on="n1[2]"), job("pair", 2, on="n0[1,3]"), job("new", 1)]
    Scenario(nodes="2x4", jobs=jobs, expected={"one": "n1[2]", "pair": "n0[1,3]", "new": 1}).check(FewestGpus())


def test_srtf_runs_the_job_with_the_least_time_left() -> None:
    jobs = [job("long", 4, on="n0[0,1,2,3]"), job("short", 4)]
    oracle = {"long": 100.0, "short": 99.0}
    Scenario(nodes="1x4", jobs=jobs, oracle=oracle, expected={"short": 4}).check(ShortestRemainingTimeOracle())


def test_srtf_gpu_multiplies_the_time_left_by_the_gpus() -> None:
    jobs = [job("wide", 4), job("narrow", 1)]
    oracle = {"wide": 10.0, "narrow": 39.0}
    Scenario(nodes="1x4", jobs=jobs, oracle=oracle, expected={"narrow": 1}).check(ShortestRemainingGpuTimeOracle())
    Scenario(nodes="1x4", jobs=jobs, oracle=oracle, expected={"wide": 4}).check(ShortestRemainingTimeOracle())


def test_a_short_job_that_does_not_fit_is_skipped() -> None:
    jobs = [job("wide", 5), job("narrow", 1)]
    oracle = {"wide": 1.0, "narrow": 100.0}
    Scenario(nodes="1x4", jobs=jobs, oracle=oracle, expected={"narrow": 1}).check(ShortestRemainingTimeOracle())


@pytest.mark.parametrize("policy", [ShortestRemainingTimeOracle(), ShortestRemainingGpuTimeOracle()])
def test_an_oracle_refuses_to_guess_where_nobody_knows_the_truth(
    policy: ShortestRemainingTimeOracle | ShortestRemainingGpuTimeOracle,
) -> None:
    with pytest.raises(InvalidSpec, match="is an oracle: it needs true remaining times, which only the simulator"):
        policy.plan(make_view("1x4", [job("a")]))


# -- several GPU types ---------------------------------------------------------------------------------------------


def test_who_goes_first_takes_idle_gpus_of_another_type_before_it_takes_someones() -> None:
    jobs = [job("wide", 4, on="n0[0,1,2,3]"), job("small", 1)]
    expected = {"wide": "n0[0,1,2,3]", "small": "n1[0]"}
    Scenario(nodes="a100=1x4,v100=1x4", jobs=jobs, expected=expected).check(FewestGpus())


def test_who_goes_first_takes_someones_gpus_if_no_type_is_idle() -> None:
    jobs = [job("wide", 4, on="n0[0,1,2,3]"), job("full", 4, on="n1[0,1,2,3]", preemptible=False), job("small", 1)]
    Scenario(nodes="a100=1x4,v100=1x4", jobs=jobs, expected={"full": 4, "small": "n0[0]"}).check(FewestGpus())


@pytest.mark.parametrize("policy", [Fifo(), FewestGpus()], ids=["fifo", "smallest"])
@pytest.mark.parametrize("nodes", ["a100=2x1,v100=1x2", "v100=1x2,a100=2x1"])
def test_of_types_that_are_equally_fast_a_job_takes_the_one_where_it_spans_fewer_nodes(
    policy: Policy, nodes: str
) -> None:
    """Also if a job behind it accepts nothing else: the queue is served one after the other."""
    jobs = [job("any", 2, gpu_types=("a100", "v100")), job("choosy", 2, gpu_types=("v100",))]
    view = make_view(nodes, jobs)
    plan = policy.plan(view)
    assert {view.nodes[node].gpu_type for node in plan.allocations["any"].nodes} == {"v100"}
    assert "choosy" not in plan.allocations
