"""Where, the other way: the node with the most free GPUs first, which keeps every node a little free.

What the schedulers that came with Pollux do. Compare `placing.py`, which keeps gaps whole.

Legend: N nodes in the order of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation
from fairlead.policies.placing import realise

Ints = NDArray[np.int64]

#: GPUs by node, as its place in the order of the snapshot.
Counts = dict[int, int]


def take_emptiest(free_N: Ints, gpus: int) -> Counts:
    """So many GPUs, each time from the node with the most free, the first of equals. Takes them out of `free_N`."""
    taken: Counts = {}
    while gpus > 0:
        node = int(free_N.argmax())
        count = min(gpus, int(free_N[node]))
        assert count > 0, "the caller knows that there is room"
        taken[node] = count
        free_N[node] -= count
        gpus -= count
    return taken


def spread(view: Snapshot, allocations: Mapping[str, Allocation], order: Iterable[str]) -> dict[str, Allocation]:
    """The same plan with everyone who starts or moves put on the emptiest nodes instead, in the order given.

    Numbers and types of GPUs stay as they are, and so does who keeps its place.
    """
    nodes, row = view.node_columns, {name: place for place, name in enumerate(view.node_columns.ids)}
    free_N, where = nodes.free_N.copy(), {}
    for job_id, held in view.allocations.items():
        counts = {row[node]: mask.bit_count() for node, mask in held.masks}
        if allocations.get(job_id) == held:
            where[job_id] = counts
        else:
            for node, gpus in counts.items():
                free_N[node] += gpus * bool(nodes.open_N[node])
    for job_id in order:
        if job_id in allocations and job_id not in where:
            own_N = nodes.type_N == nodes.type_N[row[allocations[job_id].nodes[0]]]
            typed_N = np.where(own_N, free_N, 0)
            where[job_id] = take_emptiest(typed_N, allocations[job_id].total)
            free_N = np.where(own_N, typed_N, free_N)
    return realise(view, list(where), list(where.values()))
