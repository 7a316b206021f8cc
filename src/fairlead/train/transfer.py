"""The state of whoever is furthest, handed to whoever is not there yet.

On one machine through shared memory: every donor copies its part of the state into it and goes on to train; the needy
copy it out. The memory is made ready while the generation before trains on: to get it from the system takes longer than
to copy. Where there is none, since nobody knew before or there was no room, and across machines, one donor sends the
state to all.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import uuid
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairlead.train.group import Group
from fairlead.train.memory import Memory
from fairlead.train.tree import Layout, lay_out, read

#: Numbers in a state may need more digits by the time it is handed over.
SPARE_BYTES = 1 << 16


@functools.cache
def machine() -> float:
    """A number that workers on one machine have in common."""
    with contextlib.suppress(OSError):
        return float(zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))
    return float(uuid.getnode())


class Meeting(NamedTuple):
    """What the members of a generation know of each other when it begins, all the same."""

    #: Those who have the state of whoever is furthest, by rank; the leader if nobody has any.
    donors: list[int]
    needy: list[int]
    nobody_knows: bool
    #: All are on one machine.
    local: bool


def meet(group: Group, *, step: int | None) -> Meeting:
    """Everybody says how far it is; None if it has no state. Raises Broken."""
    rows = group.gather([-1.0 if step is None else float(step), machine()])
    furthest = max(row[0] for row in rows)
    donors = [0] if furthest < 0.0 else [rank for rank, row in enumerate(rows) if row[0] == furthest]
    needy = [rank for rank in range(group.world) if rank not in donors]
    return Meeting(donors, needy, nobody_knows=furthest < 0.0, local=len({row[1] for row in rows}) == 1)


def room_for(state: dict[str, Any]) -> int:
    """Bytes that handing it over will need."""
    return lay_out(state).size + SPARE_BYTES


def hand_over(group: Group, donors: list[int], state: dict[str, Any] | None, *, local: bool) -> dict[str, Any] | None:
    """What the donors have, for those who need it; None for the donors themselves. Raises Broken."""
    layout = lay_out(state) if state is not None else None
    memory = group.memory
    enough = memory is not None and (layout is None or layout.size <= len(memory.map))
    facts = torch.zeros(2, dtype=torch.int64)
    facts[0] = int(local and enough)
    if group.rank == donors[0]:
        assert layout is not None
        facts[1] = layout.size
    group.sum(facts)
    if memory is not None and int(facts[0]) == group.world:
        return _through_memory(group, donors, layout, memory)
    return _through_network(group, donors[0], layout, int(facts[1]))


def _through_memory(group: Group, donors: list[int], layout: Layout | None, memory: Memory) -> dict[str, Any] | None:
    if layout is not None and group.rank in donors:
        layout.write(memory.map, part=donors.index(group.rank), parts=len(donors))
    group.sum(torch.zeros(1))  # now it is complete
    return None if group.rank in donors else read(memory.map)


def _through_network(group: Group, donor: int, layout: Layout | None, size: int) -> dict[str, Any] | None:
    memory = mmap.mmap(-1, size)
    if group.rank == donor:
        assert layout is not None
        layout.write(memory, part=0, parts=1)
    group.broadcast(torch.frombuffer(memory, dtype=torch.uint8), donor)
    return None if layout is not None else read(memory)
