"""How HTTP is read off the wire: uvicorn takes headers of any size, before anybody has said who they are."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes that may come until the headers are complete. What comes with them of the body counts, too.
LARGEST_HEAD = 2**19


class BoundedProtocol(HttpToolsProtocol):
    """Hangs up on whoever never comes to the end of their headers."""

    _head_bytes: int | None = 0  # since the request began; None while its body is read

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self.transport.abort()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()
