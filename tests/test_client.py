"""The client alone: where it finds a server, what it makes of answers, and how it lives through a restart.

The server here is a real one, and says what a test puts into its mouth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fairlead.client import (
    Client,
    ClientError,
    Conflict,
    Failed,
    Invalid,
    Job,
    NoServer,
    NotAllowed,
    NotFound,
    Patience,
    Refused,
    Server,
    Unreachable,
    exit_code_of,
    find_server,
    read_token,
)
from fairlead.client.finding import NONE_HERE, default_state
from fairlead.client.sse import Parser, ServerEvent

# -- a server that says what it is told to ----------------------------------------------------------------------------


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What to say to one request; `broken` closes the connection after the body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    broken: bool = False

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class Puppet:
    """Answers one after the other, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[Asked] = []
        puppet = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                puppet.asked.append(Asked(self.command, self.path, headers, json.loads(body) if body else None))
                puppet.say(self)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def say(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self.answers.pop(0) if self.answers else Answer(500, {"detail": "nothing left to say"})
        body = answer.encoded()
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.kind)
        # One byte more than comes is a connection that broke.
        handler.send_header("Content-Length", str(len(body) + answer.broken))
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)
        handler.close_connection = True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def puppet() -> Iterator[Puppet]:
    server = Puppet()
    yield server
    server.close()


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def patience(self, **settings: Any) -> Patience:
        return Patience(sleep=self.sleep, clock=lambda: self.now, **settings)


@pytest.fixture
def client(puppet: Puppet) -> Iterator[Client]:
    with Client(Server(puppet.url, "fl_secret"), patience=Clock().patience()) as found:
        yield found


def a_job(**fields: Any) -> Job:
    job: Any = {"id": "12", "state": "RUNNING", "exit_code": None, "ended_at": None, **fields}
    return job  # type: ignore[no-any-return]


# -- finding a server --------------------------------------------------------------------------------------------------


def write_state(state: Path, url: str, *, pid: int | None = None, token: str = "fl_mine") -> None:
    state.mkdir(parents=True, exist_ok=True)
    (state / "server.json").write_text(json.dumps({"url": url, "pid": pid or os.getpid()}))
    (state / "token").write_text(token + "\n")
    (state / "token").chmod(0o600)


def test_a_server_is_found_by_the_files_of_its_state_directory(tmp_path: Path) -> None:
    write_state(tmp_path, "http://127.0.0.1:7070/")
    assert find_server(tmp_path, env={}) == Server("http://127.0.0.1:7070", "fl_mine")


