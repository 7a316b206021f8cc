"""Queues as people see them: what each and its users are entitled to and hold, and who waits in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import JobSpec, Phase
from fairlead.policies.middleware.queues import Queue, admit, all_queues
from fairlead.policies.middleware.shares import entitlements
from fairlead.server.published import Published


def never_runs(spec: JobSpec, queues: Sequence[Queue], published: Published) -> str | None:
    """Why a job could never run here; None if it could, or if there are no nodes yet to tell by."""
    if not published.nodes:
        return None
    return admit(_empty(published), spec, queues)


def queue_resources(queues: Sequence[Queue], published: Published) -> list[dict[str, Any]]:
    """The default queue is always among them. Looks at every job, which takes a while if there are many."""
    running, pending, used = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for job in published.live.values():
        (pending if job.phase is Phase.PENDING else running)[job.spec.queue] += 1
        used[job.spec.queue, job.spec.tenant] += job.allocation.total
    told = entitlements(published.view or _empty(published), tuple(queues))
    spent = dict[str, float]()
    for (name, _), gpu_s in (published.view.usage if published.view is not None else {}).items():
        spent[name] = spent.get(name, 0.0) + gpu_s
    resources = []
    for name, queue in all_queues(queues).items():
        found = told[name]
        resources.append(
            {
                **asdict(queue),
                "guaranteed": found.whole.guaranteed,
                "entitled": found.whole.entitled,
                "used": sum(gpus for (of, _), gpus in used.items() if of == name),
                "demand": found.whole.demand,
                "used_share": found.whole.used_share,
                "gpu_seconds": spent.get(name, 0.0),
                "running": running[name],
                "pending": pending[name],
                "users": {
                    user: {
                        "entitled": each.entitled,
                        "used": used[name, user],
                        "demand": each.demand,
                        "used_share": each.used_share,
                    }
                    for user, each in found.users.items()
                },
            }
        )
    return resources


def _empty(published: Published) -> Snapshot:
    return Snapshot(now=published.now, jobs={}, nodes=published.nodes, allocations={}, assigned={}, held={})
