"""From the rows a reader found to a Trace: order, second 0, unique ids, and a count of what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Required, TypedDict, cast

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces.record import InvalidTrace, NodeFailure, Recording, Trace, TraceJob, TraceNode
from fairlead.sim.traces.table import shown

NO_GPUS = "asked for no GPUs"
NO_RUN = "never ran"
NO_TIME = "ran for no time"
UNFINISHED = "had not ended"
BACKWARDS = "ended before it started"


class JobFields(TypedDict, total=False):
    """What a reader knows of one job: TraceJob's fields, times still on the file's own clock."""

    id: Required[str]
    submit_s: Required[float]
    gpus: Required[int]
    gpus_min: int
    gpus_max: int
    duration_s: float | None
    estimate_s: float | None
    name: str
    tenant: str
    model: str | None
    batch: int | None
    steps: float | None
    mode: str
    gpu_types: tuple[str, ...]
    in_place: bool
    preemptible: bool
    adapts: str
    priority: int
    weight: float
    deadline_s: float | None
    outcome: str
    labels: dict[str, str]
    recording: Recording | None


class TraceBuilder:
    """Collects jobs in file order. `build` is called once, after the last job."""

    def __init__(self, format: str, *, source: str) -> None:
        self.format, self.source = format, source
        self._jobs: list[tuple[int | None, JobFields]] = []
        self._lines: dict[str, int | None] = {}
        self._skipped: Counter[str] = Counter()

    def add(self, fields: JobFields, *, line: int | None) -> None:
        """Take a job, unless it is recorded as having run for no time: nothing can be learnt by replaying it."""
        if fields.get("duration_s") == 0:
            self.skip(NO_TIME)
        else:
            self.keep(fields, line=line)

    def keep(self, fields: JobFields, *, line: int | None) -> None:
        """Take a job as it is."""
        if (job := fields["id"]) in self._lines:
            first = self._lines[job]
            where = "" if first is None else f" on line {first}"
            problem = f"job {shown(job)} is there already{where}; expected every id once"
            raise InvalidTrace(problem, source=self.source, line=line)
        self._lines[job] = line
        self._jobs.append((line, fields))

    def skip(self, reason: str, count: int = 1) -> None:
        self._skipped[reason] += count

    @property
    def earliest_s(self) -> float:
        """The first submission, on the file's own clock."""
        return min((fields["submit_s"] for _, fields in self._jobs), default=0.0)

    def build(
        self,
        *,
        zero_s: float = 0.0,
        origin: float | None = None,
        nodes: Iterable[TraceNode] = (),
        failures: Iterable[NodeFailure] = (),
    ) -> Trace:
        """The trace, with `zero_s` of the file's own clock as second 0."""
        if not self._jobs:
            left_out = "".join(f"; {count} left out: {reason}" for reason, count in self._skipped.items())
            raise InvalidTrace(f"has no jobs{left_out}", source=self.source)
        self._jobs.sort(key=lambda entry: entry[1]["submit_s"])
        return Trace(
            jobs=tuple(self._job(fields, line, zero_s) for line, fields in self._jobs),
            format=self.format,
            source=self.source,
            origin=origin,
            nodes=tuple(nodes),
            failures=tuple(failures),
            skipped=dict(self._skipped),
        )

    def _job(self, fields: JobFields, line: int | None, zero_s: float) -> TraceJob:
        fields["submit_s"] -= zero_s
        if (deadline_s := fields.get("deadline_s")) is not None:
            fields["deadline_s"] = deadline_s - zero_s
        fields.setdefault("gpus_min", fields["gpus"])
        fields.setdefault("gpus_max", fields["gpus"])
        try:
            return TraceJob(**fields)
        except InvalidSpec as error:
            raise InvalidTrace(f"job {shown(fields['id'])}: {error}", source=self.source, line=line) from None


def trace_of_rows(rows: Iterable[TraceJob | Mapping[str, Any]], *, format: str, source: str) -> Trace:
    """A trace from jobs, or from mappings with fields of `TraceJob`: `id`, `submit_s` and `gpus` at least."""
    builder = TraceBuilder(format, source=source)
    for number, row in enumerate(rows, 1):
        if isinstance(row, TraceJob):
            values = {field.name: getattr(row, field.name) for field in fields(TraceJob)}
            builder.keep(cast(JobFields, values), line=number)
        elif isinstance(row, Mapping):
            builder.add(_fields_of(row, source=source, line=number), line=number)
        else:
            problem = f"found {shown(row)}; expected a TraceJob, or a mapping such as a dictionary"
            raise InvalidTrace(problem, source=source, line=number)
    return builder.build()


def _fields_of(row: Mapping[str, Any], *, source: str, line: int) -> JobFields:
    known = {field.name for field in fields(TraceJob)}
    missing = [name for name in ("id", "submit_s", "gpus") if name not in row]
    unknown = [name for name in row if name not in known]
    if missing or unknown:
        problem = f"a row has no {missing[0]!r}" if missing else f"a row has {unknown[0]!r}, which no job has"
        raise InvalidTrace(f"{problem}; known are {', '.join(sorted(known))}", source=source, line=line)
    try:
        values = {**row, "id": str(row["id"]), "submit_s": float(row["submit_s"]), "gpus": int(row["gpus"])}
    except (TypeError, ValueError) as error:
        raise InvalidTrace(f"a row has a value that is no number: {error}", source=source, line=line) from None
    return cast(JobFields, values)
