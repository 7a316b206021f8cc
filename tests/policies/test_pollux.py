"""Pollux's formulas by hand, its fitness against trying everything, its own search, and who is protected.

The contract of all policies is checked in test_builtin_contract.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import JobReported
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Batch, Observation, Phase, Plan
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.appraising import Appraiser
from fairlead.policies.pollux import Pollux
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Outage, SimJob
from fairlead.testing import GivenJob, Scenario, check_policy, job, make_state, make_view, placement

#: Without what we add to the paper's restart factor.
PAPER = {"gain": 1.0}

BATCH = Batch(128, 4096, max_per_gpu=256)


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


def elastic(job_id: str, **more: Any) -> GivenJob:
    return job(job_id, gpus_max=8, **more)


def measured(by: ThroughputParams, gpus: int, *, nodes: int = 1, m: int = 64, steps: int = 100) -> Observation:
    step_s = float(step_time(by, nodes, gpus, m))
    sync_s = float(update_time(by, nodes, gpus, m) - grad_time(by, m))
    return Observation("gpu", nodes, gpus, m, 0, step_s, sync_s, steps)


def report(state: State, job_id: str, *observations: Observation, **more: Any) -> State:
    attempt = state.live[job_id].attempt
    state.apply(JobReported(state.now, job_id, attempt, 0.1, observations=observations, **more))
    return state


# -- the formulas ------------------------------------------------------------------------------------------------------

#: Two jobs that hold one GPU each of 2 nodes x 2 GPUs, of which nothing is known: goodput is the number of GPUs.
#: N/C = 1/2, the fair share is 2 GPUs, so SPEEDUP is 1/2 with one GPU and 1 with two.
PAIR = [elastic("a", on="n0[0]"), elastic("b", on="n1[0]")]


def cost(speedup: float, restart: float = 1.0) -> float:
    """One job's part of the fitness with p = -1."""
    return 1.0 / (speedup * restart * 2 / 4 + 1e-3)


def test_a_job_grows_where_its_speedup_is_worth_the_restart() -> None:
    plan = Pollux(**PAPER).plan(make_view("2x2", PAIR, now=120.0))  # RESTART = 120 / (120 + 30) = 0.8
    assert placement(plan) == {"a": "n0[0,1]", "b": "n1[0,1]"}
    numbers = plan.reasons["a"].numbers
    assert numbers["speedup"] == pytest.approx(2.0)
    assert numbers["objective_stay"] == pytest.approx(cost(1.0, 0.8) - cost(0.5))
    assert numbers["objective_less"] == pytest.approx(cost(1.0, 0.8) - cost(0.5, 0.8))


def test_a_job_stays_where_the_restart_costs_as_much_as_it_gains() -> None:
    """Twice the speed at RESTART = 30 / (30 + 30) = 1/2 is what it has."""
    plan = Pollux(**PAPER).plan(make_view("2x2", PAIR, now=29.0))
    assert placement(plan) == {"a": "n0[0]", "b": "n1[0]"}
    assert plan.reasons["a"].numbers["objective_more"] == pytest.approx(cost(0.5) - cost(1.0, 29.0 / 59.0))
    assert plan.reasons["a"].numbers["objective_less"] == pytest.approx(cost(0.5) - 1000.0)
    assert plan.bound == 0.0
    assert sizes(Pollux(**PAPER).plan(make_view("2x2", PAIR, now=31.0))) == {"a": 2, "b": 2}


def test_what_a_restart_takes_is_an_option() -> None:
    view = make_view("2x2", PAIR, now=29.0)
    assert sizes(Pollux(**PAPER, restart_s=28.0).plan(view)) == {"a": 2, "b": 2}
    assert sizes(Pollux(**PAPER, restart_s=0.0).plan(view)) == {"a": 2, "b": 2}
    assert sizes(Pollux(**PAPER, restart_s=300.0).plan(view)) == {"a": 1, "b": 1}


def test_a_change_must_make_a_job_so_many_times_as_fast() -> None:
    view = make_view("2x2", PAIR, now=3000.0)  # 3000 / 3030 x 2 = 1.98 times as fast
    assert sizes(Pollux(gain=1.97).plan(view)) == {"a": 2, "b": 2}
    assert sizes(Pollux(gain=1.99).plan(view)) == {"a": 1, "b": 1}


