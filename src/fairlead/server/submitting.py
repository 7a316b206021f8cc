"""Taking jobs in: what is checked before, what the store keeps, and jobs that the loop has not seen yet.

Two hundred submissions a second must not wait for each other or for the loop, so that nothing here looks at all jobs
more than once a second.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Any

from fairlead.core.errors import FairleadError
from fairlead.core.hints import did_you_mean
from fairlead.core.types import Job, JobSpec, Phase
from fairlead.jobfile import InvalidJob, JobRequest, Problem, expand, resolve_deadline, to_data
from fairlead.policies.middleware.queues import Queue, all_queues
from fairlead.server.asking import Controller, TooMany, Unavailable
from fairlead.server.auth import Caller, Role
from fairlead.server.published import Published
from fairlead.server.queues import never_runs
from fairlead.server.resources import document_of, job_of, spec_of
from fairlead.server.store import NewJob, Request, Store, Submitted

#: Users may say which of their own jobs matter less, but not that they matter more than those of others.
MOST_PRIORITY = 0

#: Jobs that one can wait for. All their ids are in its journal.
MOST_BEFORE = 2000

#: The id of a job that is only asked about.
NOT_YET = "new"

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")

#: How long a job counts as new to the loop before the store is asked what became of it.
_PATIENCE_S = 5.0
_COUNTED_FOR_S = 1.0
_TENANT = attrgetter("spec.tenant")  # ten thousand times a second, without a step of Python
#: Submissions that are remembered by their keys. The store knows all of them, but is asked only once it is too late.
_MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that may be submitted, by whom and when."""

    caller: Caller
    request: JobRequest
    at: float
    #: What the scheduler would see of it or, of an array, of its first element.
    spec: JobSpec
    digest: str

    @property
    def asks_for_an_answer(self) -> bool:
        return self.spec.deadline is not None or self.spec.budget is not None


