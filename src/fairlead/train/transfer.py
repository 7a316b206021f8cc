"""The state of whoever is furthest, handed to whoever is not there yet.

On one machine through shared memory: every donor copies its part of the state into it, and goes on to train; the needy
copy it out. Across machines one donor sends it to all.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

import torch

from fairlead.train.group import Group
from fairlead.train.tree import Layout, lay_out, read

#: Where files are memory.
SHARED = Path("/dev/shm")


@functools.cache
def machine() -> float:
    """A number that workers on one machine have in common."""
    with contextlib.suppress(OSError):
        return float(zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))
    return float(uuid.getnode())


def hand_over(group: Group, donors: list[int], state: dict[str, Any] | None, *, local: bool) -> dict[str, Any] | None:
    """What the donors have, for those who need it; None for the donors themselves. Raises Broken."""
    layout = lay_out(state) if state is not None else None
    if local and SHARED.is_dir():
        return _through_memory(group, donors, layout)
    return _through_network(group, donors[0], layout)


def _through_memory(group: Group, donors: list[int], layout: Layout | None) -> dict[str, Any] | None:
    name = torch.zeros(2, dtype=torch.int64)
    if group.rank == donors[0]:
        assert layout is not None
        name[0], name[1] = uuid.uuid4().int >> 66, layout.size
    group.broadcast(name, donors[0])
    path = SHARED / f"fairlead-{int(name[0]):x}"
    if group.rank == donors[0]:
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, int(name[1]))
    try:
        group.sum(torch.zeros(1))  # now it exists
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), int(name[1]))
        if layout is not None and group.rank in donors:
            layout.write(memory, part=donors.index(group.rank), parts=len(donors))
        group.sum(torch.zeros(1))  # now it is complete, and everybody has opened it
    finally:
        if group.rank == donors[0]:
            path.unlink()
    return None if group.rank in donors else read(memory)


def _through_network(group: Group, donor: int, layout: Layout | None) -> dict[str, Any] | None:
    size = torch.zeros(1, dtype=torch.int64)
    if group.rank == donor:
        assert layout is not None
        size[0] = layout.size
    group.broadcast(size, donor)
    memory = mmap.mmap(-1, int(size[0]))
    if group.rank == donor:
        assert layout is not None
        layout.write(memory, part=0, parts=1)
    group.broadcast(torch.frombuffer(memory, dtype=torch.uint8), donor)
    return None if layout is not None else read(memory)
