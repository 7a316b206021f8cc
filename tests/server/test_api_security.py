"""Who gets in, what nobody gets out, and how much of everything is too much."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from still import StillPlane

from fairlead.server.api import Settings
from fairlead.server.api.gate import PUBLIC
from fairlead.server.api.limits import Buckets


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StillPlane]:
    """For tests that change nothing that another one looks at. Ann has a job."""
    settings = Settings(hosts=("fairlead.example.org",), failures_burst=10_000)
    with StillPlane(tmp_path_factory.mktemp("shared"), settings) as plane:
        plane.submit(secrets={"KEY": "secretword"}, env={"A": "envword"}, labels={"l": "labelword"})
        plane.write_log("1", b"logword\n")
        yield plane


def session_of(plane: StillPlane, user: str = "ann") -> dict[str, str]:
    """The header of a browser that has logged in."""
    response = plane.ask("POST", "/session", None, json={"token": plane.tokens[user]})
    assert response.status_code == 200
    return {"Cookie": response.headers["set-cookie"].partition(";")[0]}


def operations(plane: StillPlane) -> list[tuple[str, str]]:
    """Every method and path there is, with something in place of parameters."""
    document = plane.app.openapi()
    found = []
    for path, methods in document["paths"].items():
        known = path.replace("{job_id}", "1").replace("{wish}", "cancel").replace("{node_id}", "n0")
        found += [(method.upper(), re.sub(r"{\w+}", "x", known)) for method in methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("GET", "/docs")]


# -- who ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer x"}, {"Authorization": "Basic YTpi"}, {"Cookie": "fairlead_session=x"}]
)
def test_every_route_but_the_public_ones_wants_to_know_who_asks(shared: StillPlane, headers: dict[str, str]) -> None:
    asked = operations(shared)
    assert len(asked) > 30
    for method, path in asked:
        if (method, path) in PUBLIC:
            continue
        response = shared.ask(method, path, None, headers=headers)
        assert response.status_code == 401, (method, path)
        assert "logword" not in response.text
        if path != "/":
            assert response.headers["content-type"] == "application/problem+json"
            assert response.headers["www-authenticate"].startswith("Bearer")


def test_a_wrong_token_is_told_from_none(shared: StillPlane) -> None:
    def told(**headers: str) -> str:
        answer = shared.ask("GET", "/api/v1/whoami", None, headers=headers)
        assert answer.status_code == 401
        return str(answer.json()["detail"])

    assert told(Authorization="Bearer wrong").startswith("this token is not known here")
    for sent in ("Bearer ", "Basic YTpi"):
        assert told(Authorization=sent) == told()
    assert told().startswith("say who you are")


def test_a_wrong_token_is_not_made_good_by_a_session(shared: StillPlane) -> None:
    headers = {**session_of(shared), "Authorization": "Bearer wrong"}
    assert shared.ask("GET", "/api/v1/whoami", None, headers=headers).status_code == 401


def test_a_session_may_look_and_nothing_else(shared: StillPlane) -> None:
    headers = session_of(shared)
    assert shared.get("/api/v1/whoami", None, headers=headers) == {"name": "ann", "role": "user", "session": True}
    for method, path in operations(shared):
        if method != "GET" and (method, path) not in PUBLIC:
            assert shared.ask(method, path, None, headers=headers).status_code == 403, (method, path)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_use_a_session(shared: StillPlane, site: str) -> None:
    headers = {**session_of(shared), "Sec-Fetch-Site": site}
    assert shared.ask("GET", "/api/v1/jobs", None, headers=headers).status_code == 403
    own = {**session_of(shared), "Sec-Fetch-Site": "same-origin"}
    assert shared.ask("GET", "/api/v1/jobs", None, headers=own).status_code == 200


def test_a_cookie_is_for_this_site_alone_and_not_for_scripts(shared: StillPlane) -> None:
    cookie = shared.ask("POST", "/session", None, json={"token": shared.tokens["ann"]}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert shared.tokens["ann"].lower() not in cookie


def test_behind_https_a_cookie_goes_over_nothing_else(tmp_path: Path) -> None:
    with StillPlane(tmp_path, Settings(secure=True)) as plane:
        response = plane.ask("POST", "/session", None, json={"token": plane.tokens["ann"]})
        assert "secure" in response.headers["set-cookie"].lower()


# -- logging in --------------------------------------------------------------------------------------------------------


def test_a_form_logs_a_browser_in_and_goes_on_to_the_page(shared: StillPlane) -> None:
    response = shared.ask("POST", "/session", None, data={"token": shared.tokens["ann"]})
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert "set-cookie" in response.headers
    wrong = shared.ask("POST", "/session", None, data={"token": "wrong"})
    assert (wrong.status_code, wrong.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_another_site_cannot_log_somebody_in(shared: StillPlane, headers: dict[str, str]) -> None:
    response = shared.ask("POST", "/session", None, data={"token": shared.tokens["ann"]}, headers=headers)
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"token": 1}', b'{"token": "\\ud800"}', b"\xff", b'{"token": ""}', b"[]"]
)
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_a_login_without_a_token_says_nothing_about_it(shared: StillPlane, body: bytes, kind: str) -> None:
    response = shared.ask("POST", "/session", None, content=body, headers={"Content-Type": kind})
    assert response.status_code == 401


def test_a_code_logs_a_browser_in_once(shared: StillPlane) -> None:
    path = shared.ask("POST", "/api/v1/login-codes").json()["path"]
    first = shared.ask("GET", path, None)
    assert first.status_code == 200
    headers = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
    assert shared.get("/api/v1/whoami", None, headers=headers)["name"] == "ann"
    assert shared.ask("GET", path, None).status_code == 401
    assert shared.ask("GET", "/login", None).status_code == 401


def test_a_browser_that_logs_out_is_out(shared: StillPlane) -> None:
    headers = session_of(shared)
    assert shared.ask("DELETE", "/session", None, headers=headers).status_code == 204
    assert shared.ask("GET", "/api/v1/whoami", None, headers=headers).status_code == 401


def test_a_form_of_our_own_page_may_come_without_an_origin(shared: StillPlane) -> None:
    headers = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}
    response = shared.ask("POST", "/session", None, data={"token": shared.tokens["ann"]}, headers=headers)
    assert response.status_code == 303


@pytest.mark.parametrize("shipped", [True, False])
def test_without_a_session_the_page_is_a_form(tmp_path: Path, shipped: bool) -> None:
    settings = Settings() if shipped else Settings(static=tmp_path / "nothing")
    with StillPlane(tmp_path, settings) as plane:
        response = plane.ask("GET", "/", None)
        assert response.status_code == 401
        assert re.search(r"""<form [^>]*action=["']?/session""", response.text)
        assert "script" not in response.headers["content-security-policy"]
        assert response.headers["referrer-policy"] == "same-origin"


