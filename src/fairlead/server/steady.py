"""What keeps the loop turning when something around it is wrong.

A fact that makes no sense, a policy that fails, a disk that is full: each is told, and none ends the loop. Jobs run on
in the meantime.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fairlead.core.capability import EVERYTHING, Capability, check_used
from fairlead.core.errors import BackendError, InvalidTransition
from fairlead.core.loop import Policy
from fairlead.core.messages import Event, Message
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import Plan, Reason
from fairlead.server.database import is_disk_full
from fairlead.server.journal import SqlJournal
from fairlead.server.store import NotController

log = logging.getLogger(__name__)

#: Seconds between two tries to write.
RETRY_S = 1.0


class SteadyState(State):
    """Passes over facts that cannot be, where the core would rather end."""

    #: Hears of them, and why.
    refused: Callable[[Event, str], None] | None = None

    def apply(self, event: Event) -> bool:
        try:
            return super().apply(event)
        except InvalidTransition as error:
            log.error("passed over: %s", error)
            if self.refused is not None:
                self.refused(event, str(error))
            return False


class SteadyPolicy:
    """Another policy, and what it last saw and said. If it fails, everybody stays where they are."""

    def __init__(self, inner: Policy, *, can: frozenset[Capability] = EVERYTHING) -> None:
        self._inner, self._can = inner, can
        self.view: Snapshot | None = None
        self.last = Plan()
        #: How many decisions there were, and the seconds that the last one took.
        self.decisions, self.took_s = 0, 0.0
        #: Why the last decision is not the policy's own; empty if it is.
        self.complaint = ""

    def plan(self, view: Snapshot) -> Plan:
        began = time.perf_counter()
        try:
            plan = self._inner.plan(view)
            check(view, plan, changes(view, plan))
            check_used(plan, self._can)  # by a policy that does not declare what it needs
            self.complaint = ""
        except Exception as error:  # whatever it is, the running jobs are not to blame
            if self.complaint != repr(error):
                log.exception("the policy failed; everybody stays where they are until it does not")
            self.complaint = repr(error)
            kept = Reason("policy-error", f"the policy failed ({error!r}), so everybody stays where they are")
            plan = Plan(dict(view.allocations), dict.fromkeys(view.jobs, kept), packed=_sharing(view), memo=view.memo)
        view.columns, view.node_columns  # noqa: B018  # made now: other threads may not look at the state's own tables
        self.view, self.last = view, plan
        self.decisions, self.took_s = self.decisions + 1, time.perf_counter() - began
        return plan


def _sharing(view: Snapshot) -> frozenset[frozenset[str]]:
    return frozenset({frozenset(view.allocations)}) if view.shared else frozenset()


class SteadyJournal:
    """Writes on when it cannot write, until it can: nothing is done before it is written."""

    def __init__(self, inner: SqlJournal, *, closing: threading.Event, on_message: Callable[[Message], None]) -> None:
        self._inner, self._closing, self.on_message = inner, closing, on_message
        #: Why nothing can be written now; empty if all is well.
        self.complaint = ""

    def append(self, message: Message) -> None:
        self._inner.append(message)
        self.on_message(message)

    def commit(self) -> None:
        while True:
            try:
                self._inner.commit()
                self.complaint = ""
                return
            except NotController:
                raise
            except BackendError as error:
                if not self.complaint:
                    log.error("%s; it is tried again every %g s", error, RETRY_S)
                # Not where the database is, which is nobody's business.
                why = "the disk is full" if is_disk_full(error) else "the server's log says why"
                self.complaint = f"the journal cannot be written: {why}"
                if self._closing.wait(RETRY_S):
                    raise