def test_a_job_that_has_not_run_has_nothing_to_lose_by_its_start() -> None:
    plan = Pollux().plan(make_view("2x2", [elastic("a"), elastic("b")]))
    assert sizes(plan) == {"a": 1, "b": 1}  # at first the fewest it can have
    assert plan.reasons["a"].numbers["objective_less"] == pytest.approx(cost(0.5) - 1000.0)


@pytest.mark.parametrize(("p", "shares"), [(-1.0, (2, 2)), (0.0, (1, 3)), (1.0, (1, 3))])
def test_the_exponent_weighs_the_sum_against_the_least(p: float, shares: tuple[int, int]) -> None:
    """One job scales perfectly, the other is 1.4 times as fast with its second GPU, and who has it may give it up.

    SPEEDUPs are (1, 1) with two GPUs each, and (1 / 1.4, 1.5) else: the harmonic mean is 1 or 0.968, the geometric
    one 1 or 1.035, the arithmetic one 1 or 1.107.
    """
    bent = ThroughputParams(0.0, 0.01, 0.0, 0.0, 1.28 / 1.4 - 0.64, 0.0, 1.0)  # 128 samples: 1.28 s, and 1.28 / 1.4 s
    jobs = [
        job("bent", 2, gpus_min=1, gpus_max=2, on="n0[0,1]", batch=Batch(128, 128)),
        job("straight", 2, gpus_min=1, gpus_max=8, on="n0[2,3]"),
    ]
    state = make_state("1x4", jobs, now=1e9)
    report(state, "bent", measured(bent, 1, m=128), measured(bent, 2, m=64), measured(bent, 1, m=64))
    plan = Pollux(**PAPER, p=p).plan(state.snapshot())
    assert plan.reasons["bent"].numbers["speedup"] == pytest.approx((1.0, 1.4)[shares[0] - 1], rel=0.01)
    assert sizes(plan) == {"bent": shares[0], "straight": shares[1]}


def test_the_fair_share_counts_only_gpus_that_may_be_given_out() -> None:
    """2 jobs on 2 x 4 GPUs, one node drains: the fair share is 2, and N/C is 1/4."""
    jobs = [elastic("a", on="n0[0]"), elastic("b", on="n0[1]")]
    plan = Pollux(**PAPER).plan(make_view("2x4", jobs, now=1e9, draining=["n1"]))
    assert sizes(plan) == {"a": 2, "b": 2}
    moved, kept = 1.0 / (1.0 / 4 + 1e-3), 1.0 / (0.5 / 4 + 1e-3)
    assert plan.reasons["a"].numbers["objective_stay"] == pytest.approx(moved - kept, rel=1e-6)


def test_a_fair_share_that_is_no_whole_number_is_rounded_up() -> None:
    """3 jobs on 4 GPUs: 2 each, so that one GPU is half of it."""
    jobs = [elastic(name, on=f"n0[{gpu}]") for gpu, name in enumerate("abc")]
    plan = Pollux(**PAPER).plan(make_view("1x4", jobs, now=1e9))
    assert sorted(sizes(plan).values()) == [1, 1, 2]
    stays = next(name for name, count in sizes(plan).items() if count == 1)
    expected = 1.0 / (0.5 / 4 + 1e-3) - 1.0 / (1.0 / 4 + 1e-3)
    assert plan.reasons[stays].numbers["objective_more"] == pytest.approx(expected, rel=1e-6)


# -- who gets what -----------------------------------------------------------------------------------------------------


def test_a_job_that_gains_nothing_by_more_gpus_gets_few() -> None:
    flat = ThroughputParams(0.0, 0.01, 1.28, 0.0, 0.64, 0.2, 1.0)  # 128 samples take 1.28 s on one GPU as on two
    jobs = [
        job("flat", 2, gpus_min=1, gpus_max=8, on="n0[0,1]", batch=Batch(128, 128)),
        job("steep", 2, gpus_min=1, gpus_max=8, on="n0[2,3]"),
    ]
    state = make_state("1x4", jobs, now=1e6)
    report(state, "flat", measured(flat, 1, m=128), measured(flat, 2, m=64), measured(flat, 4, m=32))
    plan = Pollux().plan(state.snapshot())
    assert sizes(plan) == {"flat": 1, "steep": 3}


