"""Reasons against random pasts: their numbers are those of the snapshot, and the jobs they name are what decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan, Reason
from fairlead.plugins import make_policy
from fairlead.policies.middleware import standard
from fairlead.policies.middleware.imagining import imagined
from fairlead.policies.weighing import fewest
from fairlead.testing import show
from fairlead.testing.history import History, histories

#: Policies that serve jobs in an order: without the jobs that a reason names, the job is placed or left alone. That of
#: gavel is none of these, as shares and so the order change with every job that ends.
ORDERED = (
    "fifo",
    "backfill",
    "easy",
    "smallest",
    "srtf",
    "srtf-gpu",
    "tiresias",
    "even",
    "optimus",
    "isolated",
    "gandiva-fair",
    "fifo-rounds",
    "allox",
    "themis",
)
WEIGHED = ("pilot", "pollux", "sia")

#: A few pasts, always the same ones. A failure shows its cluster, so none is looked for that is smaller.
DRAWN: dict[str, Any] = {
    "max_examples": 8,
    "deadline": None,
    "derandomize": True,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}

#: Codes that say that too few GPUs are free, and those that say that enough are.
TOO_FEW, ENOUGH = {"waiting", "outweighed"}, {"behind", "fragmented", "unplaced"}


def views(history: History, *, one_type: bool = False) -> Iterator[Snapshot]:
    """A few snapshots of a past, with some truth for the oracles."""
    if one_type:
        nodes = tuple(replace(node, gpu_type="a100") for node in history.nodes)
        specs = tuple(replace(spec, gpu_types=()) for spec in history.specs)
        history = replace(history, nodes=nodes, specs=specs)
    seen = [view for view in history.views() if len(view.jobs) > 1]
    for view in seen[:: max(1, len(seen) // 6)]:
        yield replace(view, oracle=lambda job_id: 100.0 * (1 + sum(map(ord, job_id)) % 7))


def free_gpus(view: Snapshot, plan: Plan, job: Job) -> int:
    """The most GPUs of one type that a job accepts, on open nodes, that the plan gives to no job: counted anew."""
    taken = {(node, gpu) for where in plan.allocations.values() for node, gpus in where for gpu in gpus}
    free: dict[str, int] = {}
    for node in view.nodes.values():
        if node.healthy and not node.draining and (not job.spec.gpu_types or node.gpu_type in job.spec.gpu_types):
            there = sum((node.id, gpu) not in taken for gpu in range(node.gpus))
            free[node.gpu_type] = free.get(node.gpu_type, 0) + there
    return max(free.values(), default=0)


def needs(policy: Policy, job: Job) -> int:
    adapts = getattr(policy, "adapts", "nothing")
    return job.spec.gpus if adapts == "nothing" else job.spec.least if adapts == "gpus" else fewest(job)


def assert_numbers_are_true(policy: Policy, view: Snapshot, plan: Plan, job: Job, reason: Reason) -> None:
    told = f"job {job.id}: {reason}\n{show(view)}"
    assert set(reason.jobs) <= view.jobs.keys() - {job.id}, told
    assert "more good elsewhere" not in reason.text, told
    if "free" not in reason.numbers:
        return
    free, wanted = free_gpus(view, plan, job), needs(policy, job)
    assert (reason.numbers["needs"], reason.numbers["free"]) == (wanted, free), told
    if reason.code in TOO_FEW:
        assert free < wanted, told
    elif reason.code in ENOUGH:
        assert free >= wanted, told
    if reason.code == "outweighed":
        assert reason.numbers["objective_loss"] >= reason.numbers["objective_gain"] * (1 - 1e-6) - 1e-9, told
    if reason.code == "waiting" and "held_elsewhere" in reason.numbers:
        held = sum(plan.allocations[other].total for other in reason.jobs if other in plan.allocations)
        assert reason.numbers["held_elsewhere"] == held > 0, told


@pytest.mark.parametrize("name", [*ORDERED, *WEIGHED])
@settings(**DRAWN)
@given(history=histories())
def test_the_numbers_of_a_reason_are_those_of_the_snapshot_and_the_plan(name: str, history: History) -> None:
    for view in views(history):
        policy = make_policy(name)
        plan = policy.plan(view)
        for job in view.jobs.values():
            if job.id not in plan.allocations:
                assert_numbers_are_true(policy, view, plan, job, plan.reasons[job.id])


@pytest.mark.parametrize("name", ORDERED)
@settings(**DRAWN)
@given(history=histories())
def test_without_the_jobs_that_a_reason_names_the_job_starts_or_is_left_alone(name: str, history: History) -> None:
    for view in views(history, one_type=True):
        plan = make_policy(name).plan(view)
        for job in view.jobs.values():
            reason = plan.reasons[job.id]
            if job.id in plan.allocations or reason.code == "too-large":
                continue
            without = make_policy(name).plan(imagined(view, hidden=set(reason.jobs)))
            assert job.id in without.allocations, f"job {job.id}: {reason}\n{show(view)}"


@pytest.mark.parametrize("name", ["fifo", "tiresias", "pilot"])
@settings(**DRAWN)
@given(history=histories())
def test_all_that_goes_around_a_policy_names_only_jobs_that_exist(name: str, history: History) -> None:
    policy = standard(make_policy(name))
    for view in views(history):
        plan = policy.plan(view)
        for job in view.jobs.values():
            reason = plan.reasons[job.id]
            assert reason.text
            assert set(reason.jobs) <= view.jobs.keys() - {job.id}, f"job {job.id}: {reason}\n{show(view)}"
