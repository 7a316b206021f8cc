"""Gavel's tab-separated traces (Narayanan et al., OSDI '20) and Shockwave's extension (Zheng et al., NSDI '23).

There is no header: the number of columns tells the version. Work is given in steps; how long a step takes is in the
throughput tables that came with the papers, not here. Commands are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.sim.traces.assemble import NO_GPUS, JobFields, TraceBuilder
from fairlead.sim.traces.files import read_text
from fairlead.sim.traces.record import Trace
from fairlead.sim.traces.table import Row, layout, make_row

GAVEL_LAYOUTS = {
    6: layout("job_type command steps_arg total_steps arrival scale_factor"),
    7: layout("job_type command steps_arg needs_data total_steps arrival scale_factor"),
    9: layout("job_type command steps_arg needs_data total_steps scale_factor priority SLO arrival"),
    10: layout("job_type command workdir steps_arg needs_data total_steps scale_factor priority SLO arrival"),
}
SHOCKWAVE_LAYOUTS = {
    11: layout("job_type command workdir steps_arg needs_data total_steps scale_factor mode priority SLO arrival"),
    12: layout(
        "job_type command workdir steps_arg needs_data total_steps scale_factor mode priority SLO duration arrival"
    ),
}

MODES = ("static", "accordion", "gns")

_JOB_TYPE = re.compile(r"(.+?) \(batch size (\d{1,9})\)")


def read_gavel(path: Path) -> Trace:
    return _read("gavel", path, GAVEL_LAYOUTS)


def read_shockwave(path: Path) -> Trace:
    return _read("shockwave", path, SHOCKWAVE_LAYOUTS)


def _read(format: str, path: Path, layouts: Mapping[int, Mapping[str, int]]) -> Trace:
    """Ids are row numbers from 0, as in both artifacts' results."""
    builder = TraceBuilder(format, source=str(path))
    for number, row in enumerate(_rows(path, layouts)):
        if row.whole("scale_factor", at_least=0) == 0:
            builder.skip(NO_GPUS)
        else:
            builder.add(_job(row, number), line=row.line)
    return builder.build()


def _rows(path: Path, layouts: Mapping[int, Mapping[str, int]]) -> Iterator[Row]:
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if text.strip():
            yield make_row(text.rstrip("\r").split("\t"), layouts, source=str(path), line=line)


def _job(row: Row, number: int) -> JobFields:
    model, batch = _job_type(row)
    fields: JobFields = {
        "id": str(number),
        "submit_s": row.number("arrival"),
        "gpus": row.whole("scale_factor"),
        "model": model,
        "batch": batch,
        "steps": float(row.whole("total_steps")),
    }
    if row.has("priority"):
        fields["weight"] = row.number("priority")
    if row.has("mode"):
        fields["mode"] = _mode(row)
    if row.has("duration"):
        # The generator's estimate; the true time follows from steps and the throughput table.
        fields["estimate_s"] = row.number("duration")
    if row.has("SLO") and (factor := row.number("SLO", at_least=-1)) > 0:
        # Gavel's scheduler sets the deadline to arrival + SLO x duration: without a duration only the factor is known.
        fields["labels"] = {"slo_factor": row.text("SLO")}
        if row.has("duration"):
            fields["deadline_s"] = fields["submit_s"] + factor * row.number("duration")
    return fields


def _job_type(row: Row) -> tuple[str, int | None]:
    """`ResNet-18 (batch size 128)`; the oldest traces and models without a batch have a bare name."""
    name = row.name("job_type")
    match = _JOB_TYPE.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def _mode(row: Row) -> str:
    mode = row.text("mode")
    if mode not in MODES:
        raise row.error("mode", " or ".join(MODES))
    return mode