def test_the_page_is_served_from_its_directory_and_nothing_else_is(tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<p>the page")
    (static / "page.js").write_text("1")
    (static / "notes.txt").write_text("not for browsers")
    (static / "login.html").write_text("<p>another form")
    (tmp_path / "secret.js").write_text("2")
    with StillPlane(tmp_path, Settings(static=static)) as plane:
        assert plane.ask("GET", "/", None).text == "<p>another form"
        headers = session_of(plane)
        page = plane.ask("GET", "/", None, headers=headers)
        assert page.text == "<p>the page"
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        script = plane.ask("GET", "/static/page.js", None, headers=headers)
        assert (script.text, script.headers["content-type"]) == ("1", "text/javascript; charset=utf-8")
        assert plane.ask("GET", "/static/page.js", None).status_code == 401
        for name in ("notes.txt", "../secret.js", "..%2fsecret.js", "%2e%2e/secret.js", "nothing.js", "page.js/"):
            assert plane.ask("GET", f"/static/{name}", None, headers=headers).status_code in (404, 307), name


# -- where -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]", "fairlead.example.org:443"]
)
def test_the_server_answers_by_its_names(shared: StillPlane, host: str) -> None:
    assert shared.ask("GET", "/healthz", None, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "localhost:x", "", "127.0.0.1.nip.io"]
)
def test_the_server_answers_by_no_other_name(shared: StillPlane, host: str) -> None:
    for path in ("/healthz", "/api/v1/jobs"):
        response = shared.ask("GET", path, headers={"Host": host})
        assert response.status_code == 421
        assert response.headers["content-type"] == "application/problem+json"


