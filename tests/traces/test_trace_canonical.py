"""Fairlead's own form: what is written is read back equal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces import READERS, InvalidTrace, NodeFailure, Trace, TraceJob, TraceNode, read_trace
from fairlead.sim.traces.canonical import to_csv, to_jsonl
from fairlead.sim.traces.files import write_text

SECONDS = st.floats(0, 1e12)
TEXT = st.text(min_size=1, max_size=8)
GPU_TYPE = st.text(min_size=1, max_size=5).map(str.strip).filter(lambda text: text and "|" not in text)


@st.composite
def jobs(draw: st.DrawFn) -> TraceJob:
    least, gpus, most = sorted(draw(st.tuples(*[st.integers(1, 512)] * 3)))
    return TraceJob(
        id=draw(TEXT),
        submit_s=draw(SECONDS),
        gpus=gpus,
        gpus_min=least,
        gpus_max=most,
        duration_s=draw(st.none() | SECONDS),
        estimate_s=draw(st.none() | SECONDS),
        name=draw(st.text(max_size=5)),
        tenant=draw(TEXT),
        model=draw(st.none() | TEXT),
        batch=draw(st.none() | st.integers(1, 10**6)),
        steps=draw(st.none() | SECONDS),
        mode=draw(st.sampled_from(["static", "gns"])),
        gpu_types=tuple(draw(st.lists(GPU_TYPE, max_size=3))),
        priority=draw(st.integers(-5, 5)),
        weight=draw(st.floats(1e-6, 1e6)),
        deadline_s=draw(st.none() | SECONDS),
        outcome=draw(st.sampled_from(["", "completed", "failed"])),
        labels=draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    made = draw(st.lists(jobs(), min_size=1, max_size=5, unique_by=lambda job: job.id))
    nodes = draw(st.lists(st.builds(TraceNode, TEXT, TEXT, st.integers(1, 16)), max_size=2))
    return Trace(
        jobs=tuple(sorted(made, key=lambda job: job.submit_s)),
        format="fairlead",
        source="made up",
        origin=draw(st.none() | st.floats(-1e10, 1e10)),
        nodes=tuple(nodes),
        failures=tuple(NodeFailure(node, 1.5, 60.25) for node in range(len(nodes))),
        skipped=draw(st.dictionaries(TEXT, st.integers(1, 9), max_size=2)),
    )


@settings(deadline=None)
@given(trace=traces())
def test_jsonl_is_read_back_equal(put_again, trace):
    path = put_again("fairlead")
    write_text(path, to_jsonl(trace))
    assert replace(read_trace(path), source=trace.source) == trace


@settings(deadline=None)
@given(trace=traces())
def test_csv_is_read_back_equal_in_its_jobs(put_again, trace):
    path = put_again("fairlead")
    write_text(path, to_csv(trace))
    read = read_trace(path)
    assert read.jobs == trace.jobs
    assert to_csv(read) == to_csv(trace)


@pytest.mark.parametrize("format", sorted(set(READERS) - {"journal"}))
@pytest.mark.parametrize("ending", ["jsonl", "csv", "jsonl.gz"])
def test_every_format_survives_conversion(put, tmp_path, format, ending):
    trace = read_trace(put(format))
    path = tmp_path / f"converted.{ending}"
    write_text(path, to_csv(trace) if ending == "csv" else to_jsonl(trace))
    read = read_trace(path)
    assert read.jobs == trace.jobs
    if ending != "csv":
        assert (read.origin, read.nodes, read.failures, read.skipped) == (
            trace.origin,
            trace.nodes,
            trace.failures,
            trace.skipped,
        )


def test_a_csv_needs_only_three_columns(put):
    (job,) = read_trace(put("fairlead", "id,submit_s,gpus\na,1.5,4\n")).jobs
    assert job == TraceJob(id="a", submit_s=1.5, gpus=4, gpus_min=4, gpus_max=4)


def test_a_job_of_no_length_is_kept(put):
    (job,) = read_trace(put("fairlead", "id,submit_s,gpus,duration_s\na,1.5,4,0\n")).jobs
    assert job.duration_s == 0


def test_gpu_types_that_do_not_fit_a_cell_are_refused():
    job = TraceJob(id="a", submit_s=0, gpus=1, gpus_min=1, gpus_max=1, gpu_types=("a|b",))
    with pytest.raises(InvalidSpec, match=r"job 'a': GPU types .* write JSONL instead"):
        to_csv(Trace(jobs=(job,), format="fairlead", source="made up"))


def test_a_name_that_utf8_cannot_write_is_refused(tmp_path):
    with pytest.raises(InvalidSpec, match=r"a name holds '\\ud800'"):
        write_text(tmp_path / "x.csv", "\ud800")
    assert list(tmp_path.iterdir()) == []


HEADER = '{"fairlead_trace": 1}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"fairlead_trace": 2}\n', ":1: header, field 'fairlead_trace': found 2; expected 1"),
        ('{"fairlead_trace": 1, "origin": "x"}\n', ":1: header, field 'origin': found 'x'; expected a number"),
        ('{"fairlead_trace": 1, "skipped": {"a": -1}}\n', ":1: header, skipped, field 'a': found -1; expected a whole"),
        ('{"fairlead_trace": 1, "skipped": 3}\n', ":1: header, skipped: found 3; expected a JSON object"),
        (HEADER, ": has no jobs"),
        (HEADER + "{\n", ":2: is not JSON"),
        (HEADER + "[]\n", ":2: line: found []; expected a JSON object"),
        (HEADER + '{"jobs": {}}\n', ":2: found 'jobs'; expected one of 'job', 'node', 'failure'"),
        (HEADER + '{"job": {}}\n', ":2: line, job, field 'id': found nothing; expected some text"),
        (HEADER + '{"job": {"id": "a", "gpu": 1}}\n', ":2: line, job, field 'gpu': found 1; expected one of 'id'"),
        (HEADER + '{"job": {"id": "a", "submit_s": true}}\n', "field 'submit_s': found True; expected a number from 0"),
        (HEADER + '{"job": {"id": "a", "submit_s": 0, "gpus": 1.5}}\n', "field 'gpus': found 1.5; expected a whole"),
        (
            HEADER + '{"job": {"id": "a", "submit_s": 0, "gpus": 1, "gpus_min": 2}}\n',
            ":2: job 'a': GPUs are min 2, requested 1, max 1",
        ),
        (
            HEADER + '{"job": {"id": "a", "submit_s": 0, "gpus": 1, "gpu_types": [3]}}\n',
            "field 'gpu_types': found 3; expected a list of texts",
        ),
        (HEADER + '{"job": {"id": "a", "submit_s": 0, "gpus": 1, "tenant": ""}}\n', "job 'a': tenant, mode or model"),
        (HEADER + '{"node": {"id": "n", "gpu_type": "t", "gpus": 0}}\n', "line, node, field 'gpus': found 0; expected"),
        (
            HEADER
            + '{"job": {"id": "a", "submit_s": 0, "gpus": 1}}\n{"node": {"id": "n", "gpu_type": "t", "gpus": 1}}\n'
            + '{"failure": {"node": 1, "at_s": 0, "repair_s": 0}}\n',
            ": a failure names node 1; expected one from 0 to 0",
        ),
        ("id,submit_s,gpus,labels\na,0,1,[\n", ":2: is not JSON"),
        ("id,submit_s,gpus,labels\na,0,1,[]\n", "labels: found []; expected a JSON object"),
        ("id,submit_s,gpus\n,0,1\n", ":2: job '': id is empty"),
    ],
)
def test_a_broken_file_says_where(put, text, expected):
    with pytest.raises(InvalidTrace) as caught:
        read_trace(put("fairlead", text))
    assert expected in str(caught.value)


def test_an_existing_file_is_replaced_in_one_piece(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("old")
    path.chmod(0o640)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [child.name for child in tmp_path.iterdir()] == ["trace.jsonl"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "trace.jsonl"
    path.write_text("old")

    def refuse(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InvalidSpec, match="cannot be written: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["trace.jsonl"]


def test_a_directory_or_a_missing_one_cannot_be_written(tmp_path):
    with pytest.raises(InvalidSpec, match="is a directory"):
        write_text(tmp_path, "new")
    with pytest.raises(InvalidSpec, match="No such file or directory"):
        write_text(tmp_path / "none" / "trace.jsonl", "new")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_only_fields_that_differ_from_their_default_are_written():
    job = TraceJob(id="a", submit_s=0, gpus=2, gpus_min=2, gpus_max=4)
    lines = to_jsonl(Trace(jobs=(job,), format="fairlead", source="made up")).splitlines()
    assert json.loads(lines[1]) == {"job": {"id": "a", "submit_s": 0, "gpus": 2, "gpus_max": 4}}
