"""What the tests of metrics and reports run on: two tiny policies, and simulated journals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import Message
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Allocation, Job, Node, Plan
from fairlead.journal import MemoryJournal
from fairlead.sim.backend import SimBackend
from fairlead.sim.world import Outage, SimJob


def place(free: dict[str, list[int]], gpus: int) -> Allocation | None:
    """The first GPUs that are free, taken out of `free`; None if there are too few."""
    if sum(map(len, free.values())) < gpus:
        return None
    taken: dict[str, list[int]] = {}
    for node, indices in free.items():
        take = min(gpus, len(indices))
        if take:
            taken[node] = [indices.pop(0) for _ in range(take)]
            gpus -= take
    return Allocation.of(taken)


@dataclass(frozen=True)
class InOrder:
    """First come, first served: who runs stays, who waits is placed in order, and nobody overtakes."""

    def order(self, view: Snapshot) -> list[Job]:
        return sorted(view.jobs.values(), key=lambda job: (not job.allocation, job.submitted_at))

    def plan(self, view: Snapshot) -> Plan:
        free = {node.id: list(range(node.gpus)) for node in view.nodes.values() if node.open}
        allocations: dict[str, Allocation] = {}
        for job in self.order(view):
            if job.allocation:
                allocations[job.id] = job.allocation
                for node, gpus in job.allocation:
                    free[node] = [gpu for gpu in free.get(node, []) if gpu not in gpus]
            elif (placed := place(free, job.spec.gpus)) is not None:
                allocations[job.id] = placed
            else:
                break
        return Plan(allocations)


@dataclass(frozen=True)
class Restless:
    """Puts everyone somewhere else at every decision, elastic jobs at another size: many stops and rescales."""

    pairs: bool = False
    _turn: list[int] = field(default_factory=lambda: [0], compare=False)

    def plan(self, view: Snapshot) -> Plan:
        self._turn[0] += 1
        jobs = sorted(view.jobs.values(), key=lambda job: job.submitted_at)
        turn = self._turn[0] % max(1, len(jobs))
        free = {node.id: list(range(node.gpus)) for node in view.nodes.values() if node.open}
        allocations: dict[str, Allocation] = {}
        packed: set[frozenset[str]] = set()
        for job in jobs[turn:] + jobs[:turn]:
            size = job.spec.least if self._turn[0] % 2 else job.spec.most
            placed = place(free, size)
            if placed is None and self.pairs and not packed:
                same = [mate for mate, where in allocations.items() if where.total == size]
                if same:
                    placed = allocations[same[0]]
                    packed.add(frozenset((same[0], job.id)))
            if placed is not None:
                allocations[job.id] = placed
        return Plan(allocations, packed=frozenset(packed))


def simulate(
    jobs: Sequence[SimJob],
    nodes: Sequence[Node],
    *,
    policy: Policy | None = None,
    outages: Sequence[Outage] = (),
    cadence: Cadence | None = None,
) -> list[Message]:
    journal = MemoryJournal()
    backend = SimBackend(jobs, nodes, outages=outages, patience=20)
    run(policy or InOrder(), backend, state=State(), journal=journal, cadence=cadence or Cadence())
    return journal.messages


def alone(jobs: Sequence[SimJob]) -> dict[str, float]:
    """Seconds each job takes alone on what it asked for."""
    return {job.spec.id: job.truth.remaining_s(0.0) for job in jobs}