def test_the_default_state_directory_is_the_users(tmp_path: Path) -> None:
    assert default_state({"XDG_STATE_HOME": "/x"}) == Path("/x/fairlead")
    assert default_state({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/fairlead"
    write_state(tmp_path / "fairlead", "http://127.0.0.1:1")
    assert find_server(env={"XDG_STATE_HOME": str(tmp_path)}).token == "fl_mine"


def test_the_environment_names_a_server_unless_a_state_directory_is_named(tmp_path: Path) -> None:
    env = {"FAIRLEAD_URL": "https://gpus.example:7070/", "FAIRLEAD_TOKEN": " fl_theirs "}
    assert find_server(env=env) == Server("https://gpus.example:7070", "fl_theirs")
    write_state(tmp_path, "http://127.0.0.1:1")
    assert find_server(tmp_path, env=env) == Server("http://127.0.0.1:1", "fl_mine")


def test_a_state_directory_can_be_named_by_the_environment(tmp_path: Path) -> None:
    write_state(tmp_path, "http://127.0.0.1:1")
    env = {"FAIRLEAD_STATE": str(tmp_path), "XDG_STATE_HOME": "/x"}
    assert default_state(env) == tmp_path
    assert default_state({"FAIRLEAD_STATE": "~/gpus"}) == Path.home() / "gpus"
    assert default_state({"FAIRLEAD_STATE": " ", "XDG_STATE_HOME": "/x"}) == Path("/x/fairlead")
    assert find_server(env=env) == Server("http://127.0.0.1:1", "fl_mine")
    assert find_server(env={**env, "FAIRLEAD_URL": "http://other.example"}) == Server("http://other.example")


def test_who_named_a_state_directory_is_told_to_start_a_server_on_it(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match=f"start one with: fairlead up --state {tmp_path}$"):
        find_server(tmp_path, env={})
    with pytest.raises(NoServer, match=r"start one with: fairlead up$"):
        find_server(env={"FAIRLEAD_STATE": str(tmp_path)})


def test_a_token_is_shown_to_no_server_but_its_own(tmp_path: Path) -> None:
    write_state(tmp_path / "fairlead", "http://127.0.0.1:1")
    home = {"XDG_STATE_HOME": str(tmp_path)}
    assert find_server(env={**home, "FAIRLEAD_URL": "http://other.example"}).token is None
    assert find_server(env={**home, "FAIRLEAD_URL": "http://127.0.0.1:1"}).token == "fl_mine"


def test_the_token_of_an_elastic_worker_is_not_taken_for_the_users(tmp_path: Path) -> None:
    write_state(tmp_path / "fairlead", "http://127.0.0.1:1")
    env = {"XDG_STATE_HOME": str(tmp_path), "FAIRLEAD_TOKEN": "of-its-agent", "FAIRLEAD_AGENT": "127.0.0.1:5"}
    assert find_server(env=env).token == "fl_mine"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_state(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(ClientError, match=rf"can be read by others \(mode {mode:03o}\).*chmod 600"):
        find_server(tmp_path, env={})


def test_a_missing_token_is_none(tmp_path: Path) -> None:
    assert read_token(tmp_path / "token") is None


def test_nothing_runs_where_nothing_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match=NONE_HERE):
        find_server(tmp_path, env={})


def test_a_server_whose_process_is_gone_does_not_run(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_state(tmp_path, "http://127.0.0.1:1", pid=gone.pid)
    with pytest.raises(NoServer, match=NONE_HERE):
        find_server(tmp_path, env={})
    write_state(tmp_path, "http://elsewhere.example:1", pid=gone.pid)  # that process is on another machine
    assert find_server(tmp_path, env={}).url == "http://elsewhere.example:1"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": 5, "pid": "x"}', "\udcff"])
def test_a_damaged_address_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(NoServer, match=r"server\.json cannot be read"):
        find_server(tmp_path, env={})


@pytest.mark.parametrize("url", ["gpus.example", "ftp://x", "http://", "http://x:port"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ClientError, match="FAIRLEAD_URL is"):
        find_server(env={"FAIRLEAD_URL": url})


def test_a_token_is_in_no_text() -> None:
    assert "fl_secret" not in repr(Server("http://x", "fl_secret"))


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_call_carries_the_token_and_gives_what_was_answered(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body={"id": "12", "state": "RUNNING"})]
    assert client.job("12")["state"] == "RUNNING"
    assert puppet.asked[0].path == "/api/v1/jobs/12"
    assert puppet.asked[0].headers["authorization"] == "Bearer fl_secret"


def test_what_is_no_path_does_not_become_one(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body={})]
    client.job("../users?x=1")
    assert puppet.asked[0].path == "/api/v1/jobs/..%2Fusers%3Fx%3D1"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((400, Invalid), (422, Invalid), (401, NotAllowed), (403, NotAllowed), (404, NotFound), (409, Conflict)),
        *((418, Refused), (500, Failed)),
    ],
)
def test_a_problem_is_an_error_of_its_kind(puppet: Puppet, client: Client, status: int, error: type[Refused]) -> None:
    told = {"title": "Title", "status": status, "detail": "Words.", "errors": [{"field": "gpus", "text": "is 0"}]}
    puppet.answers = [Answer(status, told, "application/problem+json")]
    with pytest.raises(error, match=r"Words\.") as raised:
        client.job("12")
    assert type(raised.value) is error
    assert raised.value.problem.status == status
    assert [each["text"] for each in raised.value.problem.errors] == ["is 0"]


@pytest.mark.parametrize("body", ["<html>", "[1]", '{"errors": 5}', "\x00"])
def test_a_problem_without_words_is_told_by_its_status(puppet: Puppet, client: Client, body: str) -> None:
    puppet.answers = [Answer(404, body, "text/html")]
    with pytest.raises(NotFound, match="404"):
        client.job("12")


