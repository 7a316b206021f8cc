"""Clusters in a few characters: `16x4`, `v100=3x4,k80=3x4`, `a100=2x8@2.5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairlead.core.errors import InvalidSpec
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
