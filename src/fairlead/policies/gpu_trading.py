"""Users trade GPUs of different types where both gain (Gandiva-Fair, EuroSys '20, section 4).

A user's jobs may run three times as fast on a new GPU as on an old one, another's only 1.2 times. The second gives the
first a new GPU for two old ones, say, and both are better off than with their fair parts. The price is that of an
auction in which the second highest bid is paid: what the fast GPU is worth, in slow ones, to the user that values it
second most, and never less than to the seller. So no user ends with less than its fair part is worth to it.

Legend: U users, T GPU types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairlead.core.snapshot import Floats

#: GPUs: smaller trades than this are not made.
_LEAST = 1e-9


class Trade(NamedTuple):
    """One exchange of GPUs between users, by number, of types, by number."""

    seller: int
    buyer: int
    fast: int
    slow: int
    #: GPUs of the fast type, and slow ones that are paid for each of them.
    gpus: float
    price: float


@dataclass(frozen=True)
class Traded:
    """What users hold after all trades."""

    held_UT: Floats
    trades: tuple[Trade, ...]


def trade(held_UT: Floats, worth_UT: Floats, most_U: Floats) -> Traded:
    """Trade until no two users gain.

    `held_UT` are GPUs, parts of one included; `worth_UT` what a GPU of a type is worth to a user, in any unit of its
    own, 0 if its jobs cannot run there; `most_U` the most GPUs of all types together that a user's jobs can use.
    """
    held_UT = held_UT.copy()
    trades: list[Trade] = []
    for _ in range(held_UT.shape[0] * held_UT.shape[1] ** 2 + 1):  # each trade exhausts a seller, a buyer or its jobs
        best = max(_offers(held_UT, worth_UT, most_U), key=lambda offer: offer[0], default=None)
        if best is None:
            break
        done = best[1]
        held_UT[done.seller, done.fast] -= done.gpus
        held_UT[done.buyer, done.fast] += done.gpus
        held_UT[done.seller, done.slow] += done.gpus * done.price
        held_UT[done.buyer, done.slow] -= done.gpus * done.price
        trades.append(done)
    return Traded(np.maximum(held_UT, 0.0), tuple(trades))


def _offers(held_UT: Floats, worth_UT: Floats, most_U: Floats) -> Iterator[tuple[tuple[float, ...], Trade]]:
    """For each pair of types: what the user that values the fast one most gains by a trade."""
    types = range(held_UT.shape[1])
    for fast in types:
        for slow in types:
            runs_U = (worth_UT[:, fast] > 0.0) & (worth_UT[:, slow] > 0.0)
            if fast == slow or runs_U.sum() < 2:
                continue
            ratio_U = np.where(runs_U, worth_UT[:, fast] / np.where(runs_U, worth_UT[:, slow], 1.0), math.nan)
            room_U = most_U - held_UT.sum(axis=1)
            sellers = np.flatnonzero(runs_U & (held_UT[:, fast] > _LEAST))
            buyers = np.flatnonzero(runs_U & (held_UT[:, slow] > _LEAST))
            if not len(sellers) or not len(buyers):
                continue
            buyer = int(buyers[np.argmax(ratio_U[buyers])])
            for seller in sorted(sellers.tolist(), key=lambda user: float(ratio_U[user])):
                low, high = float(ratio_U[seller]), float(ratio_U[buyer])
                if not low < high * (1.0 - 1e-9):
                    break
                others = [float(ratio_U[user]) for user in buyers.tolist() if user not in (buyer, seller)]
                price = min(high, max([low, *others]))
                gpus = min(float(held_UT[seller, fast]), float(held_UT[buyer, slow]) / price)
                if price > 1.0:
                    gpus = min(gpus, max(0.0, float(room_U[seller])) / (price - 1.0))
                elif price < 1.0:
                    gpus = min(gpus, max(0.0, float(room_U[buyer])) / (1.0 - price))
                if gpus > _LEAST:
                    gain = float(f"{gpus * (high - low):.9g}")  # of equal trades the first is made, whatever the unit
                    yield (gain, -float(fast), -float(slow)), Trade(int(seller), buyer, fast, slow, gpus, price)
                    break
