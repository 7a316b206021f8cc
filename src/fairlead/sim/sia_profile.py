"""Profiles by GPU type under the rules of Sia's own simulator (Jayaram Subramanya et al., SOSP '23).

They differ from those of Pollux's (`measured.py`) where a job leaves what was measured:

* A per-GPU batch that is larger than any measured for a placement is split into micro-steps that are not. For a
  placement that was not measured the limit is the largest per-GPU batch of a run on at least as many nodes and GPUs,
  and of any run on as many GPUs.
* A placement on more nodes than were measured counts as the same GPUs on as many nodes as were.

The artifact's simulator gives no job more GPUs of a type than were measured, and stops where it has to. Here a job with
more trains as on the most that were, and a placement between and beyond all measured ones takes as long as the nearest.

An application that was measured on no single GPU is a pipeline of as many stages as the fewest GPUs it was measured on.
Each of its replicas takes MICRO_BATCHES samples one after the other, and the files hold the time of one forward pass of
one stage (`step_time`) and that of averaging over the replicas (`sync_time`):

    T_iter = 3 (stages - 1 + MICRO_BATCHES) step_time + sync_time

GPUs beyond a multiple of the stages are idle.

Legend: L measured per-GPU batch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch, Observation
from fairlead.goodput.efficiency import gain
from fairlead.sim.measured import (
    TICK_S,
    Floats,
    MeasuredProfile,
    Placement,
    canonical,
    fewest_gpus,
    noise_scale_of,
    placement_of,
    read_profile,
)
from fairlead.sim.truth import PACKED_SPEED, Pace, Setting, packed_observation

#: Samples that each replica of a pipeline takes one after the other in each step; each is a micro-batch of its own.
MICRO_BATCHES = 48

#: A backward pass takes twice as long as a forward pass.
PASSES = 3


@dataclass(frozen=True, eq=False)
class SiaProfile(MeasuredProfile):
    """One data-parallel application on one GPU type."""

    _capped: dict[Placement, int] = field(default_factory=dict, repr=False)

    #: The fewest GPUs it can train on.
    least_gpus = 1

    @cached_property
    def by_shape(self) -> Mapping[tuple[int, int], tuple[Floats, Floats]]:
        """Per-GPU batches [L] and (step time, sync time) [L, 2] by (nodes, GPUs)."""
        found: dict[tuple[int, int], list[tuple[float, Floats]]] = {}
        for (nodes, gpus, local), times in zip(self.points.tolist(), self.point_times, strict=True):
            found.setdefault((int(nodes), int(gpus)), []).append((local, times))
        rows = {shape: sorted(group, key=lambda row: row[0]) for shape, group in found.items()}
        return {
            shape: (np.array([local for local, _ in group]), np.array([times for _, times in group]))
            for shape, group in rows.items()
        }

    @cached_property
    def most_gpus(self) -> int:
        """The most that were measured."""
        return max(gpus for _, gpus in self.by_shape)

    @cached_property
    def most_nodes(self) -> int:
        return max(nodes for nodes, _ in self.by_shape)

    def counted(self, placement: Placement) -> Placement:
        """The measured placement, or one between measured ones, that a placement counts as."""
        return _counted(placement, self.node_gpus, self.most_nodes, self.most_gpus)

    def bounds(self, placement: Placement) -> Batch:
        """Of the batch on a placement: what was measured there is what the memory holds."""
        counted = self.counted(placement)
        if counted not in self._capped:
            self._capped[counted] = self._most_per_gpu(counted)
        return replace(self.batch, max_per_gpu=max(self._capped[counted], self.batch.min_per_gpu))

    def split_on(self, batch: int, placement: Placement) -> tuple[int, int]:
        counted = self.counted(placement)
        return _split(self.bounds(counted), batch, sum(counted))

    def pace(self, setting: Setting, per_gpu_batch: int, accumulation: int) -> Pace:
        held = placement_of(setting)
        pace = super().pace(setting, per_gpu_batch, accumulation)
        used, gpus = sum(self.counted(held)), sum(held)
        if used == gpus or pace.observation is None:
            return pace
        # Some GPUs add nothing: what a profiler sees of the others is a step that takes that much longer.
        slower = gpus / used
        seen = pace.observation
        return replace(
            pace, observation=replace(seen, gpus=gpus, step_s=slower * seen.step_s, sync_s=slower * seen.sync_s)
        )

    def on(self, placement: Placement) -> Placement:
        return self.counted(placement)

    def sample_s(self) -> float:
        """Seconds of a sample on one GPU, at the largest batch it holds."""
        assert self.batch.max_per_gpu is not None
        times = self.times((1,), self.batch.max_per_gpu)
        return math.inf if times is None else times[0] / self.batch.max_per_gpu

    def _most_per_gpu(self, placement: Placement) -> int:
        nodes, gpus = len(placement), sum(placement)
        if (measured := self.placements.get(placement)) is not None:
            return int(measured[0][-1])
        wider = [local_L[-1] for (n, k), (local_L, _) in self.by_shape.items() if n >= nodes and k >= gpus]
        alike = [local_L[-1] for (_, k), (local_L, _) in self.by_shape.items() if k == gpus]
        most = max(wider or alike, default=self._nearest(nodes, gpus)[0][-1])
        return int(min(most, max(alike, default=most)))

    def _interpolate(self, placement: Placement, per_gpu_batch: int) -> tuple[float, float] | None:
        try:
            times = super()._interpolate(placement, per_gpu_batch)
        except InvalidSpec:  # too few placements for a surface
            times = None
        return self._nearest_times(placement, per_gpu_batch) if times is None else times

    def _nearest(self, nodes: int, gpus: int) -> tuple[Floats, Floats]:
        shape = min(
            self.by_shape,
            key=lambda shape: (abs(math.log(shape[1] / gpus)), abs(math.log(shape[0] / nodes)), shape),
        )
        return self.by_shape[shape]

    def _nearest_times(self, placement: Placement, per_gpu_batch: int) -> tuple[float, float]:
        """Of the nearest number of GPUs and nodes that was measured; beyond its batches in proportion to them."""
        local_L, times_L2 = self._nearest(len(placement), sum(placement))
        inside = min(max(per_gpu_batch, local_L[0]), local_L[-1])
        step_s, sync_s = (float(np.interp(inside, local_L, times_L2[:, k])) for k in (0, 1))
        return (step_s - sync_s) * max(1.0, per_gpu_batch / inside) + sync_s, sync_s


@dataclass(frozen=True, eq=False)
class PipelineProfile(SiaProfile):
    """One application of pipeline stages on one GPU type. Its batch follows from its GPUs."""

    sync_within_step: ClassVar[bool] = False

    @cached_property
    def stages(self) -> int:
        return min(sum(placement) for placement in self.placements)

    @property
    def least_gpus(self) -> int:  # type: ignore[override]
        return self.stages

    @cached_property
    def most_replicas(self) -> int:
        assert self.batch.max_total is not None
        return max(1, self.batch.max_total // MICRO_BATCHES)

    def bounds(self, placement: Placement) -> Batch:
        return self.batch

    def split_on(self, batch: int, placement: Placement) -> tuple[int, int]:
        """(samples per GPU, 0); 0 samples on fewer GPUs than there are stages."""
        gpus = sum(placement)
        return -(-MICRO_BATCHES * self.replicas(gpus) // gpus), 0

    def replicas(self, gpus: int) -> int:
        return min(gpus // self.stages, self.most_replicas)

    def sample_s(self) -> float:
        step_s, _ = self.step_s(self.stages)
        return step_s * self.stages / MICRO_BATCHES

    def step_s(self, gpus: int) -> tuple[float, float]:
        """(step, sync) seconds: as on the most GPUs that were measured and are no more than these."""
        used = self.replicas(gpus) * self.stages
        placement = max(
            (each for each in self.placements if sum(each) <= used), key=lambda each: (sum(each), -len(each))
        )
        local_L, forward_L, sync_L = self.placements[placement]
        forward_s, sync_s = (float(np.interp(1, local_L, times_L)) for times_L in (forward_L, sync_L))
        return PASSES * (self.stages - 1 + MICRO_BATCHES) * forward_s + sync_s, sync_s

    def pace(self, setting: Setting, per_gpu_batch: int, accumulation: int) -> Pace:
        gpus, epoch = setting.allocation.total, self.epoch(setting.progress)
        replicas = self.replicas(gpus)
        if replicas == 0:
            return Pace(speed=0.0, until=self.ends[-1])
        step_s, sync_s = self.step_s(gpus)
        batch, initial = replicas * MICRO_BATCHES, self.batch.initial
        sqr, var = self.grad_stats(batch, epoch)
        speed = float(gain(sqr, var, batch / initial)) / step_s
        nodes = len(setting.allocation.shares)
        seen = Observation(setting.gpu_type, nodes, gpus, max(1, per_gpu_batch), 0, step_s, sync_s)
        return Pace(
            speed=PACKED_SPEED * speed if setting.packed_with else speed,
            until=self.ends[epoch],
            batch=batch,
            noise_scale=noise_scale_of(initial, sqr, var),
            observation=packed_observation(setting, seen, PACKED_SPEED) if setting.packed_with else seen,
            tick_s=TICK_S,
        )


@lru_cache(maxsize=65536)
def _counted(placement: Placement, node_gpus: int, most_nodes: int, most_gpus: int) -> Placement:
    parts = canonical(placement, node_gpus)
    gpus = min(sum(parts), most_gpus)
    if len(parts) <= most_nodes and gpus == sum(parts):
        return parts
    per_node = max(-(-gpus // most_nodes), min(node_gpus, max(parts)))
    return canonical(tuple(min(per_node, gpus - start) for start in range(0, gpus, per_node)), node_gpus)


def _split(bounds: Batch, batch: int, gpus: int) -> tuple[int, int]:
    """(per-GPU batch, accumulation): as few micro-steps as the memory allows."""
    assert bounds.max_per_gpu is not None
    assert bounds.max_total is not None
    local = -(-batch // gpus)
    accumulation = -(-local // bounds.max_per_gpu) - 1
    if gpus == 1 and batch > bounds.initial:
        accumulation = max(1, accumulation)  # the noise scale is estimated from at least two gradients
    fitting = bounds.max_total // (gpus * (accumulation + 1))
    return min(-(-local // (accumulation + 1)), fitting), accumulation


def load_sia_profile(directory: Path, *, gpu_type: str, cap: int | None = None) -> SiaProfile:
    """One application on one type, by the artifact's name of it; `cap` as in `read_profile`."""
    suffix = f"-{gpu_type}"
    if fewest_gpus(directory / f"placements{suffix}.csv") == 1:
        return read_profile(directory, SiaProfile, suffix=suffix, cap=cap)
    pipeline = read_profile(directory, PipelineProfile, suffix=suffix)
    per_gpu = max(1, MICRO_BATCHES // pipeline.stages)
    return replace(pipeline, batch=replace(pipeline.batch, min_per_gpu=per_gpu, max_per_gpu=per_gpu))