@pytest.mark.parametrize("answer", [Answer(200, "<html>", "text/html"), Answer(302, "", headers={"Location": "/x"})])
def test_what_is_no_fairlead_server_is_told_so(puppet: Puppet, client: Client, answer: Answer) -> None:
    puppet.answers = [answer]
    with pytest.raises(Unreachable, match="is no Fairlead server"):
        client.jobs()


def test_lists_are_read_page_by_page(puppet: Puppet, client: Client) -> None:
    puppet.answers = [
        Answer(body={"jobs": [{"id": "3"}, {"id": "2"}], "next": "live-2"}),
        Answer(body={"jobs": [{"id": "1"}], "next": None}),
    ]
    assert [job["id"] for job in client.jobs(user="ann", queue=None, all=True)] == ["3", "2", "1"]
    assert puppet.asked[0].path == "/api/v1/jobs?user=ann&all=true&limit=500"
    assert puppet.asked[1].path == "/api/v1/jobs?user=ann&all=true&cursor=live-2&limit=500"


def test_no_more_is_asked_for_than_is_wanted(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body={"jobs": [{"id": "3"}, {"id": "2"}], "next": "live-2"})]
    assert len(client.jobs(limit=2)) == 2
    assert puppet.asked[0].path.endswith("limit=2")


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (a_job(state="SUCCEEDED", exit_code=0), 0),
        (a_job(state="FAILED", exit_code=3), 3),
        (a_job(state="FAILED"), 1),
        (a_job(state="TIMEOUT", exit_code=124), 124),
        (a_job(state="CANCELLED", exit_code=143), 130),
    ],
)
def test_a_jobs_end_is_an_exit_code(job: Job, code: int) -> None:
    assert exit_code_of(job) == code


# -- a server that restarts --------------------------------------------------------------------------------------------


def test_a_call_is_repeated_while_the_server_is_busy(puppet: Puppet, client: Client) -> None:
    puppet.answers = [
        Answer(503, {"detail": "starting"}),
        Answer(502, "bad gateway", "text/plain"),
        Answer(429, {"detail": "slow down"}, headers={"Retry-After": "1"}),
        Answer(body={"id": "12"}),
    ]
    assert client.job("12")["id"] == "12"


def test_a_submission_is_repeated_with_the_same_key(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body="{", broken=True), Answer(201, {"ids": ["12"], "jobs": []})]
    assert client.submit({"run": "true"}, key="k1")["ids"] == ["12"]
    assert [asked.headers["idempotency-key"] for asked in puppet.asked] == ["k1", "k1"]
    assert puppet.asked[0].body == puppet.asked[1].body == {"run": "true"}


def test_what_cannot_be_repeated_is_not(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body="{", broken=True), Answer(201, {"token": "second"})]
    with pytest.raises(Unreachable, match="whether it was done is unknown"):
        client.add_user("ann", role="user")
    assert len(puppet.asked) == 1


def test_who_is_told_to_come_back_much_later_hears_why(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(429, {"detail": "you have 20000 jobs"}, headers={"Retry-After": "60"})]
    with pytest.raises(Refused, match="you have 20000 jobs"):
        client.submit({}, key="k")


def test_patience_ends_and_pauses_grow() -> None:
    clock, told = Clock(), list[str]()
    client = Client(Server("http://127.0.0.1:9"), patience=clock.patience(first_s=10.0, tell=told.append))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 does not answer .*gave up after 10 s"):
        client.jobs()
    assert 5.0 < clock.now <= 10.0
    assert clock.slept[-1] > 5 * clock.slept[0]
    assert len(told) == 1


def test_a_server_is_looked_for_again_where_it_comes_back(puppet: Puppet) -> None:
    clock = Clock()
    other = Puppet()
    places = iter([Server(puppet.url), Server("http://127.0.0.1:9"), Server(other.url)])
    client = Client(lambda: next(places), patience=clock.patience())
    puppet.answers, other.answers = [Answer(503)], [Answer(body={"id": "12"})]
    assert client.job("12")["id"] == "12"
    other.close()


def test_a_server_that_never_was_is_not_waited_for() -> None:
    clock = Clock()

    def find() -> Server:
        raise NoServer(NONE_HERE)

    with pytest.raises(NoServer):
        Client(find, patience=clock.patience()).jobs()
    assert clock.slept == []


