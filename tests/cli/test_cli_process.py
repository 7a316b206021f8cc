"""The command as a process of its own: streams, exit codes, and what it costs to ask for help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead
from fairlead.sim.traces import read_trace

SOURCE = Path(fairlead.__file__).parents[1]


def fairlead_process(*args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "fairlead", *(str(arg) for arg in args)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=120)


def test_from_nothing_to_a_comparison(tmp_path: Path) -> None:
    made_of = ["--jobs", 40, "--gpus", 8, "--sizes", "1:0.8,4:0.2", "--seed", 5]
    generated = fairlead_process("trace", "generate", "jobs.csv", *made_of, cwd=tmp_path)
    assert (generated.returncode, generated.stderr) == (0, "")
    assert len(read_trace(tmp_path / "jobs.csv").jobs) == 40
    described = fairlead_process("trace", "describe", "jobs.csv", "--cluster-gpus", 8, "-o", "json", cwd=tmp_path)
    assert json.loads(described.stdout)["jobs"] == 40
    options = ["--cluster", "2x4", "--policies", "fifo,easy,tiresias", "-o", "json", "--report", "report.html"]
    compared = fairlead_process("compare", "jobs.csv", *options, cwd=tmp_path)
    assert (compared.returncode, compared.stderr) == (0, "report: report.html\n")
    rows = json.loads(compared.stdout)
    assert [(row["policy"], row["jobs"], row["unfinished"]) for row in rows] == [
        ("fifo", 40, 0),
        ("easy", 40, 0),
        ("tiresias", 40, 0),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.csv", "report.html"]


def test_simulate_prints_nothing_but_json_and_writes_the_same_journal_twice(trace: Path, tmp_path: Path) -> None:
    """Two processes hash strings differently; nothing may depend on that."""
    options = ["--cluster", "2x4", "--policy", "tiresias:thresholds=500", "--failures", "0.5,0.1", "--seed", 3]
    journals = []
    for name in ("one.journal", "two.journal"):
        result = fairlead_process("simulate", trace, *options, "-o", "json", "--journal", tmp_path / name)
        assert (result.returncode, result.stderr) == (0, f"journal: {tmp_path / name}\n")
        assert json.loads(result.stdout)["unfinished"] == 0
        journals.append((tmp_path / name).read_bytes())
    assert journals[0] == journals[1]


def test_exit_codes_tell_good_from_unfinished_from_refused(trace: Path, own_policy: Path) -> None:
    good = fairlead_process("simulate", trace, "--cluster", "1x4")
    unfinished = fairlead_process("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Lazy")
    refused = fairlead_process("simulate", trace, "--cluster", "1x1")
    assert (good.returncode, unfinished.returncode, refused.returncode) == (0, 1, 2)
    assert unfinished.stderr.startswith("UNFINISHED: 6 of 6 jobs")
    assert (refused.stdout, refused.stderr.startswith("error: job a needs 2 GPUs")) == ("", True)


def test_the_version_is_the_packages() -> None:
    assert fairlead_process("--version").stdout == f"fairlead, version {fairlead.__version__}\n"


def test_help_names_every_verb_and_does_not_wait_for_numpy() -> None:
    result = fairlead_process("--help")
    assert all(verb in result.stdout for verb in ("simulate", "compare", "trace", "policies"))
    code = "import sys; from fairlead.cli.main import main; print('numpy' in sys.modules, 'click' in sys.modules)"
    path = {**os.environ, "PYTHONPATH": str(SOURCE)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert loaded.stdout.split() == ["False", "True"]


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(trace: Path) -> None:
    command = f"{sys.executable} -m fairlead simulate {trace} --cluster 1x4 -o json | head -c 1"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=environment)
    assert (result.stdout, "Traceback" in result.stderr) == ("{", False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("command", ["explain TRACE --cluster 1x4", "explain TRACE --cluster 1x4 -o json", "--help"])
def test_output_that_finds_no_room_is_told_in_one_line(trace: Path, command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    arguments = command.replace("TRACE", str(trace)).split()
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
        )
    assert result.returncode == 1
    assert result.stderr == "error: cannot write to standard output: No space left on device\n"
