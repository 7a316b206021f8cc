"""Fairlead's own trace form. What is written here is read back equal.

JSONL holds everything: a header line `{"fairlead_trace": 1, ...}`, then one line per job, node and failure, such as
`{"job": {"id": "a", "submit_s": 0, "gpus": 4, ...}}`; fields at their default are left out. CSV holds jobs only, one
column per field: an empty cell is the default, several GPU types are separated by `|`, labels and recordings are JSON
objects.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

from fairlead.core import codec
from fairlead.core.errors import InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.sim.traces.assemble import JobFields, TraceBuilder
from fairlead.sim.traces.entry import Entry, parse_json
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import InvalidTrace, NodeFailure, Recording, Trace, TraceJob, TraceNode
from fairlead.sim.traces.table import Row, listed, read_table

VERSION = 1
REQUIRED = ("id", "submit_s", "gpus")

TEXTS = ("id", "name", "tenant", "model", "mode", "adapts", "outcome")
SECONDS = ("submit_s", "duration_s", "estimate_s", "steps", "deadline_s", "weight")
COUNTS = ("gpus", "gpus_min", "gpus_max", "batch")
FLAGS = ("in_place", "preemptible")

FIELDS = tuple(field.name for field in fields(TraceJob))
#: What an absent field means; gpus_min and gpus_max follow gpus instead.
DEFAULTS: Mapping[str, object] = {
    field.name: field.default if field.default is not MISSING else {}
    for field in fields(TraceJob)
    if field.name not in (*REQUIRED, "gpus_min", "gpus_max")
}


def to_jsonl(trace: Trace) -> str:
    header = {"fairlead_trace": VERSION, "origin": trace.origin, "skipped": dict(trace.skipped)}
    lines: list[object] = [header]
    lines += ({"node": {"id": n.id, "gpu_type": n.gpu_type, "gpus": n.gpus}} for n in trace.nodes)
    lines += ({"job": _told(job)} for job in trace.jobs)
    lines += ({"failure": {"node": f.node, "at_s": f.at_s, "repair_s": f.repair_s}} for f in trace.failures)
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def to_csv(trace: Trace) -> str:
    """Jobs only: origin, nodes, failures and skip counts are not written."""
    lines = [_csv_line(FIELDS)]
    for job in trace.jobs:
        known = _told(job)
        lines.append(_csv_line([_cell(job, name, known.get(name, "")) for name in FIELDS]))
    return "".join(lines)


def _csv_line(cells: Sequence[object]) -> str:
    # Only with its default line ending does csv quote both kinds of line break inside a cell.
    out = io.StringIO(newline="")
    csv.writer(out).writerow(cells)
    return out.getvalue().removesuffix("\r\n") + "\n"


def _told(job: TraceJob) -> dict[str, Any]:
    """The fields that differ from their default."""
    known = {name: getattr(job, name) for name in FIELDS}
    for name in ("gpus_min", "gpus_max"):
        if known[name] == job.gpus:
            del known[name]
    if job.recording is not None:
        known["recording"] = codec.encode(job.recording)
    return {name: value for name, value in known.items() if name not in DEFAULTS or value != DEFAULTS[name]}


def _cell(job: TraceJob, name: str, value: object) -> object:
    if name == "gpu_types" and isinstance(value, tuple):
        if not all(value) or any("|" in kind or kind != kind.strip() for kind in value):
            raise InvalidSpec(f"job {job.id!r}: GPU types {value!r} do not fit a CSV cell; write JSONL instead")
        return "|".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(dict(value)) if isinstance(value, Mapping) else value


def read_fairlead(path: Path) -> Trace:
    text = read_text(path)
    return _read_jsonl(text, path) if text.lstrip().startswith("{") else _read_csv(path)


# --- JSONL


def _read_jsonl(text: str, path: Path) -> Trace:
    source = str(path)
    builder = TraceBuilder("fairlead", source=source)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    origin = _read_header(Entry(_parse(lines[0], source), source=source, what="header", line=lines[0][0]), builder)
    nodes: list[TraceNode] = []
    failures: list[NodeFailure] = []
    for number, line in lines[1:]:
        entry = Entry(_parse((number, line), source), source=source, what="line", line=number)
        match entry.names:
            case ("job",):
                builder.keep(_job_fields(entry.entry("job")), line=number)
            case ("node",):
                nodes.append(_node(entry.entry("node")))
            case ("failure",):
                failures.append(_failure(entry.entry("failure")))
            case keys:
                problem = f"found {listed(keys)}; expected one of 'job', 'node', 'failure'"
                raise InvalidTrace(problem, source=source, line=number)
    for failure in failures:
        if nodes and failure.node >= len(nodes):
            problem = f"a failure names node {failure.node}; expected one from 0 to {len(nodes) - 1}"
            raise InvalidTrace(problem, source=source)
    return builder.build(origin=origin, nodes=nodes, failures=failures)


def _parse(line: tuple[int, str], source: str) -> Any:
    return parse_json(line[1], source=source, line=line[0])


def _read_header(header: Entry, builder: TraceBuilder) -> float | None:
    """Check the version, take over the skip counts, and return the origin."""
    if header.get("fairlead_trace") != VERSION:
        raise header.error("fairlead_trace", header.get("fairlead_trace"), f"{VERSION}, the version this release reads")
    if header.get("skipped") is not None:
        skipped = header.entry("skipped")
        for reason in skipped.names:
            builder.skip(reason, skipped.whole(reason))
    return None if header.get("origin") is None else header.number("origin", at_least=-1e15)


def _job_fields(job: Entry) -> JobFields:
    if unknown := [name for name in job.names if name not in FIELDS]:
        raise job.error(unknown[0], job.get(unknown[0]), f"one of {listed(FIELDS)}")
    found: dict[str, object] = {}
    for name in FIELDS:
        if job.get(name) is not None or name in REQUIRED:
            found[name] = _json_field(job, name)
    return cast(JobFields, found)


def _json_field(job: Entry, name: str) -> object:
    if name in TEXTS:
        return job.text(name)
    if name in SECONDS:
        return job.number(name)
    if name in COUNTS:
        return job.whole(name)
    if name in FLAGS:
        return job.flag(name)
    if name == "priority":
        return job.whole(name, at_least=-(10**9))
    if name == "gpu_types":
        return tuple(_text_item(job, name, item) for item in job.items(name))
    if name == "recording":
        return _recording(job.get(name), job.source, job.line)
    labels = job.entry("labels")
    return {label: labels.text(label) for label in labels.names}


def _text_item(job: Entry, name: str, item: object) -> str:
    if not isinstance(item, str):
        raise job.error(name, item, "a list of texts")
    return item


def _recording(value: object, source: str, line: int | None) -> Recording:
    try:
        made: Recording = codec.decode(Recording, value, place="recording")
    except InvalidSpec as error:
        raise InvalidTrace(str(error), source=source, line=line) from None
    return made


def _node(node: Entry) -> TraceNode:
    return TraceNode(node.text("id"), node.text("gpu_type"), node.whole("gpus"))


def _failure(failure: Entry) -> NodeFailure:
    return NodeFailure(failure.whole("node", at_least=0), failure.number("at_s"), failure.number("repair_s"))


# --- CSV


def _read_csv(path: Path) -> Trace:
    builder = TraceBuilder("fairlead", source=str(path))
    for row in read_table(path, required=REQUIRED):
        if unknown := [name for name in row.columns if name not in FIELDS]:
            problem = f"there is no such field{did_you_mean(unknown[0], FIELDS)}"
            raise InvalidTrace(problem, source=row.source, line=1, column=unknown[0])
        found: dict[str, object] = {}
        for name in FIELDS:
            if row.has(name) and (row.raw(name) or name in REQUIRED):
                found[name] = _csv_field(row, name)
        builder.keep(cast(JobFields, found), line=row.line)
    return builder.build()


def _csv_field(row: Row, name: str) -> object:
    if name in TEXTS:
        return row.raw(name)
    if name in SECONDS:
        return row.number(name)
    if name in COUNTS:
        return row.whole(name)
    if name in FLAGS:
        return row.flag(name)
    if name == "priority":
        return row.whole(name, at_least=-(10**9))
    if name == "gpu_types":
        return tuple(kind.strip() for kind in row.raw(name).split("|"))
    if name == "recording":
        return _recording(parse_json(row.raw(name), source=row.source, line=row.line), row.source, row.line)
    labels = Entry(parse_json(row.raw(name), source=row.source, line=row.line), source=row.source, what="labels")
    return {label: labels.text(label) for label in labels.names}
