"""Themis: the jobs that sharing has slowed down most get the GPUs, for a lease, and pay for what that costs others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Node, Plan
from fairlead.plugins import make_policy
from fairlead.policies.finish_time import FinishTimes
from fairlead.policies.rates import BelievedRates, Configuration, Rates
from fairlead.policies.themis import Themis
from fairlead.testing import GivenJob, check_policy, job, make_view


class TableRates:
    """Rates as given by (GPU type, nodes), and a unit of work for each second that a job promises."""

    def __init__(self, rates: Mapping[tuple[str, int], float]) -> None:
        self._rates = rates

    def rates(self, _view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
        row = [self._rates.get((each.gpu_type, each.nodes), 0.0) for each in configurations]
        rate_JC = np.array([row] * len(jobs)).reshape(len(jobs), len(configurations))
        left_J = np.array([each.spec.estimate_s or 1.0 for each in jobs])
        sure = np.full(rate_JC.shape, 3, dtype=np.int64)
        return Rates(rate_JC, sure, left_J, np.full(len(jobs), 3, dtype=np.int64), np.ones(len(jobs)))

    def partner(self, _view: Snapshot, each: Job) -> str:
        return each.id


def themis(rates: Mapping[tuple[str, int], float] | None = None, **options: Any) -> Themis:
    policy = Themis(**options)
    if rates is not None:
        object.__setattr__(policy, "_source", TableRates(rates))
    return policy


def at(now: float, *jobs: GivenJob, nodes: str | Sequence[Node] = "1x4", after: Plan | None = None) -> Snapshot:
    """A snapshot with what an earlier plan left behind, as a restart would find it."""
    view = make_view(nodes, jobs, now=now)
    return view if after is None else replace(view, memo=json.loads(json.dumps(after.memo)))


def leases(plan: Plan) -> dict[str, list[float]]:
    found: dict[str, list[float]] = plan.memo["themis"]["leases"]
    return found


# -- what its competitors do not ---------------------------------------------------------------------------------------


def test_the_job_that_sharing_slowed_down_most_goes_first_and_not_the_shortest_or_the_oldest() -> None:
    """`old` is the oldest and `short` the shortest. `slowed` has waited for many times its own length."""
    old, slowed = job("old", 4, estimate_s=50_000.0), job("slowed", 4, submitted_at=1000.0, estimate_s=500.0)
    short = job("short", 4, submitted_at=9_900.0, estimate_s=100.0)
    view = make_view("1x4", [old, slowed, short], now=10_000.0, oracle={"old": 5e4, "slowed": 500.0, "short": 100.0})
    assert Themis(f=1.0).plan(view).allocations.keys() == {"slowed"}
    assert make_policy("srtf").plan(view).allocations.keys() == {"short"}
    assert make_policy("fifo").plan(view).allocations.keys() == {"old"}


def test_during_a_lease_no_other_job_gets_the_gpus_and_after_it_the_worst_off_does() -> None:
    first = job("first", 4, estimate_s=10_000.0)
    plan = Themis(lease_s=600.0).plan(at(0.0, first))
    assert leases(plan) == {"first": [600.0, 1.0]}
    runs, later = (
        job("first", 4, on="n0[0,1,2,3]", estimate_s=10_000.0),
        job("later", 4, submitted_at=1.0, estimate_s=60.0),
    )
    within = Themis(lease_s=600.0).plan(at(599.0, runs, later, after=plan))
    assert (within.allocations.keys(), within.review_at) == ({"first"}, 600.0)
    assert "job first holds 4 until its lease ends in 1 s" in within.reasons["later"].text
    over = Themis(lease_s=600.0).plan(at(600.0, runs, later, after=within))
    assert over.allocations.keys() == {"later"}
    assert make_policy("srtf").plan(
        replace(at(1.0, runs, later), oracle={"first": 9999.0, "later": 60.0}.__getitem__)
    ).allocations.keys() == {"later"}, "without leases it is preempted at once"


def test_a_renewed_lease_does_not_stop_the_job() -> None:
    """`runs` bids for what it has, and wins: it has waited, while the other has just come and is long."""
    runs = job("runs", 2, on="n0[1,3]", estimate_s=700.0)
    other = job("other", 4, submitted_at=600.0, estimate_s=90_000.0)
    plan = Themis(lease_s=600.0).plan(at(600.0, runs, other))
    assert {name: str(where) for name, where in plan.allocations.items()} == {"runs": "n0[1,3]"}
    assert plan.reasons["runs"].text.startswith("keeps 2 GPUs: n0[1,3]; rho")


def test_without_a_job_that_waits_no_lease_is_renewed_and_a_newcomer_bids_at_once() -> None:
    full = job("full", 4, on="n0[0,1,2,3]", estimate_s=9_000.0)
    alone = Themis(lease_s=600.0).plan(at(5_000.0, full))
    assert (alone.allocations.keys(), leases(alone), alone.review_at) == ({"full"}, {}, float("inf"))
    assert "its lease is over, and no job has asked for its GPUs" in alone.reasons["full"].text
    newcomer = job("new", 1, submitted_at=5_000.0, estimate_s=10.0)
    assert "new" in Themis(lease_s=600.0).plan(at(5_000.0, full, newcomer, after=alone)).allocations


def test_a_winner_pays_with_a_part_of_its_lease_for_what_it_takes_from_the_others() -> None:
    """Rho of the loser is 4000/2000 without GPUs and 3000/2000 with them: the winner keeps 3/4 of its lease."""
    jobs = [job("a", 4, estimate_s=1000.0), job("b", 4, estimate_s=3000.0)]
    plan = themis({("gpu", 1): 1.0}, f=0.0, lease_s=1000.0).plan(at(0.0, *jobs))
    assert leases(plan) == {"a": [pytest.approx(750.0), pytest.approx(0.75)]}
    assert plan.reasons["a"].text.endswith("its lease ends in 750 s, after a payment of 25% of it")
    lone = themis({("gpu", 1): 1.0}, f=0.0, lease_s=1000.0).plan(at(0.0, jobs[0]))
    assert leases(lone) == {"a": [1000.0, 1.0]}


def test_bids_know_how_many_nodes_a_job_would_span() -> None:
    """Spread over two fast nodes it is slower than on one slow node; on one fast node it is the fastest."""
    rates = {("fast", 1): 10.0, ("fast", 2): 1.0, ("slow", 1): 5.0}
    slow = Node("n2", 4, "slow")
    one = [Node("n0", 4, "fast"), Node("n1", 4, "fast"), slow]
    busy = [job("x", 2, on="n0[0,1]", preemptible=False), job("y", 2, on="n1[0,1]", preemptible=False)]
    wide = job("wide", 4, estimate_s=1000.0)
    assert themis(rates).plan(at(0.0, wide, nodes=one)).allocations["wide"].nodes == ("n0",)
    assert themis(rates).plan(at(0.0, *busy, wide, nodes=one)).allocations["wide"].nodes == ("n2",)


def test_no_new_lease_outlives_the_time_at_which_a_wide_job_can_have_its_gpus() -> None:
    jobs = [
        job("holder", 3, on="n0[0,1,2]", estimate_s=9_000.0),
        job("wide", 4, estimate_s=10.0),
        job("narrow", 1, submitted_at=900.0, estimate_s=5_000.0),
    ]
    memo = {"themis": {"leases": {"holder": [1_800.0, 1.0]}, "auctions": 0}}
    plan = Themis(lease_s=1_200.0).plan(replace(at(1_000.0, *jobs), memo=memo))
    assert leases(plan) == {"holder": [1_800.0, 1.0], "narrow": [1_800.0, 1.0]}
    ended = [replace(each, stints=[("n0[3]", 1_000.0, None)]) if each.spec.id == "narrow" else each for each in jobs]
    assert Themis(lease_s=1_200.0).plan(at(1_800.0, *ended, after=plan)).allocations.keys() == {"wide"}


def test_what_is_left_over_is_drawn_by_the_seed() -> None:
    """The bidder needs more than there is; which of many others gets the GPU is chance, and the same chance again."""
    jobs = [job(f"j{n}", 1, submitted_at=999.0, estimate_s=1e5) for n in range(6)]
    view = at(1_000.0, job("wide", 4, estimate_s=1.0), job("x", 3, on="n0[0,1,2]", preemptible=False), *jobs)
    drawn = {seed: next(iter(Themis(f=1.0, seed=seed).plan(view).allocations.keys() - {"x"})) for seed in range(20)}
    assert len(set(drawn.values())) > 2
    assert Themis(f=1.0, seed=3).plan(view).allocations.keys() - {"x"} == {drawn[3]}


# -- finish-time fairness ----------------------------------------------------------------------------------------------


def test_alone_on_an_idle_cluster_rho_is_1_however_long_it_has_run() -> None:
    for now in (0.0, 100.0, 900.0):
        lone = job("lone", 4, on="n0[0,1,2,3]", estimate_s=1000.0)
        assert Themis().plan(at(now, lone)).reasons["lone"].numbers["rho"] == pytest.approx(1.0)


def test_time_alone_is_that_on_an_equal_part_of_every_gpu_type() -> None:
    """Two jobs, 4 fast and 4 slow GPUs: 2 + 2 are half a job's 4 GPUs each. Half the time at 3, half at 1 is 2."""
    nodes = [Node("n0", 4, "fast"), Node("n1", 4, "slow")]
    view = make_view(nodes, [job("a", 4, estimate_s=1000.0), job("b", 4, estimate_s=1000.0)])
    times = FinishTimes(view, TableRates({("fast", 1): 3.0, ("slow", 1): 1.0}), list(view.jobs.values()))
    assert times.alone_s(view.jobs["a"]) == pytest.approx(500.0)
    assert times.rho(view.jobs["a"], times.left_s(view.jobs["a"], "slow", 1)) == pytest.approx(2.0)


