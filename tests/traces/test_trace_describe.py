"""Statistics of a trace."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from fairlead.sim.cluster import nodes_of_four
from fairlead.sim.traces import Trace, TraceJob, TraceNode, read_trace
from fairlead.sim.traces.describe import as_table, as_time, describe


def trace(*jobs: tuple[float, int, float | None], **fields) -> Trace:
    made = (
        TraceJob(id=str(n), submit_s=submit_s, gpus=gpus, gpus_min=gpus, gpus_max=gpus, duration_s=duration_s)
        for n, (submit_s, gpus, duration_s) in enumerate(jobs)
    )
    return Trace(jobs=tuple(made), format="fairlead", source="[made] up", **fields)


def text_of(table) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_statistics_are_what_one_would_count_by_hand():
    found = describe(trace((0, 1, 3600.0), (1800, 4, 1800.0), (3600, 1, 7200.0)), nodes=nodes_of_four(10))
    assert (found.jobs, found.span_s, found.gpu_hours) == (3, 3600, 5)
    assert found.gpu_counts == {1: 2, 4: 1}
    assert found.arrivals_per_h == 2
    assert found.load == pytest.approx(0.5)
    assert found.duration_s.mean == 4200
    assert found.duration_s.p50 == 3600
    assert (found.interarrival_s.mean, found.interarrival_s.cv) == (1800, 0)
    assert found.deadline_share == 0
    assert json.loads(json.dumps(found.to_dict()))["duration_s"]["p50"] == 3600


def test_the_traces_own_nodes_are_the_cluster_unless_told_otherwise():
    made = trace((0, 1, 100.0), (100, 1, 100.0), nodes=(TraceNode("n", "T4", 4),))
    assert describe(made).load == pytest.approx(0.5)
    assert describe(made, nodes=nodes_of_four(2)).load == pytest.approx(1)


def test_what_a_trace_does_not_tell_is_none():
    found = describe(trace((5, 2, None)), nodes=nodes_of_four(4))
    assert (found.duration_s, found.gpu_hours, found.load, found.arrivals_per_h) == (None, None, None, None)
    assert found.interarrival_s is None
    assert "not in the trace" in text_of(as_table(found))


def test_jobs_that_all_arrive_at_once_have_no_rate():
    found = describe(trace((0, 1, 10.0), (0, 1, 10.0)), nodes=nodes_of_four(4))
    assert (found.arrivals_per_h, found.load, found.interarrival_s.cv) == (None, None, None)


def test_a_trace_without_jobs_can_be_described():
    assert describe(trace()).jobs == 0


def test_the_table_shows_shares_skips_and_names_with_brackets(put):
    text = text_of(as_table(describe(read_trace(put("alibaba-2023")), nodes=nodes_of_four(8))))
    for part in ("left out: asked for no GPUs", "nodes", "of 8 GPUs", "1: 50.0%, 8: 50.0%", "completed"):
        assert part in text
    assert "[made] up" in text_of(as_table(describe(trace((0, 1, 1.0)))))


def test_the_table_shows_deadlines_elasticity_and_partial_durations(put):
    made = read_trace(put("chronus"))
    jobs = (replace(made.jobs[0], duration_s=None, gpus_max=9), *made.jobs[1:])
    text = text_of(as_table(describe(replace(made, jobs=jobs))))
    for part in ("with a deadline", "elastic", "jobs with a duration", "models (2)"):
        assert part in text


def test_many_tenants_are_cut_short():
    jobs = tuple(replace(job, tenant=f"t{job.id}") for job in trace(*((n, 1, 1.0) for n in range(12))).jobs)
    assert "and 4 more" in text_of(as_table(describe(replace(trace(), jobs=jobs))))


def test_times_are_shown_in_a_fitting_unit():
    assert [as_time(s) for s in (0.5, 60, 600, 7200, 864000)] == ["0.5 s", "60 s", "10.0 min", "2.0 h", "10.0 d"]
