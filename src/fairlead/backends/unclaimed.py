"""Attempts that run although no job of the journal claims them, as after the restore of an older backup.

What they are is not known: the database that knew is gone. But they hold GPUs that the loop believes to be free, so
they are asked to save and stop, and ended when their time is up. Their files stay.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from pathlib import Path

from fairlead.backends.files import Appender, AttemptFiles
from fairlead.backends.ownership import end_belongings
from fairlead.backends.processes import cookie_of, cookies
from fairlead.backends.regular_file import NotRegular

#: A job and the number of an attempt.
Key = tuple[str, int]

#: Seconds beyond the grace period until supervisors that do not end are killed.
_BEYOND_S = 10.0
WHY = "the database does not know this attempt: it was restored from a backup that is older"


def find_unclaimed(root: Path, claimed: Collection[Key]) -> list[Key]:
    """Attempts with processes, but for those that are claimed, and those that have told their end."""
    found = _running(root) - set(claimed)
    return sorted(key for key in found if not _has_ended(_files(root, key)))


def _has_ended(files: AttemptFiles) -> bool:
    try:
        return files.told("ended") is not None
    except NotRegular:  # it has spoilt its own file
        return False


def end_unclaimed(root: Path, keys: Collection[Key], *, grace_s: float) -> list[Key]:
    """Ask them to save and stop, and kill what is left when the time is up. Returns those that had to be killed."""
    for key in keys:
        with contextlib.closing(Appender(_files(root, key).orders, root=root)) as orders, contextlib.suppress(OSError):
            orders.append({"order": "stop", "grace_s": grace_s, "why": WHY})
    until = time.monotonic() + grace_s + _BEYOND_S
    waiting = {key for key in keys if _files(root, key).is_alive}
    while waiting and time.monotonic() < until:
        time.sleep(0.05)
        waiting = {key for key in waiting if _files(root, key).is_alive}
    for job, attempt in keys:  # also of those without a supervisor that could be asked
        end_belongings(_files(root, (job, attempt)), cookie_of(job, attempt, root))
    return sorted(waiting)


def _files(root: Path, key: Key) -> AttemptFiles:
    return AttemptFiles(root / key[0] / f"attempt-{key[1]}")


def _running(root: Path) -> set[Key]:
    """By the cookies of all processes that may be looked at: there are fewer of these than of directories."""
    found = set()
    for cookie in cookies().values():
        job, _, attempt = cookie.removeprefix(f"{root}:").partition(":")
        if cookie.startswith(f"{root}:") and attempt.isdecimal():
            found.add((job, int(attempt)))
    return found
