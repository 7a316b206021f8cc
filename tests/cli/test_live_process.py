"""The live verbs as processes of their own: Ctrl-C, terminals, restarts, and no server at all."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import click
import pytest
from click.testing import Result
from live_plane import Live, serving

import fairlead
from fairlead.cli.explain import _OF_A_TRACE, asks_of_a_trace, way_of
from fairlead.cli.main import ALIASES, SECTIONS, VERBS

SOURCE = Path(fairlead.__file__).parents[1]
PATIENCE_S = 30.0

Run = Callable[..., Result]


def environment(live: Live, user: str = "ann", **more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    known = {"PYTHONPATH": path, "FAIRLEAD_URL": live.url, "FAIRLEAD_TOKEN": live.plane.tokens[user]}
    return {**os.environ, **known, "PYTHONUNBUFFERED": "1", **more}


def start(live: Live, *args: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fairlead", *args],
        env=environment(live, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stdout, stderr


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_waiting_and_not_the_job(live: Live) -> None:
    job_id = live.submit()
    live.controller.runs(job_id)
    live.plane.write_log(job_id, b"hello\n")
    process = start(live, "logs", "-f", job_id)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello\n"
    code, _, stderr = interrupted(process)
    assert (code, stderr) == (130, f"fairlead: job {job_id} goes on; to end it: fairlead cancel {job_id}\n")
    assert live.run("status", "-q", job_id).stdout == "RUNNING\n"


def test_a_submission_that_is_followed_prints_the_output_and_ends_as_the_job_did(live: Live) -> None:
    process = start(live, "submit", "-f", "--", "python", "train.py")
    live.controller.runs("1")
    live.plane.write_log("1", b"hello\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "hello\n"
    live.controller.exits("1", 7)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (7, "")
    assert stderr.startswith("fairlead: submitted job 1\nfairlead: job 1 FAILED after")


def test_a_submission_that_is_waited_for_prints_the_id_at_once(live: Live) -> None:
    process = start(live, "submit", "--wait", "--", "true")
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    live.controller.exits("1")
    assert process.wait(PATIENCE_S) == 0
    process.communicate()


def test_what_is_watched_without_a_terminal_is_appended(live: Live) -> None:
    live.submit()
    process = start(live, "queue", "--watch", "--no-headers")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    code, _, stderr = interrupted(process)
    assert [line.split()[0] for line in lines] == ["1", "1"]
    assert (code, stderr) == (130, "")


def test_changes_are_followed_until_ctrl_c(live: Live) -> None:
    process = start(live, "events", "-f")
    assert process.stdout is not None
    live.submit()
    line = process.stdout.readline()
    assert re.search(r"job 1: (PENDING|RUNNING|STARTING|ann submitted it)", line)
    assert interrupted(process)[0] == 130


# -- a server that goes away -------------------------------------------------------------------------------------------


def test_following_lives_through_a_restart_of_the_server(tmp_path: Path) -> None:
    """On another port: the address in the state directory is read again, and the output goes on where it was."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with serving(tmp_path / "one") as live:
        job_id, state = live.submit(), live.state("ann")
        live.plane.write_log(job_id, b"before\n")
        known = {name: value for name, value in environment(live).items() if not name.startswith("FAIRLEAD_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "logs", "-f", job_id, "--state", str(state)],
            env=known,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "before\n"
    (state / "server.json").unlink()
    with serving(tmp_path / "two") as other:
        assert other.submit() == job_id
        other.plane.write_log(job_id, b"before\nafter\n")
        other.controller.exits(job_id, 5)
        (state / "token").write_text(other.plane.tokens["ann"])
        (state / "server.json").write_text(f'{{"url": "{other.url}"}}')
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (5, "after\n"), stderr
    assert f"job {job_id} FAILED" in stderr


@pytest.mark.parametrize("args", [["queue"], ["submit", "--", "true"], ["logs", "-f", "1"], ["top"], ["explain", "1"]])
def test_without_a_server_one_is_told_how_to_start_one(run: Run, tmp_path: Path, args: list[str]) -> None:
    result = run(args[0], "--state", tmp_path, *args[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: no Fairlead server runs here; start one with: fairlead up --state {tmp_path}\n"


def test_a_token_that_others_can_read_is_refused(live: Live) -> None:
    state = live.state("ann")
    (state / "token").chmod(0o644)
    process = start(live, "queue", "--state", str(state))
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "can be read by others (mode 644)" in stderr


# -- terminals ---------------------------------------------------------------------------------------------------------


class Terminal:
    """A process on a terminal of its own, of 120 columns."""

    def __init__(self, live: Live, *args: str, **more: str) -> None:
        self._handle, theirs = pty.openpty()
        known = environment(live, TERM="xterm-256color", COLUMNS="120", LINES="30", **more)
        if "NO_COLOR" not in more:
            known.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fairlead", *args], env=known, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.seen = ""

    def until(self, text: str | None) -> str:
        """Read until it shows this, or until it ends."""
        ends_at = time.monotonic() + PATIENCE_S
        while text is None or text not in self.seen:
            assert time.monotonic() < ends_at, self.seen[-2000:]
            if not select.select([self._handle], [], [], 0.2)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                piece = os.read(self._handle, 65536)
            except OSError:  # how a terminal says that nobody is there any more
                break
            self.seen += piece.decode("utf-8", "replace")
        return self.seen

    def type(self, keys: str) -> None:
        os.write(self._handle, keys.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        self.until(None)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._handle)


@pytest.mark.parametrize(("leave", "code"), [(lambda it: it.type("q"), 0), (Terminal.interrupt, 130)], ids=["q", "^C"])
def test_top_redraws_until_it_is_left(live: Live, leave: Callable[[Terminal], None], code: int) -> None:
    live.submit("--name", "first")
    with Terminal(live, "top") as terminal:
        terminal.until("first")
        live.submit("--name", "second")
        terminal.until("second")
        leave(terminal)
        assert terminal.end() == code
    assert "Traceback" not in terminal.seen
    assert live.json("status", "1")["state"] == "RUNNING"


def test_a_terminal_gets_bars_and_colours_unless_it_wants_none(live: Live) -> None:
    live.submit()
    live.controller.reports("1", 0.5)
    with Terminal(live, "queue") as coloured, Terminal(live, "queue", NO_COLOR="1") as plain:
        assert (coloured.end(), plain.end()) == (0, 0)
    assert "\x1b[32mRUNNING" in coloured.seen
    assert "████" in coloured.seen
    assert "\x1b[32m" not in plain.seen


def test_a_watched_queue_is_drawn_over(live: Live) -> None:
    live.submit("--name", "first")
    with Terminal(live, "queue", "--watch") as terminal:
        terminal.until("first")
        live.submit("--name", "second")
        terminal.until("second")
        terminal.interrupt()
        assert terminal.end() == 130


def test_a_secret_can_be_typed_and_is_not_shown(live: Live) -> None:
    with Terminal(live, "submit", "--secret", "NOT_IN_THE_ENVIRONMENT", "--", "true") as terminal:
        terminal.until("NOT_IN_THE_ENVIRONMENT")
        time.sleep(0.2)  # the echo is switched off after the prompt
        terminal.type("hunter2\n")
        assert terminal.end() == 0
    assert "hunter2" not in terminal.seen
    row = live.plane.store.job("1")
    assert row is not None
    assert row.secrets == {"NOT_IN_THE_ENVIRONMENT": "hunter2"}


def test_what_a_terminal_cannot_show_is_no_reason_to_stop(live: Live) -> None:
    live.submit("--name", "größe")
    live.plane.write_log("1", "größe\n".encode())
    for args in (["queue"], ["status", "1"], ["top"], ["logs", "1"]):
        process = start(live, *args, PYTHONIOENCODING="ascii")
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, stderr) == (0, "")
        assert "gr" in stdout


# -- completion --------------------------------------------------------------------------------------------------------


def completed(live: Live, words: str, **more: str) -> list[str]:
    count = str(len(words.split()) - (not words.endswith(" ")))
    known = environment(live, _FAIRLEAD_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count, **more)
    code = "import sys; sys.argv[0] = 'fairlead'; from fairlead.cli.main import main; main(prog_name='fairlead')"
    done = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_shells_complete_verbs_options_and_job_ids(live: Live) -> None:
    live.submit()
    live.submit()
    assert completed(live, "fairlead sta") == ["status"]
    assert completed(live, "fairlead cancel ") == ["2", "1"]
    assert completed(live, "fairlead cancel 2 ") == ["1"]
    assert completed(live, "fairlead explain ") == ["2", "1"]
    assert "--follow" in completed(live, "fairlead logs --f")


def test_completion_fails_silently(live: Live) -> None:
    assert completed(live, "fairlead cancel ", FAIRLEAD_TOKEN="wrong") == []
    assert completed(live, "fairlead cancel ", FAIRLEAD_URL="http://127.0.0.1:9") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(run: Run, shell: str) -> None:
    assert "_FAIRLEAD_COMPLETE" in run("completion", shell).stdout


# -- verbs -------------------------------------------------------------------------------------------------------------


def test_other_words_for_verbs_are_known_and_wrong_ones_are_not(run: Run) -> None:
    assert set(ALIASES.values()) <= set(VERBS)
    assert run("ls", "--help").stdout.startswith("Usage: fairlead ls")
    assert "did you mean 'submit'?" in run("sumbit").stderr


def test_every_verb_stands_in_one_section() -> None:
    verbs = [verb for section in SECTIONS.values() for verb in section]
    assert sorted(verbs) == sorted(set(verbs)) == sorted(VERBS)


def test_explain_tells_a_job_from_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text("")
    assert asks_of_a_trace(["jobs.csv"])
    assert asks_of_a_trace(["missing.csv", "--cluster", "2x4"])
    assert asks_of_a_trace(["missing.csv", "--at=10m"])
    assert not asks_of_a_trace(["12"])
    assert not asks_of_a_trace(["12", "--state", str(tmp_path), "-o", "json"])


@pytest.mark.parametrize("what", ["job", "trace"])
def test_both_ways_to_explain_have_help_for_every_option(run: Run, what: str) -> None:
    options = [param for param in way_of(what).params if isinstance(param, click.Option)]
    assert all(option.help for option in options)
    text = run("explain", "--help").stdout
    assert all(option.opts[-1] in text for option in options)


def test_every_option_of_a_replay_means_a_trace() -> None:
    of_a_job = {name for param in way_of("job").params for name in param.opts}
    of_a_trace = {name for param in way_of("trace").params if isinstance(param, click.Option) for name in param.opts}
    assert of_a_trace - of_a_job == set(_OF_A_TRACE)
