"""Server-sent events over real connections: what is told, to whom, and what becomes of those who are slow."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from still import PATIENCE_S, StillPlane

from fairlead.core.types import Job, JobSpec, Phase
from fairlead.server.api import Settings
from fairlead.server.api.streams import BEAT, Streams, changed_between

QUICK = Settings(tell_s=0.01, look_s=0.02, heartbeat_s=0.1)
PATIENT = Settings(tell_s=0.01, look_s=0.02)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path, PATIENT) as plane:
        yield plane


@dataclass
class Told:
    """One event, as a browser would understand it."""

    event: str
    data: Any
    id: str | None


class Listener:
    """Reads events from a connection."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.retry: str | None = None

    def next(self) -> Told:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif line:
                continue
            elif "event" in fields:
                return Told(fields["event"], json.loads(fields["data"]), fields.get("id"))
            else:
                self.retry = fields.get("retry", self.retry)
                fields = {}
        raise EOFError

    def beat(self) -> str:
        """The next comment."""
        return next(line for line in self._lines if line.startswith(":"))

    def until(self, event: str, **data: Any) -> Told:
        while True:
            told = self.next()
            if told.event == event and all(told.data.get(key) == value for key, value in data.items()):
                return told


@contextmanager
def listening(plane: StillPlane, url: str, path: str, user: str = "ann", **headers: str) -> Iterator[Listener]:
    headers = {"Authorization": f"Bearer {plane.tokens[user]}", **headers}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client,
        client.stream("GET", path) as response,
    ):
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        yield Listener(response.iter_lines())


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_listener_is_told_of_a_job_as_it_goes(plane: StillPlane) -> None:
    with plane.serving() as url, listening(plane, url, "/api/v1/events") as ann:
        ready = ann.next()
        assert (ready.event, ready.id) == ("ready", str(ready.data["seq"]))
        assert ann.retry == "2000"
        plane.submit(name="first")
        told = ann.until("job", id="1", state="RUNNING")
        assert told.data["name"] == "first"
        assert told.data["command"] == ["python", "train.py"]
        plane.controller.exits("1", 3)
        told = ann.until("job", id="1", state="FAILED")
        assert told.data["exit_code"] == 3


def test_a_listener_is_told_of_nodes(plane: StillPlane) -> None:
    with plane.serving() as url, listening(plane, url, "/api/v1/events") as ann:
        ann.next()
        plane.ask("POST", "/api/v1/nodes/n1/drain", "root")
        assert ann.until("node", id="n1").data["draining"] is True


def test_events_carry_only_what_that_user_may_see(plane: StillPlane) -> None:
    with (
        plane.serving() as url,
        listening(plane, url, "/api/v1/events", "bob") as bob,
        listening(plane, url, "/api/v1/events", "eve") as eve,
        listening(plane, url, "/api/v1/events", "root") as root,
    ):
        for each in (bob, eve, root):
            each.until("ready")
        plane.submit(labels={"l": "labelword"}, secrets={"K": "secretword"}, run="python commandword.py")
        row, fate, whole = (each.until("job", id="1", state="RUNNING").data for each in (bob, eve, root))
        assert (row["labels"], row["command"], row["reason"]["numbers"]) == ({}, [], {})
        assert (fate["labels"], fate["command"]) == ({"l": "labelword"}, [])
        assert whole["command"] == ["python", "commandword.py"]
        assert not any("secretword" in str(told) for told in (row, fate, whole))


def test_whoever_comes_back_is_told_what_they_missed_as_it_is_now(plane: StillPlane) -> None:
    with plane.serving() as url:
        with listening(plane, url, "/api/v1/events") as ann:
            last = ann.until("ready").id
            assert last is not None
        plane.submit()
        plane.submit()
        plane.controller.exits("1")
        plane.controller.runs("2")
        plane.controller.until(lambda p: "1" in p.finished)
        with listening(plane, url, "/api/v1/events", **{"Last-Event-ID": last}) as ann:
            assert ann.next().event == "ready"
            told = {}
            while told.get("1") != "SUCCEEDED" or told.get("2") != "RUNNING":
                event = ann.until("job")
                told[event.data["id"]] = event.data["state"]
        with listening(plane, url, f"/api/v1/events?after={last}") as ann:
            assert ann.until("job", id="1").data["state"] == "SUCCEEDED"


def test_a_place_in_the_journal_is_told_only_when_everything_up_to_it_was(plane: StillPlane) -> None:
    with plane.serving() as url, listening(plane, url, "/api/v1/events") as ann:
        begin = int(ann.until("ready").id or 0)
        plane.submit(array=250)
        seen, last = set[str](), begin
        while len(seen) < 250:
            event = ann.until("job")
            seen.add(event.data["id"])
            if event.id is not None:
                last = int(event.id)
                missing = {f"1.{n}" for n in range(250)} - seen
                assert not missing or last < plane.store.last_seq()
        assert last > begin or len(seen) == 250


