"""Where facts wait for the loop, and the clock they are stamped by: what every real backend needs of `Backend.wait`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from fairlead.core.messages import Event, Tick

#: At most so many events are handed over at a time, so that a flood is decided on in between.
MOST_EVENTS = 1000


class Clock:
    """UNIX time that never jumps: what it was in the beginning, and how much has passed since.

    A machine's clock is set back and forth by others. A scheduler that followed it would believe that jobs ran for
    days, or would stand still until the time comes again. So after a start it goes by what passes alone; and it never
    begins before `not_before`, the last time that is in the journal.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._began, self._from = max(time.time(), not_before), time.monotonic()

    def now(self) -> float:
        return self.at(time.monotonic())

    def at(self, monotonic_s: float) -> float:
        """When any process on this machine, since it was booted, was told this by `time.monotonic`."""
        return self._began + monotonic_s - self._from


#: Times as long as it was busy that a loop rests, and the longest that it does.
REST, LONGEST_REST_S = 4.0, 1.0

#: A key, and how far its source was read.
Mark = tuple[str, str]


class Inbox:
    """Facts in the order in which they came. Any thread may put them in; the loop takes them out."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        #: Each with the marks that may be told once it was handed over.
        self._events: list[tuple[Event, list[Mark]]] = []
        #: Of what came before the first of them.
        self._marks: list[Mark] = []
        self._changed = threading.Condition()
        self._closed = False
        self._handed_at = time.monotonic()  # when the loop was last given something
        self._oldest: float | None = None  # when the first of them came, by time.monotonic()
        #: Seconds that the oldest event waited until the loop took it, the last time it did.
        self.lag_s = 0.0
        #: Called, by the loop's thread, with the mark of each event that is handed over: what to read on from.
        self.on_mark: Callable[[str, str], None] = lambda key, value: None  # noqa: ARG005

    def put(self, events: Sequence[Event], mark: Mark | None = None) -> None:
        """`mark` says, under a key, how far its source was read. It goes with the last of the events; alone it wakes
        nobody, and goes with what came last, or else with whatever comes next."""
        with self._changed:
            if events and self._oldest is None:
                self._oldest = time.monotonic()
            self._events += [(event, []) for event in events]
            if mark is not None:
                (self._events[-1][1] if self._events else self._marks).append(mark)
            if events:
                self._changed.notify_all()

    def close(self) -> None:
        """The world ends for the loop; what waits here stays."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._closed = False

    def __len__(self) -> int:
        return len(self._events)

    def wait(self, until: float) -> list[Event] | None:
        """What has come; at least a Tick at `until`; None once it is closed.

        A loop that was busy rests for a while first, so that a flood is decided on in few turns, and others who need
        the processor get it.
        """
        rest_until = time.monotonic() + min(LONGEST_REST_S, REST * (time.monotonic() - self._handed_at))
        with self._changed:
            while not self._closed and (left_s := rest_until - time.monotonic()) > 0.0:
                self._changed.wait(left_s)
            while not self._events and not self._closed:
                left_s = until - self.clock.now()
                if left_s <= 0.0:
                    break
                self._changed.wait(None if math.isinf(left_s) else min(left_s, threading.TIMEOUT_MAX))
            if self._closed:
                return None
            taken, self._events = self._events[:MOST_EVENTS], self._events[MOST_EVENTS:]
            marks, self._marks = self._marks, []
            now, oldest = time.monotonic(), self._oldest
            self.lag_s, self._oldest = 0.0 if oldest is None else now - oldest, now if self._events else None
        for mark in (*marks, *(mark for _, theirs in taken for mark in theirs)):
            self.on_mark(*mark)
        self._handed_at = time.monotonic()
        return [event for event, _ in taken] or [Tick(max(until, self.clock.now()))]
