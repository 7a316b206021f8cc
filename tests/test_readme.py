"""What the README shows is what a user gets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.sim.traces.formats import READERS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def generating() -> list[str]:
    """The arguments with which the README makes its trace."""
    text = README.replace("\\\n", " ")
    (line,) = re.findall(r"^\.venv/bin/fairlead (trace generate out/demo\.jsonl .*)$", text, re.MULTILINE)
    return shlex.split(line)


def fairlead(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments], cwd=cwd, capture_output=True, text=True, check=True
    )


def without_timing(table: str) -> list[str]:
    return [re.sub(r"\s+(decision|\d+\.\d+ ms|─+)\s*$", "", line).rstrip() for line in table.strip().splitlines()]


@pytest.mark.slow
def test_the_terminal_block_is_what_a_user_sees(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    block = re.search(r"```console\n\$ fairlead (.*?)\nreport: .*?\n(.*?)```", README, re.DOTALL)
    assert block is not None
    fairlead(generating(), tmp_path)
    printed = fairlead(shlex.split(block[1]), tmp_path).stdout
    assert without_timing(printed) == without_timing(block[2])
    assert (tmp_path / "out" / "demo.html").stat().st_size > 10_000


def test_the_formats_it_names_are_read() -> None:
    sentence = re.search(r"bring your own trace\. (.*?) files", README, re.DOTALL)
    assert sentence is not None
    names = {name.strip().lower() for name in re.split(r",|\band\b", sentence[1])}
    missing = {name for name in names if not any(format.startswith(name) for format in READERS)}
    assert not missing


def test_both_commands_exist_and_can_be_run() -> None:
    for name in ("scripts/demo", "scripts/test", "scripts/setup", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, f"{name} has no run bit"
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()
