"""Separable convex programs over linear constraints, by a primal-dual interior-point method.

    minimise  sum over v of  linear_v x_v + square_v x_v^2 / 2 - log_v ln x_v
    subject to  low_R <= A x <= high_R,   low_V <= x <= high_V

HiGHS through SciPy has no quadratic objective, and neither has SciPy a method for thousands of variables. What policies
ask of one is small: the one point of a polyhedron that is most even, or the one that maximises Nash welfare. Where the
objective is strictly convex in a variable its value is unique, so it depends neither on the order of variables nor on a
solver. Of a linear program the method ends in the middle of the optimal face: a bound has a multiplier above 0 exactly
where no optimum is off that bound, which the corner that a simplex method ends in does not tell.

Mehrotra's predictor and corrector. Every row becomes an equation with a slack, and `constraint_matrix` solves the
equations of a step.

Legend: V variables, R rows, S rows with a slack, N variables and after them slacks, U those of N with an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.constraint_matrix import ConstraintMatrix

Floats = NDArray[np.float64]

#: Iterations after which a program counts as too hard. Most take 10 to 30.
MOST_ITERATIONS = 120
#: The mean product of slack and multiplier at which the point is taken, and how far rows may then be off.
CENTRED = 1e-15
EXACT = 1e-11
#: How many times as far off a point may be if no better one can be had.
ACCEPTED = 1e3
#: After so many iterations at the centre, rows do not become more exact.
PATIENCE = 3
#: Multipliers and distances stay above this: with denormal numbers a processor is slow.
_TINY = 1e-100


class ConvexProgram(NamedTuple):
    """Coefficients of the objective, the matrix, and the bounds of rows and variables. All of low_V are finite."""

    linear_V: Floats
    square_V: Floats
    log_V: Floats
    matrix: ConstraintMatrix
    low_R: Floats
    high_R: Floats
    low_V: Floats
    high_V: Floats
    #: Of a linear objective: a value that will do. The first point that has it is taken, whose prices mean nothing.
    enough: float = -np.inf


class Minimum(NamedTuple):
    """Where the minimum is, and what limits it."""

    values_V: Floats
    #: How much the minimum falls for a unit more on the right side of each row.
    price_R: Floats
    #: How much it rises for a unit more of each lower bound.
    price_V: Floats
    #: The same of the upper bounds, with the opposite sign: 0 where there is none.
    upper_price_V: Floats
    iterations: int


def minimise(program: ConvexProgram) -> Minimum | None:
    """The minimum, with errors of about 1e-8; None if the method does not get there."""
    solver = _InteriorPoint(program)
    best, found = ACCEPTED, None
    for iteration in range(MOST_ITERATIONS):
        solver.look()
        if solver.off <= 1.0 or solver.has(program.enough):
            return solver.minimum(iteration)
        if solver.off <= best:  # near the end rows may become less exact again
            best, found = solver.off, solver.minimum(iteration)
        if solver.stalled() or not solver.step():
            break
    return found


class _InteriorPoint:
    """One run: the point, the multipliers of equations (y) and of bounds (z), moved together by `step`."""

    def __init__(self, program: ConvexProgram) -> None:
        self._matrix = program.matrix
        self._count = len(program.linear_V)
        below_R, above_R = np.isfinite(program.low_R), np.isfinite(program.high_R)
        both_R = below_R & above_R
        self._slack_S = np.flatnonzero(~(both_R & (program.high_R <= program.low_R)))
        # A x + slack = high, or A x - slack = low where there is no other side.
        self._sign_S = np.where(above_R, 1.0, -1.0)[self._slack_S]
        self._right = np.where(above_R, program.high_R, program.low_R)
        zero_S = np.zeros(len(self._slack_S))
        self._linear = np.concatenate([program.linear_V, zero_S])
        self._square = np.concatenate([program.square_V, zero_S])
        self._log = np.concatenate([program.log_V, zero_S])
        self._logged = np.flatnonzero(self._log > 0.0)
        self._is_linear = not len(self._logged) and not self._square.any()
        self._low = np.concatenate([program.low_V, zero_S])
        width_S = np.where(both_R, program.high_R - program.low_R, np.inf)[self._slack_S]
        width = np.concatenate([program.high_V - program.low_V, width_S])
        self._upper = np.flatnonzero(np.isfinite(width))
        self._bounds = len(self._low) + len(self._upper)
        # Distances to the bounds are kept beside x: near a bound the difference has no digits left.
        self._below = np.where(np.isfinite(width), width / 2.0, 0.5)
        self._above_U = width[self._upper] / 2.0
        self._y = np.zeros(self._matrix.rows)
        self._z = np.ones(len(self._low))
        self._z_U = np.ones(len(self._upper))
        self._central = 0
        self._scale = max(1.0, float(np.abs(self._linear).max(initial=0.0)), float(self._square.max(initial=0.0)))

    def minimum(self, iterations: int) -> Minimum:
        upper_N = np.zeros(len(self._low))
        upper_N[self._upper] = self._z_U
        count = self._count
        return Minimum(self._x[:count], self._y, self._z[:count], upper_N[:count], iterations)

    def look(self) -> None:
        """How far off the point is."""
        x = self._low + self._below
        dual = self._linear + self._square * x
        if len(self._logged):
            dual[self._logged] -= self._log[self._logged] / x[self._logged]
        dual += self._columns(self._y) - self._z
        dual[self._upper] += self._z_U
        self._x, self._dual, self._primal = x, dual, self._rows(x) - self._right
        self._centre = (_dot(self._z, self._below) + _dot(self._z_U, self._above_U)) / self._bounds
        self._primal_off = float(np.abs(self._primal).max(initial=0.0))
        rows_off = max(self._primal_off, float(np.abs(dual).max(initial=0.0)) / self._scale)
        #: In units of what is asked for: 1 is good enough.
        self.off = max(rows_off / EXACT, self._centre / (CENTRED * self._scale))

    def _rows(self, x_N: Floats) -> Floats:
        """What variables and slacks come to in each row."""
        found_R = self._matrix.times(x_N[: self._count])
        found_R[self._slack_S] += self._sign_S * x_N[self._count :]
        return found_R

    def _columns(self, y_R: Floats) -> Floats:
        """What the multipliers of rows come to for each variable and slack."""
        return np.concatenate([self._matrix.transposed_times(y_R), self._sign_S * y_R[self._slack_S]])

    def has(self, enough: float) -> bool:
        """The rows are met, and the objective is as low as this."""
        return self._primal_off <= EXACT and enough > -np.inf and _dot(self._linear, self._x) <= enough

    def stalled(self) -> bool:
        """As central as can be, and rows are as exact as the numbers allow, which is less exact than hoped for."""
        self._central = self._central + 1 if self._centre <= CENTRED * self._scale else 0
        is_accepted = self._central >= PATIENCE and self.off <= ACCEPTED
        return is_accepted or self._centre <= 1e-12 * CENTRED * self._scale

    def step(self) -> bool:
        """One iteration; False if the equations cannot be solved any more."""
        below, above_U, upper, logged = self._below, self._above_U, self._upper, self._logged
        diagonal = self._square + self._z / below
        if len(logged):
            diagonal[logged] += self._log[logged] / self._x[logged] ** 2
        diagonal[upper] += self._z_U / above_U
        weight = 1.0 / np.maximum(diagonal, 1e-14)
        slack_R = np.zeros(self._matrix.rows)
        slack_R[self._slack_S] = weight[self._count :]
        solve = self._matrix.factorised(weight[: self._count], slack_R)
        if solve is None:
            return False

        def direction(
            low_target: Floats | float, high_target: Floats | float
        ) -> tuple[Floats, Callable[[], Floats], Floats, Floats]:
            right = low_target / below - self._z - self._dual
            right[upper] -= high_target / above_U - self._z_U
            right_R = np.zeros(self._matrix.rows)
            right_R[self._slack_S] = self._sign_S * right[self._count :]
            d_V, e_R, prices = solve(right[: self._count], right_R, -self._primal)
            d_x = np.concatenate([d_V, self._sign_S * e_R[self._slack_S]])
            d_low = (low_target - self._z * d_x) / below - self._z
            return d_x, prices, d_low, (high_target + self._z_U * d_x[upper]) / above_U - self._z_U

        d_x, _, d_low, d_high = direction(0.0, 0.0)
        length, price_length = self._longest(d_x, d_low, d_high)
        ahead = _dot(self._z + price_length * d_low, below + length * d_x)
        ahead += _dot(self._z_U + price_length * d_high, above_U - length * d_x[upper])
        sigma = min(1.0, max(0.0, ahead / self._bounds / max(self._centre, 1e-300))) ** 3
        target = sigma * self._centre
        d_x, prices, d_low, d_high = direction(target - d_low * d_x, target + d_high * d_x[upper])
        d_y = prices()
        if not (np.isfinite(d_x).all() and np.isfinite(d_y).all()):
            return False
        length, price_length = (min(1.0, 0.995 * each) for each in self._longest(d_x, d_low, d_high, most=2.0))
        self._below = np.maximum(below + length * d_x, _TINY)
        self._above_U = np.maximum(above_U - length * d_x[upper], _TINY)
        self._y = self._y + price_length * d_y
        self._z = np.maximum(self._z + price_length * d_low, _TINY)
        self._z_U = np.maximum(self._z_U + price_length * d_high, _TINY)
        return min(length, price_length) > 1e-12

    def _longest(self, d_x: Floats, d_low: Floats, d_high: Floats, *, most: float = 1.0) -> tuple[float, float]:
        """The longest steps of at most `most` that keep distances, and multipliers, from becoming negative.

        They may differ in a linear program only: in any other the multipliers depend on the point.
        """
        falls = max(
            float((-d_x / self._below).max(initial=0.0)), float((d_x[self._upper] / self._above_U).max(initial=0.0))
        )
        fades = max(float((-d_low / self._z).max(initial=0.0)), float((-d_high / self._z_U).max(initial=0.0)))
        if not self._is_linear:
            falls = fades = max(falls, fades)
        return min(most, 1.0 / max(falls, 1e-300)), min(most, 1.0 / max(fades, 1e-300))


def _dot(one: Floats, other: Floats) -> float:
    """Their product on one processor: BLAS would wake a second one, which takes longer than the work."""
    return float(np.einsum("n,n->", one, other))
