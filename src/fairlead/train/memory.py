"""Memory that all workers of a job on one machine see, and that is ready before it is needed."""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from pathlib import Path

#: Where files are memory.
SHARED = Path("/dev/shm")


class Memory:
    """A piece of memory that all workers of a generation on one machine see."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Make it, if a size is given; or else find it. Raises OSError, and leaves nothing behind."""
        self.path = path
        with path.open("r+b" if size is None else "x+b") as file:
            try:
                if size is not None:
                    os.posix_fallocate(file.fileno(), 0, size)
                self.map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            except (OSError, ValueError):  # ValueError: it is empty, since its maker has not finished
                if size is not None:
                    self.forget()
                raise

    def forget(self) -> None:
        """Whoever has it keeps it; nobody else will find it."""
        self.path.unlink(missing_ok=True)


def made(path: Path, size: int) -> Memory | None:
    """None if there is no room for it: in a container it may be as little as 64 MB."""
    try:
        return Memory(path, size)
    except OSError:
        return None


def found(path: Path) -> Memory | None:
    """None if nobody has made it."""
    try:
        return Memory(path)
    except (OSError, ValueError):
        return None


def path_of(token: str, generation: int) -> Path:
    """Of the memory through which a generation gets its state."""
    return SHARED / f"fairlead-{zlib.crc32(token.encode()):08x}-{generation}"


def clean_up(token: str) -> None:
    """What workers that were killed have left behind."""
    for path in SHARED.glob(f"{path_of(token, 0).name.removesuffix('0')}*"):
        with contextlib.suppress(OSError):
            path.unlink()
