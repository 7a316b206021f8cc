"""The one pass over a journal: what every job went through, and how the cluster looked at every moment.

It knows messages, nothing of policies, truths or whether the journal is simulated or live. It follows each job with
the core's own transition table, but keeps of it only what is measured. The cost of a message does not depend on the
number of jobs or nodes; only a lost node costs its GPUs.

A GPU that several jobs hold is counted once: each of its n holders is charged 1/n of it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairlead.core.ending import after_the_end, requeued
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import (
    AttemptEvent,
    JobCancelled,
    JobExited,
    JobHeld,
    JobPinned,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Release,
    Remember,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.state import SETTLED, TRANSITIONS
from fairlead.core.types import Allocation, Node, Phase
from fairlead.sim.life import Life
from fairlead.sim.timeline import Segments, Timeline

#: A GPU's key: its node's number, then its own.
_NODE_SHIFT = 16


@dataclass(slots=True, eq=False)
class _Place:
    """A node and how many of its GPUs are in use."""

    node: Node
    number: int
    used: int = 0

    @property
    def stranded(self) -> int:
        return self.node.gpus - self.used if self.node.healthy and 0 < self.used < self.node.gpus else 0


class Ledger:
    """Folds messages, oldest first. `lives` and `timeline()` are its results, after `close()`.

    GPU-seconds are counted by use between `warmup_s` and `window_s` later, from the first submission on.
    """

    def __init__(self, *, warmup_s: float = 0.0, window_s: float = math.inf) -> None:
        self.now = 0.0
        self._warmup_s, self._window_s = warmup_s, window_s
        self.lives: dict[str, Life] = {}
        self._places: dict[str, _Place] = {}
        self._by_number: list[_Place] = []
        self._holders: dict[int, tuple[Life, ...]] = {}
        self._first_submission: float | None = None
        self._last_active = 0.0
        self._in_use = self._gpus = self._queued = self._running = self._requested = self._stranded = 0
        self._healthy = 0
        self._price_per_hour = 0.0
        self._row: tuple[float, ...] = ()
        self._rows = array("d")
        self._segment_gpus, self._segment_jobs = array("q"), array("q")
        self._segment_starts, self._segment_ends = array("d"), array("d")
        self._handlers: dict[type, Callable[[Any], None]] = {
            JobSubmitted: self._submit,
            JobCancelled: self._cancel,
            Start: self._start,
            Resize: self._resize,
            Stop: self._stop,
            NodeJoined: self._join,
            NodeLost: self._lose,
            Release: self._lose,
            **dict.fromkeys((JobHeld, JobPinned, JobReprioritised, NodeDrained, OutsidersSeen), lambda _: None),
            **dict.fromkeys((Rent, Remember, Tick), lambda _: None),
            **dict.fromkeys((JobStarted, JobReported, JobRescaled, JobStopped, JobExited), self._follow),
        }

    def read(self, messages: Iterable[Message]) -> None:
        handlers = self._handlers
        for message in messages:
            if message.at > self.now:
                self._write_row()
                self.now = message.at
            handlers[type(message)](message)

    def close(self) -> None:
        """Account for everything up to the last message. Attempts that still run have lost nothing yet."""
        for life in self.lives.values():
            if life.holding:
                life.account(self.now)
                life.judge(lost=False)
                self._last_active = self.now
                for key, since in life.holding.items():
                    self._write_segment(life, key, since)
        self._write_row()

    def timeline(self) -> Timeline:
        times, in_use, gpus, queued, running, requested, stranded, healthy, price = (
            np.frombuffer(self._rows, dtype=np.float64).reshape(-1, 9).T
        )
        gpu_keys = np.frombuffer(self._segment_gpus, dtype=np.int64)
        start_s = self.now if self._first_submission is None else self._first_submission
        return Timeline(
            times_s=times,
            gpus_in_use=in_use,
            gpus=gpus,
            queued=queued,
            running=running,
            requested=requested,
            stranded=stranded,
            healthy_nodes=healthy,
            price_per_hour=price,
            start_s=start_s,
            end_s=max(start_s, self._last_active),
            nodes=tuple(place.node for place in self._by_number),
            jobs=tuple(self.lives),
            segments=Segments(
                node=gpu_keys >> _NODE_SHIFT,
                gpu=gpu_keys & ((1 << _NODE_SHIFT) - 1),
                start_s=np.frombuffer(self._segment_starts, dtype=np.float64),
                end_s=np.frombuffer(self._segment_ends, dtype=np.float64),
                job=np.frombuffer(self._segment_jobs, dtype=np.int64),
            ),
        )

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _submit(self, event: JobSubmitted) -> None:
        if event.spec.id in self.lives:
            return
        if self._first_submission is None:
            self._first_submission = self._last_active = self.now
        number, from_s = len(self.lives), self._first_submission + self._warmup_s
        self.lives[event.spec.id] = Life(
            event.spec, number, self.now, self.now, from_s=from_s, to_s=from_s + self._window_s
        )
        self._queued += 1
        self._requested += event.spec.gpus

    def _cancel(self, event: JobCancelled) -> None:
        life = self._find(event)
        if not life.phase.final:
            life.cancelled = True
            if life.phase is Phase.PENDING:
                self._end_attempt(life, Phase.CANCELLED, lost=False)

    def _start(self, command: Start) -> None:
        life = self._find(command)
        self._advance(life, command)
        life.attempt = command.attempt
        if life.first_started_at is None:
            life.first_started_at = self.now
        self._take(life, self._keys(command.allocation))

    def _resize(self, command: Resize) -> None:
        life = self._find(command)
        self._advance(life, command)
        keys = self._keys(command.allocation)
        life.preemptions += not keys
        life.rescales += bool(keys)
        kept = set(keys)
        life.releasing = tuple(key for key in life.holding if key not in kept)
        self._take(life, [key for key in keys if key not in life.holding])

    def _stop(self, command: Stop) -> None:
        life = self._find(command)
        allocated = len(life.holding) > len(life.releasing)
        self._advance(life, command)
        life.preemptions += allocated and not life.cancelled

    def _follow(self, event: AttemptEvent) -> None:
        life = self._find(event)
        if event.attempt != life.attempt or life.phase is Phase.PENDING or life.phase.final:
            return  # about an attempt that has ended
        if isinstance(event, JobReported):
            if event.saved:
                life.account(self.now)
                life.judge(lost=False)
            return
        following = self._following(life, event)
        if isinstance(event, JobExited | JobStopped):
            phase, failures = after_the_end(event, life)
            lost, life.failures = failures > life.failures, failures
            self._end_attempt(life, phase, lost=lost)
        elif following is SETTLED:
            life.account(self.now)
            self._free(life, life.releasing)
            life.releasing = ()
            life.phase = Phase.RUNNING if life.holding else Phase.SUSPENDED
        elif isinstance(following, Phase):
            life.account(self.now)
            life.phase = following

    def _end_attempt(self, life: Life, phase: Phase, *, lost: bool) -> None:
        life.account(self.now)
        life.judge(lost=lost)
        self._free(life, tuple(life.holding))
        life.phase, life.releasing = phase, ()
        if phase.final:
            life.ended_at = self._last_active = self.now
            self._queued -= 1
            self._requested -= life.spec.gpus

    def _advance(self, life: Life, command: Start | Resize | Stop) -> None:
        life.account(self.now)
        following = self._following(life, command)
        assert isinstance(following, Phase)
        life.phase = following

    def _find(self, message: JobCancelled | AttemptEvent | Start | Resize | Stop) -> Life:
        life = self.lives.get(message.job)
        if life is None:
            raise InvalidSpec(
                f"the journal speaks of job {message.job!r} at {message.at:g} s, but not of its submission; "
                "measure a journal from its beginning"
            )
        return life

    def _following(self, life: Life, message: Message) -> Phase | str:
        following = TRANSITIONS[type(message)].get(life.phase)
        if following is None:
            raise InvalidSpec(
                f"the journal has {type(message).__name__} at {message.at:g} s for job {life.spec.id!r}, which was "
                f"{life.phase} then; measure a whole journal, in its order"
            )
        return following

    # -- GPUs ----------------------------------------------------------------------------------------------------

    def _keys(self, allocation: Allocation) -> list[int]:
        places = self._places
        try:
            return [places[node].number << _NODE_SHIFT | gpu for node, gpus in allocation.shares for gpu in gpus]
        except KeyError as error:
            raise InvalidSpec(f"the journal uses node {error} before it joined; measure a whole journal") from None

    def _take(self, life: Life, keys: list[int]) -> None:
        if keys and not life.holding:
            self._queued -= 1
            self._running += 1
        life.holding.update(dict.fromkeys(keys, self.now))
        shared = self._holders.keys() & keys
        for key in shared:
            others = self._holders[key]
            life.rate += 1.0 / (len(others) + 1)
            self._recharge(others, before=len(others), after=len(others) + 1)
            self._holders[key] = (*others, life)
        fresh = [key for key in keys if key not in shared] if shared else keys
        self._holders.update(dict.fromkeys(fresh, (life,)))
        life.rate += len(fresh)
        self._occupy(fresh, 1)

    def _free(self, life: Life, keys: tuple[int, ...]) -> None:
        if not keys:
            return
        emptied = []
        for key in keys:
            self._write_segment(life, key, life.holding.pop(key))
            holders = self._holders.pop(key)
            life.rate -= 1.0 / len(holders)
            if len(holders) == 1:
                emptied.append(key)
            else:
                others = tuple(other for other in holders if other is not life)
                self._holders[key] = others
                self._recharge(others, before=len(holders), after=len(others))
        self._occupy(emptied, -1)
        if not life.holding:
            life.rate = 0.0  # exactly, whatever the rounding
            self._queued += 1
            self._running -= 1
            self._last_active = self.now

    def _recharge(self, lives: tuple[Life, ...], *, before: int, after: int) -> None:
        for life in lives:
            life.account(self.now)
            life.rate += 1.0 / after - 1.0 / before

    def _occupy(self, keys: list[int], sign: int) -> None:
        """GPUs that came into use, or went out of it."""
        self._in_use += sign * len(keys)
        counts: dict[int, int] = {}
        for key in keys:
            number = key >> _NODE_SHIFT
            counts[number] = counts.get(number, 0) + 1
        for number, count in counts.items():
            place = self._by_number[number]
            self._stranded -= place.stranded
            place.used += sign * count
            self._stranded += place.stranded

    def _join(self, event: NodeJoined) -> None:
        place = self._places.get(event.node.id)
        if place is None:
            place = self._places[event.node.id] = _Place(event.node, len(self._by_number))
            self._by_number.append(place)
        else:
            self._count(place, -1)
            place.node = event.node
        self._count(place, 1)

    def _lose(self, event: NodeLost | Release) -> None:
        place = self._places.get(event.node)
        if place is None:
            raise InvalidSpec(f"the journal loses node {event.node!r} before it joined; measure a whole journal")
        first = place.number << _NODE_SHIFT
        for gpu in range(place.node.gpus):
            for life in self._holders.get(first | gpu, ()):
                self._end_attempt(life, requeued(life), lost=True)
        self._count(place, -1)
        place.node = replace(place.node, healthy=False)

    def _count(self, place: _Place, sign: int) -> None:
        """Add a node to what the cluster offers, or take it away."""
        if place.node.healthy:
            self._healthy += sign
            self._gpus += sign * place.node.gpus
            self._stranded += sign * place.stranded
            self._price_per_hour += sign * place.node.price_per_hour

    # -- the record ----------------------------------------------------------------------------------------------

    def _write_row(self) -> None:
        counts = (self._in_use, self._gpus, self._queued, self._running, self._requested, self._stranded)
        row = (*counts, self._healthy, self._price_per_hour)
        if row != self._row:
            self._row = row
            self._rows.append(self.now)
            self._rows.extend(row)

    def _write_segment(self, life: Life, key: int, since: float) -> None:
        if self.now > since:
            self._segment_gpus.append(key)
            self._segment_jobs.append(life.number)
            self._segment_starts.append(since)
            self._segment_ends.append(self.now)
