"""Writes down what need not be written before the loop goes on: notes about jobs, how they ended, snapshots.

One thread, in order. What a crash takes from it is made good at the next start: how jobs ended is in the journal, and a
snapshot only saves time. A note may be lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from fairlead.core.errors import FairleadError

log = logging.getLogger(__name__)

#: Writings that may wait. If there are more, notes are dropped: the loop never waits for them.
MOST_WAITING = 10_000


class Clerk:
    """Does writings one after the other. Any thread may hand one in."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Callable[[], object] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="fairlead-clerk", daemon=True)
        self._complained = False

    def start(self) -> None:
        self._thread.start()

    def hand(self, writing: Callable[[], object]) -> None:
        try:
            self._waiting.put_nowait(writing)
        except queue.Full:
            if not self._complained:
                log.warning("notes are dropped: the database takes them too slowly")
            self._complained = True

    def close(self) -> None:
        """When everything handed in is done."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (writing := self._waiting.get()) is not None:
            try:
                writing()
                self._complained = False
            except FairleadError as error:
                log.warning("%s", error)
