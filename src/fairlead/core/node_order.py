"""The order in which policies see nodes: by what a node is, never by its name or by when it joined.

A policy that takes "the first that fits" would otherwise decide by the order of a list that means nothing. Nodes that
are alike stay in order of joining: whichever of them comes first, what follows is the same but for their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.core.types import Node


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """By GPU type: the fastest as far as that is stated, then the one with the most GPUs, the largest nodes and the
    lowest price. Types that are alike in all this go by name. Within a type: the largest and cheapest nodes first.
    """
    nodes = list(nodes)
    of_type: dict[str, list[Node]] = {}
    for node in nodes:
        of_type.setdefault(node.gpu_type, []).append(node)
    if len(of_type) == 1 and len({(node.gpus, node.price_per_hour) for node in nodes}) == 1:
        return nodes  # the usual cluster
    rank = {name: place for place, name in enumerate(sorted(of_type, key=lambda name: _type_key(name, of_type[name])))}
    return sorted(nodes, key=lambda node: (rank[node.gpu_type], -node.gpus, node.price_per_hour))


def _type_key(name: str, nodes: list[Node]) -> tuple[float, int, int, float, str]:
    speed = max((node.speed for node in nodes if node.speed is not None), default=0.0)
    price = min(node.price_per_hour / node.gpus for node in nodes)
    return -speed, -sum(node.gpus for node in nodes), -max(node.gpus for node in nodes), price, name
