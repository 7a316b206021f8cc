"""Completion of a matrix with gaps: from the entries that were measured to those that were not. Knows no jobs.

    x_rc ~ mean + row_r + column_c + u_r . v_c          ridge regression, row by row and column by column in turn

`complete` shrinks every term towards 0: a row or column of which little was measured is like the others, one of which
nothing was measured is as the mean. `complete_ratios` is for rows that are known up to a constant each, as speeds in a
unit of their own are: rows and columns are medians, without factors (one factor helped on the jobs of one GPU that it
was tried on first, and did harm on those of two and eight). What was measured is returned as it is, by both.

Legend: R rows, C columns, K hidden factors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Passes over rows and columns; the answer hardly changes after ten.
PASSES = 12


def complete(known_RC: Floats, *, factors: int = 5, shrink: float = 1.0) -> Floats:
    """The whole matrix. Entries that are not finite are gaps; `shrink` is in entries: so many say nothing new."""
    there_RC = np.isfinite(known_RC)
    if not there_RC.any():
        return np.zeros_like(known_RC)
    mean = float(known_RC[there_RC].mean())
    rest_RC = np.where(there_RC, known_RC - mean, 0.0)
    row_R, column_C = _effects(rest_RC, there_RC, shrink)
    model_RC = row_R[:, None] + column_C[None, :]
    if factors > 0 and min(known_RC.shape) > 1:
        model_RC = model_RC + _low_rank(np.where(there_RC, rest_RC - model_RC, 0.0), there_RC, factors, shrink)
    return np.where(there_RC, known_RC, mean + model_RC)


def complete_ratios(known_RC: Floats) -> Floats:
    """The whole matrix, of which only differences within a row mean something. Every row needs an entry."""
    column_C = usual_ratios(known_RC)
    row_R = np.nanmedian(known_RC - column_C[None, :], axis=1)
    return np.where(np.isfinite(known_RC), known_RC, row_R[:, None] + column_C[None, :])


def usual_ratios(known_RC: Floats) -> Floats:
    """What is particular to each column: by this `complete_ratios` fills a row with one entry. 0 for empty columns."""
    measured_C = np.isfinite(known_RC).any(axis=0)
    column_C = np.zeros(known_RC.shape[1])
    for _ in range(PASSES):
        row_R = np.nanmedian(known_RC - column_C[None, :], axis=1)
        column_C[measured_C] = np.nanmedian((known_RC - row_R[:, None])[:, measured_C], axis=0)
    if measured_C.any():
        column_C[measured_C] -= np.median(column_C[measured_C])
    return column_C


def _effects(rest_RC: Floats, there_RC: NDArray[np.bool_], shrink: float) -> tuple[Floats, Floats]:
    """What is particular to each row and to each column."""
    row_R, column_C = np.zeros(rest_RC.shape[0]), np.zeros(rest_RC.shape[1])
    count_R, count_C = there_RC.sum(axis=1) + shrink, there_RC.sum(axis=0) + shrink
    for _ in range(PASSES):
        row_R = ((rest_RC - column_C[None, :]) * there_RC).sum(axis=1) / count_R
        column_C = ((rest_RC - row_R[:, None]) * there_RC).sum(axis=0) / count_C
    return row_R, column_C


def _low_rank(rest_RC: Floats, there_RC: NDArray[np.bool_], factors: int, shrink: float) -> Floats:
    """Alternating least squares from the singular vectors of the matrix with 0 in its gaps: no chance is involved."""
    left, size, right = np.linalg.svd(rest_RC, full_matrices=False)
    factors = min(factors, len(size))
    u_RK = left[:, :factors] * np.sqrt(size[:factors])
    v_CK = right[:factors].T * np.sqrt(size[:factors])
    for _ in range(PASSES):
        u_RK = _ridge(rest_RC, there_RC, v_CK, shrink)
        v_CK = _ridge(rest_RC.T, there_RC.T, u_RK, shrink)
    return np.asarray(u_RK @ v_CK.T)


def _ridge(rest_RC: Floats, there_RC: NDArray[np.bool_], v_CK: Floats, shrink: float) -> Floats:
    """For every row the factors that explain it best, given those of the columns."""
    factors = v_CK.shape[1]
    scale = shrink * max(float((v_CK**2).sum()) / max(1, v_CK.shape[0] * factors), 1e-12)
    gram_RKK = np.einsum("rc,ck,cl->rkl", there_RC.astype(np.float64), v_CK, v_CK) + scale * np.eye(factors)
    return np.asarray(np.linalg.solve(gram_RKK, (rest_RC @ v_CK)[:, :, None])[:, :, 0])
