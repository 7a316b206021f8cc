"""A control plane whose jobs do nothing: the real loop and store over a world that agrees to everything at once.

A job that is started runs, one that is stopped has stopped, and none ends until a test says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from fairlead.backends.inbox import Clock, Inbox
from fairlead.core.loop import Cadence, run
from fairlead.core.messages import (
    Command,
    Event,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    NodeJoined,
    Resize,
    Start,
    Stop,
)
from fairlead.core.types import Job, JobSpec, Node, Phase
from fairlead.jobfile import JobRequest, request_from
from fairlead.plugins import make_policy
from fairlead.policies.middleware.queues import Queue
from fairlead.server.api import Settings, make_app
from fairlead.server.api.wire import make_server
from fairlead.server.auth import Auth, Caller, Role
from fairlead.server.journal import SqlJournal
from fairlead.server.outlook import Rules
from fairlead.server.published import Published
from fairlead.server.resources import outcome_of
from fairlead.server.service import Service, Terms
from fairlead.server.steady import SteadyPolicy, SteadyState
from fairlead.server.store import JobRow, Request, Store
from fairlead.server.wishes import Wishes

NODES = (Node("n0", 4, "a100"), Node("n1", 2, "t4"))

PATIENCE_S = 20.0


@dataclass(frozen=True)
class StillLog:
    """A log file that a test has written."""

    attempt: int
    rank: int
    path: Path
    index: Path


class StillWorld:
    """The backend. What is told to it has happened."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def wait(self, until: float) -> Sequence[Event] | None:
        return self.inbox.wait(until)

    def execute(self, command: Command) -> None:
        now = self.inbox.clock.now()
        match command:
            case Start(job=job, attempt=attempt):
                self.inbox.put([JobStarted(now, job, attempt)])
            case Stop(job=job, attempt=attempt):
                self.inbox.put([JobStopped(now, job, attempt)])
            case Resize(job=job, attempt=attempt):
                self.inbox.put([JobRescaled(now, job, attempt)])


