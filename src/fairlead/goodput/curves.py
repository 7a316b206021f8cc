"""Best goodput for every number of GPUs, for many jobs in one vectorised call.

In the model only two things about a placement matter: how many GPUs, and whether they are on one node or on several.
So a job's whole table over (nodes, GPUs) is two curves.

For each number of GPUs the samples per GPU and update, L = m (s + 1), are tried in GRID geometric steps over the
feasible range, and in FINER ones around the best of these. 1/goodput is a generalised posynomial of m, so log-convex in
log m, and flat near its minimum: what is found is within 2 % of the best whole number, and nearly always within 0.2 %
(a test holds it to that; see `tune.best_batch` for that number).

Legend: P pairs of a job and a number of GPUs, C candidates for L, K numbers of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import Batch
from fairlead.goodput.throughput import ThroughputParams

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

GRID, FINER = 14, 8


@dataclass(frozen=True, slots=True)
class Model:
    """All that goodput depends on, for one job and one GPU type."""

    params: ThroughputParams
    noise_scale: float
    batch: Batch


@dataclass(frozen=True, slots=True)
class Curve:
    """Goodput in samples per second by number of GPUs, from 0 up; 0 where the batch cannot be split so."""

    #: On one node, as if it were large enough.
    one_K: Floats
    #: On several nodes; 0 for fewer than two GPUs.
    many_K: Floats


def curves(models: Sequence[Model], most: Sequence[int]) -> list[Curve]:
    """For each model its curve from 0 to `most` GPUs."""
    if not models:
        return []
    count_J = np.array(most, dtype=np.int64)
    job_P = np.repeat(np.arange(len(models)), count_J)
    gpus_P = np.concatenate([np.arange(1, count + 1) for count in most])
    bounds = _Bounds.of([model.batch for model in models], job_P, gpus_P)
    one_P, many_P = np.zeros((2, len(job_P)))
    # Most batches fit into memory: it pays to search those alone that have no edges.
    edged_P = bounds.edged()
    for some_P in (~edged_P, edged_P):
        if some_P.any():
            one_P[some_P], many_P[some_P] = _goodput(models, job_P[some_P], gpus_P[some_P], bounds.at(some_P))
    many_P[gpus_P < 2] = 0.0
    found = []
    end_J = np.cumsum(count_J)
    for end, count in zip(end_J.tolist(), most, strict=True):
        found.append(Curve(np.append(0.0, one_P[end - count : end]), np.append(0.0, many_P[end - count : end])))
    return found


def _goodput(models: Sequence[Model], job_P: Ints, gpus_P: Ints, bounds: _Bounds) -> tuple[Floats, Floats]:
    """(on one node, on several) for each pair."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = (
        np.array([getattr(model.params, name) for model in models])[job_P, None]
        for name in ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
    )
    phi = np.array([model.noise_scale for model in models])[job_P, None]
    M0 = np.array([model.batch.initial for model in models], dtype=np.float64)[job_P, None]
    K = gpus_P[:, None].astype(np.float64)
    further = np.maximum(K - 2.0, 0.0)
    best = []
    for sync in (np.where(K > 1, alpha_r + beta_r * further, 0.0), alpha_n + beta_n * further):

        def goodput(m: Floats, s: Floats, sync: Floats = sync) -> Floats:
            M = K * m * (s + 1.0)
            grad = alpha_c + beta_c * m  # T_grad
            useful = M * np.minimum(1.0, (phi + M0) / (phi + M))  # samples an update is worth
            larger = np.maximum(grad, sync)
            opt = larger * (1.0 + (np.minimum(grad, sync) / larger) ** gamma) ** (1.0 / gamma)  # T_opt
            return np.where(m >= bounds.floor, useful / (s * grad + opt), 0.0) * bounds.possible

        best.append(bounds.search(goodput))
    return best[0], best[1]


class _Bounds(NamedTuple):
    """What L may be for each pair, each [P, 1]; the same feasible range as in `tune.candidates`."""

    least: Floats
    most: Floats
    floor: Floats
    cap: Floats
    #: Beyond this one GPU takes a batch in two micro-steps: several gradients tell the noise from the signal.
    single: Floats
    #: 1, or 0 if there are too many GPUs for any batch.
    possible: Floats

    @staticmethod
    def of(batches: Sequence[Batch], job_P: Ints, gpus_P: Ints) -> _Bounds:
        no_cap = 1 << 40
        initial = np.array([batch.initial for batch in batches])[job_P]
        floor = np.array([batch.min_per_gpu for batch in batches])[job_P]
        cap = np.array([batch.max_per_gpu or no_cap for batch in batches])[job_P]
        total = np.array([batch.max_total or 0 for batch in batches])[job_P]
        unstated = np.where(cap < no_cap, np.maximum(initial, cap * gpus_P), initial)
        most = np.where(total > 0, total, unstated) // gpus_P
        least = np.maximum(floor, np.minimum(-(-initial // gpus_P), most))
        single = np.where(gpus_P == 1, initial, no_cap)
        columns = (np.maximum(least, 1), np.maximum(most, np.maximum(least, 1)), floor, cap, single)
        return _Bounds(*(column[:, None].astype(np.float64) for column in (*columns, least <= most)))

    def edged(self) -> Flags:
        """Where some batches need more micro-steps than others."""
        return np.asarray((self.most > np.minimum(self.cap, self.single))[:, 0])

    def at(self, some_P: Flags) -> _Bounds:
        return _Bounds(*(column[some_P] for column in self))

    def search(self, goodput: Callable[[Floats, Floats], Floats]) -> Floats:
        """The highest goodput: on a grid over the whole range, and on another one around its best point."""
        edged = bool(self.edged().any())
        L = self._candidates(self.least, self.most, GRID, edged=edged)
        first = goodput(*self._split(L))
        best = L[np.arange(len(L)), first.argmax(axis=1)][:, None]
        step = (self.most / self.least) ** (1.0 / (GRID - 1))
        low, high = np.maximum(self.least, best / step), np.minimum(self.most, best * step)
        near = self._candidates(low, high, FINER, edged=edged)
        return np.asarray(np.maximum(first.max(axis=1), goodput(*self._split(near)).max(axis=1)))

    def _candidates(self, low: Floats, high: Floats, steps: int, *, edged: bool) -> Floats:
        """From low to high in geometric steps, and where goodput jumps because a sample more needs a micro-step more:
        the multiples of the largest and smallest per-GPU batch, and where one GPU begins to take two micro-steps."""
        L = np.rint(low * (high / low) ** np.linspace(0.0, 1.0, steps))
        if edged:
            micro = self._split(L)[1] + 1.0
            edges = [(micro - 1.0) * self.cap, micro * self.cap, micro * self.floor]
            L = np.concatenate([L, *edges, self.cap, self.cap + 1.0, self.single], axis=1)
        return np.asarray(np.clip(L, np.ceil(low), np.floor(high)))

    def _split(self, L: Floats) -> tuple[Floats, Floats]:
        """(m, s): as few micro-steps as possible."""
        s = np.ceil(L / self.cap) - 1.0
        s = np.where(self.single < L, np.maximum(s, 1.0), s)
        return np.floor(L / (s + 1.0)), s
