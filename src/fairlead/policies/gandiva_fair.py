"""Gandiva-Fair (Chaudhary et al., EuroSys '20): tickets for users, and trades of GPU types between them.

Every user has tickets, and a part of all GPUs of each type in proportion to them, as long as it has jobs that use it:
what it cannot use goes to the others, in proportion to theirs. Then users trade GPU types where their jobs gain
differently from the faster one (`gpu_trading`). A user's GPUs are divided among its jobs by their weights, each up to
what it asked for. What a job of s GPUs is given it can use for a part of the time: that is its share, and rounds see to
it (`rounds`), so that large jobs have their turn with all their GPUs at once.

The version in Shockwave's artifact owes every job the same share of the *time*, whatever its GPUs, without users and
trades: `owes=time`.

Legend: J jobs, U users, T GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Floats, Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.equivalent_types import owed_where_it_runs
from fairlead.policies.gpu_trading import Traded, trade
from fairlead.policies.isolated import holds, with_too_small
from fairlead.policies.rates import BelievedRates, Configuration, RateSource
from fairlead.policies.rounds import Owed, next_round, round_options
from fairlead.policies.wait_reason import open_gpus

_CHOICES = {"owes": ("gpus", "time"), "trading": ("second-price", "none")}


@dataclass(frozen=True)
class GandivaFair:
    """Users have GPUs in proportion to their tickets, and trade types of them."""

    #: Tickets of users, such as `ann=2/bob=1`; a user that is not named has 1.
    tickets: tuple[str, ...] = ()
    #: What a ticket buys: `gpus`, GPU-time; or `time`, with all the GPUs that a job asks for.
    owes: str = "gpus"
    #: How users trade GPU types: `second-price`, or `none`.
    trading: str = "second-price"
    #: Length of a round, in seconds.
    round_s: float = 360.0
    #: How rounds are kept: `fairlead`, or as in the artifacts of `gavel` and `shockwave`.
    mechanism: str = "fairlead"
    _rates: BelievedRates = field(default_factory=BelievedRates, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                found = getattr(self, name)
                raise InvalidSpec(f"gandiva-fair: {name} is {found!r}; expected {' or '.join(allowed)}")
        parse_tickets(self.tickets)
        round_options(self.mechanism, self.round_s)

    @property
    def starvation_free(self) -> bool:
        """Not by the ratio that Gavel goes by: new jobs of few GPUs may pass one of many for ever."""
        return self.mechanism == "fairlead"

    def plan(self, view: Snapshot) -> Plan:
        return next_round(view, lambda: self.owed(view), round_options(self.mechanism, self.round_s))

    def owed(self, view: Snapshot) -> Owed:
        """Share of the time of each job on each GPU type."""
        jobs, gpus = list(view.jobs.values()), open_gpus(view)
        if not jobs or not gpus:
            return {}
        if self.owes == "time":
            return with_too_small(view, _equal_time(jobs, gpus, parse_tickets(self.tickets)))
        owed = self.shares(jobs, gpus, worth_of(view, jobs, list(gpus), self._rates))
        owed = owed_where_it_runs(view, owed, self._rates) if self.mechanism == "fairlead" else owed
        return with_too_small(view, owed)

    def shares(self, jobs: Sequence[Job], gpus: Mapping[str, int], worth_JT: Floats) -> Owed:
        """The same from what a GPU of each type is worth to each job; 0 if it cannot run there."""
        users = list(dict.fromkeys(job.spec.tenant for job in jobs))
        user_J = np.array([users.index(job.spec.tenant) for job in jobs])
        held_UT, worth_UT, most_U = self._entitled(jobs, users, gpus, worth_JT)
        if self.trading != "none":
            held_UT = trade(held_UT, worth_UT, most_U).held_UT
        owed: dict[tuple[tuple[str, ...], str], float] = {}
        for user in range(len(users)):
            mine = np.flatnonzero(user_J == user)
            given_JT = _divided(held_UT[user], [jobs[j] for j in mine.tolist()], worth_JT[mine])
            for j, given_T in zip(mine.tolist(), given_JT, strict=True):
                for t, gpu_type in enumerate(gpus):
                    if worth_JT[j, t] > 0.0:
                        owed[(jobs[j].id,), gpu_type] = float(given_T[t]) / jobs[j].spec.gpus
        return owed

    def trades(self, jobs: Sequence[Job], gpus: Mapping[str, int], worth_JT: Floats) -> Traded:
        """Who trades what, users in order of their first job."""
        users = list(dict.fromkeys(job.spec.tenant for job in jobs))
        return trade(*self._entitled(jobs, users, gpus, worth_JT))

    def _entitled(
        self, jobs: Sequence[Job], users: Sequence[str], gpus: Mapping[str, int], worth_JT: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Of each user: GPUs by type before any trade, what one is worth to it, and the most that its jobs can use."""
        tickets = parse_tickets(self.tickets)
        tickets_U = np.array([tickets.get(user, 1.0) for user in users])
        # A job that can run nowhere is no claim to GPUs.
        wanted_J = np.array([float(job.spec.gpus) for job in jobs]) * (worth_JT > 0.0).any(axis=1)
        user_J = np.array([users.index(job.spec.tenant) for job in jobs])
        most_U = np.array([wanted_J[user_J == user].sum() for user in range(len(users))], dtype=np.float64)
        total_T = np.array(list(gpus.values()), dtype=np.float64)
        part_U = _filled(tickets_U, most_U / total_T.sum(), 1.0)
        # What a GPU is worth to a user is the mean over its jobs, by GPUs; the unit of each job is its own mean.
        mean_J = np.maximum(worth_JT.max(axis=1), 1e-300)
        norm_JT = worth_JT / mean_J[:, None] * wanted_J[:, None]
        worth_UT: Floats = np.array([norm_JT[user_J == user].sum(axis=0) for user in range(len(users))])
        return np.outer(part_U, total_T) * (worth_UT > 0.0), worth_UT, most_U