def test_a_server_that_was_there_is_waited_for(puppet: Puppet) -> None:
    clock, times = Clock(), count()

    def find() -> Server:
        if 1 <= next(times) <= 3:
            raise NoServer(NONE_HERE)
        return Server(puppet.url)

    client = Client(find, patience=clock.patience())
    puppet.answers = [Answer(body={"id": "1"}), Answer(503), Answer(body={"id": "2"})]
    assert client.job("1")["id"] == "1"
    assert client.job("2")["id"] == "2"


def test_a_proxy_is_not_asked_for_a_server_on_this_machine(puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    puppet.answers = [Answer(body={"id": "12"})]
    assert Client(Server(puppet.url)).job("12")["id"] == "12"


@pytest.mark.parametrize("token", ["two words", "naïve", "line\nbreak"])
def test_a_token_that_cannot_be_one_is_not_sent(puppet: Puppet, token: str) -> None:
    with pytest.raises(ClientError, match="no token has"):
        Client(Server(puppet.url, token)).jobs()
    assert puppet.asked == []


# -- streams -----------------------------------------------------------------------------------------------------------

SSE = "text/event-stream"


def lines(*events: tuple[str, str, Any]) -> str:
    return "".join(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for number, name, data in events)


def test_a_stream_that_breaks_goes_on_after_the_last_event(puppet: Puppet, client: Client) -> None:
    puppet.answers = [
        Answer(body=lines(("5", "job", {"id": "1"}), ("6", "job", {"id": "2"})) + "id: 7\nda", kind=SSE, broken=True),
        Answer(503),
        Answer(body=": alive\n\n" + lines(("7", "job", {"id": "3"})), kind=SSE),
    ]
    events = client.events(last_id="4")
    assert [json.loads(next(events).data)["id"] for _ in range(3)] == ["1", "2", "3"]
    events.close()
    assert [asked.headers.get("last-event-id") for asked in puppet.asked] == ["4", "6", "6"]


def test_logs_are_followed_through_a_restart_until_the_end(puppet: Puppet, client: Client) -> None:
    def line(number: str, text: str) -> tuple[str, str, Any]:
        return number, "line", {"rank": 0, "attempt": 1, "text": text}

    puppet.answers = [
        Answer(body=lines(line("1_1.0.4", "one")), kind=SSE),
        Answer(body=a_job()),  # the server went away, and the job goes on
        Answer(body=lines(line("1_1.0.8", "two")), kind=SSE),
        Answer(body=a_job(state="SUCCEEDED", ended_at=5.0)),
        Answer(body=lines(line("1_1.0.9", "last words")), kind=SSE),
    ]
    assert [each["text"] for each in client.follow_logs("12", rank=0, tail=None)] == ["one", "two", "last words"]
    assert puppet.asked[0].path == "/api/v1/jobs/12/logs/stream?rank=0"
    assert [asked.headers.get("last-event-id") for asked in puppet.asked][::2] == [None, "1_1.0.4", "1_1.0.8"]


def test_a_long_answer_comes_in_pieces(puppet: Puppet, client: Client) -> None:
    puppet.answers = [Answer(body=b"\xff\n" * 100_000, kind="text/plain")]
    assert b"".join(client.logs("12", tail=5)) == b"\xff\n" * 100_000
    assert puppet.asked[0].path == "/api/v1/jobs/12/logs?tail=5"


def fed(text: bytes, size: int) -> list[ServerEvent]:
    parser = Parser()
    return [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_taken_apart_however_they_come(size: int, end: bytes) -> None:
    text = (
        b"retry: 500\n: a comment\n\nid: 1\nevent: job\ndata: {\ndata:  x}\n\n"
        b"data: \xe2\x82\xac\xe2\x80\xa8\n\nid: 2\n\nevent: lost\n\ndata\n\n: the next is not whole\ndata: y\n"
    )
    assert fed(text.replace(b"\n", end) + b" ", size) == [
        ServerEvent("job", "{\n x}", "1"),
        ServerEvent("message", "€\u2028", "1"),
        ServerEvent("message", "", "2"),
    ]


def test_the_client_needs_nothing_of_the_server() -> None:
    code = (
        "import sys, fairlead.client, fairlead.cli.live.queue, fairlead.cli.live.top, fairlead.cli.live.status;"
        "sys.exit(any(name in sys.modules for name in ('fastapi', 'sqlalchemy', 'uvicorn', 'numpy', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
