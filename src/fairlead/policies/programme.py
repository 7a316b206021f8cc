"""Sizes as an integer programme, which HiGHS solves: exact for any number of GPU types, while there are few choices.

Legend: J jobs, T GPU types, S sizes (0 GPUs first), V binary variables, R rows of constraints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.arranging import STAY
from fairlead.policies.linear_program import LinearProgram, NoSolution, Optimum
from fairlead.policies.sizing import Costs, Sizing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The solver may stop this close to the optimum, as a share of it: the figure of Sia's released code.
CLOSE_ENOUGH = 1e-4


class _Programme(NamedTuple):
    """Binary variables, each a choice of a job: what it costs more than waiting, and which rows it counts in.

    Rows are the jobs, of which each has one choice at most (exactly one, if it must not wait), and the GPU types.
    """

    cost_V: Floats
    job_V: Ints
    type_V: Ints
    size_V: Ints
    gpus_V: Ints
    #: Bounds of the rows.
    low_R: Floats
    high_R: Floats
    #: What all would cost if nobody had anything.
    waiting: float


def programmed(costs: Costs, *, time_limit_s: float | None = None, most_nodes: int | None = None) -> Sizing | None:
    """Everyone's choice; None if the solver has none within its limits: seconds, or nodes of its search tree."""
    programme = _build(costs)
    jobs, prices = len(costs.idle_J), np.full(len(costs.capacity_T), np.nan)
    type_J, size_J = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
    if not len(programme.cost_V):
        return Sizing(type_J, size_J, programme.waiting, prices)
    size = float(np.abs(programme.cost_V).sum())
    gap = CLOSE_ENOUGH * costs.share_of(size) / max(size, 1e-300)
    try:
        found = _solve(programme, jobs, gap, time_limit_s, most_nodes)
    except NoSolution:
        return None
    chosen = np.flatnonzero(found.values_V > 0.5)
    type_J[programme.job_V[chosen]] = programme.type_V[chosen]
    size_J[programme.job_V[chosen]] = programme.size_V[chosen]
    reached = programme.waiting + float(programme.cost_V[chosen].sum())
    return Sizing(type_J, size_J, min(programme.waiting + found.bound, reached), prices)


def _build(costs: Costs) -> _Programme:
    """One variable for every choice a job may make but waiting; what it holds now is one of them."""
    job_V, type_V, size_V = np.nonzero(np.isfinite(costs.cost_JTS) & (costs.sizes_S > 0))
    staying = np.flatnonzero(np.isfinite(costs.stay_J))
    idle_J = np.where(np.isfinite(costs.idle_J), costs.idle_J, 0.0)
    every_V = np.concatenate([job_V, staying])
    paid_V = np.concatenate([costs.cost_JTS[job_V, type_V, size_V], costs.stay_J[staying]])
    return _Programme(
        cost_V=paid_V - idle_J[every_V],
        job_V=every_V,
        type_V=np.concatenate([type_V, costs.stay_type_J[staying]]),
        size_V=np.concatenate([size_V, np.full(len(staying), STAY)]),
        gpus_V=np.concatenate([costs.sizes_S[size_V], costs.stay_gpus_J[staying]]),
        low_R=np.concatenate([np.where(np.isfinite(costs.idle_J), 0.0, 1.0), np.zeros(len(costs.capacity_T))]),
        high_R=np.concatenate([np.ones(len(idle_J)), costs.capacity_T]),
        waiting=float(idle_J.sum()),
    )


def _solve(programme: _Programme, jobs: int, gap: float, time_limit_s: float | None, most_nodes: int | None) -> Optimum:
    program = LinearProgram("sizes and types of jobs")
    variables = program.variables(len(programme.cost_V), cost=programme.cost_V, high=1.0, integer=True)
    program.rows(
        np.concatenate([programme.job_V, jobs + programme.type_V]),
        np.tile(variables, 2),
        np.concatenate([np.ones(len(variables)), programme.gpus_V]),
        count=len(programme.low_R),
        low=programme.low_R,
        high=programme.high_R,
    )
    return program.solve(time_limit_s=time_limit_s, node_limit=most_nodes, gap=gap)
