"""Jobs that change their batch size while they train, as in Shockwave (Zheng et al., NSDI '23).

An epoch always takes the job once through its dataset, so a larger batch means fewer and longer steps. How the batch
moves depends on the job's mode:

    static      it stays as it began
    accordion   the largest batch, but the initial one in critical regimes, where the gradient changes fast (ACCORDION)
    gns         it grows when the gradient noise scale does: at the epochs in batch_schedules.json beside the trace
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.tables import UNSTATED, Key, ThroughputTable, job_type, load_json, observed, packed_share
from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.traces.table import listed, shown
from fairlead.sim.truth import Pace, Setting

#: Samples in an epoch as Shockwave counts them, which neither trace nor table tells: CIFAR-10, ImageNet (reduced by the
#: authors), Multi30k, Wikitext-2 and ML-20M.
DATASETS = {"ResNet-18": 50000, "ResNet-50": 100000, "Transformer": 10000, "LM": 59675, "Recommendation": 117907}

MODES = ("static", "accordion", "gns")

#: (first epoch, batch) of each regime, ascending from epoch 0.
Schedule = tuple[tuple[int, int], ...]

#: Schedules by (model, initial batch, GPUs).
GnsSchedules = Mapping[tuple[str, int, int], Schedule]


@dataclass(frozen=True, slots=True)
class Accordion:
    """When a model is in a critical regime: epochs [first, end), repeated every `period` epochs if there is one."""

    largest: int
    critical: tuple[tuple[int, int], ...]
    #: Other critical regimes for some initial batches.
    by_batch: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    period: int | None = None

    def batch_in(self, epoch: int, initial: int) -> int:
        if self.period is not None:
            epoch %= self.period
        spans = self.by_batch.get(initial, self.critical)
        inside = any(first <= epoch < end for first, end in spans)
        return initial if inside else max(initial, self.largest)


#: As Shockwave's simulator has them: the beginning, and after each decay of the learning rate (every 30 epochs for
#: ResNet-50, at 150 and 250 for ResNet-18). The recommenders settle later the smaller their batch; the translation
#: model (Transformer) is not in the table: it never adapts. The file of schedules has accordion schedules too, in which
#: the first 30 % of all epochs are critical: those are what its policies are told, not what its jobs do.
ACCORDION = {
    "LM": Accordion(80, ((0, 10),)),
    "Recommendation": Accordion(8192, ((0, 10),), {512: ((0, 30),), 1024: ((0, 30),), 2048: ((0, 40),)}),
    "ResNet-18": Accordion(256, ((0, 10), (150, 160), (250, 260))),
    "ResNet-50": Accordion(128, ((0, 10),), period=30),
}


def epochs_of(model: str, batch: int, steps: float) -> int:
    """Whole epochs in so many steps at the initial batch; at least one."""
    if model not in DATASETS:
        raise InvalidSpec(
            f"model {model!r} has no known dataset to count epochs of; known are {listed(sorted(DATASETS))}"
        )
    return max(1, math.ceil(steps / math.ceil(DATASETS[model] / batch)))


def schedule_of(mode: str, model: str, batch: int, *, gpus: int, epochs: int, gns: GnsSchedules) -> Schedule:
    """The batch of every epoch, as regimes. A gns job without an entry keeps its batch, as those on eight GPUs do."""
    if mode == "gns":
        return tuple((first, size) for first, size in gns.get((model, batch, gpus), ((0, batch),)) if first < epochs)
    if mode not in MODES:
        raise InvalidSpec(f"mode is {mode!r}; expected {' or '.join(MODES)}")
    if mode == "static" or model not in ACCORDION:
        return ((0, batch),)
    regimes: list[tuple[int, int]] = []
    for epoch in range(epochs):
        size = ACCORDION[model].batch_in(epoch, batch)
        if not regimes or regimes[-1][1] != size:
            regimes.append((epoch, size))
    return tuple(regimes)


# -- reading ---------------------------------------------------------------------------------------------------------


def load_schedules(path: Path) -> GnsSchedules:
    """{"gns": {"ResNet-18|16|sf1": [[0, 16], [31, 32], ...]}}; InvalidTrace names the file and the key at fault."""
    data = load_json(path)
    rows = data.get("gns") if isinstance(data, dict) else None
    if not isinstance(rows, dict):
        raise InvalidTrace(
            'has no "gns"; expected {"gns": {"model|batch|sfGPUs": [[epoch, batch], ...]}}', source=str(path)
        )
    return {_schedule_key(text, path): _schedule(text, pairs, path) for text, pairs in rows.items()}


def _schedule_key(text: str, path: Path) -> tuple[str, int, int]:
    match text.split("|"):
        case [str(model), str(batch), str(gpus)] if batch.isdecimal() and gpus.removeprefix("sf").isdecimal():
            return model, int(batch), int(gpus.removeprefix("sf"))
    raise InvalidTrace(f"found the key {shown(text)}; expected model|batch|sfGPUs", source=str(path))


def _schedule(text: str, pairs: Any, path: Path) -> Schedule:
    regimes: list[tuple[int, int]] = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [int(first), int(batch)] if batch >= 1 and (first > regimes[-1][0] if regimes else first == 0):
                regimes.append((first, batch))
            case _:
                raise InvalidTrace(
                    f"{text}: found {shown(pair)}; expected [epoch, batch], the first at epoch 0 and epochs ascending",
                    source=str(path),
                )
    if not regimes:
        raise InvalidTrace(f"{text} is empty; expected [[0, batch], ...]", source=str(path))
    return tuple(regimes)


# -- the truth -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegimeTruth:
    """A job that goes through its dataset `epochs` times, at the batch its schedule says. Progress is in epochs."""

    table: ThroughputTable
    model: str
    #: What the user asked for.
    gpus: int
    epochs: int
    schedule: Schedule
    #: GPU types the job may get; none stated: any.
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.home  # refuses what can run nowhere

    @cached_property
    def home(self) -> str:
        """The type it runs fastest on at first. `remaining_s` assumes it, and so do nodes that state no type."""
        keys = [(job_type(self.model, batch), self.gpus) for _, batch in self.schedule]
        return self.table.fastest(*keys, among=self.gpu_types)

    def gpu_range(self, gpu_types: Sequence[str]) -> tuple[int, int]:
        """The fewest and the most GPUs on which all its batch sizes were measured, whichever type it is given."""
        names = [self.home if name == UNSTATED else self.table.named(name) for name in gpu_types] or [self.home]
        types = {job_type(self.model, batch) for _, batch in self.schedule}
        counts = [self.table.counts(name, each) for name in names for each in types]
        return max(min(count, default=self.gpus) for count in counts), min(max(c, default=self.gpus) for c in counts)

    @property
    def total(self) -> float:
        return float(self.epochs)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        return tuple(first for first, _ in self.schedule)

    def key_at(self, progress: float) -> Key:
        """How the table names the job in the regime that it is in."""
        return job_type(self.model, self.batch_at(progress)), self.gpus

    def batch_at(self, progress: float) -> int:
        return self.schedule[bisect_right(self.firsts, progress) - 1][1]

    def pace(self, setting: Setting) -> Pace:
        regime = bisect_right(self.firsts, setting.progress) - 1
        batch = self.schedule[regime][1]
        until = float(self.firsts[regime + 1]) if regime + 1 < len(self.firsts) else self.total
        gpu_type = self.home if setting.gpu_type == UNSTATED else self.table.named(setting.gpu_type)
        key = job_type(self.model, batch), setting.allocation.total
        entry = self.table.entry(gpu_type, key, nodes=len(setting.allocation.nodes))
        entry = entry or self.table.between(gpu_type, key)
        if entry is None:
            return Pace(speed=0.0, until=until, batch=batch)
        steps_per_epoch = math.ceil(DATASETS[self.model] / batch)
        speed = entry.alone * math.prod(packed_share(entry, *mate) for mate in setting.mates)
        return Pace(speed / steps_per_epoch, until, batch, observation=observed(setting, batch, speed))

    @cached_property
    def alone(self) -> RunAlone:
        return RunAlone.of(self, self.reference, self.home)

    @property
    def reference(self) -> Allocation:
        """The allocation that `remaining_s` assumes."""
        return consolidated(self.gpus, node_gpus=self.gpus)

    def remaining_s(self, progress: float) -> float:
        return self.alone.remaining_s(progress)

    def batch_s(self) -> dict[int, float]:
        """By each batch size of its schedule: seconds of all epochs at it, alone on the GPUs it asked for."""
        return {
            batch: self.epochs / self.pace(Setting(float(first), self.reference, self.home)).speed
            for first, batch in self.schedule
        }
