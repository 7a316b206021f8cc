"""A format outside the package works by entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import read_trace

PLUGIN = """
from fairlead.sim.traces import Trace, TraceFormat, TraceJob

def read(path):
    jobs = tuple(
        TraceJob(id=str(n), submit_s=float(n), gpus=1, gpus_min=1, gpus_max=1, duration_s=float(line))
        for n, line in enumerate(path.read_text().split())
    )
    return Trace(jobs=jobs, format="lines", source=str(path))

LINES = TraceFormat("lines", read, lambda head: False, "one duration a line")
NOT_A_FORMAT = 1
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lines_plugin.py").write_text(PLUGIN)
    info = tmp_path / "lines_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fairlead.traces]\nlines = lines_plugin:LINES\nbroken = lines_plugin:NOT_A_FORMAT\nabsent = no_such_module:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lines_plugin", raising=False)
    (tmp_path / "trace.txt").write_text("10\n20\n")
    return tmp_path / "trace.txt"


def test_an_installed_format_is_found_by_name(installed: Path) -> None:
    assert [job.duration_s for job in read_trace(installed, "lines").jobs] == [10.0, 20.0]


def test_an_installed_format_is_suggested(installed: Path) -> None:
    with pytest.raises(InvalidSpec, match="did you mean 'lines'"):
        read_trace(installed, "line")


def test_an_entry_point_that_is_no_format_is_refused(installed: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"'broken' .* is not a fairlead\.sim\.traces\.TraceFormat"):
        read_trace(installed, "broken")


def test_an_entry_point_that_cannot_be_loaded_says_why(installed: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"'absent' .* cannot be loaded.*no_such_module"):
        read_trace(installed, "absent")
