"""The questions that Gavel's objectives ask of one base of constraints (`class_program`).

`largest_multiple` asks how many times a vector of needed throughputs fits (max-min fairness, makespan and finish-time
fairness are this), `largest_sum` for the largest weighted sum (throughput, cost), `largest_welfare` for the largest sum
of logarithms, and `settle` which of the optima to take: the one with the fewest changes, and among these the most even.
Throughputs are relative to each class' best, 0 to 1.

Legend: K classes, T GPU types, V columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.class_program import ClassProgram, Face, Solver, convex, moves
from fairlead.policies.gavel.classes import Classes
from fairlead.policies.linear_program import NoSolution

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: So much of its best throughput a job may lose for the sake of fewest changes and balance, so far may changes be from
#: the fewest, as a part of the GPU-time that could change, and so far rows be over (`tidy` takes that back). What is
#: tried first is all that rounding needs; more is conceded only where there is no answer with less.
FIRST_CONCEDED = 1e-10
CONCEDED = 1e-8
LAST_CONCEDED = 1e-7
#: What the spread over types weighs against balance.
SPREAD_WEIGHT = 1e-4
#: A share below this is none.
NONE = 1e-7
#: Two types on which a class' throughput differs by less, as a share of its best, are as fast.
ALIKE = 1e-6
#: How much more throughput, as a share of its best, a class is asked to have to see whether it can rise at all.
PROBE = 1e-5


class Multiple(NamedTuple):
    """The largest multiple of the needs that fits, shares with which it does, and what limits it."""

    multiple: float
    value_V: Floats
    #: How much the multiple falls for a unit of throughput more that a class needs; above 0 only for a bottleneck.
    price_K: Floats
    #: How much it rises for a GPU more of each type.
    price_T: Floats
    #: By how much classes have more than that; and whether each class without a price could: see `ClassOptimum`.
    above_K: Floats
    is_central: bool
    #: All shares with which it fits.
    face: Face


class Sum(NamedTuple):
    """The largest sum, shares that reach it, the face of all that do, and what a GPU more of each type would add."""

    total: float
    value_V: Floats
    face: Face
    price_T: Floats


def largest_multiple(classes: Classes, need_K: Floats, solver: Solver, *, enough: float = np.inf) -> Multiple:
    """max c such that throughput_k >= c need_k for all classes. With a c that is `enough` the search ends, and only c
    counts."""
    # In units of the multiple that all GPUs would allow if they were the fastest of each class, c is about 1.
    weight_K = classes.count_K * classes.problem.gpus_J
    least = float(weight_K @ need_K) / max(1.0, float(classes.problem.capacity_T.sum()))
    scale = max(float(need_K.max(initial=0.0)), least) or 1.0
    program = ClassProgram("largest multiple", classes, need_K=need_K / scale, enough=enough * scale)
    found = solver.linear(program)
    return Multiple(
        found.multiple / scale,
        found.value_V,
        found.price_K / scale,
        found.price_T / scale,
        found.above_K,
        found.is_central,
        found.face(classes),
    )


def largest_sum(classes: Classes, worth_V: Floats, solver: Solver, *, floor_K: Floats | None = None) -> Sum:
    """max sum of worth x such that throughput_k >= floor_k."""
    scale = float(worth_V.max(initial=0.0)) or 1.0
    found = solver.linear(ClassProgram("largest sum", classes, linear_V=-worth_V / scale, floor_K=floor_K))
    return Sum(float((worth_V * found.value_V).sum()), found.value_V, found.face(classes), scale * found.price_T)


def can_rise(classes: Classes, floor_K: Floats, asked_K: Flags, solver: Solver) -> Flags:
    """Which of the classes asked about could have a little more throughput while none has less than its floor.

    Those that can do so one by one can do so together, by the mean of these allocations: so one program tells of all.
    """
    high_K = np.where(asked_K, floor_K + PROBE, np.inf)
    program = ClassProgram(
        "room to rise", classes, linear_K=-asked_K.astype(np.float64), floor_K=floor_K, high_K=high_K
    )
    risen_K = classes.relative(solver.linear(program).value_V) - floor_K
    return np.asarray(asked_K & (risen_K > PROBE / 100.0))


def largest_welfare(classes: Classes, weight_K: Floats) -> tuple[Floats, Face] | None:
    """Shares that maximise sum of weight_k ln throughput_k, and all that do; None if the numbers do not allow it."""
    found = convex(ClassProgram("Nash welfare", classes, log_K=weight_K / weight_K.max()))
    if found is None:
        return None
    return found.value_V, found.face(classes)._replace(floored_K=np.ones(len(weight_K), dtype=bool))


# -- which of the optima -----------------------------------------------------------------------------------------------


def settle(
    classes: Classes,
    found_V: Floats,
    solver: Solver,
    *,
    floor_K: Floats | None = None,
    face: Face | None = None,
    is_by_floor: bool = True,
) -> Floats | None:
    """Among the shares with throughput_k >= floor_k, and on the face if there is one, of which `found_V` is a point,
    those with the least GPU-time on other types than jobs hold; and among these the ones that minimise

        sum over jobs of GPUs (1 - throughput)^2                          all are as far below their best
      + SPREAD_WEIGHT  sum over columns of GPUs (x - even)^2 / part       spread as the GPUs are over types

    where part is what the type has of all the GPUs that the class can use, and even is the same, but 0 for pairs. It is
    strictly convex, so there is one minimum. None if the numbers do not allow an answer. `is_by_floor`: all shares that
    meet the floors are optima, and can be had without the face as well.
    """
    floor_K = np.zeros(len(classes.count_K)) if floor_K is None else np.clip(floor_K, 0.0, 1.0)
    within = ClassProgram("fewest changes", classes, floor_K=floor_K, face=face)
    column_V = np.arange(len(found_V))
    if face is not None and classes.single_V.all():
        within, column_V = _undecided(within, face, found_V)
        if not len(column_V):
            return tidy(classes, found_V)
    attempts = [replace(within, slack=FIRST_CONCEDED), replace(within, slack=CONCEDED)]
    if is_by_floor and face is not None:
        attempts.append(replace(within, slack=LAST_CONCEDED, face=None))
    for attempt in attempts:
        found = _balanced(attempt, solver)
        if found is not None:
            value_V = found_V.copy()
            value_V[column_V] = found
            return tidy(classes, value_V)
    return None


def _undecided(within: ClassProgram, face: Face, found_V: Floats) -> tuple[ClassProgram, Ints]:
    """The program without classes that have but one choice on the face, and the columns that are left.

    A class has one if it has no more columns than it has limits to meet exactly: its time and its floor, which are one
    if it is as fast on all of the columns.
    """
    classes, used_V = within.classes, ~face.unused_V
    class_V, jobs = classes.class_of_columns()[used_V], len(classes.count_K)
    speed_V = np.zeros(len(used_V))
    speed_V[classes.column_E] = classes.speed_E
    fastest_K, slowest_K = np.zeros(jobs), np.full(jobs, np.inf)
    np.maximum.at(fastest_K, class_V, speed_V[used_V])
    np.minimum.at(slowest_K, class_V, speed_V[used_V])
    limits_K = face.busy_K.astype(np.int64) + (face.floored_K & ~(face.busy_K & (fastest_K - slowest_K < ALIKE)))
    choices_K = np.maximum(np.bincount(class_V, minlength=jobs) - limits_K, 0)
    free_K = choices_K > 0
    if _is_one(classes, face, free_K, int(choices_K.sum())):
        free_K[:] = False
    some, column_V = classes.only(free_K)
    settled_V = np.ones(len(found_V), dtype=bool)
    settled_V[column_V] = False
    used_T = np.bincount(
        classes.type_V[settled_V], (classes.gpus_V * found_V)[settled_V], len(classes.problem.capacity_T)
    )
    left = replace(
        within,
        classes=some,
        floor_K=None if within.floor_K is None else within.floor_K[free_K],
        face=Face(face.unused_V[column_V], face.full_T, face.busy_K[free_K], face.floored_K[free_K]),
        capacity_T=np.maximum(classes.problem.capacity_T - used_T, 0.0),
    )
    return left, column_V


def _is_one(classes: Classes, face: Face, free_K: Flags, choices: int) -> bool:
    """Whether a face is a single point: no change that the classes could make leaves all full types as full."""
    full = np.flatnonzero(face.full_T)
    if choices > len(full):
        return False
    changes = [np.zeros((0, len(full)))]
    for k in np.flatnonzero(free_K).tolist():
        at_E = np.flatnonzero((classes.class_E == k) & ~face.unused_V[classes.column_E])
        column_V = classes.column_E[at_E]
        limits = [np.ones(len(at_E))] * int(face.busy_K[k]) + [classes.speed_E[at_E]] * int(face.floored_K[k])
        _, size, across = np.linalg.svd(np.array(limits).reshape(-1, len(at_E)))
        change_CV = across[int((size > ALIKE).sum()) :]
        changes.append(change_CV @ (classes.type_V[column_V][:, None] == full))
    load_CT = np.concatenate(changes)
    size = np.linalg.svd(load_CT)[1]
    return len(load_CT) == choices and bool((size > ALIKE).sum() == choices)


def _balanced(within: ClassProgram, solver: Solver) -> Floats | None:
    """The most even shares of those with the fewest changes, within the limits of a program."""
    classes = within.classes
    limit = None
    move_V = moves(classes)
    if move_V.any():
        try:
            program = replace(within, linear_V=move_V / float(move_V.max()))
            fewest = solver.linear(program, again=within.slack > FIRST_CONCEDED)
        except NoSolution:
            return None
        limit = float((move_V * fewest.value_V).sum()) + within.slack
    weight_K = classes.count_K * classes.problem.gpus_J.astype(np.float64)
    unit = float(weight_K.max(initial=1.0))
    part_V = _part(classes)
    square_V = 2.0 * SPREAD_WEIGHT * classes.gpus_V / part_V / unit
    square_K = np.asarray(2.0 * weight_K / unit, dtype=np.float64)
    even_V = np.where(classes.single_V, part_V, 0.0)
    found = convex(
        replace(
            within,
            name="balance",
            linear_V=-square_V * even_V,
            square_V=square_V,
            linear_K=-square_K,
            square_K=square_K,
            limit=limit,
        )
    )
    return None if found is None else found.value_V


def _part(classes: Classes) -> Floats:
    """What each column's type has of the GPUs of all types that its (first) class can use alone."""
    capacity_T = classes.problem.capacity_T.astype(np.float64)
    usable_K = classes.problem.usable @ capacity_T
    return np.asarray(capacity_T[classes.type_V] / usable_K[classes.class_of_columns()])


def tidy(classes: Classes, value_V: Floats) -> Floats:
    """Without what rounding left of a share that is none, and with every constraint met to the last digit but one."""
    value_V = np.where(value_V < NONE, 0.0, np.minimum(value_V, 1.0))
    over_K = np.maximum(classes.total(value_V), 1.0)
    over_V = np.ones(len(value_V))
    np.maximum.at(over_V, classes.column_E, over_K[classes.class_E])
    value_V = value_V / over_V
    used_T = np.bincount(classes.type_V, classes.gpus_V * value_V, len(classes.problem.capacity_T))
    return np.asarray(value_V / np.maximum(1.0, used_T / np.maximum(classes.problem.capacity_T, 1))[classes.type_V])
