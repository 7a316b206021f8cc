"""What users asked for, as events: the requests in the store, read in their order by one thread.

A request is in the store before its user gets an answer. How far they were read goes into the journal together with
what came of them, so that after a crash reading goes on where it should, and nothing is done twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

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
from fairlead.core.types import Node
from fairlead.server.resources import request_of, spec_of
from fairlead.server.store import JobRow, Request, Store

log = logging.getLogger(__name__)

#: The mark under which it is noted how far requests were read.
MARK = "requests"

#: Seconds after which the store is asked for requests even if nobody told of any; and after somebody did, so that many
#: are read at once.
LOOK_S, GATHER_S = 5.0, 0.03


class Wishes:
    """Reads requests and puts them into the inbox. `refused` hears of jobs that cannot be, and why."""

    def __init__(
        self, store: Store, inbox: Inbox, nodes: Callable[[], Iterable[Node]], refused: Callable[[JobRow, str], None]
    ) -> None:
        self._store, self._inbox, self._nodes, self._refused = store, inbox, nodes, refused
        self._read = 0
        self._told, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fairlead-wishes", daemon=True)

    def start(self, after: int) -> None:
        """Read on after this request; those that wait already are in the inbox when this returns."""
        self._read = after
        self._look()
        self._thread.start()

    def tell(self) -> None:
        """There are new ones."""
        self._told.set()

    def close(self) -> None:
        self._closed.set()
        self._told.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._closed.is_set():
            if self._told.wait(LOOK_S):
                self._closed.wait(GATHER_S)
            self._told.clear()
            try:
                self._look()
            except FairleadError as error:
                log.error("cannot read what users asked for: %s; it is tried again", error)
                self._closed.wait(1.0)

    def _look(self) -> None:
        requests = self._store.requests(self._read)
        ids = [job_id for request in requests if request.kind == "submit" for job_id in request.body["ids"]]
        rows = self._store.jobs(ids) if ids else {}
        for request in requests:
            self._inbox.put(self._events(request, rows), (MARK, str(request.seq)))
            self._read = request.seq

    def _events(self, request: Request, rows: Mapping[str, JobRow]) -> list[Event]:
        at, body, user = self._inbox.clock.now(), request.body, request.user
        match request.kind:
            case "submit":
                return [event for job_id in body["ids"] for event in self._submitted(rows[job_id], at)]
            case "cancel":
                return [JobCancelled(at, body["job"], user, body.get("why") or "")]
            case "hold" | "release":
                return [JobHeld(at, body["job"], on_hold=request.kind == "hold")]
            case "priority":
                return [JobReprioritised(at, body["job"], body["priority"])]
            case "drain":
                return [NodeDrained(at, body["node"], by=body.get("by"))]
            case "undrain":
                return [NodeDrained(at, body["node"], draining=False)]
        log.error("request %d asks for %r, which this Fairlead does not know: passed over", request.seq, request.kind)
        return []

    def _submitted(self, row: JobRow, at: float) -> list[Event]:
        try:
            spec = spec_of(request_of(row), job_id=row.id, user=row.user, at=row.submitted_at, nodes=self._nodes())
        except FairleadError as error:  # it was checked before, perhaps by an older Fairlead
            log.error("job %s cannot be: %s", row.id, error)
            self._refused(row, str(error))
            return []
        return [JobSubmitted(at, spec)]
