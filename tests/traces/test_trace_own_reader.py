"""A reader in a file of the user's own: `--format my.py:read_mine`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import InvalidTrace, read_trace

OWN = """
from fairlead.sim.traces import Trace, TraceFormat, TraceJob

def rows(path):
    for n, line in enumerate(path.read_text().split()):
        yield {"id": n, "submit_s": n, "gpus": 1, "duration_s": float(line)}

def jobs(path):
    return [TraceJob(id="a", submit_s=0.0, gpus=2, gpus_min=1, gpus_max=4, duration_s=9.0)]

def whole(path):
    return Trace(jobs=tuple(jobs(path)), format="whole", source=str(path))

def broken(path):
    return 1 / 0

def wrong(path):
    return 7

FORMAT = TraceFormat("own", whole, lambda head: False, "")
NOTHING = 1
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "trace.txt").write_text("10\n20\n")
    return tmp_path / "own.py"


def test_a_function_gives_rows_jobs_or_a_trace(own: Path) -> None:
    trace = own.parent / "trace.txt"
    rows = read_trace(trace, f"{own}:rows")
    assert [(job.id, job.duration_s) for job in rows.jobs] == [("0", 10.0), ("1", 20.0)]
    assert (rows.source, rows.format) == (str(trace), f"{own}:rows")
    (job,) = read_trace(trace, f"{own}:jobs").jobs
    assert (job.gpus_min, job.gpus, job.gpus_max) == (1, 2, 4)
    assert read_trace(trace, f"{own}:whole").format == "whole"
    assert read_trace(trace, f"{own}:FORMAT").format == "whole"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("broken", InvalidTrace, r"trace\.txt: trace reader .*own\.py:broken raised ZeroDivisionError.* line 15"),
        ("wrong", InvalidSpec, "returned int; expected a Trace, or rows"),
        ("NOTHING", InvalidSpec, "is no trace reader: expected a function"),
        ("row", InvalidSpec, "has no 'row'; did you mean 'rows'"),
    ],
)
def test_a_reader_that_is_wrong_is_named(own: Path, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_trace(own.parent / "trace.txt", f"{own}:{name}")


def test_a_file_without_a_function_or_without_a_file_is_refused(own: Path) -> None:
    with pytest.raises(InvalidSpec, match="which reader"):
        read_trace(own.parent / "trace.txt", str(own))
    with pytest.raises(InvalidSpec, match="there is no trace reader file"):
        read_trace(own.parent / "trace.txt", f"{own.parent}/absent.py:rows")
