"""Snapshots without some of the GPUs: those that outsiders use, and that no job holds.

A policy counts GPUs in many ways, and all of them begin with how many a node has. So a node that lacks some is shown as
a smaller one, its other GPUs numbered anew from 0, and the plan is read with the true numbers again. Whatever a policy
does, it cannot give away what it does not see; and shares, quotas and reasons are about what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Node


@dataclass(frozen=True)
class Closed:
    """GPUs that are not shown. `seen` is what a policy is told, `real` what is meant by its answer."""

    #: Of each node that is shown as a smaller one: how many GPUs it has, and the numbers of those that are shown.
    smaller: Mapping[str, tuple[int, tuple[int, ...]]]
    #: Nodes of which nothing is left.
    full: frozenset[str]

    @staticmethod
    def of(view: Snapshot) -> Closed:
        """Not a GPU that a job holds: it may stay. A node that drains or is lost takes nobody new anyway."""
        found, full = {}, set()
        for node in view.nodes.values():
            if node.outside and node.open and (closed := node.outside_mask & ~view.assigned.get(node.id, 0)):
                left = tuple(gpu for gpu in range(node.gpus) if not closed >> gpu & 1)
                if left:
                    found[node.id] = (node.gpus, left)
                else:
                    full.add(node.id)
        return Closed(found, frozenset(full))

    def __bool__(self) -> bool:
        return bool(self.smaller or self.full)

    def count(self, nodes: Iterable[Node]) -> int:
        """GPUs of these nodes that are not shown."""
        return sum(node.gpus if node.id in self.full else self._lacks(node.id) for node in nodes)

    def _lacks(self, node_id: str) -> int:
        gpus, left = self.smaller.get(node_id, (0, ()))
        return gpus - len(left)

    def view(self, view: Snapshot) -> Snapshot:
        """What is left, as if it were all there is."""
        jobs = {job_id: self._job(job) for job_id, job in view.jobs.items()} if self.smaller else view.jobs
        return replace(
            view,
            nodes={node_id: self._node(node) for node_id, node in view.nodes.items()},
            jobs=jobs,
            allocations={job_id: jobs[job_id].allocation for job_id in view.allocations},
            assigned=self._masks(view.assigned),
            held=self._masks(view.held),
            barred=tuple(self._job(job) for job in view.barred),
            _node_table=None,  # the jobs' table holds how many GPUs each has, and that is as it was
        )

    def real(self, allocation: Allocation) -> Allocation:
        """With the true numbers."""
        if not any(node in self.smaller for node in allocation.nodes):
            return allocation
        return Allocation(tuple((node, tuple(self._real(node, gpu) for gpu in gpus)) for node, gpus in allocation))

    def text(self, text: str) -> str:
        """A reason with the true numbers in place of those that the policy saw, as in `n0[0,1]`."""
        if not self.smaller:
            return text
        names = "|".join(re.escape(node) for node in sorted(self.smaller, key=len, reverse=True))

        def told(match: re.Match[str]) -> str:
            gpus = (self._real(match[1], int(gpu)) for gpu in match[2].split(","))
            return f"{match[1]}[{','.join(map(str, gpus))}]"

        return re.sub(rf"(?<![\w.-])({names})\[(\d+(?:,\d+)*)\]", told, text)

    def _real(self, node: str, gpu: int) -> int:
        if node not in self.smaller:
            return gpu
        gpus, left = self.smaller[node]
        return left[gpu] if gpu < len(left) else gpus + gpu - len(left)  # one that is not there stays one

    def _seen(self, allocation: Allocation) -> Allocation:
        if not any(node in self.smaller for node in allocation.nodes):
            return allocation
        found = {}
        for node, gpus in allocation:
            left = self.smaller[node][1] if node in self.smaller else ()
            found[node] = tuple(left.index(gpu) for gpu in gpus if gpu in left) if left else gpus
        return Allocation.of({node: gpus for node, gpus in found.items() if gpus})

    def _job(self, job: Job) -> Job:
        if not job.allocation and not job.releasing:
            return job
        allocation, releasing = self._seen(job.allocation), self._seen(job.releasing)
        if allocation is job.allocation and releasing is job.releasing:
            return job
        return replace(job, allocation=allocation, releasing=releasing)

    def _node(self, node: Node) -> Node:
        if node.id in self.full:  # a node has at least one GPU; nothing new comes to one that drains
            return replace(node, draining=True, drain_by=None, outside=())
        if node.id in self.smaller:
            return replace(node, gpus=len(self.smaller[node.id][1]), outside=())
        return replace(node, outside=()) if node.outside else node

    def _masks(self, masks: Mapping[str, int]) -> dict[str, int]:
        found = dict(masks)
        for node, (_, left) in self.smaller.items():
            if mask := found.get(node, 0):
                found[node] = sum(1 << place for place, gpu in enumerate(left) if mask >> gpu & 1)
        return found


def without_outsiders(view: Snapshot) -> Snapshot:
    """The snapshot without the GPUs that outsiders use and no job holds; the same one if there are none."""
    if not any(node.outside for node in view.nodes.values()):
        return view
    closed = Closed.of(view)
    return closed.view(view) if closed else view
