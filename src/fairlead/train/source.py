"""Where samples come from: a data set with numbers, also fetched ahead by processes, or a stream.

A source is asked for the samples at some positions of an epoch. It may be asked for the same ones again, when a step is
begun again; and nobody knows for certain which ones will be asked for next, since workers come and go.
"""

from __future__ import annotations

import atexit
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from fairlead.core.errors import InvalidSpec
from fairlead.train.order import Order, Stream

Collate = Callable[[list[Any]], Any]

#: An epoch, and the numbers of some samples.
Key = tuple[int, list[int]]

#: Which samples a worker takes next, as (epoch, positions), if nothing changes.
Forecast = Callable[[], Iterator[tuple[int, range]]]


class Source(Protocol):
    """What a loader needs of it."""

    #: Samples of an epoch; a stream may end before.
    length: int

    def available(self, epoch: int, start: int, wanted: int) -> int:
        """How many of the wanted samples there are from here on; 0 at the end of the epoch."""

    def fetch(self, epoch: int, positions: range) -> tuple[list[int], Any]:
        """The numbers of the samples, and the samples as one batch."""

    def used(self, stop: int) -> None:
        """What is before this position will not be asked for again."""


class Indexed:
    """A data set with numbers, in a seeded order."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        collate: Collate | None,
        forecast: Forecast,
        *,
        seed: int | None,
        processes: int,
        pin: bool,
    ) -> None:
        self.length = order.length
        self._order, self._positions = order, forecast
        self._batches = _Batches(dataset, collate or default_collate, seed)
        self._ahead = _Ahead(self._batches, processes, self._forecast, pin=pin) if processes > 0 else None

    def available(self, epoch: int, start: int, wanted: int) -> int:
        return min(wanted, self.length - start)

    def fetch(self, epoch: int, positions: range) -> tuple[list[int], Any]:
        ids = self._ids(epoch, positions)
        return ids, self._batches[epoch, ids] if self._ahead is None else self._ahead.fetch((epoch, ids))

    def used(self, stop: int) -> None:
        """Nothing was kept."""

    def _ids(self, epoch: int, positions: range) -> list[int]:
        ids: list[int] = self._order.ids(epoch, positions.start, positions.stop).tolist()
        return ids

    def _forecast(self) -> Iterator[Key]:
        return ((epoch, self._ids(epoch, positions)) for epoch, positions in self._positions())


class _Batches:
    """A data set of whole batches, by epoch and numbers: so that a DataLoader takes what we call a batch.

    With a seed, the random numbers of a sample depend on the sample and the epoch alone, and not on who fetches it
    after what.
    """

    def __init__(self, dataset: Any, collate: Collate, seed: int | None) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Any:
        epoch, ids = key
        if self._seed is not None:
            return self._collate([self._seeded(hash((self._seed, epoch, place)), place) for place in ids])
        many = getattr(self._dataset, "__getitems__", None)
        return self._collate(many(ids) if many is not None else [self._dataset[place] for place in ids])

    def _seeded(self, number: int, place: int) -> Any:
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        torch.manual_seed(number & (1 << 63) - 1)
        random.seed(number)
        np.random.seed(number & (1 << 32) - 1)
        try:
            return self._dataset[place]
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])


class _Ahead:
    """Batches fetched by processes before they are asked for, as far as could be foreseen."""

    def __init__(self, batches: _Batches, processes: int, forecast: Callable[[], Iterator[Key]], *, pin: bool) -> None:
        self._forecast = forecast
        self._coming: Iterator[Key] = iter(())
        #: What the processes were told to fetch, and have not been asked for.
        self._told: deque[Key] = deque()
        self._loader: DataLoader[Any] | None = DataLoader(
            batches,  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Endless(self._next),
            num_workers=processes,
            pin_memory=pin,
            persistent_workers=True,
            collate_fn=_as_it_is,
            worker_init_fn=_begin,
        )
        self._fetched: Iterator[Any] | None = None
        atexit.register(self._close)

    def _close(self) -> None:
        """Tells the processes to end. Without that they would be ended by a signal that they ignore, and waited for."""
        self._fetched = self._loader = None

    def fetch(self, key: Key) -> Any:
        if self._fetched is None:
            assert self._loader is not None
            self._coming = self._forecast()
            self._fetched = iter(self._loader)
        if self._told[0] != key:
            self._coming = self._forecast()  # something has changed: what was fetched for nothing is thrown away
        for _ in range(len(self._told) + 1):
            told, batch = self._told.popleft(), next(self._fetched)
            if told == key:
                return batch
        raise AssertionError(f"{key} was not foreseen")

    def _next(self) -> Key:
        """What a process should fetch next."""
        key = next(self._coming)
        self._told.append(key)
        return key


class _Endless:
    def __init__(self, next_key: Callable[[], Key]) -> None:
        self._next_key = next_key

    def __iter__(self) -> Iterator[Key]:
        while True:
            yield self._next_key()


def _begin(_: int) -> None:
    """In a process that fetches. Who stops the whole group means the job, which saves first; this one ends with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _as_it_is(batch: Any) -> Any:
    return batch


