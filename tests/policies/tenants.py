"""Jobs of several users, for tests of middleware."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.core.capability import Capability, needs_of
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Node, Phase, Plan
from fairlead.policies.middleware import Queue
from fairlead.policies.middleware.imagining import carried_out
from fairlead.testing import GivenJob, job, make_view


@dataclass(frozen=True)
class Sorted:
    """Shows every job of a test to another policy as if it came from one of these users, in one of these queues.

    Jobs that must not be preempted go to a queue of their own, so that they can always run if it has a large quota.
    """

    inner: Policy
    queues: tuple[str, ...] = ("a", "b", "default", "gone")
    users: tuple[str, ...] = ("ann", "bob")
    firm: str = "firm"
    adapts: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapts", getattr(self.inner, "adapts", "nothing"))

    @property
    def needs(self) -> frozenset[Capability]:
        return needs_of(self.inner)

    def plan(self, view: Snapshot) -> Plan:
        jobs = {}
        for job_id, each in view.jobs.items():
            lot = zlib.crc32(job_id.encode())
            queue = self.queues[lot % len(self.queues)] if each.spec.preemptible else self.firm
            user = self.users[lot // 7 % len(self.users)]
            jobs[job_id] = replace(each, spec=replace(each.spec, queue=queue, tenant=user))
        return self.inner.plan(replace(view, jobs=jobs))


@dataclass(frozen=True)
class Counted:
    """Another policy, and what it was asked."""

    inner: Policy
    seen: list[Snapshot] = field(default_factory=list, init=False, compare=False)

    def plan(self, view: Snapshot) -> Plan:
        self.seen.append(view)
        return self.inner.plan(view)


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


def by_queue(view: Snapshot, plan: Plan) -> dict[str, int]:
    """GPUs that each queue gets."""
    found: dict[str, int] = {}
    for job_id, allocation in plan.allocations.items():
        queue = view.jobs[job_id].spec.queue
        found[queue] = found.get(queue, 0) + allocation.total
    return found


def by_account(view: Snapshot, plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """GPUs and jobs that each user of a queue gets."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for job_id, allocation in plan.allocations.items():
        account = view.jobs[job_id].spec.queue, view.jobs[job_id].spec.tenant
        gpus, jobs = found.get(account, (0, 0))
        found[account] = gpus + allocation.total, jobs + 1
    return found


def idle(view: Snapshot, plan: Plan) -> dict[str, int]:
    """GPUs of each type that the plan gives to nobody."""
    free: dict[str, int] = {}
    for node in view.nodes.values():
        free[node.gpu_type] = free.get(node.gpu_type, 0) + node.gpus * node.open
    for allocation in plan.allocations.values():
        for node_id, gpus in allocation:
            free[view.nodes[node_id].gpu_type] -= len(gpus)
    return free


def after(view: Snapshot, plan: Plan, seconds: float = 5.0) -> Snapshot:
    """The snapshot once the plan is carried out and everybody trains."""
    then = carried_out(view, plan)
    jobs = {k: replace(j, phase=Phase.RUNNING) if j.phase is Phase.STARTING else j for k, j in then.jobs.items()}
    return replace(then, now=view.now + seconds, jobs=jobs)


# -- random worlds -----------------------------------------------------------------------------------------------------


def random_view(
    draw: random.Random, *, types: int = 1, firm: bool = False, users: Sequence[str] = ("ann", "bob", "cal")
) -> Snapshot:
    """A few nodes and up to 15 jobs in queues a, b and c, of which some run. `firm`: some must not be preempted."""
    nodes = [Node(f"n{k}", draw.choice((2, 4, 4, 8)), f"type{k % types}") for k in range(draw.randrange(1, 5))]
    free: dict[str, list[tuple[str, int]]] = {}
    for node in nodes:
        free.setdefault(node.gpu_type, []).extend((node.id, gpu) for gpu in range(node.gpus))
    for gpus in free.values():
        draw.shuffle(gpus)
    jobs = [_random_job(draw, f"j{k:02d}", free, firm=firm, users=users) for k in range(draw.randrange(1, 16))]
    return make_view(nodes, jobs, now=200.0 + draw.randrange(1000))


def _random_job(
    draw: random.Random, job_id: str, free: Mapping[str, list[tuple[str, int]]], *, firm: bool, users: Sequence[str]
) -> GivenJob:
    least = draw.choice((1, 1, 1, 2, 4))
    asked = least + draw.choice((0, 0, 1, 2))
    most = asked + draw.choice((0, 0, 2, 4))
    if draw.random() < 0.4:
        least = most = asked
    held, on = free[draw.choice(list(free))], None
    count = draw.choice((least, asked, most))
    if draw.random() < 0.6 and len(held) >= count:
        where: dict[str, list[int]] = {}
        for node, gpu in held[:count]:
            where.setdefault(node, []).append(gpu)
        del held[:count]
        on = str(Allocation.of(where))
    return job(
        job_id,
        asked,
        on=on,
        submitted_at=float(draw.randrange(100)),
        gpus_min=least,
        gpus_max=most,
        in_place=draw.random() < 0.6,
        priority=draw.choice((0, 0, 1)),
        preemptible=not (firm and draw.random() < 0.3),
        queue=draw.choice("abc"),
        tenant=draw.choice(users),
    )


def random_queues(draw: random.Random, gpus: int, *, limits: bool = False) -> tuple[Queue, ...]:
    """Rules of the queues a, b and c whose quotas come to no more than there is."""
    found = []
    for name in "abc":
        quota = draw.choice((None, None, draw.randrange(0, gpus + 1)))
        gpus -= quota or 0
        weight, priority = draw.choice((1.0, 1.0, 3.0)), draw.choice((0, 0, 1))
        queue = Queue(name, quota=quota, weight=weight, priority=priority)
        if limits:
            queue = replace(
                queue,
                max_gpus=draw.choice((None, max(quota or 1, 3))),
                max_gpus_per_user=draw.choice((None, 2, 4)),
                max_jobs_per_user=draw.choice((None, 1, 2)),
                borrow=not quota or draw.random() < 0.7,
                lend=draw.random() < 0.7,
            )
        found.append(queue)
    return tuple(found)
