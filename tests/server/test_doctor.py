"""`fairlead doctor`: it finds what is broken, says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.backends.files import AttemptFiles
from fairlead.backends.processes import COOKIE, cookie_of
from fairlead.cli.doctor import examine_server
from fairlead.cli.main import main
from fairlead.cli.surroundings import OK, PROBLEM, WARNING, Finding
from fairlead.core.messages import Tick
from fairlead.server.auth import digest
from fairlead.server.directory import Directory, Running
from fairlead.server.identity import ClusterFile
from fairlead.server.store import Store, User


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FAIRLEAD_CONFIG", raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """One that a server was on, with three turns in its journal."""
    directory = Directory(tmp_path / "state")
    directory.prepare()
    directory.write_token("fl_secret")
    with Store.open(f"sqlite:///{directory.path}/fairlead.db") as store:
        store.put_user(User("ada", "admin", digest("fl_secret"), 0.0, disabled=False))
        epoch = store.claim(who="a test")
        for at in (1.0, 2.0, 3.0):
            store.write([Tick(at), Tick(at)], {}, epoch=epoch)
    return directory


def found(directory: Directory) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_server(directory, None)}


def test_processes_that_were_left_behind_are_told(directory: Directory) -> None:
    assert "left behind" not in found(directory)
    env = {"PATH": os.environ["PATH"], COOKIE: cookie_of("7", 2, directory.jobs)}
    with subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True) as process:
        finding = found(directory)["left behind"]
        assert process.poll() is None
        process.kill()
    assert finding.status == WARNING
    assert finding.text == f"1 process of jobs whose supervisors were killed (7): {process.pid}"
    assert finding.remedy.startswith("`fairlead up")


def damage(directory: Directory, seq: int) -> None:
    with sqlite3.connect(directory.path / "fairlead.db") as database:
        database.execute("UPDATE journal SET body = replace(body, 'Tick', 'Tock') WHERE seq = ?", (seq,))


def test_before_the_first_start_nothing_is_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--state", str(tmp_path / "none"), "-o", "json"])
    findings = {each["name"]: each for each in json.loads(result.stdout)}
    for name in (
        "versions",
        "server packages",
        "GPUs",
        "state directory",
        "free disk",
        "token",
        "server",
        "open files",
        "control groups",
    ):
        assert findings[name]["status"] != PROBLEM, name
        assert set(findings[name]) == {"name", "status", "text", "remedy"}
    assert "none runs" in findings["server"]["text"]
    assert list(tmp_path.iterdir()) == []


def test_a_sound_server_is_found_sound_and_left_as_it_is(directory: Directory) -> None:
    before = {path.name: path.read_bytes() for path in directory.path.iterdir() if path.name != "fairlead.db-shm"}
    findings = found(directory)
    for name in ("state directory", "database", "journal", "clock against journal", "token", "server", "configuration"):
        assert findings[name].status == OK, findings[name]
    assert "all 6 messages are whole" in findings["journal"].text
    after = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    assert all(after[name] == content for name, content in before.items() if not name.endswith("-wal"))


def test_a_damaged_end_of_the_journal_is_a_warning_and_a_damaged_middle_a_problem(directory: Directory) -> None:
    damage(directory, 6)
    assert found(directory)["journal"].status == WARNING
    assert "puts it aside" in found(directory)["journal"].remedy
    damage(directory, 3)
    journal = found(directory)["journal"]
    assert journal.status == PROBLEM
    assert "message 6 does not match its checksum (and 1 more)" in journal.text


def test_a_damaged_page_is_a_problem(directory: Directory) -> None:
    path = directory.path / "fairlead.db"
    whole = path.read_bytes()
    path.write_bytes(whole[: 4096 * 8] + b"\xff" * 4096 + whole[4096 * 9 :])
    database = found(directory)["database"]
    assert (database.status, database.remedy) == (PROBLEM, "restore a backup, see docs/operating.md")
    assert "fairlead.db is damaged: " in database.text


def test_a_database_of_another_cluster_is_a_problem_with_both_identities(directory: Directory) -> None:
    url = f"sqlite:///{directory.path}/fairlead.db"
    with Store.open(url) as store:
        identity = store.identity()
    directory.write_cluster(ClusterFile("another", "d"))
    with Store.open(url) as store:
        store.settle(directory="e", place="/elsewhere on host")
    database = found(directory)["database"]
    assert database.status == PROBLEM
    assert "another" in database.text
    assert identity in database.text
    assert f"fairlead database adopt --state {directory.path}" in database.remedy
    assert "/elsewhere on host" in database.remedy
    directory.write_cluster(ClusterFile(identity, "e"))
    assert identity in found(directory)["cluster"].text
    (directory.path / "fairlead.db").unlink()
    assert "is not there, or empty" in found(directory)["database"].text


def test_what_others_can_read_is_told(directory: Directory) -> None:
    directory.path.chmod(0o755)
    directory.token.chmod(0o644)
    findings = found(directory)
    assert findings["state directory"].remedy == f"chmod 700 {directory.path}"
    assert findings["token"].status == PROBLEM
    assert "mode 644" in findings["token"].text


def test_another_file_in_the_databases_place_is_told(directory: Directory) -> None:
    for name in ("fairlead.db", "fairlead.db-wal", "fairlead.db-shm"):
        (directory.path / name).unlink(missing_ok=True)
    (directory.path / "fairlead.db").write_bytes(b"no database at all" * 100)
    assert found(directory)["database"].status == PROBLEM


def test_a_mistake_in_the_configuration_is_a_problem(directory: Directory) -> None:
    (directory.path / "config.toml").write_text("[server]\nprot = 1\n")
    result = CliRunner().invoke(main, ["doctor", "--state", str(directory.path)])
    assert result.exit_code == 1
    assert "config.toml:2: [server] has no key 'prot'" in result.stdout


def test_jobs_that_run_on_without_a_server_are_told(directory: Directory) -> None:
    locks = []
    for job_id, attempts in (("3", 2), ("12.0", 1)):
        for number in range(1, attempts + 1):
            files = AttemptFiles(directory.jobs / job_id / f"attempt-{number}")
            files.directory.mkdir(parents=True)
            locks.append(files.lock())  # which its supervisor holds
    server = found(directory)["server"]
    assert (server.status, server.text) == (WARNING, "2 jobs run on without a server")
    assert server.remedy == f"`fairlead up --state {directory.path}` takes them up again"
    result = CliRunner().invoke(main, ["down", "--state", str(directory.path)])
    assert "2 jobs run on without a server" in result.stderr
    for lock in filter(None, locks):
        os.close(lock)
    assert found(directory)["server"].status == OK
    assert "nothing runs here" in CliRunner().invoke(main, ["down", "--state", str(directory.path)]).stderr


def test_the_configuration_is_that_which_the_server_read(directory: Directory, tmp_path: Path) -> None:
    (directory.path / "config.toml").write_text("[server]\nport = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("[server]\nprot = 1\n")
    lock = directory.lock()
    directory.announce(Running(os.getpid(), "http://127.0.0.1:9", 0.0, "1", str(other)))
    assert f"{other}:2: [server] has no key 'prot'" in found(directory)["configuration"].text
    other.write_text("[server]\nport = 2\n")
    assert found(directory)["configuration"].text == f"{other}, as the server read it"
    os.close(lock)
    assert found(directory)["configuration"].text == str(directory.path / "config.toml")


def test_a_server_that_does_not_answer_is_a_problem(directory: Directory) -> None:
    lock = directory.lock()
    assert found(directory)["server"].status == WARNING  # it is only starting
    directory.announce(Running(os.getpid(), "http://127.0.0.1:9", 0.0, "1"))
    server = found(directory)["server"]
    assert server.status == PROBLEM
    assert f"fairlead down --state {directory.path} --keep-jobs" in server.remedy
    os.close(lock)
