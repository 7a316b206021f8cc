"""Truths measured on a real cluster: the profile directories that came with Pollux (Qiao et al., OSDI '21).

A profile is one directory per application:

    placements.csv          placement, local_bsz, step_time, sync_time                  every use of up to four nodes
    scalability.csv         num_nodes, num_replicas, local_bsz, step_time, sync_time    six to sixteen nodes
    validation-<batch>.csv  progress, grad_sqr, grad_var, iteration (may be left out)   one row per epoch at that batch

The rules are those of the artifact's own simulator, under which its numbers were published. So an epoch lasts a whole
number of seconds, and the nodes of a job come in the order in which the artifact's policies fill them, those with
the most GPUs first. Two rules differ: a per-GPU batch below the smallest one measured takes as long as that one, and a
node with more GPUs than any measured one counts as several.

The GPUs were T4s, four to a node; the GPU types of the simulated cluster make no difference.

Legend: E epochs, B measured batch sizes, L measured per-GPU batch sizes, P measured points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Batch, Observation
from fairlead.goodput.efficiency import gain
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.surface import Surface
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import InvalidTrace
from fairlead.sim.traces.table import Row, read_table
from fairlead.sim.truth import PACKED_SPEED, Pace, Setting, packed_observation

Floats = NDArray[np.float64]

#: GPUs on each node in the order of the nodes: (4, 2).
Placement = tuple[int, ...]

#: How long each application trains in the Pollux experiments; others train for all epochs that were measured.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50, "gpt_pmp": 2}

#: The artifact never gives this application more GPUs than this, and where jobs tune their own batch this one keeps its
#: own: averaging over several GPUs never pays for it.
PINNED_GPUS = {"ncf": 1}
PINNED_BATCHES = {"ncf": 32768}

#: Epochs end on whole seconds.
TICK_S = 1.0

#: Applications whose memory holds less than the largest per-GPU batch in their profile.
PER_GPU_CAPS = {"yolov3": 8}

#: More nodes than this are as slow as this many: none were measured.
NODES_MEASURED = 16

#: Where the gradient's squared norm was measured as 0 the noise scale has no bound; this is what is reported then.
NOISE_SCALE_MAX = 1e12


@dataclass(frozen=True, eq=False)
class MeasuredProfile:
    """One application as it was measured. Step times are remembered: to interpolate one takes a millisecond."""

    #: `sync_time` is a part of `step_time` in the files.
    sync_within_step: ClassVar[bool] = True

    name: str
    batch: Batch
    #: Progress at the end of each epoch, ascending; in steps at the initial batch.
    ends: tuple[float, ...]
    #: Measured batch sizes, ascending: [B].
    batches: Floats
    #: Squared norm and variance of the gradient: [E, B].
    grad_sqr: Floats
    grad_var: Floats
    #: By placement: per-GPU batches, step times and sync times, in ascending order of the first.
    placements: Mapping[Placement, tuple[Floats, Floats, Floats]]
    #: (nodes, GPUs, per-GPU batch) and (step time, sync time), for all other placements: [P, 3] and [P, 2].
    points: Floats
    point_times: Floats
    #: Steps taken at the end of each epoch: [E, B]; None where the files do not tell.
    iterations: Floats | None = None
    _times: dict[tuple[Placement, int], tuple[float, float] | None] = field(default_factory=dict, repr=False)

    @cached_property
    def node_gpus(self) -> int:
        """The largest node that was measured."""
        return max(max(placement) for placement in self.placements)

    def times(self, placement: Placement, per_gpu_batch: int) -> tuple[float, float] | None:
        """(step, sync) seconds of one micro-step with averaging; None beyond everything that was measured."""
        key = canonical(placement, self.node_gpus), max(per_gpu_batch, self.batch.min_per_gpu)
        if key not in self._times:
            self._times[key] = self._interpolate(*key)
        return self._times[key]

    def epoch(self, progress: float) -> int:
        """The epoch under way, counting from 0; the last one for a job that is done."""
        return min(bisect_right(self.ends, progress), len(self.ends) - 1)

    def pace(self, setting: Setting, per_gpu_batch: int, accumulation: int) -> Pace:
        """How fast a job trains that splits its batch so; a per-GPU batch of 0 cannot run."""
        placement = self.on(placement_of(setting))
        epoch = self.epoch(setting.progress)
        pace = _pace_alone(self, placement, epoch, setting.gpu_type, (per_gpu_batch, accumulation))
        if setting.packed_with:
            seen = packed_observation(setting, pace.observation, PACKED_SPEED)
            return replace(pace, speed=PACKED_SPEED * pace.speed, observation=seen)
        return pace

    def bounds(self, placement: Placement) -> Batch:
        """Of the batch on a placement."""
        return self.batch

    def split_on(self, batch: int, placement: Placement) -> tuple[int, int]:
        """(per-GPU batch, accumulation) on a placement; a per-GPU batch of 0 means it has too many GPUs."""
        return self.split(batch, sum(placement))

    def on(self, placement: Placement) -> Placement:
        """The placement that one counts as."""
        return placement

    def split(self, batch: int, gpus: int) -> tuple[int, int]:
        """(per-GPU batch, accumulation) on so many GPUs; a per-GPU batch of 0 means there are too many of them."""
        bounds = self.batch
        assert bounds.max_per_gpu is not None
        local = -(-batch // gpus)
        accumulation = -(-local // bounds.max_per_gpu) - 1
        if gpus == 1 and batch > bounds.initial:
            accumulation = max(1, accumulation)  # the noise scale is estimated from at least two gradients
        return self.fitted(local, gpus, accumulation)

    def fitted(self, local: int, gpus: int, accumulation: int) -> tuple[int, int]:
        """Samples of one GPU in so many more than one micro-step, all of them together not above the largest batch."""
        assert self.batch.max_total is not None
        count = gpus * (accumulation + 1)
        return min(-(-local // (accumulation + 1)), self.batch.max_total // count), accumulation

    def grad_stats(self, batch: int, epoch: int) -> tuple[float, float]:
        """(squared norm, variance) of the gradient, linear between measured batch sizes."""
        sqr = np.interp(batch, self.batches, self.grad_sqr[epoch])
        var = np.interp(batch, self.batches, self.grad_var[epoch])
        return float(sqr), float(var)

    def _interpolate(self, placement: Placement, per_gpu_batch: int) -> tuple[float, float] | None:
        if (measured := self.placements.get(placement)) is not None:
            local_L, step_L, sync_L = measured
            if per_gpu_batch > local_L[-1]:
                return None
            return float(np.interp(per_gpu_batch, local_L, step_L)), float(np.interp(per_gpu_batch, local_L, sync_L))
        nodes = min(len(placement), NODES_MEASURED)
        times = self._surface.at((nodes, sum(placement), per_gpu_batch))
        return None if times is None else (float(times[0]), float(times[1]))

    @cached_property
    def _surface(self) -> Surface:
        from scipy.spatial import QhullError  # slow to import, and many runs never need it

        try:
            return Surface(self.points, self.point_times)
        except QhullError:
            raise InvalidSpec(
                f"application {self.name} was measured on too few placements to tell the speed of any other; "
                "add rows to its scalability.csv, or give jobs only placements in its placements.csv"
            ) from None


def placement_of(setting: Setting) -> Placement:
    """GPUs on each node, the most first."""
    return tuple(sorted((len(gpus) for _, gpus in setting.allocation), reverse=True))


def noise_scale_of(initial: int, grad_sqr: float, grad_var: float) -> float:
    return min(initial * grad_var / grad_sqr, NOISE_SCALE_MAX) if grad_sqr > 0.0 else NOISE_SCALE_MAX


def canonical(placement: Placement, node_gpus: int) -> Placement:
    """The lexicographically smallest rotation, nodes larger than any measured one being split."""
    parts = tuple(min(node_gpus, gpus - start) for gpus in placement for start in range(0, gpus, node_gpus))
    return min(parts[k:] + parts[:k] for k in range(len(parts)))


@lru_cache(maxsize=65536)
def _pace_alone(
    profile: MeasuredProfile, placement: Placement, epoch: int, gpu_type: str, split: tuple[int, int]
) -> Pace:
    """Remembered, since jobs of an application meet the same few placements."""
    (m, s), gpus = split, sum(placement)
    times = profile.times(placement, m) if m else None
    if times is None:
        return Pace(speed=0.0, until=profile.ends[-1])
    step_s, sync_s = times
    step_s += s * (step_s - sync_s)
    batch, initial = gpus * m * (s + 1), profile.batch.initial
    sqr, var = profile.grad_stats(batch, epoch)
    return Pace(
        speed=float(gain(sqr, var, batch / initial)) / step_s,
        until=profile.ends[epoch],
        batch=batch,
        noise_scale=noise_scale_of(initial, sqr, var),
        observation=Observation(gpu_type, len(placement), gpus, m, s, step_s, sync_s),
        tick_s=TICK_S,
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def applications_in(directory: Path) -> Iterator[str]:
    """Names of the applications profiled in a directory, in order."""
    yield from sorted(path.parent.name for path in directory.glob("*/placements.csv"))


AnyProfile = TypeVar("AnyProfile", bound=MeasuredProfile)


def load_profile(directory: Path) -> MeasuredProfile:
    """Read and check one application's directory; InvalidTrace names the file and line at fault."""
    return read_profile(directory, MeasuredProfile, cap=PER_GPU_CAPS.get(directory.name))


