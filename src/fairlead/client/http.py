"""Calls over HTTP that survive a restart of the server: patience, back-off, and answers made into values or errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fairlead.client.errors import ClientError, NoServer, Problem, Refused, Unreachable, refused
from fairlead.client.finding import Server
from fairlead.client.sse import Parser, ServerEvent

#: Answers of a server that starts, stops or has too much to do. Nothing was done, and asking again is right.
_BUSY = frozenset({429, 503})
#: Answers of something between here and the server: nobody knows what was done.
_BETWEEN = frozenset({502, 504})

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Who is told to come back later than this had better hear why.
_SOON_S = 5.0
#: A stream that is silent for longer is dead: the server gives a sign of life more often.
_SILENCE_S = 60.0


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server that does not answer: at first, and once it has been there."""

    first_s: float = 10.0
    later_s: float = 300.0
    #: How long one call may take.
    call_s: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    #: Is told once why it takes longer.
    tell: Callable[[str], None] = lambda why: None  # noqa: ARG005  # nobody listens


class _Again(Exception):
    """The call may be repeated. `sent` is whether the server may have done it; `error` is what it told, if it did."""

    def __init__(self, why: str, *, sent: bool, after_s: float = 0.0, error: Refused | None = None) -> None:
        super().__init__(why)
        self.sent, self.after_s, self.error = sent, after_s, error