class Streamed:
    """Data that can only be read from front to back. Everybody reads all of it, and keeps its own part."""

    def __init__(self, iterable: Any, length: int, collate: Collate | None) -> None:
        self.length = length
        self._iterable, self._collate = iterable, collate or default_collate
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        if hasattr(self._iterable, "set_epoch"):
            self._iterable.set_epoch(epoch)
        self._epoch, self._stream = epoch, Stream[Any](self._iterable)
        self._hold(0)

    def _hold(self, start: int) -> None:
        """Nothing, from here on."""
        self._start, self._held = start, list[Any]()
        #: To go on from `_start`, or from a little before it.
        self._before = self._stream.state_dict()

    def available(self, epoch: int, start: int, wanted: int) -> int:
        if epoch != self._epoch:
            self._begin(epoch)
        self.used(start)
        wanted = min(wanted, self.length - start)
        self._held += self._stream.take(range(start + len(self._held), start + wanted))
        if start == 0 and not self._held:
            raise InvalidSpec(f"{type(self._iterable).__name__} gave no sample; was it read to its end already?")
        return min(wanted, len(self._held))

    def fetch(self, epoch: int, positions: range) -> tuple[list[int], Any]:
        found = self._held[positions.start - self._start : positions.stop - self._start]
        return list(positions), self._collate(found)

    def used(self, stop: int) -> None:
        del self._held[: stop - self._start]
        self._start = stop
        if not self._held:
            self._hold(stop)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "stream": self._before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["epoch"] != self._epoch:
            if iter(self._iterable) is self._iterable and not hasattr(self._iterable, "load_state_dict"):
                raise InvalidSpec(
                    f"{type(self._iterable).__name__} can be read only once, so a new worker cannot find epoch "
                    f"{state['epoch']} in it; use an iterable that starts anew at each iter(), or has load_state_dict"
                )
            self._begin(state["epoch"])
        self._stream.load_state_dict(state["stream"])
        self._hold(self._stream.position)


def find_source(
    data: Any,
    collate: Collate | None,
    forecast: Forecast,
    *,
    seed: int,
    reproducible: bool,
    shuffle: bool,
    length: int | None,
    processes: int,
    pin: bool,
) -> Source:
    """For whatever a script has; the error names what is wrong with it."""
    kind = type(data).__name__
    if isinstance(data, DataLoader):
        raise InvalidSpec("job.loader: this is a DataLoader; give its data set, and its collate_fn")
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not indexed and not hasattr(data, "__iter__"):
        raise InvalidSpec(
            f"job.loader: the data set is a {kind}; expected one with __getitem__ and __len__, or an iterable"
        )
    if processes < 0:
        raise InvalidSpec(f"job.loader: num_workers is {processes}; expected 0 or more processes that fetch ahead")
    if indexed:
        if length is not None:
            raise InvalidSpec(f"job.loader: length is for iterables, but this {kind} has {len(data)} samples")
        if len(data) == 0:
            raise InvalidSpec("job.loader: the data set is empty")
        order = Order(len(data), seed, shuffle=shuffle)
        each = seed if reproducible else None
        return Indexed(data, order, collate, forecast, seed=each, processes=processes, pin=pin)
    if processes > 0:
        raise InvalidSpec(
            f"job.loader: num_workers is {processes}, but a {kind} can only be iterated over; leave it out"
        )
    if length is None and hasattr(data, "__len__"):
        length = len(data)
    if length is None or length < 1:
        raise InvalidSpec(f"job.loader: length is {length}; state how many samples of this {kind} make an epoch")
    return Streamed(data, length, collate)
