"""Resource elasticity (Or, Zhang, Freedman, MLSys '20): one job that finds its own size, next to the slides' figures.

Two trainings, each alone on 8 nodes of 8 GPUs as in the paper, from every starting size of the authors' script:
* static: it keeps the size it began with;
* autoscaling, in place: the policy `frugal` with the paper's steps and bounds, and a pause at every change;
* autoscaling, by checkpoint and restart: the same, with the published pause of a restart.

What is known, and what is assumed. Batches, steps and bounds are those of the released code. The paper's own curves of
throughput are not public, so they are assumed:
* ImageNet: three figures on a slide (16 GPUs 2,200 images/s, 32 GPUs 4,000, 64 GPUs 5,000) determine a pass, the
  averaging (in proportion to the GPUs) and how much the two overlap. The slide does not say that they are of this job.
* CIFAR-10: our fit of ResNet-18 to Pollux's profiles, measured on T4 GPUs, four to a node (`small-cnn`). The slides say
  ResNet-50, the released code ResNet-56.
* Epochs: 100 of CIFAR-10, the default of the released script; 90 of ImageNet, which is what its recipes take.
* Growing and shrinking pause for as long as the two do on average: the simulator has one pause for both. That new
  workers boot before they join, while the others train, is not simulated: the time is not public.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import JobRescaled, JobStarted, Message, Resize, Start
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Observation
from fairlead.goodput.search import local_batch
from fairlead.goodput.throughput import ThroughputParams, step_time
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.sim.alone import consolidated
from fairlead.sim.applications import APPLICATIONS, DEFAULT_TYPE
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.metrics import measure
from fairlead.sim.truth import Pace, Setting
from fairlead.sim.world import SimJob

CLUSTER, NODE_GPUS = "8x8", 8
LEAST, MOST, STEP = 4, 60, 4
#: The sizes that the authors' script runs: seq 4 4 60.
STARTS = tuple(range(LEAST, MOST + 1, STEP))
POLICY = f"frugal:step={STEP},review_s=1"


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of the slides. Changes are of autoscaling against static, as a share: below 0 is less."""

    jct_mean: float
    jct_best: float
    gpu_mean: float
    #: The largest reduction of GPU time, or where it grows the largest increase; the other is not there.
    gpu_best: float | None
    gpu_worst: float | None
    find_mean_s: float
    find_max_s: float
    #: Mean seconds without training at a change.
    grow_s: float
    shrink_s: float
    restart_s: float


