"""Reading what jobs wrote: by rank and attempt, from the end, from a time on, and as it grows.

Which files there are is said by the backend, for a job that was found before. Nothing from outside is ever part of a
path, and nothing but a regular file is read. Positions are bytes; text that is not UTF-8 is shown with marks in it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from fairlead.backends.files import above_log
from fairlead.backends.regular_file import open_regular
from fairlead.core.errors import InvalidSpec

_BLOCK = 64 * 1024
#: A line longer than this is shown in parts: a progress bar can be one line of megabytes.
LONGEST_LINE = 16 * 1024
#: Lines that one look at growing files takes at most, so that no client is owed more than this.
MOST_LINES = 1000
MOST_TAIL = 100_000
#: An index is read from its end, this much of it: weeks of lines "time size".
_MOST_INDEX = 16 * 1024 * 1024


class LogFile(Protocol):
    """What one rank of one attempt writes to. `index` has lines "unix_time size", made while it grows."""

    @property
    def attempt(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def path(self) -> Path: ...
    @property
    def index(self) -> Path: ...


#: The log files of a job that exists.
LogFiles = Callable[[str], Sequence[LogFile]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of a job's logs. No rank means all; no attempt means the last one and, if followed, those to come."""

    rank: int | None = None
    attempt: int | None = None
    every_attempt: bool = False
    tail: int | None = None
    #: UNIX time.
    since: float | None = None

    def select(self, files: Sequence[LogFile], *, from_attempt: int | None = None) -> list[LogFile]:
        """In order. `from_attempt` is where one who follows began."""
        first = from_attempt if from_attempt is not None else self.first_attempt(files)
        chosen = (
            file
            for file in files
            if (self.rank is None or file.rank == self.rank)
            and (file.attempt == self.attempt if self.attempt is not None else file.attempt >= first)
        )
        return sorted(chosen, key=lambda file: (file.attempt, file.rank))

    def first_attempt(self, files: Sequence[LogFile]) -> int:
        if self.attempt is not None:
            return self.attempt
        return 0 if self.every_attempt else max((file.attempt for file in files), default=0)

    def missing(self, files: Sequence[LogFile], *, attempts: int) -> str:
        """What of it is not there although others are, of a job with so many attempts; empty if nothing is amiss.

        Who has not written anything yet may still do so.
        """
        known = sorted({*range(1, attempts + 1), *(file.attempt for file in files)})
        if files and self.attempt is not None and self.attempt not in known:
            return f"has no attempt {self.attempt}; there {_listed('attempt', known)}"
        ranks = sorted({file.rank for file in replace(self, rank=None).select(files)})
        if ranks and self.rank is not None and self.rank not in ranks:
            return f"has no worker of rank {self.rank}; there {_listed('rank', ranks)}"
        return ""


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """is attempt 1; are ranks 0 to 7; are attempts 1, 2, 5."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"is {noun} {first}"
    in_a_row = len(numbers) > 2 and last - first == len(numbers) - 1
    return f"are {noun}s {f'{first} to {last}' if in_a_row else ', '.join(map(str, numbers))}"


def opened(path: Path) -> BinaryIO | None:
    """None if there is no such file. A job may have put a link or a pipe in its place, or in that of a directory above
    it: these are not followed."""
    try:
        handle = open_regular(path, os.O_RDONLY, root=above_log(path))
    except OSError:
        return None
    return open(handle, "rb", buffering=0)


def _size(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


# -- all at once -------------------------------------------------------------------------------------------------------


def read(files: Sequence[LogFile], wanted: Wanted) -> Iterator[bytes]:
    """The text, in blocks. With several ranks each line begins with its rank; `tail` counts the lines of each file."""
    chosen = wanted.select(files)
    several = len({file.rank for file in chosen}) > 1
    for file in chosen:
        prefix = f"[{file.rank}] ".encode() if several else b""
        stream = opened(file.path)
        if stream is None:
            continue
        with stream:
            end = os.fstat(stream.fileno()).st_size
            yield from _prefixed(_blocks(stream, begin_of(stream, file, wanted, end), end), prefix)


def begin_of(stream: BinaryIO, file: LogFile, wanted: Wanted, end: int) -> int:
    """Where the wanted part of a file begins."""
    begin = 0 if wanted.since is None else min(end, offset_at(file.index, wanted.since))
    if wanted.tail is None:
        return begin
    return max(begin, _tail_offset(stream, end, wanted.tail))


def offset_at(index: Path, since: float) -> int:
    """How long the file was at that time: everything after it was written since."""
    stream = opened(index)
    if stream is None:
        return 0
    with stream:
        end = os.fstat(stream.fileno()).st_size
        stream.seek(max(0, end - _MOST_INDEX))
        lines = stream.read(_MOST_INDEX).split(b"\n")
    size = 0
    for line in lines:
        words = line.split()
        try:
            at, reached = float(words[0]), int(words[1])
        except (IndexError, ValueError):
            continue  # half a line: it is being written, or we began within it
        if at > since:
            break
        size = max(size, reached)
    return size


def _tail_offset(stream: BinaryIO, end: int, lines: int) -> int:
    """Where the last so many lines begin. A last line that is not finished counts as one."""
    if lines <= 0:
        return end
    position, missing = end, lines
    while position > 0:
        begin = max(0, position - _BLOCK)
        stream.seek(begin)
        block = stream.read(position - begin)
        if position == end and block.endswith(b"\n"):
            missing += 1  # the line feed at the very end begins no line
        count = block.count(b"\n")
        if count >= missing:
            at = len(block)
            for _ in range(missing):
                at = block.rindex(b"\n", 0, at)
            return begin + at + 1
        missing -= count
        position = begin
    return 0


def _blocks(stream: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    stream.seek(begin)
    while begin < end and (block := stream.read(min(_BLOCK, end - begin))):
        begin += len(block)
        yield block


def _prefixed(blocks: Iterator[bytes], prefix: bytes) -> Iterator[bytes]:
    """With the prefix before each line, and a line feed at the end: the next file begins on a line of its own."""
    new_line = True
    for block in blocks:
        ends = block.endswith(b"\n")
        if prefix:
            body = block[:-1] if ends else block
            body = (prefix if new_line else b"") + body.replace(b"\n", b"\n" + prefix)
            block = body + b"\n" if ends else body
        new_line = ends
        yield block
    if not new_line:
        yield b"\n"


# -- as they grow ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one worker."""

    rank: int
    attempt: int
    text: str
    #: Where to go on after it.
    position: str


