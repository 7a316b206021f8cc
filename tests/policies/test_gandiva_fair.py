"""Gandiva-Fair: tickets of users, however many jobs they have, and trades of GPU types that leave no user worse off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.state import State
from fairlead.core.types import Job, JobSpec
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.gandiva_fair import GandivaFair
from fairlead.policies.gpu_trading import trade
from fairlead.policies.isolated import Isolated, isolated_shares, proportional_shares
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing import job, make_view


def gpu_s_of(
    policy: Any, users: dict[str, int], cluster: str, *, until: float = 40_000.0, gpus: int = 1
) -> dict[str, float]:
    """GPU-seconds of each user after so long, each with so many jobs that never end."""
    jobs = [
        SimJob(JobSpec(id=f"{user}{n}", tenant=user, gpus=gpus), 0.0, FixedDuration(1e9, gpus), cancel_at=until)
        for user, count in users.items()
        for n in range(count)
    ]
    state = State()
    run(policy, SimBackend(jobs, parse_cluster(cluster)), state=state, journal=MemoryJournal(), cadence=Cadence())
    return {
        user: sum(job.service_gpu_s for job in state.finished.values() if job.spec.tenant == user) for user in users
    }


# -- tickets ---------------------------------------------------------------------------------------------------------


def test_a_user_has_no_more_for_having_more_jobs() -> None:
    """The defining case: beside one user with eight jobs and one with two, shares by job would give 80 and 20 %."""
    fair = gpu_s_of(GandivaFair(), {"ann": 8, "bob": 2}, "1x4")
    assert fair["ann"] == pytest.approx(fair["bob"], rel=0.03)
    by_job = gpu_s_of(Isolated(), {"ann": 8, "bob": 2}, "1x4")
    assert by_job["ann"] == pytest.approx(4 * by_job["bob"], rel=0.05)


def test_users_have_gpus_in_proportion_to_their_tickets() -> None:
    had = gpu_s_of(make_policy("gandiva-fair:tickets=ann=3/bob=1"), {"ann": 6, "bob": 6}, "1x4")
    assert had["ann"] == pytest.approx(3 * had["bob"], rel=0.05)


def test_what_a_user_cannot_use_goes_to_the_others() -> None:
    had = gpu_s_of(GandivaFair(), {"ann": 1, "bob": 6}, "1x4")
    assert had["ann"] == pytest.approx(40_000.0, rel=0.02)
    assert had["bob"] == pytest.approx(120_000.0, rel=0.02)


def test_a_job_of_many_gpus_has_the_same_gpu_time_and_so_less_time() -> None:
    jobs = [Job(JobSpec(id="wide", gpus=4, tenant="ann"), 0.0), Job(JobSpec(id="one", tenant="bob"), 0.0)]
    owed = GandivaFair().shares(jobs, {"gpu": 2}, np.ones((2, 1)))
    assert owed == {(("wide",), "gpu"): pytest.approx(0.25), (("one",), "gpu"): pytest.approx(1.0)}


def test_by_time_every_job_of_a_user_is_owed_the_same_as_in_the_artifact() -> None:
    policy = make_policy("gandiva-fair:owes=time")
    assert isinstance(policy, GandivaFair)
    had = gpu_s_of(policy, {"ann": 4}, "1x2")
    assert had["ann"] == pytest.approx(80_000.0, rel=0.01)


@pytest.mark.parametrize(
    "options", ["tickets=ann", "tickets=ann=0", "tickets=ann=1/ann=2", "owes=money", "trading=yes"]
)
def test_options_that_cannot_be_meant_are_refused(options: str) -> None:
    with pytest.raises(InvalidSpec, match="gandiva-fair"):
        make_policy(f"gandiva-fair:{options}")


# -- trades ----------------------------------------------------------------------------------------------------------


def test_users_whose_jobs_gain_differently_trade_and_both_types_go_where_they_are_worth_most() -> None:
    """The defining case: ann's jobs are 3 times as fast on the new GPUs, bob's 1.2 times, and carl's twice."""
    held = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    worth = np.array([[3.0, 1.0], [1.2, 1.0], [2.0, 1.0]])
    done = trade(held, worth, most_U=np.array([100.0, 100.0, 100.0]))
    first = done.trades[0]
    assert (first.seller, first.buyer, first.price) == (1, 0, 2.0)  # the second highest bid is carl's
    before, after = (held * worth).sum(axis=1), (done.held_UT * worth).sum(axis=1)
    assert after[0] > before[0] + 0.5
    assert after[1] > before[1] + 0.5
    assert after[2] >= before[2] - 1e-9
    assert done.held_UT[0, 0] > done.held_UT[1, 0]


def test_users_whose_jobs_gain_alike_do_not_trade() -> None:
    held = np.array([[2.0, 2.0], [1.0, 5.0]])
    done = trade(held, np.array([[3.0, 1.0], [6.0, 2.0]]), most_U=np.array([10.0, 10.0]))
    assert done.trades == ()
    assert (done.held_UT == held).all()


def test_no_user_sells_for_more_gpus_than_its_jobs_can_use() -> None:
    done = trade(np.array([[2.0, 2.0], [2.0, 2.0]]), np.array([[4.0, 1.0], [2.0, 1.0]]), most_U=np.array([4.0, 5.0]))
    assert done.held_UT[1].sum() <= 5.0 + 1e-9
    assert done.trades[0].gpus == pytest.approx(1.0)


