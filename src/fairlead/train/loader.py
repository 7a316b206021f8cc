"""Batches of a data set for however many workers there are: every sample of an epoch once, whatever happens.

The positions of a step, from the job's cursor on, are split among the workers; each takes its part in micro-batches
that fit into memory. A worker for whom nothing is left (at the end of an epoch) gets a sample whose gradient counts
nothing, so that its loop runs like all others. In *reproducible* mode a step is always cut into the same micro-batches,
each with random numbers of its own, however many workers share them: so dropout and batch norm do the same on one GPU
as on ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.train.order import Order, deal, micro_batches, shards, split
from fairlead.train.progress import Micro
from fairlead.train.session import Job


class Share(NamedTuple):
    """One micro-batch: positions within the step, and which of the step's shards it is, if that matters."""

    positions: range
    shard: int | None = None


class Loader:
    """Iterate over it once in every epoch of `job.epochs`."""

    def __init__(
        self,
        job: Job,
        dataset: Any,
        batch: Batch,
        *,
        virtual_shards: int | None = None,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise InvalidSpec(
                f"job.loader: the data set is a {type(dataset).__name__}; expected one with __getitem__ and __len__"
            )
        if len(dataset) == 0:
            raise InvalidSpec("job.loader: the data set is empty")
        self.batch = batch
        self._job, self._dataset, self._collate = job, dataset, collate or default_collate
        self._shards = virtual_shards
        self._order = Order(len(dataset), job.seed, shuffle=shuffle)

    @property
    def _adaptive(self) -> bool:
        return self.batch.max_total != self.batch.initial

    def __len__(self) -> int:
        """Steps of an epoch at the initial batch."""
        return -(-len(self._dataset) // self.batch.initial)

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        if not job.joined:
            yield from self._rehearse()
            job.boundary()
        epoch = job.progress.epoch
        while job.progress.epoch == epoch and not job.finished:
            yield from self._step()
            job.boundary()

    def _step(self) -> Iterator[Any]:
        """One update, unless somebody is lost in the middle of it."""
        job, start = self._job, self._job.progress.position
        total = min(self._total(), len(self._dataset) - start)
        mine = self._shares(total)
        weight = 1.0
        if not mine:
            mine, weight = [Share(range(1))], 0.0
        try:
            for place, share in enumerate(mine):
                ids = self._order.ids(job.progress.epoch, start + share.positions.start, start + share.positions.stop)
                last = place == len(mine) - 1
                micro = Micro(len(ids), weight=weight * len(ids) / total, last=last)
                if share.shard is not None:
                    torch.manual_seed(hash((job.seed, job.progress.step, share.shard)) & (1 << 63) - 1)
                job.begin(micro, first=place == 0, total=total)
                yield self._fetch(ids)
                if job.void:
                    return
        finally:
            if job.reduced:  # also if the loop was left by a break
                job.commit()

    def _rehearse(self) -> Iterator[Any]:
        """One pass through the loop for a worker that comes late: what it learns is overwritten, but it is warm."""
        size = min(self.batch.initial, self.batch.max_per_gpu or self.batch.initial, len(self._dataset))
        self._job.begin(Micro(size, weight=1.0, last=True, rehearsal=True), first=True, total=size)
        yield self._fetch(self._order.ids(0, 0, size))

    def _total(self) -> int:
        """Samples of a whole step."""
        job = self._job
        if not self._adaptive:
            return self.batch.initial
        return job.world * job.progress.per_gpu_batch * (job.progress.accumulation + 1)

    def _shares(self, total: int) -> list[Share]:
        job = self._job
        if self._shards is not None:
            every = shards(total, self._shards)
            return [Share(every[shard], shard) for shard in deal(self._shards, job.world)[job.rank] if every[shard]]
        mine = split(total, job.shares)[job.rank]
        largest = job.progress.per_gpu_batch if self._adaptive else self.batch.max_per_gpu or total
        return [Share(part) for part in micro_batches(mine, max(1, largest))]

    def _fetch(self, ids: NDArray[np.int64]) -> Any:
        return self._collate([self._dataset[place] for place in ids.tolist()])
