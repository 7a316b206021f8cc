"""How many connections may be open, and which one is closed when another comes and all places are taken.

A request that is being answered keeps its place. A connection without one can be had again at no cost: one that has
sent no request yet, one that waits between two requests, one whose client does not read. Of these the oldest goes, so
that connections which only stay open cannot keep out those that ask.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Use(Enum):
    """What a connection is doing. In this order they lose their place, but for the last, which keeps it."""

    SILENT = "has not sent a request yet"
    IDLE = "waits between two requests"
    STALLED = "does not read its answer"
    BUSY = "is being answered"


class Connection(Protocol):
    """What can be closed."""

    def drop(self) -> None:
        """Close it now, whatever it is doing."""


#: Connections beyond the limit that are told so at one time. They are closed within moments.
REFUSED_AT_ONCE = 16


class Connections:
    """The open connections of a server, by their use. For the thread of the event loop."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"at most {most} connections are none at all")
        self.most = most
        #: The longest in this use first.
        self._by_use: dict[Use, dict[Connection, None]] = {use: {} for use in Use}
        self._use_of: dict[Connection, Use] = {}
        self._refused: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._use_of)

    def admit(self, connection: Connection) -> bool:
        """Give it a place, if need be that of another one. If False, it may only be told so."""
        if len(self._use_of) >= self.most and not self._drop_one():
            self._refuse(connection)
            return False
        self.note(connection, Use.SILENT)
        return True

    def note(self, connection: Connection, use: Use) -> None:
        """What a connection does from now on. One that has lost its place stays without."""
        before = self._use_of.get(connection)
        if before is use or (before is None and use is not Use.SILENT):
            return
        if before is not None:
            del self._by_use[before][connection]
        self._by_use[use][connection] = None
        self._use_of[connection] = use

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._refused.pop(connection, None)
        use = self._use_of.pop(connection, None)
        if use is not None:
            del self._by_use[use][connection]

    def _drop_one(self) -> bool:
        for use in (Use.SILENT, Use.IDLE, Use.STALLED):
            for connection in self._by_use[use]:
                self.forget(connection)
                connection.drop()
                return True
        return False

    def _refuse(self, connection: Connection) -> None:
        if len(self._refused) >= REFUSED_AT_ONCE:
            first = next(iter(self._refused))
            self.forget(first)
            first.drop()
        self._refused[connection] = None
