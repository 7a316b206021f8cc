"""MinimumRun: who has just begun is left alone, plans stay valid, and quotas come first in the end."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tenants import sizes

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobRescaled, Resize, Tick
from fairlead.core.types import JobSpec, Phase
from fairlead.plugins import make_policy
from fairlead.policies.even import Even
from fairlead.policies.fifo import Fifo
from fairlead.policies.middleware import MinimumRun, Queue, Tenancy
from fairlead.policies.middleware.minimum import usual_minimum_s
from fairlead.policies.ranked import FewestGpus
from fairlead.policies.tiresias import Tiresias
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing import Scenario, job, make_state, make_view
from fairlead.testing.scenario import allocation
from fairlead.testing.workload import Workload, simulate


def test_a_job_that_has_just_begun_is_not_stopped() -> None:
    jobs = [job("young", 4, on="n0[0,1,2,3]", submitted_at=50.0), job("small", 1, submitted_at=80.0)]
    assert sizes(FewestGpus().plan(make_view("1x4", jobs, now=80.0))) == {"small": 1}
    plan = Scenario(nodes="1x4", jobs=jobs, expected={"young": "n0[0,1,2,3]"}, now=80.0).check(
        MinimumRun(FewestGpus(), seconds=60.0)
    )
    assert plan.review_at == 110.0
    assert plan.reasons["small"].code == "minimum-run"
    assert plan.reasons["small"].text == (
        "waits for up to 30 s: job young of default has just begun, and keeps its 4 GPUs"
    )
    assert plan.reasons["young"].text == "keeps 4 GPUs for at least 30 s: it has just begun or changed its GPUs"
    Scenario(nodes="1x4", jobs=jobs, expected={"small": 1}, now=110.0).check(MinimumRun(FewestGpus(), seconds=60.0))


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_a_job_that_still_starts_is_not_stopped_however_long_it_takes(phase: Phase) -> None:
    jobs = [job("slow", 4, on="n0[0,1,2,3]", phase=phase), job("small", 1, submitted_at=80.0)]
    expected = {"slow": 4} if phase is Phase.STARTING else {"small": 1}
    Scenario(nodes="1x4", jobs=jobs, expected=expected, now=1000.0).check(MinimumRun(FewestGpus()))


def test_a_job_that_changes_its_gpus_in_place_is_protected_only_from_having_none() -> None:
    elastic = {"gpus_min": 1, "gpus_max": 4, "in_place": True}
    state = make_state("1x4", [job("a", 4, on="n0[0,1]", **elastic)], now=100.0)
    assert sizes(MinimumRun(Even()).plan(state.snapshot())) == {"a": 4}
    state.issue(Resize(100.0, "a", 1, allocation("n0[0,1,2,3]")))
    state.apply(JobRescaled(102.0, "a", 1))
    other = make_state("1x4", [job("a", 4, on="n0[0,1,2,3]", **elastic), job("b", 1, submitted_at=120.0)], now=120.0)
    assert sizes(MinimumRun(Even()).plan(other.snapshot())) == {"a": 3, "b": 1}
    recent = [job("a", 4, on="n0[0,1,2,3]", submitted_at=100.0, **elastic), job("b", 1, submitted_at=120.0)]
    assert sizes(MinimumRun(Even()).plan(make_view("1x4", recent, now=120.0))) == {"a": 3, "b": 1}
    plan = MinimumRun(FewestGpus()).plan(make_view("1x4", recent, now=120.0))
    assert sizes(FewestGpus().plan(make_view("1x4", recent, now=120.0))) == {"b": 1}
    assert sizes(plan) == {"a": 4}
    assert plan.reasons["b"].code == "minimum-run"


def test_a_job_that_can_do_with_less_starts_with_less() -> None:
    jobs = [
        job("young", 2, on="n0[0,1]", submitted_at=100.0, gpus_min=1, gpus_max=2, in_place=True),
        job("elastic", 2, submitted_at=120.0, gpus_min=1, gpus_max=4),
    ]
    view = make_view("1x4", jobs, now=120.0)
    assert sizes(Even().plan(view)) == {"young": 2, "elastic": 2}
    plan = MinimumRun(Even()).plan(make_view("1x3", jobs, now=120.0))
    assert sizes(plan) == {"young": 2, "elastic": 1}


def test_who_was_to_move_onto_its_gpus_stays_where_it_is() -> None:
    """And so on: whoever was to have that one's GPUs waits."""
    jobs = [
        job("young", 4, on="n0[0,1,2,3]", submitted_at=100.0),
        job("old", 2, on="n1[0,1]", gpus_min=1, gpus_max=6, in_place=True),
        job("new", 1, submitted_at=110.0),
    ]
    view = make_view("2x4", jobs, now=120.0)
    for policy in (Even(), FewestGpus(), Tiresias()):
        plan = MinimumRun(policy).plan(view)
        assert plan.allocations["young"] == view.allocations["young"]
        assert plan.allocations["old"].total >= 2


