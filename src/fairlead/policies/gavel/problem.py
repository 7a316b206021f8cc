"""What Gavel's policies decide on, as arrays; jobs that are alike are one class.

A share x[j, t] is the part of wall time that job j holds its GPUs on type t. Jobs may share GPUs in pairs of equal
size: a pair has shares of its own, and counts for both. The effective throughput of a job is

    throughput_j(x) = sum over t of rate[j, t] (x[j, t] + sum over pairs p with j of factor[p, t, j] x[p, t])

Jobs with equal rates, GPUs, weight and so on have equal shares in the answer by construction: they form a class, and
the program has variables for classes only. 1,000 jobs of 26 models are a program of 26 rows and not of 1,000. Members
of two classes that run in pairs are matched in order of arrival.

Legend: J jobs, T GPU types, P pairs that may share GPUs, K classes of jobs, M the two members of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Rates and amounts that agree to so many digits count as equal when classes are formed.
DIGITS = 12


def _empty_floats() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True)
class SharingProblem:
    """Jobs and GPU types. Fields that an objective does not read may be left out."""

    #: Samples per second of each job on its GPUs, by type; 0 where it cannot run.
    rate_JT: Floats
    gpus_J: Ints
    capacity_T: Ints
    weight_J: Floats = field(default_factory=_empty_floats)
    #: Samples left, seconds since arrival, and seconds that isolated running would have taken for what is done already.
    left_J: Floats = field(default_factory=_empty_floats)
    elapsed_J: Floats = field(default_factory=_empty_floats)
    isolated_s_J: Floats = field(default_factory=_empty_floats)
    #: Seconds from now; inf where there is none.
    deadline_J: Floats = field(default_factory=_empty_floats)
    #: Number of the entity (user, team) that each job counts to.
    entity_J: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Price of a GPU of each type per hour.
    price_T: Floats = field(default_factory=_empty_floats)
    #: The type on which each job runs now; -1 if it does not.
    held_J: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: What a job is beyond these numbers: jobs that differ in it are never taken as alike (which model, for pairs).
    kind_J: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Throughput of each job with all GPUs by turns, and with an equal part of them; empty = those of this problem.
    mean_rate_J: Floats = field(default_factory=_empty_floats)
    isolated_rate_J: Floats = field(default_factory=_empty_floats)
    #: Which two kinds may share GPUs (the smaller number first), of how many GPUs each, and what each then has of its
    #: rate alone, 0 to 1, by type and member.
    pairs: Mapping[tuple[int, int, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs, types = self.rate_JT.shape
        defaults: dict[str, tuple[int, float, type]] = {
            "weight_J": (jobs, 1.0, np.float64),
            "left_J": (jobs, 1.0, np.float64),
            "elapsed_J": (jobs, 0.0, np.float64),
            "isolated_s_J": (jobs, 0.0, np.float64),
            "deadline_J": (jobs, np.inf, np.float64),
            "entity_J": (jobs, 0, np.int64),
            "price_T": (types, 1.0, np.float64),
            "held_J": (jobs, -1, np.int64),
            "kind_J": (jobs, 0, np.int64),
        }
        for name, (length, value, kind) in defaults.items():
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(length, value, dtype=kind))
            if len(getattr(self, name)) != length:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries; expected {length}")
        if not (np.isfinite(self.rate_JT).all() and (self.rate_JT >= 0.0).all()):
            raise ValueError("rate_JT has entries that are negative or not finite")
        if not (np.isfinite(self.weight_J).all() and (self.weight_J > 0.0).all()):
            raise ValueError("weight_J has entries that are not positive and finite")

    @property
    def usable(self) -> Flags:
        """Where each job can run at all."""
        return np.asarray((self.rate_JT > 0.0) & (self.gpus_J[:, None] <= self.capacity_T[None, :]))

    @property
    def best(self) -> Floats:
        """The rate of each job on its fastest type, alone; 0 if it can run nowhere."""
        return np.asarray(np.where(self.usable, self.rate_JT, 0.0).max(axis=1, initial=0.0))

    def only(self, rows_J: Ints, capacity_T: Ints | None = None) -> SharingProblem:
        """The same for some of the jobs."""
        per_job = ("rate_JT", "gpus_J", "weight_J", "left_J", "elapsed_J", "isolated_s_J", "deadline_J", "entity_J")
        chosen = {name: getattr(self, name)[rows_J] for name in (*per_job, "held_J", "kind_J")}
        for name in ("mean_rate_J", "isolated_rate_J"):
            if len(getattr(self, name)):
                chosen[name] = getattr(self, name)[rows_J]
        return replace(self, **chosen, capacity_T=self.capacity_T if capacity_T is None else capacity_T)


def agnostic(problem: SharingProblem) -> SharingProblem:
    """The problem as if all GPU types were equal: every job has its mean rate wherever it can run."""
    total = max(1.0, float(problem.capacity_T.sum()))
    usable_JT = problem.usable
    weight_JT = usable_JT * (problem.capacity_T / total)
    mean_J = (problem.rate_JT * weight_JT).sum(axis=1) / np.maximum(weight_JT.sum(axis=1), 1e-300)
    pairs = {}
    for (one, other, gpus), factor_TM in problem.pairs.items():
        runs_T = (factor_TM > 0.0).all(axis=1) & (problem.capacity_T >= gpus)
        if runs_T.any():
            mean_M = np.average(factor_TM[runs_T], axis=0, weights=problem.capacity_T[runs_T])
            pairs[one, other, gpus] = np.where(runs_T[:, None], mean_M, 0.0)
    return replace(problem, rate_JT=np.where(usable_JT, mean_J[:, None], 0.0), pairs=pairs)


class Concession(StrEnum):
    """What an answer had to give up, in the order in which it is given up. Reasons and the memory of a plan name it."""

    UNSETTLED = "unsettled"
    DEADLINES = "deadlines"
    NO_WELFARE = "no-welfare"
    ISOLATED = "isolated"

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Concession.UNSETTLED: "other shares are as good, and the numbers are too uneven to choose those with the fewest "
    "changes: these are the solver's choice",
    Concession.DEADLINES: "not all deadlines can be kept: the latest were given up",
    Concession.NO_WELFARE: "the numbers are too uneven for Nash welfare: shares are by max-min fairness instead",
    Concession.ISOLATED: "the numbers are too uneven for the objective: all jobs are owed equal parts of each GPU type",
}


@dataclass(frozen=True)
class Shares:
    """The answer: shares of wall time of each job alone, and of each pair of jobs, by GPU type."""

    alone_JT: Floats
    #: (job, job): shares by type. Both jobs hold the same GPUs meanwhile.
    pairs: Mapping[tuple[int, int], Floats] = field(default_factory=dict)
    #: What the policy maximises or minimises, and what no allocation can better.
    objective: float = 0.0
    bound: float = 0.0
    #: What had to be given up.
    notes: tuple[Concession, ...] = ()
    #: Jobs whose deadline was given up.
    dropped: tuple[int, ...] = ()
    #: How many programs it took.
    programs: int = 0
    #: What limits the objective: a price for a sample per second of each job, and for a GPU of each type. Empty where
    #: the objective has none.
    price_J: Floats = field(default_factory=_empty_floats)
    price_T: Floats = field(default_factory=_empty_floats)

    @property
    def gap(self) -> float:
        """How far from the optimum at most, as a share of it; NaN if there is no bound."""
        missing = abs(self.bound - self.objective)
        return missing / max(abs(self.bound), abs(self.objective), 1e-300)

    def totals(self) -> Floats:
        """Each job's share of wall time, wherever and with whom."""
        total_J = self.alone_JT.sum(axis=1)
        for (one, other), share_T in self.pairs.items():
            total_J[one] += share_T.sum()
            total_J[other] += share_T.sum()
        return np.asarray(total_J)

    def used(self, gpus_J: Ints) -> Floats:
        """GPUs in use, on average, by type."""
        used_T = gpus_J @ self.alone_JT
        for (one, _), share_T in self.pairs.items():
            used_T = used_T + gpus_J[one] * share_T
        return np.asarray(used_T)


def throughput(problem: SharingProblem, shares: Shares) -> Floats:
    """Samples per second of each job under these shares."""
    found_J = (problem.rate_JT * shares.alone_JT).sum(axis=1)
    for (one, other), share_T in shares.pairs.items():
        factor_TM = pair_factors(problem, one, other)
        found_J[one] += (problem.rate_JT[one] * factor_TM[:, 0]) @ share_T
        found_J[other] += (problem.rate_JT[other] * factor_TM[:, 1]) @ share_T
    return np.asarray(found_J)


def pair_factors(problem: SharingProblem, one: int, other: int) -> Floats:
    """What two jobs that share GPUs have of their rates alone, by type; the first column is of the first job."""
    kinds = int(problem.kind_J[one]), int(problem.kind_J[other])
    factor_TM = problem.pairs[min(kinds), max(kinds), int(problem.gpus_J[one])]
    return factor_TM if kinds[0] <= kinds[1] else factor_TM[:, ::-1]
