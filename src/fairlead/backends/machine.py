"""What this machine has: its GPUs, or CPU slots that stand in for them, as one node or several."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.backends.throttle import check_throttle
from fairlead.core.capability import Capability
from fairlead.core.cluster_notation import NodeGroup, parse_groups, parse_speeds
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Node

#: What policies may ask of processes on this machine. Its nodes are there for good, and nothing here knows the truth.
CAN = frozenset({Capability.PACKING, Capability.SUSPENSION})

#: The type of slots that are no GPUs.
CPU_SLOT = "cpu"

#: The label by which people see the CPU share of a node.
CPU_SHARE = "cpu-share"


@dataclass(frozen=True)
class Gpu:
    """One that the driver knows of."""

    index: int
    name: str
    uuid: str


@dataclass(frozen=True)
class Users:
    """How to find out which processes use the devices."""

    #: By device: processes, ours and others'. Of a device that is absent nobody can tell now.
    read: Callable[[], Mapping[str, Collection[int]]]
    #: Seconds between two looks.
    every_s: float = 10.0


@dataclass(frozen=True)
class Machine:
    """Nodes, and the devices of this machine behind their GPUs, in order."""

    nodes: tuple[Node, ...]
    #: What CUDA_VISIBLE_DEVICES calls them; None if they are CPU slots.
    devices: tuple[str, ...] | None
    #: Processors of each device; empty for all of them.
    cpus: tuple[tuple[int, ...], ...]
    #: Not asked if they are CPU slots: anybody may use a processor.
    users: Users = field(default_factory=lambda: Users(users_of_gpus), compare=False, repr=False)
    #: By node, of those that have one: the share of the time for which a job there may use its processors.
    cpu_shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def notice(self) -> str:
        """What a person should know of it; empty if nothing."""
        needed = sum(node.gpus * self.cpu_shares.get(node.id, 1.0) for node in self.nodes)
        cores = len(os.sched_getaffinity(0)) if self.cpu_shares else 0
        if not self.cpu_shares or needed <= cores:
            return ""
        return (
            f"the slots of these nodes and their CPU shares are worth {needed:g} processors, and this machine has "
            f"{cores}: while jobs use more than these, GPU types differ by something else than their CPU shares"
        )

    def places(self, allocation: Allocation) -> list[tuple[str, int]]:
        """Node and device of every GPU of an allocation."""
        first, places = 0, []
        held = dict(allocation.shares)
        for node in self.nodes:
            places += [(node.id, first + gpu) for gpu in held.get(node.id, ())]
            first += node.gpus
        return places

    def allocation(self, places: Sequence[tuple[str, int]]) -> Allocation:
        """The inverse."""
        firsts, first = {}, 0
        for node in self.nodes:
            firsts[node.id] = first
            first += node.gpus
        held: dict[str, list[int]] = {}
        for node_id, device in places:
            held.setdefault(node_id, []).append(device - firsts[node_id])
        return Allocation.of(held)


def describe(*, gpus: int | None, nodes: str | None, price_per_hour: float = 0.0, speeds: str | None = None) -> Machine:
    """All GPUs there are, or so many CPU slots. `nodes` as in 2x4 divides them into several nodes; as in
    fast=1x2,slow=1x2@50% it names the GPU types that CPU slots stand in for, and the CPU share of each. The price is a
    GPU's, where `nodes` names none. `speeds` as in fast=1,slow=0.5 is what policies are told of them."""
    groups = () if nodes is None else parse_nodes(nodes)
    wanted = sum(group.nodes * group.gpus for group in groups) if groups else gpus
    if groups and gpus is not None and gpus != wanted:
        raise InvalidSpec(f"--gpus is {gpus}, but --nodes {nodes} is {wanted}; leave one of them out")
    if wanted is not None and wanted < 1:
        raise InvalidSpec(f"--gpus is {wanted}; expected at least 1")
    found = find_gpus()
    if found and wanted is not None and wanted > len(found):
        raise InvalidSpec(f"{wanted} GPUs were asked for, but this machine has {len(found)}; ask for at most those")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    total = wanted or len(found) or len(cores)
    names = {gpu.name for gpu in found[:total]}
    kind = _type_of(next(iter(names))) if len(names) == 1 else "gpu" if found else CPU_SLOT
    groups = groups or (NodeGroup(1, total),)
    if found:
        _check_types_of_gpus(groups, kind)
    elif any(group.cpu_share is not None for group in groups):
        check_throttle()
    alike = [group for group in groups for _ in range(group.nodes)]
    made = _nodes(alike, kind, price_per_hour)
    if speeds is not None:
        stated = read_speeds(speeds, groups, kind)
        made = tuple(replace(node, speed=stated[node.gpu_type]) for node in made)
    cpu_shares = {
        node.id: group.cpu_share for node, group in zip(made, alike, strict=True) if group.cpu_share is not None
    }
    return Machine(
        nodes=made,
        devices=tuple(gpu.uuid or str(gpu.index) for gpu in found[:total]) if found else None,
        cpus=shares(cores, total),
        cpu_shares=cpu_shares,
    )


