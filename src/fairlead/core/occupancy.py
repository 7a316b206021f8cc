"""Which GPUs are taken. Part of the state; knows allocations, and nothing of jobs."""

from __future__ import annotations

from fairlead.core.types import Allocation


class Occupancy:
    """Which GPUs are taken, as a bit mask per node. Counts, so that packed jobs can hold the same GPU."""

    def __init__(self) -> None:
        self.masks: dict[str, int] = {}
        self._extra: dict[tuple[str, int], int] = {}  # (node, GPU) -> holders beyond the first

    @property
    def shared(self) -> bool:
        return bool(self._extra)

    def add(self, allocation: Allocation) -> list[tuple[str, int]]:
        """Take the GPUs; returns how many were free until now, by node."""
        taken = []
        for node, mask in allocation.masks:
            before = self.masks.get(node, 0)
            for gpu in _bits(before & mask):
                self._extra[node, gpu] = self._extra.get((node, gpu), 0) + 1
            self.masks[node] = before | mask
            taken.append((node, (mask & ~before).bit_count()))
        return taken

    def remove(self, allocation: Allocation) -> list[tuple[str, int]]:
        """Give the GPUs back; returns how many are free from now on, by node."""
        freed = []
        for node, mask in allocation.masks:
            if self._extra:
                for gpu in _bits(mask):
                    if extra := self._extra.pop((node, gpu), 0):
                        mask &= ~(1 << gpu)
                        if extra > 1:
                            self._extra[node, gpu] = extra - 1
            self.masks[node] &= ~mask
            freed.append((node, mask.bit_count()))
        return freed


def _bits(mask: int) -> list[int]:
    return [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1] if mask else []
