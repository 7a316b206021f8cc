"""Jobs to (GPU of a type, position from its end): the min-cost bipartite matching of AlloX (EuroSys 2020, section 3.1).

A job that runs k-th from the last on a GPU delays itself and k - 1 other jobs, so it adds k times its own run time to
the sum of all completion times, whatever the other jobs are. So every (job, GPU, position) has a cost of its own, and
the schedule with the least mean completion time is a matching of least cost (Horn 1973). A GPU that is busy for r more
seconds delays each of its jobs by r: each of its positions costs r more.

Here a job may need several GPUs. The GPUs of a type are grouped into places of as many GPUs as the mean job needs (M),
in the order in which they become free. A job of s GPUs that is k-th from the last on a place costs

    seconds * (1 + (k - 1) s / M) + when s GPUs are free from that place on

since it takes s / M of the places of each job that comes after it. Where all jobs need as many GPUs, and the GPUs of a
type are a multiple of that, this is exact.

A place needs no more positions than are used: as many are offered as a greedy schedule uses and two more, and again
more as long as the last one of a place is taken. So there are about as many columns as jobs and twice the GPUs, and not
GPUs x jobs. On GPUs of one type the matching is known: the shortest job first.

Legend: J jobs, T GPU types, P places, C columns (place, position), R rows of the solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.core.snapshot import Floats

Ints = NDArray[np.int64]


class Matching(NamedTuple):
    """For each job a GPU type, and when it is to run there."""

    type_J: Ints
    #: Position from the end: jobs with a higher one run earlier.
    position_J: Ints
    #: Seconds until it starts, if run times are as stated.
    start_s_J: Floats
    #: The sum over jobs that was minimised.
    cost: float


def match(seconds_JT: Floats, gpus_J: Ints, free_in_s_T: Sequence[Floats]) -> Matching:
    """The matching of least cost.

    `seconds_JT` is how long each job runs on each type, infinite where it cannot; each job must be able to run on some
    type. `free_in_s_T` has for every GPU of a type in how many seconds it is free, ascending; it may be empty.
    """
    jobs = len(gpus_J)
    if not jobs:
        none = np.zeros(0, dtype=np.int64)
        return Matching(none, none, np.zeros(0), 0.0)
    size = float(gpus_J.mean())
    places = _Places.of(free_in_s_T, size)
    if len(np.unique(places.type_P)) == 1:
        return _in_turn(seconds_JT, gpus_J, places)
    from scipy.optimize import linear_sum_assignment  # slow to import, and many runs never need it

    area_J = seconds_JT.min(axis=1) * gpus_J
    offered_P = _used(seconds_JT, gpus_J, places, area_J) + 2
    # The longest first: the solver adds one row after the other, and these take the last positions without a detour.
    row_R = np.lexsort((*seconds_JT.T, -area_J))
    while True:
        place_C = np.repeat(np.arange(len(offered_P)), offered_P)
        position_C = np.concatenate([np.arange(1, offered + 1) for offered in offered_P.tolist()])
        times_JC = 1.0 + (position_C - 1.0) * (gpus_J / size)[:, None]
        cost_JC = seconds_JT[:, places.type_P[place_C]] * times_JC + places.wait_s(gpus_J)[:, place_C]
        found_R, column_R = linear_sum_assignment(cost_JC[row_R])
        column_J = np.empty(jobs, dtype=np.int64)
        column_J[row_R[found_R]] = column_R
        # Where the last position of no place is taken, no further one can lower the cost: in the dual problem a column
        # that is not taken has the price zero, and each further one of its place costs every job at least as much.
        taken = column_J[position_C[column_J] == offered_P[place_C[column_J]]]
        if not len(taken):
            cost = float(cost_JC[np.arange(jobs), column_J].sum())
            return _read(seconds_JT, gpus_J, places, place_C[column_J], position_C[column_J], cost)
        offered_P[place_C[taken]] *= 2


class _Places(NamedTuple):
    """Groups of GPUs of one type, each as many as the mean job needs."""

    type_P: Ints
    #: The first of its GPUs, among those of its type.
    first_P: Ints
    free_in_s_T: Sequence[Floats]
    size: float

    @classmethod
    def of(cls, free_in_s_T: Sequence[Floats], size: float) -> _Places:
        counts = [max(1, math.floor(len(free) / size)) if len(free) else 0 for free in free_in_s_T]
        type_P = np.repeat(np.arange(len(counts)), counts)
        first = [math.floor(place * size) for count in counts for place in range(count)]
        return cls(type_P, np.array(first, dtype=np.int64), free_in_s_T, size)

    def free_in_s(self) -> Floats:
        """Seconds until the first GPU of each place is free."""
        return np.array([self.free_in_s_T[kind][first] for kind, first in zip(self.type_P, self.first_P, strict=True)])

    def wait_s(self, gpus_J: Ints) -> Floats:
        """Seconds until each job has its GPUs, from the first of each place on; by job and place."""
        wait_JP = np.empty((len(gpus_J), len(self.type_P)))
        for kind in np.unique(self.type_P).tolist():
            here, free_in_s = self.type_P == kind, self.free_in_s_T[kind]
            wait_JP[:, here] = free_in_s[np.minimum(self.first_P[here] + gpus_J[:, None], len(free_in_s)) - 1]
        return wait_JP


def _used(seconds_JT: Floats, gpus_J: Ints, places: _Places, area_J: Floats) -> Ints:
    """How many jobs each place has if each job, the shortest first, takes that where it ends first: a fair guess."""
    ends_s_P, used_P = places.free_in_s(), np.zeros(len(places.type_P), dtype=np.int64)
    for job in np.argsort(area_J, kind="stable").tolist():
        ends_s = ends_s_P + seconds_JT[job, places.type_P] * (gpus_J[job] / places.size)
        place = int(ends_s.argmin())
        ends_s_P[place] = ends_s[place]
        used_P[place] += 1
    return used_P


def _in_turn(seconds_JT: Floats, gpus_J: Ints, places: _Places) -> Matching:
    """The matching on GPUs that are all of one type: the shortest job first, each on the place that is free first."""
    kind, jobs, wait_JP = int(places.type_P[0]), len(gpus_J), places.wait_s(gpus_J)
    seconds_J = seconds_JT[:, kind]
    free_s = list(zip(places.free_in_s().tolist(), range(len(places.type_P)), strict=True))  # ascending: a heap
    start_s_J, position_J = np.empty(jobs), np.empty(jobs, dtype=np.int64)
    for rank, job in enumerate(np.lexsort((seconds_J, seconds_J * gpus_J)).tolist()):
        at_s, place = heappop(free_s)
        start_s_J[job] = max(at_s, float(wait_JP[job, place]))
        position_J[job] = 1 + (jobs - 1 - rank) // len(places.type_P)
        heappush(free_s, (at_s + float(seconds_J[job] * gpus_J[job]) / places.size, place))
    return Matching(np.full(jobs, kind), position_J, start_s_J, float((start_s_J + seconds_J).sum()))


def _read(seconds_JT: Floats, gpus_J: Ints, places: _Places, place_J: Ints, position_J: Ints, cost: float) -> Matching:
    every_J = np.arange(len(place_J))
    type_J = places.type_P[place_J]
    start_s_J = places.wait_s(gpus_J)[every_J, place_J]
    busy_s_P = np.zeros(len(places.type_P))
    for job in np.argsort(-position_J, kind="stable").tolist():  # on each place, from the first to run to the last
        start_s_J[job] += busy_s_P[place_J[job]]
        busy_s_P[place_J[job]] += seconds_JT[job, type_J[job]] * gpus_J[job] / places.size
    return Matching(type_J, position_J, start_s_J, cost)
