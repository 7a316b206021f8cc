"""A partial-allocation auction of free GPUs (Themis, NSDI 2020, section 5; the mechanism is that of Cole et al. 2013).

Each bidder states a table: its finish-time fairness (rho) on every configuration that it could win, and without GPUs.
The winners are those that make the product of all bidders' values, 1 / rho, the greatest (Nash welfare). Then each
winner pays in kind for what its presence costs the others: it keeps only the share

    c_i = product over j != i of value_j where i takes part / the same where i stays away

of what it won. That is the paper's hidden payment, by which a bidder does best with a true table.

The search is exact for few bidders, up to how a gang is laid out on nodes: on as few as have room, in the tightest
gaps, wide gangs first. For many it is greedy, by the gain in log(value) for each GPU. In either case `bound` is an
upper limit of the gain: that of bidders which may be served in part, on GPUs that are all alike and on one node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

#: GPUs by node.
Where = Mapping[str, int]

#: With at most so many bidders, and so many steps for each search, the search is exact.
FEW_BIDDERS = 10
MOST_STEPS = 4000

#: Of what it won a bidder keeps at least this share: where all goods can be divided, no winner pays more (Cole et al.).
LEAST_KEPT = 1.0 / math.e

#: A rho that is less than this part of that without GPUs counts like it.
_LEAST_RATIO = 1e-12


@dataclass(frozen=True, slots=True)
class Bid:
    """The table of one job that asks for a number of GPUs."""

    job: str
    gpus: int
    #: Its rho if it gets nothing.
    idle_rho: float
    #: Its rho on each GPU type, by the number of nodes from 1 on; further nodes count like the last.
    rho: Mapping[str, Sequence[float]]
    #: What it has held until now and could keep, on nodes that are offered; None if it held nothing.
    held: Where | None = None
    #: Its rho if it stays there.
    held_rho: float = math.inf

    def gain(self, rho: float) -> float:
        """In log(value), over getting nothing."""
        return -math.inf if math.isinf(rho) else -math.log(max(rho / self.idle_rho, _LEAST_RATIO))

    def rho_on(self, gpu_type: str, nodes: int) -> float:
        by_nodes = self.rho.get(gpu_type, ())
        return by_nodes[min(nodes, len(by_nodes)) - 1] if by_nodes else math.inf


class Win(NamedTuple):
    """What a bidder gets."""

    where: Where
    gain: float
    rho: float
    #: It stays where it is.
    stays: bool


class Outcome(NamedTuple):
    """Winners, what they keep of it, and the total gain in log(value) beside its upper limit."""

    wins: Mapping[str, Win]
    kept: Mapping[str, float]
    gain: float
    bound: float


class Pool:
    """Free GPUs by node while an auction or what is left of it is given out."""

    def __init__(self, free: Mapping[str, Where]) -> None:
        #: By GPU type.
        self._free = {gpu_type: dict(by_node) for gpu_type, by_node in free.items()}
        self._type = {node: gpu_type for gpu_type, by_node in free.items() for node in by_node}
        self.total = {gpu_type: sum(by_node.values()) for gpu_type, by_node in free.items()}

    def fit(self, gpu_type: str, gpus: int) -> Where | None:
        """So many GPUs of a type on as few nodes as have room: large gaps first, the tightest last. None if too few."""
        if self.total.get(gpu_type, 0) < gpus:
            return None
        free, found, left = self._free[gpu_type], dict[str, int](), gpus
        while left > 0:
            rest = [(count, node) for node, count in free.items() if node not in found]
            enough = [count for count, _ in rest if count >= left]
            size = min(enough) if enough else max(count for count, _ in rest)
            node = next(node for count, node in rest if count == size)
            found[node] = min(left, size)
            left -= found[node]
        return found

    def has(self, where: Where) -> bool:
        return all(self._free[self._type[node]].get(node, 0) >= count for node, count in where.items())

    def take(self, where: Where) -> None:
        for node, count in where.items():
            gpu_type = self._type[node]
            self._free[gpu_type][node] -= count
            self.total[gpu_type] -= count

    def give_back(self, where: Where) -> None:
        self.take({node: -count for node, count in where.items()})

    def copy(self) -> Pool:
        return Pool(self._free)


def hold_auction(bids: Sequence[Bid], pool: Pool) -> Outcome:
    """Who wins what, and which share of it each keeps. The pool stays as it is."""
    wins = _search(bids, pool)
    kept = {bid.job: _kept(bid, bids, wins, pool) for bid in bids if bid.job in wins}
    gain = _total(wins)
    return Outcome(wins, kept, gain, max(gain, _upper_limit(bids, pool)))  # they may differ by rounding


def _total(wins: Mapping[str, Win]) -> float:
    return math.fsum(win.gain for win in wins.values())


def _kept(bid: Bid, bids: Sequence[Bid], wins: Mapping[str, Win], pool: Pool) -> float:
    """c_i: the others' values with the bidder over their values without it."""
    with_it = _total({job: win for job, win in wins.items() if job != bid.job})
    others = [other for other in bids if other is not bid]
    if all(other.job in wins and wins[other.job].gain >= _most(other) for other in others):
        return 1.0  # it stands in the way of no other
    without_it = _total(_search(others, pool))
    return min(1.0, max(LEAST_KEPT, math.exp(with_it - without_it)))


