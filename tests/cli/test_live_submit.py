"""Handing in jobs: what is sent, what is printed where, and what is refused before anything is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from live_plane import Live

from fairlead.cli.live.asking import GOES_ALONG, job_options
from fairlead.cli.live.check import check
from fairlead.jobfile import FIELDS

Run = Callable[..., Result]

JOB = "name: bert\nrun: python train.py\ngpus: 1-4\nbatch: 64-1024\nlabels: {team: nlp}\nenv: {LR: '0.1'}\n"


def document(live: Live, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = live.json("status", job_id)["document"]
    return found


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_the_id_stands_alone_on_standard_output(live: Live) -> None:
    result = live.run("submit", "--name", "one", "--", "true")
    assert result.stdout == "1\n"
    told = f"to see its output: fairlead logs --state {live.state('ann')} -f 1"
    assert result.stderr == f"fairlead: submitted job 1 (one); {told}\n"
    assert live.run("submit", "-q", "--", "true").stderr == ""


def test_what_to_type_next_names_the_state_directory_only_if_it_was_named(
    live: Live, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_STATE", str(live.state("ann")))
    assert run("submit", "--", "true").stderr.endswith("to see its output: fairlead logs -f 1\n")
    assert "  fairlead logs 1\n" in run("status", "1").stdout
    assert f"fairlead logs --state {live.state('ann')} 1\n" in live.run("status", "1").stdout


def test_an_array_prints_an_id_for_each(live: Live) -> None:
    result = live.run("submit", "--array", "3", "--", "true")
    assert result.stdout == "1.0\n1.1\n1.2\n"
    assert "submitted 3 jobs, 1.0 to 1.2" in result.stderr
    assert live.run("submit", "-q", "--array", "1,5,7", "--", "true").stdout == "2.1\n2.5\n2.7\n"


def test_the_same_key_submits_one_job(live: Live) -> None:
    first, second = (live.run("submit", "--key", "k", "--deadline", "+6h", "--", "true").stdout for _ in range(2))
    assert first == second == "1\n"
    assert len(live.json("queue")) == 1
    other = live.run("submit", "--key", "k", "--", "false", code=1)
    assert other.stderr.startswith("error: ")


def test_a_deadline_is_answered(live: Live) -> None:
    result = live.run("submit", "--deadline", "+1h", "--time-limit", "30m", "--", "true")
    assert "fairlead: feasible" in result.stderr
    refused = live.run("submit", "--strict", "--deadline", "+10m", "--time-limit", "30m", "--", "true", code=2)
    assert (refused.stdout, "nothing was submitted" in refused.stderr) == ("", True)


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_a_file_is_sent_as_it_says(live: Live, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job_file.parent)
    sent = document(live, live.run("submit", "-q", "--clean-env", job_file).stdout.strip())
    assert sent == {
        "name": "bert",
        "run": "python train.py",
        "workdir": str(job_file.parent),
        "env": {"LR": "0.1"},
        "gpus": "1-4",
        "batch": "64-1024",
        "labels": {"team": "nlp"},
    }


def test_options_win_over_the_file_and_mappings_grow(live: Live, job_file: Path) -> None:
    options = ["--name", "roberta", "--gpus", "auto", "--priority", "-5", "--no-preempt", "--label", "run=2"]
    more = ["--env", "LR=0.2", "--env", "SEED=a=b", "--grace", "2m", "--time-limit", "1h30m", "--gpu-type", "a100"]
    sent = document(live, live.run("submit", "-q", "--clean-env", *options, *more, job_file).stdout.strip())
    assert (sent["name"], sent["gpus"], sent["priority"], sent["preemptible"]) == ("roberta", "auto", -5, False)
    assert sent["labels"] == {"team": "nlp", "run": "2"}
    assert sent["env"] == {"LR": "0.2", "SEED": "a=b"}
    assert (sent["grace_period"], sent["time_limit"], sent["gpu_type"]) == (120, 5400, ["a100"])
    assert sent["batch"] == "64-1024"


def test_a_command_is_sent_word_by_word(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["python", "train.py", "--epochs", "3", "--name", "a b", "--", "$HOME"]
    job_id = live.run("submit", "-q", "--gpus", "2", "--clean-env", "--", *words).stdout.strip()
    assert document(live, job_id) == {"run": words, "gpus": 2, "workdir": str(tmp_path)}


def test_a_file_can_be_standard_input(live: Live) -> None:
    job_id = live.run("submit", "-q", "-", stdin=JOB).stdout.strip()
    assert document(live, job_id)["name"] == "bert"


def test_the_environment_that_finds_programs_goes_along(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOES_ALONG:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/venv/bin:/bin")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    assert document(live, live.submit())["env"] == {"PATH": "/venv/bin:/bin", "VIRTUAL_ENV": "/venv"}
    assert document(live, live.submit("--env", "PATH=/bin"))["env"]["PATH"] == "/bin"
    assert "env" not in document(live, live.submit("--clean-env"))


def test_a_relative_directory_is_below_this_one(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert document(live, live.submit("--workdir", "runs/../data"))["workdir"] == str(tmp_path / "data")
    assert document(live, live.submit("--workdir", "~/data"))["workdir"] == "~/data"


def test_a_secret_comes_from_the_environment_and_is_never_shown(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    job_id = live.submit("--secret", "HF_TOKEN")
    assert document(live, job_id)["secrets"] == {"HF_TOKEN": None}
    row = live.plane.store.job(job_id)
    assert row is not None
    assert row.secrets == {"HF_TOKEN": "hunter2"}


def test_every_field_of_the_job_file_has_an_option() -> None:
    @click.command()
    @job_options
    def command() -> None:
        """A command."""

    options = {param.name for param in command.params}
    assert {field.name for field in FIELDS} - {"run"} <= options


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["submit", "check"])
def test_every_problem_of_a_file_is_told_with_its_place(live: Live, tmp_path: Path, verb: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("run: true\ngpus: 0\nqueue: default\npriorty: 3\n")
    result = live.run(verb, path, code=2)
    first, second = result.stderr.splitlines()
    assert first.startswith(f"{path}:2:7: gpus is '0'; expected")
    assert second.startswith(f"{path}:4:1: there is no field 'priorty'; did you mean 'priority'?")
    assert live.json("queue") == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--gpus", "0", "--", "x"], "error: gpus is '0'; expected a number"),
        (["--"], "error: there is no command after --"),
        ([], "error: there is no job; expected a FILE, or a command after --"),
        (["--env", "LR", "--", "x"], "error: --env is 'LR'; expected KEY=VALUE"),
        (["--secret", "K=hunter2", "--", "x"], "error: --secret takes a name without a value"),
        (["--secret", "NOT_SET", "--", "x"], "error: the secret NOT_SET is not in your environment"),
        (["--array", "1,x", "--", "x"], "error: --array is '1,x'"),
        (["--queue", "vison", "--", "x"], "error: there is no queue 'vison'; did you mean 'vision'?"),
        (["--follow", "--array", "2", "--", "x"], "error: --follow shows one job, and the array has 2"),
        (["no-such-file.yaml"], "error: cannot read no-such-file.yaml: No such file"),
        (["true"], "a command comes after --, as in: fairlead submit -- python train.py"),
        (["python", "train.py"], "extra argument (train.py). A command comes after --, as in: fairlead submit"),
        (["python", "--epochs", "3"], "A command comes after --, as in: fairlead submit -- python train.py"),
        (["job.yaml", "--", "x"], "error: both the file job.yaml and a command after -- are given"),
    ],
)
def test_what_cannot_be_meant_is_refused(live: Live, args: list[str], told: str) -> None:
    result = live.run("submit", *args, code=2)
    assert told in result.stderr
    assert "hunter2" not in result.stderr
    assert (result.stdout, live.json("queue")) == ("", [])


def test_a_file_that_is_no_text_is_refused(live: Live, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"run: \xff\n")
    assert "is no text: byte 6 is not UTF-8" in live.run("submit", tmp_path / "job.yaml", code=2).stderr


# -- check -------------------------------------------------------------------------------------------------------------


def test_a_check_submits_nothing_and_says_when_it_would_run(live: Live, job_file: Path) -> None:
    result = live.run("check", job_file)
    assert result.stdout.splitlines()[0] == "the job is valid"
    assert result.stdout.splitlines()[1].startswith("starts now")
    assert "an array of 3" in live.run("check", "--array", "3", "--", "true").stdout
    told = live.json("check", "--deadline", "+1m", "--time-limit", "30m", "--", "true")
    assert told["answer"]["verdict"] == "infeasible"
    assert live.json("queue") == []


def test_a_check_without_a_server_checks_the_file(run: Run, job_file: Path, tmp_path: Path) -> None:
    result = run("check", job_file, "--state", tmp_path / "nobody")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "fairlead: the job is valid; what would come of it is not known, as no Fairlead server runs" in result.stderr
    job_file.write_text("run: true\ngpus: many\n")
    assert run("check", job_file, "--state", tmp_path / "nobody").exit_code == 2


def test_the_schema_is_printed_without_a_server(run: Run) -> None:
    assert json.loads(run("check", "--schema").stdout)["properties"].keys() == {field.name for field in FIELDS}
    assert check.help is not None


# -- what is no file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("zero", "/dev/zero is a device; expected a regular file, or - for standard input"),
        ("pipe", "is a pipe; expected a regular file, or - for standard input"),
        ("directory", "Is a directory"),
        ("large", "is larger than 1048576 bytes; a job file is a page of text"),
        ("input", "standard input is larger than 1048576 bytes"),
    ],
)
def test_what_has_no_end_or_is_too_large_is_refused_at_once(tmp_path: Path, kind: str, told: str) -> None:
    file = tmp_path / "job"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "large":
        with file.open("wb") as sparse:
            sparse.truncate(5 * 2**30)
    name = {"zero": "/dev/zero", "input": "-"}.get(kind, str(file))
    command = [sys.executable, "-m", "fairlead", "submit", "--state", str(tmp_path / "state"), name]
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(command, stdin=endless, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_file_can_be_what_another_command_prints(live: Live) -> None:
    """As by `fairlead submit <(make-job)` of bash."""
    reading, writing = os.pipe()
    os.write(writing, b"run: from a pipe\n")
    os.close(writing)
    live.run("submit", f"/dev/fd/{reading}")
    os.close(reading)
    assert document(live, "1")["run"] == "from a pipe"
