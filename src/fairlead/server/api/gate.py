"""What every request passes before any route sees it, and every answer on its way out.

In this order: is it meant for us (the Host header), who asks, are they asking too often, is the body small enough. An
error in any route ends here as well, so that nobody is shown more than a reference to the server's log. Plain ASGI:
it costs a submission next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.core.errors import FairleadError
from fairlead.server.api.limits import Buckets
from fairlead.server.api.problems import ProblemResponse, problem
from fairlead.server.api.settings import Settings
from fairlead.server.auth import Auth, Caller
from fairlead.server.metrics import Metrics

log = logging.getLogger(__name__)

#: Routes that answer anybody. The first page and the login say themselves what is missing.
PUBLIC = frozenset(
    {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/session"), ("DELETE", "/session"), ("GET", "/login")}
)
#: Routes that answer anybody, and more to those who are known.
OPEN = frozenset({("GET", "/")})

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_READS = frozenset({"GET", "HEAD"})

#: Of every answer. Pages have more: see `pages.py`.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


#: Of an answer before the whole request was read.
_CLOSE = {"Connection": "close"}


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, answer: ProblemResponse) -> None:
        super().__init__(answer.status_code)
        self.answer = answer


class Gate:
    """ASGI middleware. `scope["state"]["caller"]` is who asks, or None on routes that answer anybody."""

    def __init__(self, app: ASGIApp, *, auth: Auth, settings: Settings, metrics: Metrics) -> None:
        self._app, self._auth, self._settings, self._metrics = app, auth, settings, metrics
        self._hosts = _LOOPBACK | {host.lower() for host in settings.hosts}
        self._requests = Buckets(settings.requests_per_s, settings.requests_burst)
        self._failures = Buckets(settings.failures_per_s, settings.failures_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        answer = _Answer(send, scope, self._metrics)
        try:
            caller = await self._admit(scope)
            receive = await self._whole_body(scope, receive)
            scope.setdefault("state", {}).update(caller=caller, gate=self)
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Refused as refusal:
            await refusal.answer(scope, receive, answer.send)
        except Exception:
            reference = secrets.token_hex(4)
            log.exception("error %s in %s %s", reference, scope["method"], scope["path"])
            if answer.begun:
                raise  # half an answer cannot be taken back: let the connection break
            detail = f"something went wrong here; the server's log says what, under {reference}"
            await problem(500, detail, path=scope["path"])(scope, receive, answer.send)

    # -- who --

    async def _admit(self, scope: Scope) -> Caller | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        if _host(headers.get("host", "")) not in self._hosts:
            raise Refused(
                problem(421, "this server does not answer by that name; see `hosts` in docs/security.md", path=path)
            )
        if (method, path) in PUBLIC:
            return None
        caller = await self._known(headers)
        if caller is None:
            if (method, path) in OPEN:
                return None
            raise self.failed(scope)
        if caller.by_cookie:
            if method not in _READS:
                raise Refused(
                    problem(403, "a browser's session may only look; send a token to change anything", path=path)
                )
            if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise Refused(problem(403, "another site may not read this with your session", path=path))
        self._count(caller.name, path)
        return caller

    async def _known(self, headers: Headers) -> Caller | None:
        if self._auth.wants_refresh():
            await self._refresh()
        authorization = headers.get("authorization")
        if authorization is not None:
            if not (token := _bearer(authorization)):
                return None
            caller = self._auth.by_token(token)
            if caller is None and self._auth.wants_refresh(missed=True):
                await self._refresh()
                caller = self._auth.by_token(token)
            return caller
        cookie = self.cookie(headers)
        return None if cookie is None else self._auth.by_session(cookie)

    async def _refresh(self) -> None:
        try:
            await run_in_threadpool(self._auth.refresh)
        except FairleadError as error:  # whoever was known is known
            log.warning("the users cannot be read: %s", error)

    def cookie(self, headers: Headers) -> str | None:
        """The value of our cookie, if there is one."""
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._settings.cookie:
                return value
        return None

    def failed(self, scope: Scope) -> Refused:
        """Somebody could not say who they are."""
        address = scope["client"][0] if scope.get("client") else "unknown"
        path = scope["path"]
        if wait_s := self._failures.take(address):
            retry = {"Retry-After": str(math.ceil(wait_s))}
            return Refused(problem(429, "too many failed attempts from this address; wait", path=path, headers=retry))
        challenge = {"WWW-Authenticate": 'Bearer realm="fairlead"'}
        if _bearer(Headers(scope=scope).get("authorization", "")):
            detail = "this token is not known here; it may be another server's, or have been taken away"
        else:
            detail = "say who you are: send the header `Authorization: Bearer TOKEN`, or log in at /"
        return Refused(problem(401, detail, path=path, headers=challenge))

    def _count(self, name: str, path: str) -> None:
        if wait_s := self._requests.take(name):
            retry = {"Retry-After": str(math.ceil(wait_s))}
            detail = f"you ask too often; at most {self._settings.requests_per_s:g} requests a second are answered"
            raise Refused(problem(429, detail, path=path, headers=retry))

    # -- what --

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Take the body in, as long as it is small; what the length header says is not believed."""
        if why := _unreadable_body(Headers(scope=scope)):
            raise Refused(problem(400, why, path=scope["path"], headers=_CLOSE))
        if scope["method"] in _READS:
            return receive
        most, parts, size = self._settings.largest_body_bytes, list[bytes](), 0
        claimed = Headers(scope=scope).get("content-length", "0")
        if not claimed.isdigit() or int(claimed[:20]) > most:
            raise self._too_large(scope)
        ends_at = asyncio.get_running_loop().time() + self._settings.body_timeout_s
        while True:
            try:
                async with asyncio.timeout_at(ends_at):
                    message = await receive()
            except TimeoutError:
                late = problem(408, "the body did not come in time", path=scope["path"], headers=_CLOSE)
                raise Refused(late) from None
            if message["type"] != "http.request":
                raise ClientDisconnect  # half a job file may be a job file, but not the one that was meant
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise self._too_large(scope)
            if not message.get("more_body", False):
                break
        return _replayed(b"".join(parts), receive)

    def _too_large(self, scope: Scope) -> Refused:
        detail = f"the body is larger than {self._settings.largest_body_bytes} bytes; a job file is a page of text"
        return Refused(problem(413, detail, path=scope["path"], headers=_CLOSE))


