"""Microsoft's Philly trace (Jeon et al., ATC '19): the processed CSV that Pollux and others ship, and the original log.

Times are naive dates, taken as UTC. A job's tenant is its virtual cluster.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.assemble import BACKWARDS, NO_GPUS, NO_RUN, JobFields, TraceBuilder
from fairlead.sim.traces.entry import Entry, parse_json
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import InvalidTrace, Trace
from fairlead.sim.traces.table import read_table

CSV_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")

OUTCOMES = {"Pass": "completed", "Killed": "cancelled", "Failed": "failed"}


def read_philly(path: Path) -> Trace:
    """`timestamp,duration,num_gpus,gpu_time,cluster`. The file has no ids: a job's id is its row, from 0."""
    builder = TraceBuilder("philly", source=str(path))
    for number, row in enumerate(read_table(path, required=CSV_COLUMNS)):
        fields: JobFields = {
            "id": str(number),
            "submit_s": row.moment("timestamp"),
            "gpus": row.whole("num_gpus"),
            "duration_s": row.number("duration"),
            "tenant": row.text("cluster") or "default",
        }
        builder.add(fields, line=row.line)
    return builder.build(zero_s=builder.earliest_s, origin=builder.earliest_s)


def read_philly_json(path: Path) -> Trace:
    """`cluster_job_log`: a JSON list of jobs, each with its attempts."""
    builder = TraceBuilder("philly-json", source=str(path))
    text = read_text(path)
    log = parse_json(text, source=str(path)) if text.strip() else []
    if not isinstance(log, list):
        raise InvalidTrace(f"found {type(log).__name__}; expected a JSON list of jobs", source=str(path))
    for number, value in enumerate(log):
        _add_job(builder, Entry(value, source=str(path), what=f"job {number}"))
    return builder.build(zero_s=builder.earliest_s, origin=builder.earliest_s)


def _add_job(builder: TraceBuilder, job: Entry) -> None:
    attempts = job.entries("attempts")
    run_s = [_run_time_s(attempt) for attempt in attempts]
    gpus_by_attempt = (sum(len(node.items("gpus")) for node in attempt.entries("detail")) for attempt in attempts)
    gpus = next((gpus for gpus in gpus_by_attempt if gpus), 0)
    if min(run_s, default=0) < 0:
        builder.skip(BACKWARDS)
    elif not sum(run_s):
        builder.skip(NO_RUN)
    elif not gpus:
        builder.skip(NO_GPUS)
    else:
        fields: JobFields = {
            "id": job.text("jobid"),
            "submit_s": job.moment("submitted_time"),
            "gpus": gpus,
            "duration_s": sum(run_s),
            "tenant": job.text("vc", default="") or "default",
            "outcome": _outcome(job),
            "labels": {"attempts": str(len(attempts)), "user": job.text("user", default="")},
        }
        builder.add(fields, line=None)


def _outcome(job: Entry) -> str:
    status = job.text("status")
    if status not in OUTCOMES:
        raise job.error("status", status, " or ".join(OUTCOMES))
    return OUTCOMES[status]


def _run_time_s(attempt: Entry) -> float:
    """Zero for an attempt that was never placed, or had not ended when the log did."""
    if attempt.is_blank("start_time") or attempt.is_blank("end_time"):
        return 0.0
    return attempt.moment("end_time") - attempt.moment("start_time")
