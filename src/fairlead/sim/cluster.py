"""Clusters in a few characters: `16x4`, `v100=3x4,k80=3x4`, `a100=2x8@2.5`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fairlead.core.cluster_notation import parse_groups
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Node
from fairlead.sim.traces.record import TraceNode

#: The GPU type of a node for which none is named.
UNNAMED = "gpu"


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Nodes from parts `[TYPE=]NODESxGPUS[@PRICE]` separated by commas; the price is per GPU and hour."""
    parts: list[tuple[str, int, float]] = []
    for group in parse_groups(text, subject=f"cluster {text!r}", example="16x4 or v100=3x4,k80=3x4"):
        if group.cpu_share is not None:
            raise InvalidSpec(
                f"cluster {text!r}: a CPU share is for processes, as in `fairlead up --nodes {text}`; in a simulation, "
                f"state speeds, as in --speeds {group.gpu_type or UNNAMED}={group.cpu_share:g}"
            )
        price = (group.price_per_hour or 0.0) * group.gpus
        parts += [(group.gpu_type or UNNAMED, group.gpus, price)] * group.nodes
    width = len(str(len(parts) - 1))
    return tuple(
        Node(f"n{place:0{width}d}", gpus, gpu_type, price_per_hour=price)
        for place, (gpu_type, gpus, price) in enumerate(parts)
    )


def nodes_of_four(gpus: int) -> tuple[Node, ...]:
    """So many GPUs in nodes of four, the last one smaller if need be."""
    parts = [f"{gpus // 4}x4"] * (gpus >= 4) + [f"1x{gpus % 4}"] * (gpus % 4 > 0)
    return parse_cluster(",".join(parts))


def nodes_of(trace_nodes: Sequence[TraceNode]) -> tuple[Node, ...]:
    """The machines a trace ran on."""
    return tuple(Node(node.id, node.gpus, node.gpu_type) for node in trace_nodes)


@dataclass(frozen=True, init=False)
class Cluster:
    """Nodes to simulate on, from text or one by one: `Cluster("a100=2x8,v100=4x4")`, `Cluster([Node("n0", 8)])`."""

    nodes: tuple[Node, ...]

    def __init__(self, nodes: str | Iterable[Node]) -> None:
        found = parse_cluster(nodes) if isinstance(nodes, str) else tuple(nodes)
        if not found or not all(isinstance(node, Node) for node in found):
            raise InvalidSpec(f"a cluster is made of text such as 16x4 or of at least one Node; found {nodes!r}")
        object.__setattr__(self, "nodes", found)

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(node.gpu_type for node in self.nodes))

    def __str__(self) -> str:
        """In the form that `parse_cluster` reads; node ids, labels and states are not in it."""
        parts = []
        for (gpu_type, gpus, price), alike in groupby(self.nodes, lambda n: (n.gpu_type, n.gpus, n.price_per_hour)):
            name = "" if gpu_type == UNNAMED else f"{gpu_type}="
            parts.append(f"{name}{len(list(alike))}x{gpus}{f'@{price / gpus:g}' if price else ''}")
        return ",".join(parts)
