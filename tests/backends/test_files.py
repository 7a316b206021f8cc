"""Two files that only grow: lines are read whole, in order and once, whoever is killed while it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import ended

from fairlead.backends.files import Appender, AttemptFiles, Tail
from fairlead.backends.regular_file import write_whole


def read(tail: Tail) -> list[object]:
    return [line["n"] for line, _ in tail.read()]


def test_a_tail_reads_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    assert read(tail) == []
    path.write_bytes(b'{"n":1}\n{"n":2}\n')
    assert tail.read() == [({"n": 1}, 8), ({"n": 2}, 16)]
    assert read(tail) == []
    with path.open("ab") as file:
        file.write(b'{"n":3}\n')
    assert read(Tail(path, 16)) == [3]
    assert read(tail) == [3]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = Tail(path)
    path.write_bytes(b'{"n":1}\n{"n"')
    assert read(tail) == [1]
    assert read(tail) == []
    with path.open("ab") as file:
        file.write(b":2}\n")
    assert read(tail) == [2]


@pytest.mark.parametrize(
    "garbage", [b"half", b"\xff\x00", b"[1]", b"7", b"", b"null", b"\r", b'{"n":', b"[" * 100_000, b'{"n":0}\r{"n":0}']
)
def test_what_is_no_object_is_passed_over_and_counted(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n' + garbage + b'\n{"n":2}\n')
    tail = Tail(path)
    assert read(tail) == [1, 2]
    assert tail.position == path.stat().st_size


def test_of_a_file_that_became_shorter_nothing_is_read_twice(tmp_path: Path) -> None:
    """As when a line was written but could not be made safe: it is taken back, and written again later."""
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n{"n":2}\n')
    tail = Tail(path)
    assert read(tail) == [1, 2]
    os.truncate(path, 8)
    assert read(tail) == []
    with path.open("ab") as file:
        file.write(b'{"n":2}\n{"n":3}\n')
    assert read(tail) == [3]


def test_an_appender_ends_the_half_line_of_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n":1}\n{"n":2')
    appender = Appender(path)
    appender.append({"n": 3})
    appender.append({"n": 4})
    assert path.read_bytes() == b'{"n":1}\n{"n":2\n{"n":3}\n{"n":4}\n'
    assert read(Tail(path)) == [1, 3, 4]


def test_what_is_no_json_is_refused_and_what_follows_is_not_harmed(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "lines")
    with pytest.raises(ValueError, match="JSON compliant"):
        appender.append({"n": float("nan")})
    assert appender.append({"n": 1})
    assert read(Tail(tmp_path / "lines")) == [1]


def test_an_appender_makes_no_file_before_there_is_something_to_say(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "lines")
    assert appender.flush()
    appender.close()
    assert list(tmp_path.iterdir()) == []


def test_many_threads_may_append_and_flush(tmp_path: Path) -> None:
    appender = Appender(tmp_path / "lines")

    def append(first: int) -> None:
        for n in range(first, first + 50):
            appender.append({"n": n})
            appender.flush()

    threads = [threading.Thread(target=append, args=(place * 50,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(Tail(tmp_path / "lines"))
    assert sorted(found) == list(range(200))
    assert all([n for n in found if n // 50 == place] == list(range(place * 50, place * 50 + 50)) for place in range(4))


def test_one_that_was_killed_at_any_time_leaves_whole_lines_and_at_most_one_half(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    script = (
        "import sys; from pathlib import Path; from fairlead.backends.files import Appender\n"
        "appender = Appender(Path(sys.argv[1]))\n"
        "for n in range(10**9): appender.append({'n': n, 'x': 'x' * 500})"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)]) as writer:
        assert ended(lambda: path.exists() and path.stat().st_size > 20_000)
        writer.kill()
    Appender(path).append({"n": -1})
    found = read(Tail(path))
    assert found == [*range(len(found) - 1), -1]


#: A whole line is appended; part of a line is written by one that is killed then; or somebody reads.
ACTIONS = st.lists(
    st.one_of(st.just("append"), st.integers(1, 60), st.just("read"), st.just("reopen")),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(ACTIONS)
def test_whatever_is_written_when_whole_lines_are_read_once_and_in_order(actions: list[str | int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines"
        appender, tail = Appender(path), Tail(path)
        written: list[object] = []
        found: list[object] = []
        for action in actions:
            if action == "append":
                written.append(len(written))
                assert appender.append({"n": written[-1], "text": "two\nlines \r and é"})
            elif action == "read":
                found += read(tail)
            elif action == "reopen":
                tail = Tail(path, tail.position)
            else:
                whole = json.dumps({"n": "killed", "text": "x" * 60}).encode()
                with path.open("ab") as file:
                    file.write(whole[: int(action)])
                appender.close()
                appender = Appender(path)
        found += read(tail)
        appender.append({"n": "last"})
        found += read(tail)
        appender.close()
        assert found == [*written, "last"]


# -- a full disk ---------------------------------------------------------------------------------------------------


def fill(disk: Path) -> Path:
    """To the last byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


def test_on_a_full_disk_lines_wait_in_order_and_none_is_halved(small_disk: Path) -> None:
    path, why = small_disk / "lines", list[str]()
    appender, tail = Appender(path, on_full=why.append), Tail(path)
    assert appender.append({"n": 0})
    filler = fill(small_disk)
    told = 1
    while appender.append({"n": told, "x": "x" * 100}):
        told += 1
    for n in range(told + 1, told + 5):
        assert not appender.append({"n": n})
    assert set(why) == {"No space left on device"}
    assert path.read_bytes().endswith(b"\n")
    assert read(tail) == list(range(told))
    assert not appender.flush()
    filler.unlink()
    assert appender.flush()
    assert read(tail) == list(range(told, told + 5))
    appender.close()


def test_a_file_that_cannot_be_made_yet_is_made_later(small_disk: Path) -> None:
    fill(small_disk)
    path = small_disk / "lines"
    appender = Appender(path)
    assert not appender.append({"n": 1})
    (small_disk / "filler").unlink()
    assert appender.append({"n": 2})
    assert read(Tail(path)) == [1, 2]
    appender.close()


def test_a_half_line_is_ended_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "lines"
    path.write_bytes(b"x" * 4096)
    filler = fill(small_disk)
    appender = Appender(path)
    assert not appender.append({"n": 1})
    assert path.stat().st_size == 4096
    filler.unlink()
    assert appender.flush()
    assert read(Tail(path)) == [1]
    appender.close()


def test_a_file_is_written_as_a_whole_or_stays_as_it_was(small_disk: Path) -> None:
    path = small_disk / "notice.json"
    write_whole(path, "before")
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "x" * 10_000)
    assert path.read_text() == "before"
    assert sorted(small_disk.iterdir()) == [small_disk / "filler", path]


# -- locks ---------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_until_everybody_who_has_it_is_gone(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    assert not files.is_alive
    assert not (tmp_path / "lock").exists()  # to look makes nothing
    handle = files.lock()
    assert handle is not None
    assert files.is_alive
    assert files.lock() is None
    copy = os.dup(handle)
    os.close(handle)
    assert files.is_alive
    os.close(copy)
    assert not files.is_alive


def test_who_means_to_keep_the_lock_is_not_put_off_by_one_who_looks(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    held = files.lock()
    assert held is not None
    threading.Timer(0.2, os.close, (held,)).start()
    handle = files.lock(within_s=60.0)
    assert handle is not None
    os.close(handle)
