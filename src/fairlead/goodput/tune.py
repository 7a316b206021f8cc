"""The batch size with the highest goodput for an allocation (Pollux, equation 13).

C candidates: the samples each GPU may process per update, L = m (s + 1).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.core.types import Batch
from fairlead.goodput.efficiency import efficiency
from fairlead.goodput.throughput import ThroughputParams, throughput

Ints = NDArray[np.int64]

#: Up to so many candidates every whole number is tried; beyond, as many in geometric steps, and every multiple of the
#: largest per-GPU batch: goodput peaks there, just before another micro-step is needed.
CANDIDATES = 512


@lru_cache(maxsize=4096)  # jobs ask again and again for the same few
def candidates(gpus: int, batch: Batch) -> tuple[Ints, Ints]:
    """Every (m_C, s_C) worth trying on so many GPUs; none if they are too many for the largest batch.

    For a given L fewer micro-steps are never slower, so s is the least that `max_per_gpu` allows. An unstated
    `max_total` means no batch beyond what fits without accumulation, or the initial one if nothing is stated at all.
    """
    cap = batch.max_per_gpu
    largest = batch.max_total
    if largest is None:
        largest = batch.initial if cap is None else max(batch.initial, cap * gpus)
    most = largest // gpus
    # Where GPUs do not divide the batch and it may not grow, a slightly smaller one is all there is.
    least = max(batch.min_per_gpu, min(-(-batch.initial // gpus), most))
    if least > most:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    L_C = np.arange(least, most + 1) if most - least < CANDIDATES else _spaced(least, most, cap)
    s_C = np.zeros_like(L_C) if cap is None else -(-L_C // cap) - 1
    if gpus == 1:
        # Several gradients are needed to tell the noise from the signal: larger batches are taken in two micro-steps.
        s_C = np.where(batch.initial < L_C, np.maximum(s_C, 1), s_C)
    m_C = L_C // (s_C + 1)
    fits_C = m_C >= batch.min_per_gpu
    m_C, s_C = m_C[fits_C], s_C[fits_C]
    m_C.flags.writeable = s_C.flags.writeable = False
    return m_C, s_C


def _spaced(least: int, most: int, cap: int | None) -> Ints:
    spaced = np.geomspace(least, most, CANDIDATES).round().astype(np.int64)
    if cap is None:
        return np.unique(spaced)
    return np.union1d(spaced, np.arange(-(-least // cap) * cap, most + 1, cap))


def best_batch(
    params: ThroughputParams, noise_scale: float, nodes: int, gpus: int, batch: Batch
) -> tuple[int, int, float]:
    """(per-GPU batch, accumulation, goodput in samples per second) of the best candidate; goodput 0 without any."""
    m_C, s_C = candidates(gpus, batch)
    if not len(m_C):
        return batch.min_per_gpu, 0, 0.0
    M_C = gpus * m_C * (s_C + 1)
    goodput_C = throughput(params, nodes, gpus, m_C, s_C) * efficiency(noise_scale, M_C, batch.initial)
    best = int(np.argmax(goodput_C))
    return int(m_C[best]), int(s_C[best]), float(goodput_C[best])
