"""Backup, restore and the move to PostgreSQL, with the commands as docs/operating.md prints them, and real servers."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_running import PATIENCE_S, Here, is_alive, until

if TYPE_CHECKING:
    from postgres import Server

MANUAL = Path(__file__).parents[2] / "docs" / "operating.md"


def printed_commands(beginning: str) -> str:
    """The one block of the manual that begins with these words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", MANUAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(beginning)]
    return str(found)


BACKUP, RESTORE = printed_commands("sqlite3 "), printed_commands("fairlead down --keep-jobs\ncp ")
DUMP, PG_RESTORE = printed_commands("pg_dump "), printed_commands("fairlead down --keep-jobs\npg_restore ")
MOVE, NEW_CLUSTER = printed_commands("createdb -h "), printed_commands("fairlead database adopt --end-jobs")


class Home(Here):
    """An account with the default state directory, where the manual's commands mean what they say."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.state = directory / ".local" / "state" / "fairlead"
        (directory / "backup").mkdir()
        binaries = directory / "bin"
        binaries.mkdir()
        (binaries / "fairlead").write_text(f'#!/bin/sh\nexec {sys.executable} -m fairlead "$@"\n')
        (binaries / "fairlead").chmod(0o755)
        self.env |= {
            "HOME": str(directory),
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "FAIRLEAD_SERVER_PORT": "0",
            "FAIRLEAD_CLUSTER_GPUS": "1",
            "FAIRLEAD_SCHEDULER_POLICY": "fifo",
        }

    def run(self, commands: str, *, code: int = 0, **env: str) -> str:
        """Commands of the manual, where /backup and the host of its examples are here."""
        script = commands.replace("/backup/", f"{self.directory}/backup/").replace("db.example.org", "127.0.0.1")
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            env={**self.env, **env},
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

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/v1/jobs/{job_id}")
        return found

    def says(self, words: str, **fields: Any) -> str:
        """A job that says something into its log and ends."""
        job_id = self.submit("sh", "-c", f"echo {words}", **fields)
        self.is_in(job_id, "SUCCEEDED")
        return job_id

    def logs(self, job_id: str) -> str:
        return str(self.call("GET", f"/api/v1/jobs/{job_id}/logs"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean_up()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


@pytest.mark.slow
def test_an_older_backup_is_restored_as_the_manual_says(home: Home) -> None:
    needs("sqlite3")
    home.run("fairlead up --detach")
    first = home.says("first")
    running = home.submit_waiting()
    waits = [home.submit("sh", "-c", f"echo {words} >> {home.directory}/ran") for words in ("second", "third")]
    home.run(BACKUP)
    home.let_go()
    for job_id in (running, *waits):  # one after the other: there is one GPU
        home.is_in(job_id, "SUCCEEDED")
    late = home.says("late")
    lost = home.submit("sh", "-c", f"echo $$ > {home.directory}/pid; exec sleep 1000")
    never_started = home.submit("true")
    until(lambda: (home.directory / "pid").exists() and (home.directory / "pid").read_text().strip())
    pid = int((home.directory / "pid").read_text())

    told = home.run(RESTORE)
    assert f"knows jobs up to {waits[-1]}, but numbers up to {never_started} were given" in told
    assert f"job {lost}, attempt 1, runs here, but the database does not know that: it was asked to save" in told
    assert not is_alive(pid)

    for job_id in (running, *waits):  # what they did meanwhile counts, and is not done again
        home.is_in(job_id, "SUCCEEDED")
    assert home.told == ["begin", "end"]
    assert (home.directory / "ran").read_text().split() == ["second", "third"]
    assert home.logs(first) == "first\n"
    new = home.says("new")
    assert int(new) == int(never_started) + 1
    assert home.logs(new) == "new\n"
    assert (home.state / "jobs" / late / "attempt-1" / "logs" / "rank-0.log").read_text() == "late\n"
    assert "warning" not in home.run("fairlead down; fairlead up --detach")  # it was told once
    home.run("fairlead down")


@pytest.mark.slow
def test_a_lost_database_is_no_new_cluster_unless_that_is_said(home: Home) -> None:
    home.run("fairlead up --detach")
    old = home.says("secret")
    home.run("fairlead down")
    for leave in (lambda path: path.unlink(), lambda path: path.write_bytes(b"")):
        leave(home.state / "fairlead.db")
        told = home.run("fairlead up --detach", code=1)
        assert "fairlead.db is not there, or empty, but state directory" in told
        assert "fairlead database adopt" in told

    other = home.directory / "other.db"
    told = home.run(f"fairlead up --detach --database sqlite:///{other}", code=1)
    assert f"database {other} is not there" in told
    assert not other.exists()

    told = home.run(NEW_CLUSTER)
    assert f"put aside: {home.state}/jobs-aside-1" in told
    new = home.says("mine")
    assert int(new) == int(old) + 1
    assert home.logs(new) == "mine\n"
    home.run("fairlead down")


@pytest.mark.slow
def test_a_cluster_from_before_there_were_identities_is_upgraded_while_its_jobs_run(home: Home) -> None:
    home.run("fairlead up --detach")
    first = home.says("first")
    running = home.submit_waiting()
    home.run("fairlead down --keep-jobs")
    with sqlite3.connect(home.state / "fairlead.db") as database:
        database.execute("DROP TABLE cluster")
        database.execute("ALTER TABLE jobs DROP COLUMN submission")
        database.execute("UPDATE alembic_version SET version_num = '001'")
    database.close()
    for path in [home.state / "cluster.json", home.state / "job-number", *home.state.rglob("identity.json")]:
        path.unlink()

    assert "warning" not in home.run("fairlead up --detach")
    home.let_go()
    home.is_in(running, "SUCCEEDED")
    assert home.told == ["begin", "end"]
    assert home.logs(first) == "first\n"
    assert home.says("new") == str(int(running) + 1)
    home.run("fairlead down")


@pytest.mark.slow
def test_a_cluster_moves_to_postgresql_and_is_restored_there(home: Home, postgres: Server) -> None:
    needs("pg_dump")
    port = str(postgres.port)
    url = "postgresql://fairlead@127.0.0.1/fairlead"
    home.run("fairlead up --detach")
    first = home.says("first", name="a")
    running = home.submit_waiting()
    try:
        told = home.run(MOVE, PGPORT=port)
        assert "copied 2 jobs" in told
        assert "warning" not in told
        assert home.logs(first) == "first\n"
        home.run(DUMP, PGPORT=port)
        home.let_go()
        home.is_in(running, "SUCCEEDED")
        late = home.says("late")

        told = home.run(PG_RESTORE, PGPORT=port)
        assert f"knows jobs up to {running}, but numbers up to {late} were given" in told
        home.is_in(running, "SUCCEEDED")
        assert home.told == ["begin", "end"]
        assert int(home.says("new")) == int(late) + 1
        home.run("fairlead down")

        told = home.run("fairlead up --detach", code=1)  # the file that it was moved from is still there
        assert "the state directory was last used with postgresql" in told
        told = home.run(f"fairlead up --detach --state {home.directory}/fresh --database {url}", code=1, PGPORT=port)
        assert "belongs to no cluster yet, and database postgresql" in told
    finally:
        home.fairlead("down")
        postgres.drop_database("fairlead")
