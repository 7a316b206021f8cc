"""Gavel with the allocations that ECOS finds for the artifact's own programs, which have many optima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from fairlead.policies.gavel import GavelOracle
from fairlead.policies.gavel.inputs import Inputs
from fairlead.policies.gavel.objectives import isolated, proportional
from fairlead.policies.gavel.problem import Shares, SharingProblem


@dataclass(frozen=True)
class EcosGavel(GavelOracle):
    """The same policy, with shares by cvxpy and ECOS."""

    def shares(self, inputs: Inputs) -> Shares:
        if not inputs.jobs:
            return Shares(np.zeros(inputs.problem.rate_JT.shape))
        found = {
            "max-min": _max_min,
            "makespan": _bisected_makespan,
            "max-sum-throughput": _max_sum,
            "finish-time-fairness": _finish_time_fairness,
        }[self.objective](inputs.problem)
        return Shares(found.clip(0.0, 1.0), objective=1.0, bound=1.0)


def _base(problem: SharingProblem) -> tuple[cp.Variable, Any, list[Any]]:
    x = cp.Variable(problem.rate_JT.shape)
    gpus_JT = np.repeat(problem.gpus_J[:, None].astype(float), problem.rate_JT.shape[1], axis=1)
    capacity = cp.sum(cp.multiply(gpus_JT, x), axis=0) <= [int(gpus) for gpus in problem.capacity_T]
    return x, gpus_JT, [x >= 0, capacity, cp.sum(x, axis=1) <= 1]


def _max_min(problem: SharingProblem) -> Any:
    ones = SharingProblem(np.ones_like(problem.rate_JT), problem.gpus_J, problem.capacity_T)
    x, gpus_JT, constraints = _base(problem)
    scale_J = (1.0 / problem.weight_J) * (1.0 / proportional(ones))
    weight_JT = (ones.rate_JT * scale_J[:, None]) * gpus_JT
    cp.Problem(cp.Maximize(cp.min(cp.sum(cp.multiply(weight_JT, x), axis=1))), constraints).solve(solver="ECOS")
    return x.value


def _max_sum(problem: SharingProblem) -> Any:
    x, _, constraints = _base(problem)
    cp.Problem(cp.Maximize(cp.sum(cp.sum(cp.multiply(problem.rate_JT, x), axis=1))), constraints).solve(solver="ECOS")
    return x.value


def _bisected_makespan(problem: SharingProblem) -> Any:
    """The artifact's search: the time is found to 5 %, and any allocation that keeps it will do."""
    low, high = 100.0, 1e6
    most, found = high, None
    while found is None:
        while 1.05 * low < high:
            time_s = (low + high) / 2.0
            x, _, constraints = _base(problem)
            constraints.append(cp.sum(cp.multiply(problem.rate_JT, x), axis=1) >= problem.left_J / time_s)
            tried = cp.Problem(cp.Maximize(1), constraints)
            tried.solve(solver="ECOS")
            if tried.status == "optimal":
                found, high = x.value, time_s
            else:
                low = time_s
        low, high, most = most, most * 10.0, most * 10.0
    return found


def _finish_time_fairness(problem: SharingProblem) -> Any:
    x, _, constraints = _base(problem)
    alone_J = isolated(problem, len(problem.gpus_J))
    rho = []
    for job in range(len(problem.gpus_J)):
        rate = cp.sum(cp.multiply(problem.rate_JT[job], x[job]))
        expected_s = problem.elapsed_J[job] + problem.left_J[job] * cp.inv_pos(rate)
        rho.append(expected_s / (problem.isolated_s_J[job] + problem.left_J[job] / alone_J[job]))
    goal = cp.maximum(*rho) if len(rho) > 1 else rho[0]
    cp.Problem(cp.Minimize(goal), constraints).solve(solver="ECOS")
    return x.value
