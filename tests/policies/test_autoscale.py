"""Autoscale: when it decides, on how many nodes and on which, and what that saves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from fairlead.core.capability import Capability
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.memo import difference
from fairlead.core.messages import (
    JobExited,
    JobReported,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Release,
    Remember,
    Rent,
    Tick,
)
from fairlead.core.plan import changes, check, reconcile
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Batch, JobSpec, Node, Observation, Plan
from fairlead.journal import MemoryJournal, replay
from fairlead.plugins import make_policy
from fairlead.policies.autoscale import Autoscale
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.policies.pollux import Pollux
from fairlead.policies.ranked import ShortestRemainingTimeOracle
from fairlead.policies.tiresias import Tiresias
from fairlead.sim.backend import SimBackend
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.metrics import Metrics
from fairlead.testing import GivenJob, check_policy, job, make_state, placement
from fairlead.testing.workload import Workload, workloads

PATIENT_S, IDLE_S = 900.0, 300.0
BATCH = Batch(32, max_total=4096, max_per_gpu=32)


def wait(state: State, seconds: float) -> Snapshot:
    state.apply(Tick(state.now + seconds))
    return state.snapshot()


def decide(policy: Policy, state: State) -> Plan:
    """Ask once, and carry out what concerns nodes."""
    view = state.snapshot()
    plan = policy.plan(view)
    changed = changes(view, plan)
    check(view, plan, changed)
    state.issue(Remember(view.now, difference(view.memo, plan.memo)))
    for command in reconcile(view, plan, changed):
        if isinstance(command, Rent | Release):
            state.issue(command)
    return plan


def there(state: State) -> list[str]:
    return [node.id for node in state.nodes.values() if node.healthy]


def after(policy: Policy, state: State, seconds: float) -> list[str]:
    """The nodes that are there or coming if nothing happens for so long."""
    decide(policy, state)
    wait(state, seconds)
    decide(policy, state)
    return [node_id for node_id in state.nodes if state.nodes[node_id].healthy or node_id in state.coming]


def released(nodes: str | Sequence[Node], jobs: Iterable[GivenJob], gone: Iterable[str], now: float = 0.0) -> State:
    state = make_state(nodes, jobs, now=now)
    for node in gone:
        state.issue(Release(now, node))
    return state


# -- when ------------------------------------------------------------------------------------------------------------


def test_idle_nodes_go_after_the_time_for_that_and_not_before() -> None:
    jobs = [job("a", 4, on="n1[0,1,2,3]")]
    assert after(Autoscale(Fifo()), make_state("4x4", jobs), IDLE_S - 1.0) == ["n0", "n1", "n2", "n3"]
    assert after(Autoscale(Fifo()), make_state("4x4", jobs), IDLE_S) == ["n1"]


def test_nodes_come_for_jobs_that_wait_after_the_time_for_that_and_not_before() -> None:
    jobs = [job("a", 4, on="n0[0,1,2,3]"), job("b", 4)]
    assert after(Autoscale(Fifo()), released("4x4", jobs, ["n1", "n2", "n3"]), PATIENT_S - 1.0) == ["n0"]
    assert after(Autoscale(Fifo()), released("4x4", jobs, ["n1", "n2", "n3"]), PATIENT_S) == ["n0", "n1"]


def test_it_asks_to_be_reviewed_when_its_window_ends() -> None:
    idle, waiting = [job("a", 4, on="n1[0,1,2,3]")], [job("a", 4, on="n0[0,1,2,3]"), job("b", 4)]
    assert Autoscale(Fifo()).plan(make_state("4x4", idle, now=7.0).snapshot()).review_at == 7.0 + IDLE_S
    assert Autoscale(Fifo()).plan(released("2x4", waiting, ["n1"], 7.0).snapshot()).review_at == 7.0 + PATIENT_S


def test_it_asks_for_no_review_where_nothing_could_change() -> None:
    full = [job("a", 4, on="n0[0,1,2,3]"), job("b", 4)]
    assert Autoscale(Fifo()).plan(make_state("1x4", full).snapshot()).review_at == math.inf
    assert Autoscale(Fifo()).plan(make_state("1x4").snapshot()).review_at == math.inf
    half = [job("a", 2, on="n0[0,1]")]
    assert Autoscale(Fifo()).plan(make_state("1x4", half).snapshot()).review_at == math.inf


def test_the_inner_policys_review_comes_first_if_it_is_earlier() -> None:
    jobs = [job("a", 2, on="n0[0,1]"), job("b", 6)]  # b waits, so it matters when a falls
    inner = Tiresias(thresholds=(100.0,))
    assert (
        Autoscale(inner).plan(make_state("1x4", jobs).snapshot()).review_at
        == inner.plan(make_state("1x4", jobs).snapshot()).review_at
        == 50.0
    )


def test_a_short_peak_changes_nothing() -> None:
    policy, state = Autoscale(Fifo()), released("2x4", [job("a", 2, on="n0[0,1]")], ["n1"])
    for second in range(0, 3600, 100):
        if second == 1000:
            state.apply(JobSubmitted(state.now, JobSpec(id="b", gpus=4)))
        if second == 1300:
            state.apply(JobExited(state.now, "a", 1))
            assert placement(decide(policy, state)) == {"b": "n0[0,1,2,3]"}
        decide(policy, state)
        assert there(state) == ["n0"]
        if second >= 1300 + PATIENT_S - 100:
            break
        wait(state, 100.0)


def test_who_comes_after_an_idle_time_gets_its_nodes_at_once() -> None:
    policy, state = Autoscale(Fifo()), make_state("4x4")
    assert after(policy, state, IDLE_S) == ["n0"]
    decide(policy, state)
    wait(state, 5000.0)
    state.apply(JobSubmitted(state.now, JobSpec(id="a", gpus=10)))
    decide(policy, state)
    assert state.coming == {"n1", "n2"}


def test_bounds_hold_at_once() -> None:
    state = make_state("4x4")
    decide(Autoscale(Fifo(), most=3), state)
    assert there(state) == ["n0", "n1", "n2"]
    state.apply(NodeLost(state.now, "n0"))
    decide(Autoscale(Fifo(), least=3), state)
    assert state.coming == {"n3"}


# -- which -----------------------------------------------------------------------------------------------------------


def priced(*prices: float, gpus: int = 4) -> list[Node]:
    return [Node(f"n{place}", gpus, price_per_hour=price) for place, price in enumerate(prices)]


def test_the_cheapest_nodes_are_rented_first() -> None:
    state = released(priced(5.0, 3.0, 1.0, 2.0), [job("a", 4, on="n0[0,1,2,3]"), job("b", 8)], ["n1", "n2", "n3"])
    assert after(Autoscale(Fifo()), state, PATIENT_S) == ["n0", "n2", "n3"]


def test_of_idle_nodes_the_dearest_go_first() -> None:
    assert after(Autoscale(Fifo(), least=2), make_state(priced(2.0, 1.0, 3.0, 1.5)), IDLE_S) == ["n1", "n3"]


def test_nodes_with_the_fewest_gpus_in_use_go_first_and_their_jobs_move() -> None:
    jobs = [job("a", 1, on="n0[0]"), job("b", 3, on="n1[0,1,2]"), job("c", 1, on="n2[0]")]
    policy, state = Autoscale(Backfill(), low=0.5, high=0.9), make_state(priced(1.0, 9.0, 1.0), jobs)
    decide(policy, state)
    wait(state, IDLE_S)
    plan = decide(policy, state)
    assert plan.nodes == {"n0", "n1"}
    assert set(plan.allocations["c"].nodes) <= {"n0", "n1"}
    assert there(state) == ["n0", "n1", "n2"], "c is still on n2"
    assert decide(policy, state).nodes == {"n0", "n1"}, "it does not change its mind while c moves"


def test_a_job_that_must_not_be_moved_keeps_its_node() -> None:
    jobs = [job("a", 1, on="n0[0]"), job("b", 1, on="n1[0]", preemptible=False)]
    policy, state = Autoscale(Backfill()), make_state("3x4", jobs)
    decide(policy, state)
    wait(state, IDLE_S)
    plan = decide(policy, state)
    assert plan.nodes is not None
    assert "n1" in plan.nodes
    assert str(plan.allocations["b"]) == "n1[0]"


def test_an_elastic_job_shrinks_in_place_to_the_nodes_that_stay() -> None:
    spread = job("a", 3, on="n0[0,1] n1[0]", gpus_min=1, gpus_max=8, in_place=True, batch=BATCH)
    policy, state = Autoscale(Pollux()), make_state("8x2", [spread])
    _measure(state, "a", gpus=3, nodes=2, noise_scale=0.0)
    decide(policy, state)
    wait(state, IDLE_S)
    plan = decide(policy, state)
    assert plan.nodes == {"n0"}
    assert plan.allocations["a"].nodes == ("n0",)


def test_failed_and_draining_nodes_are_none_of_its_business() -> None:
    state = make_state("5x4", [job("a", 1, on="n4[0]")])
    state.apply(NodeDrained(0.0, "n3"))
    state.apply(NodeLost(0.0, "n2"))
    assert after(Autoscale(Fifo()), state, IDLE_S) == ["n3", "n4"]
    plan = decide(Autoscale(Fifo()), state)
    assert plan.nodes == {"n2", "n3", "n4"}


def test_a_gpu_type_that_a_job_needs_is_rented() -> None:
    nodes = [Node("n0", 4, "a100"), Node("n1", 4, "a100"), Node("n2", 4, "k80", price_per_hour=9.0)]
    jobs = [job("a", 2, on="n0[0,1]"), job("b", 1, gpu_types=("k80",))]
    assert after(Autoscale(Backfill()), released(nodes, jobs, ["n1", "n2"]), PATIENT_S) == ["n0", "n2"]


def test_a_job_too_large_for_any_cluster_does_not_keep_the_nodes() -> None:
    jobs = [job("a", 1, on="n0[0]"), job("huge", 100)]
    assert after(Autoscale(Backfill()), make_state("4x4", jobs), PATIENT_S) == ["n0"]


# -- how many --------------------------------------------------------------------------------------------------------


def _measure(state: State, job_id: str, *, gpus: int, nodes: int, noise_scale: float) -> None:
    """All steps take a second: what large batches are worth decides how well it scales."""
    settings = ((1, 1, 4), (1, 1, 32), (nodes, gpus, 4), (nodes, gpus, 32))
    seen = tuple(Observation("gpu", n, k, batch, 0, 1.0, 0.0) for n, k, batch in settings)
    state.apply(JobReported(state.now, job_id, state.live[job_id].attempt, 0.1, 32 * gpus, noise_scale, seen))


def test_a_job_that_scales_gets_more_nodes_and_one_that_does_not_gets_fewer() -> None:
    def nodes_for(noise_scale: float) -> int:
        running = job("a", 8, on="n00[0,1,2,3] n01[0,1,2,3]", gpus_min=1, gpus_max=64, batch=BATCH)
        state = released("16x4", [running], [f"n{k:02d}" for k in range(2, 16)])
        _measure(state, "a", gpus=8, nodes=2, noise_scale=noise_scale)
        policy = Autoscale(Pollux())
        after(policy, state, PATIENT_S)
        return len(decide(policy, state).nodes or ())

    assert nodes_for(1e6) > 2
    assert nodes_for(0.0) < 2


def test_it_adapts_as_the_inner_policy_does_and_needs_renting_too() -> None:
    assert (Autoscale().adapts, Autoscale().needs) == ("batch", {Capability.RENTING})
    assert (Autoscale(Fifo()).adapts, Autoscale(Fifo()).needs) == ("nothing", {Capability.RENTING})
    nested = Autoscale(Autoscale(ShortestRemainingTimeOracle()))
    assert nested.needs == {Capability.ORACLE, Capability.RENTING}


def test_what_ifs_do_not_become_the_inner_policys_memories() -> None:
    @dataclass(frozen=True)
    class Remembers:
        """A policy that counts the nodes it saw."""

        def plan(self, view: Snapshot) -> Plan:
            seen = [*view.memo.get("seen", []), sum(node.healthy for node in view.nodes.values())]
            return replace(Fifo().plan(view), memo={"seen": seen})

    state = make_state("4x4", [job("a", 4, on="n1[0,1,2,3]")])
    after(Autoscale(Remembers()), state, IDLE_S)
    assert state.snapshot().memo["seen"] == [4, 1]


def test_reasons_and_bounds_are_those_of_the_inner_policy() -> None:
    view = make_state("2x4", [job("a", 2), job("b", 8)]).snapshot()
    worn, alone = Autoscale(Fifo()).plan(view), Fifo().plan(view)
    assert dict(worn.reasons) == dict(alone.reasons)
    assert worn.allocations == alone.allocations
    assert worn.bound == alone.bound


# -- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        "autoscale+fifo",
        "autoscale:patience_s=60,release_after_s=60+fifo",
        "autoscale:patience_s=60,release_after_s=60,least=2+pollux",
        "autoscale:patience_s=60,release_after_s=60+tiresias:promote=2",
        "autoscale:patience_s=60,release_after_s=60+srtf",
        "autoscale+autoscale:least=2+backfill",
    ],
)
def test_around_any_policy_it_keeps_the_contract(policy: str) -> None:
    check_policy(make_policy(policy), examples=12)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(workloads())
@pytest.mark.parametrize("inner", ["fifo", "pollux"])
def test_there_are_never_too_few_or_too_many_nodes(inner: str, workload: Workload) -> None:
    """And no node in use is released: the state would refuse it."""
    least, most = 2, max(2, len(workload.nodes) - 1)
    policy = make_policy(f"autoscale:least={least},most={most},patience_s=60,release_after_s=30+{inner}")
    state, journal = State(), MemoryJournal()
    backend = SimBackend(workload.jobs, workload.nodes, outages=workload.outages, provision_s=40.0)
    run(policy, backend, state=state, journal=journal, cadence=Cadence(period_s=50.0))
    assert replay(journal.messages) == state
    assert all(least <= count for count in _ordered(journal.messages))


def _ordered(messages: Iterable[Message]) -> list[int]:
    """How many nodes were there or on their way, after each moment; what failed counts as there."""
    nodes, counts = set[str](), dict[float, int]()
    for message in messages:
        if isinstance(message, NodeJoined):
            nodes.add(message.node.id)
        elif isinstance(message, Rent):
            nodes.add(message.node)
        elif isinstance(message, Release):
            nodes.discard(message.node)
        counts[message.at] = len(nodes)
    return list(counts.values())


# -- the paper's experiment ------------------------------------------------------------------------------------------


def trained(path: Path, policy: str) -> tuple[Metrics, list[int]]:
    """One large job on up to 16 nodes; the figures, and how many nodes there were in each hour."""
    path.write_text('{"fairlead_trace": 1}\n' + json.dumps({"job": JOB}) + "\n")
    journal = MemoryJournal()
    experiment = Experiment(trace=str(path), policy=policy, cluster="16x4@1", cadence="event+60s")
    result = run_experiment(experiment, journal=journal)
    timeline = result.measured.timeline
    hours = [timeline.healthy_nodes[timeline.times_s <= at][-1] for at in range(1800, int(timeline.end_s), 3600)]
    return result.measured.summary, [int(nodes) for nodes in hours]


JOB = {"id": "large", "submit_s": 0, "gpus": 1, "model": "large-cnn"}


def test_one_large_job_gets_more_nodes_as_its_noise_scale_grows_and_costs_less(tmp_path: Path) -> None:
    """Pollux, the autoscaling experiment: 25 % cheaper for 6 % more time, there against scaling by throughput."""
    always, _ = trained(tmp_path / "one.jsonl", "pollux")
    scaled, hours = trained(tmp_path / "one.jsonl", "autoscale:low=0.25,high=0.55+pollux")
    assert hours == sorted(hours)
    assert hours[0] <= 8
    assert hours[-1] == 16
    assert scaled.jct_mean_s is not None
    assert always.jct_mean_s is not None
    assert scaled.cost < 0.8 * always.cost
    assert scaled.jct_mean_s < 1.15 * always.jct_mean_s
    assert scaled.cost == pytest.approx(4.0 * scaled.node_hours)


def test_higher_thresholds_are_cheaper_and_slower(tmp_path: Path) -> None:
    found = [trained(tmp_path / "one.jsonl", f"autoscale:low={low},high={low + 0.3}")[0] for low in (0.25, 0.35, 0.45)]
    costs, times = [figures.cost for figures in found], [figures.jct_mean_s for figures in found]
    assert costs == sorted(costs, reverse=True)
    assert times == sorted(times)  # type: ignore[type-var]  # all of them completed
