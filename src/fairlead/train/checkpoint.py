"""Checkpoints on disk: written whole or not at all, and never loaded unless every byte is as it was written.

One file holds one state, and the state is replicated, so any number of workers can read it. A file consists of

    magic, version, length of the header
    header: JSON with the step, the model's signature, the tree, and the table of blobs
    payload: the blobs, which are the raw bytes of tensors, arrays and byte strings, each 64-byte aligned
    seal: CRC-32 of every 16 MiB of the above, the length of the above, CRC-32 of the seal itself

The seal comes last so that a file is written in one pass. Later versions may change everything but the seal: damage is
told from novelty by checking it first. There is no pickle: whoever can write a checkpoint cannot run code with it.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.train.directory_lock import DirectoryLock, Held, Holder
from fairlead.train.tree import Layout, aligned, dtype_name, lay_out, restore

MAGIC = b"FAIRCKPT"
VERSION = 1
CHUNK = 16 << 20

_PREFIX = struct.Struct("<8sIQ")
_SEAL_END = struct.Struct("<QI")
_NAME = re.compile(r"(\d{8})-step-(\d+)\.ckpt")
_DRAFT_SUFFIX = ".draft"

#: Seconds to wait for the process that saved there before to end, unless another time is given.
LOCK_S = 10.0

#: name -> (shape, dtype) of everything in a model's state.
Signature = dict[str, tuple[tuple[int, ...], str]]


def signature_of(model_state: Mapping[str, Any]) -> Signature:
    """What `model.state_dict()` looks like, to tell one model's checkpoints from another's."""
    return {
        name: (tuple(value.shape), dtype_name(value.dtype))
        for name, value in model_state.items()
        if isinstance(value, torch.Tensor)
    }


@dataclass(frozen=True)
class Loaded:
    """A verified checkpoint. Tensors and arrays are views of a private map of the file.

    Copy them into the model with `load_state_dict`. Whoever keeps one instead (a torch optimiser on the CPU does) may
    write to it: the file does not change, and may be deleted meanwhile.
    """

    state: dict[str, Any]
    step: int
    path: Path


class Store:
    """The checkpoints of one job in one directory: the last `keep` written, newest first. It has one writer at a time,
    which holds a lock.

    With a signature, checkpoints of another model are refused.
    """

    def __init__(self, directory: Path | str, *, keep: int = 2, signature: Signature | None = None) -> None:
        self.directory = Path(directory)
        if keep < 1:
            raise InvalidSpec(f"a store keeps at least one checkpoint, not {keep}")
        if self.directory.exists() and not self.directory.is_dir():
            raise InvalidSpec(f"{self.directory} is a file; checkpoints need a directory: name another place")
        self._keep = keep
        self.signature = signature
        #: Files found damaged: they take no place among those kept, and go with the next save.
        self._damaged: set[Path] = set()
        #: Seconds the last save took, from the first byte until it was safe on disk.
        self.last_save_s: float | None = None
        #: The step that was saved last; None if none was.
        self.last_step: int | None = None
        self._directory_lock = DirectoryLock(self.directory)
        #: Guards the three below. A writer lives only while there is something to write.
        self._lock = threading.Lock()
        self._waiting: tuple[Layout, int] | None = None
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    def check(self) -> None:
        """Whether it can be written to; better now than when there is something to lose."""
        probe = self.directory / f".{os.getpid()}{_DRAFT_SUFFIX}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InvalidSpec(
                f"checkpoints: cannot write in {self.directory}: {error.strerror}; give access, or name another place"
            ) from None

    def occupy(self, *, within_s: float | None = None, on_wait: Callable[[Holder], None] | None = None) -> None:
        """For this process, until it ends. Raises InvalidSpec if another one has it, and does not end in time either.
        `on_wait` hears which one, if there is a wait."""
        try:
            self._occupy(within_s, on_wait)
        except OSError as error:
            longer = ", or wait longer: init(lock_timeout_s=...)" if isinstance(error, Held) else ""
            raise InvalidSpec(
                f"checkpoints: {self.directory} cannot be used: {error.strerror or error}; "
                f"name another directory{longer}"
            ) from None

    def save(self, state: Mapping[str, Any], *, step: int) -> Path:
        """After this returns, a crash does not lose the state."""
        layout = lay_out(state, step=step, signature=self.signature)
        self.wait()
        return self._write(layout, step)

    def save_async(self, state: Mapping[str, Any], *, step: int) -> None:
        """Save in the background; a request that has not begun is replaced by a newer one.

        The caller leaves the tensors in `state` alone until `busy` is false. What cannot be saved is refused here; an
        error of the disk is raised by the next call of `save`, `save_async` or `wait`.
        """
        layout = lay_out(state, step=step, signature=self.signature)
        self._raise_failure()
        with self._lock:
            self._waiting = layout, step
            if self._writer is None:
                # Not a daemon: the interpreter lets it finish before it exits.
                self._writer = threading.Thread(target=self._write_what_waits, name="fairlead-checkpoint")
                self._writer.start()

    @property
    def busy(self) -> bool:
        """Whether something is being written or waits to be."""
        return self._writer is not None

    def wait(self) -> None:
        """Until everything asked for is on disk."""
        writer = self._writer
        if writer is not None:
            writer.join()
        self._raise_failure()

    def latest(self) -> Loaded | None:
        """The newest intact checkpoint, with a warning for each damaged one that is newer."""
        for path in reversed(self._paths()):
            try:
                return _load(path, self.signature)
            except _Damaged as error:
                self._damaged.add(path)
                warnings.warn(f"checkpoint {path} is damaged ({error}); trying the one before it", stacklevel=2)
            except FileNotFoundError:  # its writer saved a newer one meanwhile
                return self.latest()
            except OSError as error:
                raise BackendError(f"cannot read checkpoint {path}: {error.strerror}") from error
        return None

    def _write_what_waits(self) -> None:
        while True:
            with self._lock:
                request, self._waiting = self._waiting, None
                if request is None:
                    self._writer = None
                    return
            try:
                self._write(*request)
            except Exception as error:
                with self._lock:
                    self._failure = error
            del request  # or its tensors would stay in memory until the next

    def _raise_failure(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write(self, layout: Layout, step: int) -> Path:
        began = time.perf_counter()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._occupy()
            self._remove_drafts()
            before = self._paths()
            number = 1 + (int(before[-1].name[:8]) if before else 0)
            path = self.directory / f"{number:08}-step-{step}.ckpt"
            _write_whole(path, layout)
            self.last_save_s, self.last_step = time.perf_counter() - began, step
            self._prune()
        except OSError as error:
            raise BackendError(
                f"cannot save step {step} in {self.directory}: {error.strerror or error}; "
                "earlier checkpoints are as they were. Make room or give access there, then save again"
            ) from error
        return path

    def _occupy(self, within_s: float | None = None, on_wait: Callable[[Holder], None] | None = None) -> None:
        self._directory_lock.take(within_s=LOCK_S if within_s is None else within_s, on_wait=on_wait)

    def _paths(self) -> list[Path]:
        """Oldest first, by the order of writing: a job that went back to an earlier step writes smaller steps again."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackendError(f"cannot look for checkpoints in {self.directory}: {error.strerror}") from error
        return [self.directory / name for name in sorted(names) if _NAME.fullmatch(name)]

    def _prune(self) -> None:
        intact = [path for path in self._paths() if path not in self._damaged]
        for path in [*intact[: -self._keep], *self._damaged]:
            path.unlink(missing_ok=True)
        self._damaged.clear()

    def _remove_drafts(self) -> None:
        """What killed writers left behind."""
        for draft in self.directory.glob(f".*{_DRAFT_SUFFIX}"):
            draft.unlink(missing_ok=True)


