"""The limit of open files: a server needs a high one, and its jobs get the one it was started with.

Programs that go through all possible descriptors, or use select(2), are slow or wrong under a limit that is much higher
than usual, so that it stays the server's own.
"""

from __future__ import annotations

import contextlib
import resource

#: Where the system sets no limit, this one does.
_MOST = 2**20

#: The soft limit before it was raised.
_first: int | None = None


def raise_limit() -> int:
    """Raise this process's limit of open files as far as it goes; what it is then."""
    global _first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    with contextlib.suppress(OSError, ValueError):  # the system may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        _first = soft if _first is None else _first
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def give_first_limit(pid: int) -> None:
    """Of a child that was just started: the soft limit that this process had at first."""
    if _first is None:
        return
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_first, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
