"""Analytic truths: applications of our own, each a handful of numbers, for simulations that need no data.

The six built-in applications have the shape of well-known training jobs. Their numbers were fitted to the public
profiles of the Pollux artifact (T4 GPUs, four to a node) and rounded to two digits; step times are off by 11 to 15 %
(root mean square), and the noise scale is the trend of a noisy curve. They are stand-ins to schedule with, not
measurements to quote.

The other GPU types are the T4 sped up by the assumed factors in GPU_TYPES; between nodes nothing changes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Allocation, Batch, Observation
from fairlead.goodput.efficiency import efficiency
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, update_time
from fairlead.goodput.tune import best_batch
from fairlead.sim.alone import RunAlone, consolidated
from fairlead.sim.truth import PACKED_SPEED, Pace, Setting, packed_observation

#: The type the parameters were fitted on; also what a cluster with any other type is taken to have.
DEFAULT_TYPE = "t4"

#: Times faster than a T4 in (computing, averaging within a node): round figures assumed, not measured.
GPU_TYPES: dict[str, tuple[float, float]] = {"t4": (1.0, 1.0), "v100": (2.5, 4.0), "a100": (5.0, 8.0)}


@dataclass(frozen=True)
class Application:
    """How fast a kind of job trains, and how that changes while it does. Work is in samples at perfect efficiency."""

    name: str
    params: Mapping[str, ThroughputParams] = field(hash=False)
    batch: Batch
    #: Samples to process if each were worth as much as at the initial batch.
    samples: float
    #: The gradient noise scale at the beginning and at the end; between them it moves geometrically.
    noise_scale: tuple[float, float]
    #: In so many steps of equal work: the simulator jumps from one to the next.
    regimes: int = 10
    default_type: str = DEFAULT_TYPE

    def __post_init__(self) -> None:
        if self.default_type not in self.params:
            raise InvalidSpec(f"application {self.name} has no parameters for its default GPU type {self.default_type}")
        if not (math.isfinite(self.samples) and self.samples > 0) or self.regimes < 1:
            raise InvalidSpec(
                f"application {self.name} has {self.samples} samples in {self.regimes} regimes; expected some of both"
            )
        if not all(math.isfinite(phi) and phi > 0 for phi in self.noise_scale):
            raise InvalidSpec(f"application {self.name}: noise scale is {self.noise_scale}; expected numbers above 0")

    def on(self, gpu_type: str) -> ThroughputParams:
        """Parameters for a GPU type; the default type's for one that is not known."""
        return self.params.get(gpu_type.lower(), self.params[self.default_type])

    def fastest(self, gpu_types: Iterable[str]) -> str:
        """Of these GPU types, or the default type if there are none."""
        return min(gpu_types, key=lambda name: float(grad_time(self.on(name), 1)), default=self.default_type)

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """Progress at the end of each regime."""
        return (*(self.samples * k / self.regimes for k in range(1, self.regimes)), self.samples)

    def noise_in(self, regime: int) -> float:
        first, last = self.noise_scale
        return float(first * (last / first) ** (regime / max(1, self.regimes - 1)))


# -- how a job chooses its batch -------------------------------------------------------------------------------------