def read_profile(directory: Path, kind: type[AnyProfile], *, suffix: str = "", cap: int | None = None) -> AnyProfile:
    """A profile of any kind. `suffix` ends the names of the files of step times; `cap` is the largest per-GPU batch the
    memory holds, where that is less than was measured."""
    name = directory.name
    within = kind.sync_within_step
    placements = _read_placements(directory / f"placements{suffix}.csv", within=within)
    points, point_times = _surface_points(placements, directory / f"scalability{suffix}.csv", within=within)
    files = _validation_files(directory)
    runs = [_read_validation(files[batch]) for batch in sorted(files)]
    epochs = min(EPOCHS.get(name, len(runs[0])), *(len(run) for run in runs))
    stats_BE4 = np.array([run[:epochs] for run in runs])
    iterations = stats_BE4[:, :, 3].T
    local_L = np.concatenate([measured[0] for measured in placements.values()])
    largest = int(local_L.max())
    return kind(
        name=name,
        batch=Batch(
            initial=min(files),
            max_total=max(files),
            min_per_gpu=int(local_L.min()),
            max_per_gpu=min(cap or largest, largest),
        ),
        # The run that is furthest behind says when an epoch's progress is made. Ascending, as every run's is.
        ends=tuple(stats_BE4[:, :, 0].min(axis=0).tolist()),
        batches=np.array(sorted(files), dtype=np.float64),
        grad_sqr=stats_BE4[:, :, 1].T,
        grad_var=stats_BE4[:, :, 2].T,
        iterations=None if np.isnan(iterations).any() else iterations,
        placements=placements,
        points=points,
        point_times=point_times,
    )