def test_contention_is_the_mean_number_of_jobs_since_a_job_came() -> None:
    view = make_view("1x4", [job("a"), job("b", submitted_at=100.0), job("c", submitted_at=100.0)], now=200.0)
    times = FinishTimes(view, BelievedRates(), list(view.jobs.values()))
    assert times.contention(view.jobs["b"]) == pytest.approx(3.0)
    assert 1.0 < times.contention(view.jobs["a"]) < 3.0


# -- any cluster -------------------------------------------------------------------------------------------------------


def test_jobs_that_must_not_be_preempted_have_no_lease_and_stay() -> None:
    fixed = job("fixed", 4, on="n0[0,1,2,3]", preemptible=False, estimate_s=1e6)
    plan = Themis().plan(at(9_000.0, fixed, job("new", 1, estimate_s=10.0)))
    assert (plan.allocations.keys(), leases(plan)) == ({"fixed"}, {})


def test_nothing_new_is_put_on_a_draining_node_and_a_job_there_goes_on_if_it_cannot_move() -> None:
    view = make_view("2x4", [job("a", 4, on="n0[0,1,2,3]"), job("b", 4), job("c", 4)], now=5_000.0, draining=["n0"])
    plan = Themis().plan(view)
    assert all("n0" not in where.nodes for name, where in plan.allocations.items() if name != "a")
    assert len(plan.allocations) == 2, "one on the open node, and `a`, there or where it is"


