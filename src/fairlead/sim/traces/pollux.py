"""Workloads of Pollux (Qiao et al., OSDI '21) and Sia (Jayaram Subramanya et al., SOSP '23).

A job is an application with a profile; the file has no durations. In some of Sia's files the column `category` says
what may change of a job. Further columns are not read.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.assemble import JobFields, TraceBuilder
from fairlead.sim.traces.record import Trace
from fairlead.sim.traces.table import Row, read_table

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

#: What may change of a job of each category. One that scales its GPUs has no more than it asked for, and its batch.
CATEGORIES = {"adaptive": "batch", "scale-gpus": "gpus", "rigid": "nothing"}


def read_pollux(path: Path) -> Trace:
    builder = TraceBuilder("pollux", source=str(path))
    for row in read_table(path, required=COLUMNS):
        name = row.name("name")
        fields: JobFields = {
            "id": name,
            "name": name,
            "submit_s": row.number("time"),
            "gpus": row.whole("num_replicas"),
            "model": row.name("application"),
            "batch": None if row.is_blank("batch_size") else row.whole("batch_size"),
        }
        if row.has("category") and not row.is_blank("category"):
            fields["adapts"] = _adapts(row)
            if fields["adapts"] == "gpus":
                fields["gpus_min"], fields["gpus_max"] = 1, fields["gpus"]
        builder.add(fields, line=row.line)
    return builder.build()


def _adapts(row: Row) -> str:
    category = row.text("category").strip()
    if category not in CATEGORIES:
        raise row.error("category", f"one of {', '.join(CATEGORIES)}")
    return CATEGORIES[category]
