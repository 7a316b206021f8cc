"""Best goodput for every number of GPUs, for many jobs in one vectorised call.

In the model only two things about a placement matter: how many GPUs, and whether they are on one node or on several.
So a job's whole table over (nodes, GPUs) is two curves.

For each number of GPUs the samples per GPU and update, L = m (s + 1), are tried in GRID geometric steps over the
feasible range. 1/goodput is a generalised posynomial of m, so log-convex in log m, and flat near its minimum: the best
of the grid is within 0.5 % of the best whole number (a test holds it to that; see `tune.best_batch` for that one).

Legend: P pairs of a job and a number of GPUs, C candidates for L, K numbers of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import Batch
from fairlead.goodput.throughput import ThroughputParams

Floats = NDArray[np.float64]

GRID = 24


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
    m, s, feasible = _candidates([model.batch for model in models], job_P, gpus_P)
    M = K * m * (s + 1.0)
    grad = alpha_c + beta_c * m  # T_grad
    useful = M * np.minimum(1.0, (phi + M0) / (phi + M)) * feasible  # samples an update is worth
    further = np.maximum(K - 2.0, 0.0)
    best = []
    for sync in (np.where(K > 1, alpha_r + beta_r * further, 0.0), alpha_n + beta_n * further):
        larger = np.maximum(grad, sync)
        opt = larger * (1.0 + (np.minimum(grad, sync) / larger) ** gamma) ** (1.0 / gamma)  # T_opt
        best.append((useful / (s * grad + opt)).max(axis=1))
    return best[0], best[1]


def _candidates(
    batches: Sequence[Batch], job_P: NDArray[np.int64], gpus_P: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(m, s, feasible), each [P, C]; the same feasible range as `tune.candidates`."""
    no_cap = 1 << 40
    initial = np.array([batch.initial for batch in batches])[job_P]
    floor = np.array([batch.min_per_gpu for batch in batches])[job_P]
    cap = np.array([batch.max_per_gpu or no_cap for batch in batches])[job_P]
    total = np.array([batch.max_total or 0 for batch in batches])[job_P]
    unstated = np.where(cap < no_cap, np.maximum(initial, cap * gpus_P), initial)
    most = np.where(total > 0, total, unstated) // gpus_P
    least = np.maximum(floor, np.minimum(-(-initial // gpus_P), most))
    possible = least <= most
    least, most = np.maximum(least, 1), np.maximum(most, np.maximum(least, 1))
    least_P1, most_P1, cap_P1 = least[:, None] * 1.0, most[:, None] * 1.0, cap[:, None] * 1.0
    L = np.rint(least_P1 * (most_P1 / least_P1) ** np.linspace(0.0, 1.0, GRID - 1))
    # Goodput peaks where one more sample would need one more micro-step.
    L = np.append(L, np.clip(cap_P1, least_P1, most_P1), axis=1)
    full = np.ceil(L / cap_P1) * cap_P1
    L = np.where((cap_P1 < L) & (full <= most_P1), full, L)
    s = np.ceil(L / cap_P1) - 1.0
    # Several gradients are needed to tell the noise from the signal: one GPU takes its larger batches in two steps.
    s = np.where((gpus_P == 1)[:, None] & (initial[:, None] < L), np.maximum(s, 1.0), s)
    m = np.floor(L / (s + 1.0))
    return m, s, possible[:, None] & (m >= floor[:, None])
