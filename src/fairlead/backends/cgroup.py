"""A control group for each attempt, where one may be had: all that a job starts is in it, however it was started.

Version 2 where it is mounted and delegated to us, else the freezer or pids hierarchy of version 1. Never needed: where
none may be made, an attempt goes without. `fairlead doctor` tells.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

#: What our groups are called, so that no other is ever taken for one.
_PREFIX = "fairlead."

#: Hierarchies of version 1 in which being moved to a group of one's own changes nothing else.
_PLAIN = ("freezer", "pids")


#: Seconds in which a group without members can be removed.
_GONE_S = 1.0


@dataclass(frozen=True)
class Cgroup:
    """One of ours. It may not be there (any more)."""

    path: Path

    def make(self) -> bool:
        """False if it may not be made."""
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700)
            return True
        return False

    def join(self) -> bool:
        """Be in it, with all that we start from now on. False if that cannot be."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.procs").write_text("0")
            return True
        return False

    def members(self) -> list[int]:
        """Processes in it and in the groups that these have made."""
        found: list[int] = []
        for group in self._groups():
            with contextlib.suppress(OSError):
                found += map(int, (group / "cgroup.procs").read_text().split())
        return [pid for pid in found if pid > 0]  # 0 is one that cannot be seen from here

    def kill(self) -> None:
        """All at once, where the kernel can: what forks as fast as it is killed does not get away."""
        with contextlib.suppress(OSError):
            if self.is_ours and (self.path / "cgroup.kill").exists():
                (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """If nothing is in it. What was killed may take a moment to be gone."""
        until = time.monotonic() + _GONE_S
        while (groups := self._groups()) and not self.members():
            for group in reversed(groups):
                with contextlib.suppress(OSError):
                    group.rmdir()
            if time.monotonic() > until:
                break
            time.sleep(0.01)

    @property
    def is_ours(self) -> bool:
        return self.path.name.startswith(_PREFIX) and (self.path / "cgroup.procs").exists()

    def _groups(self) -> list[Path]:
        """It and those below it, the upper ones first."""
        return [Path(folder) for folder, _, _ in os.walk(self.path)] if self.is_ours else []


def place(name: str, *, proc: Path = _PROC) -> Cgroup | None:
    """A group that is not there yet, below our own; None where none can be made."""
    name = _PREFIX + re.sub(r"[^A-Za-z0-9-]", "-", name)[:64] + f".{secrets.token_hex(8)}"
    return next((Cgroup(own / name) for own in own_groups(proc) if _is_writable(own)), None)


def own_groups(proc: Path = _PROC) -> Iterator[Path]:
    """Of this process: those in which groups could be made, the better ones first."""
    try:
        mounts = (proc / "self/mountinfo").read_text().splitlines()
        ours = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for wanted in ("", *_PLAIN):
        path = next((path for _, controllers, path in ours if wanted in controllers.split(",")), None)
        for line in mounts if path is not None else ():
            fields, _, kind = line.partition(" - ")
            root, point = fields.split()[3:5]
            fstype, _, options = kind.split()[:3]
            matches = fstype == "cgroup2" if not wanted else fstype == "cgroup" and wanted in options.split(",")
            if matches and path is not None and _is_below(path, root):
                yield Path(point) / os.path.relpath(path, root)


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _is_writable(group: Path) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)


def where_made() -> Path | None:
    """The group below which those of attempts can be made, tried out with a process; None if they cannot."""
    group = place("probe")
    if group is None or not group.make():
        return None
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if group.join() else 1)
        return group.path.parent if os.waitpid(child, 0)[1] == 0 else None
    finally:
        group.remove()
