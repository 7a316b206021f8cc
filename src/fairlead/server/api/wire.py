"""How HTTP is read off a connection: uvicorn's protocol, with an end to everything that a client can leave undone.

uvicorn waits for ever for a header that never ends, and takes one of any size. Here a header and a body have a time, a
connection between two requests has one, and there are only so many connections. Streams are answers, which have none.

An answer that comes before the whole request was read (413, 401 ...) would be lost: a socket that is closed with
something unread is reset, and a client that still sends sees only that. So the connection stays half open and what
comes is thrown away, until the client has heard.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fairlead.server.api.connections import Connections, Use
from fairlead.server.api.problems import MEDIA_TYPE, problem_document
from fairlead.server.api.settings import Settings

#: Bytes that may come until the headers are complete. What comes with them of the body counts, too.
LARGEST_HEAD = 2**19

#: Seconds at most beyond the time for a body, in which the answer to a late one is made and read.
AFTER_BODY_S = 5.0

#: Seconds in which a client that is still sending can read its answer: in all, and without sending anything.
LINGER_S, LINGER_IDLE_S = 30.0, 3.0

#: Seconds between two looks at a connection that lingers.
_LOOK_S = 0.5


def make_server(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Server:
    """A server with these limits. `options` are uvicorn's."""
    protocol = partial(BoundedProtocol, limits=Limits.of(settings), places=Connections(settings.most_connections))
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", protocol),  # all that is done with it is to call it
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=cast("int", settings.idle_timeout_s),  # seconds for `call_later`
            **options,
        )
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds that a client gets to send something, from its first byte; of the first header, from the connection."""

    head_s: float
    body_s: float

    @staticmethod
    def of(settings: Settings) -> Limits:
        body_s = settings.body_timeout_s
        return Limits(head_s=settings.head_timeout_s, body_s=body_s + min(body_s, AFTER_BODY_S))


class Part(Enum):
    """What of a request comes next."""

    HEAD = "its headers"
    BODY = "the rest of its body"


class BoundedProtocol(HttpToolsProtocol):
    """One connection. At any time something ends it: a timer, or an answer that is being made."""

    def __init__(self, *args: Any, limits: Limits, places: Connections, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits, self._places = limits, places
        self._wire: asyncio.Transport | None = None
        self._part = Part.HEAD
        #: A request has begun, and its headers are not complete.
        self._begun = False
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        #: What comes after the request that is being answered cannot be read: it is thrown away.
        self._deaf = False
        #: The answer is given, and the client is still sending; since when, and when something came last.
        self._lingers_since: float | None = None
        self._heard_at = 0.0

    # -- the connection ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wire = transport
        if not self._places.admit(self):
            self.transport = _Hung(transport, self._hang_up)
            detail = f"all {self._places.most} connections of this server are taken; try again in a moment"
            self._answer(503, detail, b"retry-after: 1\r\n")
            return
        super().connection_made(_Hung(transport, self._hang_up))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.forget(self)
        self._stop_timer()
        self._wire = None
        if self.flow is not None:  # it had a place
            super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._lingers_since is not None and self._part is Part.BODY:
            self.drop()
        else:
            super().shutdown()

    def drop(self) -> None:
        """Close it now: what was not sent yet is lost."""
        if self._wire is not None:
            self._wire.abort()

    def _hang_up(self) -> None:
        """Close it when what was written is sent and, if the client is still sending, when it has heard."""
        if self._wire is None or self._lingers_since is not None:
            return
        self._stop_timer()
        self._lingers_since, self._heard_at = self.loop.time(), math.inf
        if self._part is Part.BODY:
            self._heard_at = self._lingers_since
            if self._wire.can_write_eof():
                self._wire.write_eof()
            if self.flow is not None:
                self.flow.resume_reading()
        else:
            self._wire.close()
        self._timer = self.loop.call_later(_LOOK_S, self._look)  # a client that reads nothing keeps it open, too

    def _look(self) -> None:
        """Has the client had time enough to hear?"""
        assert self._lingers_since is not None
        now = self.loop.time()
        if now - self._lingers_since >= LINGER_S or now - self._heard_at >= LINGER_IDLE_S:
            self.drop()
        else:
            self._timer = self.loop.call_later(_LOOK_S, self._look)

    # -- what comes --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._lingers_since is not None:
            self._heard_at = self.loop.time()
            return
        if self._deaf:
            return
        if self._part is Part.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self._refuse(431, f"the headers are larger than {LARGEST_HEAD} bytes; send fewer or shorter ones")
                return
        super().data_received(data)
        self._watch()

    def on_message_begin(self) -> None:
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._part, self._begun = Part.BODY, False
        self._places.note(self, Use.BUSY)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._part, self._head_bytes = Part.HEAD, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not HTTP that can be read; check the request line, the headers and the length")

    # -- what goes ---------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._places.note(self, self._use())
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._places.note(self, Use.STALLED)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._places.note(self, self._use())

    def _use(self) -> Use:
        return Use.BUSY if self._answers else Use.IDLE

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- time --------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """See to it that a timer runs while the client has something to send. One that runs is not begun anew."""
        if self.transport.is_closing() or self._deaf or self._timer is not None:
            return
        if self._part is Part.BODY:
            self._timer = self.loop.call_later(self._limits.body_s, self.drop)
        elif self._answers:
            return  # what comes meanwhile is the next request, which has time
        elif self.cycle is None or self._begun or self._head_bytes:
            self._unset_keepalive_if_required()
            self._timer = self.loop.call_later(self._limits.head_s, self._head_is_late)
        elif self.timeout_keep_alive_task is None:  # the body ended after its answer, and took the timer with it
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _head_is_late(self) -> None:
        if self._begun:
            self._refuse(408, f"the headers were not complete after {self._limits.head_s:g} s")
        else:
            self._hang_up()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- answers that no application gives ---------------------------------------------------------------------------

    def _refuse(self, status: int, detail: str) -> None:
        if self._answers:  # the request before this one gets its answer, and this one none
            self._deaf, self._part, self.cycle.keep_alive = True, Part.BODY, False
            self._stop_timer()
        else:
            self._answer(status, detail)

    def _answer(self, status: int, detail: str, *headers: bytes) -> None:
        if self._wire is None:
            return
        body = json.dumps(problem_document(status, detail)).encode("ascii")
        self._wire.write(
            b"".join(
                (
                    STATUS_LINE[status],
                    b"content-type: %s\r\ncontent-length: %d\r\n" % (MEDIA_TYPE.encode(), len(body)),
                    b"cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n",
                    *headers,
                    b"\r\n",
                    body,
                )
            )
        )
        self._part = Part.BODY  # whatever else comes is not read
        self._hang_up()


class _Hung(asyncio.Transport):
    """A transport whose `close` is the protocol's to do."""

    def __init__(self, wire: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._wire, self._close, self._closing = wire, close, False

    def close(self) -> None:
        self._closing = True
        self._close()

    def is_closing(self) -> bool:
        return self._closing or self._wire.is_closing()

    def abort(self) -> None:
        self._wire.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._wire.write(data)

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._wire.pause_reading()

    def resume_reading(self) -> None:
        if not self._wire.is_closing():
            self._wire.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.get_extra_info(name, default)