def fewest_gpus(path: Path) -> int:
    """Of all placements in a file."""
    rows = _rows(path, required=("placement",))
    return min((sum(map(int, text)) for row in rows if (text := row.text("placement")).isdigit()), default=1)


def _rows(path: Path, *, required: Sequence[str]) -> Iterator[Row]:
    if not read_text(path).strip():
        raise InvalidTrace(f"is empty; expected the columns {', '.join(required)}", source=str(path))
    return read_table(path, required=required)


def _read_placements(path: Path, *, within: bool) -> dict[Placement, tuple[Floats, Floats, Floats]]:
    found: dict[Placement, dict[int, tuple[float, float]]] = {}
    for row in _rows(path, required=("placement", "local_bsz", "step_time", "sync_time")):
        text = row.text("placement")
        if not (text.isascii() and text.isdigit()) or "0" in text:
            raise row.error("placement", "one digit from 1 to 9 per node")
        by_local = found.setdefault(tuple(map(int, text)), {})
        local = row.whole("local_bsz")
        if local in by_local:
            raise row.error("local_bsz", f"each per-GPU batch once for placement {text}")
        by_local[local] = _step_and_sync(row, within=within)
    if not found:
        raise InvalidTrace("has no rows; expected one per placement and per-GPU batch", source=str(path))
    placements = {}
    for placement, by_local in found.items():
        rows = np.array([(local, *times) for local, times in sorted(by_local.items())])
        placements[placement] = (rows[:, 0], rows[:, 1], rows[:, 2])
    return placements


