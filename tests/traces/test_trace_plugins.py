"""A format outside the package works by entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import InvalidTrace, read_trace

PLUGIN = """
from fairlead.sim.traces import Trace, TraceFormat, TraceJob

def read(path):
    jobs = tuple(
        TraceJob(id=str(n), submit_s=float(n), gpus=1, gpus_min=1, gpus_max=1, duration_s=float(line))
        for n, line in enumerate(path.read_text().split())
    )
    return Trace(jobs=jobs, format="lines", source=str(path))

LINES = TraceFormat("lines", read, lambda head: head.lines[0].startswith("1"), "one duration a line")
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


def test_an_installed_format_is_guessed_if_none_of_our_own_knows_the_file(installed: Path) -> None:
    assert read_trace(installed).format == "lines"


def test_if_no_format_knows_the_file_installed_ones_are_named_and_what_is_wrong_with_them(installed: Path) -> None:
    installed.write_text("20\n")
    with pytest.raises(InvalidTrace, match=r"with --format \(absent, .*, lines, .*'absent' .* cannot be loaded"):
        read_trace(installed)


@pytest.mark.parametrize("command", [["simulate"], ["compare"], ["trace", "describe"], ["trace", "sample"]])
@pytest.mark.usefixtures("installed")
def test_the_help_names_installed_formats(command: list[str]) -> None:
    told = CliRunner().invoke(main, [*command, "--help"]).output
    assert "lines" in told.split("guessed if left out.")[1].split("--")[0]
