"""The public traces as published, where a checkout has them beside it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.sim.traces import InvalidTrace, read_trace
from fairlead.sim.traces.describe import describe

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces (../shared/data) are not here")


@pytest.mark.parametrize(
    ("file", "format", "jobs"),
    [
        ("gavel/max_min_fairness.trace", "gavel", 96),
        ("gavel/minimize_makespan.trace", "gavel", 100),
        ("muri/trace1.csv", "muri", 1494),
        ("muri/trace3.csv", "muri", 992),
        ("philly/philly.csv", "philly", 82247),
        ("pollux/workloads/workload-1.csv", "pollux", 160),
        ("shockwave/jobs-120.trace", "shockwave", 120),
        ("tiresias/60_job.csv", "tiresias", 60),
    ],
)
def test_a_published_trace_is_read_whole(file, format, jobs):
    trace = read_trace(DATA / file)
    assert (trace.format, len(trace.jobs), trace.skipped) == (format, jobs, {})


def test_philly_loads_in_a_few_seconds_and_has_its_known_shape():
    start = time.perf_counter()
    trace = read_trace(DATA / "philly/philly.csv")
    assert time.perf_counter() - start < 10  # about one second on an idle machine
    found = describe(trace)
    assert len(found.tenants) == 15
    assert found.gpu_counts[1] == 76627


def test_tiresias_sample_has_the_published_gpu_time():
    assert describe(read_trace(DATA / "tiresias/60_job.csv")).gpu_hours * 3600 == pytest.approx(26624)


def test_a_file_of_samples_is_not_a_trace():
    with pytest.raises(InvalidTrace, match="no format that can be guessed"):
        read_trace(DATA / "tiresias/yarn-gput1000.csv")
