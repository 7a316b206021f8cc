"""Batches of a data set for however many workers there are: every sample of an epoch once, whatever happens.

The positions of a step, from the job's place on, are split among the workers; each takes its part in micro-batches
that fit into memory. A worker for whom nothing is left (at the end of an epoch) gets samples whose gradient counts
nothing, so that its loop runs like all others. In *reproducible* mode a step is always cut into the same micro-batches,
each with random numbers of its own, however many workers share them: so dropout and batch norm do the same on one GPU
as on ten.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch
from fairlead.train.order import Audit, deal, micro_batches, shards, split
from fairlead.train.progress import Micro
from fairlead.train.schedules import Schedule
from fairlead.train.schedules import schedule as find_schedule
from fairlead.train.source import Collate, Source, find_source

if TYPE_CHECKING:
    from fairlead.train.session import Job

#: A directory: for tests, in which everybody notes which samples each step used.
AUDIT = "FAIRLEAD_AUDIT"


class Share(NamedTuple):
    """One micro-batch: positions within the step, and which of the step's shards it is, if that matters."""

    positions: range
    shard: int | None = None
    #: 0 for samples that somebody else uses.
    weight: float = 1.0


class Loader:
    """Iterate over it once in every epoch of `job.epochs`."""

    def __init__(self, job: Job, batch: Batch, *, virtual_shards: int | None = None) -> None:
        self.batch = batch
        self.source: Source  # which asks `forecast` what to fetch ahead
        self._job, self._shards = job, virtual_shards
        #: A step was committed, but what must happen between two steps has not.
        self._between = False
        self._audit = Audit(Path(os.environ[AUDIT]) / f"{job.name}-{os.getpid()}") if AUDIT in os.environ else None

    @property
    def _adaptive(self) -> bool:
        return self.batch.max_total != self.batch.initial

    def __len__(self) -> int:
        """Steps of an epoch at the initial batch."""
        return -(-self.source.length // self.batch.initial)

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        if not job.begun:
            raise InvalidSpec("the loader was used outside of job.epochs; write: for epoch in job.epochs(10):")
        if not job.joined:
            yield from self._rehearse()
            job.boundary()
            if job.progress.position == 0:
                return  # the others have just ended an epoch: what they do between two, we do too
        if self._between:  # the loop was left by a break
            self._boundary()
        epoch = job.progress.epoch
        while job.progress.epoch == epoch and not job.finished:
            yield from self._step()
            self._boundary()

    def _boundary(self) -> None:
        self._between = False
        self._job.boundary()

    def _step(self) -> Iterator[Any]:
        """One update, unless somebody is lost in the middle of it."""
        job, epoch, start = self._job, self._job.progress.epoch, self._job.progress.position
        total = self.source.available(epoch, start, self._total())
        if total == 0:
            job.end_epoch()
            return
        mine = self._shares(total, job.progress.step)
        try:
            for place, share in enumerate(mine):
                samples = len(share.positions)
                weight = share.weight * samples / total
                if share.shard is not None:
                    torch.manual_seed(hash((job.seed, job.progress.step, share.shard)) & (1 << 63) - 1)
                job.begin(Micro(samples, weight=weight, last=place == len(mine) - 1), first=place == 0, total=total)
                ids, batch = self.source.fetch(epoch, _from(start, share.positions))
                if self._audit is not None and share.weight > 0.0:
                    self._audit.took(epoch, job.progress.step, job.generation, job.rank, ids)
                yield batch
                if job.void:
                    return
            if not job.reduced:
                raise InvalidSpec("the loop came round without job.backward; call job.backward(loss) for every batch")
        finally:
            if job.reduced:  # also if the loop was left by a break
                if self._audit is not None:
                    self._audit.committed(job.progress.step, job.generation, time.time())
                self.source.used(start + total)
                job.commit()
                self._between = True

    def _rehearse(self) -> Iterator[Any]:
        """One pass through the loop for a worker that comes late: what it learns is overwritten, but it is warm."""
        size = self.source.available(0, 0, min(self.batch.initial, self.batch.max_per_gpu or self.batch.initial))
        self._job.begin(Micro(size, weight=1.0, last=True, rehearsal=True), first=True, total=size)
        yield self.source.fetch(0, range(size))[1]

    def forecast(self) -> Iterator[tuple[int, range]]:
        """What this worker takes from the present step on, if nothing changes."""
        progress, wanted, length = self._job.progress, self._total(), self.source.length
        first, step = progress.position, itertools.count(progress.step)
        for epoch in itertools.count(progress.epoch):
            for start in range(first, length, wanted):
                for share in self._shares(min(wanted, length - start), next(step)):
                    yield epoch, _from(start, share.positions)
            first = 0

    def _total(self) -> int:
        """Samples of a whole step."""
        job = self._job
        if not self._adaptive or not job.joined:
            return self.batch.initial
        return job.world * job.progress.per_gpu_batch * (job.progress.accumulation + 1)

    def _shares(self, total: int, step: int) -> list[Share]:
        """This worker's; at least one, even if it counts nothing."""
        job = self._job
        if not job.joined:
            return [Share(range(min(total, self.batch.max_per_gpu or total)))]
        if self._shards is not None:
            every = shards(total, self._shards)
            mine = [Share(every[shard], shard) for shard in deal(self._shards, job.world)[job.rank] if every[shard]]
        else:
            part = split(total, job.shares)[job.rank]
            # In as many micro-batches as were decided on, also if it is more than an equal share.
            compared = job.world == 1 and job.meter.due(step, adaptive=self._adaptive)
            micros = max(2 if compared else 1, job.progress.accumulation + 1)
            fitting = -(-len(part) // micros) if self._adaptive else total
            largest = min(fitting, self.batch.max_per_gpu or total)
            mine = [Share(positions) for positions in micro_batches(part, max(1, largest))]
        return mine or [Share(range(min(2, total)), weight=0.0)]  # batch norm makes nothing of one sample

    def dealt(self, total: int) -> list[int]:
        """Samples of each member in a step of so many."""
        if self._shards is None:
            return [len(part) for part in split(total, self._job.shares)]
        every = shards(total, self._shards)
        return [sum(len(every[shard]) for shard in mine) for mine in deal(self._shards, self._job.world)]


def as_told(initial: int, most: int | None) -> tuple[int, int | None]:
    """The initial and the largest batch: those of FAIRLEAD_BATCH, as in 64 or 64-4096, or else of the script."""
    told = os.environ.get("FAIRLEAD_BATCH", "")
    if not told:
        return initial, most
    first, _, last = told.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not last)):
        raise InvalidSpec(f"FAIRLEAD_BATCH is {told!r}; expected a number of samples, or the least and most: 64-4096")
    return int(first), int(last) if last else None


