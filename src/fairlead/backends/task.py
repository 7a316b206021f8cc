"""What a supervisor is told to run: everything about one attempt, as one value.

It travels through a pipe and never through a file, since its environment may hold secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.core import codec
from fairlead.core.types import Launch
from fairlead.train.agent import Slot
from fairlead.train.wire import GPU_TYPE

#: A node, and a device of this machine: nodes may be several on one machine.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One attempt of a job."""

    job: str
    attempt: int
    command: tuple[str, ...]
    #: A shell script that runs once, before the command.
    setup: str = ""
    workdir: str
    #: All of it, but for what differs between workers.
    env: Mapping[str, str]
    #: Where it runs at first.
    places: tuple[Place, ...]
    #: CUDA_VISIBLE_DEVICES of each device; None if CPU slots stand in for GPUs.
    devices: tuple[str, ...] | None = None
    #: Its workers come and go while it trains, with `fairlead.train`.
    elastic: bool = False
    #: Of a job that is not elastic.
    launch: Launch = Launch.PER_GPU
    #: It should change its GPUs in place, but cannot, as it is launched once: it keeps those it begins with.
    pinned: bool = False
    #: Of an elastic one: so long after its start, a command that has not spoken with its agent counts as one that never
    #: will. To import what a script needs takes less, as a rule; and one that speaks later is believed.
    pin_after_s: float = 30.0
    #: What is left of the back-off after the last failure: it waits so long before its command is run.
    delay_s: float = 0.0
    #: Attempts so far, and that may follow, for the job to know.
    max_restarts: int = 0
    #: Exit codes after which its user wants it tried again, also if it fails in the same way each time.
    restart_on: tuple[int, ...] = ()
    grace_s: float = 30.0
    #: How long it may run from now on.
    time_limit_s: float | None = None
    nice: int = 0
    #: Processors of each device; empty for all.
    cpus: tuple[tuple[int, ...], ...] = ()
    #: By node: the type of its GPUs; and the CPU share of a job there, if it has one.
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    cpu_shares: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(codec.encode(self))

    @staticmethod
    def from_json(text: str) -> Task:
        task: Task = codec.decode(Task, json.loads(text), place="task")
        return task

    @property
    def slots(self) -> list[Slot]:
        return [Slot(*place) for place in self.places]

    def gpu_type(self, slots: Iterable[Slot]) -> dict[str, str]:
        """The environment variable that tells a process the type of its GPUs; none if it is not known."""
        named = sorted({self.gpu_types[slot.node] for slot in slots if slot.node in self.gpu_types})
        return {GPU_TYPE: ",".join(named)} if named else {}

    def cpu_share(self, slots: Iterable[Slot]) -> float:
        """Of a job on these slots; 1, so no limit, on none."""
        return min((self.cpu_shares.get(slot.node, 1.0) for slot in slots), default=1.0)
