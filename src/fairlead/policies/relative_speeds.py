"""What is known of models, as ratios: how fast each is on one GPU type against another, and beside other models.

Both come from what the jobs of the models have measured (`Snapshot.lore`). Where a model was not measured, it is
matched with those that were, by completing the matrix of logarithms (`matrix_completion`): models x GPU types, and
models x (GPU type, partner). What is unmeasured follows the nodes' stated speeds (`Node.speed`), and `PACKED_SHARE`.

Legend: M models, T GPU types, P pairs of a GPU type and one partner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Belief, Observation, PackedShare
from fairlead.goodput.evidence import ratios_to
from fairlead.policies.gpu_speeds import stated_speeds
from fairlead.policies.matrix_completion import complete, complete_ratios, usual_ratios

Floats = NDArray[np.float64]

#: Share of its speed alone that a job is taken to keep beside another, where nothing of the kind was ever measured.
PACKED_SHARE = 0.6

#: No job is taken to stand still beside another that it was never seen with.
LEAST_SHARE = 0.01


class Evidence(IntEnum):
    """How a figure is known; more is better."""

    #: By nothing but what users and nodes state, or by assumption.
    GUESSED = 0
    #: By what other jobs have measured, of the same model or of similar ones.
    BORROWED = 1
    #: By a throughput model of the job's own measurements on the same GPU type.
    MODEL = 2
    #: By the job itself, in just this configuration (or by the truth, for an oracle).
    MEASURED = 3


#: GPU type, GPUs, partners.
PackedAt = tuple[str, int, tuple[str, ...]]


class Known(NamedTuple):
    """A figure, and how it is known."""

    value: float
    evidence: Evidence


class TypeSpeeds(NamedTuple):
    """How fast one model is on each GPU type, next to the others: the same for all models of which nothing is known."""

    gpu_types: tuple[str, ...]
    speed_T: tuple[float, ...]
    #: Pairs of types (by place, the smaller first) that some model was measured on.
    compared: frozenset[tuple[int, int]]

    def ratio(self, gpu_type: str, other: str) -> Known:
        """Speed on the one over speed on the other."""
        if gpu_type == other:
            return Known(1.0, Evidence.BORROWED)
        if gpu_type not in self.gpu_types or other not in self.gpu_types:
            return Known(1.0, Evidence.GUESSED)
        one, two = self.gpu_types.index(gpu_type), self.gpu_types.index(other)
        known = (min(one, two), max(one, two)) in self.compared
        return Known(self.speed_T[one] / self.speed_T[two], Evidence.BORROWED if known else Evidence.GUESSED)

    def speed(self, gpu_type: str) -> float:
        return self.speed_T[self.gpu_types.index(gpu_type)] if gpu_type in self.gpu_types else 1.0


class RelativeSpeeds:
    """Of one snapshot. Remembers what it computed for the last one; the answers do not depend on that."""

    def __init__(self) -> None:
        self._ratios: dict[str, tuple[tuple[Observation, ...], dict[tuple[str, str], float]]] = {}
        self._types: tuple[object, dict[str, TypeSpeeds]] = (None, {})
        self._shares: tuple[object, Shares] = (None, Shares.of({}))

    def types(self, view: Snapshot) -> dict[str, TypeSpeeds]:
        """By model; "" is any model of which nothing was measured. Rounded, so that it changes rarely."""
        gpu_types = tuple(sorted(view.node_columns.gpu_types))
        stated = stated_speeds(view)
        measured = {model: self._measured(model, belief, gpu_types) for model, belief in view.lore.items()}
        for gone in [model for model in self._ratios if model not in view.lore]:
            del self._ratios[gone]
        key = gpu_types, tuple(sorted(stated.items())), measured
        if key != self._types[0]:
            self._types = key, _type_speeds(gpu_types, stated, measured)
        return self._types[1]

    def _measured(self, model: str, belief: Belief, gpu_types: Sequence[str]) -> dict[tuple[str, str], float]:
        """By pair of GPU types that the model was measured on: time of a pass on the second over that on the first."""
        known = self._ratios.get(model)
        if known is None or known[0] != belief.observations:
            seen = {each.gpu_type for each in belief.observations}
            found: dict[tuple[str, str], float] = {}
            for gpu_type in sorted(seen) if len(seen) > 1 else ():
                for other, ratio in ratios_to(gpu_type, belief.observations).items():
                    found[other, gpu_type] = float(f"{ratio:.3g}")
            known = self._ratios[model] = belief.observations, found
        return {pair: ratio for pair, ratio in known[1].items() if pair[0] in gpu_types and pair[1] in gpu_types}

    def shares(self, view: Snapshot) -> Shares:
        """What models keep of their speed beside others."""
        told = {model: belief.shares for model, belief in view.lore.items() if belief.shares}
        if told != self._shares[0]:
            self._shares = told, Shares.of(told)
        return self._shares[1]


def _type_speeds(
    gpu_types: tuple[str, ...], stated: Mapping[str, float], measured: Mapping[str, Mapping[tuple[str, str], float]]
) -> dict[str, TypeSpeeds]:
    """Residuals from what nodes state are completed, so that what was never measured is as stated."""
    place = {name: at for at, name in enumerate(gpu_types)}
    usual = math.fsum(math.log(speed) for speed in stated.values()) / len(stated) if stated else 0.0
    stated_T = np.array([math.log(stated[name]) if name in stated else usual for name in gpu_types])
    models = sorted(model for model, ratios in measured.items() if ratios)
    log_MT = np.full((len(models), len(gpu_types)), np.nan)
    compared: set[tuple[int, int]] = set()
    for row, model in enumerate(models):
        logs = {pair: math.log(ratio) for pair, ratio in measured[model].items()}
        seen = sorted({name for pair in logs for name in pair})
        for name in seen:  # the mean over all pairs, each judged from both sides: no type is the yardstick
            others = [logs[name, other] - logs[other, name] for other in seen if other != name]
            log_MT[row, place[name]] = math.fsum(others) / (2 * len(seen))
        compared |= {(min(one, two), max(one, two)) for one, two in ((place[a], place[b]) for a, b in logs)}
    rest_MT = log_MT - stated_T[None, :]
    usual_T = usual_ratios(rest_MT) if models else np.zeros(len(gpu_types))
    filled_MT = complete_ratios(rest_MT) if models else rest_MT
    known = frozenset(compared)

    def of(rest_T: Floats) -> TypeSpeeds:
        return TypeSpeeds(gpu_types, tuple(float(f"{speed:.4g}") for speed in np.exp(rest_T + stated_T)), known)

    return {"": of(usual_T)} | {model: of(filled_MT[row]) for row, model in enumerate(models)}


class Shares(NamedTuple):
    """The completed matrix of shares."""

    #: Places of models, and of pairs (GPU type, partner), in the matrix.
    row: Mapping[str, int]
    column: Mapping[tuple[str, str], int]
    #: One more row and column each, for those of which nothing is known.
    share_MP: Floats
    #: Sets of partners of several, and exact numbers of GPUs: as they were measured.
    exact: Mapping[tuple[str, str, int, tuple[str, ...]], float]

    @staticmethod
    def of(told: Mapping[str, Sequence[PackedShare]]) -> Shares:
        row = {model: at for at, model in enumerate(sorted(told))}
        single = [(model, each) for model in row for each in told[model] if len(each.partners) == 1]
        pairs = sorted({(each.gpu_type, each.partners[0]) for _, each in single})
        column = {pair: at for at, pair in enumerate(pairs)}
        sum_MP, count_MP = np.zeros((2, len(row) + 1, len(column) + 1))
        for model, each in single:
            at = row[model], column[each.gpu_type, each.partners[0]]
            sum_MP[at] += math.log(min(1.0, max(LEAST_SHARE, each.share)))
            count_MP[at] += 1
        with np.errstate(invalid="ignore"):
            log_MP = np.where(count_MP > 0, sum_MP / count_MP, np.nan)
        filled_MP = complete(log_MP) if single else np.full_like(log_MP, math.log(PACKED_SHARE))
        share_MP = np.exp(np.clip(filled_MP, math.log(LEAST_SHARE), 0.0))
        exact = {
            (model, each.gpu_type, each.gpus, each.partners): min(1.0, each.share)
            for model in row
            for each in told[model]
        }
        return Shares(row, column, share_MP, exact)

    def table(self, models: Sequence[str], packed: Sequence[PackedAt]) -> tuple[Floats, NDArray[np.int64]]:
        """`share` of every model in every packed configuration, and its evidence."""
        known = [[self.share(model, *each) for each in packed] for model in models]
        shape = len(models), len(packed)
        values = np.array([[each.value for each in row] for row in known], dtype=np.float64).reshape(shape)
        return values, np.array([[each.evidence for each in row] for row in known], dtype=np.int64).reshape(shape)

    def share(self, model: str, gpu_type: str, gpus: int, partners: tuple[str, ...]) -> Known:
        """What a job of the model keeps of its speed alone; beside several jobs, the product of all."""
        known = self.exact.get((model, gpu_type, gpus, partners))
        if known is not None:
            return Known(known, Evidence.BORROWED)
        at = self.row.get(model, -1)
        share = math.prod(float(self.share_MP[at, self.column.get((gpu_type, one), -1)]) for one in partners)
        return Known(share, Evidence.BORROWED if self.column else Evidence.GUESSED)
