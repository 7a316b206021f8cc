"""Trace files in, Traces out: `read_trace` guesses or is told which of the public formats a file is in."""

from __future__ import annotations

from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.database_url import POSTGRES, without_password
from fairlead.sim.traces.formats import READERS, TraceFormat, find_format, format_names, guess_format
from fairlead.sim.traces.journal import read_journal_trace
from fairlead.sim.traces.record import InvalidTrace, NodeFailure, Trace, TraceJob, TraceNode

__all__ = [
    "READERS",
    "InvalidTrace",
    "NodeFailure",
    "Trace",
    "TraceFormat",
    "TraceJob",
    "TraceNode",
    "format_names",
    "read_trace",
]


#: How the URL of a database begins.
DATABASES = (*POSTGRES, "sqlite:///")


def read_trace(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace file, plain or gzip-compressed. InvalidTrace says where it is wrong.

    `format` is one of `format_names()`; left out, it is guessed from the file's first lines. The database of a service
    can be named by its URL, too.
    """
    if isinstance(path, str) and path.startswith(DATABASES):
        if format not in (None, "journal"):
            raise InvalidSpec(
                f"{without_password(path)} is a database, but the format is {format!r}; leave --format out"
            )
        return read_journal_trace(path)
    reader = guess_format(Path(path)) if format is None else find_format(format)
    return reader.read(Path(path))
