"""Jobs whose speed differs by GPU type: profiles laid out as in Sia's artifact (SOSP '23), and more built-in types.

A profile is one directory per application, with files for each type of GPU it was measured on:

    placements-<type>.csv    as Pollux's placements.csv
    scalability-<type>.csv   as Pollux's scalability.csv
    validation-<batch>.csv   of all types: what a model learns from a batch does not depend on the GPU

A type is named as in the artifact (aws, rtx, dgx-ext, ...), or by one of the names in ALIASES. The rules are those of
`sia_profile.py`, for each type by its own files. Real jobs were slower than their profiles by the factors in SLOWER. A
type without files is one the application cannot run on.

The bounds of a job's batch that its user states are those which hold on every type. On each type it uses all it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Batch
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.applications import DEFAULT_TYPE, Application
from fairlead.sim.measured import PINNED_BATCHES, MeasuredTruth, placement_of
from fairlead.sim.sia_profile import MICRO_BATCHES, PipelineProfile, SiaProfile, load_sia_profile
from fairlead.sim.traces.record import TraceJob
from fairlead.sim.traces.table import listed
from fairlead.sim.truth import Pace, Setting
from fairlead.sim.tuned import TunedTruth, tuned_split

#: Other names of the artifact's types, each with the types it may stand for, the best first.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "t4": ("aws",),
    "2080ti": ("rtx",),
    "a100": ("dgx-ext", "dgx"),
    "v100": ("azure",),
    "quadro": ("quad",),
}

#: How many times slower than their profiles jobs were on the artifact's real cluster.
SLOWER = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}

#: By application and type: users state a smaller largest per-GPU batch than was measured.
PER_GPU_CAPS = {("deepspeech2", "rtx"): 57}

_PREFIX = "placements-"


# -- built-in applications -------------------------------------------------------------------------------------------

#: Times faster than a T4 in (computing, averaging within a node), beyond `applications.GPU_TYPES`: figures assumed for
#: a gaming card with the T4's way to average.
MORE_GPU_TYPES = {"rtx": (2.0, 1.0), "2080ti": (2.0, 1.0)}


def built_in(app: Application, gpu_types: Sequence[str]) -> Application:
    """An application that also knows those of the types that only this module does; itself if there are none."""
    more = tuple(name for name in dict.fromkeys(map(str.lower, gpu_types)) if name in MORE_GPU_TYPES)
    return _extended(app, more) if more else app


@lru_cache(maxsize=64)
def _extended(app: Application, names: tuple[str, ...]) -> Application:
    base = app.params[DEFAULT_TYPE]
    more = {
        name: base.faster(compute, within_node=within)
        for name, (compute, within) in MORE_GPU_TYPES.items()
        if name in names
    }
    return replace(app, params={**app.params, **more})


# -- reading ---------------------------------------------------------------------------------------------------------


def typed_applications_in(directory: Path) -> Iterator[str]:
    """Names of the applications that were profiled by GPU type in a directory, in order."""
    yield from sorted({path.parent.name for path in directory.glob(f"*/{_PREFIX}*.csv")})


@dataclass(frozen=True, eq=False)
class TypedProfile:
    """One application by GPU type, each read when it is first asked for."""

    directory: Path
    _read: dict[str, SiaProfile] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def types(self) -> tuple[str, ...]:
        """As the files name them."""
        found = (path.stem.removeprefix(_PREFIX) for path in self.directory.glob(f"{_PREFIX}*.csv"))
        return tuple(sorted(found))

    def on(self, gpu_type: str) -> SiaProfile | None:
        """None for a type it was not measured on."""
        name = gpu_type.lower()
        file = next((type_ for type_ in (name, *ALIASES.get(name, ())) if type_ in self.types), None)
        if file is not None and file not in self._read:
            cap = PER_GPU_CAPS.get((self.name, file))
            self._read[file] = load_sia_profile(self.directory, gpu_type=file, cap=cap)
        return None if file is None else self._read[file]

    def among(self, gpu_types: Sequence[str]) -> dict[str, SiaProfile]:
        """Those of these types that it was measured on, the fastest first; InvalidSpec if there is none."""
        found = {name: profile for name in gpu_types if (profile := self.on(name)) is not None}
        if not found:
            also = (f"{name} for {types[0]}" for name, types in ALIASES.items() if set(types) & set(self.types))
            raise InvalidSpec(
                f"application {self.name} was profiled on {listed(self.types)} (or, by another name, "
                f"{', '.join(also) or 'nothing'}), none of which the job can have: the cluster's types are "
                f"{listed(gpu_types)}. Name them in --cluster, as in aws=6x4,rtx=3x8,dgx-ext=2x8"
            )
        return dict(sorted(found.items(), key=lambda item: (item[1].sample_s(), item[0])))


# -- the truths ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TypedTruth(MeasuredTruth):
    """A job that keeps its global batch, on whatever type it is. `profile` is that of the fastest type it may have."""

    #: By GPU type, the fastest first.
    by_type: tuple[tuple[str, SiaProfile], ...] = ()

    def on(self, gpu_type: str) -> SiaProfile | None:
        """The fastest one where no type is named: what its user would say it takes."""
        return next((profile for name, profile in self.by_type if gpu_type in (name, "")), None)

    def pace(self, setting: Setting) -> Pace:
        profile = self.on(setting.gpu_type)
        if profile is None:
            return Pace(speed=0.0, until=self.total)
        return self.slowed(profile.pace(setting, *profile.split_on(self.batch, placement_of(setting))))

    def least_gpus(self, gpu_type: str) -> int:
        """The fewest GPUs of a type, or of any for one without a profile, to train on: a pipeline's stages, else 1."""
        profile = self.on(gpu_type)
        return min(each.least_gpus for _, each in self.by_type) if profile is None else profile.least_gpus

    @property
    def most_gpus(self) -> int:
        """The most GPUs of any type that it was measured on."""
        return max(profile.most_gpus for _, profile in self.by_type)

    @property
    def reference(self) -> Allocation:
        return consolidated(max(self.gpus, self.least_gpus("")), node_gpus=self.profile.node_gpus)

    def split(self, gpus: int) -> tuple[int, int]:
        shape = consolidated(gpus, node_gpus=self.profile.node_gpus)
        return self.profile.split_on(self.batch, tuple(len(on) for _, on in shape))

    def step_s(self, gpus: int) -> float:
        """On the fastest type."""
        seen = self.pace(Setting(0.0, consolidated(gpus, node_gpus=self.profile.node_gpus), "")).observation
        return math.inf if seen is None else seen.step_s

    def slowed(self, pace: Pace) -> Pace:
        """As on a real cluster. What its profiler measures stays as it is, so the scheduler cannot know."""
        return replace(pace, speed=pace.speed / SLOWER.get(self.profile.name, 1.0))

    @cached_property
    def alone(self) -> RunAlone:
        return RunAlone.of(self, self.reference, "")