def _surface_points(
    placements: Mapping[Placement, tuple[Floats, Floats, Floats]], path: Path, *, within: bool
) -> tuple[Floats, Floats]:
    """Points of the times by (nodes, GPUs, per-GPU batch): measured placements averaged, and the larger ones.

    In the artifact's order: there are several triangulations of a grid, and the order decides between them.
    """
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for placement, measured in placements.items():
        for local, step, sync in zip(*measured, strict=True):
            groups.setdefault((len(placement), sum(placement), int(local)), []).append((step, sync))
    keys = sorted(groups)
    for row in _rows(path, required=("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
        key = row.whole("num_nodes"), row.whole("num_replicas"), row.whole("local_bsz")
        if key not in groups:
            keys.append(key)
        groups.setdefault(key, []).append(_step_and_sync(row, within=within))
    return np.array(keys, dtype=np.float64), np.array([np.mean(groups[key], axis=0) for key in keys])


def _step_and_sync(row: Row, *, within: bool) -> tuple[float, float]:
    step, sync = row.number("step_time"), row.number("sync_time")
    if step == 0.0:
        raise row.error("step_time", "a number of seconds above 0")
    if within and sync >= step:
        raise row.error("sync_time", f"less than the step time, {step:g}")
    return step, sync


def _validation_files(directory: Path) -> dict[int, Path]:
    files = {}
    for path in directory.glob("validation-*.csv"):
        text = path.stem.removeprefix("validation-")
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise InvalidTrace("has no batch size in its name; expected validation-<batch>.csv", source=str(path))
        files[int(text)] = path
    if not files:
        raise InvalidTrace("has no validation-<batch>.csv; expected one per batch size", source=str(directory))
    return files


def _read_validation(path: Path) -> list[tuple[float, float, float, float]]:
    """(progress, grad_sqr, grad_var, iteration) at the end of each epoch; NaN for an iteration that is not told."""
    rows: list[tuple[float, float, float, float]] = []
    for row in _rows(path, required=("progress", "grad_sqr", "grad_var")):
        progress, sqr, var = row.number("progress"), _at_least_0(row, "grad_sqr"), _at_least_0(row, "grad_var")
        if progress <= (rows[-1][0] if rows else 0.0):
            raise row.error("progress", "more than the epoch before")
        if sqr + var == 0.0:
            raise row.error("grad_var", "a gradient that is not exactly 0")
        rows.append((progress, sqr, var, row.number("iteration") if row.has("iteration") else math.nan))
    if not rows:
        raise InvalidTrace("has no rows; expected one per epoch", source=str(path))
    return rows


def _at_least_0(row: Row, column: str) -> float:
    """Gradient statistics are not bounded as other numbers in a trace are: a young model's reach 1e16."""
    try:
        value = float(row.text(column))
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise row.error(column, "a finite number of at least 0")
    return value


# -- the truth -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredTruth:
    """A job that keeps its global batch, as nearly as its GPUs divide it. Progress is in steps at the initial batch."""

    profile: MeasuredProfile
    #: What the user asked for.
    gpus: int
    batch: int

    def __post_init__(self) -> None:
        least, most = self.profile.batch.initial, self.profile.batch.max_total
        assert most is not None
        if not least <= self.batch <= most:
            raise InvalidSpec(
                f"batch is {self.batch}; application {self.profile.name} was measured from {least} to {most}"
            )
        if self.pace(Setting(0.0, self.reference, "")).speed == 0.0:
            raise InvalidSpec(
                f"batch {self.batch} of application {self.profile.name} on {self.gpus} GPUs is beyond all that was "
                "measured; ask for fewer GPUs"
            )

    @property
    def total(self) -> float:
        return self.profile.ends[-1]

    def pace(self, setting: Setting) -> Pace:
        return self.profile.pace(setting, *self.split(setting.allocation.total))

    def split(self, gpus: int) -> tuple[int, int]:
        """(per-GPU batch, accumulation) on so many GPUs; a per-GPU batch of 0 means there are too many of them."""
        return self.profile.split(self.batch, gpus)

    @cached_property
    def alone(self) -> RunAlone:
        return RunAlone.of(self, self.reference, "")

    @property
    def reference(self) -> Allocation:
        """The allocation that `remaining_s` assumes."""
        return consolidated(self.gpus, node_gpus=self.profile.node_gpus)

    def remaining_s(self, progress: float) -> float:
        return self.alone.remaining_s(progress)

    def steps_left(self, progress: float) -> float:
        """Steps after the epoch under way, as they were counted at this batch; or as many as would take as long."""
        iterations, epoch = self.profile.iterations, self.profile.epoch(progress)
        if iterations is None:
            return self.remaining_s(progress) / self.step_s(self.gpus)
        taken_E = [float(np.interp(self.batch, self.profile.batches, iterations[e])) for e in (epoch, -1)]
        return taken_E[1] - taken_E[0]

    def step_s(self, gpus: int) -> float:
        """Seconds of one step on so many GPUs of as few nodes as possible.

        As the artifact predicts it, which is with at least two micro-steps on one GPU. A job that keeps the initial
        batch takes but one.
        """
        return _predicted_step_s(self, gpus)


@lru_cache(maxsize=65536)
def _predicted_step_s(truth: MeasuredTruth, gpus: int) -> float:
    profile = truth.profile
    (m, s), local = truth.split(gpus), -(-truth.batch // gpus)
    m, s = profile.fitted(local, gpus, max(1, s)) if gpus == 1 else (m, s)
    placement = tuple(len(on) for _, on in consolidated(gpus, node_gpus=profile.node_gpus))
    times = profile.times(placement, m) if m else None
    return math.inf if times is None else times[0] + s * (times[0] - times[1])