@dataclass(frozen=True, slots=True)
class Training:
    """A job to train: its speed at any size, and how much there is to do. It is a Truth; progress is in samples."""

    name: str
    title: str
    params: ThroughputParams
    #: Each worker takes `max_local` samples until all together take `max_global`, which they then share.
    max_local: int
    max_global: int
    total: float
    published: Published

    def step_s(self, nodes: int, gpus: int) -> float:
        """Whoever has the largest share of the batch is waited for."""
        return float(step_time(self.params, nodes, gpus, local_batch(gpus, self.max_local, self.max_global, 0), 0))

    def throughput(self, nodes: int, gpus: int) -> float:
        """Samples per second."""
        return min(self.max_local * gpus, self.max_global) / self.step_s(nodes, gpus)

    def pace(self, setting: Setting) -> Pace:
        nodes, gpus = len(setting.allocation.nodes), setting.allocation.total
        batch = min(self.max_local * gpus, self.max_global)
        step_s = self.step_s(nodes, gpus)
        # A profiler counts the samples of all; the even share of a batch need not be a whole number.
        seen = Observation(setting.gpu_type, nodes, gpus, max(1, batch // gpus), 0, step_s, 0.0)
        return Pace(batch / step_s, self.total, batch=batch, observation=seen)

    def remaining_s(self, progress: float) -> float:
        nodes = len(consolidated(LEAST, node_gpus=NODE_GPUS).nodes)
        return (self.total - progress) / self.throughput(nodes, LEAST)


def _averaging_in_proportion(*, pass_s: float, each_s: float, gamma: float) -> ThroughputParams:
    """T_sync = each_s K, on one node as on several."""
    return ThroughputParams(pass_s, 0.0, 2.0 * each_s, each_s, 2.0 * each_s, each_s, gamma)


TRAININGS = {
    training.name: training
    for training in (
        Training(
            "cifar10",
            "ResNet on CIFAR-10",
            APPLICATIONS["small-cnn"].params[DEFAULT_TYPE],
            max_local=256,
            max_global=1024,
            total=100 * 50_000.0,
            published=Published(-0.0823, -0.160, -0.586, -0.851, None, 61.0, 78.4, 3.179, 2.612, 72.756),
        ),
        Training(
            "imagenet",
            "ResNet-50 on ImageNet",
            _averaging_in_proportion(pass_s=0.925, each_s=0.0251, gamma=4.27),
            max_local=128,
            max_global=8192,
            total=90 * 1_281_167.0,
            published=Published(-0.194, -0.450, 0.0739, None, 0.147, 264.0, 583.0, 6.813, 4.376, 81.186),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Way:
    """How a job changes its size; None where it does not do so that way."""

    name: str
    pause_s: float | None = None
    restart_s: float | None = None

    @property
    def is_static(self) -> bool:
        return self.pause_s is None and self.restart_s is None


#: What a change takes `fairlead.train` with a transformer of 26 million parameters on two cores: 0.22 s to grow from 2
#: to 4 workers and 0.04 s to shrink (benchmarks/rescale.py), so this on average.
OUR_PAUSE_S = 0.13

STATIC, IN_PLACE, OURS, RESTART = "static", "in place", "in place, our pauses", "checkpoint-restart"


def ways(training: Training) -> list[Way]:
    told = training.published
    return [
        Way(STATIC),
        Way(IN_PLACE, pause_s=(told.grow_s + told.shrink_s) / 2.0),
        Way(OURS, pause_s=OUR_PAUSE_S),
        Way(RESTART, restart_s=told.restart_s),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job, from one starting size, in one way; simulated or real."""

    training: str
    way: str
    start: int
    #: The size it ended with.
    target: int
    jct_s: float
    #: GPUs times seconds they were held.
    gpu_s: float
    #: From the beginning of training until it had its last size; None if it never changes.
    find_s: float | None
    #: Changes, and the mean seconds without training at each; None where there were none.
    growths: int
    shrinks: int
    grow_s: float | None
    shrink_s: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def simulate(training: Training, way: Way, start: int) -> Outcome:
    """The job alone on the cluster."""
    if not LEAST <= start <= MOST:
        raise InvalidSpec(f"a start of {start} workers is out of bounds; expected {LEAST} to {MOST}")
    least, most = (start, start) if way.is_static else (LEAST, MOST)
    spec = JobSpec(id="job", gpus=start, gpus_min=least, gpus_max=most, in_place=way.pause_s is not None)
    costs = Costs(restart_s=way.restart_s or 0.0, rescale_s=way.pause_s or 0.0)
    journal = MemoryJournal()
    backend = SimBackend([SimJob(spec, 0.0, training, costs)], parse_cluster(CLUSTER))
    policy = make_policy("fifo" if way.is_static else POLICY)
    run(policy, backend, state=State(), journal=journal, cadence=Cadence.parse("event"))
    (job,) = measure(journal).jobs
    assert job.jct_s is not None, "alone it ends"
    return _outcome(training, way, journal, jct_s=job.jct_s, gpu_s=job.held_gpu_s)


def _outcome(training: Training, way: Way, journal: Iterable[Message], *, jct_s: float, gpu_s: float) -> Outcome:
    messages = list(journal)
    sizes = [message.allocation.total for message in messages if isinstance(message, Start | Resize)]
    trains_at = [message.at for message in messages if isinstance(message, JobStarted | JobRescaled)]
    steps = [after - before for before, after in pairwise(sizes)]
    growths, shrinks = sum(step > 0 for step in steps), sum(step < 0 for step in steps)
    pause_s = way.pause_s if way.restart_s is None else way.restart_s
    return Outcome(
        training=training.name,
        way=way.name,
        start=sizes[0],
        target=sizes[-1],
        jct_s=jct_s,
        gpu_s=gpu_s,
        find_s=None if way.is_static else trains_at[-1] - trains_at[0],
        growths=growths,
        shrinks=shrinks,
        grow_s=pause_s if growths else None,
        shrink_s=pause_s if shrinks else None,
    )


# -- over all starting sizes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over all starting sizes."""

    mean: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """One way to autoscale, from all starting sizes. Changes are against static from the same start, as a share."""

    training: str
    way: str
    jct: Spread
    gpu: Spread
    find_s: Spread
    #: Means over all changes of all runs; None where there were none.
    grow_s: float | None
    shrink_s: float | None


def with_changes(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Each as a row, with its changes against static from the same start; 0 for static itself."""
    still = _static(outcomes)
    rows = []
    for each in outcomes:
        static = still[each.training, each.start]
        changes = {"jct_change": each.jct_s / static.jct_s - 1.0, "gpu_change": each.gpu_s / static.gpu_s - 1.0}
        rows.append(each.to_dict() | changes)
    return rows


def _static(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], Outcome]:
    """By training and start."""
    return {(each.training, each.start): each for each in outcomes if each.way == STATIC}


def summarise(outcomes: Sequence[Outcome]) -> list[Summary]:
    """Every training and way but static, in the order in which they come."""
    pairs = dict.fromkeys((each.training, each.way) for each in outcomes if each.way != STATIC)
    summaries = []
    for training, way in pairs:
        runs = [row for row in with_changes(outcomes) if (row["training"], row["way"]) == (training, way)]
        summaries.append(
            Summary(
                training,
                way,
                jct=Spread.of([row["jct_change"] for row in runs]),
                gpu=Spread.of([row["gpu_change"] for row in runs]),
                find_s=Spread.of([row["find_s"] for row in runs]),
                grow_s=_mean([(row["grow_s"], row["growths"]) for row in runs]),
                shrink_s=_mean([(row["shrink_s"], row["shrinks"]) for row in runs]),
            )
        )
    return summaries


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
