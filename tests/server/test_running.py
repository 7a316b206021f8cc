"""Real servers in processes of their own: how they begin, end, die and come back, and what jobs do meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PATIENCE_S = 60.0

#: A job that tells that it began, and goes on until it is let go.
BEGIN_AND_WAIT = 'echo begin >> "$1/told"; while [ ! -e "$1/go" ]; do sleep 0.1; done; echo end >> "$1/told"'


class Here:
    """A state directory, and the command as its owner types it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.state = directory, directory / "state"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "XDG_"))}
        self.env = {**kept, "XDG_CONFIG_HOME": str(directory / "config"), "PYTHONUNBUFFERED": "1"}

    def command(self, verb: str, *args: object, state: Path | None = None) -> list[str]:
        words = [sys.executable, "-m", "fairlead", verb, "--state", str(state or self.state), *map(str, args)]
        return [*words, "--port", "0", "--policy", "fifo"] if verb == "up" and "--port" not in args else words

    def fairlead(self, verb: str, *args: object, code: int = 0, state: Path | None = None) -> str:
        """What it prints, to whom it may be."""
        done = subprocess.run(
            self.command(verb, *args, state=state),
            env=self.env,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout}\n{self.log}"
        return done.stdout

    @contextlib.contextmanager
    def foreground(self, *args: object) -> Iterator[subprocess.Popen[str]]:
        server = subprocess.Popen(
            self.command("up", *args),
            env=self.env,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            until(lambda: (self.state / "server.json").exists() or server.poll() is not None)
            assert server.poll() is None, server.communicate()[0]
            yield server
        finally:
            if server.poll() is None:
                server.kill()
            server.communicate()

    @property
    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.state / "server.log").read_text()
        return ""

    @property
    def server(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.state / "server.json").read_text())
        return told

    def call(self, method: str, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {(self.state / 'token').read_text().strip()}"}
        answer = httpx.request(method, self.server["url"] + path, headers=headers, timeout=PATIENCE_S, **options)
        assert answer.is_success, answer.text
        return answer.json() if "json" in answer.headers["content-type"] else answer.text

    def submit(self, *command: str, **fields: Any) -> str:
        (job_id,) = self.call("POST", "/api/v1/jobs", json={"run": list(command), **fields})["ids"]
        return str(job_id)

    def submit_waiting(self, **fields: Any) -> str:
        """A job that runs, and waits."""
        job_id = self.submit("sh", "-c", BEGIN_AND_WAIT, "sh", str(self.directory), **fields)
        until(lambda: self.told == ["begin"])
        return job_id

    @property
    def told(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "told").read_text().split()
        return []

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def is_in(self, job_id: str, state: str) -> None:
        until(lambda: self.call("GET", f"/api/v1/jobs/{job_id}")["state"] == state)

    def clean_up(self) -> None:
        """Nothing of a test survives it, however it went."""
        mark = f"FAIRLEAD_COOKIE={self.state}".encode()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((self.state / "server.lock").read_text().split()[0]), signal.SIGKILL)
        for _ in range(3):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if mark in (process / "environ").read_bytes():
                        os.kill(int(process.name), signal.SIGKILL)


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.clean_up()


# -- a life ------------------------------------------------------------------------------------------------------------


def test_a_server_starts_in_the_background_runs_a_job_and_stops(here: Here) -> None:
    printed = here.fairlead("up", "--detach", "--gpus", "2")
    server = here.server
    assert server["url"] in printed
    assert str(here.state) in printed
    assert f"{server['url']}/login?code=" in printed
    assert "fairlead submit" in printed
    assert os.getsid(server["pid"]) == server["pid"]  # it is nobody's child
    assert "login" not in here.log  # a code in a log outlives its two minutes
    assert here.state.stat().st_mode & 0o777 == 0o700
    for name in ("token", "server.json", "server.log", "fairlead.db"):
        assert (here.state / name).stat().st_mode & 0o777 == 0o600, name

    job_id = here.submit("echo", "hello")
    here.is_in(job_id, "SUCCEEDED")
    assert here.call("GET", f"/api/v1/jobs/{job_id}/logs") == "hello\n"
    login = next(word for word in printed.split() if "/login?code=" in word)
    with httpx.Client() as browser:
        assert browser.get(login).status_code == 200
        assert "page.js" in browser.get(server["url"]).text
    assert httpx.get(login).status_code == 401  # once is once

    assert "has stopped" in here.fairlead("down")
    assert not is_alive(server["pid"])
    assert not (here.state / "server.json").exists()
    assert "nothing runs here" in here.fairlead("down")


