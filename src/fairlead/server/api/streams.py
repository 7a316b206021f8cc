"""Server-sent events: changes of jobs and nodes to whoever listens, and growing logs.

One thread waits for the loop to publish, and tells the event loop what changed; listeners have no thread. What changed
is kept in one list for all, with each thing in it only as it is now. So a listener is no more than a place in that
list: a slow one misses what was overtaken, and one who fell off its end is told to begin anew (`reset`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from starlette.concurrency import run_in_threadpool

from fairlead.core.errors import FairleadError
from fairlead.core.types import Job, Node
from fairlead.server.api.settings import Settings
from fairlead.server.asking import NotFound, TooMany
from fairlead.server.auth import Caller, Sight
from fairlead.server.logs import Follower
from fairlead.server.published import Published
from fairlead.server.resources import held_gpus, job_resource, node_resource, state_of
from fairlead.server.service import Service

log = logging.getLogger(__name__)

#: Changes that are sent at once.
AT_ONCE = 100

#: So many are told of changes without delay. When more listen, each is told less often, and more at a time; and not
#: all at the same moment, since whoever asks something else in between would wait for all of them.
LISTENERS = 10

RETRY = b"retry: 2000\n\n"
BEAT = b": beat\n\n"


def event(name: str, data: Any, *, ident: str | int | None = None) -> bytes:
    """One event. JSON in ASCII has no line breaks, so that it is one line of data."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    place = "" if ident is None else f"id: {ident}\n"
    return f"{place}event: {name}\ndata: {text}\n\n".encode("ascii")


@dataclass(slots=True, eq=False)
class Change:
    """A job or a node that is not as it was before message `seq` of the journal."""

    seq: int
    subject: Job | Node
    #: As somebody with each sight is told.
    told: dict[Sight, bytes] = field(default_factory=dict)
    #: What it is a change of.
    key: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (type(self.subject).__name__, self.subject.id)

    def sight_of(self, caller: Caller) -> Sight:
        return caller.sight(self.subject.spec.tenant) if isinstance(self.subject, Job) else Sight.ALL

    def encode(self, sight: Sight, published: Published, held: dict[str, dict[str, list[int]]]) -> None:
        if isinstance(self.subject, Job):
            self.told[sight] = event("job", job_resource(self.subject, published, sight))
        else:
            self.told[sight] = event("node", node_resource(self.subject, held.get(self.subject.id, {})))


