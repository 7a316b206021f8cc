"""What a policy that declared itself an oracle is told of step times: the simulator's side of `StepOracle`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fairlead.core.snapshot import TrueRates
from fairlead.core.types import Allocation, Node
from fairlead.sim.alone import consolidated
from fairlead.sim.backend import SimBackend
from fairlead.sim.measured import MeasuredTruth
from fairlead.sim.regimes import DATASETS, RegimeTruth
from fairlead.sim.tables import Key, TableTruth, table_key
from fairlead.sim.truth import FixedDuration, Pace, Setting, Truth
from fairlead.sim.tuned import TunedTruth
from fairlead.sim.world import SimJob

#: Questions whose answers are kept.
_QUESTIONS = 8

#: GPU type, nodes, GPUs, workloads of partners.
PackedPlace = tuple[str, int, int, tuple[str, ...]]


class SimStepOracle:
    """True steps where a truth has them. Of other jobs, seconds on what they asked for, and how much faster more is."""

    def __init__(self, backend: SimBackend, nodes: Sequence[Node]) -> None:
        self._backend = backend
        self._node_gpus: dict[str, int] = {}  # the largest node of each type
        for node in nodes:
            self._node_gpus[node.gpu_type] = max(node.gpus, self._node_gpus.get(node.gpu_type, 0))
        # These only save time: what was last asked, what is known for each such question of each job, and of each kind
        # of job and place.
        self._asked: tuple[PackedPlace, ...] = ()
        self._known: dict[str, _Known] = {}
        self._answers: dict[tuple[PackedPlace, ...], dict[str, _Known]] = {(): self._known}
        self._rates: dict[tuple[object, PackedPlace], float] = {}

    def steps_left(self, job_id: str) -> float:
        job, progress = self._backend.whereabouts(job_id)
        if isinstance(job.truth, MeasuredTruth | TunedTruth):
            return job.truth.steps_left(progress)
        return job.truth.remaining_s(progress)

    def step_s(self, job_id: str, gpus: int) -> float:
        job, progress = self._backend.whereabouts(job_id)
        if isinstance(job.truth, MeasuredTruth | TunedTruth):
            return job.truth.step_s(gpus)
        accepted = job.spec.gpu_types or tuple(self._node_gpus)
        gpu_type = next((name for name in accepted if name in self._node_gpus), "")
        asked, speed = (self._speed(job.truth, progress, count, gpu_type) for count in (job.spec.gpus, gpus))
        return asked / speed if speed > 0.0 else math.inf

    def batch_s(self, job_id: str) -> Mapping[int, float]:
        job, _ = self._backend.whereabouts(job_id)
        if isinstance(job.truth, RegimeTruth):
            return job.truth.batch_s()
        batch = 1 if job.spec.batch is None else job.spec.batch.initial
        return {batch: job.truth.remaining_s(0.0)}

    def workload(self, job_id: str) -> str:
        """The name of its job type in a throughput table; of other jobs nothing is known beside others."""
        job, progress = self._backend.whereabouts(job_id)
        key = table_key(job.truth, progress)
        return "" if key is None else key[0]

    def rates(self, job_id: str, configurations: Sequence[PackedPlace]) -> TrueRates:
        job, progress = self._backend.whereabouts(job_id)
        if configurations is not self._asked:
            self._ask(tuple(configurations))
        known = self._known.get(job_id)
        if known is None or not known.since <= progress < known.until:
            if len(self._known) > 2 * self._backend.unfinished + 64:
                self._known.clear()
            known = self._known[job_id] = self._at(job, progress)
        left = (job.truth.total - progress) * known.samples
        return TrueRates(known.rate_C, left, known.batch)

    def _ask(self, asked: tuple[PackedPlace, ...]) -> None:
        """Policies ask few questions, by turns: what was answered to the last of them is kept."""
        if asked not in self._answers:
            if len(self._answers) >= _QUESTIONS:
                del self._answers[next(iter(self._answers))]
            self._answers[asked] = {}
        self._asked, self._known = asked, self._answers[asked]

    def _at(self, job: SimJob, progress: float) -> _Known:
        """Jobs of one type in a table share what is computed."""
        spec, truth = job.spec, job.truth
        (samples, batch), until = _unit(truth, progress), truth.total
        if not isinstance(truth, TableTruth | RegimeTruth):
            paces = _paces(job, progress, self._asked)
            until = min((pace.until for pace in paces if pace is not None and pace.speed > 0.0), default=until)
            return _Known(progress, until, _rates(paces, samples), samples, batch)
        if isinstance(truth, RegimeTruth):
            until = truth.pace(Setting(progress, truth.reference, truth.home)).until
        kind = type(truth), truth.key_at(progress)[0], truth.home, spec.least, spec.most, spec.gpu_types
        missing = [place for place in self._asked if (kind, place) not in self._rates]
        found = _rates(_paces(job, progress, missing), samples)
        self._rates.update(((kind, place), rate) for place, rate in zip(missing, found, strict=True))
        return _Known(progress, until, tuple(self._rates[kind, place] for place in self._asked), samples, batch)

    def _speed(self, truth: Truth, progress: float, gpus: int, gpu_type: str) -> float:
        where = consolidated(gpus, node_gpus=self._node_gpus.get(gpu_type, 1))
        return truth.pace(Setting(progress, where, gpu_type)).speed


class _Known(NamedTuple):
    """The rates of one job while its progress is from `since` to `until`."""

    since: float
    until: float
    rate_C: tuple[float, ...]
    #: Samples in a unit of the truth's progress, and in a step.
    samples: float
    batch: float


def _paces(job: SimJob, progress: float, asked: Sequence[PackedPlace]) -> list[Pace | None]:
    """In every configuration; None where its user does not want it to run."""
    spec = job.spec
    found: list[Pace | None] = []
    for gpu_type, nodes, gpus, partners in asked:
        allowed = spec.least <= gpus <= spec.most and nodes <= gpus
        if not allowed or (spec.gpu_types and gpu_type not in spec.gpu_types):
            found.append(None)
            continue
        mates = tuple(_TableMate((name, gpus)) if name else _OTHER for name in partners)
        found.append(job.truth.pace(Setting(progress, _spread(gpus, nodes), gpu_type, packed_with=mates)))
    return found


def _rates(paces: Sequence[Pace | None], samples: float) -> tuple[float, ...]:
    return tuple(0.0 if pace is None else pace.speed * samples for pace in paces)


def _unit(truth: Truth, progress: float) -> tuple[float, float]:
    """Samples in a unit of progress, and in a step now; 1 and 1 where the truth knows of no samples."""
    if isinstance(truth, TableTruth):
        return float(truth.batch or 1), float(truth.batch or 1)
    if isinstance(truth, RegimeTruth):
        return float(DATASETS[truth.model]), float(truth.batch_at(progress))
    return 1.0, 1.0


@lru_cache(maxsize=4096)
def _spread(gpus: int, nodes: int) -> Allocation:
    """So many GPUs, as evenly as possible over so many nodes."""
    return Allocation.of({f"alone-{node:06d}": range(gpus // nodes + (node < gpus % nodes)) for node in range(nodes)})


@dataclass(frozen=True, slots=True)
class _TableMate:
    """A job beside which another runs: all that matters is what the table calls it."""

    key: Key
    total: float = 1.0

    def key_at(self, progress: float) -> Key:
        return self.key

    def pace(self, setting: Setting) -> Pace:
        raise AssertionError("its key is all that is asked of it")

    def remaining_s(self, progress: float) -> float:
        raise AssertionError("its key is all that is asked of it")


_OTHER = FixedDuration(1.0, 1)
