"""The Standard Workload Format of the Parallel Workloads Archive (Feitelson): 18 numbers a line, -1 where unknown.

Processors are read as GPUs. Think times and dependencies are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fairlead.sim.traces.assemble import NO_GPUS, NO_RUN, JobFields, TraceBuilder
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import Trace
from fairlead.sim.traces.table import Row, layout, make_row

LAYOUTS = {
    18: layout(
        "job submit wait run processors cpu_time memory requested_processors requested_time requested_memory "
        "status user group executable queue partition preceding think_time"
    )
}

OUTCOMES = {0: "failed", 1: "completed", 5: "cancelled"}

#: Lines that repeat a job checkpointed and swapped out; its whole run has a line of its own.
PARTIAL = frozenset({2, 3, 4})

_START = re.compile(r";\s*UnixStartTime:\s*(\d{1,12})\s*", re.IGNORECASE)


def read_swf(path: Path) -> Trace:
    builder = TraceBuilder("swf", source=str(path))
    text = read_text(path)
    for row in _rows(text, source=str(path)):
        if row.whole("status", at_least=-1) in PARTIAL:
            builder.skip("part of a job listed elsewhere")
        elif not _processors(row):
            builder.skip(NO_GPUS)
        elif row.number("run", at_least=-1) < 0:
            builder.skip(NO_RUN)
        else:
            builder.add(_job(row), line=row.line)
    return builder.build(origin=_unix_start(text))


def _rows(text: str, *, source: str) -> Iterator[Row]:
    for line, content in enumerate(text.split("\n"), start=1):
        if (cells := content.split()) and not cells[0].startswith(";"):
            yield make_row(cells, LAYOUTS, source=source, line=line)


def _processors(row: Row) -> int:
    """What was asked for; failing that, what was given."""
    requested = row.whole("requested_processors", at_least=-1)
    return requested if requested > 0 else max(0, row.whole("processors", at_least=-1))


def _job(row: Row) -> JobFields:
    requested_s = row.number("requested_time", at_least=-1)
    known = {name: row.whole(name, at_least=-1) for name in ("user", "group", "queue", "partition", "executable")}
    return {
        "id": str(row.whole("job", at_least=0)),
        "submit_s": row.number("submit"),
        "gpus": _processors(row),
        "duration_s": row.number("run"),
        "estimate_s": requested_s if requested_s > 0 else None,
        "tenant": f"user-{known['user']}" if known["user"] >= 0 else "default",
        "outcome": OUTCOMES.get(row.whole("status", at_least=-1), ""),
        "labels": {name: str(number) for name, number in known.items() if number >= 0 and name != "user"},
    }


def _unix_start(text: str) -> float | None:
    for line in text.split("\n"):
        if line.strip() and not line.startswith(";"):
            break
        if match := _START.match(line):
            return float(match[1])
    return None
