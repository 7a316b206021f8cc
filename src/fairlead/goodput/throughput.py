"""Step time and throughput of data-parallel training (Pollux, section 3.2).

N nodes, K GPUs, m per-GPU batch of one micro-step, s further micro-steps whose gradients are accumulated before each
update (0 = none), M = K m (s + 1) the global batch. Every function broadcasts over arrays of these; a suffix names the
axis (C candidates).

    T_grad(m)   = alpha_c + beta_c m                                one forward and backward pass
    T_sync(N,K) = 0                               if K = 1          averaging the gradients
                = alpha_r + beta_r max(K - 2, 0)  if N = 1
                = alpha_n + beta_n max(K - 2, 0)  otherwise
    T_opt       = (T_grad^gamma + T_sync^gamma)^(1 / gamma)         the micro-step that also averages and updates
    T_iter      = s T_grad + T_opt                                  from one update to the next
    throughput  = M / T_iter                                        samples per second

A profiler in a job sees T_iter as `step_s` and T_opt - T_grad, the part of averaging that nothing hides, as `sync_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import InvalidSpec

Floats = NDArray[np.float64]

#: Beyond this overlap is as good as complete: T_opt is within 2^(1/10), 7 %, of max(T_grad, T_sync).
GAMMA_MAX = 10.0


@dataclass(frozen=True, slots=True)
class ThroughputParams:
    """What makes a model fast or slow on one type of GPU. Seconds, and seconds per sample or per GPU."""

    #: T_grad = alpha_c + beta_c m: the constant part of a pass.
    alpha_c: float
    #: T_grad = alpha_c + beta_c m: each sample's part of a pass.
    beta_c: float
    #: T_sync = alpha_n + beta_n max(K - 2, 0) on several nodes: averaging over two GPUs.
    alpha_n: float
    #: T_sync = alpha_n + beta_n max(K - 2, 0) on several nodes: each further GPU's part.
    beta_n: float
    #: T_sync = alpha_r + beta_r max(K - 2, 0) on one node: averaging over two GPUs.
    alpha_r: float
    #: T_sync = alpha_r + beta_r max(K - 2, 0) on one node: each further GPU's part.
    beta_r: float
    #: T_opt = (T_grad^gamma + T_sync^gamma)^(1 / gamma): from 1, no overlap of the two, to 10, nearly all.
    gamma: float

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidSpec(f"throughput parameter {f.name} is {value}; expected a finite number of at least 0")
        if not 1.0 <= self.gamma <= GAMMA_MAX:
            raise InvalidSpec(f"throughput parameter gamma is {self.gamma}; expected 1 to {GAMMA_MAX:g}")
        if self.alpha_c + self.beta_c == 0:
            raise InvalidSpec("alpha_c and beta_c are both 0; a pass takes some time")

    def faster(self, compute: float, *, within_node: float = 1.0, between_nodes: float = 1.0) -> ThroughputParams:
        """The same model on hardware that is so many times faster."""
        return replace(
            self,
            alpha_c=self.alpha_c / compute,
            beta_c=self.beta_c / compute,
            alpha_r=self.alpha_r / within_node,
            beta_r=self.beta_r / within_node,
            alpha_n=self.alpha_n / between_nodes,
            beta_n=self.beta_n / between_nodes,
        )


def grad_time(params: ThroughputParams, per_gpu_batch: ArrayLike) -> Floats:
    """T_grad(m)."""
    return params.alpha_c + params.beta_c * np.asarray(per_gpu_batch, dtype=np.float64)


def sync_time(params: ThroughputParams, nodes: ArrayLike, gpus: ArrayLike) -> Floats:
    """T_sync(N, K): what averaging would take if nothing overlapped it."""
    K = np.asarray(gpus, dtype=np.float64)
    further = np.maximum(K - 2, 0.0)
    one_node = params.alpha_r + params.beta_r * further
    many_nodes = params.alpha_n + params.beta_n * further
    return np.where(K <= 1, 0.0, np.where(np.asarray(nodes) <= 1, one_node, many_nodes))


def update_time(params: ThroughputParams, nodes: ArrayLike, gpus: ArrayLike, per_gpu_batch: ArrayLike) -> Floats:
    """T_opt(N, K, m)."""
    grad, sync = grad_time(params, per_gpu_batch), sync_time(params, nodes, gpus)
    # The larger one is factored out: times to the power of 10 would lose the small ones to underflow.
    larger = np.maximum(grad, sync)
    return np.asarray(larger * (1.0 + (np.minimum(grad, sync) / larger) ** params.gamma) ** (1.0 / params.gamma))


def step_time(
    params: ThroughputParams,
    nodes: ArrayLike,
    gpus: ArrayLike,
    per_gpu_batch: ArrayLike,
    accumulation: ArrayLike = 0,
) -> Floats:
    """T_iter(N, K, m, s): seconds from one update of the model to the next."""
    grad = grad_time(params, per_gpu_batch)
    return np.asarray(np.asarray(accumulation) * grad + update_time(params, nodes, gpus, per_gpu_batch))


def throughput(
    params: ThroughputParams,
    nodes: ArrayLike,
    gpus: ArrayLike,
    per_gpu_batch: ArrayLike,
    accumulation: ArrayLike = 0,
) -> Floats:
    """Samples per second."""
    batch = np.asarray(gpus) * np.asarray(per_gpu_batch) * (np.asarray(accumulation) + 1)
    return np.asarray(batch / step_time(params, nodes, gpus, per_gpu_batch, accumulation))