class StillController:
    """What the service needs of a controller, around the real loop."""

    def __init__(self, store: Store, *, policy: str = "backfill", nodes: Sequence[Node] = NODES) -> None:
        self._store, self._nodes = store, nodes
        self._state = SteadyState(keep_finished=100)
        self._policy = SteadyPolicy(make_policy(policy))
        self._journal = SqlJournal(store, epoch=store.claim(who="a test"))
        self.inbox = Inbox(Clock())
        self.inbox.on_mark = self._journal.mark
        self._journal.on_commit(self._publish)
        self._wishes = Wishes(store, self.inbox, lambda: nodes, self._refused)
        self._changed = threading.Condition()
        self._written: set[str] = set()
        self.published = Published(0, 0.0, {}, {}, {})
        self.ready, self._failure = False, None
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def start(self) -> None:
        self.inbox.put([NodeJoined(self.inbox.clock.now(), node) for node in self._nodes])
        self._wishes.start(0)
        self._thread.start()
        self.ready = True
        self.until(lambda published: published.view is not None)

    def stop(self) -> None:
        self.ready = False
        self._wishes.close()
        self.inbox.close()
        self._thread.join()

    def _turn(self) -> None:
        world = StillWorld(self.inbox)
        run(self._policy, world, state=self._state, journal=self._journal, cadence=Cadence())

    def _refused(self, row: JobRow, why: str) -> None:
        self._store.end_job(row.id, phase=Phase.CANCELLED.value, at=row.submitted_at, outcome={"detail": why})

    def _publish(self, seq: int) -> None:
        state = self._state
        for job in state.finished.values():
            if job.id not in self._written:
                self._written.add(job.id)
                self._store.end_job(job.id, phase=job.phase.value, at=job.since, outcome=outcome_of(job))
        with self._changed:
            self.published = Published(
                seq,
                state.now,
                state.live.copy(),
                state.finished.copy(),
                state.nodes.copy(),
                self._policy.view,
                self._policy.last,
            )
            self._changed.notify_all()

    # -- what the service asks --

    def wait(self, after_seq: int, timeout_s: float) -> Published:
        with self._changed:
            self._changed.wait_for(lambda: self.published.seq > after_seq, timeout_s)
            return self.published

    def hand_over(self, request: Request, specs: Sequence[JobSpec] = ()) -> None:
        self._wishes.hear(request, specs)

    def failure(self) -> str | None:
        return self._failure

    #: As if a disk were full.
    complaints: list[str] = []  # noqa: RUF012  # of one test's object, which replaces it

    # -- what tests say --

    def fail(self, why: str | None) -> None:
        """As if the loop had died."""
        self._failure = why

    def until(self, condition: Callable[[Published], object]) -> Published:
        """Wait until this is published."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.published), PATIENCE_S), "it never came to that"
            return self.published

    def happens(self, *events: Event) -> None:
        self.inbox.put(list(events))

    def now(self) -> float:
        return self.inbox.clock.now()

    def live(self, job_id: str) -> Job:
        return self.published.live[job_id]

    def runs(self, job_id: str) -> Job:
        """Wait until it does."""
        return self.until(lambda p: job_id in p.live and p.live[job_id].phase is Phase.RUNNING).live[job_id]

    def exits(self, job_id: str, code: int = 0, detail: str = "", *, final: bool = True) -> None:
        """A running job ends by itself, and everybody knows."""
        attempt = self.runs(job_id).attempt
        self.happens(JobExited(self.now(), job_id, attempt, code, detail, final))
        self.until(lambda p: job_id in p.finished or p.live[job_id].attempt != attempt or p.live[job_id].not_before)

    def reports(self, job_id: str, progress: float, **more: Any) -> None:
        self.happens(JobReported(self.now(), job_id, self.runs(job_id).attempt, progress, **more))
        self.until(lambda p: p.live[job_id].belief.progress == progress)


@dataclass
class StillPlane:
    """Store, loop, service and app, with a user of each role and a second one to hide from."""

    directory: Path
    settings: Settings = field(default_factory=Settings)
    policy: str = "backfill"
    nodes: Sequence[Node] = NODES
    queues: tuple[Queue, ...] = (Queue("default"), Queue("vision", quota=2))
    most_live_jobs_each: int = 20_000
    log_files: dict[str, list[StillLog]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.store = Store.open(f"sqlite:///{self.directory}/fairlead.db")
        self.controller = StillController(self.store, policy=self.policy, nodes=self.nodes)
        self.controller.start()
        self.auth = Auth(self.store)
        roles = {"root": Role.ADMIN, "ann": Role.USER, "bob": Role.USER, "eve": Role.VIEWER}
        self.tokens = {name: self.auth.add(name, role, now=0.0) for name, role in roles.items()}
        rules = Rules(lambda: make_policy(self.policy), Cadence(), samples=0)
        terms = Terms(policy=self.policy, rules=rules, queues=self.queues, most_live_jobs_each=self.most_live_jobs_each)
        self.service = Service(
            self.store,
            self.controller,
            auth=self.auth,
            log_files=lambda job_id: self.log_files.get(job_id, []),
            terms=terms,
        )
        self.app = make_app(self.service, self.settings)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.app.state.streams.close()
        self.service.close()
        self.controller.stop()
        self.store.close()

    def ask(self, method: str, path: str, user: str | None = "ann", **options: Any) -> httpx.Response:
        """One request without a network."""
        headers = dict(options.pop("headers", {}))
        if user is not None:
            headers.setdefault("Authorization", f"Bearer {self.tokens[user]}")

        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, headers=headers, **options)

        return asyncio.run(one())

    def get(self, path: str, user: str | None = "ann", **options: Any) -> Any:
        """The JSON of an answer that has to be a good one."""
        response = self.ask("GET", path, user, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def submit(self, user: str = "ann", **request: Any) -> str:
        """The id of a new job, or the first of them."""
        response = self.ask("POST", "/api/v1/jobs", user, json={"run": "python train.py", **request})
        assert response.status_code == 201, response.text
        job_id: str = response.json()["ids"][0]
        return job_id

    @contextmanager
    def serving(self) -> Iterator[str]:
        """On a port of this machine; the address. For what needs a real connection."""
        server = make_server(self.app, self.settings, host="127.0.0.1", port=0, log_level="error")
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "uvicorn did not start"
            threading.Event().wait(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            self.app.state.streams.close()
            server.should_exit = True
            thread.join()

    def write_log(self, job_id: str, text: bytes, *, attempt: int = 1, rank: int = 0, index: str = "") -> Path:
        """Append to a log, as a job would."""
        path = self.directory / f"{job_id}-{attempt}-{rank}.log"
        entry = StillLog(attempt, rank, path, path.with_suffix(".index"))
        with path.open("ab") as file:
            file.write(text)
        if index:
            entry.index.write_text(index)
        files = self.log_files.setdefault(job_id, [])
        if entry not in files:
            files.append(entry)
        return path


ANN, BOB = Caller("ann", Role.USER), Caller("bob", Role.USER)
ROOT, EVE = Caller("root", Role.ADMIN), Caller("eve", Role.VIEWER)


def request(**fields: Any) -> JobRequest:
    return request_from({"run": "python train.py", **fields})


def submit(plane: StillPlane, caller: Caller = ANN, key: str | None = None, **fields: Any) -> list[str]:
    prepared = plane.service.prepare(caller, request(**fields))
    return list(plane.service.submit(prepared, key=key).result().ids)


def ids(page: dict[str, Any]) -> list[str]:
    return [job["id"] for job in page["jobs"]]
