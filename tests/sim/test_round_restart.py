"""A restart in the middle of a round: a fresh policy goes on with the same debts and prices, and forecasts agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fairlead.core import codec
from fairlead.core.facts import Facts
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import JobExited, Message, Tick, decode, encode
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.middleware import standard
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.forecast import forecast
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob

ROUND_S = 120.0

#: Each policy that serves shares, rounds or leases, with rounds of one length.
POLICIES = [
    f"gavel:objective=max-min,round_s={ROUND_S:.0f}",
    f"gavel:objective=finish-time-fairness,round_s={ROUND_S:.0f}",
    f"isolated:round_s={ROUND_S:.0f}",
    f"gandiva-fair:round_s={ROUND_S:.0f}",
    f"fifo-rounds:round_s={ROUND_S:.0f}",
    "allox",
    f"allox:gangs=time,round_s={ROUND_S:.0f}",
    f"themis:lease_s={ROUND_S:.0f}",
    f"shockwave:round_s={ROUND_S:.0f},window=8,resolve_every=4,time_limit_s=60",
    f"shockwave-elastic:round_s={ROUND_S:.0f},window=8,resolve_every=4,time_limit_s=60",
]

#: In the proportions that a forecast assumes until they were measured.
COSTS = Costs(start_s=4.0, restart_s=6.0, save_s=2.0, rescale_s=0.8)

#: In the middle of rounds: none of these is a multiple of their length.
MOMENTS_S = (130.0, 437.0, 1003.0)


def sim_job(name: str, seconds: float, gpus: int = 1, at: float = 0.0, **spec: Any) -> SimJob:
    fields = {"estimate_s": seconds, **spec}
    return SimJob(JobSpec(id=name, gpus=gpus, **fields), at, FixedDuration(seconds, gpus), COSTS)


#: More than four GPUs can hold, of several sizes and users.
JOBS = [
    sim_job("a", 900.0, 2, tenant="ann"),
    sim_job("b", 1500.0, 1, tenant="bob"),
    sim_job("c", 700.0, 4, tenant="ann"),
    sim_job("d", 1100.0, 1, at=50.0, tenant="bob", gpus_min=1, gpus_max=2),
    sim_job("e", 800.0, 2, at=90.0, tenant="cat"),
    sim_job("f", 1300.0, 1, at=110.0, tenant="cat"),
]


@dataclass(frozen=True)
class Run:
    """A simulation from beginning to end."""

    messages: Sequence[Message]
    ended_at: dict[str, float]


def simulated(policy: Policy, jobs: Sequence[SimJob], cluster: str, cadence: str = "event") -> Run:
    journal, world = MemoryJournal(), SimBackend(jobs, parse_cluster(cluster))
    run(policy, world, state=State(), journal=journal, cadence=Cadence.parse(cadence))
    return Run(tuple(journal), {each.job: each.at for each in journal if isinstance(each, JobExited)})


def restored(messages: Sequence[Message], at: float) -> State:
    """As a service finds it that was down at a time: from its journal, and once more from a snapshot of that."""
    state = State()
    for message in messages:
        if message.at <= at:
            state.replay(decode(encode(message)))
    again = State.of(codec.decode(Facts, codec.encode(state.facts()), place="snapshot"))
    assert again.snapshot().memo == state.snapshot().memo
    again.apply(Tick(at))
    return again


def said(plan: Plan, view: Snapshot) -> tuple[object, ...]:
    return dict(plan.allocations), plan.review_at, plan.memo, {job_id: plan.reasons[job_id] for job_id in view.jobs}


def assert_goes_on(make: Callable[[], Policy], jobs: Sequence[SimJob], cluster: str = "1x4") -> None:
    """From the middle of rounds: the same plan with the same memory, and the same ends of all jobs."""
    first = make()
    whole = simulated(first, jobs, cluster)
    assert len(whole.ended_at) == len(jobs)
    for at in MOMENTS_S:
        view = restored(whole.messages, at).snapshot()
        assert said(make().plan(view), view) == said(first.plan(view), view)
        told = forecast(view, policy=make(), cadence=Cadence())
        assert not told.truncated
        ends_at = {job_id: each.ends_at for job_id, each in told.jobs.items()}
        assert ends_at == pytest.approx({job_id: whole.ended_at[job_id] for job_id in ends_at}, rel=1e-6), at


@pytest.mark.parametrize("name", POLICIES)
def test_a_fresh_policy_in_the_middle_of_a_round_plans_and_forecasts_as_the_one_that_was_there(name: str) -> None:
    assert_goes_on(lambda: make_policy(name), JOBS)


@pytest.mark.parametrize("name", POLICIES)
def test_so_it_does_inside_what_a_service_puts_around_it(name: str) -> None:
    """Jobs of one user: between users, shares depend on use, and each decision looks at that anew."""
    jobs = [replace(each, spec=replace(each.spec, tenant="ann")) for each in JOBS]
    # Hidden from the policy until the jobs before it have ended.
    jobs.append(sim_job("late", 500.0, 2, tenant="ann", priority=-1))
    assert_goes_on(lambda: standard(make_policy(name), minimum_run_s=30.0, spare_unsaved=False), jobs)


@pytest.mark.parametrize("name", POLICIES)
def test_so_it_does_on_two_gpu_types(name: str) -> None:
    assert_goes_on(lambda: make_policy(name), JOBS, "fast=1x4,slow=1x1")


# `shockwave-elastic` gives GPUs that it left idle when the round began to whichever job fits, when it is asked again.
@pytest.mark.parametrize("name", [name for name in POLICIES if not name.startswith("shockwave-elastic")])
def test_how_often_a_policy_is_asked_within_a_round_is_no_information(name: str) -> None:
    cluster = "fast=1x4,slow=1x1"
    seldom = simulated(make_policy(name), JOBS, cluster)
    often = simulated(make_policy(name), JOBS, cluster, "event+33s")
    assert often.ended_at == pytest.approx(seldom.ended_at, rel=1e-6)