def batch_of(initial: int, most: int | None, per_gpu: tuple[int, int | None], *, reproducible: bool) -> Batch:
    """What the parameters of job.loader mean; the error names them."""
    for name, value in (("batch_size", initial), ("max_batch_size", most)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidSpec(f"{name} is {value!r}; expected a whole number of samples, at least 1")
    if not isinstance(per_gpu, tuple) or len(per_gpu) != 2:
        raise InvalidSpec(f"per_gpu is {per_gpu!r}; expected the least and the most samples, such as (1, 64)")
    if isinstance(per_gpu[0], int) and per_gpu[0] > (most or initial):
        raise InvalidSpec(f"the least of per_gpu is {per_gpu[0]}, but a step has {most or initial} samples; lower it")
    if reproducible and most not in (None, initial):
        raise InvalidSpec(f"reproducible, but max_batch_size is {most}; leave one of them out")
    try:
        return Batch(initial, most or initial, *per_gpu)
    except InvalidSpec as error:
        raise InvalidSpec(f"{error}; see batch_size, max_batch_size and per_gpu") from None


def schedule_of(name: str | None, most: int | None) -> Schedule:
    """By the parameters of job.loader."""
    if name not in (None, "fixed") and most is None:
        raise InvalidSpec(f"schedule is {name!r}, but the batch cannot change; state max_batch_size as well")
    return find_schedule(name) if name is not None else find_schedule()


def _from(start: int, positions: range) -> range:
    return range(start + positions.start, start + positions.stop)


def make_loader(
    job: Job,
    data: Any,
    batch: Batch,
    collate: Collate | None,
    *,
    shards: int | None,
    shuffle: bool,
    length: int | None,
    processes: int,
) -> Loader:
    """For whatever data a script has. With `shards` it is reproducible."""
    loader = Loader(job, batch, virtual_shards=shards)
    loader.source = find_source(
        data, collate, loader.forecast, seed=job.seed, reproducible=shards is not None, shuffle=shuffle,
        length=length, processes=processes, pin=job.on_gpu,
    )  # fmt: skip
    return loader