def _bearer(authorization: str) -> str:
    """The token in a header; empty if there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unreadable_body(headers: Headers) -> str:
    """Why what comes after these headers cannot be told from what comes after that; empty if it can."""
    if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        return "Transfer-Encoding may only be chunked: any other body ends with the connection alone"
    upgrades = "upgrade" in headers.get("connection", "").lower() and "upgrade" in headers
    if upgrades and (headers.get("content-length", "0") != "0" or "transfer-encoding" in headers):
        return "HTTP/1.1 is spoken here and nothing else; send a request with a body without the header Upgrade"
    return ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _host(header: str) -> str:
    """Without the port, in lower case; an address of IPv6 without its brackets."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(:[0-9]{1,5})?", header)
    return match[1].strip("[]").lower() if match else ""


def same_origin(headers: Headers) -> bool:
    """Does a form come from our own page? Programs send no Origin, and have no session to be abused."""
    if (site := headers.get("sec-fetch-site")) is not None:  # which no page can make up
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


class _Answer:
    """Sends an answer with the headers that all of them have, and measures how long it took to begin."""

    def __init__(self, send: Send, scope: Scope, metrics: Metrics) -> None:
        self._send, self._scope, self._metrics = send, scope, metrics
        self._since = time.perf_counter()
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            route = getattr(self._scope.get("route"), "path_format", None)
            self._metrics.request(
                route=route if isinstance(route, str) else "other",
                method=self._scope["method"],
                status=message["status"],
                seconds=time.perf_counter() - self._since,
            )
        await self._send(message)
