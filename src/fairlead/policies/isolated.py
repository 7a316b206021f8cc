"""Isolated and proportional shares: the cluster divided among its jobs, whatever they do with it.

Of W GPUs of a type and m jobs, each job's slice is W/m GPUs of that type; a job of s GPUs can use it for the share
(W/m)/s of the time, or not at all if the type has fewer than s GPUs. If its slices of all types add up to more than all
the time, they are cut down to that. These are the baseline of Gavel (OSDI '20) and the yardstick of finish-time
fairness: what a job would have on a cluster of its own that is one m-th of this one.

`proportional` is the normaliser of Gavel's max-min policies: every job has GPUs all the time, spread over the types in
proportion to how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.equivalent_types import owed_where_it_runs
from fairlead.policies.rates import BelievedRates, RateSource
from fairlead.policies.rounds import Owed, next_round, round_options
from fairlead.policies.wait_reason import accepts, open_gpus

_SLICES = ("equal", "proportional")


@dataclass(frozen=True)
class Isolated:
    """Every job as much of each GPU type as of a cluster of its own, in turns."""

    #: What a job is owed: `equal`, the time that an equal part of the GPUs comes to; or `proportional`, all the time,
    #: over the types in proportion to their GPUs.
    slices: str = "equal"
    #: Length of a round, in seconds.
    round_s: float = 360.0
    #: How rounds are kept: `fairlead`, or as in the artifacts of `gavel` and `shockwave`.
    mechanism: str = "fairlead"
    _rates: RateSource = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.slices not in _SLICES:
            raise InvalidSpec(f"isolated: slices is {self.slices!r}; expected {' or '.join(_SLICES)}")
        round_options(self.mechanism, self.round_s)

    @property
    def starvation_free(self) -> bool:
        """Not by the ratio that Gavel goes by: new jobs of few GPUs may pass one of many for ever."""
        return self.mechanism == "fairlead"

    def plan(self, view: Snapshot) -> Plan:
        return next_round(view, lambda: self.owed(view), round_options(self.mechanism, self.round_s))

    def owed(self, view: Snapshot) -> Owed:
        """Share of the time of each job on each GPU type."""
        shares = isolated_shares if self.slices == "equal" else proportional_shares
        owed = shares(list(view.jobs.values()), open_gpus(view))
        owed = owed_where_it_runs(view, owed, self._rates) if self.mechanism == "fairlead" else owed
        return with_too_small(view, owed)


def isolated_shares(jobs: Sequence[Job], gpus: Mapping[str, int]) -> Owed:
    """Of each job, by GPU type: the time that an equal part of the GPUs comes to. A part that it cannot use is lost."""
    return equal_slices([(job,) for job in jobs], gpus)


def equal_slices(groups: Sequence[tuple[Job, ...]], gpus: Mapping[str, int]) -> Owed:
    """The same of groups of jobs that share their GPUs, each as many as its jobs ask for."""
    owed: dict[tuple[tuple[str, ...], str], float] = {}
    for group in groups:
        slices = {
            gpu_type: count / len(groups) / group[0].spec.gpus
            for gpu_type, count in gpus.items()
            if all(holds(job, gpu_type, count) for job in group)
        }
        whole = max(1.0, sum(slices.values()))
        ids = tuple(job.id for job in group)
        owed |= {(ids, gpu_type): share / whole for gpu_type, share in slices.items()}
    return owed


def proportional_shares(jobs: Sequence[Job], gpus: Mapping[str, int]) -> Owed:
    """Of each job, by GPU type: all the time, in proportion to the GPUs of the types on which it can run."""
    owed: dict[tuple[tuple[str, ...], str], float] = {}
    for job in jobs:
        usable = {t: count for t, count in gpus.items() if holds(job, t, count)}
        total = sum(usable.values())
        owed |= {((job.id,), gpu_type): count / total for gpu_type, count in usable.items()}
    return owed


def holds(job: Job, gpu_type: str, count: int) -> bool:
    """Whether a job can run on so many GPUs of a type."""
    return accepts(job, gpu_type) and job.spec.gpus <= count


def with_too_small(view: Snapshot, owed: Owed) -> Owed:
    """The same with 0 for each type that a job accepts and that has too few GPUs: it is owed nothing there, for now."""
    gpus = open_gpus(view)
    nothing: dict[tuple[tuple[str, ...], str], float] = {
        ((job.id,), gpu_type): 0.0
        for job in view.jobs.values()
        for gpu_type, count in gpus.items()
        if accepts(job, gpu_type) and not holds(job, gpu_type, count)
    }
    return {**nothing, **owed}
