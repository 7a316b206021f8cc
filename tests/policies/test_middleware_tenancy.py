"""Tenancy: quotas, borrowing, reclaim, shares and limits, one small cluster at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tenants import Counted, after, by_queue, sizes

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import JobSpec, Node, Phase, Plan
from fairlead.plugins import make_policy
from fairlead.policies.even import Even
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.middleware import Queue, Tenancy, standard
from fairlead.policies.tiresias import Tiresias
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing import GivenJob, Scenario, job, make_view
from fairlead.testing.workload import Workload, simulate

INNER = [Backfill(), Tiresias(), Even(), make_policy("pilot")]

PROD, DEV = Queue("prod", quota=4), Queue("dev")


def elastic(id: str, gpus: int, most: int, **more: object) -> GivenJob:
    return job(id, gpus, gpus_min=1, gpus_max=most, in_place=True, **more)  # type: ignore[arg-type]


def many(name: str, count: int, user: str, gpus: int = 1, **more: object) -> list[GivenJob]:
    return [job(f"{name}{k:03d}", gpus, tenant=user, **more) for k in range(count)]  # type: ignore[arg-type]


# -- nothing to do -----------------------------------------------------------------------------------------------------


def test_one_user_without_limits_gets_the_inner_plan_as_it_is_for_one_question() -> None:
    inner = Counted(Tiresias())
    view = make_view("1x4", [job("a", 4, on="n0[0,1,2,3]"), job("b", 2), job("c", 8)])
    plan = Tenancy(inner, (Queue("default"), Queue("other"))).plan(view)
    assert plan == Tiresias().plan(view)
    assert [id(seen) for seen in inner.seen] == [id(view)]


def test_where_nobody_is_short_the_inner_policy_is_asked_once() -> None:
    inner = Counted(Backfill())
    view = make_view("1x8", [job("a", 4, tenant="ann"), job("b", 4, tenant="bob"), job("c", 20, tenant="cal")])
    assert sizes(Tenancy(inner).plan(view)) == {"a": 4, "b": 4}
    assert len(inner.seen) == 1


def test_adapts_and_the_oracle_are_those_of_the_inner_policy() -> None:
    assert (Tenancy(make_policy("pilot")).adapts, Tenancy(Fifo()).adapts) == ("batch", "nothing")
    assert Tenancy(make_policy("srtf")).needs == {Capability.ORACLE}


def test_it_works_for_nobody_and_on_nothing() -> None:
    assert sizes(Tenancy(Fifo(), (PROD,)).plan(make_view("1x4"))) == {}
    assert sizes(Tenancy(Fifo(), (PROD,)).plan(make_view([], [job("a", 1, queue="prod")]))) == {}


# -- quotas ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_a_borrower_shrinks_when_the_owner_comes_back(inner: Policy) -> None:
    Scenario(
        nodes="1x8",
        jobs=[elastic("borrower", 8, 8, on="n0[0,1,2,3,4,5,6,7]", queue="dev"), job("owner", 4, queue="prod")],
        expected={"borrower": 4, "owner": 4},
        now=1000.0,
    ).check(Tenancy(inner, (PROD, DEV)))


@pytest.mark.parametrize("inner", [Fifo(), Backfill()], ids=repr)
def test_jobs_shrink_in_proportion_to_what_they_have_beyond_their_least(inner: Policy) -> None:
    Scenario(
        nodes="1x12",
        jobs=[
            elastic("large", 9, 9, on="n0[0,1,2,3,4,5,6,7,8]", queue="dev"),
            elastic("small", 3, 3, on="n0[9,10,11]", queue="dev"),
            job("owner", 6, queue="prod"),
        ],
        expected={"large": 4, "small": 2, "owner": 6},
        now=1000.0,
    ).check(Tenancy(inner, (Queue("prod", quota=6), DEV)))


@pytest.mark.parametrize("inner", [Fifo(), Backfill()], ids=repr)
def test_whole_jobs_are_stopped_only_when_shrinking_is_not_enough_and_the_newest_first(inner: Policy) -> None:
    jobs = [
        elastic("elastic", 4, 4, on="n0[0,1,2,3]", queue="dev"),
        job("old", 2, on="n0[4,5]", submitted_at=10.0, queue="dev"),
        job("new", 2, on="n0[6,7]", submitted_at=20.0, queue="dev"),
    ]
    policy = Tenancy(inner, (PROD, DEV))
    owner = job("owner", 4, submitted_at=30.0, queue="prod")
    plan = Scenario(nodes="1x8", jobs=[*jobs, owner], expected={"elastic": 2, "old": 2, "owner": 4}, now=1000.0).check(
        policy
    )
    assert plan.reasons["new"].code == "queue-quota"
    assert "queue prod takes back what is guaranteed" in plan.reasons["new"].text
    assert plan.reasons["new"].numbers["owner_waits_s"] == 970.0
    half = job("owner", 2, submitted_at=30.0, queue="prod")
    Scenario(
        nodes="1x8", jobs=[*jobs, half], expected={"elastic": 2, "old": 2, "new": 2, "owner": 2}, now=1000.0
    ).check(policy)


def test_a_job_of_low_priority_is_stopped_before_a_newer_one() -> None:
    jobs = [
        job("low", 4, on="n0[0,1,2,3]", queue="dev", priority=-1),
        job("new", 4, on="n0[4,5,6,7]", submitted_at=10.0, queue="dev"),
        job("owner", 4, submitted_at=20.0, queue="prod"),
    ]
    Scenario(nodes="1x8", jobs=jobs, expected={"new": 4, "owner": 4}, now=100.0).check(Tenancy(Backfill(), (PROD, DEV)))


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_what_must_not_be_preempted_keeps_what_it_has(inner: Policy) -> None:
    jobs = [
        job("firm", 6, on="n0[0,1,2,3,4,5]", queue="dev", preemptible=False),
        job("soft", 2, on="n0[6,7]", queue="dev"),
        elastic("owner", 1, 4, submitted_at=20.0, queue="prod"),
    ]
    view = make_view("1x8", jobs, now=100.0)
    policy = Tenancy(inner, (PROD, DEV))
    for _ in range(4):
        view = after(view, policy.plan(view), 60.0)
    held = {job_id: allocation.total for job_id, allocation in view.allocations.items()}
    assert held["firm"] == 6
    assert held["owner"] >= 1
    assert "soft" not in held or held["owner"] == 1


def test_who_must_not_be_preempted_begins_only_on_what_need_not_be_given_back() -> None:
    firm = [job(f"firm{k}", 2, queue="dev", preemptible=False) for k in range(3)]
    plan = Scenario(
        nodes="1x8",
        jobs=[*firm, job("soft", 2, queue="dev"), job("own", 2, queue="prod", preemptible=False)],
        expected={"firm0": 2, "firm1": 2, "soft": 2, "own": 2},
    ).check(Tenancy(Backfill(), (PROD, DEV)))
    assert plan.reasons["firm2"].code == "queue-quota"
    assert "of those that are guaranteed to queue dev or to nobody, 0 are left" in plan.reasons["firm2"].text


def test_a_job_that_needs_more_than_the_quota_takes_nothing_back() -> None:
    jobs = [job("borrower", 8, on="n0[0,1,2,3,4,5,6,7]", queue="dev"), job("large", 8, queue="prod")]
    Scenario(nodes="1x8", jobs=jobs, expected={"borrower": 8}, now=100.0).check(Tenancy(Backfill(), (PROD, DEV)))


@pytest.mark.parametrize("inner", [Fifo(), Backfill(), Tiresias()], ids=repr)
def test_two_users_who_each_need_all_of_their_quota_have_it_one_after_the_other(inner: Policy) -> None:
    jobs = [
        *(job(f"dev{k}", 2, on=f"n0[{2 * k},{2 * k + 1}]", queue="dev") for k in range(2)),
        job("one", 4, submitted_at=10.0, queue="prod", tenant="ann"),
        job("two", 4, submitted_at=20.0, queue="prod", tenant="bob"),
    ]
    plan = Scenario(nodes="1x4", jobs=jobs, expected={"one": 4}, now=100.0).check(Tenancy(inner, (PROD, DEV)))
    assert plan.reasons["dev0"].code == "queue-quota"


def test_quotas_beyond_the_cluster_are_met_by_priority() -> None:
    queues = (Queue("prod", quota=6, priority=1), Queue("dev", quota=6))
    jobs = [
        *(job(f"dev{k}", 1, on=f"n0[{k}]", queue="dev") for k in range(8)),
        *(job(f"prod{k}", 1, submitted_at=10.0, queue="prod") for k in range(8)),
    ]
    view = make_view("1x8", jobs, now=100.0)
    assert by_queue(view, Tenancy(Backfill(), queues).plan(view)) == {"prod": 6, "dev": 2}


# -- borrowing and lending ---------------------------------------------------------------------------------------------


def test_idle_gpus_are_lent_by_weight() -> None:
    queues = (Queue("a", weight=3.0), Queue("b", weight=1.0))
    jobs = [job(f"{queue}{k}", 1, queue=queue) for k in range(8) for queue in "ab"]
    view = make_view("1x8", jobs)
    assert by_queue(view, Tenancy(Fifo(), queues).plan(view)) == {"a": 6, "b": 2}


def test_queues_of_higher_priority_borrow_first() -> None:
    queues = (Queue("a"), Queue("b", priority=1))
    jobs = [job(f"{queue}{k}", 1, queue=queue) for queue in "ab" for k in range(6)]
    view = make_view("1x8", jobs)
    assert by_queue(view, Tenancy(Fifo(), queues).plan(view)) == {"a": 2, "b": 6}


def test_what_a_queue_has_no_work_for_is_lent() -> None:
    view = make_view("1x8", [job("prod", 1, queue="prod"), *(job(f"dev{k}", 1, queue="dev") for k in range(9))])
    assert by_queue(view, Tenancy(Fifo(), (PROD, DEV)).plan(view)) == {"prod": 1, "dev": 7}


def test_a_queue_that_does_not_lend_keeps_its_quota_idle() -> None:
    queues = (Queue("prod", quota=4, lend=False), DEV)
    view = make_view("1x8", [job("prod", 1, queue="prod"), *(job(f"dev{k}", 1, queue="dev") for k in range(9))])
    plan = Tenancy(Fifo(), queues).plan(view)
    assert by_queue(view, plan) == {"prod": 1, "dev": 4}
    assert plan.reasons["dev8"].code == "queue-quota"


def test_a_queue_that_does_not_borrow_has_its_quota_at_most() -> None:
    queues = (Queue("prod", quota=4, borrow=False), DEV)
    view = make_view("1x8", [job(f"prod{k}", 1, queue="prod") for k in range(9)])
    plan = Tenancy(Fifo(), queues).plan(view)
    assert by_queue(view, plan) == {"prod": 4}
    assert plan.reasons["prod8"].code == "queue-limit"
    assert plan.reasons["prod8"].text == "waits: queue prod has 4 GPUs, and may have 4 (it does not borrow)"


def test_gpus_that_nobody_can_use_stay_with_whom_they_were_to_be_taken_from() -> None:
    """The owner grows slowly: until it does, the borrower keeps the rest."""
    jobs = [elastic("borrower", 8, 8, on="n0[0,1,2,3,4,5,6,7]", queue="dev"), elastic("owner", 1, 4, queue="prod")]
    view = make_view("1x8", jobs, now=1000.0)
    plan = Tenancy(make_policy("pilot"), (PROD, DEV)).plan(view)
    assert sizes(plan) == {"borrower": 7, "owner": 1}
    assert plan.reasons["borrower"].code == "lent"
    assert plan.reasons["borrower"].numbers["lent"] == 3


# -- users -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [Fifo(), Backfill(), Tiresias(), Even()], ids=repr)
def test_a_user_with_300_jobs_leaves_half_to_one_with_10(inner: Policy) -> None:
    jobs = [*many("a", 300, "ann"), *many("b", 10, "bob", submitted_at=1.0)]
    view = make_view("1x8", jobs, now=2.0)
    plan = Tenancy(inner).plan(view)
    assert sum(job_id.startswith("b") for job_id in plan.allocations) == 4
    assert len(plan.allocations) == 8


def test_who_runs_is_stopped_for_who_has_less() -> None:
    running = [job(f"a{k}", 1, on=f"n0[{k}]", tenant="ann", submitted_at=float(k)) for k in range(8)]
    jobs = [*running, *many("b", 10, "bob", submitted_at=50.0)]
    plan = Tenancy(Fifo()).plan(make_view("1x8", jobs, now=60.0))
    assert list(plan.allocations) == ["a0", "a1", *(f"b{k:03d}" for k in range(6))]  # ann has used all so far
    assert plan.reasons["a7"].code == "fair-share"
    assert plan.reasons["a7"].text == (
        "waits: of the GPUs of queue default user ann is entitled to 2, and has 2; bob has 6"
    )
    assert plan.reasons["a7"].numbers["entitled"] == 2


def test_use_in_the_past_counts_against_a_user() -> None:
    past = [job("past", 8, tenant="ann", stints=[("n0[0,1,2,3,4,5,6,7]", 0.0, 1000.0)])]
    jobs = [*past, *many("a", 9, "ann", submitted_at=1000.0), *many("b", 9, "bob", submitted_at=1001.0)]
    plan = Tenancy(Fifo()).plan(make_view("1x8", jobs, now=1002.0))
    assert sum(job_id.startswith("b") for job_id in plan.allocations) == 6  # 1 : 2^-2, in whole GPUs


def test_a_job_that_crosses_the_line_and_runs_is_left_alone() -> None:
    jobs = [job("a", 6, on="n0[0,1,2,3,4,5]", tenant="ann"), *many("b", 8, "bob", submitted_at=10.0)]
    assert sizes(Tenancy(Fifo()).plan(make_view("1x8", jobs, now=11.0)))["a"] == 6


def test_one_that_would_cross_it_begins_only_if_nobody_is_further_below() -> None:
    past = [job("past", 8, tenant="ann", stints=[("n0[0,1,2,3,4,5,6,7]", 0.0, 1000.0)], priority=-1)]
    jobs = [*past, job("a", 8, tenant="ann", submitted_at=1000.0), job("b", 8, tenant="bob", submitted_at=1001.0)]
    assert sizes(Tenancy(Fifo()).plan(make_view("1x8", jobs, now=1002.0))) == {"b": 8}


@pytest.mark.parametrize("inner", [Fifo(), Backfill(), Tiresias(), Even()], ids=repr)
def test_limits_hold_although_there_are_idle_gpus(inner: Policy) -> None:
    jobs = [job(f"{user}{k}", 1, tenant=user) for user in ("ann", "bob") for k in range(9)]
    for queue, expected, code in [
        (Queue("default", max_gpus=5), 5, "queue-limit"),
        (Queue("default", max_gpus_per_user=2), 4, "user-limit"),
        (Queue("default", max_jobs_per_user=3), 6, "user-limit"),
    ]:
        plan = Tenancy(inner, (queue,)).plan(make_view("2x4", jobs))
        assert len(plan.allocations) == expected
        assert {plan.reasons[f"{user}8"].code for user in ("ann", "bob")} == {code}


def test_a_limit_makes_a_job_that_can_be_smaller_smaller() -> None:
    limited = (Queue("default", max_gpus_per_user=3),)
    Scenario(nodes="1x8", jobs=[elastic("a", 6, 8)], expected={"a": 3}).check(Tenancy(Even(), limited))
    Scenario(nodes="1x8", jobs=[elastic("a", 6, 8)], expected={"a": 3}).check(Tenancy(Fifo(), limited))
    running = elastic("a", 6, 8, on="n0[0,1,2,3,4,5]")
    Scenario(nodes="1x8", jobs=[running], expected={"a": "n0[0,1,2]"}).check(Tenancy(Fifo(), limited))


def test_a_limit_that_was_lowered_does_not_touch_what_must_not_be_preempted() -> None:
    jobs = [job("firm", 4, on="n0[0,1,2,3]", preemptible=False), job("soft", 1, on="n0[4]"), job("next", 1)]
    queue = Queue("default", max_gpus=2)
    plan = Scenario(nodes="1x8", jobs=jobs, expected={"firm": 4}).check(Tenancy(Fifo(), (queue,)))
    assert plan.reasons["soft"].text == "waits: queue default has 4 GPUs, and may have 2"


def test_an_unknown_queue_goes_by_the_rules_of_the_default_one() -> None:
    jobs = [job("a", 1), job("b", 1, queue="gone"), job("c", 1, queue="lost")]
    plan = Tenancy(Fifo(), (Queue("default", max_gpus=2),)).plan(make_view("1x8", jobs))
    assert list(plan.allocations) == ["a", "b"]


# -- why one waits -----------------------------------------------------------------------------------------------------

CLASSES = (Queue("vision", quota=2), Queue("students", max_gpus_per_user=1, max_jobs_per_user=1))


@pytest.mark.parametrize("inner", ["pilot", "fifo"])
def test_who_waits_for_what_is_guaranteed_to_others_is_told_so_also_when_they_have_it_already(inner: str) -> None:
    jobs = [
        *(job(f"v{k}", 1, on=f"n0[{k}]", queue="vision", tenant="root") for k in range(2)),
        job("s", 1, queue="students", tenant="ann"),
        job("d", 1, tenant="cy"),
        job("large", 3, tenant="cy"),
    ]
    reasons = standard(make_policy(inner), CLASSES).plan(make_view("1x2", jobs, now=500.0)).reasons
    assert (reasons["s"].code, reasons["d"].code) == ("queue-quota", "queue-quota")
    assert reasons["s"].text == (
        "waits: 2 GPUs are guaranteed to queue vision; of the GPUs of queue students user ann is entitled to 0, "
        "and has 0; root has 2 in vision"
    )
    assert reasons["large"].code not in ("queue-quota", "user-limit")  # it could not run even so


@pytest.mark.parametrize("inner", ["pilot", "fifo"])
def test_who_is_at_a_limit_is_told_so_also_when_nothing_is_free(inner: str) -> None:
    jobs = [
        job("s0", 1, on="n0[0]", queue="students", tenant="ann"),
        job("d0", 1, on="n0[1]", tenant="cy"),
        job("s1", 1, queue="students", tenant="ann", submitted_at=10.0),
        job("d1", 1, tenant="cy", submitted_at=10.0),
    ]
    reasons = standard(make_policy(inner), CLASSES).plan(make_view("1x2", jobs, now=500.0)).reasons
    assert reasons["s1"].code == "user-limit"
    assert reasons["s1"].text == "waits: user ann has 1 job running, and may have 1 in queue students"
    assert reasons["d1"].code not in ("queue-quota", "user-limit")


# -- GPU types ---------------------------------------------------------------------------------------------------------


def test_gpus_of_a_type_that_the_owner_cannot_use_are_not_taken_back() -> None:
    nodes = [Node("n0", 4, "a100"), Node("n1", 4, "k80")]
    jobs = [
        job("new", 4, on="n0[0,1,2,3]", submitted_at=10.0, queue="dev"),
        job("old", 4, on="n1[0,1,2,3]", queue="dev"),
        job("owner", 2, submitted_at=20.0, queue="prod", gpu_types=("k80",)),
    ]
    Scenario(nodes=nodes, jobs=jobs, expected={"new": "n0[0,1,2,3]", "owner": 2}, now=100.0).check(
        Tenancy(Backfill(), (PROD, DEV))
    )


def test_a_type_that_nobody_can_give_up_stops_nobody() -> None:
    nodes = [Node("n0", 4, "a100"), Node("n1", 4, "k80")]
    jobs = [
        job("dev", 4, on="n0[0,1,2,3]", queue="dev"),
        job("firm", 4, on="n1[0,1,2,3]", queue="dev", preemptible=False),
        job("owner", 2, submitted_at=20.0, queue="prod", gpu_types=("k80",)),
    ]
    Scenario(nodes=nodes, jobs=jobs, expected={"dev": 4, "firm": 4}, now=100.0).check(Tenancy(Backfill(), (PROD, DEV)))


# -- over time ---------------------------------------------------------------------------------------------------------


def test_who_shrank_takes_back_what_it_asked_for_under_a_policy_that_never_resizes() -> None:
    shrunk = elastic("a", 4, 4, on="n0[0,1]", tenant="ann")
    assert sizes(Tenancy(Tiresias()).plan(make_view("1x8", [shrunk], now=10.0))) == {"a": 4}
    both = [shrunk, job("b", 3, on="n0[2,3,4]", tenant="bob")]
    assert sizes(Tenancy(Tiresias()).plan(make_view("1x5", both, now=10.0))) == {"a": 2, "b": 3}
    assert sizes(Tenancy(Tiresias()).plan(make_view("1x6", both, now=10.0))) == {"a": 3, "b": 3}


def test_it_looks_again_while_somebody_has_less_than_its_share() -> None:
    jobs = [job("a", 8, on="n0[0,1,2,3,4,5,6,7]", tenant="ann"), job("b", 4, tenant="bob")]
    view = make_view("1x8", jobs, now=10.0)
    assert Tenancy(Fifo()).plan(view).review_at == 70.0
    assert Tenancy(Fifo(), review_s=0.0).plan(view).review_at > 1e9
    with pytest.raises(InvalidSpec, match="tenancy: review_s is -1"):
        Tenancy(Fifo(), review_s=-1.0)


def sim(id: str, at: float, seconds: float, gpus: int = 1, costs: Costs | None = None, **spec: object) -> SimJob:
    made = JobSpec(id=id, gpus=gpus, **spec)  # type: ignore[arg-type]
    return SimJob(made, at, FixedDuration(seconds, gpus), costs or Costs(start_s=10.0, restart_s=20.0, rescale_s=2.0))


def test_in_time_the_owner_has_its_quota_at_once_and_elastic_borrowers_lose_nothing() -> None:
    borrowers = [sim(f"dev{k}", 0.0, 1000.0, 4, gpus_min=1, gpus_max=4, in_place=True, queue="dev") for k in range(2)]
    state = simulate(
        Tenancy(Tiresias(), (PROD, DEV)),
        Workload(parse_cluster("1x8"), (*borrowers, sim("prod", 100.0, 500.0, 4, queue="prod"))),
    )
    prod = state.finished["prod"]
    assert prod.first_started_at == 102.0  # the borrowers' change took 2 s
    assert all(each.phase is Phase.SUCCEEDED for each in state.finished.values())
    assert [state.finished[f"dev{k}"].attempt for k in range(2)] == [1, 1]
    assert state.now < 1700.0  # and they took it all back


def test_in_time_a_user_with_300_jobs_does_not_starve_one_with_10() -> None:
    crowd = [sim(f"a{k:03d}", 0.0, 600.0, tenant="ann") for k in range(300)]
    few = [sim(f"b{k}", 60.0 + k, 600.0, tenant="bob") for k in range(10)]
    workload = Workload(parse_cluster("1x8"), (*crowd, *few))

    def waited_s(policy: Policy) -> float:
        state = simulate(policy, workload)
        starts = [state.finished[f"b{k}"].first_started_at or 0.0 for k in range(10)]
        return max(starts) - 60.0

    assert waited_s(Fifo()) > 15_000.0
    assert waited_s(Tenancy(Fifo())) < 1500.0


def test_the_inner_policy_remembers_what_it_noted_of_all_jobs() -> None:
    @dataclass(frozen=True)
    class Remembers:
        """A policy that notes which jobs it saw."""

        def plan(self, view: Snapshot) -> Plan:
            return replace(Fifo().plan(view), memo={"seen": list(view.jobs)})

    jobs = [*many("a", 9, "ann"), *many("b", 9, "bob")]
    plan = Tenancy(Remembers()).plan(make_view("1x8", jobs))
    assert len(plan.memo["seen"]) == 18
    assert len(plan.allocations) == 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": ""}, "a queue needs a name"),
        ({"name": "a", "quota": -1}, "queue a: quota is -1; expected at least 0, or none"),
        ({"name": "a", "max_gpus": 0}, "queue a: max_gpus is 0; expected at least 1, or none"),
        ({"name": "a", "weight": 0.0}, "queue a: weight is 0.0; expected a positive number"),
        ({"name": "a", "quota": 4, "max_gpus": 2}, "queue a: quota is 4 and max_gpus 2"),
        ({"name": "a", "borrow": False}, "queue a may not borrow and has no quota"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidSpec, match=expected):
        Queue(**options)  # type: ignore[arg-type]


def test_two_queues_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="queue a is defined twice"):
        Tenancy(Fifo(), (Queue("a"), Queue("a")))
