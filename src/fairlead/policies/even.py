"""Equal shares: every job as many GPUs as any other, up to the most it can use.

In order of arrival each job first gets the fewest GPUs it can run on. Then one GPU after another goes to whoever has
the fewest, until there are none or nobody can use more. What a job makes of its GPUs is not asked: a job that is alone
has all it may have.

A job runs on one GPU type at a time, so each type is shared out among its own jobs. Those that wait go where the most
GPUs are left. Whoever changes its number keeps the GPUs it has, as far as it can.

Legend: N nodes in the order of the snapshot.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Plan
from fairlead.policies.placing import realise
from fairlead.policies.reasons import Reasons, served_reasons
from fairlead.policies.spreading import Counts, Ints, take_emptiest
from fairlead.policies.wait_reason import Discipline, on_open_nodes


@dataclass(frozen=True)
class Even:
    """As many GPUs for every job, whatever it does with them."""

    #: Jobs may change their number of GPUs, and nothing else.
    adapts: ClassVar[str] = "gpus"

    def plan(self, view: Snapshot) -> Plan:
        sizes = _sizes(view)
        allocations = _place(view, sizes)
        return Plan(allocations, _reasons(view, allocations))


def _sizes(view: Snapshot) -> dict[str, tuple[int, str]]:
    """(GPUs, type) of each job that gets any; those that must stay as they are come first."""
    free = dict.fromkeys(view.node_columns.gpu_types, 0)
    for node in view.nodes.values():
        free[node.gpu_type] += node.gpus * node.open
    sizes: dict[str, tuple[int, str]] = {}
    for job in view.jobs.values():
        if _stays(job):
            sizes[job.id] = job.allocation.total, _type(view, job)
            free[_type(view, job)] -= on_open_nodes(view, job.allocation)
    hungry: list[tuple[int, int, Job]] = []
    for place, job in enumerate(view.jobs.values()):
        wanted = [_type(view, job)] if job.allocation else [t for t in free if t in (job.spec.gpu_types or free)]
        gpu_type = max(wanted, key=lambda name: free.get(name, 0), default="")
        if job.id in sizes or free.get(gpu_type, 0) < job.spec.least:
            continue
        sizes[job.id] = job.spec.least, gpu_type
        free[gpu_type] -= job.spec.least
        hungry.append((job.spec.least, place, job))
    heapq.heapify(hungry)
    while hungry:
        count, place, job = heapq.heappop(hungry)
        gpu_type = sizes[job.id][1]
        if count < job.spec.most and free[gpu_type] > 0:
            free[gpu_type] -= 1
            sizes[job.id] = count + 1, gpu_type
            heapq.heappush(hungry, (count + 1, place, job))
    return sizes


def _stays(job: Job) -> bool:
    return bool(job.allocation) and not job.spec.preemptible


def _type(view: Snapshot, job: Job) -> str:
    return view.nodes[job.allocation.nodes[0]].gpu_type


def _place(view: Snapshot, sizes: Mapping[str, tuple[int, str]]) -> dict[str, Allocation]:
    """First everyone keeps its own, as much of it as it still gets; then all take what they lack."""
    nodes = view.node_columns
    row = {name: place for place, name in enumerate(nodes.ids)}
    free_N: Ints = np.array([node.gpus * node.open for node in view.nodes.values()], dtype=np.int64)
    where: dict[str, Counts] = {}
    for job_id in view.jobs:
        if job_id in sizes:
            held = {row[node]: mask.bit_count() for node, mask in view.jobs[job_id].allocation.masks}
            where[job_id] = _kept(held, sizes[job_id][0])
            for node, count in where[job_id].items():
                free_N[node] = max(0, free_N[node] - count)
    for job_id, counts in where.items():
        gpus, gpu_type = sizes[job_id]
        own_N = nodes.type_N == nodes.gpu_types.index(gpu_type)
        # On its own nodes first: a job spread over few of them averages its gradients faster.
        for node in counts:
            more = min(gpus - sum(counts.values()), int(free_N[node]))
            counts[node] += more
            free_N[node] -= more
        typed_N = np.where(own_N, free_N, 0)
        for node, more in take_emptiest(typed_N, gpus - sum(counts.values())).items():
            counts[node] = counts.get(node, 0) + more
        free_N = np.where(own_N, typed_N, free_N)
    return realise(view, list(where), list(where.values()))


def _kept(held: Counts, gpus: int) -> Counts:
    """At most so many, from the nodes where it has the most: the others can be left."""
    kept: Counts = {}
    for node, count in sorted(held.items(), key=lambda item: -item[1]):
        if take := min(count, gpus - sum(kept.values())):
            kept[node] = take
    return kept


def _reasons(view: Snapshot, allocations: Mapping[str, Allocation]) -> Reasons:
    """The fewest GPUs that each job can run on come first, and a job waits for those."""
    discipline = Discipline("order of arrival", order=lambda: list(view.jobs), preempts=True, resizes=True)
    return served_reasons(view, allocations, discipline)
