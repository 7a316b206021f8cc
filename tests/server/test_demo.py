"""The demonstration: it runs, tells what it should, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.backends.processes import COOKIE

pytest.importorskip("torch", reason="the demonstration trains; pip install 'fairlead[train]'")

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def cookies() -> set[bytes]:
    """Of everything that runs and belongs to a demonstration."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {each for each in variables if each.startswith(COOKIE.encode()) and b"fairlead-demo-" in each}
    return found


#: Default, and a policy that shares time in rounds on two GPU types.
OPTIONS = [(), ("--policy", "gavel:objective=max-min,round_s=5", "--nodes", "fast=1x2,slow=1x2@50%")]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=["pilot", "gavel"])
def test_the_demonstration_runs_tells_and_leaves_nothing_behind(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(DEMO), "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400.0)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("What each job achieved", "Every rescale", "The same jobs, otherwise", "FIFO, 2 GPUs each"):
        assert said in done.stdout
    for name in ("digits", "text", "score", "ratings"):
        assert f"submitted {name}" in done.stdout
    assert cookies() == set()