@pytest.mark.slow
def test_a_job_survives_the_death_of_the_server_and_ends_once(here: Here) -> None:
    here.fairlead("up", "--detach", "--gpus", "1")
    job_id = here.submit_waiting()
    token, pid = (here.state / "token").read_text(), here.server["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))
    again = f"`fairlead up --state {here.state}` takes it up again"  # although server.json is still there
    assert f"1 job runs on without a server ({here.state}); {again}" in here.fairlead("down")
    findings = {each["name"]: each for each in json.loads(here.fairlead("doctor", "-o", "json"))}
    assert findings["server"]["status"] == "warning"
    assert findings["server"]["text"] == "1 job runs on without a server"
    assert findings["server"]["remedy"] == again

    here.fairlead("up", "--detach", "--gpus", "1")
    assert here.server["pid"] != pid
    assert (here.state / "token").read_text() == token
    here.is_in(job_id, "RUNNING")
    here.let_go()
    here.is_in(job_id, "SUCCEEDED")
    job = here.call("GET", f"/api/v1/jobs/{job_id}")
    assert (job["attempt"], job["failures"], here.told) == (1, 0, ["begin", "end"])
    here.fairlead("down")


@pytest.mark.slow
def test_jobs_run_on_while_there_is_no_server_if_they_are_to_be_kept(here: Here) -> None:
    here.fairlead("up", "--detach", "--gpus", "1")
    job_id = here.submit_waiting()
    assert "jobs run on" in here.fairlead("down", "--keep-jobs")
    assert "1 job runs on" in here.log
    here.let_go()
    until(lambda: here.told == ["begin", "end"])
    here.fairlead("up", "--detach", "--gpus", "1")
    here.is_in(job_id, "SUCCEEDED")
    assert here.call("GET", f"/api/v1/jobs/{job_id}")["attempt"] == 1
    here.fairlead("down")


@pytest.mark.slow
def test_ctrl_c_asks_jobs_to_stop_and_they_go_on_next_time(here: Here) -> None:
    with here.foreground("--gpus", "1") as server:
        job_id = here.submit_waiting()
        server.send_signal(signal.SIGINT)
        printed = server.communicate(timeout=PATIENCE_S)[0]
        assert server.returncode == 0, printed
    assert "asks 1 job to save and stop" in printed
    assert "1 of 1 job stopped" in printed
    assert "/login?code=" in printed
    assert here.told == ["begin"]
    here.let_go()
    here.fairlead("up", "--detach", "--gpus", "1")
    here.is_in(job_id, "SUCCEEDED")
    job = here.call("GET", f"/api/v1/jobs/{job_id}")
    assert (job["attempt"], job["failures"]) == (2, 0)
    here.fairlead("down")


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_jobs_that_take_their_time(here: Here) -> None:
    stubborn = f"trap '' TERM; {BEGIN_AND_WAIT}"
    with here.foreground("--gpus", "1") as server:
        job_id = here.submit("sh", "-c", stubborn, "sh", str(here.directory), grace_period=3600)
        until(lambda: here.told == ["begin"])
        server.send_signal(signal.SIGINT)
        assert server.stdout is not None
        lines: list[str] = []
        while not any("asks 1 job" in line for line in lines):
            lines.append(server.stdout.readline())
        server.send_signal(signal.SIGTERM)  # `fairlead down` from elsewhere changes nothing
        server.send_signal(signal.SIGINT)
        printed = server.communicate(timeout=PATIENCE_S)[0]
        assert server.returncode == 0
    assert "leaves 1 job" in printed
    assert not (here.state / "server.json").exists()
    here.fairlead("up", "--detach", "--gpus", "1")
    here.is_in(job_id, "PREEMPTING")
    here.let_go()
    here.is_in(job_id, "SUCCEEDED")  # at the next attempt, if it was stopped in this one
    here.fairlead("down")


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_told_in_one_line(here: Here) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for detach in ((), ("--detach",)):
            printed = here.fairlead("up", *detach, "--port", port, code=1)
            told = f"error: port {port} on 127.0.0.1 is in use; choose another one with --port, or any free one with"
            assert printed.strip() == f"{told} --port 0"
    assert not (here.state / "server.json").exists()


@pytest.mark.slow
def test_a_second_server_on_the_same_directory_or_database_refuses(here: Here) -> None:
    here.fairlead("up", "--detach", "--gpus", "1")
    first = here.server
    for detach in ((), ("--detach",)):
        printed = here.fairlead("up", *detach, code=1)
        assert printed.startswith(
            f"error: a server (process {first['pid']}) runs on {here.state} already at {first['url']}"
        )
        assert "fairlead down" in printed
    database = f"sqlite:///{here.state}/fairlead.db"
    printed = here.fairlead("up", "--detach", "--database", database, code=1, state=here.directory / "other")
    assert printed.startswith("error: another controller uses database")
    assert here.server == first
    assert here.call("GET", "/readyz") == {"status": "ok"}
    here.fairlead("down")


def test_a_configuration_that_cannot_be_meant_is_told_with_every_problem(here: Here) -> None:
    here.state.mkdir(mode=0o700)
    (here.state / "config.toml").write_text('[server]\nprot = 1\n[scheduler]\npolicy = "fifi"\n')
    printed = here.fairlead("up", "--port", "70000", code=2).splitlines()
    assert [line.split(": ")[1] for line in printed] == [
        f"{here.state}/config.toml:2",
        f"{here.state}/config.toml:4",
        "--port",
    ]
    assert not (here.state / "fairlead.db").exists()


def test_what_is_not_installed_is_told_with_the_remedy(here: Here) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from fairlead.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "up", "--state", str(here.state)],
        env=here.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: fastapi: not installed; install it with: pip install 'fairlead[server]'\n"


