"""The loop in a thread of its own, with everything it needs around it: how it begins, what it publishes, how it ends.

To begin is to read the journal, to ask the backend what really runs, and to go on: facts win. To end is to stop the
loop, and then either to leave the jobs to their supervisors or to see every one of them stopped.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairlead.backends.identity import Identity
from fairlead.backends.inbox import Clock, Inbox
from fairlead.backends.local import LocalBackend
from fairlead.backends.machine import Machine
from fairlead.backends.task import Task
from fairlead.core import codec
from fairlead.core.errors import FairleadError
from fairlead.core.facts import Facts
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import (
    Event,
    JobCancelled,
    JobSubmitted,
    Message,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Resize,
    Start,
    Stop,
)
from fairlead.core.state import State
from fairlead.core.types import Job, JobSpec, Node, Phase
from fairlead.core.usage import HALF_LIFE_S
from fairlead.policies.middleware import Queue, receipt, standard
from fairlead.policies.middleware.minimum import usual_minimum_s
from fairlead.server.clerk import Clerk
from fairlead.server.config import make_live_policy
from fairlead.server.journal import SqlJournal, recover
from fairlead.server.launching import LaunchRules, task_of
from fairlead.server.lock_waits import LockWaits
from fairlead.server.notes import PREEMPTED
from fairlead.server.published import Published
from fairlead.server.reasons import ITSELF
from fairlead.server.resources import outcome_of, request_of, spec_of
from fairlead.server.steady import SteadyJournal, SteadyPolicy, SteadyState
from fairlead.server.store import JobRow, Request, Store
from fairlead.server.wishes import MARK, Wishes

log = logging.getLogger(__name__)

#: Notes that are too many to keep: where each process runs is in the backend's own files.
_UNTOLD = ("worker",)


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """How this control plane decides and runs."""

    policy: str = "pilot"
    cadence: str = "event+10s"
    queues: tuple[Queue, ...] = ()
    #: None is what suits the policy.
    minimum_run_s: float | None = None
    preempt_unsaved: bool = False
    drain_lead_s: float = 120.0
    half_life_s: float = HALF_LIFE_S
    keep_finished: int = 1000
    #: Messages between two snapshots of the state.
    snapshot_every: int = 5000
    launch: LaunchRules = field(default_factory=LaunchRules)

    def make_policy(self) -> Policy:
        """One that has seen nothing: the loop's own, and one for each forecast."""
        policy = make_live_policy(self.policy)
        return standard(
            policy,
            self.queues,
            minimum_run_s=usual_minimum_s(policy) if self.minimum_run_s is None else self.minimum_run_s,
            lead_s=self.drain_lead_s,
            spare_unsaved=not self.preempt_unsaved,
        )


