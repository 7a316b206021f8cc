"""Trace files in, Traces out: `read_trace` guesses or is told which of the public formats a file is in."""

from __future__ import annotations

from pathlib import Path

from fairlead.sim.traces.formats import READERS, TraceFormat, find_format, format_names, guess_format
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


def read_trace(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace file, plain or gzip-compressed. InvalidTrace says where it is wrong.

    `format` is one of `format_names()`; left out, it is guessed from the file's first lines.
    """
    reader = guess_format(Path(path)) if format is None else find_format(format)
    return reader.read(Path(path))
