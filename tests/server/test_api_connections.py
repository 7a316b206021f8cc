"""Connections that stay open, send half of something, or too much of it: each has an end, and the others go on."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from still import StillPlane

from fairlead.server.api import Settings
from fairlead.server.api.connections import REFUSED_AT_ONCE, Connections, Use
from fairlead.server.api.wire import LARGEST_HEAD

PATIENCE_S = 20.0

HALF_A_HEADER = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: Of something that needs no token, so that it is its body which is waited for.
HALF_A_BODY = b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@contextmanager
def served(directory: Path, settings: Settings) -> Iterator[tuple[StillPlane, str]]:
    with StillPlane(directory, settings) as plane, plane.serving() as url:
        yield plane, url


def connect(url: str, data: bytes = b"") -> socket.socket:
    place = urlsplit(url)
    assert place.hostname is not None
    connection = socket.create_connection((place.hostname, place.port or 0), timeout=PATIENCE_S)
    if data:
        connection.sendall(data)
    return connection


def heard(connection: socket.socket) -> bytes:
    """All that comes until the server closes; a reset is an end as well."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer(connection: socket.socket) -> bytes:
    """The first packet of an answer."""
    return connection.recv(2**16)


# -- time --------------------------------------------------------------------------------------------------------------


def test_what_a_client_leaves_undone_is_ended_and_a_stream_goes_on(tmp_path: Path) -> None:
    settings = Settings(head_timeout_s=0.3, body_timeout_s=0.3, idle_timeout_s=0.3, heartbeat_s=0.2)
    with served(tmp_path, settings) as (plane, url), ExitStack() as open_:
        headers = {"Authorization": f"Bearer {plane.tokens['ann']}"}
        client = open_.enter_context(httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S))
        stream = open_.enter_context(client.stream("GET", "/api/v1/events")).iter_lines()
        begun = time.monotonic()
        silent = [open_.enter_context(connect(url)) for _ in range(20)]
        half = [open_.enter_context(connect(url, HALF_A_HEADER)) for _ in range(20)]
        body = open_.enter_context(connect(url, HALF_A_BODY))
        idle = open_.enter_context(connect(url, HEALTH))

        assert all(heard(each) == b"" for each in silent)
        for each in half:
            assert heard(each).startswith(b"HTTP/1.1 408 ")
        assert heard(body).startswith(b"HTTP/1.1 408 ")
        assert heard(idle).startswith(b"HTTP/1.1 200 ")
        assert time.monotonic() - begun < PATIENCE_S
        beats = 0
        while beats < 5:  # a second, three times as long as anything else may take
            beats += next(stream).startswith(": beat")


@pytest.mark.parametrize("first", [b"", HEALTH], ids=["a first request", "a second request"])
def test_a_header_that_comes_byte_by_byte_has_no_more_time_than_one_that_does_not(tmp_path: Path, first: bytes) -> None:
    with served(tmp_path, Settings(head_timeout_s=0.5)) as (_, url), connect(url, first) as connection:
        if first:
            assert answer(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(HALF_A_HEADER)
        connection.settimeout(0.05)
        until, told = time.monotonic() + PATIENCE_S, b""
        while not told and time.monotonic() < until:
            try:
                connection.sendall(b"x")
                told = connection.recv(2**16)
            except TimeoutError:
                continue
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in told


def test_a_body_after_its_answer_holds_a_connection_no_longer_than_one_before(tmp_path: Path) -> None:
    """A refused request is answered before its body has come; the rest of it may not come for ever."""
    settings = Settings(body_timeout_s=0.2, idle_timeout_s=0.2)
    with served(tmp_path, settings) as (_, url), connect(url) as connection:
        connection.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"x")  # which ends the time between two requests
        assert heard(connection) == b""


