"""The registry of trace formats: short names, readers, and how each one recognises its own files."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fairlead.core.errors import FairleadError, InvalidSpec
from fairlead.core.hints import did_you_mean
from fairlead.journal import STATE_DATABASE
from fairlead.plugins import load_from_file
from fairlead.sim.traces import alibaba, canonical, gavel, helios, journal, philly, pollux, swf, tiresias
from fairlead.sim.traces.assemble import trace_of_rows
from fairlead.sim.traces.files import names_in, read_head
from fairlead.sim.traces.record import InvalidTrace, Trace


@dataclass(frozen=True)
class Head:
    """What a format is guessed from: the beginning of a file, or the names in a directory."""

    path: Path
    #: The first characters of the file; empty for a directory.
    text: str = ""
    #: File names in the directory; empty for a file.
    names: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        """The first lines that are not blank."""
        return [line.rstrip("\r") for line in self.text.split("\n") if line.strip()][:20]

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names in the first line, read as a CSV header."""
        first = self.lines[0] if self.lines else ""
        return frozenset(name.strip().strip('"') for name in first.split(","))

    def has(self, *columns: str) -> bool:
        return self.columns.issuperset(columns)

    def tabs(self) -> int:
        """Tab-separated columns of the first line."""
        return self.lines[0].count("\t") + 1 if self.lines else 0


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format. `sniff` looks at the head only; `read` raises InvalidTrace for a file it cannot take."""

    name: str
    read: Callable[[Path], Trace]
    sniff: Callable[[Head], bool]
    summary: str


def _sniff_swf(head: Head) -> bool:
    """Eighteen words a line, the first one a number; or nothing but comments yet."""
    words = [line.split() for line in head.lines if not line.lstrip().startswith(";")]
    return len(words[0]) in swf.LAYOUTS and words[0][0].isdecimal() if words else bool(head.lines)


#: In the order they are tried when guessing: a format whose columns include another's comes first.
READERS: dict[str, TraceFormat] = {
    format.name: format
    for format in (
        TraceFormat(
            "fairlead",
            canonical.read_fairlead,
            lambda head: '"fairlead_trace"' in (head.lines or [""])[0] or head.has(*canonical.REQUIRED),
            "Fairlead's own form: JSONL, or CSV for jobs only",
        ),
        TraceFormat(
            "muri", tiresias.read_muri, lambda head: head.has(*tiresias.MURI_COLUMNS), "Muri's CSV; milliseconds"
        ),
        TraceFormat(
            "chronus",
            tiresias.read_chronus,
            lambda head: head.has(*tiresias.CHRONUS_COLUMNS),
            "Chronus' CSV; with deadlines",
        ),
        TraceFormat(
            "tiresias",
            tiresias.read_tiresias,
            lambda head: head.has(*tiresias.TIRESIAS_COLUMNS),
            "Tiresias' CSV; seconds",
        ),
        TraceFormat(
            "philly",
            philly.read_philly,
            lambda head: head.has(*philly.CSV_COLUMNS),
            "Philly as processed CSV: timestamp,duration,num_gpus,gpu_time,cluster",
        ),
        TraceFormat(
            "philly-json",
            philly.read_philly_json,
            lambda head: head.text.lstrip().startswith("[") and '"attempts"' in head.text,
            "Philly's original cluster_job_log, a JSON list",
        ),
        TraceFormat(
            "pollux",
            pollux.read_pollux,
            lambda head: head.has(*pollux.COLUMNS),
            "Pollux and Sia workloads: applications, no durations",
        ),
        TraceFormat(
            "gavel", gavel.read_gavel, lambda head: head.tabs() in gavel.GAVEL_LAYOUTS, "Gavel's tab-separated .trace"
        ),
        TraceFormat(
            "shockwave",
            gavel.read_shockwave,
            lambda head: head.tabs() in gavel.SHOCKWAVE_LAYOUTS,
            "Shockwave's tab-separated .trace, with batch-size modes",
        ),
        TraceFormat(
            "acme",
            helios.read_acme,
            lambda head: head.has(*helios.ACME_COLUMNS),
            "Acme's job log (Seren or Kalos), Shanghai AI Lab 2023",
        ),
        TraceFormat(
            "helios",
            helios.read_helios,
            lambda head: head.has(*helios.HELIOS_COLUMNS),
            "Helios' cluster_log.csv, SenseTime 2020",
        ),
        TraceFormat(
            "alibaba-2020",
            alibaba.read_alibaba_2020,
            lambda head: bool(alibaba.job_table_in((*head.names, head.path.name))) or head.has(*alibaba.JOB_TABLE),
            "Alibaba PAI 2020: pai_job_table.csv with pai_task_table.csv beside it, or their directory",
        ),
        TraceFormat(
            "alibaba-2023",
            alibaba.read_alibaba_2023,
            lambda head: bool(alibaba.pod_list_in(head.names)) or head.has(*alibaba.POD_COLUMNS),
            "Alibaba 2023: openb_pod_list_*.csv with a node list beside it, or their directory",
        ),
        TraceFormat(
            "journal",
            journal.read_journal_trace,
            lambda head: (
                head.text.startswith(journal.MAGIC) or not {STATE_DATABASE, "cluster.json"}.isdisjoint(head.names)
            ),
            "a Fairlead journal, or a service's state directory or database: the jobs that succeeded, as measured",
        ),
        TraceFormat("swf", swf.read_swf, _sniff_swf, "Standard Workload Format; processors are read as GPUs"),
    )
}


#: Entry points of this group are formats that installed packages add; each names a TraceFormat.
GROUP = "fairlead.traces"


#: A reader in a file of the user's own, like a policy: path/to/file.py:read_mine.
_FILE = re.compile(r"(?P<path>.*\.py)(?::(?P<name>\w+))?")


def find_format(name: str) -> TraceFormat:
    if (file := _FILE.fullmatch(name)) is not None:
        return _from_file(Path(file["path"]), file["name"])
    if name in READERS:
        return READERS[name]
    installed = _installed()
    if name in installed:
        return _load(installed[name])
    raise InvalidSpec(f"there is no trace format {name!r}{did_you_mean(name, format_names())}")


def format_names() -> list[str]:
    """Every format that can be named: our own, in the order they are tried, then those of installed packages."""
    return [*READERS, *(name for name in sorted(_installed()) if name not in READERS)]


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def guess_format(path: Path) -> TraceFormat:
    """The first format that recognises the file; those of installed packages are asked if none of our own does."""
    head = _head(path)
    for format in READERS.values():
        if format.sniff(head):
            return format
    faults: list[str] = []
    for name, point in sorted(_installed().items()):
        try:
            format = _load(point)
            if format.sniff(head):
                return format
        except Exception as error:  # what a plug-in does wrong is told if no other format fits
            faults.append(str(error) if isinstance(error, InvalidSpec) else f"trace format {name!r} raised {error!r}")
    raise _not_guessed(path, head, faults)


def _not_guessed(path: Path, head: Head, faults: Sequence[str]) -> InvalidTrace:
    if not head.names and not head.text.strip():
        return InvalidTrace("is empty; it has no jobs", source=str(path))
    if head.names:
        inside = ", ".join(head.names[:5]) + (", ..." if len(head.names) > 5 else "")
        return InvalidTrace(
            f"is a directory; expected a trace file, such as one of those in it: {inside}", source=str(path)
        )
    first = f"; it begins {head.lines[0][:60]!r}" if head.lines else ""
    return InvalidTrace(
        f"is in no format that can be guessed{first}. Name it with --format ({', '.join(sorted(format_names()))}), or "
        f"give a CSV the columns id, submit_s, gpus and duration_s{''.join(f'. {fault}' for fault in faults)}",
        source=str(path),
    )


def _load(point: EntryPoint) -> TraceFormat:
    try:
        loaded = point.load()
    except Exception as error:
        raise InvalidSpec(f"trace format {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
    if not isinstance(loaded, TraceFormat):
        raise InvalidSpec(f"trace format {point.name!r} ({point.value}) is not a fairlead.sim.traces.TraceFormat")
    return loaded


def _from_file(path: Path, name: str | None) -> TraceFormat:
    """A function from a path to a Trace, or to rows; or a TraceFormat."""
    if name is None:
        raise InvalidSpec(f"--format {path}: which reader? Write {path}:function")
    found = load_from_file(path, name, what="trace reader", usable=inspect.isfunction)
    if isinstance(found, TraceFormat):
        return found
    if not callable(found):
        raise InvalidSpec(f"{path}:{name} is no trace reader: expected a function of a path that returns a trace")
    return TraceFormat(f"{path}:{name}", lambda trace: _read_by(found, trace, f"{path}:{name}"), lambda _: False, "")


def _read_by(reader: Callable[[Path], Any], path: Path, name: str) -> Trace:
    try:
        found = reader(path)
        if isinstance(found, Trace):
            return found
        if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
            raise InvalidSpec(f"trace reader {name} returned {type(found).__name__}; expected a Trace, or rows")
        return trace_of_rows(found, format=name, source=str(path))
    except FairleadError:
        raise
    except Exception as error:  # whatever a reader of the user's own raises is its own fault
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidTrace(
            f"trace reader {name} raised {error!r} in {where.filename}, line {where.lineno}", source=str(path)
        ) from error


def _head(path: Path) -> Head:
    return Head(path, names=names_in(path)) if path.is_dir() else Head(path, text=read_head(path))
