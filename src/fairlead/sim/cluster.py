"""Clusters in a few characters: `16x4`, `v100=3x4,k80=3x4`, `a100=2x8@2.5`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.core.types import Node
from fairlead.sim.traces.record import TraceNode

_PART = re.compile(r"(?:(?P<type>[^=,@\s]+)=)?(?P<nodes>\d{1,6})x(?P<gpus>\d{1,4})(?:@(?P<price>\d+(?:\.\d+)?))?")


#: The GPU type of a node for which none is named.
UNNAMED = "gpu"


def parse_cluster(text: str) -> tuple[Node, ...]:
    """Nodes from parts `[TYPE=]NODESxGPUS[@PRICE]` separated by commas; the price is per GPU and hour."""
    parts = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match["nodes"]) < 1 or int(match["gpus"]) < 1:
            raise InvalidSpec(f"cluster {text!r}: cannot read {part.strip()!r}; expected 16x4 or v100=3x4,k80=3x4")
        gpus = int(match["gpus"])
        parts += [(match["type"] or UNNAMED, gpus, float(match["price"] or 0.0) * gpus)] * int(match["nodes"])
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


_SPEED = re.compile(r"(?P<type>[^=,@\s]+)=(?P<speed>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)")


def parse_speeds(text: str, gpu_types: Sequence[str]) -> dict[str, float]:
    """Speeds of a cluster's GPU types from `a100=2,k80=0.3`; each of them has to be named, and no other."""
    speeds: dict[str, float] = {}
    example = ",".join(f"{name}=1" for name in gpu_types)
    for part in text.split(","):
        match = _SPEED.fullmatch(part.strip())
        if match is None or not 0.0 < float(match["speed"]) < float("inf"):
            wanted = f"TYPE=SPEED with a speed above 0, as in {example}"
            raise InvalidSpec(f"--speeds {text!r}: cannot read {part.strip()!r}; expected {wanted}")
        if match["type"] in speeds:
            raise InvalidSpec(f"--speeds {text!r} has GPU type {match['type']!r} twice; state it once")
        if match["type"] not in gpu_types:
            hint = did_you_mean(match["type"], gpu_types)
            raise InvalidSpec(f"--speeds {text!r}: the cluster has no GPU type {match['type']!r}{hint}")
        speeds[match["type"]] = float(match["speed"])
    if missing := [name for name in gpu_types if name not in speeds]:
        raise InvalidSpec(f"--speeds {text!r} lacks {', '.join(missing)}; state every GPU type, as in {example}")
    return speeds


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