def parse_nodes(text: str) -> tuple[NodeGroup, ...]:
    """What `--nodes` says. Raises InvalidSpec if it cannot be meant."""
    example = "a number of nodes and the GPUs of each, such as 2x4 or fast=1x2,slow=1x2@50%"
    groups = parse_groups(text, subject=f"--nodes {text!r}", example=example)
    shares_of = dict[str, set[float]]()
    for group in groups:
        shares_of.setdefault(group.gpu_type, set()).add(1.0 if group.cpu_share is None else group.cpu_share)
    for gpu_type, found in shares_of.items():
        if len(found) > 1:
            told = " and ".join(f"{100 * each:g}%" for each in sorted(found))
            raise InvalidSpec(
                f"--nodes {text!r}: GPU type {gpu_type or CPU_SLOT!r} has CPU shares of {told}; give each share a type "
                "of its own"
            )
    return groups


def _check_types_of_gpus(groups: Sequence[NodeGroup], kind: str) -> None:
    """Refuse what only CPU slots can be."""
    for group in groups:
        if group.gpu_type not in ("", kind):
            raise InvalidSpec(
                f"--nodes names GPU type {group.gpu_type!r}, but the GPUs of this machine are {kind}; leave the name "
                "out, or set CUDA_VISIBLE_DEVICES to nothing, so that CPU slots stand in for GPUs"
            )
        if group.cpu_share is not None:
            raise InvalidSpec(
                f"--nodes has a CPU share of {100 * group.cpu_share:g}%, but this machine has GPUs, which it would not "
                "slow; leave it out, or set CUDA_VISIBLE_DEVICES to nothing, so that CPU slots stand in for GPUs"
            )


def _nodes(alike: Sequence[NodeGroup], kind: str, price_per_hour: float) -> tuple[Node, ...]:
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()) or "node"
    ids = [host] if len(alike) == 1 else [f"n{place}" for place in range(len(alike))]
    return tuple(
        Node(
            name,
            group.gpus,
            group.gpu_type or kind,
            price_per_hour=group.gpus * (price_per_hour if group.price_per_hour is None else group.price_per_hour),
            labels={} if group.cpu_share is None else {CPU_SHARE: f"{100 * group.cpu_share:g}%"},
        )
        for name, group in zip(ids, alike, strict=True)
    )


def read_speeds(text: str, groups: Sequence[NodeGroup], kind: str = CPU_SLOT) -> dict[str, float]:
    """What `--speeds` says of the GPU types of nodes; `kind` is that of nodes without a name. Speeds have to be as far
    apart as the CPU shares: what policies are told is what jobs find."""
    share_of = {group.gpu_type or kind: 1.0 if group.cpu_share is None else group.cpu_share for group in groups}
    speeds = parse_speeds(text, tuple(share_of))
    per_share = [speeds[gpu_type] / share for gpu_type, share in share_of.items()]
    if max(per_share) > (1 + 1e-6) * min(per_share):
        true = ",".join(f"{gpu_type}={share / max(share_of.values()):g}" for gpu_type, share in share_of.items())
        raise InvalidSpec(
            f"--speeds {text!r} is not what the CPU shares make it, which is --speeds {true}; change one of them, as "
            "in --nodes fast=1x2,slow=1x2@50% --speeds fast=1,slow=0.5"
        )
    return speeds


def shares(cores: Sequence[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """An equal part of the processors for each slot; of all of them if there are fewer than slots."""
    each = len(cores) // slots
    if each == 0:
        return ((),) * slots
    return tuple(tuple(cores[slot * each : (slot + 1) * each]) for slot in range(slots))


def _type_of(name: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is an a100."""
    words = [word for word in re.split(r"[\s-]+", name.lower()) if word not in ("nvidia", "geforce", "tesla", "rtx")]
    return re.sub(r"[^a-z0-9.]", "", words[0]) if words else "gpu"


def find_gpus() -> list[Gpu]:
    """Through NVML; none where there is no driver, or where CUDA_VISIBLE_DEVICES hides them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if platform.system() != "Linux" or visible == "":
        return []
    found: list[Gpu] = []
    with contextlib.suppress(ImportError):
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return []
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(
                    Gpu(index, _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle)))
                )
        finally:
            pynvml.nvmlShutdown()
    if visible is None:
        return found
    named = [name.strip() for name in visible.split(",")]
    return [gpu for name in named for gpu in found if name in (str(gpu.index), gpu.uuid)]


def users_of_gpus() -> dict[str, set[int]]:
    """By UUID: the processes that use a GPU now, ours and others'. Empty where nobody can tell."""
    using: dict[str, set[int]] = {}
    with contextlib.suppress(ImportError):
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return {}
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                using[_text(pynvml.nvmlDeviceGetUUID(handle))] = {process.pid for process in running}
        except pynvml.NVMLError:
            return {}
        finally:
            pynvml.nvmlShutdown()
    return using


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