@dataclass
class Follower:
    """Where one reader of growing files is. `position` is all of it, as a word; one begins again with it."""

    wanted: Wanted
    #: Bytes read of each (attempt, rank).
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    from_attempt: int | None = None

    @staticmethod
    def at(position: str, wanted: Wanted) -> Follower:
        """The reader who was there. Raises InvalidSpec for what is no position."""
        if not re.fullmatch(r"[0-9]{1,9}(_[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,18}){0,4096}", position):
            raise InvalidSpec("this is no position in a log; use the id of the last event, or none")
        first, *rest = position.split("_")
        offsets = {}
        for part in rest:
            attempt, rank, offset = map(int, part.split("."))
            offsets[attempt, rank] = offset
        return Follower(wanted, offsets, int(first))

    @property
    def position(self) -> str:
        parts = (f"{attempt}.{rank}.{offset}" for (attempt, rank), offset in self.offsets.items() if offset)
        return "_".join((str(self.from_attempt or 0), *parts))

    def look(self, files: Sequence[LogFile], *, final: bool) -> list[Line]:
        """What was written since the last look, as whole lines; `final` if nobody writes any more."""
        if self.from_attempt is None:
            if not files:
                return []
            self.from_attempt = self.wanted.first_attempt(files)
        lines: list[Line] = []
        chosen = self.wanted.select(files, from_attempt=self.from_attempt)
        last = max((file.attempt for file in chosen), default=0)
        for file in chosen:
            if len(lines) >= MOST_LINES:
                break
            lines += self._look_at(file, MOST_LINES - len(lines), over=final or file.attempt < last)
        return lines

    def _look_at(self, file: LogFile, most: int, *, over: bool) -> list[Line]:
        key = (file.attempt, file.rank)
        known = self.offsets.get(key)
        if known is not None and known == _size(file.path):
            return []
        stream = opened(file.path)
        if stream is None:
            return []
        with stream:
            end = os.fstat(stream.fileno()).st_size
            if known is None:
                known = begin_of(stream, file, self.wanted, end)
            self.offsets[key] = known = min(known, end)
            stream.seek(known)
            data = stream.read(min(end - known, _BLOCK * 4))
        return self._split(file, data, most, over=over and known + len(data) == end)

    def _split(self, file: LogFile, data: bytes, most: int, *, over: bool) -> list[Line]:
        key, begin = (file.attempt, file.rank), 0
        lines: list[Line] = []
        while begin < len(data) and len(lines) < most:
            feed = data.find(b"\n", begin, begin + LONGEST_LINE)
            if feed >= 0:
                text, following = data[begin:feed], feed + 1
            elif len(data) - begin >= LONGEST_LINE:
                text, following = data[begin : begin + LONGEST_LINE], begin + LONGEST_LINE
            elif over:
                text, following = data[begin:], len(data)
            else:
                break
            self.offsets[key] += following - begin
            begin = following
            lines.append(Line(file.rank, file.attempt, text.decode("utf-8", "replace"), self.position))
        return lines