@pytest.mark.parametrize("last", ["0", "999999999"])
def test_whoever_was_away_for_too_long_begins_anew(plane: StillPlane, last: str) -> None:
    with plane.serving() as url, listening(plane, url, "/api/v1/events", **{"Last-Event-ID": last}) as ann:
        told = ann.next()
        assert (told.event, told.id) == ("reset", str(told.data["seq"]))
        plane.submit()
        assert ann.until("job", id="1")


def test_nothing_is_said_by_a_beat_now_and_then(tmp_path: Path) -> None:
    with (
        StillPlane(tmp_path, QUICK) as plane,
        plane.serving() as url,
        listening(plane, url, "/api/v1/events") as ann,
    ):
        ann.until("ready")
        assert ann.beat() == ann.beat() == ": beat"
        plane.submit()
        assert ann.until("job", id="1")


def test_somebody_who_is_removed_hears_no_more(tmp_path: Path) -> None:
    with (
        StillPlane(tmp_path, QUICK) as plane,
        plane.serving() as url,
        listening(plane, url, "/api/v1/events", "bob") as bob,
    ):
        bob.until("ready")
        plane.ask("DELETE", "/api/v1/users/bob", "root")
        with pytest.raises(EOFError):
            bob.until("nothing like it")


def test_a_server_that_stops_ends_its_streams(plane: StillPlane) -> None:
    with plane.serving() as url, listening(plane, url, "/api/v1/events") as ann:
        ann.until("ready")
        plane.app.state.streams.close()
        with pytest.raises(EOFError):
            ann.until("nothing like it")


def test_a_browser_listens_with_its_session(plane: StillPlane) -> None:
    with plane.serving() as url:
        cookie = plane.ask("POST", "/session", None, json={"token": plane.tokens["ann"]}).headers["set-cookie"]
        with (
            httpx.Client(base_url=url, headers={"Cookie": cookie.partition(";")[0]}, timeout=PATIENCE_S) as client,
            client.stream("GET", "/api/v1/events") as response,
        ):
            assert response.status_code == 200
            assert Listener(response.iter_lines()).next().event == "ready"


def test_a_hundred_listeners_need_no_thread_each_and_all_are_told(plane: StillPlane) -> None:
    async def listen(client: httpx.AsyncClient, heard: asyncio.Semaphore, ready: asyncio.Semaphore) -> None:
        async with client.stream("GET", "/api/v1/events") as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "event: ready":
                    ready.release()
                if line.startswith("data: ") and '"id":"1"' in line:
                    heard.release()
                    return

    async def many(url: str) -> int:
        headers = {"Authorization": f"Bearer {plane.tokens['ann']}"}
        limits = httpx.Limits(max_connections=100)
        heard, ready = asyncio.Semaphore(0), asyncio.Semaphore(0)
        async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=60.0) as client:
            listeners = [asyncio.create_task(listen(client, heard, ready)) for _ in range(100)]
            for _ in listeners:
                await ready.acquire()
            threads = threading.active_count()
            await asyncio.to_thread(plane.submit)
            await asyncio.gather(*listeners)
        return threads

    with plane.serving() as url:
        assert asyncio.run(many(url)) < 60


def test_there_is_an_end_to_how_many_may_listen(tmp_path: Path) -> None:
    with (
        StillPlane(tmp_path, Settings(most_streams_each=1)) as plane,
        plane.serving() as url,
        listening(plane, url, "/api/v1/events") as ann,
    ):
        ann.until("ready")
        response = httpx.get(f"{url}/api/v1/events", headers={"Authorization": f"Bearer {plane.tokens['ann']}"})
        assert response.status_code == 429
        with listening(plane, url, "/api/v1/events", "bob") as bob:
            assert bob.next().event == "ready"


# -- the list of changes, without a network ----------------------------------------------------------------------------


