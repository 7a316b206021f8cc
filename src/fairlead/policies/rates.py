"""How fast any job would be in any configuration, and how much work it has left, with how that is known.

    Rates = BelievedRates().rates(view, jobs, configurations)        one row per job, one column per configuration

Rates are samples per second, in a unit that is the same for all configurations of a job and for its work left, so that
left / rate is a time. A job that reports no steps counts shares of its work instead; one that reports nothing at all,
shares of what its user promised. A job that reports its noise scale counts samples by what they are worth (goodput).

A rate is, the best evidence first: measured by the job itself; by the throughput model of its own measurements on this
GPU type; what other jobs of its model measured, or its own on another GPU type times how much faster that one is for
its model, or for models like it (`relative_speeds`); guessed from what nodes and users state.

Legend: J jobs, C configurations, B distinct configurations without partners.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.snapshot import Snapshot, StepOracle
from fairlead.core.types import Job
from fairlead.policies.job_speeds import NOTHING_KNOWN, JobSpeeds, Place, SpeedBook
from fairlead.policies.relative_speeds import Evidence, Known, PackedAt, RelativeSpeeds, Shares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

__all__ = ["BelievedRates", "Configuration", "Evidence", "OracleRates", "RateSource", "Rates"]

#: A job that has not ended has at least this share of its work left.
LITTLE = 1e-3


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where a job might run: GPUs of one type on so many nodes, and beside which jobs."""

    gpu_type: str
    gpus: int
    nodes: int = 1
    #: What the jobs on the same GPUs train, as `RateSource.partner` names it; empty = alone. Kept sorted.
    partners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "partners", tuple(sorted(self.partners)))

    @property
    def place(self) -> Place:
        return self.gpu_type, self.nodes, self.gpus


class Rates(NamedTuple):
    """See the module. A rate of 0 means that the job cannot run there, or that its user did not allow it."""

    rate_JC: Floats
    #: Of `Evidence`.
    evidence_JC: Ints
    #: Work left in the unit of the rates; infinite where nothing tells.
    left_J: Floats
    left_evidence_J: Ints
    #: Samples of a step at the batch that the job has now, so that rate / batch is steps per second; 1 where the unit
    #: is not samples.
    batch_J: Floats


