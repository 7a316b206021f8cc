"""Objectives by name: how a problem is solved as a whole, or in parts with the loss stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel import objectives
from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.hierarchy import Entity, hierarchical
from fairlead.policies.gavel.partition import Objective, in_parts, worth_of_all
from fairlead.policies.gavel.problem import Concession, Shares, SharingProblem, agnostic, throughput
from fairlead.policies.gavel.queue_order import fifo, sjf
from fairlead.policies.linear_program import NoSolution

Floats = NDArray[np.float64]


class Goal(NamedTuple):
    """An objective, and how the objectives of parts are one."""

    solve: Objective
    total: str = "sum"


GOALS: dict[str, Goal] = {
    "max-min": Goal(objectives.max_min, "least"),
    "finish-time-fairness": Goal(objectives.finish_time_fairness, "most"),
    "makespan": Goal(objectives.makespan, "most"),
    "cost": Goal(objectives.cost),
    "cost-slo": Goal(objectives.cost_slo),
    "fifo": Goal(fifo),
    "sjf": Goal(sjf),
    "max-sum-throughput": Goal(objectives.max_sum_throughput),
    "nash": Goal(objectives.nash),
    "nash-discounted": Goal(objectives.discounted),
    "hierarchical": Goal(objectives.max_min),  # with the entities that `solve` is given
}


def solve(
    problem: SharingProblem,
    objective: str,
    *,
    heterogeneity: str = "aware",
    entities: Sequence[Entity] = (Entity(),),
    parts: int = 1,
    solver: Solver | None = None,
) -> Shares:
    """Shares of wall time under an objective of `GOALS`; equal parts, with a note, if its program has no answer."""
    solver = Solver() if solver is None else solver
    try:
        return _solved(problem, objective, heterogeneity=heterogeneity, entities=entities, parts=parts, solver=solver)
    except NoSolution:
        return objectives.equal_parts(problem)


def _solved(
    problem: SharingProblem,
    objective: str,
    *,
    heterogeneity: str,
    entities: Sequence[Entity],
    parts: int,
    solver: Solver,
) -> Shares:
    problem = agnostic(problem) if heterogeneity == "agnostic" else problem
    goal = GOALS[objective]
    method: Objective = partial(_hierarchical, entities=entities) if objective == "hierarchical" else goal.solve
    if parts <= 1 or objective in ("fifo", "sjf"):
        return method(problem, solver)
    jobs = len(problem.gpus_J)  # what is fair is a matter of the whole
    problem = replace(
        problem,
        mean_rate_J=objectives.proportional(problem),
        isolated_rate_J=objectives.isolated(problem, jobs),
    )
    shares = in_parts(problem, method, solver, parts=parts, total=goal.total)
    if not np.isnan(shares.bound):
        return shares  # too small to divide
    bound = _bound(problem, objective, shares)
    return replace(shares, bound=bound if np.isfinite(bound) else float("nan"))


def _hierarchical(problem: SharingProblem, solver: Solver, *, entities: Sequence[Entity]) -> Shares:
    return hierarchical(problem, solver, entities)


def _bound(problem: SharingProblem, objective: str, shares: Shares) -> float:
    """What no allocation of the whole can better; NaN where no prices tell."""
    runs_J = problem.best > 0.0
    if objective == "nash":
        return _welfare_bound(problem, shares)
    if not len(shares.price_J):
        return float("nan")
    if objective in ("cost", "cost-slo"):
        priced = replace(problem, rate_JT=problem.rate_JT / objectives.positive_prices(problem))
        return worth_of_all(priced, shares.price_J, shares.price_T)
    most = worth_of_all(problem, shares.price_J, shares.price_T)
    if objective == "max-min":
        need_J = objectives.fair_need(problem)
        at_best_J = problem.best[runs_J] / need_J[runs_J]
        return min(most / max(float(shares.price_J @ need_J), 1e-300), float(at_best_J.min()))
    if objective == "makespan":
        at_best_J = problem.left_J[runs_J] / problem.best[runs_J]
        return max(float(shares.price_J @ problem.left_J) / max(most, 1e-300), float(at_best_J.max()))
    if objective == "finish-time-fairness":
        return objectives.least_rho(problem, shares.price_J, most)
    return most


def _welfare_bound(problem: SharingProblem, shares: Shares) -> float:
    """The logarithm lies below its tangents: the largest sum by their slopes bounds the welfare.

    NaN if a job has nothing that could have something, as its logarithm has no tangent there; and if a part was solved
    by another objective, whose value is no welfare.
    """
    rate_J = throughput(problem, shares)
    runs_J = rate_J > 0.0
    if Concession.NO_WELFARE in shares.notes or (~runs_J & (problem.best > 0.0)).any():
        return float("nan")
    weight_J = np.where(runs_J, problem.weight_J, 0.0)
    here = float(weight_J[runs_J] @ np.log(rate_J[runs_J] / objectives.proportional(problem)[runs_J]))
    slope_J = weight_J / np.where(runs_J, rate_J, 1.0)
    scaled = replace(problem, rate_JT=problem.rate_JT * slope_J[:, None])
    return here - float(weight_J.sum()) + objectives.max_sum_throughput(scaled, Solver()).objective
