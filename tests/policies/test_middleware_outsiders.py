"""GPUs that somebody outside uses: given to nobody, kept by who has them, and given again once they are left."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tenants import Counted, after, random_queues, random_view, sizes

from fairlead.core.loop import Cadence
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Node, Phase, Plan
from fairlead.plugins import POLICIES, make_policy
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.middleware import Outsiders, Queue, entitlements, standard
from fairlead.policies.middleware.closing import Closed, without_outsiders
from fairlead.policies.tiresias import Tiresias
from fairlead.sim.forecast import forecast
from fairlead.testing import GivenJob, job, make_view, show
from fairlead.testing.history import History, histories


def intruded(view: Snapshot, outside: Mapping[str, tuple[int, ...]]) -> Snapshot:
    nodes = {name: replace(node, outside=outside.get(name, ())) for name, node in view.nodes.items()}
    return replace(view, nodes=nodes, _node_table=None)


def view_of(nodes: str | list[Node], *jobs: GivenJob, now: float = 100.0, **outside: tuple[int, ...]) -> Snapshot:
    return intruded(make_view(nodes, jobs, now=now), outside)


def planned(plan: Plan) -> dict[str, str]:
    return {job_id: str(allocation) for job_id, allocation in plan.allocations.items()}


# -- what is promised ------------------------------------------------------------------------------------------------


def assert_nobody_new_comes_there(view: Snapshot, plan: Plan) -> None:
    check(view, plan, changes(view, plan))
    for job_id, allocation in plan.allocations.items():
        for node, gpus in allocation - view.allocations.get(job_id, Allocation()):
            assert not set(gpus) & set(view.nodes[node].outside), f"{job_id}: {allocation}\n{show(view)}"
    for job_id in view.jobs:
        assert plan.reasons[job_id].text


#: All but the one that needs true step times, which only a simulation has.
PLAIN = [name for name in POLICIES if name != "optimus"]


@pytest.mark.parametrize("inner", PLAIN)
@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(histories(), st.randoms(use_true_random=False))
def test_whatever_is_inside_nobody_new_comes_to_a_gpu_that_outsiders_use(
    inner: str, history: History, draw: random.Random
) -> None:
    policy = Outsiders(make_policy(inner))
    views = list(history.views())
    for view in views[:: max(1, len(views) // 5)]:
        share = draw.choice((0.1, 0.4, 1.0))
        outside = {
            name: tuple(gpu for gpu in range(node.gpus) if draw.random() < share) for name, node in view.nodes.items()
        }
        seen = replace(intruded(view, outside), oracle=lambda job_id: float(len(job_id)))
        assert_nobody_new_comes_there(seen, policy.plan(seen))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("inner", ["fifo", "tiresias", "even", "pilot"])
def test_all_of_them_together_leave_those_gpus_alone_decision_after_decision(inner: str, seed: int) -> None:
    draw = random.Random(seed)
    view = random_view(draw, types=1 + seed % 2, firm=seed % 2 == 0)
    gpus = sum(node.gpus for node in view.nodes.values())
    policy = standard(make_policy(inner), random_queues(draw, gpus, limits=seed % 2 == 0), minimum_run_s=7.0)
    for _ in range(4):
        outside = {
            name: tuple(gpu for gpu in range(node.gpus) if draw.random() < 0.3) for name, node in view.nodes.items()
        }
        view = intruded(view, outside)
        plan = policy.plan(view)
        assert_nobody_new_comes_there(view, plan)
        view = after(view, plan)


@pytest.mark.parametrize("inner", PLAIN)
def test_a_cluster_without_outsiders_is_planned_as_if_this_were_not_there(inner: str) -> None:
    view = replace(random_view(random.Random(1)), oracle=lambda job_id: float(len(job_id)))
    counted = Counted(make_policy(inner))
    plan = Outsiders(counted).plan(view)
    assert counted.seen[0] is view
    assert plan.allocations == make_policy(inner).plan(view).allocations


# -- what it does ----------------------------------------------------------------------------------------------------


def test_others_gpus_are_used_under_their_true_numbers() -> None:
    view = view_of("1x4", job("a", 1, on="n0[3]"), job("b", 2), n0=(0, 2))
    plan = Outsiders(Fifo()).plan(view)
    assert planned(plan) == {"a": "n0[3]"}
    plan = Outsiders(Fifo()).plan(view_of("1x4", job("a", 1, on="n0[3]"), job("b", 2), n0=(0,)))
    assert planned(plan) == {"a": "n0[3]", "b": "n0[1,2]"}
    assert plan.reasons["b"].text == "gets 2 GPUs: n0[1,2]"
    assert plan.reasons["a"].text == "keeps 1 GPU: n0[3]"


def test_who_waits_is_told_how_many_gpus_outsiders_use_and_of_no_other_job() -> None:
    view = view_of("1x4", job("a", 1, on="n0[3]"), job("b", 3), n0=(0, 2))
    reason = Outsiders(Fifo()).plan(view).reasons["b"]
    assert reason.code == "too-large"
    assert reason.text == (
        "needs 3 GPUs; the nodes open to it have 2; 2 GPUs are used by processes that Fairlead did not start"
    )
    assert reason.numbers["outside"] == 2


def test_only_gpus_that_a_job_accepts_are_told_of() -> None:
    nodes = [Node("n0", 2, "a100"), Node("n1", 2, "v100")]
    view = view_of(nodes, job("b", 3, gpu_types=("v100",)), n0=(0,))
    reason = Outsiders(Fifo()).plan(view).reasons["b"]
    assert "Fairlead did not start" not in reason.text
    assert "outside" not in reason.numbers


def test_who_holds_such_a_gpu_keeps_it() -> None:
    view = view_of("1x4", job("a", 2, on="n0[0,1]"), job("b", 2), n0=(0, 1))
    assert planned(Outsiders(Backfill()).plan(view)) == {"a": "n0[0,1]", "b": "n0[2,3]"}


def test_a_node_that_outsiders_use_whole_is_no_place() -> None:
    view = view_of("2x2", job("a", 2), job("b", 2), n0=(0, 1))
    plan = Outsiders(Backfill()).plan(view)
    assert planned(plan) == {"a": "n1[0,1]"}
    assert plan.reasons["b"].text.endswith("2 GPUs are used by processes that Fairlead did not start")


def test_gpus_still_being_given_up_are_no_place_either() -> None:
    stopping = job("a", 2, on="n0[0,1]", phase=Phase.STOPPING)
    view = view_of("1x4", stopping, job("b", 2), n0=(1,))
    seen = without_outsiders(view)
    assert (seen.nodes["n0"].gpus, seen.held) == (3, {"n0": 0b1})
    plan = Outsiders(Backfill()).plan(view)
    assert_nobody_new_comes_there(view, plan)


def test_a_gpu_that_its_job_has_to_give_up_is_nobodys() -> None:
    """`a` has had far more GPU-time than the others, so it makes way."""
    jobs = [job("a", 2, on="n0[0,1]", submitted_at=0.0), job("b", 1, submitted_at=1.0), job("c", 1, submitted_at=2.0)]
    view = view_of("1x2", *jobs, now=1e6, n0=(1,))
    assert sizes(Tiresias().plan(view)) == {"b": 1, "c": 1}
    plan = Outsiders(Tiresias()).plan(view)
    assert planned(plan) == {"b": "n0[0]"}
    assert plan.reasons["c"].code == "outside"
    assert plan.reasons["c"].text == "waits: GPUs that it was to get are used by processes that Fairlead did not start"
    then = after(view, plan)
    assert planned(Outsiders(Tiresias()).plan(intruded(then, {}))) == {"b": "n0[0]", "c": "n0[1]"}


def test_a_job_that_can_change_its_size_begins_without_such_a_gpu() -> None:
    jobs = [job("a", 4, on="n0[0,1,2,3]", gpus_min=1, in_place=True), job("b", 4, gpus_min=1, in_place=True)]
    view = view_of("1x4", *jobs, n0=(3,))
    plan = Outsiders(make_policy("even")).plan(view)
    assert planned(plan) == {"a": "n0[0,1]", "b": "n0[2]"}
    assert plan.reasons["b"].text.startswith("has 1 GPU: others that it was to get are used")


def test_shares_are_of_what_is_left() -> None:
    queues = (Queue("a", quota=2), Queue("b"))
    jobs = [job("x", 4, queue="a", gpus_min=1, in_place=True), job("y", 4, queue="b", gpus_min=1, in_place=True)]
    view = view_of("1x4", *jobs, n0=(0,))
    found = entitlements(view, queues)
    assert sum(each.whole.entitled for each in found.values()) == 3
    plan = standard(make_policy("even"), queues).plan(view)
    assert_nobody_new_comes_there(view, plan)
    assert sizes(plan) == sizes(standard(make_policy("even"), queues).plan(view_of("1x3", *jobs)))


def test_a_forecast_takes_it_that_they_stay() -> None:
    jobs = [job("a", 1, on="n0[0]", estimate_s=100.0), job("b", 2, estimate_s=100.0), job("c", 1, estimate_s=50.0)]
    view = view_of("1x2", *jobs, now=10.0, n0=(1,))
    told = forecast(view, policy=standard(make_policy("backfill")), cadence=Cadence()).jobs
    assert (told["a"].ends_at, told["c"].starts_at) == (100.0, 100.0)
    assert (told["b"].starts_at, told["b"].why) == (None, "it needs 2 GPUs of one type, and there is 1")


def test_a_plan_that_makes_no_sense_stays_one() -> None:
    """It must not become a sensible one by accident, or nobody would find out."""
    closed = Closed.of(view_of("1x4", n0=(1,)))
    assert str(closed.real(Allocation.of({"n0": (0, 1, 2, 3)}))) == "n0[0,2,3,4]"


def test_texts_are_read_with_the_true_numbers_and_left_alone_otherwise() -> None:
    closed = Closed.of(view_of("2x4", n0=(0,)))
    assert closed.text("moves from n0[0,1] n1[0] to n0[2], not an0[1] or n0") == (
        "moves from n0[1,2] n1[0] to n0[3], not an0[1] or n0"
    )