@dataclass(frozen=True)
class TypedTunedTruth(TunedTruth):
    """A job that tunes its batch by what it measured on each type, within the bounds it has there."""

    asked: TypedTruth

    def pace(self, setting: Setting) -> Pace:
        profile = self.asked.on(setting.gpu_type)
        if profile is None:
            return Pace(speed=0.0, until=self.total)
        placement = placement_of(setting)
        if isinstance(profile, PipelineProfile):  # its batch follows from its GPUs
            split = profile.split_on(self.asked.batch, placement)
        else:
            split = tuned_split(profile, setting.learned, setting.gpu_type, placement)
        return self.asked.slowed(profile.pace(setting, *split))


def typed_truth(job: TraceJob, profile: TypedProfile, gpu_types: Sequence[str], adapt: str) -> TypedTruth | TunedTruth:
    """The truth of a job of a profiled application on a cluster of these types; `adapt` as in `adapting.py`."""
    pinned = PINNED_BATCHES.get(profile.name) if adapt == "batch" else None
    batch = job.batch if pinned is None else pinned
    if batch is None and all(isinstance(each, PipelineProfile) for each in profile.among(gpu_types).values()):
        batch = MICRO_BATCHES
    if batch is None:
        raise InvalidSpec(f"has no batch size, which the profile of {profile.name} needs; add it to the trace")
    asked = _asked(profile, tuple(gpu_types), job.gpus, batch)
    return TypedTunedTruth(asked) if adapt == "batch" and pinned is None else asked


@lru_cache(maxsize=4096)
def _asked(profile: TypedProfile, gpu_types: tuple[str, ...], gpus: int, batch: int) -> TypedTruth:
    """Equal jobs share one truth: it is immutable, and its run alone takes a while to work out."""
    by_type = profile.among(gpu_types)
    fastest = next(iter(by_type.values()))
    common = replace(fastest, batch=_common([each.batch for each in by_type.values()]))
    return TypedTruth(common, gpus, batch, tuple(by_type.items()))


def _common(bounds: Sequence[Batch]) -> Batch:
    """Bounds that hold on every type."""
    least = max(batch.min_per_gpu for batch in bounds)
    most = min(batch.max_per_gpu for batch in bounds if batch.max_per_gpu is not None)
    return replace(bounds[0], min_per_gpu=min(least, most), max_per_gpu=most)
