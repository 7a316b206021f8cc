"""Notes for people that the workers of a job without an agent leave in a file, which the supervisor passes on.

The file is the job's: it may hold anything, be a link, or grow without end. So no link is followed, little of it is
read, and what is no note is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.backends.files import Line, parse
from fairlead.backends.regular_file import open_regular
from fairlead.train.wire import MOST_NOTES, MOST_NOTES_BYTES, NOTE_FIELDS, NOTED


class WorkerNotes:
    """Of one attempt, read as they are appended."""

    def __init__(self, path: Path, attempt: int) -> None:
        self._path, self._attempt = path, attempt
        self._position = self._told = 0

    def read(self) -> list[Line]:
        """New ones, each with its kind as `what`, and the attempt."""
        found = []
        for raw in self._new_lines():
            line = parse(raw)
            if line is not None and line.get("kind") in NOTED and self._told < MOST_NOTES:
                self._told += 1
                fields = {name: line[name] for name in NOTE_FIELDS if name in line}
                found.append({**fields, "what": line["kind"], "attempt": self._attempt})
        return found

    def _new_lines(self) -> list[bytes]:
        try:
            handle = open_regular(self._path, os.O_RDONLY, root=self._path.parents[2])
        except OSError:
            return []
        try:
            data = os.pread(handle, max(0, MOST_NOTES_BYTES - self._position), self._position)
        except OSError:
            return []
        finally:
            os.close(handle)
        whole = data.rpartition(b"\n")[0]
        self._position += len(whole) + 1 if whole else 0
        return whole.split(b"\n") if whole else []
