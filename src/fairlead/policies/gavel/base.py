"""The constraints that all of Gavel's programs have in common, and the three questions that they ask.

    share      sum over columns with class k of share x <= 1          for every class: no job runs twice at a time
    capacity   sum over columns on type t of GPUs x <= capacity_t     for every type
    bounds     0 <= x <= 1

`largest_multiple` asks how many times a vector of needed throughputs fits (max-min fairness, makespan and finish-time
fairness are this), `largest_sum` for the largest weighted sum (throughput, cost), and `settle` which of the optima to
take: the one with the fewest changes, then the most even. Throughputs are relative to each class' best, 0 to 1.

Legend: K classes, T GPU types, V columns, E memberships, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.convex_program import ConvexProgram, minimise
from fairlead.policies.gavel.classes import Classes
from fairlead.policies.linear_program import LinearProgram, Method, Optimum

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: An objective may be this far from its optimum, as a share of it, for the sake of fewest changes and balance.
CONCEDED = 1e-7
#: What a share of time on another type than the one held weighs against balance, and what the spread over types does.
MOVE_WEIGHT = 10.0
SPREAD_WEIGHT = 1e-4
#: Rows of share and capacity may be this far over 1 while a balance is looked for; `tidy` takes it back.
SLACK = 1e-9
#: A share below this is none.
NONE = 1e-7
#: How much more throughput, as a share of its best, a class is asked to have to see whether it can rise at all.
PROBE = 1e-5
#: With more classes than this the interior-point method is quicker than the simplex method.
LARGE = 1000


@dataclass
class Solver:
    """How programs are solved, and how many there were."""

    #: None leaves it to the size of the program.
    method: Method | None = None
    programs: int = 0

    def run(self, program: LinearProgram, classes: Classes) -> Optimum:
        self.programs += 1
        large = len(classes.count_K) > LARGE
        return program.solve(
            maximise=True, method=self.method or (Method.INTERIOR_POINT if large else Method.AUTOMATIC)
        )


class Multiple(NamedTuple):
    """The largest multiple of the needs that fits, shares with which it does, and what limits it."""

    multiple: float
    value_V: Floats
    #: How much the multiple falls for a unit of throughput more that a class needs; above 0 only for a bottleneck.
    price_K: Floats
    #: How much it rises for a GPU more of each type.
    price_T: Floats


def can_rise(classes: Classes, floor_K: Floats, asked_K: Flags, solver: Solver) -> Flags:
    """Which of the classes asked about could have a little more throughput while none has less than its floor.

    Those that can do so one by one can do so together, by the mean of these allocations: so one program tells of all.
    """
    program, column_V, _ = _base("room to rise", classes)
    asked = np.flatnonzero(asked_K)
    rise_V = program.variables(len(asked), cost=1.0, high=PROBE)
    program.rows(
        np.concatenate([classes.class_E, asked]),
        np.concatenate([column_V[classes.column_E], rise_V]),
        np.concatenate([classes.speed_E, np.full(len(asked), -1.0)]),
        count=len(floor_K),
        low=floor_K,
    )
    found = solver.run(program, classes)
    rises_K = np.zeros(len(floor_K), dtype=bool)
    rises_K[asked] = found.values_V[rise_V] > PROBE / 100.0
    return rises_K


class Face(NamedTuple):
    """All optima of a sum, by complementary slackness: what is used up in each of them, and what is not used at all."""

    #: Columns without a share, types without an idle GPU, classes that always run, and classes at their floor.
    unused_V: Flags
    full_T: Flags
    busy_K: Flags
    floored_K: Flags


class Sum(NamedTuple):
    """The largest sum, shares that reach it, all others that do, and what a GPU more of each type would add."""

    total: float
    value_V: Floats
    face: Face
    price_T: Floats


def largest_multiple(classes: Classes, need_K: Floats, solver: Solver, *, floor_K: Floats | None = None) -> Multiple:
    """max c such that throughput_k >= floor_k + c need_k for all classes."""
    program, column_V, capacity_R = _base("largest multiple", classes)
    scale = float(need_K.max(initial=0.0)) or 1.0
    multiple = program.variables(1, cost=1.0)
    needing_K = np.flatnonzero(need_K > 0.0) if floor_K is None else np.arange(len(need_K))
    row_K = np.full(len(need_K), -1)
    row_K[needing_K] = np.arange(len(needing_K))
    counts_E = row_K[classes.class_E] >= 0
    rows = program.rows(
        np.concatenate([row_K[classes.class_E][counts_E], np.arange(len(needing_K))]),
        np.concatenate([column_V[classes.column_E[counts_E]], np.full(len(needing_K), multiple[0])]),
        np.concatenate([classes.speed_E[counts_E], -need_K[needing_K] / scale]),
        count=len(needing_K),
        low=0.0 if floor_K is None else floor_K,
    )
    found = solver.run(program, classes)
    price_K = np.zeros(len(need_K))
    price_K[needing_K] = -found.duals_R[rows] / scale
    price_T = found.duals_R[capacity_R] / scale
    return Multiple(found.objective / scale, found.values_V[column_V], np.maximum(price_K, 0.0), price_T)


def largest_sum(classes: Classes, worth_V: Floats, solver: Solver, *, floor_K: Floats | None = None) -> Sum:
    """max sum of worth x such that throughput_k >= floor_k."""
    scale = float(worth_V.max(initial=0.0)) or 1.0
    program, column_V, capacity_R = _base("largest sum", classes, worth_V / scale)
    floored_K = np.zeros(0, dtype=np.int64)
    if floor_K is not None:
        floored_K = np.flatnonzero(floor_K > 0.0)
        row_K = np.full(len(floor_K), -1)
        row_K[floored_K] = np.arange(len(floored_K))
        counts_E = row_K[classes.class_E] >= 0
        program.rows(
            row_K[classes.class_E][counts_E],
            column_V[classes.column_E[counts_E]],
            classes.speed_E[counts_E],
            count=len(floored_K),
            low=floor_K[floored_K],
        )
    found = solver.run(program, classes)
    duals_R = found.duals_R
    rows = len(classes.count_K) + len(capacity_R)
    held_K = np.zeros(len(classes.count_K), dtype=bool)
    held_K[floored_K] = np.abs(duals_R[rows:]) > CONCEDED
    face = Face(
        unused_V=found.reduced_V[column_V] < -CONCEDED,
        full_T=duals_R[capacity_R] > CONCEDED,
        busy_K=duals_R[: len(classes.count_K)] > CONCEDED,
        floored_K=held_K,
    )
    return Sum(scale * found.objective, found.values_V[column_V], face, scale * duals_R[capacity_R])


def _base(name: str, classes: Classes, cost_V: Floats | float = 0.0) -> tuple[LinearProgram, Ints, Ints]:
    """A program with the constraints in common; its columns, and its rows of capacity."""
    program = LinearProgram(name)
    column_V = program.variables(len(classes.type_V), cost=cost_V)  # at most 1 by the first rows
    program.rows(classes.class_E, column_V[classes.column_E], classes.share_E, count=len(classes.count_K), high=1.0)
    capacity_T = classes.problem.capacity_T.astype(np.float64)
    capacity_R = program.rows(classes.type_V, column_V, classes.gpus_V, count=len(capacity_T), high=capacity_T)
    return program, column_V, capacity_R


# -- which of the optima -----------------------------------------------------------------------------------------------


def settle(classes: Classes, *, floor_K: Floats | None = None, face: Face | None = None) -> Floats | None:
    """Among the shares with throughput_k >= floor_k, and on the face if there is one, those that minimise

        sum over jobs of GPUs (1 - throughput)^2                                all are as far below their best
      + SPREAD_WEIGHT  sum over columns of GPUs (x - even)^2 / part             spread as the GPUs are over types
      + MOVE_WEIGHT    sum over columns of GPUs x, on other types than held     fewest changes

    where part is what the type has of all the GPUs that the class can use, and even is the same, but 0 for pairs. It is
    strictly convex, so there is one minimum. None if the numbers do not allow an answer.
    """
    classes_K = len(classes.count_K)
    weight_K = classes.count_K * classes.problem.gpus_J.astype(np.float64)
    unit = float(weight_K.max(initial=1.0))
    part_V = _part(classes)
    square_V = 2.0 * SPREAD_WEIGHT * classes.gpus_V / part_V / unit
    even_V = np.where(classes.single_V, part_V, 0.0)
    found = _minimise(
        classes,
        linear_V=np.concatenate(
            [MOVE_WEIGHT * classes.gpus_V * classes.moves_V / unit - square_V * even_V, -2.0 * weight_K / unit]
        ),
        square_V=np.concatenate([square_V, 2.0 * weight_K / unit]),
        log_K=np.zeros(classes_K),
        floor_K=np.zeros(classes_K) if floor_K is None else np.clip(floor_K, 0.0, 1.0),
        face=face,
    )
    return None if found is None else tidy(classes, found)


def largest_welfare(classes: Classes, weight_K: Floats) -> Floats | None:
    """The relative throughputs that maximise sum of weight_k ln throughput_k; None if the numbers do not allow it."""
    classes_K, columns = len(classes.count_K), len(classes.type_V)
    zero_V = np.zeros(columns + classes_K)
    found = _minimise(
        classes,
        linear_V=zero_V,
        square_V=zero_V,
        log_K=weight_K / weight_K.max(),
        floor_K=np.zeros(classes_K),
        face=None,
    )
    return None if found is None else classes.relative(tidy(classes, found))


def _part(classes: Classes) -> Floats:
    """What each column's type has of the GPUs of all types that its (first) class can use alone."""
    capacity_T = classes.problem.capacity_T.astype(np.float64)
    usable_K = classes.problem.usable @ capacity_T
    first_V = np.zeros(len(classes.type_V), dtype=np.int64)
    first_V[classes.column_E[::-1]] = classes.class_E[::-1]
    return np.asarray(capacity_T[classes.type_V] / usable_K[first_V])


