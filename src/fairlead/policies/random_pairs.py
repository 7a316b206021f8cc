"""Pairs drawn at random: the stand-in for Gandiva (Xiao et al., OSDI '18) in the published simulations of Gavel.

While all jobs fit, each has GPUs of its own. Once they ask for more GPUs than there are, jobs of equal size share GPUs
in pairs, which are drawn at random and not chosen: a pair stays together while both live and get more done together
than by turns, and else its jobs are drawn anew. Every pair, and every job that found no partner, is owed the same part
of the cluster, spread over all GPU types alike (`isolated`); rounds see to it (`rounds`). No job is moved to the type
that suits it. Gandiva itself tries out packings and migrates by what it measures; this is only its blind first step.

The draw is a function of the seed and the jobs' ids, so that the same snapshot has the same pairs. All memory is
`Plan.memo["random-pairs"]`: the partner of the job that was drawn first.

Legend: T GPU types, M the two members of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.equivalent_types import owed_where_it_runs
from fairlead.policies.gavel.inputs import packing_factors
from fairlead.policies.gpu_speeds import draw
from fairlead.policies.isolated import equal_slices
from fairlead.policies.rates import BelievedRates, OracleRates, RateSource
from fairlead.policies.rounds import Group, Owed, next_round, round_options
from fairlead.policies.wait_reason import accepts, open_gpus

#: The key of its memory in `Snapshot.memo`.
MEMO = "random-pairs"

#: What two jobs get done together, where each of them alone gets 1 done.
Together = Callable[[Job, Job], float]


@dataclass(frozen=True)
class RandomPairs:
    """Once jobs ask for more GPUs than there are, they share them in pairs drawn at random; all have equal parts."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PACKING})

    #: Of the draw.
    seed: int = 0
    #: What two jobs must get done together, on average over the GPU types, where each of them alone gets 1 done.
    least: float = 1.0
    #: Length of a round, in seconds.
    round_s: float = 360.0
    #: How rounds are kept: `fairlead`, or as in the artifacts of `gavel` and `shockwave`.
    mechanism: str = "fairlead"
    _rates: RateSource = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.least < math.inf:
            raise InvalidSpec(f"random-pairs: least is {self.least}; expected a number of 0 or more, such as 1")
        round_options(self.mechanism, self.round_s)

    @property
    def starvation_free(self) -> bool:
        """Not by the ratio that Gavel goes by: new jobs of few GPUs may pass one of many for ever."""
        return self.mechanism == "fairlead"

    def plan(self, view: Snapshot) -> Plan:
        pairs: dict[str, str] = dict(view.memo.get(MEMO, {}))

        def owed() -> Owed:
            for one, other in list(pairs.items()):
                if one not in view.jobs or other not in view.jobs:
                    del pairs[one]
            if sum(job.spec.gpus for job in view.jobs.values()) <= sum(open_gpus(view).values()):
                return equal_parts(view, [(job_id,) for job_id in view.jobs])
            self._draw(view, pairs)
            return equal_parts(view, groups_of(view, pairs))

        def where_they_run() -> Owed:
            return owed_where_it_runs(view, owed(), self._rates) if self.mechanism == "fairlead" else owed()

        plan = next_round(view, where_they_run, round_options(self.mechanism, self.round_s))
        return replace(plan, memo={**plan.memo, MEMO: pairs})

    def _draw(self, view: Snapshot, pairs: dict[str, str]) -> None:
        """Part the pairs that are not worth it, and pair jobs without a partner, in place."""
        together = _together(view, self._rates)
        for one, other in list(pairs.items()):
            if together(view.jobs[one], view.jobs[other]) < self.least:
                del pairs[one]
        paired = {*pairs, *pairs.values()}
        # What may not be preempted cannot be brought together with another job either.
        single = [job for job in view.jobs.values() if job.id not in paired and job.spec.preemptible]
        single.sort(key=lambda job: (draw(self.seed, job.id, 0), job.id))
        while single:
            first = single.pop(0)
            for job in single:
                if job.spec.gpus == first.spec.gpus and together(first, job) >= self.least:
                    pairs[first.id] = job.id
                    single.remove(job)
                    break


@dataclass(frozen=True)
class RandomPairsOracle(RandomPairs):
    """Random pairs by true speeds: what the published simulations know."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PACKING, Capability.ORACLE})

    _rates: RateSource = field(default_factory=OracleRates, init=False, repr=False, compare=False)


def groups_of(view: Snapshot, pairs: Mapping[str, str]) -> list[Group]:
    """Pairs, and jobs without a partner, in order of arrival of their first job."""
    partner = {**pairs, **{other: one for one, other in pairs.items()}}
    groups = [tuple(sorted({job_id, partner.get(job_id, job_id)})) for job_id in view.jobs]
    return list(dict.fromkeys(groups))


def equal_parts(view: Snapshot, groups: Sequence[Group]) -> Owed:
    """Of each group, by GPU type: the time that an equal part of the GPUs comes to, at most all of it."""
    return equal_slices([tuple(view.jobs[job_id] for job_id in group) for group in groups], open_gpus(view))


def _together(view: Snapshot, source: RateSource) -> Together:
    """On average over the GPU types that both accept; -inf if they cannot run beside each other on one of them."""
    jobs, gpus = list(view.jobs.values()), open_gpus(view)
    gpu_types = list(gpus)
    kinds, factors = packing_factors(view, source, jobs, gpu_types)
    kind_of = {job.id: int(kind) for job, kind in zip(jobs, kinds, strict=True)}

    def together(one: Job, other: Job) -> float:
        low, high = sorted((kind_of[one.id], kind_of[other.id]))
        factor_TM = factors[low, high, one.spec.gpus]
        shared = [
            factor_TM[at]
            for at, gpu_type in enumerate(gpu_types)
            if gpus[gpu_type] >= one.spec.gpus and accepts(one, gpu_type) and accepts(other, gpu_type)
        ]
        if not shared or min(float(factor_M.min()) for factor_M in shared) <= 0.0:
            return -math.inf
        return sum(float(factor_M.sum()) for factor_M in shared) / len(shared)

    return together
