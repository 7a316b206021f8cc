"""FIFO and shortest job first: each job in turn gets its fastest type with room, for all of the time.

The first job for which there is no room ends the line: none behind it is served out of turn. (GPUs that are free then
are not idle for that: rounds are work conserving, and serve the next of those that are owed nothing.) With pairs, a
job for which there is no room may share the GPUs of one that has them, if both together get more than half again as
much done as either alone; the reference's figure.

Legend: J jobs, T GPU types.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.problem import Shares, SharingProblem, pair_factors

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: What two jobs that share GPUs must get done together, where one alone gets 1 done.
WORTH_SHARING = 1.5


def fifo(problem: SharingProblem, _solver: Solver) -> Shares:
    """First come, first served."""
    return _served(problem, np.argsort(-problem.elapsed_J, kind="stable"))


def sjf(problem: SharingProblem, _solver: Solver) -> Shares:
    """The job with the least time left on its fastest type is served first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left_s_J = np.where(problem.best > 0.0, problem.left_J / problem.best, np.inf)
    return _served(problem, np.lexsort((-problem.elapsed_J, left_s_J)))


def _served(problem: SharingProblem, order: Ints) -> Shares:
    alone_JT = np.zeros(problem.rate_JT.shape)
    pairs: dict[tuple[int, int], Floats] = {}
    free_T = problem.capacity_T.copy()
    usable_JT = problem.usable
    served = 0
    for job in order.tolist():
        if not usable_JT[job].any():
            continue
        kind = _fastest(problem, job, usable_JT[job] & (free_T >= problem.gpus_J[job]))
        if kind >= 0:
            alone_JT[job, kind] = 1.0
            free_T[kind] -= problem.gpus_J[job]
        elif (found := _partner(problem, job, alone_JT)) is not None:
            partner, kind = found
            alone_JT[partner, kind] = 0.0
            share_T = np.zeros(len(free_T))
            share_T[kind] = 1.0
            pairs[min(job, partner), max(job, partner)] = share_T
        else:
            break
        served += 1
    return Shares(alone_JT, pairs, float(served), float(served))


def _fastest(problem: SharingProblem, job: int, room_T: NDArray[np.bool_]) -> int:
    """The fastest type with room; among equals the one it holds, then that with the most GPUs; -1 if none has room."""
    if not room_T.any():
        return -1
    rate_T = np.where(room_T, problem.rate_JT[job], -1.0)
    equal = np.flatnonzero(rate_T >= rate_T.max() * (1.0 - 1e-12))
    held = int(problem.held_J[job])
    if held in equal:
        return held
    return int(equal[np.argmax(problem.capacity_T[equal])])


def _partner(problem: SharingProblem, job: int, alone_JT: Floats) -> tuple[int, int] | None:
    """A job that is served alone, and its type, with which this one would get most done; None if too little."""
    best, found = WORTH_SHARING, None
    for partner, kind in np.argwhere(alone_JT > 0.0).tolist():
        kinds = sorted((int(problem.kind_J[job]), int(problem.kind_J[partner])))
        key = (kinds[0], kinds[1], int(problem.gpus_J[job]))
        if problem.gpus_J[partner] == problem.gpus_J[job] and key in problem.pairs and problem.rate_JT[job, kind] > 0.0:
            factor_M = pair_factors(problem, job, partner)[kind]
            if factor_M.min() > 0.0 and factor_M.sum() > best:
                best, found = float(factor_M.sum()), (partner, kind)
    return found
