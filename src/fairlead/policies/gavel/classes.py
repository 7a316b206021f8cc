"""Classes of jobs that are alike, the columns of their programs, and the way back to jobs.

A column is a class on a GPU type, or two classes that share GPUs there. Its variable runs from 0 to 1: the share of
every job of the class; for a pair, the share of every job of the smaller class.

Legend: J jobs, K classes, T GPU types, V columns, E memberships (a column of a pair has two).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.problem import DIGITS, SharingProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Classes:
    """The problem with one row per class: `problem` has K jobs, each for `count_K` that are alike."""

    problem: SharingProblem
    count_K: Ints
    #: The class of each job; -1 for one that can run nowhere.
    class_J: Ints
    #: Rate of each class on its fastest type, alone: what throughputs are measured in.
    best_K: Floats
    # -- columns: GPUs that a unit of the column takes, its type, and whether its jobs would have to move there
    type_V: Ints
    gpus_V: Floats
    moves_V: Floats
    single_V: Flags
    # -- memberships: share and relative throughput that each job of the class has of a unit of the column
    column_E: Ints
    class_E: Ints
    share_E: Floats
    speed_E: Floats

    def only(self, keep_K: Flags) -> tuple[Classes, Ints]:
        """Some of the classes, without pairs; and which columns theirs were."""
        kept, column_V = np.flatnonzero(keep_K), np.flatnonzero(keep_K[self.class_of_columns()])
        number_K = np.cumsum(keep_K) - 1
        at_E = np.flatnonzero(keep_K[self.class_E])
        number_V = np.full(len(self.type_V), -1)
        number_V[column_V] = np.arange(len(column_V))
        some = Classes(
            self.problem.only(kept),
            self.count_K[kept],
            np.where((self.class_J >= 0) & keep_K[self.class_J], number_K[self.class_J], -1),
            self.best_K[kept],
            self.type_V[column_V],
            self.gpus_V[column_V],
            self.moves_V[column_V],
            self.single_V[column_V],
            column_E=number_V[self.column_E[at_E]],
            class_E=number_K[self.class_E[at_E]],
            share_E=self.share_E[at_E],
            speed_E=self.speed_E[at_E],
        )
        return some, column_V

    def class_of_columns(self) -> Ints:
        """The class of each column; of a pair, the first."""
        first_V = np.zeros(len(self.type_V), dtype=np.int64)
        first_V[self.column_E[::-1]] = self.class_E[::-1]
        return first_V

    def relative(self, value_V: Floats) -> Floats:
        """Throughput of each class over its best."""
        return np.asarray(
            np.bincount(self.class_E, self.speed_E * value_V[self.column_E], len(self.count_K)), dtype=np.float64
        )

    def total(self, value_V: Floats) -> Floats:
        """Share of wall time of each job of each class."""
        return np.asarray(
            np.bincount(self.class_E, self.share_E * value_V[self.column_E], len(self.count_K)), dtype=np.float64
        )


def classify(problem: SharingProblem, *reads: str) -> Classes:
    """Jobs with equal rates, GPUs, held type and fields that the objective `reads` become one class.

    Classes are in the order in which the first job of each comes.
    """
    usable_J = np.flatnonzero(problem.usable.any(axis=1))
    features = [problem.rate_JT, problem.gpus_J, problem.held_J, *(getattr(problem, name) for name in reads)]
    if problem.pairs:
        features.append(problem.kind_J)
    table_JF = np.column_stack([np.asarray(part, dtype=np.float64) for part in features])[usable_J]
    first, inverse = _distinct(table_JF)
    class_J = np.full(len(problem.gpus_J), -1, dtype=np.int64)
    class_J[usable_J] = inverse
    count_K = np.bincount(inverse, minlength=len(first)).astype(np.int64)
    return _with_columns(problem.only(usable_J[first]), count_K, class_J)


def _distinct(table_JF: Floats) -> tuple[Ints, Ints]:
    """The first row of each kind in order, and which kind each row is. Numbers are compared to `DIGITS` digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where((table_JF == 0.0) | ~np.isfinite(table_JF), 1.0, np.abs(table_JF))
        unit = 10.0 ** (np.floor(np.log10(size)) - DIGITS + 1)
        rounded = np.where(np.isfinite(table_JF), np.round(table_JF / unit) * unit, table_JF)
    by_kind = np.lexsort(rounded.T[::-1])  # stable: of each kind the first row comes first
    begins = np.ones(len(rounded), dtype=bool)
    begins[1:] = (rounded[by_kind[1:]] != rounded[by_kind[:-1]]).any(axis=1)
    first = by_kind[begins]
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    inverse = np.empty(len(rounded), dtype=np.int64)
    inverse[by_kind] = rank[np.cumsum(begins) - 1]
    return np.sort(first), inverse