class Http:
    """A connection that is made again when it breaks. `find` says where to, and is asked anew each time it did."""

    def __init__(self, find: Callable[[], Server], patience: Patience | None = None) -> None:
        self._find = find
        self._patience = patience or Patience()
        self._server: Server | None = None
        self._client: httpx.Client | None = None
        self._answered = False

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    @property
    def url(self) -> str:
        return self._server.url if self._server is not None else ""

    # -- one call ------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, *, idempotent: bool = True, **request: Any) -> httpx.Response:
        """The server's answer, if it is a good one. A call that is not idempotent is repeated only if it cannot have
        arrived."""
        return self._patiently(lambda: self._once(method, path, request), idempotent=idempotent)

    def json(self, method: str, path: str, **request: Any) -> Any:
        response = self.call(method, path, **request)
        if response.status_code == 204 or not response.content:
            return None
        if "json" not in response.headers.get("content-type", ""):
            raise self._stranger(response)
        return response.json()

    def _once(self, method: str, path: str, request: Mapping[str, Any]) -> httpx.Response:
        with self._seams():
            response = self._connected().request(method, path, **request)
        self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        """Raise unless the answer is a good one; its body has been read."""
        if response.status_code in _BUSY | _BETWEEN:
            after = response.headers.get("retry-after", "")
            after_s = float(after) if after.isdecimal() else 0.0
            error = refused(self._problem(response))
            if after_s > _SOON_S:
                raise error
            raise _Again(str(error), sent=response.status_code in _BETWEEN, after_s=after_s, error=error)
        self._answered = True
        if response.is_success:
            return
        if response.is_redirect:
            raise self._stranger(response)
        raise refused(self._problem(response))

    def _problem(self, response: httpx.Response) -> Problem:
        status = response.status_code
        try:
            told = response.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            return Problem(status, title=f"{self.url} answered {status} {response.reason_phrase}".rstrip())
        errors = told.get("errors")
        return Problem(
            status,
            title=str(told.get("title") or ""),
            detail=str(told.get("detail") or ""),
            type=str(told.get("type") or "about:blank"),
            errors=[error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else (),
        )

    def _stranger(self, response: httpx.Response) -> Unreachable:
        kind = response.headers.get("content-type", "nothing").partition(";")[0]
        return Unreachable(
            f"what answers at {self.url} is no Fairlead server (status {response.status_code}, {kind}); "
            "check FAIRLEAD_URL"
        )

    # -- a stream of events --------------------------------------------------------------------------------------------

    def events(self, path: str, *, params: Mapping[str, Any], last_id: str = "") -> Iterator[ServerEvent | None]:
        """Events as they come, for ever: a stream that breaks is resumed after the last event that came.

        None says that the server ended the stream: it is opened again if the caller goes on.
        """
        parser = Parser()
        parser.last_id = last_id
        while True:
            response = self._patiently(lambda: self._open(path, params, parser), idempotent=True)
            try:
                for piece in response.iter_bytes():
                    yield from parser.feed(piece)
            except httpx.TransportError:
                self._lost()
            else:
                yield None
            finally:
                response.close()
            self._patience.sleep(parser.retry_s or _FIRST_PAUSE_S)

    def text(self, path: str, *, params: Mapping[str, Any]) -> Iterator[bytes]:
        """The body of an answer in pieces, for what may be long. What breaks off half-way is not resumed."""
        response = self._patiently(lambda: self._open(path, params, None), idempotent=True)
        try:
            yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise Unreachable(f"the server at {self.url} broke off in the middle of its answer: {error}") from None
        finally:
            response.close()

    def _open(self, path: str, params: Mapping[str, Any], parser: Parser | None) -> httpx.Response:
        headers = {}
        if parser is not None:
            parser.restart()
            headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
            if parser.last_id:
                headers["Last-Event-ID"] = parser.last_id
        with self._seams():
            client = self._connected()
            timeout = httpx.Timeout(self._patience.call_s, read=_SILENCE_S)
            response = client.send(
                client.build_request("GET", path, params=dict(params), headers=headers, timeout=timeout), stream=True
            )
            if not response.is_success:
                response.read()
                response.close()
        self._check(response)
        if parser is not None and "event-stream" not in response.headers.get("content-type", ""):
            response.close()
            raise self._stranger(response)
        return response

    # -- patience ------------------------------------------------------------------------------------------------------

    def _patiently(self, attempt: Callable[[], httpx.Response], *, idempotent: bool) -> httpx.Response:
        patience, pause_s, told = self._patience, _FIRST_PAUSE_S, False
        began = patience.clock()
        while True:
            try:
                return attempt()
            except _Again as again:
                wait_s = patience.later_s if self._answered else patience.first_s
                if again.sent and not idempotent:
                    raise again.error or Unreachable(f"{again}; whether it was done is unknown") from None
                pause_s = max(pause_s, again.after_s)
                if patience.clock() - began + pause_s > wait_s:
                    raise again.error or Unreachable(f"{again}; gave up after {wait_s:g} s") from None
                if not told and pause_s >= 2 * _FIRST_PAUSE_S:
                    patience.tell(f"{again}; trying again for {wait_s:g} s")
                    told = True
                self._lost()
                patience.sleep(max(again.after_s, pause_s * random.uniform(0.5, 1.0)))
                pause_s = min(_LONGEST_PAUSE_S, 2.0 * pause_s)

    @contextmanager
    def _seams(self) -> Iterator[None]:
        """Make httpx's errors ours."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _Again(f"the server at {self.url} does not answer ({error})", sent=False) from None
        except httpx.TransportError as error:
            raise _Again(f"the server at {self.url} went away ({error})", sent=True) from None
        except (httpx.InvalidURL, httpx.DecodingError, UnicodeError) as error:
            raise Unreachable(f"cannot talk to {self.url}: {error}") from None

    def _connected(self) -> httpx.Client:
        if self._client is None:
            try:
                server = self._find()
            except NoServer as error:
                if not self._answered:
                    raise
                raise _Again(str(error), sent=False) from None  # it restarts, perhaps
            self._server = server
            headers = {} if server.token is None else {"Authorization": f"Bearer {_sendable(server.token)}"}
            call_s = self._patience.call_s
            # A proxy leads away from this machine.
            self._client = httpx.Client(
                base_url=server.url,
                headers=headers,
                timeout=httpx.Timeout(call_s, connect=min(5.0, call_s)),
                trust_env=not server.local,
            )
        return self._client

    def _lost(self) -> None:
        """Ask again where the server is: it may come back at another port."""
        self.close()


def _sendable(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ClientError("the token holds blanks or characters that no token has; check FAIRLEAD_TOKEN")
    return token
