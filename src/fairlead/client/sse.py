"""Server-sent events, taken apart. Knows nothing of the network: bytes in, events out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerEvent:
    """One event: what it is called, its data (JSON), and the id by which to go on after it."""

    event: str
    data: str
    id: str


class Parser:
    """Takes a stream in pieces of any size. `last_id` is where to resume, across streams too."""

    def __init__(self) -> None:
        self.last_id = ""
        #: How long the server wants to be left alone before a reconnection; None if it did not say.
        self.retry_s: float | None = None
        self.restart()

    def restart(self) -> None:
        """A new stream begins: what was left of the old one is no event."""
        self._rest = b""
        self._event, self._data, self._id = "", list[str](), self.last_id

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        text = self._rest + piece
        start = 0
        for end in _END.finditer(text):
            if end.end() == len(text) and end[0] == b"\r":
                break  # half of \r\n, perhaps
            event = self._line(text[start : end.start()].decode("utf-8", "replace"))
            start = end.end()
            if event is not None:
                yield event
        self._rest = text[start:]

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._finished()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1000.0
        return None  # a line that begins with a colon is a sign of life

    def _finished(self) -> ServerEvent | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self.last_id = "", [], self._id
        return ServerEvent(event, "\n".join(data), self.last_id) if data else None
