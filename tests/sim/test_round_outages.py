"""Policies that serve in rounds, while nodes are lost, come back or drain."""

from __future__ import annotations

import pytest

from fairlead.core.loop import Cadence, run
from fairlead.core.state import State
from fairlead.core.types import JobSpec
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import FREE
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import Outage, SimJob
from fairlead.testing import job, make_view, placement


def ends(policy: str, cluster: str, jobs: dict[str, tuple[float, float]], *outages: Outage) -> dict[str, float]:
    """When each job of one GPU ended, of (submitted at, seconds of work)."""
    sims = [SimJob(JobSpec(id=name), at, FixedDuration(work_s, 1), FREE) for name, (at, work_s) in jobs.items()]
    backend, state = SimBackend(sims, parse_cluster(cluster), outages=outages), State()
    run(make_policy(policy), backend, state=state, journal=MemoryJournal(), cadence=Cadence())
    return {name: found.since for name, found in state.finished.items()}


@pytest.mark.parametrize("mechanism", ["gavel", "shockwave"])
@pytest.mark.parametrize("policy", ["gavel", "isolated", "gandiva-fair", "fifo-rounds"])
def test_a_job_that_came_while_all_nodes_were_lost_starts_when_one_is_back(policy: str, mechanism: str) -> None:
    outage = Outage("n0", 100.0, 200.0)
    assert ends(f"{policy}:mechanism={mechanism}", "1x1", {"a": (150.0, 50.0)}, outage) == {"a": 250.0}


def test_shares_that_a_returning_node_changes_are_renewed_when_that_is_due() -> None:
    """Both jobs are there before node n1 is back; b fits only then, and by Gavel's rule waits 32 minutes at most."""
    sims = [
        SimJob(JobSpec(id="a"), 10.0, FixedDuration(1e4, 1), FREE),
        SimJob(JobSpec(id="b", gpus=2), 10.0, FixedDuration(100.0, 2), FREE),
    ]
    state = State()
    backend = SimBackend(sims, parse_cluster("2x1"), outages=[Outage("n1", 5.0, 50.0)])
    run(make_policy("gavel:mechanism=gavel"), backend, state=state, journal=MemoryJournal(), cadence=Cadence())
    started_at = state.finished["b"].first_started_at
    assert started_at is not None
    assert 1930.0 <= started_at <= 1930.0 + 2 * 360.0


@pytest.mark.parametrize("policy", ["gavel", "isolated", "gandiva-fair", "fifo-rounds"])
def test_a_job_wider_than_the_cluster_is_told_so_and_not_to_wait_for_a_renewal(policy: str) -> None:
    view = make_view("1x2", [job("a", 4), job("b", 1)], now=10.0)
    reason = make_policy(f"{policy}:mechanism=gavel").plan(view).reasons["a"]
    assert reason.code == "too-large"
    assert reason.text.startswith("needs 4 GPUs; the nodes open to it have 2")


def test_a_job_that_does_not_fit_beside_bound_jobs_is_told_of_them_and_not_to_wait_for_a_renewal() -> None:
    view = make_view("1x4", [job("p", 3, on="n0[0,1,2]", preemptible=False), job("a", 2, submitted_at=1.0)], now=10.0)
    reason = make_policy("gavel:mechanism=gavel").plan(view).reasons["a"]
    assert reason.text.startswith("needs 2 GPUs, 1 is free; job p holds 3")


# -- fifo-rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admits", ["fitting", "released"])
def test_fifo_admits_a_job_whose_gpu_type_was_lost_to_another_type(admits: str) -> None:
    """Job a loses its GPU at 100, and has that of job b once b has ended at 150."""
    found = ends(
        f"fifo-rounds:admits={admits}",
        "a=1x1,b=1x1",
        {"a": (0.0, 5000.0), "b": (50.0, 100.0)},
        Outage("n0", 100.0, 1e6),
    )
    assert found == {"a": pytest.approx(150.0 + 4900.0), "b": 150.0}


def test_fifo_admits_a_job_to_another_type_when_what_is_left_of_its_own_is_taken() -> None:
    """Jobs a and b share the two GPUs of the first type; a loses its GPU, and takes the free one of the other type."""
    jobs = {"a": (0.0, 1000.0), "b": (0.0, 1000.0)}
    found = ends("fifo-rounds", "a=2x1,b=1x1", jobs, Outage("n0", 100.0, 1e6))
    assert found == {"a": 1000.0, "b": 1000.0}


# -- draining nodes --------------------------------------------------------------------------------------------------


def test_fifo_counts_no_gpus_of_a_draining_node_against_the_open_ones() -> None:
    jobs = [job("p", 2, on="n0[0,1]"), job("a", 2, submitted_at=1.0)]
    plan = make_policy("fifo-rounds").plan(make_view("2x2", jobs, now=10.0, draining=("n0",)))
    assert placement(plan) == {"p": "n0[0,1]", "a": "n1[0,1]"}


@pytest.mark.parametrize("leftovers", ["give", "keep"])
def test_gavel_counts_no_gpus_of_a_draining_node_against_the_open_ones(leftovers: str) -> None:
    jobs = [job("p", 2, on="n0[0,1]", preemptible=False), job("a", 2, submitted_at=1.0)]
    plan = make_policy(f"gavel:leftovers={leftovers}").plan(make_view("2x2", jobs, now=10.0, draining=("n0",)))
    assert placement(plan) == {"p": "n0[0,1]", "a": "n1[0,1]"}
    assert plan.reasons["a"].numbers["owed"] == 1.0