def test_the_owner_of_a_quota_does_not_wait_for_longer_than_that() -> None:
    queues = (Queue("prod", quota=4), Queue("dev"))
    policy = MinimumRun(Tenancy(Fifo(), queues), seconds=60.0)
    young = job("young", 4, on="n0[0,1,2,3]", submitted_at=100.0, queue="dev")
    patient, impatient = (job("owner", 4, submitted_at=at, queue="prod") for at in (80.0, 10.0))
    plan = Scenario(nodes="1x4", jobs=[patient, young], expected={"young": 4}, now=120.0).check(policy)
    assert plan.reasons["owner"].code == "minimum-run"
    Scenario(nodes="1x4", jobs=[impatient, young], expected={"owner": 4}, now=120.0).check(policy)


def test_a_job_that_must_not_be_preempted_is_never_in_danger() -> None:
    jobs = [
        job("firm", 2, on="n0[0,1]", preemptible=False, submitted_at=100.0),
        job("young", 2, on="n0[2,3]", submitted_at=100.0),
        job("small", 1, submitted_at=110.0),
    ]
    Scenario(nodes="1x4", jobs=jobs, expected={"firm": 2, "young": 2}, now=120.0).check(MinimumRun(FewestGpus()))


def test_no_time_at_all_is_no_protection() -> None:
    jobs = [job("young", 4, on="n0[0,1,2,3]"), job("small", 1)]
    view = make_view("1x4", jobs)
    assert MinimumRun(FewestGpus(), seconds=0.0).plan(view).allocations == FewestGpus().plan(view).allocations
    with pytest.raises(InvalidSpec, match="minimum-run: seconds is nan"):
        MinimumRun(Fifo(), seconds=math.nan)


def test_in_time_jobs_take_turns_less_often() -> None:
    jobs = [
        SimJob(
            JobSpec(id=f"j{k:02d}", gpus=4 - k % 4),
            20.0 * k,
            FixedDuration(300.0, 4 - k % 4),
            Costs(restart_s=10.0, start_s=10.0),
        )
        for k in range(40)
    ]
    workload = Workload(parse_cluster("1x4"), tuple(jobs))

    def attempts(seconds: float) -> int:
        state = simulate(MinimumRun(FewestGpus(), seconds=seconds), workload)
        return sum(each.attempt for each in state.finished.values())

    assert attempts(120.0) < attempts(0.0)


def test_it_asks_to_be_reviewed_when_the_first_protection_ends() -> None:
    state = make_state("1x4", [job("a", 2, on="n0[0,1]", submitted_at=100.0), job("b", 2, on="n0[2,3]")], now=130.0)
    state.apply(Tick(130.0))
    assert MinimumRun(FewestGpus()).plan(state.snapshot()).review_at == math.inf  # nobody was to be disturbed


def test_what_is_usual_is_half_a_round_or_lease_where_that_is_shorter() -> None:
    usual = {"fifo": 30.0, "isolated": 30.0, "isolated:round_s=5": 2.5, "themis:lease_s=10": 5.0}
    usual |= {"frugal+shockwave-elastic:round_s=8": 4.0}
    assert {name: usual_minimum_s(make_policy(name)) for name in usual} == usual


def test_a_reason_keeps_the_numbers_of_the_policy_inside() -> None:
    jobs = [job("a", 1, on="n0[0]", submitted_at=0.0), job("b", 1)]
    memo = {
        "rounds": {"ends_at": 10.0, "decided_at": 0.0, "deficit": {"b": {"gpu": 9.0}}, "served": {"a": {}, "b": {}}}
    }
    view = replace(make_view("1x1", jobs, now=10.0), memo=memo)
    inner = make_policy("isolated:round_s=10")
    assert list(inner.plan(view).allocations) == ["b"]
    plan = MinimumRun(inner, seconds=15.0).plan(view)
    assert list(plan.allocations) == ["a"]
    for name in ("a", "b"):
        assert {"owed", "received"} <= plan.reasons[name].numbers.keys(), plan.reasons[name]
    assert plan.reasons["b"].code == "minimum-run"