def test_a_young_job_that_was_restarted_often_is_left_alone() -> None:
    """At 200 s: 200 / 230 after one start, (200 - 5 x 30) / 230 after six; twice the GPUs are worth the first only."""
    often = [(f"n0[{k % 2}]", 20.0 * k, 20.0 * (k + 1)) for k in range(5)]
    jobs = [elastic("calm", on="n1[0]"), elastic("shaken", stints=[*often, ("n0[0]", 100.0, None)])]
    assert sizes(Pollux().plan(make_view("2x2", jobs, now=200.0))) == {"calm": 2, "shaken": 1}
    assert sizes(Pollux().plan(make_view("2x2", jobs, now=2000.0))) == {"calm": 2, "shaken": 2}


def test_a_job_that_waits_is_started_again_however_often_it_was_restarted() -> None:
    """It has nothing to lose, and the whole cluster is free."""
    waits = elastic("a", stints=[("n0[0]", 0.0, 5.0), ("n0[0]", 5.0, 10.0)])
    plan = Pollux().plan(make_view("1x4", [waits], now=10.0))
    assert plan.allocations or plan.review_at < math.inf


def test_a_job_on_a_node_that_fails_twice_in_a_row_still_finishes() -> None:
    jobs = [SimJob(job("a").spec, 0.0, FixedDuration(100.0, 1))]
    outages = [Outage("n0", 5.0, 6.0), Outage("n0", 10.0, 11.0)]
    state, backend = State(), SimBackend(jobs, parse_cluster("1x1"), outages=outages)
    run(Pollux(), backend, state=state, journal=MemoryJournal(), cadence=Cadence())
    assert state.finished["a"].phase is Phase.SUCCEEDED


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_nobody_starves_while_there_are_as_many_gpus_as_jobs(nodes: list[int], wanted: list[int]) -> None:
    """Whatever they hold now: nothing, or up to three GPUs of one node."""
    free = {f"n{place}": list(range(gpus)) for place, gpus in enumerate(nodes)}
    jobs = list[GivenJob]()
    for number, count in enumerate(wanted[: sum(nodes)]):
        node = next((node for node, gpus in free.items() if len(gpus) >= count > 0), None)
        where = None if node is None else f"{node}[{','.join(str(free[node].pop()) for _ in range(count))}]"
        jobs.append(job(f"j{number}", max(1, count), gpus_min=1, gpus_max=8, on=where))
    plan = Pollux().plan(make_view(",".join(f"1x{gpus}" for gpus in nodes), jobs, now=1e5))
    assert len(plan.allocations) == len(jobs)


def test_without_open_nodes_everybody_stays_and_is_told_why() -> None:
    jobs = [elastic("a", on="n0[0]"), elastic("b")]
    plan = Pollux().plan(make_view("1x2", jobs, draining=["n0"]))
    assert placement(plan) == {"a": "n0[0]"}
    assert set(plan.reasons) == {"a", "b"}
    assert Pollux().plan(make_view((), [elastic("b")])).allocations == {}
    assert Pollux().plan(make_view("1x2", [])).allocations == {}


def test_rigid_and_unpreemptible_jobs_are_served_as_they_are() -> None:
    jobs = [
        job("bound", 2, gpus_min=1, gpus_max=4, preemptible=False, on="n0[1,2]"),
        job("rigid", 3),
        elastic("grows", on="n1[0]"),
    ]
    expected = {"bound": "n0[1,2]", "rigid": 3, "grows": 2}  # two on n0, beside the bound one
    Scenario(nodes="2x4", jobs=jobs, now=1e5, expected=expected).check(Pollux())


# -- against trying everything -----------------------------------------------------------------------------------------

#: GPUs on each of two nodes.
Counts = tuple[int, int]


