"""Pages of jobs, newest first: live ones as they were published, ended ones from the store.

Only the jobs of a page are made into resources: a reason takes time, and there may be ten thousand jobs.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Job
from fairlead.server.auth import Caller, Sight
from fairlead.server.published import Published
from fairlead.server.resources import FINAL, State, job_of, job_resource, state_of
from fairlead.server.store import Conflict, JobRow, Store
from fairlead.server.submitting import Submissions, in_order

#: Rows that one request reads at most. A page may be short, and then says where to go on.
_MOST_ROWS = 2000
_ROWS = 250

_ENDED = {
    "succeeded": {State.SUCCEEDED},
    "failed": {State.FAILED, State.TIMEOUT},
    "cancelled": {State.CANCELLED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which jobs. Empty fields are no condition; of the states and labels one, and all, have to be met."""

    states: frozenset[State] = frozenset()
    user: str | None = None
    queue: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    #: Part of the name.
    name: str = ""
    #: Ended ones as well, or these alone.
    ended: bool = False
    live: bool = True
    limit: int = 100
    cursor: str | None = None

    def admits(self, job: Job, now: float, caller: Caller) -> bool:
        spec = job.spec
        if (self.user is not None and spec.tenant != self.user) or (
            self.queue is not None and spec.queue != self.queue
        ):
            return False
        if self.name and self.name.casefold() not in spec.name.casefold():
            return False
        if self.labels and (
            caller.sight(spec.tenant) is Sight.ROW  # or else one could guess labels that one may not see
            or any(spec.labels.get(key) != value for key, value in self.labels)
        ):
            return False
        return not self.states or state_of(job, now) in self.states


def page(query: Query, caller: Caller, published: Published, store: Store, submissions: Submissions) -> dict[str, Any]:
    """{"jobs": resources, "next": where to go on or None, "seq": as of when}."""
    stored = query.ended or bool(query.states & FINAL)
    if stored:
        jobs, following = _stored(query, caller, published, store, submissions)
    else:
        jobs, following = _live(query, caller, published, submissions)
    resources = [job_resource(job, published, caller.sight(job.spec.tenant)) for job in jobs]
    return {"jobs": resources, "next": following, "seq": published.seq}


# -- live --------------------------------------------------------------------------------------------------------------


def _live(query: Query, caller: Caller, published: Published, submissions: Submissions) -> tuple[list[Job], str | None]:
    jobs = [*published.live.values(), *submissions.unpublished(published)]
    jobs.reverse()
    if query.cursor is not None:
        after = in_order(_cursor(query.cursor, "live"))
        jobs = jobs[_first_before(jobs, after) :]
    matching = (job for job in jobs if query.admits(job, published.now, caller))
    found = list(islice(matching, query.limit + 1))
    if len(found) <= query.limit:
        return found, None
    return found[:-1], f"live-{found[-2].id}"


def _first_before(jobs: list[Job], after: tuple[int, int]) -> int:
    """The first job that came before that one, which may be gone. Newest first, so their order descends."""
    low, high = 0, len(jobs)
    while low < high:
        middle = (low + high) // 2
        if in_order(jobs[middle].id) < after:
            high = middle
        else:
            low = middle + 1
    return low


#: What `next` can be, by the kind of list: of jobs that have not ended, or of all that are stored.
CURSORS = {"live": r"live-([0-9]{1,18}(?:\.[0-9]{1,18})?)", "all": "all-([0-9]{1,18})"}


def _cursor(text: str, kind: str) -> str:
    """Where a list of this kind goes on."""
    match = re.fullmatch(CURSORS[kind], text)
    if match is not None:
        return match[1]
    if any(re.fullmatch(pattern, text) for pattern in CURSORS.values()):
        raise Conflict("cursor is of a list with other conditions; use `next` of the page before, with the same ones")
    raise InvalidSpec("cursor is none that a list gave; use `next` of the page before")


# -- stored ------------------------------------------------------------------------------------------------------------


def _stored(
    query: Query, caller: Caller, published: Published, store: Store, submissions: Submissions
) -> tuple[list[Job], str | None]:
    before = None if query.cursor is None else int(_cursor(query.cursor, "all"))
    phases = [phase for phase, states in _ENDED.items() if not query.states or states & query.states]
    only_ended = not query.live or (query.states and query.states <= FINAL)
    found: list[Job] = []
    read, last = 0, None
    for row in _merged(query, store, phases, before) if only_ended else _rows(query, store, None, before):
        if len(found) == query.limit or read == _MOST_ROWS:
            return found, f"all-{last}"
        read, last = read + 1, row.seq
        job = submissions.find(row.id, published) or job_of(row, published.nodes.values())
        if query.admits(job, published.now, caller) and (query.live or job.phase.final):
            found.append(job)
    return found, None


def _rows(query: Query, store: Store, phase: str | None, before: int | None) -> Iterator[JobRow]:
    while True:
        rows = store.list_jobs(user=query.user, queue=query.queue, phase=phase, before=before, limit=_ROWS)
        yield from rows
        if len(rows) < _ROWS:
            return
        before = rows[-1].seq


def _merged(query: Query, store: Store, phases: list[str], before: int | None) -> Iterator[JobRow]:
    """Ended jobs only. The database finds them by phase, behind however many live ones."""
    return heapq.merge(*(_rows(query, store, phase, before) for phase in phases), key=lambda row: -row.seq)
