"""Pollux (Qiao et al., OSDI '21): the GPUs go where they make most progress, relative to each job's fair share.

    SPEEDUP_j(a) = max goodput of job j with allocation a / max goodput with its fair share of the GPUs   (equation 15)
    FITNESS      = ((1/J) sum_j (SPEEDUP_j RESTART_j N/C + 1e-3)^p)^(1/p)                                 (equation 14)
    RESTART_j    = max(T_j - R_j delta, 0) / (T_j + delta) if its allocation changes, else 1              (section 4.2)

with T_j the age of a job, R_j how often it was restarted and delta what a restart takes. A job has at most twice the
GPUs it was measured on, and at most one job that spans nodes is on any node. Where we differ:

* A job that holds nothing has nothing to lose by a start: its factor is 1.
* A change must promise a job 10 % more speed than it has, beyond what the restart costs: predictions are not exact
  enough to move jobs for less. (AdaptDL asks for 5 % before it changes a batch size, for the same reason.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.allocator import allocate, costs_of, mean_of
from fairlead.policies.appraising import Appraiser
from fairlead.policies.explaining import shut_reasons, weighed_reasons
from fairlead.policies.genetic import evolve
from fairlead.policies.placing import realise
from fairlead.policies.weighing import Choices, choices


@dataclass(frozen=True)
class Pollux:
    """Goodput relative to the fair share, by the power mean over all jobs."""

    adapts = "batch"
    #: Seconds between decisions that it is made for: between them it never asks to look again.
    period_s: ClassVar[float] = 60.0

    #: Exponent of the power mean: the more negative, the fairer.
    p: float = -1.0
    #: What a restart is taken to cost, in seconds.
    restart_s: float = 30.0
    #: How many times as fast a change must promise to make a job, after the cost of its restart, to be worth anything.
    gain: float = 1.1
    #: exact, or genetic: the paper's own search.
    search: str = "exact"
    #: Of the genetic search.
    seed: int = 0
    _appraiser: Appraiser = field(default_factory=Appraiser, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.search not in ("exact", "genetic"):
            raise InvalidSpec(f"pollux: search is {self.search!r}; expected exact or genetic")
        if not -10.0 <= self.p <= 1.0:
            raise InvalidSpec(f"pollux: p is {self.p}; expected -10 to 1")
        if not 0.0 <= self.restart_s < math.inf:
            raise InvalidSpec(f"pollux: restart_s is {self.restart_s}; expected a number of seconds of at least 0")
        if not 1.0 <= self.gain < math.inf:
            raise InvalidSpec(f"pollux: gain is {self.gain}; expected a factor of at least 1")

    def plan(self, view: Snapshot) -> Plan:
        nodes = sum(node.open for node in view.nodes.values())
        if not view.jobs or not nodes:
            return Plan(dict(view.allocations), shut_reasons(view))
        fair = -(-sum(node.gpus for node in view.nodes.values() if node.open) // len(view.jobs))
        options = choices(view, self._appraiser, reach=fair, lore=False)
        fair_J = _fair_goodput(options, fair)
        scale_J = nodes / options.gpus / fair_J

        def cost(goodput: np.ndarray) -> np.ndarray:
            return costs_of(goodput * scale_J[:, None, None], p=self.p)

        factor_J = np.array([self._restart_factor(view.now, job) for job in options.jobs])
        problem = options.problem(
            cost,
            moved=lambda goodput: goodput * factor_J[:, None, None],
            idle_J=costs_of(np.zeros(len(fair_J)), p=self.p),
        )
        answer = evolve(problem, seed=self.seed) if self.search == "genetic" else allocate(problem)
        allocations = realise(view, [job.id for job in options.jobs], answer.where)
        best = mean_of(answer.bound, p=self.p, weight=len(fair_J))
        return Plan(
            allocations,
            weighed_reasons(view, allocations, options, problem),
            bound=max(0.0, 1.0 - mean_of(answer.cost, p=self.p, weight=len(fair_J)) / best),
        )

    def _restart_factor(self, now: float, job: Job) -> float:
        if not job.allocation:
            return 1.0
        age = now - job.submitted_at
        if age + self.restart_s <= 0.0:
            return 1.0 / self.gain
        return max(age - (job.attempt - 1) * self.restart_s, 0.0) / (age + self.restart_s) / self.gain


def _fair_goodput(options: Choices, fair: int) -> np.ndarray:
    """Goodput with the fair share, on the first GPU type, as if it were on one node; of less if that is impossible."""
    kind = options.gpu_types[0]
    found = [by_type[kind].goodput(1, fair) or float(by_type[kind].curve.one_K.max()) for by_type in options.appraisals]
    return np.array([goodput or 1.0 for goodput in found])
