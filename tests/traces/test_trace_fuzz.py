"""Whatever a file holds, a reader returns a Trace or says what is wrong with it; no other exception gets out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.sim.cluster import nodes_of_four
from fairlead.sim.traces import READERS, Trace, read_trace
from fairlead.sim.traces.canonical import to_csv, to_jsonl
from fairlead.sim.traces.describe import describe

FORMATS = sorted(set(READERS) - {"journal"})

#: What breaks parsers: numbers out of range, almost-numbers, dates, quotes, separators, other alphabets.
NUMBERS = ["", " ", "-1", "0", "1e999", "nan", "-inf", "1_0", "0x10", "9" * 30, "9" * 5000, "\u0663", "None", "null"]
MARKS = ['"', "'", "[", "{", "{}", "[]", '{"a": 1}', "\x00", "\ufeff", "\u2028", "\r", "\t", ",", "|", ";", "-"]
DATES = ["2017-13-45", "0001-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"]
CELLS = st.sampled_from([*NUMBERS, *MARKS, *DATES]) | st.text(max_size=6)


def read_or_refuse(path, format):
    """What the two ways of reading give; whatever is read can be described and written."""
    for name in (format, None):
        try:
            trace = read_trace(path, name)
        except InvalidSpec:
            continue
        assert isinstance(trace, Trace)
        assert trace.jobs
        describe(trace, nodes=nodes_of_four(8)).to_dict()
        to_jsonl(trace)
        try:
            to_csv(trace)
        except InvalidSpec:
            assert any(job.gpu_types for job in trace.jobs)


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(put_again, format, data):
    read_or_refuse(put_again(format, data), format)


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(data=st.data())
def test_a_sample_with_a_changed_cell_is_read_or_refused(put_again, samples, format, data):
    text = samples[format]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(CELLS) + text[start + length :]
    read_or_refuse(put_again(format, text.encode(errors="replace")), format)


@pytest.mark.parametrize(
    "format", ["gavel", "shockwave", "tiresias", "muri", "philly", "swf", "helios", "alibaba-2023"]
)
@settings(deadline=None)
@given(data=st.data())
def test_a_sample_with_a_replaced_column_is_read_or_refused(put_again, samples, format, data):
    separator = {"gavel": "\t", "shockwave": "\t", "swf": " "}.get(format, ",")
    lines = samples[format].rstrip("\n").split("\n")
    cells = lines[-1].split(separator)
    cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(CELLS)
    text = "\n".join([*lines[:-1], separator.join(cells)])
    read_or_refuse(put_again(format, text.encode(errors="replace")), format)


@pytest.mark.parametrize(
    ("format", "name"), [("alibaba-2020", "pai_task_table.csv"), ("alibaba-2023", "openb_node_list_gpu_node.csv")]
)
@settings(deadline=None)
@given(data=st.data())
def test_a_changed_file_beside_the_sample_is_read_or_refused(put_again, format, name, data):
    path = put_again(format)
    text = path.with_name(name).read_text()
    start = data.draw(st.integers(0, len(text)))
    text = text[:start] + data.draw(CELLS) + text[start + data.draw(st.integers(0, 12)) :]
    path.with_name(name).write_bytes(text.encode(errors="replace"))
    read_or_refuse(path, format)
