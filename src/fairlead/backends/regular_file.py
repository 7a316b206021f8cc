"""Regular files in directories that a job can write, opened without following links.

A job may put a link, a pipe or a device in place of a file that is read or written for it. To follow the link would
write to, or show, a file of the job's choice; to open the pipe would wait for ever. So no part of a path below `root`
may be a link, and nothing but a regular file is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

#: What opening fails with if something else is in the place of a directory, or of a regular file.
_IN_PLACE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR, errno.ENODEV}

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class NotRegular(OSError):
    """Something else is where a regular file, or a directory above it, should be."""

    def __init__(self, path: Path) -> None:
        told = "is, or lies behind, a link or something else that is no regular file, and is not opened"
        super().__init__(errno.ELOOP, told, str(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


def open_regular(path: Path, flags: int, *, root: Path | None = None, mode: int = 0o600) -> int:
    """A descriptor. `root` is a directory above that only we name; that of the file, by default."""
    folder = _open_folder(path.parent, root or path.parent)
    try:
        safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        handle = os.open(path.name, flags | safe, mode, dir_fd=folder)
    except OSError as error:
        raise _told(error, path) from None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(path)
    os.set_blocking(handle, True)  # or a worker that writes to it would inherit that
    return handle


def open_append(path: Path, *, root: Path | None = None) -> BinaryIO:
    return open(open_regular(path, APPEND, root=root), "ab", buffering=0)


def make_folder(path: Path, *, root: Path, mode: int = 0o700) -> None:
    """It and those between; none of them may be a link."""
    root.mkdir(parents=True, exist_ok=True, mode=mode)
    below = path.relative_to(root).parts
    for depth in range(1, len(below) + 1):
        here = root.joinpath(*below[:depth])
        folder = _open_folder(here.parent, root)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(here.name, mode, dir_fd=folder)
        finally:
            os.close(folder)
    os.close(_open_folder(path, root))


def write_whole(path: Path, text: str, *, root: Path | None = None, durable: bool = False) -> None:
    """Replace a file as a whole: a reader, and a second writer, never meet a part of it. `durable`: nor after a power
    cut."""
    draft = f"{path.stem}.{os.getpid()}-{threading.get_ident()}.draft"
    folder = _open_folder(path.parent, root or path.parent)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)  # of one that was killed, or a trap
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise _told(error, path) from None
    finally:
        os.close(folder)


def read_whole(path: Path, *, root: Path | None = None) -> bytes:
    with open(open_regular(path, os.O_RDONLY, root=root), "rb") as file:
        return file.read()


def _open_folder(path: Path, root: Path) -> int:
    """Of a directory at or below `root`, of which no part below that is a link."""
    here = os.open(root, _FOLDER)
    for part in path.relative_to(root).parts:
        try:
            deeper = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        except OSError as error:
            raise _told(error, path) from None
        finally:
            os.close(here)
        here = deeper
    return here


def _told(error: OSError, path: Path) -> OSError:
    if error.errno in _IN_PLACE:
        return NotRegular(path)
    return OSError(error.errno, error.strerror, str(path))  # the right subclass, with the whole path
