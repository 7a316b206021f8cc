"""Which groups of jobs run in a round, and on which GPUs: greedy by priority, and a job that goes on keeps its place.

A group that is selected on the GPU type where it is already keeps exactly its GPUs, so it is not stopped: its lease is
renewed. The others are placed after that, the largest first, on the fewest nodes that hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation
from fairlead.policies.round_account import Group, Owed
from fairlead.policies.wait_reason import accepts, gpu_type_of, is_bound, on_open_nodes


class Candidate(NamedTuple):
    """A group on a GPU type, as it stands in the queue."""

    group: Group
    gpu_type: str
    gpus: int
    priority: float
    deficit_s: float
    share: float
    #: It holds GPUs of this type.
    holds: bool
    #: It was not there when the shares in force were computed.
    is_new: bool

    @property
    def rank(self) -> tuple[float, float, float]:
        """The greater goes first."""
        return self.priority, self.deficit_s, self.share


def open_to(view: Snapshot, owed: Owed) -> list[tuple[Group, str, float, bool]]:
    """(group, GPU type, share, is it new) of all that could be selected, in order of arrival of their first job.

    A job without any entry in `owed` may have each type that it accepts; of another one only what its entries say: a
    type that is missing is one on which it cannot run.
    """
    place = {job_id: at for at, job_id in enumerate(view.jobs)}
    kind = {name: at for at, name in enumerate(view.node_columns.gpu_types)}
    found: list[tuple[Group, str, float, bool]] = []
    covered: set[str] = set()
    for (group, gpu_type), share in owed.items():
        if not group or any(job_id not in place for job_id in group):
            continue
        covered.update(group)
        jobs = [view.jobs[job_id] for job_id in group]
        if len({job.spec.gpus for job in jobs}) > 1:
            sizes = ", ".join(f"{job.id} wants {job.spec.gpus}" for job in jobs)
            raise InvalidSpec(f"jobs that share GPUs want the same number of them, but {sizes}; owe to them apart")
        if gpu_type in kind and all(accepts(job, gpu_type) for job in jobs):
            found.append((group, gpu_type, share, False))
    for job in view.jobs.values():
        if job.id not in covered:
            found += [((job.id,), gpu_type, 0.0, True) for gpu_type in kind if accepts(job, gpu_type)]
    return sorted(found, key=lambda each: (min(place[job_id] for job_id in each[0]), each[0], kind[each[1]]))


@dataclass
class Selection:
    """Groups chosen so far, and what is left; lives no longer than one plan."""

    view: Snapshot

    def __post_init__(self) -> None:
        view = self.view
        self.allocations: dict[str, Allocation] = {}
        self.chosen: dict[str, Candidate] = {}  # by job
        self._kept: dict[str, int] = {}  # masks by node
        self._movers: list[Candidate] = []
        self._blocked: set[str] = set()
        self._left = dict.fromkeys(view.node_columns.gpu_types, 0)
        for node in view.nodes.values():
            self._left[node.gpu_type] += node.gpus * node.open

    def keep(self, job_ids: Iterable[str]) -> None:
        """These stay where they are, whatever else is chosen."""
        for job_id in job_ids:
            self._stay((job_id,), self.view.allocations[job_id])

    def take(self, candidate: Candidate) -> bool:
        """Choose a group if it fits, and none of its jobs was chosen before. True if so."""
        if self._is_settled(candidate):
            return False
        place = self._own_place(candidate)
        if place:
            self._stay(candidate.group, place)
        elif self._left[candidate.gpu_type] >= candidate.gpus:
            self._left[candidate.gpu_type] -= candidate.gpus
            self._movers.append(candidate)
        else:
            return False
        self.chosen |= dict.fromkeys(candidate.group, candidate)
        return True

    def block(self, candidate: Candidate) -> None:
        """Keep GPUs free for a group that does not run."""
        if not self._is_settled(candidate) and self._left[candidate.gpu_type] >= candidate.gpus:
            self._left[candidate.gpu_type] -= candidate.gpus
            self._blocked.update(candidate.group)

    def _is_settled(self, candidate: Candidate) -> bool:
        return any(j in self.chosen or j in self.allocations or j in self._blocked for j in candidate.group)

    def place(self) -> dict[str, Allocation]:
        """Every chosen job's GPUs, in order of arrival."""
        gaps = _Gaps(self.view, self._kept)
        for candidate in sorted(self._movers, key=lambda each: -each.gpus):
            allocation = gaps.take(candidate.gpus, candidate.gpu_type)
            self.allocations |= dict.fromkeys(candidate.group, allocation)
        self._movers = []
        return {job_id: self.allocations[job_id] for job_id in self.view.jobs if job_id in self.allocations}

    def packed(self) -> frozenset[frozenset[str]]:
        """Groups that share GPUs: those chosen, and jobs that are left where they overlap."""
        by_place: dict[Allocation, list[str]] = {}
        for job_id, allocation in self.allocations.items():
            by_place.setdefault(allocation, []).append(job_id)
        return frozenset(frozenset(jobs) for jobs in by_place.values() if len(jobs) > 1) | self._overlaps()

    def _overlaps(self) -> frozenset[frozenset[str]]:
        if not self.view.shared:
            return frozenset()
        owners: dict[tuple[str, int], list[str]] = {}
        for job_id, allocation in self.allocations.items():
            for node, gpus in allocation:
                for gpu in gpus:
                    owners.setdefault((node, gpu), []).append(job_id)
        return frozenset(frozenset(jobs) for jobs in owners.values() if len(jobs) > 1)

    def _own_place(self, candidate: Candidate) -> Allocation:
        """GPUs that one of the group holds and that the whole group can keep; NOTHING if it has to be placed."""
        view = self.view
        for job_id in candidate.group:
            held = view.allocations.get(job_id, NOTHING)
            if not held or gpu_type_of(view, held) != candidate.gpu_type:
                continue
            alone = len(candidate.group) == 1
            if not alone and (held.total != candidate.gpus or not all(view.nodes[node].open for node in held.nodes)):
                continue  # others would newly be placed on a node that takes none
            if any(mask & self._kept.get(node, 0) for node, mask in held.masks):
                continue
            if on_open_nodes(view, held) <= self._left[candidate.gpu_type]:
                return held
        return NOTHING

    def _stay(self, group: Group, allocation: Allocation) -> None:
        gpu_type = gpu_type_of(self.view, allocation)
        fresh = sum(
            (mask & ~self._kept.get(n, 0)).bit_count() for n, mask in allocation.masks if self.view.nodes[n].open
        )
        self._left[gpu_type] -= fresh
        for node, mask in allocation.masks:
            self._kept[node] = self._kept.get(node, 0) | mask
        self.allocations |= dict.fromkeys(group, allocation)


