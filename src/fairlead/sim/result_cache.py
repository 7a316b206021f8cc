"""Results of finished runs in a directory, found again by their fingerprint.

An entry is one file: a hash of the rest, then arrays and JSON in numpy's container, never pickled objects: to read an
entry executes nothing. Whatever is wrong with one (cut short, of another version, not ours) makes it no entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.errors import FairleadError
from fairlead.core.types import Node, Phase
from fairlead.sim.experiment import Experiment, Result
from fairlead.sim.metrics import JobOutcome, Measured, Metrics
from fairlead.sim.timeline import Segments, Timeline

_SUFFIX = ".run"
_DIGEST_SIZE = hashlib.sha256().digest_size

#: All entries together, in bytes; the least recently used ones go first.
MOST_BYTES = 256 * 1024 * 1024

_PLAIN = ("offered_load", "clipped", "oracle", "decisions", "decision_ms_mean", "decision_ms_p99", "wall_s", "cpu_s")
_SERIES = tuple(f.name for f in fields(Timeline) if f.type == "Floats")
_SEGMENTS = tuple(f.name for f in fields(Segments))


def default_directory() -> Path:
    """`fairlead/runs` in the user's cache directory, as the XDG convention has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "fairlead" / "runs"


@dataclass(frozen=True, slots=True)
class ResultCache:
    """A directory of results. Several processes may use it at once: entries appear and go as a whole."""

    directory: Path
    most_bytes: int = MOST_BYTES

    def find(self, fingerprint: str | None, experiment: Experiment) -> Result | None:
        """The result of an experiment with this fingerprint; None if there is none that can be read."""
        if fingerprint is None:
            return None
        path = self._path(fingerprint)
        try:
            data = path.read_bytes()
            result = decode(data, experiment)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, EOFError, FairleadError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return result

    def keep(self, fingerprint: str, result: Result) -> None:
        """Write an entry, all or nothing, and make room for it. Raises OSError if that cannot be done."""
        data = encode(result)
        if len(data) > self.most_bytes:
            return
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, self._path(fingerprint))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        self._make_room()

    def _path(self, fingerprint: str) -> Path:
        return self.directory / f"{fingerprint}{_SUFFIX}"

    def _make_room(self) -> None:
        found = []
        for path in self.directory.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix in (_SUFFIX, ".part"):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


# -- a result as bytes -----------------------------------------------------------------------------------------------


def encode(result: Result) -> bytes:
    """A hash, and what `decode` reads. The experiment is not in it: it is what the result is asked for by."""
    measured, timeline = result.measured, result.measured.timeline
    words = {
        "plain": {name: getattr(result, name) for name in _PLAIN},
        "left_out": dict(result.left_out),
        "notes": list(result.notes),
        "summary": measured.summary.to_dict(),
        "jobs": {f.name: [getattr(job, f.name) for job in measured.jobs] for f in fields(JobOutcome)},
        "span": [timeline.start_s, timeline.end_s],
        "nodes": [asdict(node) for node in timeline.nodes],
        "timeline_jobs": list(timeline.jobs),
    }
    arrays: dict[str, Any] = {f"series_{name}": getattr(timeline, name) for name in _SERIES}
    arrays |= {f"segment_{name}": getattr(timeline.segments, name) for name in _SEGMENTS}
    arrays["words"] = np.frombuffer(json.dumps(words).encode("utf-8", "surrogatepass"), dtype=np.uint8)
    body = io.BytesIO()
    np.savez_compressed(body, **arrays)
    return hashlib.sha256(body.getvalue()).digest() + body.getvalue()


def decode(data: bytes, experiment: Experiment) -> Result:
    """Raises ValueError or the like for anything that `encode` did not write."""
    digest, body = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the entry is damaged")
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        words = json.loads(arrays["words"].tobytes().decode("utf-8", "surrogatepass"))
        series = {name: arrays[f"series_{name}"] for name in _SERIES}
        segments = Segments(**{name: arrays[f"segment_{name}"] for name in _SEGMENTS})
    start_s, end_s = words["span"]
    timeline = Timeline(
        **series,
        start_s=start_s,
        end_s=end_s,
        nodes=tuple(_node(fields_) for fields_ in words["nodes"]),
        jobs=tuple(words["timeline_jobs"]),
        segments=segments,
    )
    summary = Metrics(**words["summary"])
    summary = replace(summary, unfinished_ids=tuple(summary.unfinished_ids))
    measured = Measured(summary, _outcomes(words["jobs"]), timeline)
    told = {"left_out": words["left_out"], "notes": tuple(words["notes"])}
    return Result(experiment=experiment, measured=measured, **told, **words["plain"])


def _outcomes(columns: dict[str, list[Any]]) -> tuple[JobOutcome, ...]:
    columns["phase"] = [Phase(phase) for phase in columns["phase"]]
    names = list(columns)
    return tuple(JobOutcome(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _node(values: dict[str, Any]) -> Node:
    values["outside"] = tuple(values["outside"])
    return Node(**values)
