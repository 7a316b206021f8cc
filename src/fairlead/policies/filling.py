"""Who: from an order of jobs to a plan that gives each exactly what it asked for, as far as the GPUs go.

Two ways: `start_waiting` leaves everyone who runs alone; `run_first` takes GPUs from whoever comes later in the
order. Both are greedy; a job that does not fit either blocks those behind it or is skipped.

Legend: J live jobs in order of arrival, D distinct demands.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Allocation
from fairlead.policies.gpu_speeds import Speeds, believed_speeds
from fairlead.policies.placing import Room
from fairlead.policies.upgrade import upgrade

Indices = NDArray[np.int64]


def waiting(view: Snapshot) -> Indices:
    """Jobs without GPUs, in order of arrival."""
    if len(view.allocations) == len(view.jobs):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(view.columns.held_J == 0)


def all_fit(view: Snapshot) -> dict[str, Allocation] | None:
    """Everyone stays and every waiting job starts, if there is room for that: then no order matters. Else None."""
    queue_J = waiting(view)
    if not len(queue_J):
        return dict(view.allocations)
    columns, nodes = view.columns, view.node_columns
    typed = len(nodes.gpu_types) > 1 or any(types for _, types in columns.demands)
    if typed or columns.gpus_J[queue_J].sum() > nodes.free_N.sum():
        return None
    return start_waiting(view, queue_J, skip=True)


def start_waiting(
    view: Snapshot, queue_J: Indices, *, skip: bool, room: Room | None = None, speeds: Speeds | None = None
) -> dict[str, Allocation]:
    """Running jobs stay; waiting jobs start in the order given. Without `skip` the first that does not fit ends it.

    Of several GPU types with room each takes the one that `speeds` says is fastest for it; left out, what is believed.
    """
    allocations = dict(view.allocations)
    if len(queue_J):
        ids, speeds = view.columns.ids, speeds or believed_speeds(view)
        for job, allocation in _fitting(view, room or Room(view), queue_J, skip=skip, speeds=speeds):
            allocations[ids[job]] = allocation
    return allocations


def _fitting(
    view: Snapshot, room: Room, queue_J: Indices, *, skip: bool, speeds: Speeds
) -> Iterator[tuple[int, Allocation]]:
    """Jobs of the queue that fit into the room, one after the other, with what they take of it."""
    demands, ids = view.columns.demands, view.columns.ids
    demand_Q = view.columns.demand_J[queue_J]
    asked = np.flatnonzero(np.bincount(demand_Q, minlength=1)).tolist()
    place = 0
    while place < len(queue_J):
        job = int(queue_J[place])
        gpus, types = demands[demand_Q[place]]
        if (allocation := room.take(gpus, types, speeds(ids[job]))) is not None:
            yield job, allocation
            place += 1
            continue
        if not skip or room.free() == 0:
            return
        fits_D = np.zeros(len(demands), dtype=bool)
        fits_D[asked] = [room.free(demands[d][1]) >= demands[d][0] for d in asked]
        fits_Q = fits_D[demand_Q[place:]]
        hop = int(fits_Q.argmax())  # the next job that fits, over however many that don't
        if not fits_Q[hop]:
            return
        place += hop


def run_first(
    view: Snapshot, order_J: Indices, *, speeds: Speeds | None = None, left_s_J: Floats | None = None
) -> tuple[dict[str, Allocation], Indices]:
    """The jobs that come first run, as many as fit, skipping those that don't; the others lose their GPUs.

    Jobs that must not be preempted come before all others. A job that runs stays where it is; but with
    `left_s_J`, the seconds that each job is taken to have left, it moves to a faster GPU type with room if that saves
    it more than a start takes (`upgrade`). Also returns the chosen jobs, in order. `speeds` as in `start_waiting`.
    """
    columns = view.columns
    held_J = columns.held_J
    fixed_J = (held_J > 0) & (columns.preemptible_J == 0)
    if fixed_J.any():
        order_J = np.concatenate([order_J[fixed_J[order_J]], order_J[~fixed_J[order_J]]])
    type_of: dict[int, str] = {}
    if len(view.node_columns.gpu_types) <= 1:
        chosen = _choose(view, order_J)
    else:
        type_of = _choose_by_type(view, order_J, speeds or believed_speeds(view))
        chosen = np.array(list(type_of), dtype=np.int64)
    runs_J = np.zeros(len(held_J), dtype=bool)
    runs_J[chosen] = True
    allocations = dict(view.allocations)
    room = Room(view)
    ids = columns.ids
    for place, gpu_type in type_of.items():  # who has to change its type begins anew
        held = allocations.get(ids[place])
        if held is not None and view.nodes[held.nodes[0]].gpu_type != gpu_type:
            runs_J[place] = False
    for job in np.flatnonzero((held_J > 0) & ~runs_J):
        room.release(allocations.pop(ids[job]))
    for job in [job for job in chosen if ids[job] not in allocations]:
        gpus, types = columns.demands[columns.demand_J[job]]
        allocation = room.take(gpus, (type_of[job],) if type_of else types)
        assert allocation is not None, "there was room when it was chosen"
        allocations[ids[job]] = allocation
    if type_of and left_s_J is not None:
        speeds = speeds or believed_speeds(view)
        upgrade(view, room, allocations, chosen.tolist(), speeds=speeds, left_s_J=left_s_J)
        waits_J = np.array([job for job in order_J if ids[job] not in allocations], dtype=np.int64)
        more = dict(_fitting(view, room, waits_J, skip=True, speeds=speeds))  # what the moves left
        allocations |= {ids[job]: allocation for job, allocation in more.items()}
        chosen = np.concatenate([chosen, np.array(list(more), dtype=np.int64)])
    return allocations, chosen


def _takeable(view: Snapshot) -> Floats:
    """GPUs each job holds that others could have: nothing on a draining node, which takes no newcomers."""
    columns = view.columns
    if view.node_columns.open_N.all():
        return columns.held_J
    closed = {node.id for node in view.nodes.values() if not node.open}
    kept = {
        job_id: sum(len(gpus) for node, gpus in allocation if node not in closed)
        for job_id, allocation in view.allocations.items()
    }
    return np.array([kept.get(job_id, 0) for job_id in columns.ids], dtype=np.float64)


def _choose(view: Snapshot, order_J: Indices) -> Indices:
    """Greedy with skipping, a whole run of fitting jobs at a time. One GPU type."""
    columns = view.columns
    takeable_J = _takeable(view)
    need_J = np.where(columns.held_J > 0, takeable_J, columns.gpus_J)
    left = float(view.node_columns.free_N.sum() + takeable_J.sum())
    accepted_D = np.array([not types or set(types) >= set(view.node_columns.gpu_types) for _, types in columns.demands])
    if not accepted_D.all():
        order_J = order_J[accepted_D[columns.demand_J[order_J]]]
    chosen: list[Indices] = [order_J[need_J[order_J] == 0]]  # nobody could use what these hold
    order_J = order_J[need_J[order_J] > 0]
    while left > 0 and len(order_J):
        order_J = order_J[need_J[order_J] <= left]
        used = np.cumsum(need_J[order_J])
        count = int(np.searchsorted(used, left, side="right"))
        if count:
            chosen.append(order_J[:count])
            left -= float(used[count - 1])
        order_J = order_J[count:]
    return np.concatenate(chosen)


def _choose_by_type(view: Snapshot, order_J: Indices, speeds: Speeds) -> dict[int, str]:
    """The same over several GPU types, which it also returns.

    A running job keeps its type if it can. Another takes idle GPUs if there are enough of one type: of several such
    types the fastest for it, then that on which it spans the fewest nodes, then the one with the most. Else it takes
    those of the job that comes last in the order, so that the least is disturbed.
    """
    columns, nodes = view.columns, view.node_columns
    idle = {t: int(nodes.free_N[nodes.type_N == kind].sum()) for kind, t in enumerate(nodes.gpu_types)}
    left = dict(idle)
    type_of = {job_id: view.nodes[allocation.nodes[0]].gpu_type for job_id, allocation in view.allocations.items()}
    takeable_J = _takeable(view)
    for job in np.flatnonzero(columns.held_J > 0):
        left[type_of[columns.ids[job]]] += int(takeable_J[job])
    largest, last = _largest_nodes(view), _last_in_order(view, order_J, takeable_J)
    chosen: dict[int, str] = {}
    for job in order_J:
        gpus, types = columns.demands[columns.demand_J[job]]
        held = columns.held_J[job] > 0
        need = int(takeable_J[job]) if held else gpus
        own = type_of.get(columns.ids[job])
        if own is not None and left[own] >= need:
            chosen[int(job)] = own
            left[own] -= need
            continue
        if held and not columns.preemptible_J[job]:
            continue  # it cannot be displaced: those before it are of its kind
        fitting = [t for t in nodes.gpu_types if t != own and left[t] >= gpus and (not types or t in types)]
        if fitting:
            speed, spans = speeds(columns.ids[job]), {t: -(-gpus // largest[t]) for t in fitting}
            room = [t for t in fitting if idle[t] >= gpus]
            first_hit = {t: 0 if room else _first_hit(last[t], gpus - idle[t]) for t in fitting}
            best = min(room or fitting, key=lambda t: (-first_hit[t], -speed(t, spans[t]), spans[t], -idle[t]))
            chosen[int(job)] = best
            left[best] -= gpus
            idle[best] -= gpus  # below 0: what earlier jobs took of running ones
    return chosen


def _last_in_order(view: Snapshot, order_J: Indices, takeable_J: Floats) -> dict[str, list[tuple[int, int]]]:
    """By GPU type: (place in the order, GPUs) of the running jobs that may be displaced, the last one first."""
    columns = view.columns
    found: dict[str, list[tuple[int, int]]] = {gpu_type: [] for gpu_type in view.node_columns.gpu_types}
    for place in range(len(order_J) - 1, -1, -1):
        job = order_J[place]
        if columns.held_J[job] > 0 and columns.preemptible_J[job]:
            on = view.nodes[view.allocations[columns.ids[job]].nodes[0]].gpu_type
            found[on].append((place, int(takeable_J[job])))
    return found


def _first_hit(running: list[tuple[int, int]], gpus: int) -> int:
    """Place in the order of the first job that loses its GPUs if so many are taken, from the last job on."""
    for place, held in running:
        gpus -= held
        if gpus <= 0:
            return place
    return -1


def _largest_nodes(view: Snapshot) -> dict[str, int]:
    """By GPU type, the most GPUs that one node has."""
    largest: dict[str, int] = {}
    for node in view.nodes.values():
        largest[node.gpu_type] = max(node.gpus, largest.get(node.gpu_type, 0))
    return largest
