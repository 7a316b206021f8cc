"""Clusters in a few characters: `16x4`, `v100=3x4,k80=3x4`, `a100=2x8@2.5`, `fast=1x2,slow=1x2@50%`. Pure.

One notation for the simulator's `--cluster` and for `fairlead up --nodes`. A CPU share is for the CPU slots of one
machine that stand in for GPUs: a slot of a slower type is a processor that may be used for a part of the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean

_NUMBER = r"\d+(?:\.\d+)?"
_GROUP = re.compile(
    rf"(?:(?P<type>[^=,@\s]+)=)?(?P<nodes>\d{{1,6}})x(?P<gpus>\d{{1,4}})"
    rf"(?:@(?P<price>{_NUMBER}))?(?:@(?P<share>{_NUMBER})%)?"
)

#: The smallest CPU share that can be kept to.
LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are alike."""

    nodes: int
    #: Of each node.
    gpus: int
    #: Empty if none is named.
    gpu_type: str = ""
    #: Of one GPU; None if none is named.
    price_per_hour: float | None = None
    #: Share of the time for which a job may use its processors, 0 to 1; None if none is named.
    cpu_share: float | None = None


def parse_groups(text: str, *, subject: str, example: str) -> tuple[NodeGroup, ...]:
    """Parts `[TYPE=]NODESxGPUS[@PRICE][@SHARE%]` separated by commas; the price is per GPU and hour.

    An error begins with the `subject` and ends with the `example`.
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None or int(match["nodes"]) < 1 or int(match["gpus"]) < 1:
            raise InvalidSpec(f"{subject}: cannot read {part.strip()!r}; expected {example}")
        share = None if match["share"] is None else float(match["share"]) / 100
        if share is not None and not LEAST_SHARE <= share <= 1.0:
            raise InvalidSpec(f"{subject}: {part.strip()!r} has a CPU share of {match['share']}%; expected 1% to 100%")
        price = None if match["price"] is None else float(match["price"])
        groups.append(NodeGroup(int(match["nodes"]), int(match["gpus"]), match["type"] or "", price, share))
    return tuple(groups)


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
