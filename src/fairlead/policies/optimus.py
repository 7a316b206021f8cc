"""Marginal gain (Optimus, EuroSys 2018), as the simulator of Pollux's artifact has it.

Every job first gets the fewest GPUs it can run on, in order of arrival. Then one GPU after another goes to the job
whose remaining time it shortens most: (step time on n GPUs - step time on n + 1) x steps left. Batches stay.

An oracle: step times and steps left are the true ones, where the paper estimates both. It is a yardstick, which knows
more than Optimus would. A job keeps its place as long as it keeps its number of GPUs; the others move, those with few
GPUs first, to the emptiest nodes.

A job runs on one GPU type at a time, so each type is shared out among its own jobs. Those that wait go where the fewest
jobs are for each GPU; a GPU that is stated to be twice as fast (`Node.speed`) counts twice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot, StepTimes
from fairlead.core.types import Allocation, Job, Plan
from fairlead.policies.gpu_speeds import stated_speeds
from fairlead.policies.placing import realise
from fairlead.policies.reasons import Reasons, served_reasons
from fairlead.policies.spreading import Counts, Ints, take_emptiest
from fairlead.policies.wait_reason import Discipline


@dataclass(frozen=True)
class Optimus:
    """One GPU after another goes where it shortens a job most; jobs keep their batch."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ORACLE})
    #: Jobs may change their number of GPUs, and nothing else.
    adapts: ClassVar[str] = "gpus"
    #: Seconds between decisions that it is made for: between them it never asks to look again.
    period_s: ClassVar[float] = 60.0

    def plan(self, view: Snapshot) -> Plan:
        oracle = _oracle(view)
        nodes, pools = view.node_columns, _pools(view)
        size_N = np.array([node.gpus if node.open else 0 for node in view.nodes.values()], dtype=np.int64)
        where: dict[str, Counts] = {}
        for kind, gpu_type in enumerate(nodes.gpu_types):
            size_of_type_N = np.where(nodes.type_N == kind, size_N, 0)
            where |= _share_out(view, oracle, pools[gpu_type], size_of_type_N)
        kept = [job_id for job_id in view.jobs if job_id in where]
        allocations = realise(view, kept, [where[job_id] for job_id in kept])
        return Plan({job_id: allocations[job_id] for job_id in kept}, _reasons(view, allocations))


# -- how many --------------------------------------------------------------------------------------------------------


def _share_out(view: Snapshot, oracle: StepTimes, jobs: Sequence[Job], size_N: Ints) -> dict[str, Counts]:
    """Where the jobs of one GPU type go, on nodes that have `size_N` GPUs to give."""
    row = {name: place for place, name in enumerate(view.node_columns.ids)}
    held = {job.id: {row[node]: mask.bit_count() for node, mask in job.allocation.masks} for job in jobs}
    stay = {job.id: held[job.id] for job in jobs if job.allocation and not job.spec.preemptible}
    room = int(_left(size_N, stay.values()).sum())
    gpus = _sizes(oracle, [job for job in jobs if job.id not in stay], room)
    stay |= {job_id: held[job_id] for job_id, count in gpus.items() if count == sum(held[job_id].values())}
    free_N = _left(size_N, stay.values())
    movers = sorted((job_id for job_id in gpus if job_id not in stay), key=gpus.__getitem__)
    return stay | {job_id: take_emptiest(free_N, gpus[job_id]) for job_id in movers}


def _left(size_N: Ints, taken: Iterable[Counts]) -> Ints:
    """GPUs that are left on each node; none on one that is closed, whoever is still there."""
    free_N = size_N.copy()
    for counts in taken:
        for node, gpus in counts.items():
            free_N[node] = max(0, free_N[node] - gpus)
    return free_N


def _sizes(oracle: StepTimes, jobs: Sequence[Job], room: int) -> dict[str, int]:
    """GPUs for each job that gets any: the fewest it needs, then one at a time by what it gains. Ties go by arrival."""
    gpus: dict[str, int] = {}
    gains: list[tuple[float, int]] = []
    steps: dict[str, float] = {}
    for place, job in sorted(enumerate(jobs), key=lambda item: item[1].spec.least):
        if job.spec.least > room:
            continue
        gpus[job.id], steps[job.id] = job.spec.least, max(1.0, oracle.steps_left(job.id))
        room -= job.spec.least
        gains.append((-_gain(oracle, job, gpus[job.id], steps[job.id]), place))
    heapq.heapify(gains)
    while room > 0 and gains and gains[0][0] < 0.0:
        _, place = gains[0]
        job = jobs[place]
        gpus[job.id] += 1
        room -= 1
        heapq.heapreplace(gains, (-_gain(oracle, job, gpus[job.id], steps[job.id]), place))
    return gpus


def _gain(oracle: StepTimes, job: Job, gpus: int, steps: float) -> float:
    """Seconds that one GPU more would save; 0 if the job cannot use it."""
    if gpus >= job.spec.most:
        return 0.0
    now_s, then_s = oracle.step_s(job.id, gpus), oracle.step_s(job.id, gpus + 1)
    return (now_s - then_s) * steps if then_s < math.inf else 0.0


# -- what it knows, and says -----------------------------------------------------------------------------------------


def _pools(view: Snapshot) -> dict[str, list[Job]]:
    """The jobs of each GPU type, in order of arrival."""
    room = dict.fromkeys(view.node_columns.gpu_types, 0)
    for node in view.nodes.values():
        room[node.gpu_type] += node.gpus * node.open
    pools: dict[str, list[Job]] = {gpu_type: [] for gpu_type in room}
    waiting: list[tuple[Job, list[str]]] = []
    for job in view.jobs.values():
        if job.allocation:
            pools[view.nodes[job.allocation.nodes[0]].gpu_type].append(job)
        elif fitting := [t for t in room if room[t] >= job.spec.least and t in (job.spec.gpu_types or room)]:
            waiting.append((job, fitting))
    speed = stated_speeds(view)
    for job, fitting in waiting:
        pools[min(fitting, key=lambda t: len(pools[t]) / (room[t] * speed.get(t, 1.0)))].append(job)
    place = {job_id: number for number, job_id in enumerate(view.jobs)}
    return {gpu_type: sorted(jobs, key=lambda job: place[job.id]) for gpu_type, jobs in pools.items()}


class _Proportional:
    """Where nobody knows of steps: those left are seconds on what a job asked for, and every GPU helps as much."""

    def __init__(self, view: Snapshot, remaining_s: Callable[[str], float]) -> None:
        self._view, self.steps_left = view, remaining_s

    def step_s(self, job_id: str, gpus: int) -> float:
        return self._view.jobs[job_id].spec.gpus / gpus


def _oracle(view: Snapshot) -> StepTimes:
    if view.step_oracle is not None:
        return view.step_oracle
    if view.oracle is None:
        raise InvalidSpec("optimus is an oracle: it needs true step times, which only the simulator knows")
    return _Proportional(view, view.oracle)


def _reasons(view: Snapshot, allocations: Mapping[str, Allocation]) -> Reasons:
    """The fewest GPUs that each job can run on come first, and a job waits for those."""
    discipline = Discipline(
        "fewest GPUs needed, then order of arrival",
        order=lambda: sorted(view.jobs, key=lambda job_id: view.jobs[job_id].spec.least),
        preempts=True,
        resizes=True,
    )
    return served_reasons(view, allocations, discipline)
