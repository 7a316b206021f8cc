"""The CSV of Tiresias' simulator (Gu et al., NSDI '19) and the two formats that grew from it: Muri's and Chronus'."""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.assemble import NO_GPUS, JobFields, TraceBuilder
from fairlead.sim.traces.record import InvalidTrace, Trace
from fairlead.sim.traces.table import Row, read_table

TIRESIAS_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")
MURI_COLUMNS = (*TIRESIAS_COLUMNS, "batch_size", "iteration_time", "priority")
CHRONUS_COLUMNS = (*TIRESIAS_COLUMNS, "user", "expect_time_list", "best_effort")

#: Muri's per-job profile, which its policy interleaves by; kept as labels, in the file's milliseconds.
MURI_LABELS = ("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2", "resource_time_3")


def read_tiresias(path: Path) -> Trace:
    builder = TraceBuilder("tiresias", source=str(path))
    for row in read_table(path, required=TIRESIAS_COLUMNS):
        builder.add(_job(row), line=row.line)
    return builder.build()


def read_muri(path: Path) -> Trace:
    """Muri (Zhao et al., SIGCOMM '22). Times are milliseconds."""
    builder = TraceBuilder("muri", source=str(path))
    for row in read_table(path, required=MURI_COLUMNS):
        fields = _job(row)
        fields["submit_s"] = row.number("submit_time") / 1000
        fields["duration_s"] = row.number("duration") / 1000
        fields["batch"] = row.whole("batch_size")
        fields["priority"] = row.whole("priority", at_least=0)
        fields["labels"] = {name: f"{row.number(name):g}" for name in MURI_LABELS if row.has(name)}
        builder.add(fields, line=row.line)
    return builder.build()


def read_chronus(path: Path) -> Trace:
    """Chronus (Gao et al., SoCC '21). Deadlines count from submission; a best-effort job has none."""
    builder = TraceBuilder("chronus", source=str(path))
    for row in read_table(path, required=CHRONUS_COLUMNS):
        if row.whole("num_gpu", at_least=0) == 0:
            builder.skip(NO_GPUS)
            continue
        fields = _job(row)
        fields["tenant"] = row.name("user")
        if row.has("job_type"):
            fields["labels"] = {"job_type": row.text("job_type")}
        if not row.whole("best_effort", at_least=0):
            fields["deadline_s"] = fields["submit_s"] + _first_expected_s(row)
        builder.add(fields, line=row.line)
    return builder.build()


def _job(row: Row) -> JobFields:
    return {
        "id": row.name("job_id"),
        "submit_s": row.number("submit_time"),
        "gpus": row.whole("num_gpu"),
        "duration_s": row.number("duration"),
        "steps": row.number("iterations"),
        "model": row.name("model_name"),
    }


def _first_expected_s(row: Row) -> float:
    """`1105` or, for a soft deadline, `1105-2210`: finishes of falling worth, of which the first is the deadline."""
    first = row.text("expect_time_list").split("-")[0]
    if not first.isdecimal() or len(first) > 15:
        raise InvalidTrace(
            f"found {first!r}; expected seconds after submission, like 1105 or 1105-2210",
            source=row.source,
            line=row.line,
            column="expect_time_list",
        )
    return float(first)
