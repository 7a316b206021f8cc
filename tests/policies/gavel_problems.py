"""Problems of Gavel's for tests, and the same programs in cvxpy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from fairlead.policies.gavel.class_program import ClassOptimum, ClassProgram, Face, Solver
from fairlead.policies.gavel.objectives import fair_need, isolated, proportional
from fairlead.policies.gavel.problem import Shares, SharingProblem, pair_factors
from fairlead.policies.linear_program import NoSolution, Trouble


def drawn(jobs: int, seed: int, *, models: int = 0, pairs: bool = False, load: float = 2.0) -> SharingProblem:
    """Jobs of random rates on three GPU types, some of which they cannot use; they ask for `load` times the GPUs."""
    rng = np.random.default_rng(seed)
    count = models or jobs
    table_MT = rng.uniform(0.5, 20.0, (count, 3)) * (rng.random((count, 3)) > 0.1)
    table_MT[:, 0] = np.maximum(table_MT[:, 0], 0.5)
    model_J = rng.integers(0, count, jobs) if models else np.arange(jobs)
    gpus_J = rng.choice([1, 2, 4], jobs, p=[0.7, 0.2, 0.1])
    each = max(4, int(gpus_J.sum() / load / 3))
    factors = {}
    if pairs:
        for one in range(count):
            for other in range(one, count):
                for gpus in (1, 2, 4):
                    factors[one, other, gpus] = rng.uniform(0.3, 0.9, (3, 2))
    return SharingProblem(
        rate_JT=table_MT[model_J],
        gpus_J=gpus_J,
        capacity_T=np.array([each, each + 2, 2 * each]),
        weight_J=rng.choice([1.0, 2.0], jobs),
        left_J=rng.uniform(100.0, 1e4, jobs),
        elapsed_J=rng.uniform(0.0, 300.0, jobs),
        isolated_s_J=rng.uniform(0.0, 300.0, jobs),
        deadline_J=rng.uniform(5e3, 1e5, jobs),
        entity_J=np.arange(jobs) % 3,
        price_T=np.array([2.0, 1.0, 0.3]),
        held_J=rng.integers(-1, 3, jobs),
        kind_J=model_J if models else np.arange(jobs),
        pairs=factors,
    )


class Reference:
    """The base of constraints job by job and pair by pair, as the paper has it."""

    def __init__(self, problem: SharingProblem) -> None:
        self.problem = problem
        jobs, types = problem.rate_JT.shape
        groups: list[tuple[int, ...]] = [(job,) for job in range(jobs)]
        for one in range(jobs):
            for other in range(one + 1, jobs):
                kinds = sorted((int(problem.kind_J[one]), int(problem.kind_J[other])))
                same = problem.gpus_J[one] == problem.gpus_J[other]
                if same and (kinds[0], kinds[1], int(problem.gpus_J[one])) in problem.pairs:
                    groups.append((one, other))
        self.x = cp.Variable((len(groups), types), nonneg=True)
        share_JG, rate = np.zeros((jobs, len(groups))), np.zeros((jobs, len(groups), types))
        gpus_G = np.array([problem.gpus_J[group[0]] for group in groups], dtype=float)
        allowed = np.ones((len(groups), types), dtype=bool)
        for g, group in enumerate(groups):
            share_JG[list(group), g] = 1.0
            for at, job in enumerate(group):
                factor_T = pair_factors(problem, *group)[:, at] if len(group) == 2 else 1.0
                rate[job, g] = problem.rate_JT[job] * factor_T
                allowed[g] &= problem.usable[job]
        self.constraints: list[Any] = [share_JG @ cp.sum(self.x, axis=1) <= 1.0]
        self.constraints += [gpus_G @ self.x <= problem.capacity_T.astype(float), self.x[~allowed] == 0.0]
        self._rate = rate

    def throughput(self, job: int) -> Any:
        return cp.sum(cp.multiply(self._rate[job], self.x))

    def solve(self, objective: Any, more: list[Any] | None = None) -> float:
        program = cp.Problem(objective, self.constraints + (more or []))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an inaccurate solution is accurate enough where it is asked for
            self._run(program)
        return float(program.value) if program.status in ("optimal", "optimal_inaccurate") else float("nan")

    @staticmethod
    def _run(program: cp.Problem) -> None:
        program.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)


def reference(problem: SharingProblem, objective: str) -> float:
    """The optimum, as cvxpy finds it."""
    base = Reference(problem)
    jobs = range(len(problem.gpus_J))
    rate = [base.throughput(job) for job in jobs]
    if objective == "max-min":
        need = fair_need(problem)
        return base.solve(cp.Maximize(cp.min(cp.hstack([rate[job] / need[job] for job in jobs]))))
    if objective == "makespan":
        inverse = cp.Variable()
        return 1.0 / base.solve(cp.Maximize(inverse), [rate[job] >= problem.left_J[job] * inverse for job in jobs])
    if objective == "finish-time-fairness":
        alone = isolated(problem, len(problem.gpus_J))
        rho = [
            (problem.elapsed_J[job] + problem.left_J[job] * cp.inv_pos(rate[job]))
            / (problem.isolated_s_J[job] + problem.left_J[job] / alone[job])
            for job in jobs
        ]
        return base.solve(cp.Minimize(cp.max(cp.hstack(rho))))
    if objective == "nash":
        mean = proportional(problem)
        return base.solve(cp.Maximize(sum(problem.weight_J[job] * cp.log(rate[job] / mean[job]) for job in jobs)))
    if objective == "max-sum-throughput":
        return base.solve(cp.Maximize(sum(rate)))
    assert objective in ("cost", "cost-slo")
    value = cp.sum(cp.multiply(base._rate.sum(axis=0) / problem.price_T, base.x))
    slo = [rate[job] >= problem.left_J[job] / problem.deadline_J[job] for job in jobs if objective == "cost-slo"]
    return base.solve(cp.Maximize(value), slo)


def check_shares(problem: SharingProblem, shares: Shares) -> None:
    """No job runs twice at a time, no GPU is given out twice, none runs where it cannot."""
    assert (shares.alone_JT >= 0.0).all()
    assert (shares.totals() <= 1.0 + 1e-9).all()
    assert (shares.used(problem.gpus_J) <= problem.capacity_T * (1.0 + 1e-9)).all()
    assert (shares.alone_JT[~problem.usable] == 0.0).all()
    for (one, other), share_T in shares.pairs.items():
        assert problem.gpus_J[one] == problem.gpus_J[other]
        assert (share_T[~(problem.usable[one] & problem.usable[other])] == 0.0).all()


@dataclass
class EcosSolver(Solver):
    """Linear programs by ECOS, through cvxpy."""

    def linear(self, program: ClassProgram, *, again: bool = True) -> ClassOptimum:
        self.programs += 1
        classes, slack = program.classes, program.slack
        jobs, columns, types = len(classes.count_K), len(classes.type_V), len(classes.problem.capacity_T)
        face = program.face or Face(*(np.zeros(size, dtype=bool) for size in (columns, types, jobs, jobs)))
        zero_V, zero_K = np.zeros(columns), np.zeros(jobs)
        share_KV, speed_KV, gpus_TV = np.zeros((jobs, columns)), np.zeros((jobs, columns)), np.zeros((types, columns))
        np.add.at(share_KV, (classes.class_E, classes.column_E), classes.share_E)
        np.add.at(speed_KV, (classes.class_E, classes.column_E), classes.speed_E)
        capacity_T = classes.problem.capacity_T if program.capacity_T is None else program.capacity_T
        gpus_TV[classes.type_V, np.arange(columns)] = classes.gpus_V
        need_K = zero_K if program.need_K is None else program.need_K
        floor_K = np.maximum((zero_K if program.floor_K is None else program.floor_K) - slack, 0.0)
        high_K = np.where(face.floored_K, floor_K + 2.0 * slack, np.inf if program.high_K is None else program.high_K)
        x, c = cp.Variable(columns), cp.Variable(nonneg=True)
        rows = [
            x >= 0.0,
            share_KV @ x <= 1.0 + slack,
            gpus_TV @ x <= capacity_T + slack,
            speed_KV @ x >= floor_K + need_K * c,
        ]
        fixed = [x[face.unused_V] <= slack, (share_KV @ x)[face.busy_K] >= 1.0 - slack]
        fixed += [(gpus_TV @ x)[face.full_T] >= capacity_T[face.full_T] - slack]
        fixed += [(speed_KV @ x)[np.isfinite(high_K)] <= high_K[np.isfinite(high_K)]]
        linear_V = (zero_V if program.linear_V is None else program.linear_V) + speed_KV.T @ (
            zero_K if program.linear_K is None else program.linear_K
        )
        problem = cp.Problem(cp.Minimize(linear_V @ x - (c if program.need_K is not None else 0.0)), rows + fixed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(solver="ECOS", abstol=1e-12, reltol=1e-12, feastol=1e-12, max_iters=200)
        if problem.status not in ("optimal", "optimal_inaccurate"):
            raise NoSolution(program.name, Trouble.INFEASIBLE, f"{jobs} classes", problem.status)
        value_V = np.maximum(x.value, 0.0)
        multiple = float(c.value) if program.need_K is not None else 0.0
        loss_V, time_K, price_T, price_K = (np.maximum(row.dual_value, 0.0) for row in rows)
        above_K = speed_KV @ value_V - floor_K - multiple * need_K
        return ClassOptimum(value_V, multiple, price_K, price_T, time_K, loss_V, above_K, is_central=False)