def test_every_answer_has_the_headers_that_protect_it(shared: StillPlane) -> None:
    for method, path in operations(shared):
        if path.endswith(("/stream", "/events")) or method != "GET":
            continue
        for user in ("ann", None):
            headers = shared.ask(method, path, user).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "access-control-allow-origin" not in headers


# -- what --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["bob", "eve"])
def test_nothing_of_somebody_elses_job_is_in_any_answer(shared: StillPlane, user: str) -> None:
    shared.controller.runs("1")
    for method, path in operations(shared):
        if method != "GET" or path in ("/api/v1/events", "/openapi.json"):
            continue
        response = shared.ask(method, path, user)
        hidden = ["secretword", "envword", "logword", *shared.tokens.values()]
        hidden += ["labelword", "train.py"] if user == "bob" else ["train.py"]
        assert not any(word in response.text for word in hidden), path
        if user == "bob" and path.startswith("/api/v1/jobs/1"):
            assert response.status_code == 404, path


def test_not_even_the_owner_is_shown_the_value_of_a_secret(shared: StillPlane) -> None:
    for method, path in operations(shared):
        if method == "GET" and path not in ("/api/v1/events", "/api/v1/jobs/1/logs/stream"):
            assert "secretword" not in shared.ask(method, path).text, path


@pytest.mark.parametrize(
    "body",
    [
        {"run": "x", "secrets": "hush-hush"},
        {"run": "x", "secrets": ["hush-hush"]},
        {"run": "x", "secrets": {"A": ["hush-hush"]}},
        {"run": "x", "secrets": {"A": "hush-hush\u0000"}},
        {"run": "x", "secrets": {"RANK": "hush-hush"}},
        {"run": "x", "secrets": {"A": "hush-hush"}, "env": {"A": "1"}},
        {"run": "x", "secret": {"A": "hush-hush"}},
        {"run": "x", "secrets": {"A": "hush-hush"}, "gpus": 999},
        {"run": "x", "secrets": {"A": "hush-hush"}, "queue": "nowhere"},
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/check"])
def test_a_secret_is_not_repeated_when_something_is_wrong(shared: StillPlane, body: Any, path: str) -> None:
    response = shared.ask("POST", path, json=body)
    assert response.status_code == 422
    assert "hush" not in response.text


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/jobs/1/cancel"), ("PATCH", "/api/v1/jobs/1"), ("POST", "/api/v1/users"), ("POST", "/session")],
)
def test_what_was_sent_to_the_wrong_place_is_not_repeated(shared: StillPlane, method: str, path: str) -> None:
    response = shared.ask(
        method, path, "root", json={"token": ["hush-hush"], "why": ["hush-hush"], "secrets": "hush-hush"}
    )
    assert response.status_code in (401, 422)
    assert "hush" not in response.text


# -- how much ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/users", "/session", "/nowhere"])
def test_a_body_that_is_too_large_is_refused_whatever_its_header_says(shared: StillPlane, path: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000

    for content in (b"x" * (2**20 + 1), endless()):
        response = shared.ask("POST", path, "root", content=content)
        assert response.status_code == 413
        assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30, "99999999"])
def test_a_length_that_is_a_lie_is_refused(shared: StillPlane, length: str) -> None:
    response = shared.ask("POST", "/api/v1/jobs", content=b"{}", headers={"Content-Length": length})
    assert response.status_code == 413