class RateSource(Protocol):
    """What a policy goes by: beliefs, or the truth."""

    def rates(self, view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
        """Of jobs of the snapshot."""

    def partner(self, view: Snapshot, job: Job) -> str:
        """The name of a job in `Configuration.partners`; jobs of one name are alike to those beside them."""


class BelievedRates:
    """What reports have taught, of the job itself and of others. Remembers what it computed, and nothing else."""

    def __init__(self) -> None:
        self._relative = RelativeSpeeds()
        self._book = SpeedBook()
        self._rows: dict[str, tuple[JobSpeeds, tuple[Place, ...], Floats, Ints]] = {}
        self._shares: tuple[tuple[Shares, Sequence[str], Sequence[PackedAt]], tuple[Floats, Ints]] | None = None

    def partner(self, view: Snapshot, job: Job) -> str:
        """The model that it trains."""
        return job.spec.labels.get(MODEL, "")

    def rates(self, view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
        row = {place: at for at, place in enumerate(dict.fromkeys(each.place for each in configurations))}
        places, place_C = tuple(row), np.array([row[each.place] for each in configurations], dtype=np.int64)
        speeds = self._book.open(view, jobs, places, self._relative.types(view))
        rate_JB, evidence_JB = self._alone(jobs, speeds, places)
        rate_JC, evidence_JC = rate_JB[:, place_C], evidence_JB[:, place_C]
        shares = self._relative.shares(view)
        if columns := [at for at, each in enumerate(configurations) if each.partners]:
            self._pack(jobs, [configurations[at] for at in columns], shares, columns, (rate_JC, evidence_JC))
            _put_measured(jobs, speeds, configurations, (rate_JC, evidence_JC))
        left = [_left(view, job, known, shares) for job, known in zip(jobs, speeds, strict=True)]
        if len(self._rows) > 2 * len(view.jobs) + 64:
            self._rows = {name: row for name, row in self._rows.items() if name in view.jobs}
        return Rates(
            rate_JC,
            evidence_JC,
            np.array([work for work, _ in left], dtype=np.float64),
            np.array([evidence for _, evidence in left], dtype=np.int64),
            np.array([known.batch for known in speeds], dtype=np.float64),
        )

    def _alone(
        self, jobs: Sequence[Job], speeds: Sequence[JobSpeeds], places: tuple[Place, ...]
    ) -> tuple[Floats, Ints]:
        rate_JB, evidence_JB = np.zeros((len(jobs), len(places))), np.zeros((len(jobs), len(places)), dtype=np.int64)
        for at, (job, known) in enumerate(zip(jobs, speeds, strict=True)):
            row = self._rows.get(job.spec.id)
            if row is None or row[0] is not known or row[1] != places:
                found = [known.at(place) for place in places]
                rate_B = np.array([rate for rate, _ in found])
                row = known, places, rate_B, np.array([evidence for _, evidence in found], dtype=np.int64)
                self._rows[job.spec.id] = row
            rate_JB[at], evidence_JB[at] = row[2], row[3]
        return rate_JB, evidence_JB

    def _pack(
        self,
        jobs: Sequence[Job],
        packed: Sequence[Configuration],
        shares: Shares,
        columns: Sequence[int],
        found: tuple[Floats, Ints],
    ) -> None:
        """Turn the rates alone in some columns into those beside partners, in place."""
        rate_JC, evidence_JC = found
        models = [job.spec.labels.get(MODEL, "") for job in jobs]
        row = {model: at for at, model in enumerate(dict.fromkeys(models))}
        key = shares, tuple(row), tuple((each.gpu_type, each.gpus, each.partners) for each in packed)
        if self._shares is None or self._shares[0][0] is not shares or self._shares[0][1:] != key[1:]:
            self._shares = key, shares.table(*key[1:])
        share_MP, evidence_MP = self._shares[1]
        model_J = np.array([row[model] for model in models], dtype=np.int64)
        rate_JC[:, columns] *= share_MP[model_J]
        evidence_JC[:, columns] = np.minimum(evidence_JC[:, columns], evidence_MP[model_J])


def _put_measured(
    jobs: Sequence[Job],
    speeds: Sequence[JobSpeeds],
    configurations: Sequence[Configuration],
    found: tuple[Floats, Ints],
) -> None:
    """What jobs have measured themselves beside others counts more than what others have."""
    rate_JC, evidence_JC = found
    column = {(*each.place, each.partners): at for at, each in enumerate(configurations)}
    for row, (job, known) in enumerate(zip(jobs, speeds, strict=True)):
        if job.belief.packed or job.belief.speeds:
            for place, measured in known.packed(job).items():
                at = column.get(place, -1)
                if at >= 0 and rate_JC[row, at] > 0.0:
                    rate_JC[row, at], evidence_JC[row, at] = measured


def _left(view: Snapshot, job: Job, speeds: JobSpeeds, shares: Shares) -> Known:
    """What was left at its last report, less what it must have done since."""
    belief, model, now = job.belief, job.spec.labels.get(MODEL, ""), view.now
    whole, evidence = speeds.work(job, view.lore.get(model, NOTHING_KNOWN))
    if math.isinf(whole):
        return Known(whole, evidence)
    ran_s = job.run_at(now) - belief.reported_run_s
    left = whole * (1.0 - belief.progress)
    if ran_s > 0.0 and belief.reported_at is None:  # all it ever did, perhaps on several types
        served_s = job.served_at(now)
        left -= math.fsum(
            seconds * speeds.at(speeds.offer.place(name, job.allocation.total or job.spec.gpus)).value
            for name, seconds in served_s.items()
        )
    elif ran_s > 0.0:
        gpus = job.allocation.total or job.spec.gpus
        nodes = len(job.allocation.shares) or speeds.offer.place(job.gpu_type, gpus)[1]
        place = job.gpu_type, nodes, gpus
        rate = speeds.at(place).value
        if job.partners:
            own = speeds.packed(job).get((*place, job.partners))
            rate = rate * shares.share(model, job.gpu_type, gpus, job.partners).value if own is None else own.value
        left -= ran_s * rate
    return Known(max(left, whole * min(1.0 - belief.progress, LITTLE)), evidence)


class OracleRates:
    """The truth, as `Snapshot.step_oracle` tells it: for policies that declare themselves oracles, and no others."""

    def partner(self, view: Snapshot, job: Job) -> str:
        """What it runs as in the simulator's tables."""
        return "" if _knows_times_only(view) else _oracle(view).workload(job.spec.id)

    def rates(self, view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
        if _knows_times_only(view):
            return _by_times(view, jobs, configurations)
        oracle = _oracle(view)
        asked = tuple((each.gpu_type, each.nodes, each.gpus, each.partners) for each in configurations)
        told = [oracle.rates(job.spec.id, asked) for job in jobs]
        rate_JC = np.array([each.rate_C for each in told], dtype=np.float64).reshape(len(jobs), len(asked))
        sure = int(Evidence.MEASURED)
        return Rates(
            rate_JC,
            np.full(rate_JC.shape, sure, dtype=np.int64),
            np.array([each.left for each in told], dtype=np.float64),
            np.full(len(jobs), sure, dtype=np.int64),
            np.array([each.batch for each in told], dtype=np.float64),
        )


def _knows_times_only(view: Snapshot) -> bool:
    return view.step_oracle is None and view.oracle is not None


def _by_times(view: Snapshot, jobs: Sequence[Job], configurations: Sequence[Configuration]) -> Rates:
    """Where an oracle knows only how long jobs still take, all GPU types are as fast, and no jobs can share GPUs."""
    assert view.oracle is not None
    rate_JC = np.tile([0.0 if each.partners else 1.0 for each in configurations], (len(jobs), 1))
    sure, left_J = int(Evidence.MEASURED), np.array([view.oracle(job.id) for job in jobs], dtype=np.float64)
    sure_JC = np.full(rate_JC.shape, sure, dtype=np.int64)
    return Rates(rate_JC, sure_JC, left_J, np.full(len(jobs), sure, dtype=np.int64), np.ones(len(jobs)))


def _oracle(view: Snapshot) -> StepOracle:
    if view.step_oracle is None:
        raise InvalidSpec(
            "a policy asks for true rates, which only the simulator knows; let it declare needs = {oracle}"
        )
    return view.step_oracle