class Feed:
    """Streams that are fed by hand, message by message."""

    def __init__(self, plane: StillPlane, most_changes: int = 5000) -> None:
        self.streams = Streams(plane.service, Settings(heartbeat_s=0.01, most_changes=most_changes))
        self.published = plane.controller.published
        self.begin = self.published.seq
        known = plane.auth.by_token(plane.tokens["ann"])
        assert known is not None
        self.ann = known

    def change(self, *ids: str, ended: bool = False) -> None:
        """These jobs are not as they were."""
        before, seq = self.published, self.published.seq + 1
        phase = Phase.SUCCEEDED if ended else Phase.RUNNING
        name = f"as of {seq - self.begin}"
        jobs = {i: Job(JobSpec(id=i, tenant="ann", name=name), 0.0, phase=phase) for i in ids}
        live = {**before.live, **jobs} if not ended else {k: v for k, v in before.live.items() if k not in jobs}
        finished = {**before.finished, **jobs} if ended else before.finished
        self.published = replace(before, seq=seq, live=live, finished=finished)
        self.streams.take(self.published, changed_between(before, self.published))

    @asynccontextmanager
    async def listen(self, after: int | None = None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """`after` so many changes."""
        chunks = self.streams.changes(self.ann, None if after is None else self.begin + after)
        try:
            yield chunks
        finally:
            await chunks.aclose()
            self.streams.close()


async def heard(chunks: AsyncIterator[bytes]) -> list[str]:
    """Everything until the next silence."""
    told = []
    async for chunk in chunks:
        if chunk == BEAT:
            break
        told.append(chunk.decode())
    return told


def test_a_slow_listener_hears_only_the_latest_of_each_job(plane: StillPlane) -> None:
    async def slow() -> tuple[str, int]:
        feed = Feed(plane)
        async with feed.listen() as chunks:
            await heard(chunks)
            for _ in range(50):
                feed.change("1", "2")
            feed.change("2", ended=True)
            return "".join(await heard(chunks)), feed.published.seq

    told, seq = asyncio.run(slow())
    assert told.count("event: job") == 2
    assert '"name":"as of 50"' in told
    assert '"state":"SUCCEEDED"' in told
    assert f"id: {seq}\n" in told


def test_a_listener_who_fell_behind_everything_that_is_remembered_is_reset(plane: StillPlane) -> None:
    async def lost() -> tuple[str, int]:
        feed = Feed(plane, most_changes=40)
        async with feed.listen() as chunks:
            await heard(chunks)
            for number in range(500):
                feed.change(str(number))
            seq = feed.published.seq
            first = await heard(chunks)
            feed.change("7")
            return "".join(first + await heard(chunks)), seq

    told, seq = asyncio.run(lost())
    assert told.startswith(f"id: {seq}\nevent: reset")
    assert told.count("event: job") == 1


def test_a_burst_is_told_in_parts_and_its_place_only_at_its_end(plane: StillPlane) -> None:
    async def burst() -> tuple[list[str], int]:
        feed = Feed(plane)
        async with feed.listen() as chunks:
            await heard(chunks)
            feed.change(*(str(number) for number in range(250)))
            return await heard(chunks), feed.published.seq

    parts, seq = asyncio.run(burst())
    assert [part.count("event: job") for part in parts] == [100, 100, 50]
    assert [f"id: {seq}" in part for part in parts] == [False, False, True]


@pytest.mark.parametrize(("after", "jobs"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_a_listener_resumes_at_any_message_that_is_remembered(plane: StillPlane, after: int, jobs: int) -> None:
    async def resumed() -> str:
        feed = Feed(plane)
        await feed.streams.start()
        for number in range(3):
            feed.change(str(number))
        async with feed.listen(after) as chunks:
            return "".join(await heard(chunks))

    told = asyncio.run(resumed())
    assert told.count("event: job") == jobs
    assert "reset" not in told


def test_changes_that_nobody_listened_for_are_not_looked_for(plane: StillPlane) -> None:
    async def late() -> list[str]:
        feed = Feed(plane)
        await feed.streams.start()
        feed.change("1")
        begin, feed.published = feed.published, replace(feed.published, seq=feed.published.seq + 1)
        feed.streams.take(feed.published, None)
        async with feed.listen(begin.seq - feed.begin) as chunks:
            told = await heard(chunks)
            feed.change("2")
            return told + await heard(chunks)

    told = "".join(asyncio.run(late()))
    assert "event: reset" in told
    assert told.count("event: job") == 1


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_log_is_followed_until_the_job_has_ended(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    plane.write_log("1", b"one\n")
    with plane.serving() as url, listening(plane, url, "/api/v1/jobs/1/logs/stream") as ann:
        assert ann.next().data == {"rank": 0, "attempt": 1, "text": "one"}
        plane.write_log("1", b"two\nthr")
        assert ann.next().data["text"] == "two"
        plane.write_log("1", b"ee")
        plane.controller.exits("1", 7)
        assert ann.next().data["text"] == "three"
        end = ann.next()
        assert (end.event, end.data) == ("end", {"state": "FAILED", "exit_code": 7})
        with pytest.raises(EOFError):
            ann.next()


def test_whoever_loses_the_connection_goes_on_after_the_last_line(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    plane.write_log("1", b"one\ntwo\nthree\n")
    path = "/api/v1/jobs/1/logs/stream"
    with plane.serving() as url:
        with listening(plane, url, path) as ann:
            assert ann.next().data["text"] == "one"
            second = ann.next()
        assert second.id is not None
        with listening(plane, url, path, **{"Last-Event-ID": second.id}) as ann:
            assert ann.next().data["text"] == "three"


def test_a_quiet_log_beats(tmp_path: Path) -> None:
    with StillPlane(tmp_path, QUICK) as plane:
        plane.submit()
        plane.controller.runs("1")
        with plane.serving() as url, listening(plane, url, "/api/v1/jobs/1/logs/stream") as ann:
            assert ann.beat() == ": beat"
            plane.write_log("1", b"late\n")
            assert ann.next().data["text"] == "late"
