"""What policies are told, a little wrong: noisy measurements, and run times that users promise badly.

Every error is a function of the seed, the job and what is measured, and of nothing else. So the same job is misjudged
in the same way under every policy, and comparisons stay paired.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import JobReported
from fairlead.core.types import Observation

#: The standard deviation of a logarithm: at 3, one draw in three is off by a factor of 20.
MOST = 3.0


@dataclass(frozen=True, slots=True)
class ObservationNoise:
    """Errors of what jobs report: each measured step time, and each noise scale, times a log-normal factor of mean 1.

    A measurement at one configuration has one error, however often it is told. Progress is exact.
    """

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check("noise", self.sigma)

    def told(self, report: JobReported) -> JobReported:
        """A report as the policy sees it."""
        if not self.sigma:
            return report
        observations = tuple(
            replace(each, step_s=each.step_s * factor, sync_s=each.sync_s * factor)
            for each in report.observations
            for factor in (self._factor(report.job, _place(each)),)
        )
        noise_scale = report.noise_scale
        if noise_scale is not None:
            noise_scale *= self._factor(report.job, f"noise scale at {report.progress:.4f}")
        return replace(report, observations=observations, noise_scale=noise_scale)

    def _factor(self, job: str, what: str) -> float:
        return math.exp(self.sigma * standard_normal(self.seed, job, what) - self.sigma**2 / 2)


def _place(seen: Observation) -> str:
    return repr(seen.configuration) + (f" beside {seen.partners!r}" if seen.partners else "")


def promised_s(true_s: float, *, error: float, seed: int, job: str) -> float:
    """A run time as its user promises it: times a log-normal factor of median 1, as often too long as too short."""
    _check("estimate_error", error)
    return true_s * math.exp(error * standard_normal(seed, job, "estimate"))


def standard_normal(*key: object) -> float:
    """One draw from N(0, 1), the same for the same key in every process."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    return float(np.random.default_rng(int.from_bytes(digest[:16], "big")).standard_normal())


def _check(name: str, sigma: float) -> None:
    if not 0.0 <= sigma <= MOST:
        raise InvalidSpec(f"{name} is {sigma}; expected the standard deviation of a logarithm, from 0 to {MOST:g}")


#: Nothing but the truth.
EXACT = ObservationNoise(0.0)
