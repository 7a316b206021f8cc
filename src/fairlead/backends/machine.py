"""What this machine has: its GPUs, or CPU slots that stand in for them, as one node or several."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Node

#: What policies may ask of processes on this machine. Its nodes are there for good, and nothing here knows the truth.
CAN = frozenset({Capability.PACKING, Capability.SUSPENSION})

#: The type of slots that are no GPUs.
CPU_SLOT = "cpu"


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


def describe(*, gpus: int | None, nodes: str | None, price_per_hour: float = 0.0) -> Machine:
    """All GPUs there are, or so many CPU slots. `nodes` as in 2x4: the slots as several nodes. The price is a GPU's."""
    counts = _counts(nodes)
    wanted = sum(counts) if counts else gpus
    if counts and gpus is not None and gpus != wanted:
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
    sizes = counts or [total]
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()) or "node"
    ids = [host] if len(sizes) == 1 else [f"n{place}" for place in range(len(sizes))]
    return Machine(
        nodes=tuple(
            Node(name, size, kind, price_per_hour=size * price_per_hour) for name, size in zip(ids, sizes, strict=True)
        ),
        devices=tuple(gpu.uuid or str(gpu.index) for gpu in found[:total]) if found else None,
        cpus=shares(cores, total),
    )


def shares(cores: Sequence[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """An equal part of the processors for each slot; of all of them if there are fewer than slots."""
    each = len(cores) // slots
    if each == 0:
        return ((),) * slots
    return tuple(tuple(cores[slot * each : (slot + 1) * each]) for slot in range(slots))


def _counts(nodes: str | None) -> list[int]:
    if nodes is None:
        return []
    match = re.fullmatch(r"(\d+)x(\d+)", nodes)
    if match is None or int(match[1]) < 1 or int(match[2]) < 1:
        raise InvalidSpec(f"--nodes is {nodes!r}; expected a number of nodes and the GPUs of each, such as 2x4")
    return [int(match[2])] * int(match[1])


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
