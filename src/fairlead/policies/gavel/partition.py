"""Problems in parts, for thousands of jobs (POP: Narayanan et al., SOSP '21).

The jobs are dealt out to so many parts, alike ones to different parts, and each part gets as good as the same GPUs of
each type. Parts are solved on their own, and their answers are one: capacity and shares hold by construction. What
that loses is stated: by weak duality the mean prices of the parts bound what any allocation of the whole could reach.
With p_t the price of a GPU and l_j that of throughput, no x has

    sum_j l_j throughput_j(x)  >  sum_t p_t capacity_t + sum_j u_j,    u_j = max(0, max over t of l_j rate_jt - s_j p_t)

and for pairs u_j + u_k must cover what the pair is worth.

Legend: J jobs, T GPU types, K classes, V columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairlead.policies.gavel.class_program import Solver
from fairlead.policies.gavel.classes import classify
from fairlead.policies.gavel.problem import Shares, SharingProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Objective = Callable[[SharingProblem, Solver], Shares]


def parts_of(problem: SharingProblem, parts: int) -> list[tuple[Ints, Ints]]:
    """Jobs and GPUs of each part: alike jobs go to different parts, and GPUs that are left over to the first ones.

    Every job can run in its part wherever it can run in the whole: one that needs more GPUs of such a type than a part
    would have of it makes the parts fewer. Jobs that can run nowhere are in no part.
    """
    usable_JT = problem.usable
    runs = np.flatnonzero(usable_JT.any(axis=1))
    whole_JT = problem.capacity_T[None, :] // np.maximum(problem.gpus_J, 1)[:, None]
    most = int(np.where(usable_JT, whole_JT, len(runs)).min(initial=len(runs)))
    parts = max(1, min(parts, most))
    apart = problem.only(runs)
    order = runs[np.lexsort((*apart.rate_JT.T, apart.kind_J, apart.entity_J, apart.gpus_J))]
    return [(np.sort(order[part::parts]), (problem.capacity_T + parts - 1 - part) // parts) for part in range(parts)]


def in_parts(problem: SharingProblem, objective: Objective, solver: Solver, *, parts: int, total: str) -> Shares:
    """Solve in parts; `total` tells how their objectives are one: `least`, `most`, `sum`."""
    divided = parts_of(problem, parts)
    if len(divided) == 1:
        return objective(problem, solver)
    alone_JT = np.zeros(problem.rate_JT.shape)
    pairs: dict[tuple[int, int], Floats] = {}
    price_J, price_T = np.zeros(len(problem.gpus_J)), np.zeros(len(problem.capacity_T))
    found, priced = [], True
    for rows, capacity_T in divided:
        shares = objective(problem.only(rows, capacity_T), solver)
        alone_JT[rows] = shares.alone_JT
        pairs |= {(int(rows[one]), int(rows[other])): share_T for (one, other), share_T in shares.pairs.items()}
        priced = priced and len(shares.price_J) > 0
        if priced:
            price_J[rows] = shares.price_J
            price_T += shares.price_T / len(divided)
        found.append((rows, shares))
    objectives = [shares.objective for _, shares in found]
    value = min(objectives) if total == "least" else max(objectives) if total == "most" else sum(objectives)
    return Shares(
        alone_JT,
        pairs,
        float(value),
        np.nan,
        tuple(dict.fromkeys(note for _, shares in found for note in shares.notes)),
        tuple(int(rows[job]) for rows, shares in found for job in shares.dropped),
        solver.programs,
        price_J if priced else np.zeros(0),
        price_T if priced else np.zeros(0),
    )


def worth_of_all(problem: SharingProblem, price_J: Floats, price_T: Floats) -> float:
    """No shares have a larger sum of price_j times throughput_j."""
    gain_JT = price_J[:, None] * problem.rate_JT - problem.gpus_J[:, None] * price_T
    surplus_J = np.where(problem.usable, gain_JT, 0.0).max(axis=1, initial=0.0)
    if problem.pairs:
        surplus_J = _cover_pairs(problem, price_J, price_T, np.maximum(surplus_J, 0.0))
    return float(price_T @ problem.capacity_T + np.maximum(surplus_J, 0.0).sum())


def _cover_pairs(problem: SharingProblem, price_J: Floats, price_T: Floats, surplus_J: Floats) -> Floats:
    """Raise what jobs are worth until every two that could share GPUs are worth at least the pair."""
    alike = replace(problem, weight_J=1.0 + price_J, elapsed_J=surplus_J)  # prices tell classes apart, too
    classes = classify(alike, "weight_J", "elapsed_J")
    price_K = (classes.problem.weight_J - 1.0) * classes.best_K
    surplus_K = classes.problem.elapsed_J.copy()
    at = np.flatnonzero(~classes.single_V[classes.column_E])
    one_P, other_P = classes.class_E[at[::2]], classes.class_E[at[1::2]]
    column_P = classes.column_E[at[::2]]
    speed_PM = classes.speed_E[at].reshape(-1, 2) / classes.share_E[at].reshape(-1, 2)
    gpus_P = classes.problem.gpus_J[one_P]
    worth_P = (
        price_K[one_P] * speed_PM[:, 0] + price_K[other_P] * speed_PM[:, 1] - gpus_P * price_T[classes.type_V[column_P]]
    )
    missing_P = worth_P - surplus_K[one_P] - surplus_K[other_P]
    raised_K = np.zeros(len(surplus_K))
    np.maximum.at(raised_K, one_P, missing_P / 2.0)
    np.maximum.at(raised_K, other_P, missing_P / 2.0)
    surplus_K = surplus_K + raised_K
    return np.asarray(np.where(classes.class_J >= 0, surplus_K[np.maximum(classes.class_J, 0)], 0.0))
