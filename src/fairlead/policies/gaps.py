"""Free GPUs by node, while an arrangement is made: the tightest gap, the largest, and several that make up a size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

#: GPUs by node.
Where = Mapping[int, int]


class Gaps:
    """Free GPUs by node, and the nodes by how many they have free. Lowest node first among equals."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.free = list(gpus)
        #: Nodes where a job that spans several may not go, because another one does.
        self.closed = [False] * len(gpus)
        #: Free GPUs on the other nodes.
        self.loose = sum(gpus)
        self._nodes: list[list[int]] = [[] for _ in range(max(gpus, default=0) + 1)]
        for node, count in enumerate(gpus):  # ascending, so each list is a heap already
            if count > 0:
                self._nodes[count].append(node)

    def add(self, node: int, count: int) -> None:
        """So many more GPUs of a node are free (fewer, if negative). A node not to be used has less than none."""
        before = self.free[node]
        free = self.free[node] = before + count
        if not self.closed[node]:
            self.loose += max(free, 0) - max(before, 0)
        if free > 0:
            heappush(self._nodes[free], node)

    def close(self, node: int, *, closed: bool) -> None:
        if self.closed[node] != closed:
            self.closed[node] = closed
            self.loose += max(self.free[node], 0) * (-1 if closed else 1)

    def tightest(self, count: int) -> int:
        """The node with the smallest gap of at least `count`; -1 if there is none."""
        for size in range(count, len(self._nodes)):
            if (node := self._first(size)) >= 0:
                return node
        return -1

    def emptiest(self, count: int) -> list[int]:
        """Nodes to make room on: all, or so many of those with the largest gaps."""
        if len(self.free) <= count:
            return list(range(len(self.free)))
        found: list[int] = []
        for size in range(len(self._nodes) - 1, 0, -1):
            found += {node for node in self._nodes[size][: 2 * count] if self.free[node] == size}
            if len(found) >= count:
                break
        return sorted(found[:count])

    @property
    def largest(self) -> int:
        """The most GPUs that are free on one node."""
        for size in range(len(self._nodes) - 1, 0, -1):
            if self._first(size) >= 0:
                return size
        return 0

    def spread(self, count: int, most_nodes: int) -> Where | None:
        """So many GPUs on the fewest nodes that are not closed: large gaps, and the tightest last."""
        if count > self.loose:
            return None
        found: dict[int, int] = {}
        aside: list[tuple[int, int]] = []  # out of their heaps for the moment: used here, or not to be used
        left = count
        while left > 0 and len(found) < most_nodes:
            sizes = (*range(left, len(self._nodes)), *range(min(left, len(self._nodes)) - 1, 0, -1))
            node = self._pop(sizes, aside)
            if node < 0:
                break
            found[node] = min(left, self.free[node])
            left -= found[node]
        for size, node in aside:
            heappush(self._nodes[size], node)
        return found if left == 0 else None

    def _first(self, size: int) -> int:
        nodes = self._nodes[size]
        while nodes and self.free[nodes[0]] != size:
            heappop(nodes)  # its gap has changed since
        return nodes[0] if nodes else -1

    def _pop(self, sizes: Iterable[int], aside: list[tuple[int, int]]) -> int:
        for size in sizes:
            while (node := self._first(size)) >= 0:
                nodes = self._nodes[size]
                while nodes and nodes[0] == node:  # it may be listed twice
                    heappop(nodes)
                aside.append((size, node))
                if not self.closed[node]:
                    return node
        return -1
