"""How much a sample is worth in a larger batch (Pollux, section 3.1; McCandlish et al., 2018).

phi is the gradient noise scale: the batch size at which noise and signal of a gradient are equal. With it,
efficiency(M) = (phi + M0) / (phi + M) is the progress per sample at batch M relative to the initial batch M0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def efficiency(noise_scale: ArrayLike, batch: ArrayLike, initial_batch: ArrayLike) -> Floats:
    """In (0, 1]. A batch below the initial one counts as 1: a sample is never worth more than the user's own choice."""
    phi = np.asarray(noise_scale, dtype=np.float64)
    M, M0 = np.asarray(batch, dtype=np.float64), np.asarray(initial_batch, dtype=np.float64)
    return np.asarray(np.minimum(1.0, (phi + M0) / (phi + M)))


def gain(grad_sqr: ArrayLike, grad_var: ArrayLike, scale: ArrayLike) -> Floats:
    """Progress of one step at `scale` times the initial batch, in steps at the initial one: from 1 to `scale`.

    (var + sqr) / (var / scale + sqr), AdaScale's factor. With phi = M0 var / sqr it is scale x efficiency(scale M0),
    and stays defined where the gradient's squared norm was measured as 0 and phi has no bound.
    """
    sqr, var = np.asarray(grad_sqr, dtype=np.float64), np.asarray(grad_var, dtype=np.float64)
    return np.asarray((var + sqr) / (var / np.asarray(scale) + sqr))
