"""Which samples come next, and who takes them: every sample of an epoch exactly once, whatever happens to the workers.

A job has one place (`Progress`) in one seeded order of the data set. It moves only when a step is committed: a step
that is redone takes the same samples again, and a resumed job goes on where the last commit was. How a step's samples
are divided among workers is decided afresh for each step and leaves no trace. Nothing here knows of torch or of
processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import InvalidSpec

Sample = TypeVar("Sample")
Ids = NDArray[np.int64]


class Order:
    """The order of a data set in each epoch: a function of the length, the seed and the epoch, and of nothing else.

    The random words of an epoch are those of `PCG64(SeedSequence(seed, spawn_key=(epoch,)))`. NumPy promises that these
    never change; it does not promise that for its own `permutation`, and workers may have different versions of it.
    """

    def __init__(self, length: int, seed: int, *, shuffle: bool = True) -> None:
        if length < 1:
            raise InvalidSpec(f"the data set has {length} samples; training needs at least one")
        if seed < 0:
            raise InvalidSpec(f"the seed of the data order is {seed}; it must not be negative")
        self.length = length
        self._seed = seed
        self._shuffle = shuffle
        #: The last two epochs asked for, as whoever fetches ahead is soon in the next one. Replaced as a whole, so that
        #: threads see one or the other.
        self._known: tuple[tuple[int, Ids], ...] = ()

    def ids(self, epoch: int, start: int, stop: int) -> Ids:
        """The samples at these positions of the epoch, by their index in the data set."""
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"there are no positions {start} to {stop} in an epoch of {self.length} samples")
        if not self._shuffle:
            return np.arange(start, stop, dtype=np.int64)
        known = next((ids for at, ids in self._known if at == epoch), None)
        if known is None:
            known = _permutation(self.length, self._seed, epoch)
            self._known = (*self._known[-1:], (epoch, known))
        return known[start:stop].copy()


def _permutation(length: int, seed: int, epoch: int) -> Ids:
    """Random words with the index in their lowest bits, sorted: no two are equal, so any way of sorting agrees."""
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(length)
    bits = np.uint64(length.bit_length())
    words = words >> bits << bits | np.arange(length, dtype=np.uint64)
    words.sort()
    indices: Ids = (words & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    return indices


def split(total: int, shares: Sequence[float]) -> list[range]:
    """The positions of a step that each worker takes, in proportion to its share; equal shares give equal parts.

    Largest remainder, the lowest rank first among equals; nobody idles while there is a sample for each. Fractions
    are exact, so all ranks come to the same result and a faster worker never gets less than a slower one.
    """
    if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
        raise ValueError(f"a step is split among at least one worker by positive shares, not {list(shares)}")
    exact = [Fraction(share) for share in shares]
    whole = sum(exact)
    quotas = [total * share / whole for share in exact]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda rank: counts[rank] - quotas[rank])
    for rank in by_remainder[: total - sum(counts)]:
        counts[rank] += 1
    if total >= len(counts):
        _leave_nobody_idle(counts, quotas)
    return _consecutive(counts)


def _leave_nobody_idle(counts: list[int], quotas: list[Fraction]) -> None:
    """Each idle worker gets a sample of whoever is furthest above its quota, the highest rank among equals."""
    for idle in [rank for rank, count in enumerate(counts) if count == 0]:
        donors = [rank for rank, count in enumerate(counts) if count > 1]
        counts[max(donors, key=lambda rank: (counts[rank] - quotas[rank], rank))] -= 1
        counts[idle] = 1


def micro_batches(mine: range, largest: int) -> list[range]:
    """A worker's positions in as few parts as possible, none above `largest`, as equal as possible."""
    if largest < 1:
        raise ValueError(f"a micro-batch holds at least one sample, not {largest}")
    return _cut(mine, -(-len(mine) // largest))


def shards(total: int, count: int) -> list[range]:
    """The step cut into a fixed number of virtual shards, some of them empty if there are fewer samples.

    Taken as the micro-batches, they are the same for any number of workers: see `deal`.
    """
    if count < 1:
        raise ValueError(f"a step has at least one shard, not {count}")
    return _cut(range(total), count)


def deal(count: int, workers: int) -> list[list[int]]:
    """The virtual shards each worker takes: neighbours, and at most one more than another worker."""
    if workers < 1:
        raise ValueError(f"shards are dealt to at least one worker, not {workers}")
    return [list(part) for part in _cut(range(count), workers)]


def _cut(positions: range, parts: int) -> list[range]:
    if parts == 0:
        return []
    size, larger = divmod(len(positions), parts)
    return _consecutive([size + (part < larger) for part in range(parts)], start=positions.start)


def _consecutive(counts: Sequence[int], *, start: int = 0) -> list[range]:
    ranges = []
    for count in counts:
        ranges.append(range(start, start + count))
        start += count
    return ranges


class Stream(Generic[Sample]):
    """The samples of an iterable at given positions, for data that can only be read from front to back.

    Every worker reads the whole iterable and keeps its own positions, so that any worker can take any sample.
    """

    def __init__(self, iterable: Iterable[Sample]) -> None:
        self._source = iterable
        self._samples = iter(iterable)
        #: The position that is read next; everything before it is gone.
        self.position = 0

    def take(self, positions: Iterable[int]) -> Iterator[Sample]:
        """The samples at these ascending positions; fewer if the iterable ends before."""
        for position in positions:
            if position < self.position:
                raise ValueError(
                    f"position {position} of the stream was already read (it is at {self.position}); "
                    "ask in ascending order, or restore an earlier state"
                )
            self._read_up_to(position)
            try:
                sample = next(self._samples)
            except StopIteration:
                return
            self.position += 1
            yield sample

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, and the iterable's own state if it keeps one."""
        state: dict[str, Any] = {"position": self.position}
        if hasattr(self._source, "state_dict"):
            state["source"] = self._source.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to that place: at once if the iterable can, otherwise by reading up to it."""
        if "source" in state and hasattr(self._source, "load_state_dict"):
            self._source.load_state_dict(state["source"])
            self._samples = iter(self._source)
            self.position = state["position"]
            return
        if state["position"] < self.position:
            self._begin_again()
        if not self._read_up_to(state["position"]):
            raise InvalidSpec(
                f"the stream ends after {self.position} samples, but was saved after {state['position']}; "
                "is it the same data?"
            )

    def _begin_again(self) -> None:
        samples = iter(self._source)
        if samples is self._samples:
            raise InvalidSpec(
                f"{type(self._source).__name__} can be read only once, so the stream cannot go back to an earlier "
                "state; pass an iterable that starts anew at each iter(), or that has load_state_dict"
            )
        self._samples, self.position = samples, 0

    def _read_up_to(self, position: int) -> bool:
        """Whether the iterable is that long."""
        while self.position < position:
            try:
                next(self._samples)
            except StopIteration:
                return False
            self.position += 1
        return True


class Audit:
    """For tests: which samples each step used. With a path, what is noted is in that file before anything goes on.

    A sample is taken when the loader gives it to the loop, and used when the step is committed. A step may be begun
    several times, each time by another set of workers; of several commits the last counts, since whoever made an
    earlier one was lost with it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        #: (step, who) -> (epoch, rank, ids) of everybody who took part.
        self._taken: dict[tuple[int, str], list[tuple[int, int, list[int]]]] = {}
        #: step -> (when, who) of the last commit.
        self._committed: dict[int, tuple[float, str]] = {}

    @classmethod
    def merged(cls, paths: Iterable[Path]) -> Self:
        """What several processes wrote, as one."""
        audit = cls()
        for path in paths:
            for line in path.read_text().splitlines():
                kind, *fields = json.loads(line)
                getattr(audit, kind)(*fields)
        return audit

    def took(self, epoch: int, step: int, who: str, rank: int, ids: Sequence[int]) -> None:
        self._taken.setdefault((step, who), []).append((epoch, rank, list(ids)))
        self._write("took", epoch, step, who, rank, list(ids))

    def committed(self, step: int, who: str, at: float) -> None:
        self._committed[step] = max(self._committed.get(step, (at, who)), (at, who))
        self._write("committed", step, who, at)

    def _write(self, *entry: Any) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    @property
    def used(self) -> dict[int, list[tuple[int, int, int]]]:
        """(sample, step, rank) by epoch."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for step, (_, who) in sorted(self._committed.items()):
            for epoch, rank, ids in self._taken.get((step, who), []):
                found.setdefault(epoch, []).extend((sample, step, rank) for sample in ids)
        return found

    def check(self, length: int, *, epochs: Iterable[int] | None = None) -> None:
        """Raise unless every one of these epochs, by default every one there is, used each sample exactly once."""
        used = self.used
        for epoch in sorted(used) if epochs is None else epochs:
            uses: dict[int, list[tuple[int, int]]] = {}
            for sample, step, rank in used.get(epoch, []):
                uses.setdefault(sample, []).append((step, rank))
            missing = [sample for sample in range(length) if sample not in uses]
            unknown = sorted(sample for sample in uses if not 0 <= sample < length)
            repeated = {sample: uses[sample] for sample in sorted(uses) if len(uses[sample]) > 1}
            if missing or repeated or unknown:
                raise AssertionError(
                    f"epoch {epoch} of {length} samples: missing {missing}; "
                    f"repeated, with their (step, rank), {repeated}; unknown {unknown}"
                )
