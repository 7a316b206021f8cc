"""The state directory: it is its owner's alone, one server has it, and nothing is written through a link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.server.directory import LONGEST_LOG, AlreadyRuns, Directory, Running

#: Holds the lock of a directory until its input ends.
HOLD = """
import sys
from pathlib import Path
from fairlead.server.directory import Directory
Directory(Path(sys.argv[1])).lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path / "a" / "state")
    directory.prepare()
    return directory


def test_it_is_made_for_its_owner_alone(directory: Directory) -> None:
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert list(directory.path.iterdir()) == []


def test_one_that_is_open_to_others_is_closed_if_it_is_ours(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "fairlead.db-wal").touch()
    tmp_path.chmod(0o755)
    Directory(tmp_path).prepare()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_one_with_other_things_in_it_is_refused_unless_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidSpec, match=r"mode 755.*thesis\.tex.*chmod 700"):
        Directory(tmp_path).prepare()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o700)
    Directory(tmp_path).prepare()


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSpec, match="is a file"):
        Directory(tmp_path / "file").prepare()
    with pytest.raises(BackendError, match="cannot be written: Not a directory"):
        Directory(tmp_path / "file" / "below").prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_one_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(BackendError, match=r"belongs to .*choose another one with --state"):
        Directory(tmp_path).prepare()
    os.chown(tmp_path, 0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_one_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BackendError, match="cannot be written: Permission denied"):
        Directory(tmp_path).prepare()
    tmp_path.chmod(0o700)


# -- who runs --


def test_nobody_runs_where_nobody_holds_the_lock(directory: Directory) -> None:
    assert directory.running() is None
    directory.announce(Running(os.getpid(), "http://127.0.0.1:1", 0.0, "1"))
    assert directory.running() is None  # of one that was killed, even if its number was given again


def test_one_server_has_it_for_as_long_as_it_lives(directory: Directory) -> None:
    command = [sys.executable, "-c", HOLD, str(directory.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert directory.running() == Running(other.pid)
        directory.announce(Running(other.pid, "http://127.0.0.1:1", 2.0, "3"))
        assert directory.running() == Running(other.pid, "http://127.0.0.1:1", 2.0, "3")
        with pytest.raises(AlreadyRuns, match=rf"process {other.pid}.*at http://127.0.0.1:1.*fairlead down"):
            directory.lock()
        other.stdin.close()
    assert directory.running() is None
    os.close(directory.lock())


def test_what_server_json_says_of_another_process_counts_for_nothing(directory: Directory) -> None:
    lock = directory.lock()
    for text in ("", "[]", '{"pid": "x"}', json.dumps({"pid": 1, "url": "http://h", "started_at": 0, "version": ""})):
        directory.server.write_text(text)
        assert directory.running() == Running(os.getpid())
    os.close(lock)


def test_a_server_that_cannot_be_seen_from_here_is_told(directory: Directory) -> None:
    lock = directory.lock()
    os.pwrite(lock, b"1 99999999999\n", 0)
    with pytest.raises(BackendError, match="another machine or in a container"):
        directory.running()
    os.close(lock)


def test_server_json_is_replaced_as_a_whole_and_never_written_through_a_link(directory: Directory) -> None:
    elsewhere = directory.path.parent / "elsewhere"
    elsewhere.write_text("mine")
    directory.server.symlink_to(elsewhere)
    directory.announce(Running(1, "http://127.0.0.1:1", 2.0, "3"))
    assert elsewhere.read_text() == "mine"
    assert not directory.server.is_symlink()
    assert directory.server.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in directory.path.iterdir()] == ["server.json"]
    directory.withdraw()
    directory.withdraw()
    assert not directory.server.exists()


# -- the token --


def test_a_token_is_read_as_it_was_written_and_by_nobody_else(directory: Directory) -> None:
    assert directory.read_token() is None
    directory.write_token("fl_secret")
    assert directory.read_token() == "fl_secret"
    assert directory.token.stat().st_mode & 0o777 == 0o600


def test_a_token_that_others_may_know_is_refused(directory: Directory) -> None:
    directory.write_token("fl_secret")
    directory.token.chmod(0o644)
    with pytest.raises(BackendError, match=r"may be known to others.*mode 644.*remove it"):
        directory.read_token()


def test_a_token_behind_a_link_is_refused(directory: Directory) -> None:
    elsewhere = directory.path.parent / "elsewhere"
    elsewhere.write_text("fl_theirs")
    elsewhere.chmod(0o600)
    directory.token.symlink_to(elsewhere)
    with pytest.raises(BackendError, match="it is a link"):
        directory.read_token()


# -- the log --


def test_a_long_log_is_put_aside_once(directory: Directory) -> None:
    directory.log.write_bytes(b"x")
    os.truncate(directory.log, LONGEST_LOG + 1)
    handle = directory.open_log()
    os.write(handle, b"new")
    os.close(handle)
    assert directory.log.read_bytes() == b"new"
    assert (directory.path / "server.log.1").stat().st_size == LONGEST_LOG + 1