class Submissions:
    """Checks requests, writes them, and remembers the new jobs until the loop publishes them."""

    def __init__(
        self, store: Store, controller: Controller, *, queues: Sequence[Queue], most_live_jobs_each: int
    ) -> None:
        self._store, self._controller = store, controller
        self._queues, self._names = queues, frozenset(all_queues(queues))
        self._most = most_live_jobs_each
        self._lock = Lock()
        self._new: dict[str, tuple[float, Job]] = {}  # id -> (when, job)
        self._keys: dict[tuple[str, str], tuple[str, Submitted]] = {}  # (user, key) -> (digest, what became of it)
        self._counted_at = -_COUNTED_FOR_S
        self._live: Counter[str] = Counter()  # by user, and what has come since it was counted
        self._reserved: Counter[str] = Counter()  # by user: what is being written

    # -- before --

    def repeated(self, caller: Caller, request: JobRequest, key: str) -> Submitted | None:
        """What became of the same submission a while ago. It was taken in then, whatever would be said of it now."""
        digest, submitted = self._keys.get((caller.name, key), ("", None))
        return replace(submitted, fresh=False) if submitted is not None and digest == _digest(request) else None

    def repeated_long_ago(self, caller: Caller, request: JobRequest, key: str) -> Submitted | None:
        """The same from the store, for what would be refused today."""
        known = self._store.submission(caller.name, key)
        return known[1] if known is not None and known[0] == _digest(request) else None

    def prepare(self, caller: Caller, request: JobRequest, *, now: float) -> Prepared:
        """Raise unless it could be submitted now."""
        digest = _digest(request)
        request = resolve_deadline(request, now)
        if request.depends_on:
            request = replace(request, depends_on=self._unmet(caller, request))
        if problems := self._problems(caller, request):
            raise InvalidJob(problems)
        nodes = self._controller.published.nodes.values()
        _, first = expand(request)[0]
        spec = spec_of(first, job_id=NOT_YET, user=caller.name, at=now, nodes=nodes)
        if (never := never_runs(spec, self._queues, self._controller.published)) is not None:
            raise InvalidJob.at("gpus", f"it could never run: {never}")
        return Prepared(caller, request, now, spec, digest)

    def _problems(self, caller: Caller, request: JobRequest) -> list[Problem]:
        problems = []
        if request.priority > MOST_PRIORITY and caller.role is not Role.ADMIN:
            problems.append(Problem("priority", too_urgent(request.priority)))
        if request.queue not in self._names:
            hint = did_you_mean(request.queue, self._names)
            problems.append(Problem("queue", f"there is no queue {request.queue!r}{hint}"))
        if request.workdir is not None and not request.workdir.startswith(("/", "~")):
            text = f"workdir is {request.workdir!r}, which is relative; expected one that begins with / or ~"
            problems.append(Problem("workdir", text))
        return problems

    def _unmet(self, caller: Caller, request: JobRequest) -> tuple[str, ...]:
        """The jobs it really has to wait for. One that can never succeed is a problem."""
        published, unmet, problems = self._controller.published, [], []
        named = [(place, other) for place, name in enumerate(request.depends_on) for other in self._named(name)]
        if len(named) > MOST_BEFORE:
            text = f"it names {len(named)} jobs; at most {MOST_BEFORE} are possible. Let one job wait for some of them"
            raise InvalidJob.at("depends_on", text)
        known = {other: job for _, other in named if (job := self.find(other, published)) is not None}
        stored = self._store.jobs(other for _, other in named if other not in known)
        known |= {row.id: job_of(row, published.nodes.values()) for row in stored.values()}
        for place, other in named:
            job = known.get(other)
            if job is None or (job.spec.tenant != caller.name and caller.role is not Role.ADMIN):
                name = request.depends_on[place]  # and not what the jobs of somebody else's array are called
                problems.append(Problem(f"depends_on[{place}]", f"you have no job {name!r} that it could depend on"))
            elif job.phase in (Phase.FAILED, Phase.CANCELLED) or job.cancelled:
                fate = "has failed" if job.phase is Phase.FAILED else "was cancelled"
                text = f"job {other} {fate}; a job that depends on it could never start"
                problems.append(Problem(f"depends_on[{place}]", text))
            elif job.phase is not Phase.SUCCEEDED:
                unmet.append(other)
        if problems:
            raise InvalidJob(list(dict.fromkeys(problems)))
        return tuple(dict.fromkeys(unmet))

    def _named(self, name: str) -> Sequence[str]:
        """The jobs that somebody means: an array is all of its jobs."""
        return (self._store.elements(int(name)) if _NUMBER.fullmatch(name) else ()) or (name,)

    # -- the write --

    def commit(self, prepared: Prepared, *, key: str | None) -> Future[Submitted]:
        """Write it. When that is done the loop knows of it, whatever has become of whoever asked."""
        if (failure := self._controller.failure()) is not None:
            raise Unavailable(f"the control plane has stopped ({failure}); nothing was submitted")
        caller = prepared.caller
        # In ascending order, so that the order of ids is the order of arrival.
        elements = sorted(expand(prepared.request), key=lambda each: each[0] or 0)
        document = document_of(elements[0][1])
        rows = [
            NewJob(
                name=request.name,
                queue=request.queue,
                document=document,
                secrets=request.secrets,
                element=element,
            )
            for element, request in elements
        ]
        self._reserve(caller.name, len(rows))
        try:
            writing = self._store.submit(rows, user=caller.name, at=prepared.at, key=key, digest=prepared.digest)
        except FairleadError:
            self._release(caller.name, len(rows))
            raise
        writing.add_done_callback(partial(self._written, prepared, key, len(rows)))
        return writing

    def _written(self, prepared: Prepared, key: str | None, count: int, writing: Future[Submitted]) -> None:
        """As a rule by the thread that writes."""
        submitted = None if writing.cancelled() or writing.exception() is not None else writing.result()
        caller, at = prepared.caller.name, prepared.at
        if submitted is None or not submitted.fresh:
            self._release(caller, count)
        if submitted is None:
            return
        if key is not None:
            self._remember((caller, key), prepared.digest, submitted)
        if submitted.fresh:
            specs = [replace(prepared.spec, id=job_id) for job_id in submitted.ids]
            with self._lock:
                self._new |= {spec.id: (time.monotonic(), _new_job(spec, at)) for spec in specs}
                self._live[caller] += count
                self._reserved[caller] -= count
            request = Request(submitted.seq, at, caller, "submit", {"ids": list(submitted.ids)})
            # What `prepare` knows of an array is its first element; the others are read from the store.
            self._controller.hand_over(request, specs if count == 1 else ())

    def _remember(self, key: tuple[str, str], digest: str, submitted: Submitted) -> None:
        with self._lock:
            self._keys[key] = (digest, submitted)
            if len(self._keys) > _MOST_KEYS:
                del self._keys[next(iter(self._keys))]

    def _reserve(self, user: str, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._counted_at >= _COUNTED_FOR_S:
                published = self._controller.published
                self._forget_published(published)
                self._live = Counter(map(_TENANT, published.live.values()))
                self._live.update(_TENANT(job) for _, job in self._new.values())
                self._counted_at = now
            there = self._live[user] + self._reserved[user]
            if there + count > self._most:
                raise TooMany(
                    f"you have {there} jobs that have not ended, and {count} more would be above the limit "
                    f"of {self._most} for each user; wait until some have ended, or cancel some",
                    again_after_s=60.0,
                )
            self._reserved[user] += count

    def _release(self, user: str, count: int) -> None:
        with self._lock:
            self._reserved[user] -= count

    # -- after --

    def find(self, job_id: str, published: Published) -> Job | None:
        """A job that the loop knows, or is about to."""
        known = published.job(job_id)
        if known is not None:
            return known
        with self._lock:
            entry = self._new.get(job_id)
        return None if entry is None or time.monotonic() - entry[0] > _PATIENCE_S else entry[1]

    def unpublished(self, published: Published) -> list[Job]:
        """Jobs that were submitted but are not in there yet, in order of arrival."""
        if not self._new:
            return []
        with self._lock:
            self._forget_published(published)
            return [job for _, job in self._new.values()]

    def _forget_published(self, published: Published) -> None:
        late = time.monotonic() - 12 * _PATIENCE_S  # whatever became of it, the store knows
        for job_id in [i for i, (at, _) in self._new.items() if at < late or published.job(i) is not None]:
            del self._new[job_id]


def too_urgent(priority: int) -> str:
    """Somebody would rather be before all others."""
    return f"priority is {priority}; only administrators may give one above {MOST_PRIORITY}; lower ones anybody may"


def _digest(request: JobRequest) -> str:
    """What tells one submission from another under the same key: as it was sent, before times were resolved."""
    return hashlib.sha256(_canonical(to_data(request, secrets=True))).hexdigest()


def _canonical(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _new_job(spec: JobSpec, at: float) -> Job:
    return Job(spec, at, since=at, accounted_at=at, waits_for=spec.depends_on)


def in_order(job_id: str) -> tuple[int, int]:
    """What sorts ids by arrival: 12 before 13.0 before 13.1."""
    number, _, element = job_id.partition(".")
    return (int(number), int(element)) if element else (int(number), -1)