worths = st.floats(0.1, 10.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(worths, worths, worths, st.floats(0.5, 8.0)), min_size=2, max_size=5),
    scale=st.floats(0.01, 100.0),
)
def test_trades_make_no_gpus_and_leave_no_user_worse_off_in_any_order_and_unit(
    rows: list[tuple[float, float, float, float]], scale: float
) -> None:
    worth = np.array([row[:3] for row in rows])
    held = np.outer([row[3] for row in rows], [1.0, 2.0, 3.0]) / len(rows)
    most = held.sum(axis=1) * 1.5
    done = trade(held, worth, most).held_UT
    assert done.sum(axis=0) == pytest.approx(held.sum(axis=0))
    assert (done >= 0.0).all()
    assert (done.sum(axis=1) <= most * (1 + 1e-9)).all()
    gained = (done * worth).sum(axis=1) - (held * worth).sum(axis=1)
    assert (gained >= -1e-7 * (held * worth).sum(axis=1)).all()
    assert trade(held, worth * scale, most).held_UT == pytest.approx(done, rel=1e-6, abs=1e-9)


def test_a_trade_moves_a_users_time_to_the_type_that_suits_its_jobs() -> None:
    jobs = [Job(JobSpec(id=f"{user}{n}", tenant=user), 0.0) for user in ("ann", "bob") for n in range(4)]
    worth = np.array([[3.0, 1.0]] * 4 + [[1.2, 1.0]] * 4)
    gpus = {"new": 2, "old": 4}
    fair, traded = (GandivaFair(trading=how).shares(jobs, gpus, worth) for how in ("none", "second-price"))

    def value(owed: Any, user: str, speeds: tuple[float, float]) -> float:
        return sum(s * speeds[gpu_type == "old"] for ((name,), gpu_type), s in owed.items() if name.startswith(user))

    assert value(traded, "ann", (3.0, 1.0)) > value(fair, "ann", (3.0, 1.0)) * 1.1
    assert value(traded, "bob", (1.2, 1.0)) >= value(fair, "bob", (1.2, 1.0)) - 1e-9
    for gpu_type, count in gpus.items():
        assert sum(share for (_, t), share in traded.items() if t == gpu_type) <= count + 1e-9
    assert all(sum(traded[(job.id,), t] for t in gpus) <= 1.0 + 1e-9 for job in jobs)


# -- isolated and proportional shares --------------------------------------------------------------------------------


def test_isolated_shares_are_an_equal_part_of_each_type_and_at_most_all_the_time() -> None:
    jobs = [Job(JobSpec(id="one", gpus=1), 0.0), Job(JobSpec(id="wide", gpus=8), 0.0)]
    assert isolated_shares(jobs, {"a": 4, "b": 8}) == {
        (("one",), "a"): pytest.approx(2 / 6),
        (("one",), "b"): pytest.approx(4 / 6),
        (("wide",), "b"): pytest.approx(4 / 8),  # the type a is too small for it
    }


def test_proportional_shares_are_all_the_time_over_the_types_that_a_job_accepts() -> None:
    jobs = [Job(JobSpec(id="any"), 0.0), Job(JobSpec(id="only", gpu_types=("b",)), 0.0)]
    assert proportional_shares(jobs, {"a": 1, "b": 3}) == {
        (("any",), "a"): 0.25,
        (("any",), "b"): 0.75,
        (("only",), "b"): 1.0,
    }


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 16), min_size=1, max_size=12),
    gpus=st.lists(st.integers(1, 32), min_size=1, max_size=3),
)
def test_isolated_shares_fit_the_cluster(sizes: list[int], gpus: list[int]) -> None:
    jobs = [Job(JobSpec(id=f"j{n}", gpus=size), 0.0) for n, size in enumerate(sizes)]
    cluster = {f"t{n}": count for n, count in enumerate(gpus)}
    owed = isolated_shares(jobs, cluster)
    for gpu_type, count in cluster.items():
        assert sum(owed.get(((job.id,), gpu_type), 0.0) * job.spec.gpus for job in jobs) <= count * (1 + 1e-9)
    assert all(sum(owed.get(((job.id,), t), 0.0) for t in cluster) <= 1 + 1e-9 for job in jobs)


@pytest.mark.parametrize(
    "policy", ["isolated", "isolated:slices=proportional", "gandiva-fair", "gandiva-fair:owes=time", "random-pairs"]
)
def test_a_job_wider_than_the_cluster_is_owed_nothing_and_costs_no_other_job_anything(policy: str) -> None:
    view = make_view("1x4", [job("wide", 8, tenant="ann"), job("one", 1, tenant="bob")], now=10.0)
    reasons = make_policy(policy).plan(view).reasons
    assert (reasons["wide"].code, reasons["wide"].numbers["owed"]) == ("too-large", 0.0)
    assert reasons["one"].numbers["owed"] == 1.0


def test_a_user_whose_only_job_can_run_nowhere_takes_no_gpus_from_the_others() -> None:
    jobs = [job("wide", 8, tenant="ann"), *(job(f"b{n}", 1, tenant="bob") for n in range(4))]
    owed = GandivaFair().owed(make_view("1x4", jobs, now=10.0))
    assert owed == {(("wide",), "gpu"): 0.0, **{((f"b{n}",), "gpu"): pytest.approx(1.0) for n in range(4)}}
