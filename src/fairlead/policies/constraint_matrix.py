"""Matrices of linear constraints, and the step at the heart of an interior-point method (`convex_program`): find

    d_v = weight_v (right_v - (A' y)_v),    e_r = slack_r (slack_right_r - y_r),    such that  A d + e = change

for variables v, and rows r with a slack. `GeneralMatrix` takes any matrix: dense where there are few rows, sparse
otherwise. `ArrowMatrix` is for programs in which many jobs share a few resources: each job has two rows of its own, and
only a few rows have columns of several jobs. What is left once every job's 2 x 2 block is eliminated is a system
as large as the number of resources: a step takes time in proportion to the jobs.

Legend: V variables, R rows; K jobs (or classes of jobs), T resources (GPU types), G shared rows, N local variables of a
job, P pairs of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: (right_V, slack_right_R, change_R) to (d_V, e_R, y_R); y_R as a function, since not every step needs it.
Step = Callable[[Floats, Floats, Floats], tuple[Floats, Floats, Callable[[], Floats]]]
Solve = Callable[[Floats], Floats]

#: Up to so many multiplications for (A D A'), dense matrices are quicker than sparse ones. For more of them the library
#: below wakes further processors, which takes longer than the work.
SMALL = 100_000
#: What is added to a scaled diagonal, so that a row that repeats another one does no harm.
REGULAR = 1e-14
#: How often a step is corrected for what rounding did to its rows, and how far off they may be.
MOST_REFINEMENTS = 3
#: The same for the equations that are left of an arrow, whose rows may all but vanish.
CORE_REGULAR = 1e-13
EXACT = 1e-11


class ConstraintMatrix(Protocol):
    """A matrix with as many columns as the program has variables."""

    @property
    def rows(self) -> int: ...

    def times(self, x_V: Floats) -> Floats:
        """A x."""
        ...

    def transposed_times(self, y_R: Floats) -> Floats:
        """A' y."""
        ...

    def factorised(self, weight_V: Floats, slack_R: Floats) -> Step | None:
        """The step as a function, for these weights; None if its equations are singular."""
        ...


class GeneralMatrix:
    """Any matrix. `is_ordered` says that to eliminate its rows one after the other fills in little."""

    def __init__(self, matrix: Any, *, is_ordered: bool = False) -> None:
        from scipy.sparse import csr_array

        sparse = csr_array(matrix)
        self.rows = int(sparse.shape[0])
        self._is_small = self.rows**2 * int(sparse.shape[1]) <= SMALL
        self._is_ordered = is_ordered
        self._matrix: Any = sparse.toarray() if self._is_small else sparse
        self._transposed: Any = self._matrix.T.copy() if self._is_small else csr_array(sparse.T)

    def times(self, x_V: Floats) -> Floats:
        return np.asarray(self._matrix @ x_V)

    def transposed_times(self, y_R: Floats) -> Floats:
        return np.asarray(self._transposed @ y_R)

    def factorised(self, weight_V: Floats, slack_R: Floats) -> Step | None:
        if self._is_small:
            solve = _dense((self._matrix * weight_V) @ self._transposed + np.diag(slack_R))
        else:
            solve = self._sparse(weight_V, slack_R)
        if solve is None:
            return None

        def step(
            right_V: Floats, slack_right_R: Floats, change_R: Floats
        ) -> tuple[Floats, Floats, Callable[[], Floats]]:
            y_R = solve(self.times(weight_V * right_V) + slack_R * slack_right_R - change_R)
            d_V, e_R = weight_V * (right_V - self.transposed_times(y_R)), slack_R * (slack_right_R - y_R)
            for _ in range(MOST_REFINEMENTS):
                # Weights are large near the end, and what rounding leaves of y is large in d. Its rows tell.
                missed_R = self.times(d_V) + e_R - change_R
                if float(np.abs(missed_R).max(initial=0.0)) <= EXACT:
                    break
                more_R = solve(missed_R)
                y_R, e_R = y_R + more_R, e_R - slack_R * more_R
                d_V = d_V - weight_V * self.transposed_times(more_R)
            return d_V, e_R, lambda: y_R

        return step

    def _sparse(self, weight_V: Floats, slack_R: Floats) -> Solve | None:
        from scipy.sparse import csc_array, diags_array, eye_array
        from scipy.sparse.linalg import splu

        normal = csc_array(self._matrix @ diags_array(weight_V) @ self._transposed + diags_array(slack_R))
        scale = 1.0 / np.sqrt(np.maximum(normal.diagonal(), 1e-300))
        scaled = csc_array(diags_array(scale) @ normal @ diags_array(scale))
        try:
            factors = splu(
                csc_array(scaled + REGULAR * eye_array(self.rows, format="csc")),
                permc_spec="NATURAL" if self._is_ordered else "MMD_AT_PLUS_A",
                options={"SymmetricMode": True, "DiagPivotThresh": 0.0},
            )
        except RuntimeError:  # exactly singular
            return None

        def solve(right_R: Floats) -> Floats:
            right_R = scale * right_R
            found = factors.solve(right_R)
            return np.asarray(scale * (found + factors.solve(right_R - scaled @ found)))

        return solve


