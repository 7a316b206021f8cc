"""What users asked for, as events: the requests in the store, taken up in their order by one thread.

A request is in the store before its user gets an answer. How far they were taken up goes into the journal together with
what came of them, so that after a crash reading goes on where it should, and nothing is done twice. Who has written a
request also tells of it here: as long as none is missing in between, nothing has to be read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from fairlead.backends.inbox import Inbox
from fairlead.core.errors import FairleadError
from fairlead.core.messages import (
    Event,
    JobCancelled,
    JobHeld,
    JobReprioritised,
    JobSubmitted,
    NodeDrained,
)
from fairlead.core.types import JobSpec, Node
from fairlead.server.resources import request_of, spec_of
from fairlead.server.store import JobRow, Request, Store

log = logging.getLogger(__name__)

#: The mark under which it is noted how far requests were read.
MARK = "requests"

#: Seconds after which the store is asked for requests even if nobody told of any; and after somebody did, so that many
#: are read at once.
LOOK_S, SETTLE_S = 5.0, 0.03


class Wishes:
    """Takes requests up and puts them into the inbox. `refused` hears of jobs that cannot be, and why."""

    def __init__(
        self, store: Store, inbox: Inbox, nodes: Callable[[], Iterable[Node]], refused: Callable[[JobRow, str], None]
    ) -> None:
        self._store, self._inbox, self._nodes, self._refused = store, inbox, nodes, refused
        self._read = 0
        self._heard: dict[int, tuple[Request, Sequence[JobSpec]]] = {}  # by number; not taken up yet
        self._lock = threading.Lock()  # of what was heard
        self._told, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fairlead-wishes", daemon=True)

    def start(self, after: int) -> None:
        """Read on after this request; those that wait already are in the inbox when this returns."""
        self._read = after
        self._look()
        self._thread.start()

    def hear(self, request: Request, specs: Sequence[JobSpec] = ()) -> None:
        """There is a new one. `specs` are those of the jobs it makes; the store is asked for those that are missing."""
        with self._lock:
            self._heard[request.seq] = (request, specs)
        self._told.set()

    def close(self) -> None:
        self._closed.set()
        self._told.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._closed.is_set():
            if self._told.wait(LOOK_S):
                self._closed.wait(SETTLE_S)
            self._told.clear()
            try:
                self._look()
            except FairleadError as error:
                log.error("cannot read what users asked for: %s; it is tried again", error)
                self._closed.wait(1.0)

    def _look(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, {}
        if heard and sorted(heard) == list(range(self._read + 1, self._read + 1 + len(heard))):
            requests = [heard[seq][0] for seq in sorted(heard)]
        else:
            requests = self._store.requests(self._read)
        specs = {spec.id: spec for _, theirs in heard.values() for spec in theirs}
        unknown = [job_id for request in requests for job_id in _new_jobs(request) if job_id not in specs]
        rows = self._store.jobs(unknown) if unknown else {}
        for request in requests:
            self._inbox.put(self._events(request, specs, rows), (MARK, str(request.seq)))
            self._read = request.seq

    def _events(self, request: Request, specs: Mapping[str, JobSpec], rows: Mapping[str, JobRow]) -> list[Event]:
        at, body, user = self._inbox.clock.now(), request.body, request.user
        match request.kind:
            case "submit":
                found = (specs.get(job_id) or self._spec(rows[job_id]) for job_id in _new_jobs(request))
                return [JobSubmitted(at, spec) for spec in found if spec is not None]
            case "cancel":
                return [JobCancelled(at, job_id, user, body.get("why") or "") for job_id in body["jobs"]]
            case "hold" | "release":
                return [JobHeld(at, job_id, on_hold=request.kind == "hold") for job_id in body["jobs"]]
            case "priority":
                return [JobReprioritised(at, job_id, body["priority"]) for job_id in body["jobs"]]
            case "drain":
                return [NodeDrained(at, body["node"], by=body.get("by"))]
            case "undrain":
                return [NodeDrained(at, body["node"], draining=False)]
        log.error("request %d asks for %r, which this Fairlead does not know: passed over", request.seq, request.kind)
        return []

    def _spec(self, row: JobRow) -> JobSpec | None:
        try:
            return spec_of(request_of(row), job_id=row.id, user=row.user, at=row.submitted_at, nodes=self._nodes())
        except FairleadError as error:  # it was checked before, perhaps by an older Fairlead
            log.error("job %s cannot be: %s", row.id, error)
            self._refused(row, str(error))
            return None


def _new_jobs(request: Request) -> Sequence[str]:
    return request.body["ids"] if request.kind == "submit" else ()