#: (per-GPU batch, accumulation, goodput in samples per second); goodput 0 where it cannot run.
Tuned = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The job retunes its batch to every allocation and every regime: the most goodput within its bounds."""

    def choose(self, params: ThroughputParams, noise_scale: float, nodes: int, gpus: int, batch: Batch) -> Tuned:
        return best_batch(params, noise_scale, nodes, gpus, batch)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The job keeps the global batch its user chose: the next multiple of its GPUs, if that is within its bounds."""

    total: int

    def choose(self, params: ThroughputParams, noise_scale: float, nodes: int, gpus: int, batch: Batch) -> Tuned:
        local = -(-self.total // gpus)
        s = 0 if batch.max_per_gpu is None else -(-local // batch.max_per_gpu) - 1
        m = -(-local // (s + 1))
        if batch.max_total is not None:
            m = min(m, batch.max_total // (gpus * (s + 1)))
        if m == 0:
            return batch.min_per_gpu, 0, 0.0  # more GPUs than samples
        total = gpus * m * (s + 1)
        worth = efficiency(noise_scale, total, batch.initial)
        return m, s, float(total / step_time(params, nodes, gpus, m, s) * worth)


BatchMode = Adaptive | Fixed


@dataclass(frozen=True)
class GoodputTruth:
    """A job of an application. Progress is in efficient samples: throughput x efficiency each second."""

    app: Application
    batch_mode: BatchMode = Adaptive()
    #: What the user asked for, on nodes of so many; only `remaining_s` depends on them.
    gpus: int = 1
    gpu_type: str = DEFAULT_TYPE
    node_gpus: int = 4

    def __post_init__(self) -> None:
        most = self.app.batch.max_total
        if isinstance(self.batch_mode, Fixed) and not 1 <= self.batch_mode.total <= (most or math.inf):
            raise InvalidSpec(f"batch is {self.batch_mode.total}; application {self.app.name} takes 1 to {most}")
        if self.pace(Setting(0.0, self.reference, self.gpu_type)).speed == 0.0:
            raise InvalidSpec(
                f"{self.gpus} GPUs are more than application {self.app.name} has a batch for; ask for fewer"
            )

    @property
    def total(self) -> float:
        return self.app.samples

    def pace(self, setting: Setting) -> Pace:
        nodes, gpus = len(setting.allocation.nodes), setting.allocation.total
        regime = min(bisect_right(self.app.ends, setting.progress), self.app.regimes - 1)
        pace = _pace_alone(self, regime, nodes, gpus, setting.gpu_type)
        if setting.packed_with:
            seen = packed_observation(setting, pace.observation, PACKED_SPEED)
            return replace(pace, speed=PACKED_SPEED * pace.speed, observation=seen)
        return pace

    @cached_property
    def alone(self) -> RunAlone:
        return RunAlone.of(self, self.reference, self.gpu_type)

    @property
    def reference(self) -> Allocation:
        """The allocation that `remaining_s` assumes."""
        return consolidated(self.gpus, node_gpus=self.node_gpus)

    def remaining_s(self, progress: float) -> float:
        return self.alone.remaining_s(progress)


@lru_cache(maxsize=65536)
def _pace_alone(truth: GoodputTruth, regime: int, nodes: int, gpus: int, gpu_type: str) -> Pace:
    """Remembered, since many jobs of an application meet the same few allocations."""
    app = truth.app
    params, phi = app.on(gpu_type), app.noise_in(regime)
    m, s, goodput = truth.batch_mode.choose(params, phi, nodes, gpus, app.batch)
    if goodput == 0.0:
        return Pace(speed=0.0, until=app.samples)
    step_s = float(step_time(params, nodes, gpus, m, s))
    sync_s = max(0.0, float(update_time(params, nodes, gpus, m) - grad_time(params, m)))
    return Pace(
        speed=goodput,
        until=app.ends[regime],
        batch=gpus * m * (s + 1),
        noise_scale=phi,
        observation=Observation(gpu_type, nodes, gpus, m, s, step_s, sync_s),
    )


# -- the built-in applications ---------------------------------------------------------------------------------------


def _on_every_type(t4: ThroughputParams) -> dict[str, ThroughputParams]:
    return {name: t4.faster(compute, within_node=within) for name, (compute, within) in GPU_TYPES.items()}


#: By name. The GPU-hours are those of a run alone on one T4 with an adaptive batch. On 16 T4s they are 1.3 times as
#: many for the large CNN, 1.7 to 2.7 times for the others, and 18 times for the recommender.
APPLICATIONS: dict[str, Application] = {
    app.name: app
    for app in (
        # A residual network on small images, like ResNet-18 on CIFAR-10. 1.1 GPU-hours.
        Application(
            "small-cnn",
            _on_every_type(ThroughputParams(0.017, 0.00070, 0.12, 0.0026, 0.028, 0.0052, 2.1)),
            Batch(initial=128, max_total=4096, min_per_gpu=32, max_per_gpu=1024),
            samples=5.0e6,
            noise_scale=(1.0e3, 6.0e4),
        ),
        # A residual network on photographs, like ResNet-50 on ImageNet. 160 GPU-hours.
        Application(
            "large-cnn",
            _on_every_type(ThroughputParams(0.064, 0.0045, 0.30, 0.0066, 0.068, 0.0096, 2.5)),
            Batch(initial=200, max_total=12800, min_per_gpu=20, max_per_gpu=200),
            samples=1.2e8,
            noise_scale=(3.0e3, 1.0e5),
        ),
        # Fine-tuning a language model, like BERT on SQuAD: large gradients, so averaging dominates. 3.7 GPU-hours.
        Application(
            "language-model",
            _on_every_type(ThroughputParams(0.17, 0.059, 1.4, 0.0094, 0.28, 0.011, 1.9)),
            Batch(initial=12, max_total=384, min_per_gpu=4, max_per_gpu=12),
            samples=1.8e5,
            noise_scale=(1.8e3, 7.2e3),
            regimes=4,
        ),
        # A recurrent network on speech, like DeepSpeech2. 4.5 GPU-hours.
        Application(
            "speech-recogniser",
            _on_every_type(ThroughputParams(0.31, 0.024, 0.49, 0.0098, 0.020, 0.090, 1.4)),
            Batch(initial=20, max_total=640, min_per_gpu=10, max_per_gpu=80),
            samples=5.7e5,
            noise_scale=(5.0e2, 1.0e5),
        ),
        # An object detector, like YOLOv3 on PASCAL VOC: memory for small batches only, so it accumulates. 11 GPU-hours.
        Application(
            "object-detector",
            _on_every_type(ThroughputParams(0.19, 0.025, 0.74, 0.011, 0.062, 0.081, 1.1)),
            Batch(initial=8, max_total=512, min_per_gpu=4, max_per_gpu=8),
            samples=8.3e5,
            noise_scale=(2.0e2, 4.0e3),
        ),
        # A recommender, like neural collaborative filtering on MovieLens. Its steps take milliseconds: averaging over
        # several GPUs never pays. 0.015 GPU-hours.
        Application(
            "recommender",
            _on_every_type(ThroughputParams(0.0070, 6.3e-7, 0.015, 0.00054, 0.0032, 0.0012, 1.0)),
            Batch(initial=256, max_total=32768, min_per_gpu=32, max_per_gpu=32768),
            samples=5.0e7,
            noise_scale=(3.0e5, 3.0e7),
            regimes=5,
        ),
    )
}
