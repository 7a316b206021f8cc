"""Linear and integer programs over HiGHS, as SciPy ships it: build, solve, read.

    program = LinearProgram("makespan")
    share_V = program.variables(6, high=1.0)
    speed = program.variables(1, cost=1.0)
    rows = program.rows(row_E, column_E, value_E, count=3, low=0.0)     # low <= sum of value x variable, for each
    answer = program.solve(maximise=True)
    answer.values_V[share_V], answer.objective, answer.duals_R[rows], answer.gap

An answer is optimal, or it states its gap: how far from the optimum at most. Everything else is a `NoSolution`, which
names the program and what the solver said. Duals are those of the objective as stated: what one more unit on the right
side of a row adds to it.

Legend: V variables, R rows, E entries of the matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlead.core.errors import InvalidPlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: How far a row or a reduced cost may be off, which is HiGHS' finest sensible setting.
TOLERANCE = 1e-9


class Method(StrEnum):
    """Which of HiGHS' solvers works on a program without integers."""

    AUTOMATIC = "highs"
    SIMPLEX = "highs-ds"
    INTERIOR_POINT = "highs-ipm"


class Trouble(StrEnum):
    """Why there is no answer."""

    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    LIMIT = "limit reached"
    NUMERICAL = "numerical difficulties"


_TROUBLE = {1: Trouble.LIMIT, 2: Trouble.INFEASIBLE, 3: Trouble.UNBOUNDED, 4: Trouble.NUMERICAL}


class NoSolution(InvalidPlan):
    """A program without an answer. `trouble` says why, for programs that have another way."""

    def __init__(self, name: str, trouble: Trouble, size: str, detail: str) -> None:
        super().__init__(f"the program {name} of {size} has no solution: {trouble.value} ({detail})")
        self.trouble = trouble


@dataclass(frozen=True)
class Optimum:
    """What the solver found. `objective` is what the values come to, `bound` what no answer can better."""

    values_V: Floats
    objective: float
    bound: float
    #: By how much one more unit on a row's right side would raise the objective; NaN for a program with integers.
    duals_R: Floats
    #: By how much the objective would rise with each variable if the rows did not mind: 0 for one within its bounds.
    reduced_V: Floats

    @property
    def gap(self) -> float:
        """How far from the optimum at most, as a share of the objective; 0 if it is the optimum."""
        missing = abs(self.bound - self.objective)
        return 0.0 if missing <= TOLERANCE else missing / max(abs(self.objective), TOLERANCE)