def _dense(normal: Floats) -> Solve | None:
    from scipy.linalg import lu_factor, lu_solve

    scale = 1.0 / np.sqrt(np.maximum(normal.diagonal(), 1e-300))
    scaled = normal * scale[:, None] * scale
    try:
        factors = lu_factor(scaled + REGULAR * np.eye(len(scaled)), check_finite=False)
    except (ValueError, np.linalg.LinAlgError):
        return None

    def solve(right_R: Floats) -> Floats:
        right_R = scale * right_R
        found = lu_solve(factors, right_R, check_finite=False)
        again = lu_solve(factors, right_R - scaled @ found, check_finite=False)
        return np.asarray(scale * (found + again))

    return solve


class ArrowMatrix:
    """Shares x[t, k] of each job k on each resource t, its throughput r[k], and the number c of times that needs fit.

    Variables are the shares (type by type), the throughputs, and c if there are needs. The rows, in this order:

        sum over t of time[t, k] x[t, k]                      of each job: its time
        sum over t of speed[t, k] x[t, k] - r[k] - need[k] c  of each job: its throughput, an equation
        sum over k of load[t, k] x[t, k]                      of each resource
        sum over k, t of move[t, k] x[t, k]                   if there are moves

    Where a job cannot run, all of these are 0.
    """

    def __init__(
        self,
        time_TK: Floats,
        speed_TK: Floats,
        load_TK: Floats,
        *,
        need_K: Floats | None = None,
        move_TK: Floats | None = None,
    ) -> None:
        self.types, self.jobs = speed_TK.shape
        self.time_TK = time_TK
        self.speed_TK, self.load_TK, self.move_TK, self.need_K = speed_TK, load_TK, move_TK, need_K
        self.rows = 2 * self.jobs + self.types + (move_TK is not None)
        # The local variables of a job: its shares, the slack of its time, its throughput; and its two rows of them.
        one, zero = np.ones((1, self.jobs)), np.zeros((1, self.jobs))
        self.time_NK = np.concatenate([time_TK, one, zero])
        self.speed_NK = np.concatenate([speed_TK, zero, -one])
        self.pairs_P = np.triu_indices(self.types + 2, 1)
        cross_NNK = self.time_NK[:, None] * self.speed_NK[None] - self.speed_NK[:, None] * self.time_NK[None]
        first_P, second_P = self.pairs_P
        #: What weights are multiplied with for B^-1 u_i (its two rows), and for the entries of B^-1.
        self.inverse_2NNK = np.stack([-self.speed_NK[:, None] * cross_NNK, self.time_NK[:, None] * cross_NNK])
        self.entries_3NK = np.stack([self.speed_NK**2, -self.speed_NK * self.time_NK, self.time_NK**2])
        self.square_PK = cross_NNK[first_P, second_P] ** 2
        self.product_PNK = np.transpose(cross_NNK[:, first_P] * cross_NNK[:, second_P], (1, 0, 2))
        every_N = np.arange(self.types + 2)[:, None]
        self.without_NP = ((first_P != every_N) & (second_P != every_N)).astype(np.float64)

    def parts(self, x_V: Floats) -> tuple[Floats, Floats, float]:
        """Shares, throughputs, and c."""
        columns = self.jobs * self.types
        own_K = x_V[columns : columns + self.jobs]
        return x_V[:columns].reshape(self.types, self.jobs), own_K, 0.0 if self.need_K is None else float(x_V[-1])

    def times(self, x_V: Floats) -> Floats:
        x_TK, own_K, multiple = self.parts(x_V)
        speed_K = np.einsum("tk,tk->k", self.speed_TK, x_TK) - own_K
        if self.need_K is not None:
            speed_K -= self.need_K * multiple
        return np.concatenate([np.einsum("tk,tk->k", self.time_TK, x_TK), speed_K, self.shared(x_TK)])

    def shared(self, x_TK: Floats) -> Floats:
        """What shares come to in the rows that jobs have in common."""
        found_G = np.empty(self.types + (self.move_TK is not None))
        np.einsum("tk,tk->t", self.load_TK, x_TK, out=found_G[: self.types])
        if self.move_TK is not None:
            found_G[-1] = np.einsum("tk,tk->", self.move_TK, x_TK)
        return found_G

    def pull(self, y_G: Floats) -> Floats:
        """What multipliers of the rows in common come to for each share."""
        found_TK = self.load_TK * y_G[: self.types, None]
        if self.move_TK is not None:
            found_TK += self.move_TK * y_G[-1]
        return np.asarray(found_TK)

    def transposed_times(self, y_R: Floats) -> Floats:
        time_K, speed_K = y_R[: self.jobs], y_R[self.jobs : 2 * self.jobs]
        found_TK = self.pull(y_R[2 * self.jobs :]) + self.time_TK * time_K + self.speed_TK * speed_K
        found = [found_TK.reshape(-1), -speed_K]
        if self.need_K is not None:
            found.append(np.array([-_dot(self.need_K, speed_K)]))
        return np.concatenate(found)

    def factorised(self, weight_V: Floats, slack_R: Floats) -> Step | None:
        weight_TK, own_K, multiple = self.parts(weight_V)
        blocks = _Blocks(self, np.concatenate([weight_TK, slack_R[None, : self.jobs], own_K[None]]))
        return blocks.step if blocks.join(slack_R[2 * self.jobs :], max(multiple, 1e-300)) else None


