"""What tenancy promises, in random clusters: valid plans, limits, quotas, and nothing idle that somebody may use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tenants import after, by_account, by_queue, idle, random_queues, random_view, sizes

from fairlead.core.loop import Policy
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.plugins import make_policy
from fairlead.policies.middleware import Queue, Tenancy, standard
from fairlead.policies.middleware.claims import claims
from fairlead.policies.middleware.guarding import guarded
from fairlead.policies.middleware.queues import all_queues
from fairlead.testing import show

#: Decisions in a row, each carried out before the next.
DECISIONS = 4


def decisions(policy: Policy, view: Snapshot, seconds: float = 5.0) -> Iterator[tuple[Snapshot, Plan]]:
    for _ in range(DECISIONS):
        plan = policy.plan(view)
        check(view, plan, changes(view, plan))
        for job_id in view.jobs:
            assert plan.reasons[job_id].text
        yield view, plan
        view = after(view, plan, seconds)


def gpus(view: Snapshot) -> int:
    return sum(node.gpus for node in view.nodes.values())


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("inner", ["fifo", "backfill", "tiresias", "even"])
def test_plans_are_valid_and_limits_hold(inner: str, seed: int) -> None:
    draw = random.Random(seed)
    view = random_view(draw, types=1 + seed % 2, firm=seed % 3 == 0)
    queues = random_queues(draw, gpus(view), limits=True)
    for seen, plan in decisions(Tenancy(make_policy(inner), queues), view):
        firm = Plan({k: a for k, a in seen.allocations.items() if not seen.jobs[k].spec.preemptible})
        used, kept = by_queue(seen, plan), by_queue(seen, firm)
        accounts, fixed = by_account(seen, plan), by_account(seen, firm)
        for queue in queues:
            if queue.limit is not None:
                assert used.get(queue.name, 0) <= max(queue.limit, kept.get(queue.name, 0)), show(seen)
            for (name, user), (held, running) in accounts.items():
                held_fixed, running_fixed = fixed.get((name, user), (0, 0))
                if name == queue.name and queue.max_gpus_per_user is not None:
                    assert held <= max(queue.max_gpus_per_user, held_fixed), show(seen)
                if name == queue.name and queue.max_jobs_per_user is not None:
                    assert running <= max(queue.max_jobs_per_user, running_fixed), show(seen)


@pytest.mark.parametrize("seed", range(36))
@pytest.mark.parametrize("inner", ["backfill", "tiresias", "even"])
def test_a_queue_has_its_quota_after_a_few_decisions_if_it_has_work_for_it(inner: str, seed: int) -> None:
    """Each queue has one user: shares within a queue come in whole jobs, and may leave a part of a quota to others."""
    draw = random.Random(seed)
    view = random_view(draw, users=("ann",))
    policy = Tenancy(make_policy(inner), random_queues(draw, gpus(view)))
    *_, (seen, plan) = decisions(policy, view)
    found = claims(seen, all_queues(policy.queues or ()), adapts=policy.adapts)
    used = by_queue(seen, plan)
    for queue, owed in zip(found.queues, found.guaranteed_Q.tolist(), strict=True):
        assert used.get(queue.name, 0) >= owed, f"queue {queue.name} has {used}, is owed {owed}\n{show(seen)}"


@pytest.mark.parametrize("seed", range(36))
@pytest.mark.parametrize("inner", ["backfill", "tiresias"])
def test_no_gpu_is_idle_that_somebody_who_waits_may_use(inner: str, seed: int) -> None:
    draw = random.Random(seed)
    view = random_view(draw, types=1 + seed % 2, firm=seed % 3 == 0)
    queues = random_queues(draw, gpus(view), limits=seed % 2 == 0)
    policy = Tenancy(make_policy(inner), queues)
    for seen, plan in decisions(policy, view):
        found = claims(seen, all_queues(queues), adapts=policy.adapts)
        waits = [k for k in seen.jobs if k not in plan.allocations and found.row[k] not in guarded(found)]
        for job_id in waits:
            room = allowed(seen, plan, queues, job_id)
            needs = seen.jobs[job_id].spec.gpus
            assert room < needs, f"job {job_id}, {plan.reasons[job_id]}, could have {room}\n{show(seen)}"


def allowed(view: Snapshot, plan: Plan, queues: tuple[Queue, ...], job_id: str) -> int:
    """GPUs that a waiting job could have of those that are idle, by all limits."""
    spec = view.jobs[job_id].spec
    if not spec.preemptible:
        return 0  # what is lent must be given back
    free, used = idle(view, plan), by_queue(view, plan)
    (queue,) = (queue for queue in queues if queue.name == spec.queue)
    held, running = by_account(view, plan).get((spec.queue, spec.tenant), (0, 0))
    kept = sum(q.guarantee - min(q.guarantee, used.get(q.name, 0)) for q in queues if not q.lend and q is not queue)
    room = [max((free.get(t, 0) for t in spec.gpu_types or free), default=0), sum(free.values()) - kept]
    room += [] if queue.limit is None else [queue.limit - used.get(queue.name, 0)]
    room += [] if queue.max_gpus_per_user is None else [queue.max_gpus_per_user - held]
    room += [0] if queue.max_jobs_per_user is not None and running >= queue.max_jobs_per_user else []
    return min(room)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("inner", ["tiresias", "even"])
def test_a_cluster_left_to_itself_comes_to_rest(inner: str, seed: int) -> None:
    """Nobody goes to and fro while nothing happens. Time stands still: usage, and so shares, change with time."""
    draw = random.Random(seed)
    view = random_view(draw, firm=seed % 3 == 0)
    policy = Tenancy(make_policy(inner), random_queues(draw, gpus(view)))
    for _ in range(8):
        view = after(view, policy.plan(view), 0.0)
    assert sizes(policy.plan(view)) == sizes(Plan(view.allocations)), show(view)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("inner", ["fifo", "tiresias", "pilot"])
def test_all_of_them_together_make_valid_plans_and_empty_a_node_in_time(inner: str, seed: int) -> None:
    draw = random.Random(seed)
    view = random_view(draw, types=1 + seed % 2, firm=seed % 2 == 0)
    policy = standard(make_policy(inner), random_queues(draw, gpus(view), limits=seed % 2 == 0), minimum_run_s=7.0)
    leaving = replace(view.nodes["n0"], draining=True, drain_by=view.now + 60.0)
    view = replace(view, nodes={**view.nodes, "n0": leaving}, _node_table=None)
    for seen, plan in decisions(policy, view):
        there = [job_id for job_id, allocation in plan.allocations.items() if "n0" in allocation.nodes]
        assert not any(seen.jobs[job_id].spec.preemptible for job_id in there), show(seen)