def _minimise(
    classes: Classes,
    *,
    linear_V: Floats,
    square_V: Floats,
    log_K: Floats,
    floor_K: Floats,
    face: Face | None,
) -> Floats | None:
    """The minimum over the base constraints. Variables are the columns, and after them the throughput of each class."""
    from scipy.sparse import csr_array

    jobs, columns, types = len(classes.count_K), len(classes.type_V), len(classes.problem.capacity_T)
    capacity_T = classes.problem.capacity_T.astype(np.float64)
    every_K = np.arange(jobs)
    # The two rows of a class side by side, those of capacity last: so that to eliminate them in order fills in little.
    row = [2 * classes.class_E, 2 * jobs + classes.type_V, 2 * classes.class_E + 1, 2 * every_K + 1]
    column = [classes.column_E, np.arange(columns), classes.column_E, columns + every_K]
    unit_T = np.maximum(capacity_T, 1.0)  # rows of equal size, for the sake of the numbers
    value = [classes.share_E, classes.gpus_V / unit_T[classes.type_V], classes.speed_E, np.full(jobs, -1.0)]
    low_R, high_R = np.full(2 * jobs + types, -np.inf), np.full(2 * jobs + types, 1.0 + SLACK)
    low_R[1 : 2 * jobs : 2] = high_R[1 : 2 * jobs : 2] = 0.0
    most_V, most_K = np.full(columns, 1.0 + 1e-6), np.full(jobs, 1.0 + 1e-6)
    if face is not None:
        tight = np.concatenate([2 * np.flatnonzero(face.busy_K), 2 * jobs + np.flatnonzero(face.full_T)])
        low_R[tight] = high_R[tight] = 1.0
        most_V[face.unused_V] = SLACK
        most_K[face.floored_K] = floor_K[face.floored_K] + 10.0 * SLACK
    entries = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
    found = minimise(
        ConvexProgram(
            linear_V=linear_V,
            square_V=square_V,
            log_V=np.concatenate([np.zeros(columns), log_K]),
            matrix=csr_array(entries, shape=(len(low_R), columns + jobs)),
            low_R=low_R,
            high_R=high_R,
            low_V=np.concatenate([np.zeros(columns), floor_K]),
            high_V=np.concatenate([most_V, most_K]),
            ordered=bool(classes.single_V.all()),
        )
    )
    return None if found is None else found[:columns]


def tidy(classes: Classes, value_V: Floats) -> Floats:
    """Without what rounding left of a share that is none, and with every constraint met to the last digit but one."""
    value_V = np.where(value_V < NONE, 0.0, np.minimum(value_V, 1.0))
    over_K = np.maximum(classes.total(value_V), 1.0)
    over_V = np.ones(len(value_V))
    np.maximum.at(over_V, classes.column_E, over_K[classes.class_E])
    value_V = value_V / over_V
    used_T = np.bincount(classes.type_V, classes.gpus_V * value_V, len(classes.problem.capacity_T))
    return np.asarray(value_V / np.maximum(1.0, used_T / np.maximum(classes.problem.capacity_T, 1))[classes.type_V])