class _Blocks:
    """The 2 x 2 blocks U D U' of jobs, and what is left of the equations once they are eliminated.

    A block becomes nearly singular as a solution comes near, and differences of large numbers would lose all digits. So
    all that is made of it is a sum over pairs of local variables (Cauchy and Binet), without what cancels:

        determinant = sum over pairs of d_i d_j (u_i x u_j)^2
        projected = D - D U' B^-1 U D
        right inverse = D U' B^-1
    """

    def __init__(self, arrow: ArrowMatrix, weight_NK: Floats) -> None:
        self._arrow = arrow
        first_P, second_P = arrow.pairs_P
        both_PK = weight_NK[first_P] * weight_NK[second_P]
        pair_PK = both_PK * arrow.square_PK
        det_K = np.maximum(pair_PK.sum(axis=0), 1e-300)
        across_PK = -both_PK / det_K * np.einsum("pnk,nk->pk", arrow.product_PNK, weight_NK)
        size = len(weight_NK)
        self._projected_NNK = np.empty((size, size, arrow.jobs))
        self._projected_NNK[first_P, second_P] = self._projected_NNK[second_P, first_P] = across_PK
        every = np.arange(size)
        self._projected_NNK[every, every] = weight_NK * np.einsum("np,pk->nk", arrow.without_NP, pair_PK) / det_K
        # B^-1 u_i d_i: the columns of the right inverse.
        columns = np.einsum("clnk,lk->cnk", arrow.inverse_2NNK, weight_NK)
        self._time_NK, self._speed_NK = columns * (weight_NK / det_K)
        self._inverse = np.einsum("cnk,nk->ck", arrow.entries_3NK, weight_NK) / det_K

    def join(self, slack_G: Floats, multiple: float) -> bool:
        """Factorise what is left, with these weights of the shared rows and of c. False if it is singular."""
        self._slack_G, self._multiple = slack_G, multiple
        core = self._core()
        scale = 1.0 / np.sqrt(np.maximum(np.abs(core.diagonal()), 1e-300))
        try:
            scaled = core * scale[:, None] * scale + CORE_REGULAR * np.eye(len(core))
            self._core_inverse = np.linalg.inv(scaled) * scale[:, None] * scale
        except np.linalg.LinAlgError:
            return False
        return bool(np.isfinite(self._core_inverse).all())

    def _core(self) -> Floats:
        """The equations of the shared rows, and of c as the last unknown."""
        arrow, types = self._arrow, self._arrow.types
        projected_TTK = self._projected_NNK[:types, :types]
        shared, size = len(self._slack_G), len(self._slack_G) + (arrow.need_K is not None)
        core = np.zeros((size, size))
        core[np.arange(shared), np.arange(shared)] = self._slack_G
        core[:types, :types] += np.einsum("sk,stk,tk->st", arrow.load_TK, projected_TTK, arrow.load_TK)
        if arrow.move_TK is not None:
            moved_TK = np.einsum("stk,tk->sk", projected_TTK, arrow.move_TK)
            core[:types, types] = core[types, :types] = np.einsum("tk,tk->t", arrow.load_TK, moved_TK)
            core[types, types] += np.einsum("tk,tk->", arrow.move_TK, moved_TK)
        if arrow.need_K is not None:
            border_G = arrow.shared(arrow.need_K * self._speed_NK[:types])
            core[:shared, -1], core[-1, :shared] = -border_G, border_G
            core[-1, -1] = 1.0 / self._multiple + _dot(arrow.need_K**2, self._inverse[2])
        return core

    def step(
        self, right_V: Floats, slack_right_R: Floats, change_R: Floats
    ) -> tuple[Floats, Floats, Callable[[], Floats]]:
        """The step of all jobs: first as if nothing were shared, then with the multipliers of what is."""
        arrow, jobs, types = self._arrow, self._arrow.jobs, self._arrow.types
        right_TK, own_K, right_c = arrow.parts(right_V)
        right_NK = np.concatenate([right_TK, slack_right_R[None, :jobs], own_K[None]])
        time_K, speed_K = change_R[:jobs], change_R[jobs : 2 * jobs]
        time_inverse_K, mixed_K, speed_inverse_K = self._inverse
        local_NK = np.einsum("nmk,mk->nk", self._projected_NNK, right_NK)
        local_NK += self._time_NK * time_K + self._speed_NK * speed_K
        # The few equations in common, and what rounding left of them: near the end they are nearly singular.
        y_G, d_c, e_G = np.zeros(len(self._slack_G)), 0.0, self._slack_G * slack_right_R[2 * jobs :]
        for attempt in range(1 + MOST_REFINEMENTS):
            missed_G = arrow.shared(local_NK[:types]) + e_G - change_R[2 * jobs :]
            if attempt and float(np.abs(missed_G).max(initial=0.0)) <= EXACT:
                break
            if arrow.need_K is None:
                more_G, more_c = self._core_inverse @ missed_G, 0.0
            else:
                y_K = np.einsum("nk,nk->k", self._speed_NK, right_NK) - mixed_K * time_K - speed_inverse_K * speed_K
                missed_c = right_c + _dot(arrow.need_K, y_K) - d_c / self._multiple
                found = self._core_inverse[:, :-1] @ missed_G + self._core_inverse[:, -1] * missed_c
                more_G, more_c = found[:-1], float(found[-1])
                speed_K = speed_K + arrow.need_K * more_c
                local_NK += self._speed_NK * (arrow.need_K * more_c)
            pull_TK = arrow.pull(more_G)
            local_NK -= np.einsum("ntk,tk->nk", self._projected_NNK[:, :types], pull_TK)
            right_NK[:types] -= pull_TK
            y_G, d_c, e_G = y_G + more_G, d_c + more_c, e_G - self._slack_G * more_G

        def prices() -> Floats:
            y_time_K = np.einsum("nk,nk->k", self._time_NK, right_NK) - time_inverse_K * time_K - mixed_K * speed_K
            y_speed_K = np.einsum("nk,nk->k", self._speed_NK, right_NK) - mixed_K * time_K - speed_inverse_K * speed_K
            return np.concatenate([y_time_K, y_speed_K, y_G])

        d_V = [local_NK[:types].reshape(-1), local_NK[types + 1]]
        if arrow.need_K is not None:
            d_V.append(np.array([d_c]))
        e_R = np.concatenate([local_NK[types], np.zeros(jobs), e_G])
        return np.concatenate(d_V), e_R, prices


def _dot(one: Floats, other: Floats) -> float:
    """Their product on one processor: BLAS would wake a second one, which takes longer than the work."""
    return float(np.einsum("n,n->", one, other))
