"""Workloads of Pollux (Qiao et al., OSDI '21) and Sia (Jayaram Subramanya et al., SOSP '23).

A job is an application with a profile; the file has no durations. Further columns, as in Sia's files, are not read.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.assemble import JobFields, TraceBuilder
from fairlead.sim.traces.record import Trace
from fairlead.sim.traces.table import read_table

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


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
        builder.add(fields, line=row.line)
    return builder.build()
