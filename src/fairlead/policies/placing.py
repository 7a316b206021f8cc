"""Where: from "four GPUs" to which four. Fewest nodes first, and the tightest node that fits, to keep gaps whole.

Of several GPU types with room the fastest is taken, as far as that is known (`gpu_speeds.py`); then the one on which
the job spans the fewest nodes; then the one with the most free GPUs; and of equal ones the first in the order of the
snapshot, which names and lists have no part in (`core.node_order`).

Legend: N nodes in the order of the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation
from fairlead.policies.gpu_speeds import SpeedOn, equal_speeds

#: More GPUs than any node has.
_NEVER = np.iinfo(np.int64).max


class Room:
    """The free GPUs while one plan is made. Begins with everyone in place; lives no longer than the plan."""

    def __init__(self, view: Snapshot) -> None:
        columns = view.node_columns
        self._view, self._ids, self._types = view, columns.ids, columns.gpu_types
        self._type_N = columns.type_N
        self._free_N = columns.free_N.copy()  # the snapshot keeps its own
        self._taken: dict[str, int] = {}  # masks of the nodes this plan touched; others are in view.assigned
        self._row: dict[str, int] | None = None
        self._free = {
            name: int(self._free_N.sum() if len(self._types) == 1 else self._free_N[self._type_N == kind].sum())
            for kind, name in enumerate(self._types)
        }

    def free(self, types: tuple[str, ...] = ()) -> int:
        """The most GPUs one job that accepts these types could get: they are never mixed."""
        return max((self._free.get(t, 0) for t in types or self._types), default=0)

    def span(self, gpus: int, gpu_type: str) -> int:
        """Nodes on which a job would get so many GPUs of a type that has as many free."""
        return len(self._nodes_for(gpus, gpu_type))

    def take(self, gpus: int, types: tuple[str, ...] = (), speed: SpeedOn = equal_speeds) -> Allocation | None:
        """So many GPUs of one accepted type, on the fewest nodes; None if there are not enough.

        `speed` is that of the job on each type.
        """
        fitting = [t for t in self._types if self._free[t] >= gpus and (not types or t in types)]
        if not fitting:
            return None
        options = [(self._nodes_for(gpus, t), t) for t in fitting]
        rows, gpu_type = min(options, key=lambda it: (-speed(it[1], len(it[0])), len(it[0]), -self._free[it[1]]))
        shares: dict[str, list[int]] = {}
        left = gpus
        for row in rows:
            count = min(left, int(self._free_N[row]))
            shares[self._ids[row]] = self._take_on(row, count)
            left -= count
        self._free[gpu_type] -= gpus
        return Allocation.of(shares)

    def release(self, allocation: Allocation) -> None:
        """Give a job's GPUs to whoever comes next in this plan."""
        if self._row is None:
            self._row = {node: row for row, node in enumerate(self._ids)}
        for node_id, mask in allocation.masks:
            node = self._view.nodes[node_id]
            self._taken[node_id] = self._mask(node_id) & ~mask
            if node.open:
                self._free_N[self._row[node_id]] += mask.bit_count()
                self._free[node.gpu_type] += mask.bit_count()

    def _mask(self, node_id: str) -> int:
        mask = self._taken.get(node_id)
        return self._view.assigned.get(node_id, 0) if mask is None else mask

    def _nodes_for(self, gpus: int, gpu_type: str) -> list[int]:
        """Rows of the fewest nodes that hold the job: large gaps first, and for the rest the tightest gap."""
        kind = self._types.index(gpu_type)
        free_N = self._free_N if len(self._types) == 1 else np.where(self._type_N == kind, self._free_N, 0)
        rows: list[int] = []
        left = gpus
        while left > (largest := int(free_N.max())):
            row = int(free_N.argmax())
            rows.append(row)
            left -= largest
            free_N = free_N.copy()
            free_N[row] = 0
        rows.append(int(np.where(free_N >= left, free_N, _NEVER).argmin()))
        return rows

    def _take_on(self, row: int, count: int) -> list[int]:
        """The lowest free GPUs of a node."""
        node_id = self._ids[row]
        mask = self._mask(node_id)
        gpus: list[int] = []
        gpu = 0
        while len(gpus) < count:
            if not mask >> gpu & 1:
                gpus.append(gpu)
                mask |= 1 << gpu
            gpu += 1
        self._taken[node_id] = mask
        self._free_N[row] -= count
        return gpus


def realise(view: Snapshot, ids: Sequence[str], where: Sequence[Mapping[int, int]]) -> dict[str, Allocation]:
    """Which GPUs, from how many on which node (by place in `node_columns.ids`).

    A job whose counts are what it holds keeps exactly that. Others keep what they have on a node as far as they can,
    and take its lowest free GPUs.
    """
    names = view.node_columns.ids
    row = {name: place for place, name in enumerate(names)}
    allocations: dict[str, Allocation] = {}
    taken: dict[str, int] = {}
    movers: list[tuple[str, Mapping[int, int]]] = []
    for job_id, counts in zip(ids, where, strict=True):
        held = view.allocations.get(job_id, NOTHING)
        if counts and {row[node]: mask.bit_count() for node, mask in held.masks} == counts:
            allocations[job_id] = held
            for node, mask in held.masks:
                taken[node] = taken.get(node, 0) | mask
        elif counts:
            movers.append((job_id, counts))
    kept: list[dict[str, int]] = []
    for job_id, counts in movers:  # first everyone keeps its own, then all take what is left
        own = dict(view.allocations.get(job_id, NOTHING).masks)
        keeps = {names[place]: _lowest(own.get(names[place], 0), count) for place, count in counts.items()}
        for node, mask in keeps.items():
            taken[node] = taken.get(node, 0) | mask
        kept.append(keeps)
    for (job_id, counts), keeps in zip(movers, kept, strict=True):
        for place, count in counts.items():
            node = names[place]
            every = (1 << view.nodes[node].gpus) - 1
            more = _lowest(every & ~taken.get(node, 0), count - keeps[node].bit_count())
            keeps[node] |= more
            taken[node] = taken.get(node, 0) | more
        allocations[job_id] = Allocation.of({node: _bits(mask) for node, mask in keeps.items()})
    return allocations


def _lowest(mask: int, count: int) -> int:
    """The lowest so many bits of a mask, or all if it has fewer."""
    chosen = 0
    while mask and count > 0:
        bit = mask & -mask
        chosen, mask, count = chosen | bit, mask ^ bit, count - 1
    return chosen


def _bits(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]
