"""GPUs that somebody uses without asking us: which, and by which processes.

Whoever looks only once sees visitors, and workers of ours that are about to end. So a process counts once it was seen
twice in a row, and until it was missed twice in a row. The exception is the first look: who is there before we give
anything away may well have been there for days.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.backends.machine import Machine
from fairlead.backends.processes import is_alive, is_of_a_job, user_of

#: A node, and the number of a GPU there.
Place = tuple[str, int]


@dataclass(frozen=True)
class Outsider:
    """A process that no job of ours started, on one GPU. A job there should know no more of it than this."""

    node: str
    gpu: int
    pid: int
    #: Empty where that is not known.
    user: str

    def __str__(self) -> str:
        by = f" ({self.user})" if self.user else ""
        return f"GPU {self.gpu} of node {self.node} is also used by process {self.pid}{by}"


class Outsiders:
    """What is known of them. `root` is where our jobs are: those of another Fairlead are outsiders, too.

    Belongs to one thread at a time.
    """

    def __init__(self, machine: Machine, root: Path) -> None:
        self._read, self._root = machine.users.read, root
        self._nodes = tuple(node.id for node in machine.nodes)
        places = [(node.id, gpu) for node in machine.nodes for gpu in range(node.gpus)]
        self._places: Mapping[str, Place] = dict(zip(machine.devices or (), places, strict=False))
        self._looked = False
        #: Who counts, and who was there at the last look but does not count, or counts but was not there.
        self._sure: dict[Place, frozenset[int]] = {}
        self._doubt: dict[Place, frozenset[int]] = {}
        #: Who is ours stays so while it ends and can no longer be recognised.
        self._ours: set[int] = set()

    @property
    def gpus(self) -> dict[str, tuple[int, ...]]:
        """Those that are used, of every node."""
        return {
            node: tuple(sorted(gpu for (on, gpu), who in self._sure.items() if on == node and who))
            for node in self._nodes
        }

    def look(self) -> list[Outsider]:
        """Who has begun to count. Raises what reading raises, and then nothing has changed."""
        using = self._read() if self._places else {}
        here = {place: using[device] for device, place in self._places.items() if device in using}
        strangers = self._strangers({pid for pids in here.values() for pid in pids})
        found = [
            Outsider(*place, pid, user_of(pid))
            for place, pids in here.items()
            for pid in self._update(place, strangers.intersection(pids))
        ]
        self._looked = True
        return found

    def _strangers(self, pids: Collection[int]) -> set[int]:
        self._ours.intersection_update(pids)
        self._ours.update(pid for pid in pids if pid not in self._ours and is_of_a_job(pid, self._root))
        return {pid for pid in pids if pid not in self._ours and is_alive(pid)}

    def _update(self, place: Place, now: set[int]) -> list[int]:
        """After one more look at a GPU; those who count from now on."""
        sure = self._sure.get(place, frozenset())
        differ = sure ^ now
        agreed = differ & self._doubt.get(place, frozenset()) if self._looked else differ
        self._sure[place], self._doubt[place] = sure ^ agreed, differ - agreed
        return sorted(agreed - sure)
