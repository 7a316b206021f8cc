"""Separable convex programs over linear constraints, by a primal-dual interior-point method.

    minimise  sum over v of  linear_v x_v + square_v x_v^2 / 2 - log_v ln x_v
    subject to  low_R <= A x <= high_R,   low_V <= x <= high_V

HiGHS through SciPy has no quadratic objective, and neither has SciPy a method for thousands of variables. What policies
ask of one is small: the one point of a polyhedron that is most even, or the one that maximises Nash welfare. Where the
objective is strictly convex in a variable its value is unique, so it depends neither on the order of variables nor on a
solver. Mehrotra's predictor and corrector; every row becomes an equation with a bounded slack, and each step solves
(A D A') by a sparse factorisation.

Legend: V variables, slacks included at the end; R rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Iterations after which a program counts as too hard. Most take 10 to 30.
MOST_ITERATIONS = 120
#: The mean product of slack and multiplier at which the point is taken, and how far rows may then be off.
CENTRED = 1e-13
EXACT = 1e-9
#: Up to so many rows, dense matrices are quicker than sparse ones.
SMALL = 160
#: Multipliers stay above this: with denormal numbers a processor is slow.
_TINY = 1e-100


class ConvexProgram(NamedTuple):
    """Coefficients of the objective, the matrix (sparse), and the bounds of rows and variables."""

    linear_V: Floats
    square_V: Floats
    log_V: Floats
    matrix: Any
    low_R: Floats
    high_R: Floats
    low_V: Floats
    high_V: Floats
    #: Rows are in an order in which to eliminate them fills in little: such as those of all columns last.
    ordered: bool = False


def minimise(program: ConvexProgram) -> Floats | None:
    """The minimum, with errors of about 1e-8; None if the method does not get there."""
    solver = _InteriorPoint(program)
    for _ in range(MOST_ITERATIONS):
        if solver.finished() or solver.stalled():
            return solver.variables()
        if not solver.step():
            break
    return solver.variables() if solver.finished(slack=1e3) else None


class _InteriorPoint:
    """One run: the point, the multipliers of equations (y) and of bounds (z), moved together by `step`."""

    def __init__(self, program: ConvexProgram) -> None:
        from scipy.sparse import csr_array, eye_array, hstack

        rows, self._count = program.matrix.shape
        equal_R = program.high_R - program.low_R <= 0.0
        slack_R = np.flatnonzero(~equal_R)
        picked = eye_array(rows, format="csr")[:, slack_R]
        self._matrix = csr_array(hstack([program.matrix, -picked]))
        self._transposed = csr_array(self._matrix.T)
        self._small = rows <= SMALL
        if self._small:
            self._matrix, self._transposed = self._matrix.toarray(), self._transposed.toarray()
        zero_R = np.zeros(len(slack_R))
        self._ordered = program.ordered
        self._linear = np.concatenate([program.linear_V, zero_R])
        self._square = np.concatenate([program.square_V, zero_R])
        self._log = np.concatenate([program.log_V, zero_R])
        self._low = np.concatenate([program.low_V, program.low_R[slack_R]])
        self._high = np.concatenate([program.high_V, program.high_R[slack_R]])
        self._right = np.where(equal_R, program.low_R, 0.0)
        self._has_low, self._has_high = np.isfinite(self._low), np.isfinite(self._high)
        self._bounds = max(1, int(self._has_low.sum() + self._has_high.sum()))
        self._x = self._start()
        # Distances to the bounds, 1 where there is none. Kept beside x: near a bound the difference has no digits left.
        self._below = np.where(self._has_low, self._x - np.where(self._has_low, self._low, 0.0), 1.0)
        self._above = np.where(self._has_high, np.where(self._has_high, self._high, 0.0) - self._x, 1.0)
        self._y = np.zeros(rows)
        self._z_low = self._has_low.astype(np.float64)
        self._z_high = self._has_high.astype(np.float64)
        self._scale = max(1.0, float(np.abs(self._linear).max(initial=0.0)), float(self._square.max(initial=0.0)))

    def _start(self) -> Floats:
        low = np.where(self._has_low, self._low, np.where(self._has_high, self._high - 1.0, -1.0))
        high = np.where(self._has_high, self._high, low + 1.0)
        return np.asarray((low + high) / 2.0)

    def variables(self) -> Floats:
        return np.asarray(self._x[: self._count])

    def _residuals(self) -> tuple[Floats, Floats]:
        gradient = self._linear + self._square * self._x
        logged = self._log > 0.0
        gradient[logged] -= self._log[logged] / self._x[logged]
        dual = gradient + self._transposed @ self._y - self._z_low + self._z_high
        return dual, self._matrix @ self._x - self._right

    def _centre(self) -> float:
        """The mean product of a distance and its multiplier."""
        return float(self._z_low @ self._below + self._z_high @ self._above) / self._bounds

    def finished(self, slack: float = 1.0) -> bool:
        dual, primal = self._residuals()
        exact = max(float(np.abs(dual).max(initial=0.0)) / self._scale, float(np.abs(primal).max(initial=0.0)))
        return exact <= slack * EXACT and self._centre() <= slack * CENTRED * self._scale

    def stalled(self) -> bool:
        """As central as can be, and rows as exact as the numbers allow, which is less exact than hoped for."""
        return self._centre() <= 1e-4 * CENTRED * self._scale and self.finished(slack=100.0)

    def step(self) -> bool:
        """One iteration; False if the equations cannot be solved any more."""
        below, above = self._below, self._above
        dual, primal = self._residuals()
        curvature = self._square.copy()
        logged = self._log > 0.0
        curvature[logged] += self._log[logged] / self._x[logged] ** 2
        diagonal = curvature + self._z_low / below + self._z_high / above
        weight = 1.0 / np.maximum(diagonal, 1e-14)
        solve = self._factorised(weight)
        if solve is None:
            return False
        centre = self._centre()

        def direction(low_target: Floats, high_target: Floats) -> tuple[Floats, Floats, Floats, Floats]:
            right = -dual + low_target / below - self._z_low - (high_target / above - self._z_high)
            right_y = self._matrix @ (weight * right) + primal
            d_y = solve(right_y)
            d_x = weight * (right - self._transposed @ d_y)
            d_low = np.where(self._has_low, (low_target - self._z_low * d_x) / below - self._z_low, 0.0)
            d_high = np.where(self._has_high, (high_target + self._z_high * d_x) / above - self._z_high, 0.0)
            return d_x, d_y, d_low, d_high

        none = np.zeros(len(self._x))
        d_x, _, d_low, d_high = direction(none, none)
        length = self._longest(d_x, d_low, d_high, below, above)
        ahead = (self._z_low + length * d_low) @ np.where(self._has_low, below + length * d_x, 0.0)
        ahead += (self._z_high + length * d_high) @ np.where(self._has_high, above - length * d_x, 0.0)
        sigma = min(1.0, max(0.0, ahead / self._bounds / max(centre, 1e-300))) ** 3
        target = sigma * centre
        low_target = np.where(self._has_low, target - d_low * d_x, 0.0)
        high_target = np.where(self._has_high, target + d_high * d_x, 0.0)
        d_x, d_y, d_low, d_high = direction(low_target, high_target)
        if not (np.isfinite(d_x).all() and np.isfinite(d_y).all()):
            return False
        length = min(1.0, 0.995 * self._longest(d_x, d_low, d_high, below, above, most=2.0))
        self._x += length * d_x
        self._below += np.where(self._has_low, length * d_x, 0.0)
        self._above -= np.where(self._has_high, length * d_x, 0.0)
        self._y += length * d_y
        self._z_low = np.maximum(self._z_low + length * d_low, _TINY * self._has_low)
        self._z_high = np.maximum(self._z_high + length * d_high, _TINY * self._has_high)
        return length > 1e-12

    def _longest(
        self, d_x: Floats, d_low: Floats, d_high: Floats, below: Floats, above: Floats, *, most: float = 1.0
    ) -> float:
        """The longest step of at most `most` that keeps distances and multipliers from becoming negative."""
        length = most
        for value, change, counts in (
            (below, d_x, self._has_low),
            (above, -d_x, self._has_high),
            (self._z_low, d_low, self._has_low),
            (self._z_high, d_high, self._has_high),
        ):
            falls = counts & (change < 0.0)
            if falls.any():
                length = min(length, float((value[falls] / -change[falls]).min()))
        return length

    def _factorised(self, weight: Floats) -> Any:
        """A function that solves (A D A') y = right, refined once."""
        if self._small:
            return _dense_factorised((self._matrix * weight) @ self._transposed)
        from scipy.sparse import csc_array, diags_array, eye_array
        from scipy.sparse.linalg import splu

        normal = csc_array(self._matrix @ diags_array(weight) @ self._transposed)
        scale = 1.0 / np.sqrt(np.maximum(normal.diagonal(), 1e-300))
        scaled = csc_array(diags_array(scale) @ normal @ diags_array(scale))
        try:
            factors = splu(
                csc_array(scaled + 1e-14 * eye_array(normal.shape[0], format="csc")),
                permc_spec="NATURAL" if self._ordered else "MMD_AT_PLUS_A",
                options={"SymmetricMode": True, "DiagPivotThresh": 0.0},
            )
        except RuntimeError:  # exactly singular
            return None

        def solve(right: Floats) -> Floats:
            right = scale * right
            found = factors.solve(right)
            return np.asarray(scale * (found + factors.solve(right - scaled @ found)))

        return solve


def _dense_factorised(normal: Floats) -> Any:
    """The same for a dense matrix; None if it is singular."""
    from scipy.linalg import lu_factor, lu_solve

    scale = 1.0 / np.sqrt(np.maximum(normal.diagonal(), 1e-300))
    scaled = normal * scale[:, None] * scale
    try:
        factors = lu_factor(scaled + 1e-14 * np.eye(len(scaled)), check_finite=False)
    except (ValueError, np.linalg.LinAlgError):
        return None

    def solve(right: Floats) -> Floats:
        right = scale * right
        found = lu_solve(factors, right, check_finite=False)
        again = lu_solve(factors, right - scaled @ found, check_finite=False)
        return np.asarray(scale * (found + again))

    return solve
