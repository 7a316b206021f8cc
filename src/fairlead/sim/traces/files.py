"""Bytes in and out of trace files: plain or gzip-compressed, and never half written."""

from __future__ import annotations

import errno
import gzip
import os
import sys
import tempfile
import zlib
from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.sim.traces.record import InvalidTrace

GZIP_MAGIC = b"\x1f\x8b"


def read_text(path: Path) -> str:
    """The whole file as text; UTF-8, with or without a byte-order mark."""
    data = _read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidTrace(
            f"found the byte 0x{data[error.start]:02x}; expected text in UTF-8", source=str(path), line=line
        ) from None


def read_head(path: Path, size: int = 65536) -> str:
    """The first characters of a file, for guessing its format; undecodable bytes are replaced, not refused."""
    try:
        with path.open("rb") as file:
            data = file.read(size)
        if data.startswith(GZIP_MAGIC):
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, size)
    except OSError as error:
        raise _cannot_read(path, error) from None
    except zlib.error as error:
        raise InvalidTrace(f"is not a readable gzip file: {error}", source=str(path)) from None
    return data.decode("utf-8-sig", errors="replace")


def names_in(path: Path) -> tuple[str, ...]:
    """Sorted names of a directory's files; none for anything else."""
    try:
        return tuple(sorted(child.name for child in path.iterdir())) if path.is_dir() else ()
    except OSError as error:
        raise InvalidTrace(f"cannot be listed: {error.strerror or error}", source=str(path)) from None


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidTrace(f"is not a readable gzip file: {error}", source=str(path)) from None
    except OSError as error:
        raise _cannot_read(path, error) from None


def _cannot_read(path: Path, error: OSError) -> InvalidTrace:
    if isinstance(error, FileNotFoundError):
        problem = "there is no such file; check the path"
    elif isinstance(error, IsADirectoryError):
        problem = "is a directory; expected a trace file"
    elif isinstance(error, PermissionError):
        problem = "may not be read by this user; check the file's permissions"
    else:
        problem = f"cannot be read: {error.strerror or error}"
    return InvalidTrace(problem, source=str(path))


def write_text(path: Path | str, text: str) -> None:
    """Write all of `text` or nothing: a temporary file beside the target takes its place. `-` is standard output."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidSpec(f"{path}: a name holds {text[error.start]!r}, which UTF-8 cannot write; rename it") from None
    if str(path) == "-":
        sys.stdout.write(text)
        return
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    try:
        _replace(path, data)
    except OSError as error:
        raise InvalidSpec(f"{path}: cannot be written: {error.strerror or error}") from None


def _replace(path: Path, data: bytes) -> None:
    # Follow a symbolic link to its target: replacing the link itself would lose it.
    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory; expected a file name")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else _default_mode())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _default_mode() -> int:
    """What `open` would have given the file; mkstemp makes it private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
