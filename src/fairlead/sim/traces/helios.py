"""Slurm-like job logs of two data centres: Helios (Hu et al., SC '21) and Acme (Hu et al., NSDI '24)."""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.assemble import BACKWARDS, NO_GPUS, NO_RUN, JobFields, TraceBuilder
from fairlead.sim.traces.record import Trace
from fairlead.sim.traces.table import Row, read_table

HELIOS_COLUMNS = ("job_id", "user", "gpu_num", "state", "submit_time", "start_time", "end_time", "duration")
ACME_COLUMNS = (*HELIOS_COLUMNS, "type")

#: Slurm's final states; any other leaves the outcome unknown.
OUTCOMES = {
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
}


def read_helios(path: Path) -> Trace:
    """A cluster's `cluster_log.csv`. The tenant is the virtual cluster, where the file has that column."""
    return _read("helios", path, HELIOS_COLUMNS)


def read_acme(path: Path) -> Trace:
    """`trace_seren.csv` or `trace_kalos.csv`. The tenant is the user; the kind of work becomes a label."""
    return _read("acme", path, ACME_COLUMNS)


def _read(format: str, path: Path, columns: tuple[str, ...]) -> Trace:
    builder = TraceBuilder(format, source=str(path))
    for row in read_table(path, required=columns):
        duration_s = _run_time_s(row)
        if row.whole("gpu_num", at_least=0) == 0:
            builder.skip(NO_GPUS)
        elif duration_s is None:
            builder.skip(NO_RUN)
        elif duration_s < 0:
            builder.skip(BACKWARDS)
        else:
            builder.add(_job(row, duration_s), line=row.line)
    return builder.build(zero_s=builder.earliest_s, origin=builder.earliest_s)


def _run_time_s(row: Row) -> float | None:
    """From start to end where both are known: Kalos' `duration` counts from submission, whatever its README says."""
    if row.is_blank("start_time"):
        return None
    if not row.is_blank("end_time"):
        return row.moment("end_time") - row.moment("start_time")
    return None if row.is_blank("duration") else row.number("duration")


def _job(row: Row, duration_s: float) -> JobFields:
    tenant = row.text("vc") if row.has("vc") else row.text("user")
    labels = {name: row.text(name) for name in ("user", "type", "node_num") if row.has(name) and not row.is_blank(name)}
    state = row.text("state").upper().split()
    return {
        "id": row.name("job_id"),
        "submit_s": row.moment("submit_time"),
        "gpus": row.whole("gpu_num"),
        "duration_s": duration_s,
        "tenant": tenant or "default",
        "outcome": OUTCOMES.get(state[0], "") if state else "",
        "labels": labels,
    }