def fitness(view: Snapshot, counts: Mapping[str, Counts], *, p: float = -1.0, restart_s: float = 30.0) -> float:
    """Equation 14 as the module's docstring has it, with everybody's true terms."""
    nodes, gpus = len(view.nodes), sum(node.gpus for node in view.nodes.values())
    fair = -(-gpus // len(view.jobs))
    total = 0.0
    for given_job in view.jobs.values():
        (appraisal,) = Appraiser().appraise(view, [given_job], "gpu", reach=fair, lore=False)
        mine = counts[given_job.id]
        speedup = 0.0
        if sum(mine):
            speedup = appraisal.goodput(sum(count > 0 for count in mine), sum(mine)) / appraisal.goodput(1, fair)
        age = view.now - given_job.submitted_at
        held = held_counts(view, given_job.allocation.shares)
        restart = max(age - (given_job.attempt - 1) * restart_s, 0.0) / (age + restart_s)
        if mine == held or given_job.attempt == 0:
            restart = 1.0
        x = speedup * restart * nodes / gpus + 1e-3
        total += math.log(x) if p == 0.0 else x**p
    mean = total / len(view.jobs)
    return math.exp(mean) if p == 0.0 else mean ** (1.0 / p)


def held_counts(view: Snapshot, shares: Sequence[tuple[str, tuple[int, ...]]]) -> Counts:
    by_node = {node: len(gpus) for node, gpus in shares}
    first, second = (by_node.get(node, 0) for node in view.nodes)
    return first, second


def everything(view: Snapshot) -> Iterator[dict[str, Counts]]:
    """Every allocation that keeps the limits, the nodes, and at most one job across nodes on either."""
    sizes_N = [node.gpus for node in view.nodes.values()]
    by_job: list[list[Counts]] = []
    for given_job in view.jobs.values():
        (appraisal,) = Appraiser().appraise(view, [given_job], "gpu", reach=1, lore=False)
        some = list(product(range(sizes_N[0] + 1), range(sizes_N[1] + 1)))
        by_job.append([c for c in some if sum(c) == 0 or given_job.spec.least <= sum(c) <= appraisal.most])
    for choice in product(*by_job):
        fits = all(sum(counts[node] for counts in choice) <= sizes_N[node] for node in (0, 1))
        if fits and sum(counts[0] > 0 and counts[1] > 0 for counts in choice) <= 1:
            yield dict(zip(view.jobs, choice, strict=True))


def small_view(seed: int, jobs: int) -> Snapshot:
    """Two nodes of two GPUs, and jobs that were measured, or not, and restarted, or not."""
    draw = random.Random(seed)
    free = [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]
    given_jobs, running = list[GivenJob](), list[str]()
    for number in range(jobs):
        name, at = f"j{number}", draw.choice([0.0, 100.0, 290.0])
        count = draw.choice([0, 1, 1, 2])
        if len(free) < count:
            count = 0
        mine, free = free[:count], free[count:]
        where = " ".join(f"{n}[{','.join(str(g) for m, g in mine if m == n)}]" for n in dict(mine)) or None
        given_jobs.append(job(name, max(1, count), gpus_min=1, gpus_max=4, submitted_at=at, on=where, batch=BATCH))
        running += [name] if count else []
    state = make_state("2x2", given_jobs, now=draw.choice([300.0, 3000.0]))
    for name in running:
        by = ThroughputParams(0.05, 0.002, draw.uniform(0.0, 1.0), 0.01, draw.uniform(0.0, 0.2), 0.01, 1.5)
        if draw.random() < 0.7:
            report(state, name, measured(by, 1), measured(by, 2), measured(by, 2, nodes=2), noise_scale=1000.0)
    return state.snapshot()


def planned(view: Snapshot, plan: Plan) -> dict[str, Counts]:
    return {
        name: held_counts(view, plan.allocations[name].shares) if name in plan.allocations else (0, 0)
        for name in view.jobs
    }


@pytest.mark.parametrize("p", [-1.0, 0.0, 0.5])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), jobs=st.integers(1, 3))
def test_the_bound_is_honest_and_a_small_cluster_is_shared_out_almost_as_well_as_can_be(
    p: float, seed: int, jobs: int
) -> None:
    view = small_view(seed, jobs)
    best = max(fitness(view, counts, p=p) for counts in everything(view))
    plan = Pollux(**PAPER, p=p).plan(view)
    found = fitness(view, planned(view, plan), p=p)
    assert plan.bound is not None
    assert 0.0 <= plan.bound <= 1.0
    assert (1.0 - plan.bound) * best <= found * (1.0 + 1e-9)
    assert 0.85 * best <= found <= best * (1.0 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), jobs=st.integers(2, 3))
