"""Which GPUs, from how many for each job: jobs that keep their number stay, and the rest take what is free.

A job runs on one GPU type at a time: one that starts, on the fastest that has room for it. One that changes its number
in place keeps the GPUs it has, as far as it can; one that is restarted for it goes where it spans the fewest nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation
from fairlead.policies.gpu_speeds import believed_speeds
from fairlead.policies.placing import Room
from fairlead.policies.wait_reason import accepts, gpu_type_of, is_bound, on_open_nodes


def place_sizes(
    view: Snapshot,
    sizes: Mapping[str, int],
    order: Sequence[str],
    *,
    spare: Mapping[str, int],
    wider: Mapping[str, Mapping[int, int]],
) -> dict[str, Allocation]:
    """Allocations of the jobs in `sizes`, in the order given; then the other jobs take what is left.

    Of those a running job keeps what it holds if it can, and another gets `spare` GPUs. A job that must not be stopped
    keeps what it holds. One that finds fewer GPUs than it should have takes fewer, down to the least it can run on, and
    waits if there are not even so many. What is left then goes to jobs that are worth it: `wider` has the next number
    of GPUs of a job by the one it has, and the jobs that grow first come first in it.
    """
    granted, left = _granted(view, sizes, order, spare)
    _grow(granted, left, wider)
    room = Room(view)
    placed: dict[str, Allocation] = {}
    for job in view.jobs.values():
        if is_bound(job) or granted.get(job.id, (0, ""))[0] == job.allocation.total > 0:
            placed[job.id] = job.allocation
        elif job.allocation:
            room.release(job.allocation)
    movers = [name for name in granted if name not in placed]
    for name in movers:
        gpus, gpu_type = granted[name]
        found = room.take(gpus, (gpu_type,))
        if found is not None:
            placed[name] = found
    return {name: placed[name] for name in view.jobs if name in placed}


def _granted(
    view: Snapshot, sizes: Mapping[str, int], order: Sequence[str], spare: Mapping[str, int]
) -> tuple[dict[str, tuple[int, str]], dict[str, int]]:
    """(GPUs, type) of each job that gets any, in the order in which they are served; and GPUs left of each type."""
    left = dict.fromkeys(view.node_columns.gpu_types, 0)
    for node in view.nodes.values():
        left[node.gpu_type] += node.usable
    granted: dict[str, tuple[int, str]] = {}
    speeds = believed_speeds(view)
    for job in view.jobs.values():
        if is_bound(job):
            left[gpu_type_of(view, job.allocation)] -= on_open_nodes(view, job.allocation)
    for name, gpus in _wanted(view, sizes, order, spare):
        job = view.jobs[name]
        held = job.allocation
        own = gpu_type_of(view, held) if held else ""
        if held and gpus == held.total and on_open_nodes(view, held) <= left[own]:
            granted[name] = gpus, own
            left[own] -= on_open_nodes(view, held)
            continue
        types = [gpu_type for gpu_type in left if accepts(job, gpu_type)]
        speed = speeds(name)
        rank = {each: (left[each] >= gpus, each == own, speed(each, 1), left[each]) for each in types}
        gpu_type = max(types, key=rank.__getitem__, default="")
        gpus = min(gpus, job.spec.most, left.get(gpu_type, 0))
        if gpus >= job.spec.least:
            granted[name] = gpus, gpu_type
            left[gpu_type] -= gpus
    return granted, left


def _grow(granted: dict[str, tuple[int, str]], left: dict[str, int], wider: Mapping[str, Mapping[int, int]]) -> None:
    """One step for each job in turn, as long as any can take one."""
    grew = True
    while grew:
        grew = False
        for name, steps in wider.items():
            gpus, gpu_type = granted.get(name, (0, ""))
            more = steps.get(gpus, gpus) - gpus
            if 0 < more <= left.get(gpu_type, 0):
                granted[name] = gpus + more, gpu_type
                left[gpu_type] -= more
                grew = True


def _wanted(
    view: Snapshot, sizes: Mapping[str, int], order: Sequence[str], spare: Mapping[str, int]
) -> Iterable[tuple[str, int]]:
    """The jobs that the round was placed for, then the other jobs."""
    free = [name for name in order if not is_bound(view.jobs[name])]
    yield from ((name, sizes[name]) for name in free if name in sizes)
    for name in free:
        if name not in sizes:
            yield name, view.jobs[name].allocation.total or spare[name]