def test_a_connection_whose_body_came_after_its_answer_can_be_used_again(tmp_path: Path) -> None:
    with served(tmp_path, Settings(head_timeout_s=0.5)) as (_, url), connect(url) as connection:
        connection.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{")
        assert answer(connection).startswith(b"HTTP/1.1 401 ")
        connection.sendall(b"}")
        connection.sendall(HEALTH)
        assert answer(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"\r\n")
        heard(connection)  # an empty line before a request is the beginning of one


# -- number ------------------------------------------------------------------------------------------------------------


def test_connections_that_ask_nothing_make_room_for_those_that_do(tmp_path: Path) -> None:
    with served(tmp_path, Settings(most_connections=8)) as (_, url), ExitStack() as open_:
        kept = open_.enter_context(connect(url, HEALTH))
        assert answer(kept).startswith(b"HTTP/1.1 200 ")
        half = [open_.enter_context(connect(url, HALF_A_HEADER)) for _ in range(40)]
        new = open_.enter_context(connect(url, HEALTH))
        assert answer(new).startswith(b"HTTP/1.1 200 ")
        assert heard(half[0]) == b""  # the oldest went first
        kept.sendall(HEALTH)
        assert answer(kept).startswith(b"HTTP/1.1 200 ")


def test_where_every_connection_is_being_answered_another_one_is_told_so(tmp_path: Path) -> None:
    settings = Settings(most_connections=3, heartbeat_s=0.2)
    with served(tmp_path, settings) as (plane, url), ExitStack() as open_:
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {plane.tokens['ann']}\r\n\r\n"
        streams = [open_.enter_context(connect(url, head.encode())) for _ in range(3)]
        assert all(answer(each).startswith(b"HTTP/1.1 200 ") for each in streams)
        refused = httpx.get(f"{url}/healthz", timeout=PATIENCE_S)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["content-type"] == "application/problem+json"
        assert "all 3 connections" in refused.json()["detail"]
        for _ in range(3 * REFUSED_AT_ONCE):  # what is refused does not pile up either
            open_.enter_context(connect(url))
        assert all(answer(each) for each in streams)  # they go on
        streams.pop().close()
        until = time.monotonic() + PATIENCE_S
        while httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code != 200:
            assert time.monotonic() < until


class FakeConnection:
    dropped = False

    def drop(self) -> None:
        self.dropped = True


def test_places_are_lost_in_the_order_of_what_a_connection_does() -> None:
    places = Connections(4)
    busy, stalled, idle, silent = (FakeConnection() for _ in range(4))
    for connection, use in ((busy, Use.BUSY), (stalled, Use.STALLED), (idle, Use.IDLE), (silent, Use.SILENT)):
        assert places.admit(connection)
        places.note(connection, use)
    for victim in (silent, idle, stalled):
        new = FakeConnection()
        assert places.admit(new)
        places.note(new, Use.BUSY)
        assert victim.dropped
        places.note(victim, Use.BUSY)  # too late
        assert len(places) == 4
    refused = [FakeConnection() for _ in range(REFUSED_AT_ONCE + 1)]
    assert not any(places.admit(each) for each in refused)
    assert [each.dropped for each in refused] == [True] + [False] * REFUSED_AT_ONCE
    places.forget(busy)
    assert not busy.dropped
    assert places.admit(FakeConnection())


# -- size --------------------------------------------------------------------------------------------------------------

LARGE = 50 * 2**20


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StillPlane, str]]:
    with served(tmp_path_factory.mktemp("plain"), Settings()) as both:
        yield both


def is_too_large(status: int, kind: str | None, body: bytes) -> bool:
    return (status, kind) == (413, "application/problem+json") and json.loads(body)["status"] == 413


@pytest.mark.parametrize("token", [True, False])
def test_a_client_that_sends_fifty_megabytes_reads_its_answer(plain: tuple[StillPlane, str], token: bool) -> None:
    plane, url = plain
    headers = {"Authorization": f"Bearer {plane.tokens['ann']}"} if token else {}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)  # sends all, and reads then
    connection.request("POST", "/api/v1/jobs", body=bytes(LARGE), headers=headers)
    told = connection.getresponse()
    if token:
        assert is_too_large(told.status, told.getheader("content-type"), told.read())
    else:
        assert told.status == 401
    connection.close()


@pytest.mark.parametrize("chunked", [True, False])
def test_httpx_reads_the_answer_to_a_body_that_is_too_large(plain: tuple[StillPlane, str], chunked: bool) -> None:
    plane, url = plain
    headers = {"Authorization": f"Bearer {plane.tokens['ann']}"}
    content = (bytes(2**16) for _ in range(LARGE // 2**16)) if chunked else bytes(LARGE)
    told = httpx.post(f"{url}/api/v1/jobs", content=content, headers=headers, timeout=PATIENCE_S)
    assert is_too_large(told.status_code, told.headers["content-type"], told.content)


def test_a_client_that_waits_to_be_told_to_go_on_is_told_not_to(plain: tuple[StillPlane, str]) -> None:
    plane, url = plain
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {plane.tokens['ann']}\r\n"
        f"Expect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n"
    )
    with connect(url, head.encode()) as connection:
        told = answer(connection)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in told


def test_headers_without_end_are_refused_and_the_answer_can_be_read(plain: tuple[StillPlane, str]) -> None:
    with connect(plain[1], HALF_A_HEADER) as connection:
        connection.sendall(b"x" * (LARGEST_HEAD + 2**16))
        told = heard(connection)
    assert told.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in told


@pytest.mark.parametrize(
    "header", ["Transfer-Encoding: gzip", "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 12"]
)
def test_a_body_whose_end_cannot_be_known_is_not_waited_for(plain: tuple[StillPlane, str], header: str) -> None:
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {plain[0].tokens['ann']}\r\n"
    with connect(plain[1], f'{head}{header}\r\n\r\n{{"run": "x"}}'.encode()) as connection:
        assert answer(connection).startswith(b"HTTP/1.1 400 ")


def test_a_request_with_garbage_behind_it_is_answered(plain: tuple[StillPlane, str]) -> None:
    with connect(plain[1], HEALTH + b"? " * 100_000) as connection:
        told = heard(connection)
    assert told.startswith(b"HTTP/1.1 200 ")
    assert told.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nA B\r\n\r\n", b"x" * 5000])
def test_what_is_no_http_is_answered_by_a_problem(plain: tuple[StillPlane, str], sent: bytes) -> None:
    with connect(plain[1], sent) as connection:
        told = heard(connection)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in told