def parse_tickets(texts: Sequence[str]) -> dict[str, float]:
    """By user, from `user=number`."""
    found: dict[str, float] = {}
    for text in texts:
        user, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not user or user in found or not 0.0 < value < math.inf:
            raise InvalidSpec(f"gandiva-fair: tickets has {text!r}; expected user=number above 0, each user once")
        found[user] = value
    return found


def worth_of(view: Snapshot, jobs: Sequence[Job], gpu_types: Sequence[str], source: RateSource) -> Floats:
    """Of GPUs of each type to each job: how fast it runs there, on as many as it asks for; 0 where it cannot."""
    largest = {t: max(node.gpus for node in view.nodes.values() if node.gpu_type == t) for t in gpu_types}
    places = list(dict.fromkeys((t, job.spec.gpus) for job in jobs for t in gpu_types))
    asked = [Configuration(t, gpus, -(-gpus // largest[t])) for t, gpus in places]
    rate_JC = source.rates(view, jobs, asked).rate_JC
    column = {place: at for at, place in enumerate(places)}
    place_JT = np.array([[column[t, job.spec.gpus] for t in gpu_types] for job in jobs])
    gpus = open_gpus(view)
    holds_JT = np.array([[holds(job, t, gpus.get(t, 0)) for t in gpu_types] for job in jobs])
    return np.where(holds_JT, np.take_along_axis(rate_JC, place_JT, axis=1), 0.0)


def _equal_time(jobs: Sequence[Job], gpus: Mapping[str, int], tickets: Mapping[str, float]) -> Owed:
    """A type's GPUs over the number of jobs, as a share of time; cut down to all the time."""
    count: dict[str, int] = {}
    for job in jobs:
        count[job.spec.tenant] = count.get(job.spec.tenant, 0) + 1
    total = sum(tickets.get(user, 1.0) for user in count)
    owed: dict[tuple[tuple[str, ...], str], float] = {}
    for job in jobs:
        mine, all_of_them = tickets.get(job.spec.tenant, 1.0), total * count[job.spec.tenant]
        slices = {t: number * mine / all_of_them for t, number in gpus.items() if holds(job, t, number)}
        whole = max(1.0, sum(slices.values()))
        owed |= {((job.id,), gpu_type): share / whole for gpu_type, share in slices.items()}
    return owed


def _filled(weight_U: Floats, most_U: Floats, total: float) -> Floats:
    """The total in proportion to weights, none above its most; what one cannot take goes to the others."""
    given_U = np.zeros(len(weight_U))
    open_U = most_U > 0.0
    left = min(total, float(most_U.sum()))
    while open_U.any() and left > 1e-12:
        part_U = np.where(open_U, weight_U * left / weight_U[open_U].sum(), 0.0)
        full_U = open_U & (given_U + part_U >= most_U)
        if not full_U.any():
            return given_U + part_U
        given_U = np.where(full_U, most_U, given_U)
        left = min(total, float(most_U.sum())) - float(given_U.sum())
        open_U &= ~full_U
    return given_U


def _divided(held_T: Floats, jobs: Sequence[Job], worth_JT: Floats) -> Floats:
    """A user's GPUs among its jobs, by weight, none above what it asked for: the type that is worth most first."""
    weight_J = np.array([job.spec.weight for job in jobs])
    room_J = np.array([float(job.spec.gpus) for job in jobs])
    given_JT = np.zeros(worth_JT.shape)
    mean_T = (worth_JT / np.maximum(worth_JT.max(axis=1, keepdims=True), 1e-300)).sum(axis=0)
    for t in np.argsort(-mean_T, kind="stable").tolist():
        given_JT[:, t] = _filled(weight_J, np.where(worth_JT[:, t] > 0.0, room_J, 0.0), float(held_T[t]))
        room_J = room_J - given_JT[:, t]
    return given_JT