def test_to_listen_beyond_this_machine_is_warned_of(here: Here) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        printed = here.fairlead("up", "--host", "0.0.0.0", "--port", other.getsockname()[1], code=1)
    assert printed.startswith("warning: it listens on 0.0.0.0 without TLS")


def test_headers_without_an_end_are_not_taken_in(here: Here) -> None:
    with here.foreground("--gpus", 1):
        host, port = here.server["url"].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10.0) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(64):
                line.sendall(b"x" * 2**16)
            assert line.recv(2**16).startswith(b"HTTP/1.1 431 ")
        assert httpx.get(f"{here.server['url']}/healthz", headers={"X": "x" * 10_000}).status_code == 200


# -- more connections than descriptors ---------------------------------------------------------------------------------


def test_connections_never_take_the_descriptors_that_jobs_need(here: Here) -> None:
    limited = ["sh", "-c", 'ulimit -Sn 128 && ulimit -Hn 240 && exec "$@"', "sh"]
    up = [*limited, *here.command("up", "--detach", "--gpus", "1")]
    subprocess.run(up, env=here.env, cwd=here.directory, capture_output=True, timeout=2 * PATIENCE_S, check=True)
    assert "240 open files are allowed, so that there are at most 80 connections" in here.log
    place = httpx.URL(here.server["url"])
    with contextlib.ExitStack() as open_:
        for _ in range(300):
            half = open_.enter_context(socket.create_connection((place.host, place.port or 0)))
            with contextlib.suppress(OSError):
                half.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        job_id = here.submit("sh", "-c", "ulimit -Sn")
        here.is_in(job_id, "SUCCEEDED")
        assert here.call("GET", f"/api/v1/jobs/{job_id}/logs") == "128\n"  # the server's limit is its own
        assert len(list(Path(f"/proc/{here.server['pid']}/fd").iterdir())) < 160
    here.fairlead("down")
