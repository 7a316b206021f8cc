"""Policies that preempt move a running job to a faster GPU type with room, if that saves it more than a start takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.learning import MODEL
from fairlead.core.node_order import in_order
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Belief, Observation, Phase
from fairlead.plugins import make_policy
from fairlead.policies.placing import Room
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces import Trace, TraceJob
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.testing import job, make_view
from fairlead.testing.scenario import GivenJob

PREEMPTING = ("srtf", "srtf-gpu", "smallest", "tiresias")
START_S = 30.0


def seen(view: Snapshot, left_s: Mapping[str, float], **speeds: float) -> Snapshot:
    """The same, with nodes that state their speeds, starts that were measured, and what an oracle knows."""
    nodes = [replace(node, speed=speeds.get(node.gpu_type, 1.0)) for node in view.nodes.values()]
    jobs = {name: replace(each, start_s=START_S if each.attempt else None) for name, each in view.jobs.items()}
    view = replace(view, nodes={node.id: node for node in in_order(nodes)}, _node_table=None, _version=(-1, -1))
    return replace(view, jobs=jobs, oracle=lambda job_id: left_s.get(job_id, 1000.0))


def types_of(policy: str, view: Snapshot) -> dict[str, str]:
    plan = make_policy(policy).plan(view)
    return {name: view.nodes[where.nodes[0]].gpu_type for name, where in sorted(plan.allocations.items())}


def slow_and_fast(*jobs: GivenJob, now: float = 5_000.0, **left_s: float) -> Snapshot:
    return seen(make_view("slow=2x4,fast=2x4", jobs, now=now), left_s, slow=1.0, fast=2.0)


@pytest.mark.parametrize("policy", PREEMPTING)
def test_a_job_on_a_slow_type_moves_to_a_faster_one_with_room(policy: str) -> None:
    view = slow_and_fast(job("a", 8, on="n0[0,1,2,3] n1[0,1,2,3]"))
    assert types_of(policy, view) == {"a": "fast"}
    reason = make_policy(policy).plan(view).reasons["a"].text
    assert reason.startswith("moves from slow to 8 GPUs of type fast: n2[0,1,2,3] n3[0,1,2,3]")


def test_shockwave_moves_a_job_when_a_round_begins_and_not_before() -> None:
    view = slow_and_fast(job("a", 4, on="n0[0,1,2,3]", estimate_s=20_000.0))
    assert types_of("shockwave", view) == {"a": "fast"}
    within = replace(view, memo={"shockwave": {"ends_at": view.now + 60.0}})
    assert types_of("shockwave", within) == {"a": "slow"}
    brief = slow_and_fast(job("a", 4, on="n0[0,1,2,3]", estimate_s=5_010.0))
    assert types_of("shockwave", brief) == {"a": "slow"}, "what is left is not worth a restart"


@pytest.mark.parametrize("policy", PREEMPTING)
def test_a_job_stays_where_types_are_equally_fast_drawn_or_full(policy: str) -> None:
    jobs = [job("a", 4, on="n0[0,1,2,3]")]
    equal = seen(make_view("slow=2x4,fast=2x4", jobs, now=5_000.0), {})
    assert types_of(policy, equal) == {"a": "slow"}
    assert types_of(f"{policy}:gpu_type=any", slow_and_fast(*jobs)) == {"a": "slow"}
    full = [job("b", 4, on="n2[0,1,2,3]", submitted_at=1.0), job("c", 4, on="n3[0,1,2,3]", submitted_at=2.0)]
    assert types_of(policy, slow_and_fast(*jobs, *full)) == {"a": "slow", "b": "fast", "c": "fast"}


@pytest.mark.parametrize(("left_s", "on"), [(59.0, "slow"), (61.0, "fast")])
def test_a_move_must_save_more_than_a_start_takes(left_s: float, on: str) -> None:
    """Half of what is left is saved by a type that is twice as fast, and a start takes 30 seconds."""
    assert types_of("srtf", slow_and_fast(job("a", 4, on="n0[0,1,2,3]"), a=left_s)) == {"a": on}


@pytest.mark.parametrize(("ran_s", "on"), [(59.0, "slow"), (61.0, "fast")])
def test_a_policy_that_knows_no_remaining_time_takes_a_job_to_have_as_much_left_as_it_has_run(
    ran_s: float, on: str
) -> None:
    view = slow_and_fast(job("a", 4, on="n0[0,1,2,3]"), now=ran_s)
    assert types_of("tiresias", view) == {"a": on}


@pytest.mark.parametrize("policy", PREEMPTING)
def test_a_job_is_not_moved_that_must_not_be_is_starting_or_began_a_moment_ago(policy: str) -> None:
    where = "n0[0,1,2,3]"
    fixed = job("a", 4, on=where, preemptible=False)
    starting = job("a", 4, on=where, phase=Phase.STARTING)
    fresh = job("a", 4, stints=[(where, 0.0, 4_000.0), (where, 4_980.0, None)])
    for each in (fixed, starting, fresh):
        assert types_of(policy, slow_and_fast(each)) == {"a": "slow"}
    unmeasured = slow_and_fast(job("a", 4, on=where))
    unmeasured = replace(unmeasured, jobs={"a": replace(unmeasured.jobs["a"], start_s=None)})
    assert types_of(policy, unmeasured) == {"a": "slow"}


def test_the_job_that_comes_first_in_the_order_moves_first() -> None:
    held = [job("a", 4, on="n0[0,1,2,3]"), job("b", 4, on="n1[0,1,2,3]"), job("c", 4, on="n2[0,1,2,3]")]
    assert types_of("srtf", slow_and_fast(*held, a=900.0, b=800.0, c=1.0)) == {"a": "slow", "b": "fast", "c": "fast"}


def test_gpus_that_a_move_leaves_go_to_a_job_that_did_not_fit() -> None:
    """Eight GPUs of the slow type fit only once the job there has left."""
    held = [job("a", 4, on="n0[0,1,2,3]"), job("b", 1, on="n2[0]"), job("w", 8, submitted_at=4_000.0)]
    found = types_of("srtf", slow_and_fast(*held, a=500.0, b=100.0, w=800.0))
    assert found == {"a": "fast", "b": "fast", "w": "slow"}


def test_a_job_is_not_moved_to_a_faster_type_where_it_would_be_spread_and_slower() -> None:
    """Four GPUs of the fast type are free, two on each node: so this model is slower there than on one slow node."""
    jobs = [
        job("a", 4, on="n0[0,1,2,3]", labels={MODEL: "m"}),
        *(job(f"b{n}", 2, on=f"n{n}[0,1]", submitted_at=1.0) for n in (2, 3)),
    ]
    view = slow_and_fast(*jobs)
    step_s = {("slow", 1): 0.2, ("fast", 1): 0.1, ("fast", 2): 0.5}
    steps = tuple(Observation(on, nodes, 4, 32, 0, taken_s, 0.0) for (on, nodes), taken_s in step_s.items())
    view = replace(view, lore={"m": Belief(observations=steps)})
    assert types_of("srtf", view)["a"] == "slow"
    roomy = replace(slow_and_fast(*jobs[:2]), lore=view.lore)
    assert types_of("srtf", roomy)["a"] == "fast"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(("srtf", "srtf-gpu", "smallest")))
def test_while_nothing_else_happens_a_job_moves_to_ever_faster_types_and_then_all_stay(seed: int, policy: str) -> None:
    rng = np.random.default_rng(seed)
    cluster, speeds = "a=2x4,b=2x4,c=1x8", {"a": 1.0, "b": 1.7, "c": 3.1}
    room, jobs = Room(make_view(cluster)), []
    for number in range(int(rng.integers(1, 12))):
        gpus, at = int(rng.choice([1, 2, 4, 8])), 10.0 * number
        placed = room.take(gpus, (str(rng.choice(list(speeds))),)) if rng.random() < 0.7 else None
        jobs.append(job(f"j{number}", gpus, on=None if placed is None else str(placed), submitted_at=at))
    left_s = {each.spec.id: float(rng.exponential(2_000.0)) for each in jobs}
    moved: dict[str, list[float]] = {each.spec.id: [] for each in jobs}
    view = seen(make_view(cluster, jobs, now=10_000.0), left_s, **speeds)
    for turn in range(2 * len(jobs) + 2):
        plan = make_policy(policy).plan(view)
        still = all(plan.allocations.get(name) == where for name, where in view.allocations.items())
        if turn and still and set(plan.allocations) == set(view.allocations):
            break
        for name, where in plan.allocations.items():
            if view.allocations.get(name) != where:
                moved[name].append(speeds[view.nodes[where.nodes[0]].gpu_type])
        again = [
            replace(each, stints=((str(plan.allocations[each.spec.id]), each.submitted_at, None),))
            if each.spec.id in plan.allocations
            else replace(each, stints=())
            for each in jobs
        ]
        view = seen(make_view(cluster, again, now=10_000.0), left_s, **speeds)
    else:
        pytest.fail("jobs keep moving though nothing happens")
    assert all(sorted(set(found)) == found for name, found in moved.items() if len(found) > 1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_oracle_is_no_worse_than_fifo_on_gpu_types_of_different_speed(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(260.0, 120))
    jobs = tuple(
        TraceJob(id=f"j{n}", submit_s=float(at[n]), gpus=gpus, gpus_min=gpus, gpus_max=gpus, duration_s=float(run_s))
        for n, (gpus, run_s) in enumerate(
            zip(
                rng.choice([1, 2, 4, 8], 120, p=[0.5, 0.2, 0.2, 0.1]).tolist(),
                rng.lognormal(6.6, 1.3, 120),
                strict=True,
            )
        )
    )
    trace = tmp_path / "jobs.jsonl"
    trace.write_text(to_jsonl(Trace(jobs=jobs, format="fairlead", source="test")))
    mean_s, restarts = {}, {}
    for policy in ("fifo", *PREEMPTING):
        run = Experiment(trace=str(trace), policy=policy, cluster="v100=4x4,a100=4x4", speeds="v100=1,a100=2")
        summary = run_experiment(run).measured.summary
        mean_s[policy], restarts[policy] = summary.jct_mean_s, summary.preemptions
    assert mean_s["srtf"] <= mean_s["fifo"]
    assert mean_s["srtf-gpu"] <= mean_s["fifo"]
    assert max(restarts.values()) <= len(jobs)  # no thrash