def bound_jobs(view: Snapshot) -> list[str]:
    """Jobs that hold GPUs which nothing may take from them."""
    return [job.id for job in view.jobs.values() if is_bound(job)]


class _Gaps:
    """Free GPUs on open nodes, as masks."""

    def __init__(self, view: Snapshot, taken: Mapping[str, int]) -> None:
        self._view = view
        self._free = {n.id: ((1 << n.gpus) - 1) & ~taken.get(n.id, 0) for n in view.nodes.values() if n.open}

    def take(self, gpus: int, gpu_type: str) -> Allocation:
        """On the fewest nodes: large gaps first, and for the rest the tightest gap; the lowest GPUs of each."""
        gaps = {n: m.bit_count() for n, m in self._free.items() if m and self._view.nodes[n].gpu_type == gpu_type}
        shares: dict[str, list[int]] = {}
        while gpus > 0:
            widest = max(gaps.values())
            fitting = [node for node, gap in gaps.items() if gap >= min(gpus, widest)]
            node = min(fitting, key=lambda each: gaps[each])
            shares[node] = self._lowest(node, min(gpus, widest))
            gpus -= len(shares[node])
            del gaps[node]
        return Allocation.of(shares)

    def _lowest(self, node: str, count: int) -> list[int]:
        mask = self._free[node]
        found: list[int] = []
        while len(found) < count:
            gpu = (mask & -mask).bit_length() - 1
            found.append(gpu)
            mask &= mask - 1
        self._free[node] = mask
        return found