def _most(bid: Bid) -> float:
    """The most that it could gain."""
    best = min((by_nodes[0] for by_nodes in bid.rho.values() if by_nodes), default=math.inf)
    return max(0.0, bid.gain(min(best, bid.held_rho)))


def _upper_limit(bids: Sequence[Bid], pool: Pool) -> float:
    """The gain if bidders could be served in part: those that gain most for each GPU first."""
    left, limit = float(sum(pool.total.values())), 0.0
    needs = [(min(bid.gpus, sum(bid.held.values()) if bid.held is not None else bid.gpus), _most(bid)) for bid in bids]
    limit += math.fsum(gain for gpus, gain in needs if not gpus)
    for gpus, gain in sorted((need for need in needs if need[0]), key=lambda need: -need[1] / need[0]):
        share = min(1.0, left / gpus)
        limit += share * gain
        left -= share * gpus
    return limit


def _search(bids: Sequence[Bid], pool: Pool) -> dict[str, Win]:
    greedy = _greedy(bids, pool)
    if len(bids) > FEW_BIDDERS:
        return greedy
    return _Exact(bids, pool, greedy).best


def _options(bid: Bid, pool: Pool) -> Iterator[Win]:
    """What the bidder could get now that is better than nothing."""
    if bid.held is not None and pool.has(bid.held) and (gain := bid.gain(bid.held_rho)) > 0.0:
        yield Win(bid.held, gain, bid.held_rho, stays=True)
    for gpu_type in bid.rho:
        if (where := pool.fit(gpu_type, bid.gpus)) is None:
            continue
        rho = bid.rho_on(gpu_type, len(where))
        if (gain := bid.gain(rho)) > 0.0:
            yield Win(where, gain, rho, stays=False)


def _greedy(bids: Sequence[Bid], pool: Pool) -> dict[str, Win]:
    """One bidder after the other, the one with the greatest gain for each GPU first, as it stands when it is served."""
    pool, wins = pool.copy(), dict[str, Win]()
    queue = [(-_most(bid) / bid.gpus, place) for place, bid in enumerate(bids)]
    heapify(queue)
    while queue:
        rank, place = heappop(queue)
        bid = bids[place]
        best = max(_options(bid, pool), key=lambda win: win.gain, default=None)
        if best is None:
            continue
        if -best.gain / bid.gpus > rank + 1e-12:  # its best is gone: another may come first
            heappush(queue, (-best.gain / bid.gpus, place))
            continue
        pool.take(best.where)
        wins[bid.job] = best
    return wins


class _Exact:
    """Depth first over bidders, wide gangs first; a branch ends where all that is left cannot beat the best so far."""

    def __init__(self, bids: Sequence[Bid], pool: Pool, greedy: dict[str, Win]) -> None:
        self._bids = sorted(bids, key=lambda bid: (-bid.gpus, -_most(bid)))
        self._rest = [math.fsum(_most(bid) for bid in self._bids[place:]) for place in range(len(bids) + 1)]
        self._pool, self._wins, self._steps = pool.copy(), dict[str, Win](), 0
        self.best, self._gain = greedy, _total(greedy)
        self._visit(0, 0.0)

    def _visit(self, place: int, gain: float) -> None:
        self._steps += 1
        if gain > self._gain + 1e-12:
            self.best, self._gain = dict(self._wins), gain
        if place == len(self._bids) or self._steps > MOST_STEPS or gain + self._rest[place] <= self._gain + 1e-12:
            return
        bid = self._bids[place]
        for win in sorted(_options(bid, self._pool), key=lambda win: -win.gain):
            self._pool.take(win.where)
            self._wins[bid.job] = win
            self._visit(place + 1, gain + win.gain)
            del self._wins[bid.job]
            self._pool.give_back(win.where)
        self._visit(place + 1, gain)