class Streams:
    """Everything that stays connected. Made once for an app; belongs to its event loop."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service, self._settings = service, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = Event()
        self._wake: asyncio.Event | None = None
        self._published = service.published
        self._changes: list[Change] = []
        self._first = 0  # number of the first of these changes
        self._newest: dict[tuple[str, str], int] = {}  # the number of the last change of each thing
        self._since = self._published.seq  # changes after this message are all remembered
        self._open: Counter[str] = Counter()
        self._heeded_at = -math.inf  # when the last listener left

    # -- feeding --

    async def start(self) -> None:
        """Begin to listen to the loop. Again, it changes nothing."""
        if self._loop is not None:
            return
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        self._published = self._service.published
        self._since = self._published.seq
        Thread(target=self._feed, name="fairlead-streams", daemon=True).start()

    def close(self) -> None:
        """End all streams, so that the server can stop. Any thread may call it."""
        self._closed.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended before us
                self._loop.call_soon_threadsafe(self._ring)

    def _feed(self) -> None:
        """In a thread of its own, because to find what changed among ten thousand jobs takes a while."""
        assert self._loop is not None
        controller, auth, latest = self._service.controller, self._service.auth, self._published
        while not self._closed.is_set():
            try:
                newer = controller.wait(latest.seq, 1.0)
                if auth.wants_refresh():
                    auth.refresh()  # somebody who is removed is not told for longer than that
                if newer is not latest:
                    changed = changed_between(latest, newer) if self._is_heeded() else None
                    latest = newer
                    self._loop.call_soon_threadsafe(self.take, newer, changed)
            except RuntimeError:  # the event loop has ended
                return
            except FairleadError as error:
                log.warning("the streams go on in spite of: %s", error)
            self._closed.wait(self._settings.tell_s)

    def _is_heeded(self) -> bool:
        """Does anybody listen, or may they come back?"""
        return bool(self._open) or time.monotonic() - self._heeded_at < self._settings.remembered_s

    def take(self, published: Published, changed: Sequence[Job | Node] | None) -> None:
        """Tell everybody what is new in it; None if nobody has listened for a while, and nobody has looked.

        Called by the event loop, in the order of publishing.
        """
        self._published = published
        if changed is None:
            self._first, self._since = self._end, published.seq
            self._changes.clear()
            self._newest.clear()
        for subject in changed or ():
            change = Change(published.seq, subject)
            self._newest[change.key] = self._end
            self._changes.append(change)
        self._forget()
        self._ring()

    def _forget(self) -> None:
        most = self._settings.most_changes
        excess = len(self._changes) - most
        if excess <= most // 4:
            return
        for change in self._changes[:excess]:
            if self._newest.get(change.key, self._first) < self._first + excess:
                self._newest.pop(change.key, None)
        self._since = self._changes[excess - 1].seq
        self._first += excess
        del self._changes[:excess]

    def _ring(self) -> None:
        if self._wake is not None:
            rung, self._wake = self._wake, asyncio.Event()
            rung.set()

    # -- changes --

    async def changes(self, caller: Caller, after: int | None) -> AsyncGenerator[bytes, None]:
        """Events for one listener, who has heard everything up to message `after`."""
        await self.start()
        with self._counted(caller):
            yield RETRY
            place, seq = self._place(after), self._published.seq
            if place is None:
                place = self._end
                yield event("reset", {"seq": seq}, ident=seq)
            yield event("ready", {"seq": seq}, ident=seq if after is None else None)
            while not self._closed.is_set() and self._service.auth.still_valid(caller):
                if place < self._first:
                    yield event("reset", {"seq": self._published.seq}, ident=self._published.seq)
                    place = self._end
                heard, place = await self._next(caller, place)
                if heard:
                    yield heard
                    if place == self._end:
                        await self._pause(self._settings.tell_s * self._crowd * random.uniform(0.5, 1.5))
                elif not await self._rung():
                    yield BEAT

    @property
    def _crowd(self) -> float:
        """How many times more listen than can be told without delay; 0 if they are fewer."""
        count = self._open.total()
        return count / LISTENERS if count > LISTENERS else 0.0

    @property
    def _end(self) -> int:
        return self._first + len(self._changes)

    def _place(self, after: int | None) -> int | None:
        """Where the changes after that message begin; None if it is not known."""
        if after is None:
            return self._end
        if not self._since <= after <= self._published.seq:
            return None
        return self._first + bisect_right(self._changes, after, key=lambda change: change.seq)

    async def _next(self, caller: Caller, place: int) -> tuple[bytes, int]:
        """The next few events and where to go on. A place in the journal is told only when all up to it are."""
        stop = min(self._end, place + 50 * AT_ONCE)
        chosen: list[tuple[Change, Sight]] = []
        reached = place
        for number in range(place, stop):
            change = self._changes[number - self._first]
            reached = number + 1
            if self._newest[change.key] == number:
                chosen.append((change, change.sight_of(caller)))
                if len(chosen) == AT_ONCE:
                    break
        if reached == place:
            return b"", place
        last = self._changes[reached - 1 - self._first].seq
        whole = reached == self._end or self._changes[reached - self._first].seq > last
        if any(sight not in change.told for change, sight in chosen):
            await run_in_threadpool(_encode, chosen, self._published)
        parts = [change.told[sight] for change, sight in chosen]
        if not parts:
            return (f"id: {last}\n\n".encode() if whole else b": \n\n"), reached
        if whole:
            parts[-1] = f"id: {last}\n".encode() + parts[-1]
        return b"".join(parts), reached

    async def _rung(self) -> bool:
        """Wait until something happens; False if nothing did for a while."""
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), self._settings.heartbeat_s)
        except TimeoutError:
            return False
        return True

    # -- logs --

    async def lines(self, caller: Caller, job_id: str, follower: Follower) -> AsyncGenerator[bytes, None]:
        """The lines of a job as they are written, until the job has ended and all of them were told."""
        await self.start()
        with self._counted(caller):
            yield RETRY
            quiet_s = 0.0
            while not self._closed.is_set() and self._service.auth.still_valid(caller):
                try:
                    heard, end = await run_in_threadpool(self._look, caller, job_id, follower)
                except NotFound:
                    return
                if heard:
                    quiet_s = 0.0
                    yield heard
                    continue
                if end:
                    yield end
                    return
                if quiet_s >= self._settings.heartbeat_s:
                    quiet_s = 0.0
                    yield BEAT
                await self._pause(self._settings.look_s)
                quiet_s += self._settings.look_s

    def _look(self, caller: Caller, job_id: str, follower: Follower) -> tuple[bytes, bytes]:
        job, published = self._service.find(caller, job_id, least=Sight.ALL)
        found = follower.look(self._service.log_files(caller, job_id), final=job.phase.final)
        told = [
            event("line", {"rank": line.rank, "attempt": line.attempt, "text": line.text}, ident=line.position)
            for line in found
        ]
        end = b""
        if job.phase.final:
            state = state_of(job, published.now).value
            end = event("end", {"state": state, "exit_code": job.exit_code}, ident=follower.position)
        return b"".join(told), end

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not when the server stops."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while not self._closed.is_set() and (left_s := ends_at - loop.time()) > 0:
            await asyncio.sleep(min(left_s, 0.25))

    # -- how many --

    def check_room(self, caller: Caller) -> None:
        """Raise TooMany if no further stream may be opened."""
        each, most = self._settings.most_streams_each, self._settings.most_streams
        if self._open[caller.name] >= each or self._open.total() >= most:
            raise TooMany("too many streams are open; close some", again_after_s=5.0)

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        self._open[caller.name] += 1
        try:
            yield
        finally:
            self._heeded_at = time.monotonic()
            self._open[caller.name] -= 1
            if not self._open[caller.name]:
                del self._open[caller.name]


def changed_between(before: Published, after: Published) -> list[Job | Node]:
    """Jobs and nodes that are not as they were. A job that changes is another object, so that this is quick."""
    changed: list[Job | Node] = [job for job_id, job in after.live.items() if before.live.get(job_id) is not job]
    ended = before.live.keys() - after.live.keys()
    changed += [job for job_id in ended if (job := after.finished.get(job_id)) is not None]
    changed += [node for node in after.nodes.values() if before.nodes.get(node.id) != node]
    return changed


def _encode(chosen: list[tuple[Change, Sight]], published: Published) -> None:
    held = held_gpus(published) if any(isinstance(change.subject, Node) for change, _ in chosen) else {}
    for change, sight in chosen:
        if sight not in change.told:
            change.encode(sight, published, held)