def test_the_papers_own_search_is_never_better_than_the_bound_of_the_exact_one(seed: int, jobs: int) -> None:
    view = small_view(seed, jobs)
    exact, genetic = Pollux(**PAPER).plan(view), Pollux(**PAPER, search="genetic").plan(view)
    found, evolved = (fitness(view, planned(view, plan)) for plan in (exact, genetic))
    assert exact.bound is not None
    assert genetic.bound is not None
    assert evolved * (1.0 - exact.bound) <= found * (1.0 + 1e-9)
    best = max(fitness(view, counts) for counts in everything(view))
    assert 0.0 <= genetic.bound <= 1.0
    assert (1.0 - genetic.bound) * best <= evolved * (1.0 + 1e-9)


def test_the_papers_own_search_is_determined_by_its_seed() -> None:
    jobs = [elastic(f"j{number}", on=f"n{number % 4}[{number // 4}]") for number in range(12)]
    view = make_view("4x4", jobs, now=1e4)
    first, again = (Pollux(search="genetic", seed=1).plan(view) for _ in range(2))
    assert placement(first) == placement(again)
    assert first.bound == again.bound
    others = [placement(Pollux(search="genetic", seed=seed).plan(view)) for seed in range(2, 6)]
    assert any(other != placement(first) for other in others)


def test_the_papers_own_search_knows_one_gpu_type() -> None:
    with pytest.raises(InvalidSpec, match="given 2 GPU types; it knows one"):
        Pollux(search="genetic").plan(make_view("v100=1x2,t4=1x2", [elastic("a")]))


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ["", "greedy", "Exact"])
def test_there_are_two_searches(search: str) -> None:
    with pytest.raises(InvalidSpec, match=r"search is .*; expected exact or genetic"):
        Pollux(search=search)


@pytest.mark.parametrize("options", [{"p": math.nan}, {"p": math.inf}, {"p": -math.inf}])
def test_the_exponent_is_a_finite_number(options: dict[str, float]) -> None:
    with pytest.raises(InvalidSpec, match=r"p is .*; expected -10 to 1"):
        Pollux(**options)


@pytest.mark.parametrize("restart_s", [-1.0, math.nan, math.inf])
def test_a_restart_takes_no_less_than_nothing(restart_s: float) -> None:
    with pytest.raises(InvalidSpec, match=r"restart_s is .*; expected a number of seconds"):
        Pollux(restart_s=restart_s)


@pytest.mark.parametrize("gain", [0.99, 0.0, -1.0, math.nan, math.inf])
def test_the_gain_of_a_change_is_a_factor_of_at_least_one(gain: float) -> None:
    with pytest.raises(InvalidSpec, match=r"gain is .*; expected a factor of at least 1"):
        Pollux(gain=gain)


@pytest.mark.parametrize(
    "p",
    [-10.0, -2.5, 0.0, 0.5, 1.0],
)
def test_any_exponent_that_is_allowed_starts_a_job_that_waits_for_free_gpus(p: float) -> None:
    plan = Pollux(p=p).plan(make_view("1x4", [elastic("a", on="n0[0]"), elastic("b")], now=1e4))
    assert "b" in plan.allocations


def test_options_can_be_given_as_text() -> None:
    assert make_policy("pollux:p=-2,restart_s=60,search=genetic,seed=7") == Pollux(
        p=-2.0, restart_s=60.0, search="genetic", seed=7
    )


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_other_exponents_keep_the_contract_too(p: float) -> None:
    check_policy(Pollux(p=p), examples=10)


@pytest.mark.slow
def test_a_restart_may_cost_nothing() -> None:
    check_policy(Pollux(restart_s=0.0), examples=10)
    Pollux(restart_s=0.0).plan(make_view("1x4", [job("a", on="n0[0]")], now=0.0))


@pytest.mark.parametrize("p", [1.0, -1.0])
def test_a_job_that_is_bound_to_where_it_gets_nowhere_counts_as_if_it_waited(p: float) -> None:
    state = make_state("1x4", [job("a", 2, on="n0[0,1]", preemptible=False, batch=Batch(8, 8, 8))], now=100.0)
    state.apply(JobReported(100.0, "a", 1, 0.1, 8, 10.0, (Observation("gpu", 1, 2, 8, 0, 0.5, 0.1, 10),)))
    plan = Pollux(p=p).plan(state.snapshot())
    assert plan.allocations["a"].total == 2
    assert plan.bound == pytest.approx(0.0)
