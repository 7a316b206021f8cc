"""Throughput tables as Gavel published them (Narayanan et al., OSDI '20): steps per second by GPU type, job and GPUs.

    {gpu type: {"('ResNet-18 (batch size 128)', 2)": {"null": alone, "('A3C', 1)": [this job, the other], ...}}}

A speed of 0 means that the job does not fit, or was not measured: either way it cannot run so. A GPU type may come
twice, the second time as `<type>_unconsolidated`, measured with the GPUs spread over several nodes.
"""

from __future__ import annotations

import ast
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Observation
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.traces.table import listed, shown
from fairlead.sim.truth import PACKED_SPEED, Pace, Setting, Truth

#: A job type as the table names it, batch size included, and its GPUs.
Key = tuple[str, int]

UNCONSOLIDATED = "_unconsolidated"

#: The type of a node that states none (core.types.Node); a job there runs as on the fastest type it can use.
UNSTATED = "gpu"


def job_type(model: str, batch: int | None) -> str:
    """`ResNet-18 (batch size 128)`; a few models have no batch size."""
    return model if batch is None else f"{model} (batch size {batch})"


@dataclass(frozen=True, slots=True)
class Entry:
    """Steps per second of one job type on so many GPUs of one type: alone, and packed with each other job type."""

    alone: float
    #: Never more than alone: what a table says beyond that was measured at another time.
    packed: dict[Key, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ThroughputTable:
    """A whole file."""

    source: str
    entries: Mapping[str, Mapping[Key, Entry]]

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(name for name in self.entries if not name.endswith(UNCONSOLIDATED))

    def entry(self, gpu_type: str, key: Key, *, nodes: int = 1) -> Entry | None:
        """None if the job cannot run there. On several nodes the unconsolidated entry counts, where there is one."""
        if nodes > 1:
            spread = self.entries.get(gpu_type + UNCONSOLIDATED, {}).get(key)
            if spread is not None and spread.alone > 0.0:
                return spread
        entry = self.entries[gpu_type].get(key)
        return entry if entry is not None and entry.alone > 0.0 else None

    def counts(self, gpu_type: str, job: str) -> list[int]:
        """Numbers of GPUs on which a job type was measured, ascending."""
        rows = self.entries[gpu_type].items()
        return sorted(gpus for (name, gpus), entry in rows if name == job and entry.alone > 0.0)

    def between(self, gpu_type: str, key: Key) -> Entry | None:
        """On a number of GPUs between two that were measured: the straight line. None outside of them."""
        job, gpus = key
        counts = self.counts(gpu_type, job)
        if not counts or not counts[0] < gpus < counts[-1]:
            return None
        at = bisect_right(counts, gpus)
        low, high = counts[at - 1], counts[at]
        slow, fast = (self.entries[gpu_type][job, count].alone for count in (low, high))
        return Entry(slow + (fast - slow) * (gpus - low) / (high - low))

    def named(self, gpu_type: str) -> str:
        """The table's name for a GPU type, whatever its case; InvalidSpec lists those it has."""
        for name in self.gpu_types:
            if name.lower() == gpu_type.lower():
                return name
        raise InvalidSpec(f"{self.source} has no GPU type {gpu_type!r}; it has {listed(self.gpu_types)}")

    def fastest(self, *keys: Key, among: Iterable[str] = ()) -> str:
        """The GPU type that runs them all and the first one fastest, of those allowed (none stated: any).

        InvalidSpec says what the table lacks.
        """
        types = [self.named(name) for name in among if name != UNSTATED] or list(self.gpu_types)
        for key in keys:
            if not any(self.entry(name, key) for name in types):
                raise InvalidSpec(f"{self.source} has no speed for {_shown(key, types)}; {self._known(key[0], types)}")
        able = [name for name in types if all(self.entry(name, key) for key in keys)]
        if not able:
            raise InvalidSpec(f"{self.source} has no one GPU type for all batches of {_shown(keys[0], types)}")
        return max(able, key=lambda name: self.entries[name][keys[0]].alone)

    def _known(self, job: str, types: Sequence[str]) -> str:
        known = {key for name in types for key, entry in self.entries[name].items() if entry.alone > 0.0}
        if counts := sorted(gpus for name, gpus in known if name == job):
            return f"it has it on {', '.join(map(str, counts))} GPUs"
        return f"its job types there are {', '.join(sorted({name for name, _ in known})) or 'none'}"


def _shown(key: Key, types: Sequence[str]) -> str:
    return f"{key[0]!r} on {key[1]} GPUs of {listed(types)}"


# -- reading ---------------------------------------------------------------------------------------------------------


def load_table(path: Path, only: Collection[str] = ()) -> ThroughputTable:
    """Read and check a file, or only some of its GPU types; InvalidTrace names the file and the key at fault."""
    data = load_json(path)
    entries: dict[str, dict[Key, Entry]] = {}
    for gpu_type, rows in _mapping(data, path, "the file", "GPU types").items():
        if only and gpu_type not in only:
            continue
        entries[gpu_type] = {}
        for text, row in _mapping(rows, path, f"GPU type {shown(gpu_type)}", "jobs").items():
            place = f"GPU type {shown(gpu_type)}, job {text}"
            entries[gpu_type][_key(text, path, place)] = _entry(_mapping(row, path, place, "speeds"), path, place)
    table = ThroughputTable(str(path), entries)
    if not table.gpu_types:
        raise InvalidTrace("has no GPU types; expected {type: {job: {...}}}", source=str(path))
    for name in entries:
        if name.endswith(UNCONSOLIDATED) and name.removesuffix(UNCONSOLIDATED) not in entries:
            raise InvalidTrace(f"has {name!r} but no {name.removesuffix(UNCONSOLIDATED)!r}", source=str(path))
    return table


def load_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InvalidTrace(f"is not JSON: {error.msg}", source=str(path), line=error.lineno) from None


def _mapping(value: Any, path: Path, place: str, of: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidTrace(f"{place} is {shown(value)}; expected an object of {of}", source=str(path))
    return value


def _entry(row: dict[str, Any], path: Path, place: str) -> Entry:
    if "null" not in row:
        raise InvalidTrace(f'{place} has no "null", its speed alone', source=str(path))
    entry = Entry(_speed(row["null"], path, place))
    for text, pair in row.items():
        if text == "null":
            continue
        if not (isinstance(pair, list) and len(pair) == 2):
            raise InvalidTrace(
                f"{place} with {text} is {shown(pair)}; expected [its speed, the other's]", source=str(path)
            )
        other = _key(text, path, place)
        entry.packed[other] = min(entry.alone, _speed(pair[0], path, f"{place} with {text}"))
        _speed(pair[1], path, f"{place} with {text}")
    return entry


def _speed(value: Any, path: Path, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise InvalidTrace(f"{place} is {shown(value)}; expected steps per second, at least 0", source=str(path))
    return float(value)


def _key(text: str, path: Path, place: str) -> Key:
    key = _parse_key(text)
    if key is None:
        raise InvalidTrace(f"{place}: found the key {shown(text)}; expected ('job type', GPUs)", source=str(path))
    return key


@lru_cache(maxsize=4096)
def _parse_key(text: str) -> Key | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    match value:
        case (str(name), int(gpus)) if not isinstance(gpus, bool) and name and gpus >= 1:
            return name, gpus
    return None


# -- the truth -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableTruth:
    """A job whose speeds are in a table. Progress is in steps. It runs only on GPU counts the table has."""

    table: ThroughputTable
    model: str
    batch: int | None
    #: What the user asked for.
    gpus: int
    total: float
    #: GPU types the job may get; none stated: any.
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.home  # refuses what can run nowhere

    @cached_property
    def home(self) -> str:
        """The type it runs fastest on. `remaining_s` assumes it, and so do nodes that state no type."""
        return self.table.fastest(self.key, among=self.gpu_types)

    @cached_property
    def key(self) -> Key:
        """How the table names this job."""
        return job_type(self.model, self.batch), self.gpus

    def key_at(self, progress: float) -> Key:
        return self.key

    def pace(self, setting: Setting) -> Pace:
        key = self.key[0], setting.allocation.total
        nodes = len(setting.allocation.nodes)
        gpu_type = self.home if setting.gpu_type == UNSTATED else self.table.named(setting.gpu_type)
        entry = self.table.entry(gpu_type, key, nodes=nodes)
        if entry is None:
            return Pace(speed=0.0, until=self.total)
        speed = entry.alone * math.prod(packed_share(entry, *mate) for mate in setting.mates)
        return Pace(speed, self.total, self.batch, observation=observed(setting, self.batch, speed))

    @cached_property
    def alone(self) -> RunAlone:
        return RunAlone.of(self, self.reference, self.home)

    @property
    def reference(self) -> Allocation:
        """The allocation that `remaining_s` assumes."""
        return consolidated(self.gpus, node_gpus=self.gpus)

    def remaining_s(self, progress: float) -> float:
        return self.alone.remaining_s(progress)


def table_key(truth: Truth, progress: float) -> Key | None:
    """How a table names a job while it is so far; None for a truth that no table has a name for."""
    key_at: Callable[[float], Key] | None = getattr(truth, "key_at", None)  # many times quicker than a protocol
    return None if key_at is None else key_at(progress)


def packed_share(entry: Entry, mate: Truth, progress: float) -> float:
    """Share of its speed alone that a job keeps beside another: as the table says, or the usual where it does not."""
    key = table_key(mate, progress)
    return entry.packed[key] / entry.alone if key in entry.packed else PACKED_SPEED


def observed(setting: Setting, batch: int | None, steps_per_s: float) -> Observation | None:
    """A step time as a profiler sees it; a table does not tell what part of it is averaging. None at speed 0."""
    if steps_per_s <= 0.0:
        return None
    nodes, gpus = len(setting.allocation.nodes), setting.allocation.total
    per_gpu_batch = -(-(batch or gpus) // gpus)
    step_s = 1.0 / steps_per_s
    return Observation(setting.gpu_type, nodes, gpus, per_gpu_batch, 0, step_s, 0.0, partners=setting.partners)
