"""What is public of the GPU types of a simulated cluster: how fast they are, and the note where nothing tells.

That one GPU type is faster than another is on its data sheet and in every benchmark, so policies are told
(`Node.speed`). How fast a given job is on it they have to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from fairlead.core.cluster_notation import parse_speeds
from fairlead.core.errors import InvalidSpec
from fairlead.core.node_order import in_order
from fairlead.core.types import Node
from fairlead.sim.offered_load import Demand
from fairlead.sim.truth import FixedDuration

#: By GPU type.
Speeds = Mapping[str, float]


def speeds_of(text: str | None, nodes: Sequence[Node]) -> Speeds:
    """What the user states of the cluster's GPU types; empty if that is nothing."""
    return {} if text is None else parse_speeds(text, tuple(dict.fromkeys(node.gpu_type for node in nodes)))


def with_speeds(nodes: Sequence[Node], stated: Speeds, jobs: Iterable[Speeds]) -> tuple[Node, ...]:
    """The nodes, which state how fast their GPUs are, in the order of snapshots.

    Where the user states nothing, it is the median of what `jobs` do on each type, relative to the fastest one.
    """
    gpu_types = {node.gpu_type for node in nodes}
    if len(gpu_types) < 2:
        return tuple(nodes)
    speeds = stated or _benchmark(gpu_types, jobs)
    return tuple(in_order(replace(node, speed=speeds.get(node.gpu_type)) for node in nodes))


def _benchmark(gpu_types: set[str], jobs: Iterable[Speeds]) -> Speeds:
    ratios: dict[str, list[float]] = {name: [] for name in gpu_types}
    for speeds in jobs:
        if speeds.keys() == gpu_types and min(speeds.values()) > 0.0:
            fastest = max(speeds.values())
            for name, speed in speeds.items():
                ratios[name].append(speed / fastest)
    return {name: median(found) for name, found in ratios.items() if found}


def check_speeds_apply(text: str | None, jobs: Iterable[Demand]) -> None:
    """Raise InvalidSpec if the user states speeds and no job goes by them."""
    if text is not None and not any(isinstance(job.truth, FixedDuration) for job in jobs):
        raise InvalidSpec(
            f"--speeds {text!r}: no job of the trace is a plain duration; how fast these jobs are on each GPU type is "
            "known from their application or profile. Leave --speeds out"
        )


def notes_on_speeds(text: str | None, jobs: Sequence[Demand], nodes: Sequence[Node]) -> tuple[str, ...]:
    """What to tell of a trace of plain durations on several GPU types: that it knows no speeds."""
    gpu_types = sorted({node.gpu_type for node in nodes})
    if text is not None or len(gpu_types) < 2:
        return ()
    plain = sum(
        isinstance(job.truth, FixedDuration) and sum(name in (job.gpu_types or gpu_types) for name in gpu_types) > 1
        for job in jobs
    )
    if not plain:
        return ()
    which = "every job" if plain == len(jobs) else f"{plain:,} of {len(jobs):,} jobs"
    return (
        f"the trace does not tell how fast GPU types are: {which} takes as long on {' as on '.join(gpu_types)}; "
        f"state their speeds with --speeds {','.join(f'{name}=1' for name in gpu_types)}",
    )