class Controller:
    """See the module. `start` and `stop` are for whoever owns it; the rest any thread may call."""

    def __init__(self, store: Store, machine: Machine, root: Path, options: ControlOptions) -> None:
        self._store, self._machine, self._root, self.options = store, machine, root, options
        self._policy = SteadyPolicy(options.make_policy(), can=LocalBackend.can)
        self._cadence = Cadence.parse(options.cadence)
        self._clerk = Clerk()
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._published = Published(0, 0.0, {}, {}, {})
        self._lock_waits = LockWaits()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._turn, name="fairlead-loop", daemon=True)
        self._ended: set[str] = set()
        self._receipts: dict[str, dict[str, str]] = {}
        self._snapshot_seq = self._decisions = 0
        self.ready = False
        #: What a person should know of the start.
        self.notices: list[str] = []
        #: Called by the loop's thread after each turn: how long events had waited, and how long it took to decide.
        self.on_turn: Callable[[float, float | None], None] = lambda lag_s, decision_s: None  # noqa: ARG005

    # -- beginning -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises BackendError if another controller lives, or the journal cannot be read."""
        epoch = self._store.claim(who=f"process {os.getpid()} on {socket.gethostname()}")
        for line in self._store.mend():
            log.warning("%s", line)
        self._state = state = self._recover()
        self._clock = Clock(not_before=state.now)
        self._inbox = inbox = Inbox(self._clock)
        journal = SqlJournal(self._store, epoch=epoch)
        inbox.on_mark = journal.mark
        self._journal = SteadyJournal(journal, closing=self._closing, on_message=self._look_at)
        journal.on_commit(self._committed)
        self.backend = LocalBackend(
            self._root,
            self._machine,
            inbox,
            prepare=self._prepare,
            on_note=self._note,
            why_stopped=lambda job: self._receipts.pop(job, {}),
            identify=self._identifier(),
        )
        self._clerk.start()
        self._take_up(marks := self._store.marks())
        self._wishes = Wishes(self._store, inbox, lambda: self._machine.nodes, self._refused)
        self._wishes.start(int(marks.get(MARK, "0")))
        self._snapshot_seq = journal.seq
        self._publish(journal.seq)
        self.backend.listen()
        self._thread.start()
        self.ready = True

    def _recover(self) -> SteadyState:
        options = self.options

        def make() -> State:
            return SteadyState(half_life_s=options.half_life_s, keep_finished=options.keep_finished)

        def load(data: dict[str, Any]) -> State:
            return SteadyState.of(codec.decode(Facts, data, place="snapshot"))

        def progress(done: int, total: int) -> None:
            if done and done % 100_000 == 0:
                log.info("read %d of %d messages of the journal", done, total)

        state, _ = recover(self._store, make, load, progress=progress)
        assert isinstance(state, SteadyState)
        state.refused = self._passed_over
        return state

    def _take_up(self, marks: dict[str, str]) -> None:
        """What runs, and what this machine has, as it is and not as it was."""
        state, now = self._state, self._clock.now()
        for line in self.backend.sweep():
            log.warning("%s", line)
        self._remember(int(marks.get(MARK, "0")))
        for start in self.backend.strays(state.live.values()):
            # It was started, but the journal has lost that.
            state.issue(start)
            self._journal.append(start)
        self.notices += self.backend.end_unclaimed(state.live.values(), grace_s=self.options.launch.grace_s)
        present = {node.id: node for node in self._machine.nodes}
        events: list[Event] = []
        for node in state.nodes.values():
            if node.healthy and (node.id not in present or _differs(node, present[node.id])):
                self.backend.end_those_on(node.id, state.live.values())
                events.append(NodeLost(now, node.id))
        joining = (_as_it_joins(node, state.nodes.get(node.id)) for node in present.values())
        events += [NodeJoined(now, node) for node in joining if node != state.nodes.get(node.id)]
        for node_id, gpus in self.backend.outside().items():
            if gpus or (node_id in state.nodes and state.nodes[node_id].outside):
                events.append(OutsidersSeen(now, node_id, gpus))
        self._inbox.put(events)
        for job in state.live.values():
            if job.attempt and job.phase is not Phase.PENDING:
                self._lock_waits.recall(self._store, job.id)
        for line in self.backend.attach(state.live.values(), marks):
            log.info("%s", line)
        self._ended = set(state.finished)
        self._clerk.hand(self._catch_up)

    def _remember(self, after: int) -> None:
        """Take in the jobs that were begun although the journal has lost even their submission: to decide without them
        would be to give their GPUs to others. That they are submitted again, by their requests, is passed over."""
        for request in self._store.requests(after):
            ids = request.body["ids"] if request.kind == "submit" else ()
            begun = [each for each in ids if self.backend.files(each, 1).start.exists() and self.backend.owns(each, 1)]
            for row in self._store.jobs(begun).values():
                nodes = self._machine.nodes
                spec = spec_of(request_of(row), job_id=row.id, user=row.user, at=row.submitted_at, nodes=nodes)
                if self._state.apply(event := JobSubmitted(self._clock.now(), spec)):
                    self._journal.append(event)

    def _catch_up(self) -> None:
        """Write down the ends that a crash has kept us from writing down."""
        rows = self._store.jobs(self._state.finished)
        for job in list(self._state.finished.values()):
            if (row := rows.get(job.id)) is not None and row.phase is None:
                self._end(job)

    # -- turning -------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            run(self._policy, self.backend, state=self._state, journal=self._journal, cadence=self._cadence)
        except Exception as error:
            if not self._closing.is_set():
                log.exception("the loop has ended; jobs run on, but nothing is decided any more")
                self._failure = f"{error}"
                with self._changed:
                    self._changed.notify_all()

    def _look_at(self, message: Message) -> None:
        """Before it is written: what people will want to know of it."""
        if not isinstance(message, Stop | Resize) or self._policy.view is None:
            return
        job = self._policy.view.jobs.get(message.job)
        if job is None or not job.allocation:  # it is on hold or cancelled, and that is its user's wish
            return
        told = receipt(self._policy.view, self._policy.last, message.job)
        if isinstance(message, Stop):
            self._receipts[message.job] = {"why": told.why.text, "by": ", ".join(who for who, _ in told.gets)}
        if told.is_due:
            body = told.to_dict(resized=isinstance(message, Resize))
            self._clerk.hand(lambda: self._store.note([message.job], PREEMPTED, message.at, body))

    def _committed(self, seq: int) -> None:
        self._publish(seq)
        decided = self._policy.decisions > self._decisions
        self._decisions = self._policy.decisions
        self.on_turn(self._inbox.lag_s, self._policy.took_s if decided else None)
        self._note_ends()
        if seq - self._snapshot_seq >= self.options.snapshot_every:
            self._save_snapshot(seq)

    def _publish(self, seq: int) -> None:
        state = self._state
        with self._changed:  # the backend's thread may hear of a lock meanwhile
            self._lock_waits.forget_all_but(state.live)
            self._published = Published(
                seq=seq,
                now=state.now,
                live=state.live.copy(),
                finished=state.finished.copy(),
                nodes=state.nodes.copy(),
                view=self._policy.view,
                plan=self._policy.last,
                lock_waits=self._lock_waits.current,
            )
            self._changed.notify_all()

    def _note_ends(self) -> None:
        new = []
        for job in reversed(self._state.finished.values()):
            if job.id in self._ended:
                break
            new.append(job)
        for job in reversed(new):
            self._ended.add(job.id)
            self._clerk.hand(lambda job=job: self._end(job))  # type: ignore[misc]
            if job.phase is not Phase.SUCCEEDED:
                self._cancel_dependents(job)
        if len(self._ended) > 2 * self.options.keep_finished:
            self._ended = set(self._state.finished)

    def _end(self, job: Job) -> None:
        self._store.end_job(job.id, phase=job.phase.value, at=job.since, outcome=outcome_of(job))

    def _cancel_dependents(self, job: Job) -> None:
        fate = "has failed" if job.phase is Phase.FAILED else "was cancelled"
        why = f"job {job.id}, on which it depends, {fate}"
        at = self._clock.now()
        waiting = [other.id for other in self._state.live.values() if job.id in other.waits_for]
        self._inbox.put([JobCancelled(at, other, ITSELF, why) for other in waiting]) if waiting else None

    def _save_snapshot(self, seq: int) -> None:
        facts, self._snapshot_seq = self._state.facts(), seq
        self._clerk.hand(lambda: self._store.save_snapshot(seq, codec.encode_slowly(facts)))

    # -- what the backend asks -----------------------------------------------------------------------------------

    def _identifier(self) -> Callable[[str], Identity]:
        """What a job's directory has to carry. It never changes, and is asked for with each look at a log."""
        cluster = self._store.identity()

        @lru_cache(maxsize=10_000)
        def identify(job: str) -> Identity:
            row = self._store.job(job)
            return Identity(cluster, job, None if row is None else row.submission)

        return identify

    def _prepare(self, start: Start) -> Task:
        row = self._store.job(start.job)
        if row is None:
            raise FairleadError(f"job {start.job} is in the journal, but not among the jobs of the database")
        job = self._state.live[start.job]
        rules = self.options.launch
        return task_of(row, start, job, machine=self._machine, root=self._root, rules=rules)

    def _note(self, job: str, at: float, note: dict[str, Any]) -> None:
        kind = str(note.pop("what", "note"))
        with self._changed:
            if self._lock_waits.hear(job, at, kind, note):
                self._published = replace(self._published, lock_waits=self._lock_waits.current)
        if kind not in _UNTOLD:
            self._clerk.hand(lambda: self._store.note([job], kind, at, note))

    def _passed_over(self, event: Event, why: str) -> None:
        """A job that cannot be taken in ends here: nobody should wait for it."""
        if isinstance(event, JobSubmitted) and self._state.job(event.spec.id) is None:
            job = Job(event.spec, event.at, phase=Phase.CANCELLED, since=event.at, detail=why.split(". The story")[0])
            self._clerk.hand(lambda: self._end(job))

    def _refused(self, row: JobRow, why: str) -> None:
        at, outcome = self._clock.now(), {"detail": why}
        self._clerk.hand(lambda: self._store.end_job(row.id, phase=Phase.CANCELLED.value, at=at, outcome=outcome))

    # -- what others ask -----------------------------------------------------------------------------------------

    @property
    def published(self) -> Published:
        return self._published

    def wait(self, after_seq: int, timeout_s: float) -> Published:
        """The first that is newer, or the latest when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._published.seq > after_seq or self._failure is not None, timeout_s)
            return self._published

    def hand_over(self, request: Request, specs: Sequence[JobSpec] = ()) -> None:
        """A request that is in the store; returns at once. `specs` are those of the jobs it makes, where known."""
        self._wishes.hear(request, specs)

    def failure(self) -> str | None:
        """Why nothing is decided any more; None if all is well."""
        return self._failure

    @property
    def complaints(self) -> list[str]:
        """What is wrong but goes on. Anybody may read it."""
        failing = "the policy fails, and everybody stays where they are; the server's log says how"
        return [each for each in (self._policy.complaint and failing, self._journal.complaint) if each]

    # -- ending --------------------------------------------------------------------------------------------------

    def stop(self, *, keep_jobs: bool, timeout_s: float | None = None) -> list[str]:
        """The loop ends. Returns the jobs that still run: all of them, or those that did not stop in time."""
        self.ready = False
        self._inbox.close()
        self._closing.set()
        self._thread.join()
        self._wishes.close()
        if not keep_jobs and self._failure is None:
            self._wind_down(timeout_s)
        left = self.backend.running
        self.backend.close()
        if self._failure is None and not self._journal.complaint:
            self._save_snapshot(self._published.seq)
        self._clerk.close()
        return left

    def _wind_down(self, timeout_s: float | None) -> None:
        """Stop everybody, and hear them out. Nobody is preempted by that: there are no receipts."""
        state, inbox = self._state, self._inbox
        self._receipts.clear()
        self._journal.on_message = lambda message: None  # noqa: ARG005
        inbox.open()
        for job in _running(state.live.values()):
            if job.phase is not Phase.STOPPING:
                stop = Stop(self._clock.now(), job.id, job.attempt)
                state.issue(stop)
                self._journal.append(stop)
        self._journal.commit()
        for job in _running(state.live.values()):
            self.backend.execute(Stop(self._clock.now(), job.id, job.attempt))
        until = self._clock.now() + (timeout_s if timeout_s is not None else 120.0)
        while _running(state.live.values()) and self._clock.now() < until:
            for event in inbox.wait(min(until, self._clock.now() + 1.0)) or []:
                if state.apply(event):
                    self._journal.append(event)
            self._journal.commit()


def _running(jobs: Iterable[Job]) -> list[Job]:
    return [job for job in jobs if job.phase is not Phase.PENDING and not job.phase.final]


def _as_it_joins(node: Node, before: Node | None) -> Node:
    """What is stated of a node may have changed; whether it drains, and which outsiders are on it, has not."""
    if before is None or not before.healthy or _differs(node, before):
        return node
    return replace(before, price_per_hour=node.price_per_hour, speed=node.speed)


def _differs(node: Node, other: Node) -> bool:
    """So much that no job there can go on. Its labels say how fast it is."""
    return (node.gpus, node.gpu_type, node.labels) != (other.gpus, other.gpu_type, other.labels)