def test_the_largest_body_is_read(shared: StillPlane) -> None:
    job = b'{"run": "x"}'
    assert shared.ask("POST", "/api/v1/check", content=job.ljust(2**20)).status_code == 200


def test_a_body_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    with StillPlane(tmp_path, Settings(body_timeout_s=0.05)) as plane:
        assert plane.ask("POST", "/api/v1/jobs", content=stuck()).status_code == 408


def test_half_a_body_is_not_taken_for_a_whole_one(shared: StillPlane) -> None:
    """A client that goes away in the middle of a file has not submitted what came before."""
    pieces = iter(
        [
            {"type": "http.request", "body": b"run: python tr", "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    headers = [
        (b"host", b"localhost"),
        (b"authorization", b"Bearer " + shared.tokens["bob"].encode()),
        (b"content-type", b"application/yaml"),
    ]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/jobs", "query_string": b"", "headers": headers}
    sent = []

    async def receive() -> Any:
        return next(pieces)

    async def send(message: Any) -> None:
        sent.append(message)

    before = len(shared.store.requests())
    asyncio.run(shared.app({**scope, "root_path": "", "scheme": "http", "client": None, "server": None}, receive, send))
    assert sent == []
    assert len(shared.store.requests()) == before


def test_wishes_for_large_arrays_are_not_many_for_the_price_of_one(tmp_path: Path) -> None:
    with StillPlane(tmp_path, Settings(elements_per_s=1.0, elements_burst=25)) as plane:
        plane.submit(array=10)
        for wish in ("hold", "release"):
            assert plane.ask("POST", f"/api/v1/arrays/1/{wish}", "ann").status_code == 202
        refused = plane.ask("PATCH", "/api/v1/arrays/1", "ann", json={"priority": -1})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert plane.ask("POST", "/api/v1/arrays/1/cancel", "root").status_code == 202  # somebody else may


def test_whoever_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    with StillPlane(tmp_path, Settings(requests_per_s=0.001, requests_burst=3)) as plane:
        asked = [plane.ask("GET", "/api/v1/whoami") for _ in range(4)]
        assert [response.status_code for response in asked] == [200, 200, 200, 429]
        assert asked[-1].headers["content-type"] == "application/problem+json"
        assert int(asked[-1].headers["retry-after"]) > 100
        assert plane.ask("GET", "/api/v1/whoami", "bob").status_code == 200


def test_whoever_guesses_tokens_is_slowed_down_and_others_are_not(tmp_path: Path) -> None:
    with StillPlane(tmp_path, Settings(failures_per_s=0.001, failures_burst=2)) as plane:
        guesses = [
            plane.ask("GET", "/api/v1/whoami", None, headers={"Authorization": "Bearer x"}),
            plane.ask("POST", "/session", None, json={"token": "x"}),
            plane.ask("GET", "/login?code=x", None),
            plane.ask("POST", "/session", None, data={"token": "x"}),
        ]
        assert [response.status_code for response in guesses] == [401, 401, 429, 429]
        assert plane.ask("GET", "/api/v1/whoami").status_code == 200


def test_a_bucket_fills_again_with_time() -> None:
    now = 0.0
    buckets = Buckets(2.0, 3, clock=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now += 0.5
    assert [buckets.take("a") for _ in range(2)] == [0.0, 0.5]
    assert buckets.take("b") == 0.0


def test_buckets_of_many_addresses_do_not_grow_for_ever() -> None:
    buckets = Buckets(1e-9, 5, clock=lambda: 0.0)
    for number in range(25_000):
        buckets.take(str(number))
    assert len(buckets._left) <= 10_000


def test_the_store_being_asked_for_unknown_tokens_is_bounded(shared: StillPlane) -> None:
    """Many wrong tokens at once read the table of users once a second at most."""

    async def many() -> list[int]:
        transport = httpx.ASGITransport(app=shared.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asked = [client.get("/api/v1/whoami", headers={"Authorization": f"Bearer {n}"}) for n in range(50)]
            return [response.status_code for response in await asyncio.gather(*asked)]

    assert set(asyncio.run(many())) == {401}