class LinearProgram:
    """A program under construction. Variables and rows are numbered in the order in which they are added."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._count = 0
        self._row_count = 0
        self._cost: list[Floats] = []
        self._bounds: list[Floats] = []  # each 2 x V: lowest and highest value
        self._integer: list[Flags] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._sides: list[Floats] = []  # each 2 x R: lowest and highest sum

    def variables(
        self,
        count: int,
        *,
        cost: ArrayLike = 0.0,
        low: ArrayLike = 0.0,
        high: ArrayLike = math.inf,
        integer: bool = False,
    ) -> Ints:
        """So many more variables; a number for `cost`, `low` or `high` is that of each."""
        self._cost.append(_spread(cost, count))
        self._bounds.append(np.stack([_spread(low, count), _spread(high, count)]))
        self._integer.append(np.full(count, integer))
        self._count += count
        return np.arange(self._count - count, self._count)

    def rows(
        self,
        row_E: ArrayLike,
        column_E: ArrayLike,
        value_E: ArrayLike,
        *,
        count: int,
        low: ArrayLike = -math.inf,
        high: ArrayLike = math.inf,
    ) -> Ints:
        """So many more rows, whose entries are (row from 0, variable, value); entries at one place are added up."""
        entries = np.broadcast_arrays(np.asarray(row_E), np.asarray(column_E), np.asarray(value_E, dtype=np.float64))
        row, column, value = (np.atleast_1d(part).ravel() for part in entries)
        self._entries.append((row.astype(np.int64) + self._row_count, column.astype(np.int64), value))
        self._sides.append(np.stack([_spread(low, count), _spread(high, count)]))
        self._row_count += count
        return np.arange(self._row_count - count, self._row_count)

    def solve(
        self,
        *,
        maximise: bool = False,
        method: Method = Method.AUTOMATIC,
        time_limit_s: float | None = None,
        node_limit: int | None = None,
        gap: float = 0.0,
    ) -> Optimum:
        """The optimum; for a program with integers, the best found within the limits or the gap, with its bound."""
        if not self._count:
            return Optimum(np.zeros(0), 0.0, 0.0, np.zeros(self._row_count), np.zeros(0))
        sign = -1.0 if maximise else 1.0
        limits = {"time_limit": time_limit_s, "node_limit": node_limit, "mip_rel_gap": gap or None}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if np.concatenate(self._integer).any():
            return self._solve_integers(sign, given)
        given.pop("mip_rel_gap", None)
        given.pop("node_limit", None)
        return self._solve_continuous(sign, method, given)

    def _solve_continuous(self, sign: float, method: Method, options: dict[str, float]) -> Optimum:
        from scipy.optimize import linprog  # slow to import, and many runs never need it
        from scipy.sparse import vstack

        matrix = self._matrix()
        low_R, high_R = self._both_sides()
        equal_R = low_R == high_R
        above_R, below_R = np.isfinite(high_R) & ~equal_R, np.isfinite(low_R) & ~equal_R
        cost_V = sign * np.concatenate(self._cost)
        fine = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}
        found = linprog(
            cost_V,
            A_ub=vstack([matrix[above_R], -matrix[below_R]]) if above_R.any() or below_R.any() else None,
            b_ub=np.concatenate([high_R[above_R], -low_R[below_R]]) if above_R.any() or below_R.any() else None,
            A_eq=matrix[equal_R] if equal_R.any() else None,
            b_eq=low_R[equal_R] if equal_R.any() else None,
            bounds=np.concatenate(self._bounds, axis=1).T,
            method=method.value,
            options={**fine, **options},
        )
        if found.status != 0 or found.x is None:
            raise self._failure(found)
        duals_R = np.zeros(self._row_count)
        if equal_R.any():
            duals_R[equal_R] = found.eqlin.marginals
        if above_R.any() or below_R.any():
            marginals = np.asarray(found.ineqlin.marginals)
            duals_R[above_R] += marginals[: above_R.sum()]
            duals_R[below_R] -= marginals[above_R.sum() :]
        objective = sign * float(found.fun)
        reduced_V = sign * (np.asarray(found.lower.marginals) + np.asarray(found.upper.marginals))
        return Optimum(np.asarray(found.x, dtype=np.float64), objective, objective, sign * duals_R, reduced_V)

    def _solve_integers(self, sign: float, options: dict[str, float]) -> Optimum:
        from scipy.optimize import Bounds, LinearConstraint, milp

        low_V, high_V = np.concatenate(self._bounds, axis=1)
        constraints = LinearConstraint(self._matrix(), *self._both_sides()) if self._row_count else ()
        found = milp(
            sign * np.concatenate(self._cost),
            integrality=np.concatenate(self._integer).astype(np.int64),
            bounds=Bounds(low_V, high_V),
            constraints=constraints,
            options=options,
        )
        if found.x is None or found.status not in (0, 1):
            raise self._failure(found)
        dual = found.mip_dual_bound
        bound = -math.inf if dual is None or math.isnan(dual) else min(float(dual), float(found.fun))
        return Optimum(
            np.asarray(found.x, dtype=np.float64),
            sign * float(found.fun),
            sign * bound,
            np.full(self._row_count, np.nan),
            np.full(self._count, np.nan),
        )

    def _matrix(self) -> Any:
        from scipy.sparse import coo_array

        row_E, column_E, value_E = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        return coo_array((value_E, (row_E, column_E)), shape=(self._row_count, self._count)).tocsr()

    def _both_sides(self) -> tuple[Floats, Floats]:
        low_R, high_R = np.concatenate(self._sides, axis=1)
        return low_R, high_R

    def _failure(self, found: Any) -> NoSolution:
        trouble = _TROUBLE.get(int(found.status), Trouble.NUMERICAL)
        size = f"{self._count} variables and {self._row_count} rows"
        return NoSolution(self.name, trouble, size, str(found.message).strip().rstrip("."))


def _spread(value: ArrayLike, count: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), count))
