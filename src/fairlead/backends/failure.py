"""What a failed attempt printed last, and whether it failed just as the attempt before it: then a third one would, too.

An error that another try can mend (a network, a device, a full disk of a moment) seldom says the same words twice
within a minute of the start; a missing module or a wrong option always does.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from fairlead.backends.files import Line, above_log
from fairlead.backends.regular_file import open_regular

#: An attempt that lasted no longer than this has failed at its start.
QUICK_S = 60.0

#: Exit codes from here on are of signals: something else has ended the process, which proves nothing of its program.
FIRST_OF_SIGNALS = 128

#: How much of the end of a log is read for its last line, and how many characters of that line are kept.
_READ_BYTES, _MOST_CHARACTERS = 8192, 200

#: Colours and movements of a terminal, and all that is no printable character.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def last_line(log: Path) -> str:
    """The last line of a log with a letter or digit in it, shortened; empty if there is none that can be read."""
    with contextlib.suppress(OSError):
        return _last_of(_tail(log).decode("utf-8", errors="replace"))
    return ""


def _tail(log: Path) -> bytes:
    """The log is in a directory of the job: what the job may have put in its place is neither followed nor awaited."""
    descriptor = open_regular(log, os.O_RDONLY, root=above_log(log))
    try:
        return os.pread(descriptor, _READ_BYTES, max(0, os.fstat(descriptor).st_size - _READ_BYTES))
    finally:
        os.close(descriptor)


def _last_of(text: str) -> str:
    for line in reversed(re.split(r"[\r\n]+", _ESCAPES.sub("", text))):
        shown = "".join(each if each.isprintable() else " " for each in line).strip()
        if any(each.isalnum() for each in shown):  # and not one that was drawn under an error
            return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[: _MOST_CHARACTERS - 3]}..."
    return ""


def repeats(before: Line | None, now: Line) -> bool:
    """Two attempts in succession have failed at once, with the same exit code and the same last line. Both are the last
    line of their attempt's file of events; None if the one before has none."""
    if before is None or before.get("stopped") or not 0 < now["code"] < FIRST_OF_SIGNALS or not now["last_line"]:
        return False
    same = (before["code"], before.get("last_line")) == (now["code"], now["last_line"])
    return same and max(before.get("lasted_s", QUICK_S + 1.0), now["lasted_s"]) <= QUICK_S
