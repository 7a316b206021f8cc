"""From round counts to rounds: which jobs run in the next one, so that every count can still be kept.

A count is how many of the next F rounds a job is to run in. The *laxity* of a job is the number of rounds it can still
sit out: rounds left less its count. The rule, for each round:

1. Jobs without laxity run: a job whose count equals the rounds left has to.
2. The other jobs come in the order of their rank, as long as there is room; a job that does not fit is passed.
3. If what that leaves to the later rounds does not fit into them any more, jobs with a laxity of 1 come first as well,
   in the order of their laxity; then those with 2, and so on, until it fits.

Whether a rest fits is tried by least laxity first, the widest job first among equals, which keeps the counts of jobs of
one width whenever that is possible. Counts of jobs of several widths can be impossible to keep although their sum fits,
and to keep them whenever possible is as hard as bin packing: `place` tries an exhaustive search where the rule fails
and few jobs are left.

Legend: J jobs, F rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The search for a placement that the rule did not find stops after so many states.
MOST_STATES = 20_000


def choose(
    count_J: Ints, width_J: Ints, rank: Sequence[int], *, gpus: int, rounds: int, first: Sequence[int] = ()
) -> Bools:
    """The jobs of the next round. `rank` lists all jobs, the one that should run soonest first.

    Those in `first` run in any case, as far as they fit together.
    """
    laxity_J = rounds - count_J
    place_J = np.empty(len(count_J), dtype=np.int64)
    place_J[np.asarray(rank, dtype=np.int64)] = np.arange(len(count_J))
    wanted = np.setdiff1d(np.flatnonzero(count_J > 0), np.asarray(first, dtype=np.int64))
    best: tuple[int, Bools] | None = None
    for urgent in sorted({0, *(int(each) for each in laxity_J[wanted] if each > 0)}):
        key_J = np.where(laxity_J <= urgent, laxity_J, urgent + 1)
        order = wanted[np.lexsort((place_J[wanted], -_tied_width(width_J, key_J, urgent)[wanted], key_J[wanted]))]
        runs_J = _fitting([*first, *order.tolist()], width_J, gpus, len(count_J))
        unplaced = _unplaced(np.maximum(0, count_J - runs_J), width_J, gpus=gpus, rounds=rounds - 1)
        if best is None or unplaced < best[0]:
            best = (unplaced, runs_J)
        if unplaced == 0:
            break
    return np.zeros(len(count_J), dtype=bool) if best is None else best[1]


def place(count_J: Ints, width_J: Ints, rank: Sequence[int], *, gpus: int, rounds: int) -> Bools:
    """The jobs of every round of the window, as an array of rounds by jobs."""
    runs_FJ = np.zeros((rounds, len(count_J)), dtype=bool)
    left_J = count_J.copy()
    for number in range(rounds):
        runs_FJ[number] = choose(left_J, width_J, rank, gpus=gpus, rounds=rounds - number)
        left_J = left_J - runs_FJ[number]
    if left_J.any() and (found := _searched(count_J, width_J, gpus, rounds)) is not None:
        return found
    return runs_FJ


def _tied_width(width_J: Ints, key_J: Ints, urgent: int) -> Ints:
    """Among jobs of the same laxity the widest first, where laxity decides; where rank decides, nothing."""
    return np.where(key_J <= urgent, width_J, 0)


def _fitting(order: Sequence[int], width_J: Ints, gpus: int, jobs: int) -> Bools:
    runs_J, left = np.zeros(jobs, dtype=bool), gpus
    widths = width_J.tolist()
    for job in order:
        if widths[job] <= left:
            runs_J[job] = True
            left -= widths[job]
            if not left:
                break
    return runs_J


def _unplaced(count_J: Ints, width_J: Ints, *, gpus: int, rounds: int) -> int:
    """GPU-rounds that least laxity first cannot place in so many rounds."""
    wanted = np.flatnonzero(count_J > 0)
    left, width = count_J[wanted], width_J[wanted]
    over = int((np.maximum(0, left - rounds) * width).sum())
    left = np.minimum(left, rounds)
    for _ in range(rounds):
        if not left.any():
            break
        order = np.lexsort((-width, -left))
        filled = np.cumsum(width[order])
        running = order[: int(np.searchsorted(filled, gpus, side="right"))]
        room = gpus - int(width[running].sum())
        left[running] -= left[running] > 0
        for job in order[len(running) :].tolist() if room else ():  # those behind one that did not fit
            if 0 < width[job] <= room and left[job] > 0:
                left[job] -= 1
                room -= int(width[job])
                if not room:
                    break
    return over + int((left * width).sum())


def _searched(count_J: Ints, width_J: Ints, gpus: int, rounds: int) -> Bools | None:
    """A placement that keeps every count, by exhaustive search over what each round runs; None if none was found."""
    wanted = [int(job) for job in np.flatnonzero(count_J > 0)]
    widths = [int(width_J[job]) for job in wanted]
    if any(count_J[job] > rounds for job in wanted) or sum(widths[k] * count_J[j] for k, j in enumerate(wanted)) > (
        gpus * rounds
    ):
        return None
    states = 0

    @cache
    def fits(left: tuple[int, ...], rounds_left: int) -> tuple[tuple[int, ...], ...] | None:
        nonlocal states
        states += 1
        if not any(left):
            return ()
        if states > MOST_STATES or sum(n * w for n, w in zip(left, widths, strict=True)) > gpus * rounds_left:
            return None
        must = [k for k, n in enumerate(left) if n == rounds_left]
        if any(n > rounds_left for n in left) or (room := gpus - sum(widths[k] for k in must)) < 0:
            return None
        may = sorted((k for k, n in enumerate(left) if 0 < n < rounds_left), key=lambda k: (-widths[k], -left[k], k))
        for chosen in _subsets(may, widths, room):
            running = {*must, *chosen}
            rest = fits(tuple(n - (k in running) for k, n in enumerate(left)), rounds_left - 1)
            if rest is not None:
                return (tuple(sorted(running)), *rest)
        return None

    found = fits(tuple(int(count_J[job]) for job in wanted), rounds)
    if found is None:
        return None
    runs_FJ = np.zeros((rounds, len(count_J)), dtype=bool)
    for number, running in enumerate(found):
        runs_FJ[number, [wanted[k] for k in running]] = True
    return runs_FJ


def _subsets(may: Sequence[int], widths: Sequence[int], room: int) -> list[tuple[int, ...]]:
    """Sets of jobs that fit into the room and to which no other can be added; larger and earlier jobs first."""
    found: list[tuple[int, ...]] = []

    def extend(start: int, chosen: tuple[int, ...], left: int) -> None:
        if len(found) >= MOST_STATES:
            return
        for at in range(start, len(may)):
            if widths[may[at]] <= left:
                extend(at + 1, (*chosen, may[at]), left - widths[may[at]])
        skipped = set(may) - set(chosen)
        if all(widths[job] > left for job in skipped):
            found.append(chosen)

    extend(0, (), room)
    return found