def test_an_elastic_job_gets_what_it_asked_for_on_a_type_that_it_accepts() -> None:
    nodes = [Node("n0", 4, "fast"), Node("n1", 4, "slow")]
    elastic = job("a", 2, gpus_min=1, gpus_max=8, gpu_types=("slow",))
    plan = Themis().plan(at(0.0, elastic, job("b", 8, gpu_types=("fast",)), nodes=nodes))
    assert (plan.allocations["a"].nodes, plan.allocations["a"].total) == (("n1",), 2)
    assert plan.reasons["b"].code == "too-large"


def test_the_order_of_jobs_that_come_together_and_the_names_of_types_are_no_information() -> None:
    promised = {"a": 100.0, "b": 900.0, "c": 3_000.0, "d": 20_000.0}
    found = set()
    for order in permutations(promised):
        for fast, slow in (("fast", "slow"), ("x", "a")):
            nodes = [Node("n0", 1, fast, speed=3.0), Node("n1", 1, slow, speed=1.0)]
            view = at(50.0, *(job(name, estimate_s=promised[name]) for name in order), nodes=nodes)
            given = Themis(f=0.0).plan(view).allocations
            found.add(tuple(sorted((name, where.nodes) for name, where in given.items())))
    assert len(found) == 1


def test_neither_is_the_unit_of_time() -> None:
    def served(unit: float) -> list[str]:
        jobs = [
            job(f"j{n}", 1 + n % 3, submitted_at=unit * 70 * n, estimate_s=unit * 50 * (1 + n % 5)) for n in range(9)
        ]
        view = at(unit * 700.0, *jobs)
        return sorted(Themis(lease_s=unit * 120.0).plan(view).allocations)

    assert served(1.0) == served(60.0) == served(0.01)


@pytest.mark.parametrize("text", ["f=-0.1", "f=2", "lease_s=0", "lease_s=inf", "seed=-1"])
def test_options_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        make_policy(f"themis:{text}")


@pytest.mark.parametrize("text", ["f=0", "f=1,lease_s=30", "seed=7,lease_s=100"])
def test_the_contract_is_kept_with_options(text: str) -> None:
    check_policy(make_policy(f"themis:{text}"), examples=10)