def _with_columns(problem: SharingProblem, count_K: Ints, class_J: Ints) -> Classes:
    best_K = problem.best
    class_V, type_V = np.nonzero(problem.usable)
    one_P, other_P, type_P, factor_PM = _pairs(problem, count_K)
    pair_PM = np.column_stack([one_P, other_P])
    smaller_P = np.where(one_P == other_P, count_K[one_P] / 2.0, np.minimum(count_K[one_P], count_K[other_P]))
    share_PM = smaller_P[:, None] / count_K[pair_PM]
    rate_PM = problem.rate_JT[pair_PM, type_P[:, None]] * factor_PM
    held_V, held_PM = problem.held_J[class_V], problem.held_J[pair_PM]
    singles, pairs = len(class_V), len(one_P)
    return Classes(
        problem,
        count_K,
        class_J,
        best_K,
        type_V=np.concatenate([type_V, type_P]),
        gpus_V=np.concatenate([(count_K * problem.gpus_J)[class_V], smaller_P * problem.gpus_J[one_P]]),
        moves_V=np.concatenate(
            [(held_V >= 0) & (held_V != type_V), ((held_PM >= 0) & (held_PM != type_P[:, None])).mean(axis=1)]
        ),
        single_V=np.arange(singles + pairs) < singles,
        column_E=np.concatenate([np.arange(singles), np.repeat(np.arange(singles, singles + pairs), 2)]),
        class_E=np.concatenate([class_V, pair_PM.reshape(-1)]),
        share_E=np.concatenate([np.ones(singles), share_PM.reshape(-1)]),
        speed_E=np.concatenate(
            [problem.rate_JT[class_V, type_V] / best_K[class_V], (share_PM * rate_PM / best_K[pair_PM]).reshape(-1)]
        ),
    )


def _pairs(problem: SharingProblem, count_K: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Two classes and a GPU type on which they get more done together than by turns: only these can be of use."""
    by_kind: dict[tuple[int, int], list[int]] = {}
    if not problem.pairs:
        none = np.zeros(0, dtype=np.int64)
        return none, none, none, np.zeros((0, 2))
    for k, (kind, gpus) in enumerate(zip(problem.kind_J.tolist(), problem.gpus_J.tolist(), strict=True)):
        by_kind.setdefault((kind, gpus), []).append(k)
    usable_KT = problem.usable
    found = [(np.zeros(0, dtype=np.int64),) * 3]
    factors = [np.zeros((0, 2))]
    for (one_kind, other_kind, gpus), factor_TM in problem.pairs.items():
        ones, others = by_kind.get((one_kind, gpus), []), by_kind.get((other_kind, gpus), [])
        one_P, other_P = (grid.ravel() for grid in np.meshgrid(ones, others, indexing="ij"))
        if one_kind == other_kind:
            once = (one_P < other_P) | ((one_P == other_P) & (count_K[one_P.astype(np.int64)] >= 2))
            one_P, other_P = one_P[once], other_P[once]
        one_P, other_P = one_P.astype(np.int64), other_P.astype(np.int64)
        for kind in np.flatnonzero((factor_TM > 0.0).all(axis=1) & (factor_TM.sum(axis=1) > 1.0 + 1e-9)).tolist():
            both = usable_KT[one_P, kind] & usable_KT[other_P, kind]
            found.append((one_P[both], other_P[both], np.full(int(both.sum()), kind)))
            factors.append(np.tile(factor_TM[kind], (int(both.sum()), 1)))
    one_P, other_P, type_P = (np.concatenate(part) for part in zip(*found, strict=True))
    return one_P, other_P, type_P, np.concatenate(factors)


def unfold(classes: Classes, value_V: Floats, jobs: int, types: int) -> tuple[Floats, dict[tuple[int, int], Floats]]:
    """Shares of jobs and pairs of jobs out of those of classes."""
    alone_KT = np.zeros((len(classes.count_K), types))
    single_E = classes.single_V[classes.column_E]
    column_E = classes.column_E[single_E]
    alone_KT[classes.class_E[single_E], classes.type_V[column_E]] = value_V[column_E]
    alone_JT = np.zeros((jobs, types))
    runs_J = classes.class_J >= 0
    alone_JT[runs_J] = alone_KT[classes.class_J[runs_J]]
    members = [np.flatnonzero(classes.class_J == k) for k in range(len(classes.count_K))] if not single_E.all() else []
    pairs: dict[tuple[int, int], Floats] = {}
    paired = np.flatnonzero(~single_E)
    for at in paired[::2].tolist():
        column = int(classes.column_E[at])
        one, other = int(classes.class_E[at]), int(classes.class_E[at + 1])
        if value_V[column] <= 0.0:
            continue
        for first, second, share in _matched(members[one], members[other], one == other):
            key = (min(first, second), max(first, second))
            pairs.setdefault(key, np.zeros(types))[classes.type_V[column]] += share * value_V[column]
    return alone_JT, pairs


def _matched(ones: Ints, others: Ints, same: bool) -> list[tuple[int, int, float]]:
    """Pairs of jobs with the share of each, so that all of the smaller class have 1 and all of the other the same.

    Few pairs and not all: members stand side by side on two rods of length 1, or within one class in a ring.
    """
    if same:
        if len(ones) == 2:
            return [(int(ones[0]), int(ones[1]), 1.0)]
        return [(int(one), int(ones[(at + 1) % len(ones)]), 0.5) for at, one in enumerate(ones)]
    most = len(ones) * len(others)
    smaller = min(len(ones), len(others))
    found, at_one, at_other, done = [], 0, 0, 0
    while done < most:  # in units of 1 / most of the rods
        end = min((at_one + 1) * len(others), (at_other + 1) * len(ones))
        found.append((int(ones[at_one]), int(others[at_other]), (end - done) * smaller / most))
        done = end
        at_one += done == (at_one + 1) * len(others)
        at_other += done == (at_other + 1) * len(ones)
    return found