# --- The file: sealed when written, checked when read -----------------------------------------------------------------


class _Damaged(Exception):
    """The file is not what was written; says in which way."""


class _SealedFile:
    """Writes bytes to a file descriptor, and their checksums after them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._length = 0
        self._sums: list[int] = []

    def pad_to(self, position: int) -> None:
        self.write(memoryview(bytes(position - self._length)))

    def write(self, data: memoryview) -> None:
        while data:
            part = data[: CHUNK - self._length % CHUNK]
            if self._length % CHUNK == 0:
                self._sums.append(0)
            self._sums[-1] = zlib.crc32(part, self._sums[-1])
            _write_all(self._descriptor, part)
            self._length += len(part)
            data = data[len(part) :]

    def seal(self) -> None:
        sums = struct.pack(f"<{len(self._sums)}IQ", *self._sums, self._length)
        _write_all(self._descriptor, memoryview(sums + struct.pack("<I", zlib.crc32(sums))))


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _write_whole(path: Path, layout: Layout) -> None:
    """Afterwards the file is there, complete and on disk; or an error was raised and nothing has changed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{_DRAFT_SUFFIX}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            file = _SealedFile(descriptor)
            file.write(memoryview(_PREFIX.pack(MAGIC, VERSION, len(layout.header)) + layout.header))
            start = aligned(_PREFIX.size + len(layout.header))
            for offset, fetch in layout.blobs:
                file.pad_to(start + offset)
                file.write(fetch())
            file.seal()
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(path: Path, expected: Signature | None) -> Loaded:
    with path.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size < _PREFIX.size + _SEAL_END.size:
            raise _Damaged("it is too short")
        file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    _check_seal(file)
    magic, version, header_size = _PREFIX.unpack_from(file)
    if magic != MAGIC:
        raise InvalidSpec(f"{path} is not a Fairlead checkpoint; move it away")
    if version > VERSION:
        raise InvalidSpec(f"{path} was written by a newer Fairlead (checkpoint version {version}); upgrade to read it")
    end = _PREFIX.size + header_size
    header = json.loads(file[_PREFIX.size : end])
    _check_signature(path, header["signature"], expected)
    return Loaded(restore(header, file, aligned(end)), header["step"], path)


def _check_seal(file: mmap.mmap) -> None:
    length, seal_sum = _SEAL_END.unpack_from(file, len(file) - _SEAL_END.size)
    chunks = -(-length // CHUNK)
    if len(file) != length + 4 * chunks + _SEAL_END.size:
        raise _Damaged("it ends where it should not")
    if zlib.crc32(file[length:-4]) != seal_sum:
        raise _Damaged("its seal is broken")
    sums = struct.unpack_from(f"<{chunks}I", file, length)
    with memoryview(file) as view, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        # Summing lets go of the interpreter's lock, so this takes as many processors as there are.
        found = threads.map(lambda start: zlib.crc32(view[start : min(start + CHUNK, length)]), range(0, length, CHUNK))
        for number, (expected, actual) in enumerate(zip(sums, found, strict=True)):
            if expected != actual:
                raise _Damaged(f"its bytes from {number * CHUNK} on have changed")


def _check_signature(path: Path, found: Mapping[str, Any] | None, expected: Signature | None) -> None:
    if found is None or expected is None:
        return
    for name in {**expected, **found}:
        theirs, ours = _described(found.get(name)), _described(expected.get(name))
        if theirs != ours:
            raise InvalidSpec(
                f"{path} is of another model: there {name} is {theirs}, here it is {ours}; "
                "train the model it was saved from, or name another directory"
            )


def _described(entry: Any) -> str:
    if entry is None:
        return "absent"
    shape, dtype = entry
    return f"{list(shape)} {dtype}"
