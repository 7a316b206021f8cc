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

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import Batch
from fairlead.goodput.throughput import ThroughputParams

Floats = NDArray[np.float64]

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
    one_P, many_P = _goodput(models, job_P, gpus_P)
    many_P[gpus_P < 2] = 0.0
    found = []
    end_J = np.cumsum(count_J)
    for end, count in zip(end_J.tolist(), most, strict=True):
        found.append(Curve(np.append(0.0, one_P[end - count : end]), np.append(0.0, many_P[end - count : end])))
    return found


def _goodput(models: Sequence[Model], job_P: NDArray[np.int64], gpus_P: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(on one node, on several) for each pair."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = (
        np.array([getattr(model.params, name) for model in models])[job_P, None]
        for name in ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
    )
    phi = np.array([model.noise_scale for model in models])[job_P, None]
    M0 = np.array([model.batch.initial for model in models], dtype=np.float64)[job_P, None]
    K = gpus_P[:, None].astype(np.float64)
    bounds = _Bounds.of([model.batch for model in models], job_P, gpus_P)
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


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What L may be for each pair, each [P, 1]; the same feasible range as in `tune.candidates`."""

    least: Floats
    most: Floats
    floor: Floats
    cap: Floats
    #: Beyond this one GPU takes a batch in two micro-steps: several gradients tell the noise from the signal.
    single: Floats
    possible: NDArray[np.bool_]

    @staticmethod
    def of(batches: Sequence[Batch], job_P: NDArray[np.int64], gpus_P: NDArray[np.int64]) -> _Bounds:
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
        low, high, floor, cap, single = (column[:, None].astype(np.float64) for column in columns)
        return _Bounds(low, high, floor, cap, single, (least <= most)[:, None])

    def search(self, goodput: Callable[[Floats, Floats], Floats]) -> Floats:
        """The highest goodput: on a grid over the whole range, and on another one around its best point."""
        L = self._with_edges(self.least, self.most, GRID)
        first = goodput(*self._split(L))
        rows, best = np.arange(len(L)), first.argmax(axis=1)
        low, high = L[rows, np.maximum(best - 1, 0)], L[rows, np.minimum(best + 1, L.shape[1] - 1)]
        near = self._with_edges(low[:, None], high[:, None], FINER)
        return np.asarray(np.maximum(first.max(axis=1), goodput(*self._split(near)).max(axis=1)))

    def _with_edges(self, low: Floats, high: Floats, steps: int) -> Floats:
        """From low to high in geometric steps, ascending. Goodput jumps where a sample more needs a micro-step more: so
        the multiples of the largest per-GPU batch around each step are there too, where there are any."""
        L = np.rint(low * (high / low) ** np.linspace(0.0, 1.0, steps))
        edge = np.clip(self.cap, low, high)
        parts = [L, edge, np.minimum(edge + 1.0, high)]
        if (high > self.cap).any():
            parts += [np.clip(around(L / self.cap) * self.cap, low, high) for around in (np.floor, np.ceil)]
        return np.sort(np.concatenate(parts, axis=1), axis=1)

    def _split(self, L: Floats) -> tuple[Floats, Floats]:
        """(m, s): as few micro-steps as possible."""
        s = np.ceil(L / self.cap) - 1.0
        s = np.where(self.single < L, np.maximum(s, 1.0), s)
        return np.floor(L / (s + 1.0)), s
