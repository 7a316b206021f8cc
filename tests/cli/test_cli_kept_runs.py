"""`fairlead compare` as processes: its workers end with it, and what they finished is there the next time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import fairlead

SOURCE = Path(fairlead.__file__).parents[1]

#: Decides nothing for a minute, unless it is told not to sleep.
SLOW = """
import time
from fairlead.policies.fifo import Fifo

class Slow:
    def plan(self, view):
        time.sleep(SECONDS)
        return Fifo().plan(view)
"""

Run = Callable[..., Result]


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    path = tmp_path / "slow.py"
    path.write_text(SLOW.replace("SECONDS", "600"))
    return path


def compare(trace: Path, slow: Path, cache: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    policies = f"fifo,{slow}:Slow"
    command = [sys.executable, "-m", "fairlead", "compare", str(trace), "--cluster", "1x4", "--policies", policies]
    return subprocess.Popen(
        [*command, "--workers", "2", "-o", "json"],
        env={**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in the background of a script
    )


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def runs_in(cache: Path) -> list[Path]:
    return list((cache / "fairlead" / "runs").glob("*.run"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_comparison_that_is_ended_leaves_no_process_and_loses_no_finished_run(
    trace: Path, slow: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    cache = tmp_path / "cache"
    process = compare(trace, slow, cache)
    try:
        wait_for(lambda: len(runs_in(cache)) == 1, "the run under fifo is kept")
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    wait_for(lambda: not any(map(lives, workers)), "no worker is left", 30)
    if number != signal.SIGKILL:
        assert "1 of 2 runs are done and kept; the same command continues with the rest" in errors
        assert "Traceback" not in errors

    slow.write_text(SLOW.replace("SECONDS", "0"))
    again = compare(trace, slow, cache)
    printed, errors = again.communicate(timeout=60)
    assert again.returncode == 0
    assert errors.startswith("1 of 2 runs was done before; continuing with 1\n")
    assert [row["policy"] for row in json.loads(printed)] == ["fifo", f"{slow}:Slow"]


def test_a_worker_that_dies_is_told_of_and_ends_the_comparison(run: Run, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nclass Deadly:\n    def plan(self, view):\n        os.kill(os.getpid(), 9)\n"
    )
    result = run("compare", trace, "--cluster", "1x4", "--policies", f"{tmp_path}/deadly.py:Deadly")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "deadly.py:Deadly ended by signal 9" in result.stderr


# -- what is found again ---------------------------------------------------------------------------------------------


def test_a_repeated_command_prints_the_same_and_runs_nothing(run: Run, trace: Path) -> None:
    command = ["compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf", "-o", "json"]
    first, second = run(*command), run(*command)
    assert first.stderr == ""
    assert second.stderr == "2 of 2 runs were done before; --no-cache runs them again\n"
    assert first.stdout == second.stdout


def test_a_report_of_kept_runs_is_the_report_of_fresh_ones(run: Run, trace: Path, tmp_path: Path) -> None:
    command = ["compare", trace, "--cluster", "1x4", "--policies", "fifo,tiresias:thresholds=500", "--failures", "9,1"]
    for name in ("one.html", "two.html"):
        assert run(*command, "--report", tmp_path / name).exit_code == 0
    assert (tmp_path / "one.html").read_text() == (tmp_path / "two.html").read_text()


def test_without_a_cache_nothing_is_kept_or_found(run: Run, trace: Path) -> None:
    command = ["compare", trace, "--cluster", "1x4", "--policies", "fifo"]
    assert run(*command, "--no-cache").exit_code == 0
    assert run(*command).stderr == ""
    assert run(*command, "--no-cache").stderr == ""


def test_a_damaged_or_foreign_entry_is_run_again(run: Run, trace: Path, tmp_path: Path) -> None:
    cache = tmp_path / "runs"
    command = ["compare", trace, "--cluster", "1x4", "--policies", "fifo", "--cache-dir", cache, "-o", "csv"]
    good = run(*command).stdout.splitlines()[1].split(",")[:10]
    (entry,) = cache.glob("*.run")
    whole = entry.read_bytes()
    for content in (b"", whole[:-7], b"\x80\x04not a run", whole[:40] + bytes(20) + whole[60:]):
        entry.write_bytes(content)
        result = run(*command)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[1].split(",")[:10] == good
    assert run(*command).stderr.startswith("1 of 1 run was done before")


def test_a_cache_that_cannot_be_written_is_told_of_and_costs_no_result(run: Run, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    result = run(
        "compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf", "--cache-dir", tmp_path / "file" / "below"
    )
    assert result.exit_code == 0
    assert result.stderr.count("note: finished runs are not kept: cannot write to") == 1
