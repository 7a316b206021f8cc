"""Programs over classes of jobs: what all of Gavel's have in common, and how they are solved.

    minimise   sum over columns of  linear x + square x^2 / 2
               + sum over classes of  linear r + square r^2 / 2 - log ln r
               - c, if there are needs
    subject to sum over columns with class k of share x <= 1          for every class: no job runs twice at a time
               sum over columns on type t of GPUs x <= capacity_t     for every type
               sum over columns with class k of speed x = r_k + c need_k,   floor_k <= r_k <= high_k
               sum over columns of GPUs x, on other types than held, <= limit, as a part of what could move
               0 <= x <= high

Without pairs, classes meet in the rows of capacity only. Our interior-point method then takes time in proportion to
the classes (`ArrowMatrix`), less than HiGHS takes; with pairs its equations are sparse, with no such form. A linear
program with which it does not come to an end goes to HiGHS.

Legend: K classes, T GPU types, V columns, E memberships, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.constraint_matrix import ArrowMatrix, ConstraintMatrix, GeneralMatrix
from fairlead.policies.convex_program import ConvexProgram, minimise
from fairlead.policies.gavel.classes import Classes
from fairlead.policies.linear_program import LinearProgram, Method, NoSolution, Trouble

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: A price above this is one, if what it is for is this near to its bound.
PRICED = 2e-9
AT_BOUND = 1e-7
#: With more classes than this HiGHS' interior-point method is quicker than its simplex method.
LARGE = 1000


class Face(NamedTuple):
    """All optima of a program, by complementary slackness: what each of them uses up, and what none uses."""

    #: Columns without a share, types without an idle GPU, classes that always run, and classes at their floor.
    unused_V: Flags
    full_T: Flags
    busy_K: Flags
    floored_K: Flags


@dataclass(frozen=True)
class ClassProgram:
    """A program as above. What is left out is 0, or no limit."""

    name: str
    classes: Classes
    linear_V: Floats | None = None
    square_V: Floats | None = None
    linear_K: Floats | None = None
    square_K: Floats | None = None
    log_K: Floats | None = None
    need_K: Floats | None = None
    floor_K: Floats | None = None
    high_K: Floats | None = None
    face: Face | None = None
    #: The most of what could move that may be on other types than held.
    limit: float | None = None
    #: GPUs that there are of each type; None means all.
    capacity_T: Floats | None = None
    #: So many times the needs are enough.
    enough: float = np.inf
    #: How far rows may be over, floors be missed, and what is fixed on a face be off.
    slack: float = 0.0


class ClassOptimum(NamedTuple):
    """Shares of columns, how many times the needs fit, and what limits the objective. Prices are 0 or more."""

    value_V: Floats
    multiple: float
    #: What the objective would gain from a little less of each floor, and from a GPU more of each type.
    price_K: Floats
    price_T: Floats
    #: The same from more time of each class, and what it would lose with each column.
    time_price_K: Floats
    loss_V: Floats
    #: How far each class is above its floor; and whether prices are above 0 for all that is used up in every optimum.
    above_K: Floats
    is_central: bool

    def face(self, classes: Classes) -> Face:
        """All optima. Where a price is too small to tell, the face is larger: it leaves out none."""
        capacity_T = classes.problem.capacity_T
        used_T = np.bincount(classes.type_V, classes.gpus_V * self.value_V, len(capacity_T))
        return Face(
            unused_V=(self.loss_V > PRICED) & (self.value_V < AT_BOUND),
            full_T=(self.price_T * capacity_T > PRICED) & (used_T > capacity_T * (1.0 - AT_BOUND)),
            busy_K=(self.time_price_K > PRICED) & (classes.total(self.value_V) > 1.0 - AT_BOUND),
            floored_K=(self.price_K > PRICED) & (self.above_K < AT_BOUND),
        )


@dataclass
class Solver:
    """How programs are solved, and how many linear ones there were."""

    #: One of HiGHS' for linear programs; None takes ours.
    method: Method | None = None
    programs: int = 0
    #: Programs that our method did not solve, and HiGHS did.
    retried: list[str] = field(default_factory=list)

    def linear(self, program: ClassProgram, *, again: bool = True) -> ClassOptimum:
        """The optimum of a linear program. HiGHS tries `again` what our method could not solve."""
        self.programs += 1
        classes = program.classes
        if self.method is None:
            found = convex(program)
            if found is not None:
                return found
            if not again:
                size = f"{len(classes.count_K)} classes of jobs"
                raise NoSolution(program.name, Trouble.NUMERICAL, size, "no convergence")
            self.retried.append(program.name)
        large = len(classes.count_K) > LARGE
        return _by_highs(program, self.method or (Method.INTERIOR_POINT if large else Method.AUTOMATIC))


# -- ours --------------------------------------------------------------------------------------------------------------


def convex(program: ClassProgram) -> ClassOptimum | None:
    """The optimum by our own interior-point method; None if it does not come to an end."""
    classes = program.classes
    jobs = len(classes.count_K)
    layout = _ArrowLayout(program) if classes.single_V.all() else _GeneralLayout(program)
    found = minimise(_described(program, layout))
    if found is None:
        return None
    columns = layout.place_V
    size = layout.columns
    unit_T = np.maximum(classes.problem.capacity_T, 1.0)
    floor_K = _low(program)
    return ClassOptimum(
        value_V=found.values_V[columns],
        multiple=float(found.values_V[-1]) if program.need_K is not None else 0.0,
        price_K=found.price_V[size : size + jobs],
        price_T=np.abs(found.price_R[layout.type_R]) / unit_T,
        time_price_K=np.abs(found.price_R[layout.time_R]),
        loss_V=found.price_V[columns],
        above_K=found.values_V[size : size + jobs] - floor_K,
        is_central=True,
    )


class _ArrowLayout:
    """A column for each class and type, whether or not it can run there."""

    def __init__(self, program: ClassProgram) -> None:
        classes = program.classes
        jobs, types = len(classes.count_K), len(classes.problem.capacity_T)
        self.columns = jobs * types
        class_V = np.zeros(len(classes.type_V), dtype=np.int64)
        class_V[classes.column_E] = classes.class_E
        self.place_V = classes.type_V * jobs + class_V
        self.time_R = np.arange(jobs)
        self.speed_R = jobs + self.time_R
        self.type_R = 2 * jobs + np.arange(types)
        speed_V = np.zeros(len(classes.type_V))
        speed_V[classes.column_E] = classes.speed_E
        unit_T = np.maximum(classes.problem.capacity_T.astype(np.float64), 1.0)
        move_V = moves(classes) if program.limit is not None else None
        self.matrix: ConstraintMatrix = ArrowMatrix(
            self.spread(np.ones(len(classes.type_V))).reshape(types, jobs),
            self.spread(speed_V).reshape(types, jobs),
            self.spread(classes.gpus_V / unit_T[classes.type_V]).reshape(types, jobs),
            need_K=program.need_K,
            move_TK=None if move_V is None else self.spread(move_V).reshape(types, jobs),
        )

    def spread(self, value_V: Floats, otherwise: float = 0.0) -> Floats:
        """The same with `otherwise` where a class cannot run."""
        found = np.full(self.columns, otherwise)
        found[self.place_V] = value_V
        return found


class _GeneralLayout:
    """The two rows of a class side by side, those of capacity last: to eliminate them in order fills in little."""

    def __init__(self, program: ClassProgram) -> None:
        from scipy.sparse import csr_array

        classes = program.classes
        jobs, columns, types = len(classes.count_K), len(classes.type_V), len(classes.problem.capacity_T)
        self.columns = columns
        self.place_V = every_V = np.arange(columns)
        every_K = np.arange(jobs)
        self.time_R, self.speed_R = 2 * every_K, 2 * every_K + 1
        self.type_R = 2 * jobs + np.arange(types)
        unit_T = np.maximum(classes.problem.capacity_T.astype(np.float64), 1.0)
        row = [2 * classes.class_E, 2 * jobs + classes.type_V, 2 * classes.class_E + 1, self.speed_R]
        column = [classes.column_E, every_V, classes.column_E, columns + every_K]
        value = [classes.share_E, classes.gpus_V / unit_T[classes.type_V], classes.speed_E, np.full(jobs, -1.0)]
        rows, variables = 2 * jobs + types, columns + jobs
        if program.need_K is not None:
            row, column = [*row, self.speed_R], [*column, np.full(jobs, variables)]
            value, variables = [*value, -program.need_K], variables + 1
        if program.limit is not None:
            row, column = [*row, np.full(columns, rows)], [*column, every_V]
            value, rows = [*value, moves(classes)], rows + 1
        entries = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
        ordered = bool(classes.single_V.all())
        self.matrix: ConstraintMatrix = GeneralMatrix(csr_array(entries, shape=(rows, variables)), is_ordered=ordered)

    def spread(self, value_V: Floats, otherwise: float = 0.0) -> Floats:
        return value_V


def _described(program: ClassProgram, layout: _ArrowLayout | _GeneralLayout) -> ConvexProgram:
    """The program in the terms of `convex_program`."""
    classes = program.classes
    jobs, columns = len(classes.count_K), len(classes.type_V)
    low_R, high_R = np.full(layout.matrix.rows, -np.inf), np.ones(layout.matrix.rows)
    if program.capacity_T is not None:
        high_R[layout.type_R] = program.capacity_T / np.maximum(classes.problem.capacity_T, 1.0)
    full_R = high_R - program.slack
    high_R = high_R + program.slack
    low_R[layout.speed_R] = high_R[layout.speed_R] = 0.0
    floor_K = _low(program)
    most_V = np.full(columns, np.inf)
    most_K = np.full(jobs, np.inf) if program.high_K is None else program.high_K.copy()
    if program.limit is not None:
        high_R[-1] = program.limit
    if program.face is not None:
        face = program.face
        tight = np.concatenate([layout.time_R[face.busy_K], layout.type_R[face.full_T]])
        low_R[tight] = full_R[tight]
        most_V[face.unused_V] = program.slack
        most_K[face.floored_K] = floor_K[face.floored_K] + 2.0 * program.slack
    last = np.zeros(0 if program.need_K is None else 1)
    spread = layout.spread
    return ConvexProgram(
        # A column on which a class cannot run has a cost, so that it is not used.
        np.concatenate(
            [spread(_or_zero(program.linear_V, columns), 1.0), _or_zero(program.linear_K, jobs), last - 1.0]
        ),
        np.concatenate([spread(_or_zero(program.square_V, columns)), _or_zero(program.square_K, jobs), last]),
        np.concatenate([np.zeros(layout.columns), _or_zero(program.log_K, jobs), last]),
        layout.matrix,
        low_R,
        high_R,
        np.concatenate([np.zeros(layout.columns), floor_K, last]),
        np.concatenate([spread(most_V, np.inf), most_K, last + np.inf]),
        -program.enough,
    )


def moves(classes: Classes) -> Floats:
    """What each column has of the GPU-time on other types than held, as a part of what could move at most."""
    could_move = float((classes.count_K * classes.problem.gpus_J)[classes.problem.held_J >= 0].sum())
    return np.asarray(classes.gpus_V * classes.moves_V / max(could_move, 1.0))


def _low(program: ClassProgram) -> Floats:
    """What the throughput of each class may not be below."""
    return np.maximum(_or_zero(program.floor_K, len(program.classes.count_K)) - program.slack, 0.0)


def _or_zero(value: Floats | None, count: int) -> Floats:
    return np.zeros(count) if value is None else value


# -- HiGHS -------------------------------------------------------------------------------------------------------------


def _by_highs(program: ClassProgram, method: Method) -> ClassOptimum:
    classes = program.classes
    jobs, columns = len(classes.count_K), len(classes.type_V)
    capacity_T = classes.problem.capacity_T.astype(np.float64) if program.capacity_T is None else program.capacity_T
    face = program.face or Face(*(np.zeros(size, dtype=bool) for size in (columns, len(capacity_T), jobs, jobs)))
    slack = program.slack
    most_V = np.where(face.unused_V, slack, np.inf)
    worth_K = -_or_zero(program.linear_K, jobs)
    worth_V = np.bincount(classes.column_E, worth_K[classes.class_E] * classes.speed_E, columns)
    built = LinearProgram(program.name)
    column_V = built.variables(columns, cost=worth_V - _or_zero(program.linear_V, columns), high=most_V)
    multiple = built.variables(1, cost=1.0) if program.need_K is not None else np.zeros(0, dtype=np.int64)
    time_R = built.rows(
        classes.class_E, column_V[classes.column_E], classes.share_E, count=jobs, high=1.0 + slack,
        low=np.where(face.busy_K, 1.0 - slack, -np.inf),
    )  # fmt: skip
    type_R = built.rows(
        classes.type_V, column_V, classes.gpus_V, count=len(capacity_T), high=capacity_T * (1.0 + slack),
        low=np.where(face.full_T, capacity_T * (1.0 - slack), -np.inf),
    )  # fmt: skip
    floor_K = _low(program)
    need_K = _or_zero(program.need_K, jobs)
    high_K = np.where(face.floored_K, floor_K + 2.0 * slack, np.inf if program.high_K is None else program.high_K)
    asked = np.flatnonzero((floor_K > 0.0) | (need_K > 0.0) | np.isfinite(high_K))
    row_K = np.full(jobs, -1)
    row_K[asked] = np.arange(len(asked))
    counts_E = row_K[classes.class_E] >= 0
    border = np.flatnonzero(need_K[asked] > 0.0) if len(multiple) else np.zeros(0, dtype=np.int64)
    speed_R = built.rows(
        np.concatenate([row_K[classes.class_E][counts_E], border]),
        np.concatenate([column_V[classes.column_E[counts_E]], np.full(len(border), columns)]),
        np.concatenate([classes.speed_E[counts_E], -need_K[asked][border]]),
        count=len(asked),
        low=floor_K[asked],
        high=high_K[asked],
    )
    found = built.solve(maximise=True, method=method)
    value_V = found.values_V[column_V]
    price_K = np.zeros(jobs)
    price_K[asked] = np.maximum(-found.duals_R[speed_R], 0.0)
    reached = float(found.values_V[multiple[0]]) if len(multiple) else 0.0
    return ClassOptimum(
        value_V,
        reached,
        price_K,
        np.maximum(found.duals_R[type_R], 0.0),
        np.maximum(found.duals_R[time_R], 0.0),
        np.maximum(-found.reduced_V[column_V], 0.0),
        classes.relative(value_V) - floor_K - reached * need_K,
        is_central=False,
    )
