"""This machine as a cluster: every attempt is a supervisor with processes of its own, which outlives the controller.

`execute` starts supervisors and appends to their orders; a thread reads what they say and puts it into the inbox, as
events; another looks who else uses the GPUs. To come back after a crash is to compare what the state believes with what
the files tell: see `attach`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.backends.attempt import Attempt, start_guardian
from fairlead.backends.files import Appender, AttemptFiles, Line, Tail
from fairlead.backends.hearing import Hearing
from fairlead.backends.identity import Identity, belongs_to, take_directory
from fairlead.backends.inbox import Inbox
from fairlead.backends.machine import CAN, Machine
from fairlead.backends.outsiders import Outsider, Outsiders
from fairlead.backends.ownership import end_belongings, sweep
from fairlead.backends.processes import COOKIE, boot_id, cookie_of
from fairlead.backends.regular_file import NotRegular, make_folder, read_whole, write_whole
from fairlead.backends.task import Task
from fairlead.backends.unclaimed import end_unclaimed, find_unclaimed
from fairlead.core import codec
from fairlead.core.errors import BackendError, FairleadError
from fairlead.core.messages import Command, Event, JobExited, JobStopped, OutsidersSeen, Resize, Start, Stop
from fairlead.core.types import Allocation, Job, Phase
from fairlead.train.wire import NOTES

log = logging.getLogger(__name__)

#: Seconds between two looks at what supervisors say, two looks whether they live, and two tries to start one.
LOOK_S, ALIVE_S, RETRY_S = 0.05, 1.0, 5.0

#: Seconds to wait, at the end, for a look at who uses the GPUs: a driver can be stuck.
_LAST_LOOK_S = 5.0


#: The directory, beside those of its attempts, that a job may keep for itself.
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, order=True)
class LogFile:
    """What one worker of one attempt has printed. `index` says when it had which size."""

    attempt: int
    rank: int
    path: Path
    index: Path


class LocalBackend:
    """See the module. `prepare` makes the task of a start; `on_note` hears what is for people: job, time, fields;
    `why_stopped` says who wants a job gone, and why, for the job to read; `identify` says what a job's directory has to
    carry to be its own. Any thread may call `prepare`, `on_note` and `identify`."""

    can = CAN

    def __init__(
        self,
        root: Path,
        machine: Machine,
        inbox: Inbox,
        *,
        prepare: Callable[[Start], Task],
        on_note: Callable[[str, float, Line], None] = lambda job, at, note: None,  # noqa: ARG005
        why_stopped: Callable[[str], Line] = lambda job: {},  # noqa: ARG005
        identify: Callable[[str], Identity] = lambda job: Identity("", job),
    ) -> None:
        self._root, self.machine, self.inbox = root, machine, inbox
        self._prepare, self._on_note, self._why_stopped = prepare, on_note, why_stopped
        self._identify = identify
        self._types = {node.id: node.gpu_type for node in machine.nodes}
        self._attempts: dict[str, Attempt] = {}
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._outsiders = Outsiders(machine, root)
        self._watcher: threading.Thread | None = None
        self._news: list[Outsider] = []  # not told yet
        self._trouble = ""  # why nobody can tell who uses the GPUs

    # -- the Backend protocol ------------------------------------------------------------------------------------

    def wait(self, until: float) -> list[Event] | None:
        return self.inbox.wait(until)

    def execute(self, command: Command) -> None:
        if isinstance(command, Start):
            self._start(command)
        elif isinstance(command, Resize):
            self._order(command, {"order": "resize", "slots": self.machine.places(command.allocation)})
        elif isinstance(command, Stop):
            self._order(command, {"order": "stop", **self._why_stopped(command.job)})

    # -- starting ------------------------------------------------------------------------------------------------

    def files(self, job: str, attempt: int) -> AttemptFiles:
        return AttemptFiles(self._root / job / f"attempt-{attempt}")

    def owns(self, job: str, attempt: int) -> bool:
        """Is what lies in this attempt's directory, if anything does, of this job and this attempt?"""
        identity, files = self._identify(job), self.files(job, attempt)
        return belongs_to(self._root / job, identity) and belongs_to(files.directory, identity.of_attempt(attempt))

    def _take_directories(self, start: Start, files: AttemptFiles) -> None:
        """See that the job's and the attempt's directories are their own, whatever lay there before."""
        identity = self._identify(start.job)
        for directory, own in (
            (self._root / start.job, identity),
            (files.directory, identity.of_attempt(start.attempt)),
        ):
            if (moved := take_directory(directory, own)) is not None:
                log.warning("job %s: %s was of another job, and is now %s", start.job, directory, moved)
                note = {"what": "put-aside", "directory": str(directory), "moved": str(moved)}
                self._on_note(start.job, self._now(), note)

    def _start(self, command: Start) -> None:
        with self._guard:
            known = self._attempts.get(command.job)
        if known is None or known.number != command.attempt:  # and it was not told before
            attempt = self._make(command)
            self._spawn(attempt)
            self._listen_to(attempt)

    def _make(self, start: Start, position: int = 0) -> Attempt:
        files = self.files(start.job, start.attempt)
        tail, orders = Tail(files.events, position, root=self._root), Appender(files.orders, root=self._root)
        return Attempt(start, files, tail, orders, start.allocation)

    def _listen_to(self, attempt: Attempt) -> None:
        """From now on."""
        if not attempt.over:
            with self._guard:
                self._attempts[attempt.job] = attempt

    def _task(self, start: Start, files: AttemptFiles) -> Task:
        task, job = self._prepare(start), self._root / start.job
        standard = {
            COOKIE: cookie_of(start.job, start.attempt, self._root),
            "FAIRLEAD_JOB_ID": start.job,
            "FAIRLEAD_ATTEMPT": str(start.attempt),
            "FAIRLEAD_PREEMPT_FILE": str(files.notice),
            NOTES: str(files.worker_notes),
            "FAIRLEAD_CHECKPOINTS": str(job / CHECKPOINTS),  # where fairlead.train looks
            "FAIRLEAD_CHECKPOINT_DIR": str(job / CHECKPOINTS),  # as other schedulers call it
        }
        return replace(task, env={**task.env, **standard})

    def _spawn(self, attempt: Attempt) -> None:
        """Its supervisor. Where the machine cannot, for now, it is tried again: that is not the job's fault."""
        start, files = attempt.start, attempt.files
        try:
            self._take_directories(start, files)
            task = self._task(start, files)
            for directory in (self._root / start.job / CHECKPOINTS, files.logs):
                make_folder(directory, root=self._root)
            write_whole(files.start, json.dumps(codec.encode(start.allocation)), root=self._root)
            attempt.process = start_guardian(task, files)
        except NotRegular as error:  # that was the job itself, in an earlier attempt
            self._put(attempt, JobExited(self._now(), start.job, start.attempt, 1, str(error), final=True))
            return
        except (OSError, BackendError) as error:
            self._try_again(attempt, error.strerror or str(error) if isinstance(error, OSError) else str(error))
            return
        except FairleadError as error:
            self._put(attempt, JobExited(self._now(), start.job, start.attempt, 1, str(error), final=True))
            return
        attempt.waits, attempt.due = False, time.monotonic() + ALIVE_S

    def _try_again(self, attempt: Attempt, why: str) -> None:
        attempt.waits, attempt.due = True, time.monotonic() + RETRY_S
        self._complain(attempt, "cannot-start", why)

    def _order(self, command: Resize | Stop, order: Line) -> None:
        with self._guard:
            attempt = self._attempts.get(command.job)
        if attempt is None or attempt.number != command.attempt:
            return  # it has ended meanwhile, and that is on its way
        with attempt.guard:
            if isinstance(command, Resize):
                attempt.allocation, attempt.asleep = command.allocation or attempt.allocation, not command.allocation
            if attempt.waits:
                attempt.stop = attempt.stop or isinstance(command, Stop)
            else:
                self._say(attempt, order)

    def _say(self, attempt: Attempt, order: Line) -> None:
        """What cannot be said now waits, and is tried again. An attempt that can be told nothing any more is ended."""
        try:
            attempt.orders.append(order)
        except NotRegular as error:
            self._bury(attempt, str(error))
        except OSError as error:
            self._complain(attempt, "cannot-order", str(error))

    # -- coming back ---------------------------------------------------------------------------------------------

    def strays(self, jobs: Iterable[Job]) -> list[Start]:
        """Attempts that were begun, although the state has lost the decision: to be issued again. Facts win."""
        found = []
        for job in jobs:
            files = self.files(job.id, job.attempt + 1)
            if job.phase is not Phase.PENDING or not files.start.exists() or not self.owns(job.id, job.attempt + 1):
                continue
            with contextlib.suppress(NotRegular):  # the attempt before it has put it there
                if files.is_alive or files.told("began") is not None:
                    data = json.loads(read_whole(files.start, root=self._root))
                    allocation = codec.decode(Allocation, data, place=str(files.start))
                    found.append(Start(self._now(), job.id, job.attempt + 1, allocation))
        return found

    def sweep(self) -> list[str]:
        """End what is left of attempts that nothing guards any more, before anything is taken up. Returns a line for
        people about each."""
        told = []
        for left in sweep(self._root):
            named = ", ".join(map(str, left.pids))
            told.append(f"job {left.job}: attempt {left.attempt} had left processes behind, ended now: {named}")
            if left.stuck:
                self._on_note(left.job, self._now(), {"what": "left-behind", "pids": left.stuck})
        return told

    def end_unclaimed(self, jobs: Iterable[Job], *, grace_s: float) -> list[str]:
        """End the attempts that run here although none of these jobs, which are all that live, claims them. Returns a
        line for people about each."""
        claimed = {(job.id, job.attempt) for job in jobs if job.phase is not Phase.PENDING}
        found = find_unclaimed(self._root, {key for key in claimed if self.owns(*key)})
        killed = end_unclaimed(self._root, found, grace_s=grace_s)
        return [
            f"job {job}, attempt {attempt}, runs here, but the database does not know that: it was "
            f"{'killed' if (job, attempt) in killed else 'asked to save and stop, and has ended'}; what it wrote stays "
            f"in {self._root / job}"
            for job, attempt in found
        ]

    def end_those_on(self, node: str, jobs: Iterable[Job]) -> None:
        """Kill every attempt with a GPU on a node that is no more."""
        for job in jobs:
            if node in job.held.nodes:
                end_belongings(self.files(job.id, job.attempt), cookie_of(job.id, job.attempt, self._root))

    def attach(self, jobs: Iterable[Job], marks: dict[str, str]) -> list[str]:
        """Take up the attempts that a state believes in, where `marks` say how far each was read. Facts win: who has
        ended meanwhile says so in its file, or is said to have been killed. Returns a line for people about each."""
        told = []
        for job in jobs:
            if job.phase is Phase.PENDING or job.phase.final:
                continue
            position = int(marks.get(f"attempt:{job.id}:{job.attempt}", "0"))
            attempt = self._make(Start(self._now(), job.id, job.attempt, job.allocation), position)
            try:
                told.append(f"job {job.id}: {self._take_up(attempt, job)}")
            except NotRegular as error:
                attempt.began = True
                self._bury(attempt, str(error))
                told.append(f"job {job.id}: was ended, as {error}")
            self._listen_to(attempt)
        return told

    def _take_up(self, attempt: Attempt, job: Job) -> str:
        if not self.owns(job.id, job.attempt):  # what lies there tells nothing about this job
            return self._begin(attempt, job)
        alive = attempt.files.is_alive  # before it is read: who is gone writes no more
        if (began := attempt.files.told("began")) is not None:
            attempt.began, attempt.same_boot = True, began.get("boot") == boot_id()
        if attempt.files.told("ended") is not None:
            return "has ended meanwhile"
        if alive:
            self._repeat_orders(attempt, job)
            return "goes on"
        if not attempt.began:
            return self._begin(attempt, job)
        self._bury(attempt)
        return "was lost"

    def _begin(self, attempt: Attempt, job: Job) -> str:
        """It was decided, but not done; or what was done is no longer here."""
        if job.phase is Phase.STOPPING or not job.allocation:
            self._put(attempt, JobStopped(self._now(), job.id, job.attempt))
            return "had not been started"
        attempt.tail.position = 0  # how far another file was read says nothing about the new one
        self._spawn(attempt)
        return "is started now"

    def _repeat_orders(self, attempt: Attempt, job: Job) -> None:
        """The last one may have been decided but not said. To say it twice does no harm."""
        if job.phase is Phase.STOPPING:
            self._say(attempt, {"order": "stop"})
        elif job.phase is Phase.RESCALING:
            self._say(attempt, {"order": "resize", "slots": self.machine.places(job.allocation)})

    def _bury(self, attempt: Attempt, why: str = "everything that ran it was killed") -> None:
        """Nothing guards it any more, and how it ended is not known."""
        _, stuck = end_belongings(attempt.files, cookie_of(attempt.job, attempt.number, self._root))
        at = self._now()
        if stuck:
            self._on_note(attempt.job, at, {"what": "left-behind", "pids": stuck})
        if attempt.same_boot:
            self._put(attempt, JobExited(at, attempt.job, attempt.number, 137, why))
        else:  # the machine went down: not the job's fault
            self._put(attempt, JobStopped(at, attempt.job, attempt.number))

    # -- listening -----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to read what supervisors say."""
        self._thread = threading.Thread(target=self._listen, name="fairlead-listen", daemon=True)
        self._thread.start()
        if self.machine.devices is not None:
            self._watcher = threading.Thread(target=self._watch, name="fairlead-watch", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._watcher is not None:
            self._watcher.join(_LAST_LOOK_S)
        with self._guard:
            for attempt in self._attempts.values():
                attempt.orders.close()

    def _listen(self) -> None:
        while not self._closed.wait(LOOK_S):
            with self._guard:
                attempts = list(self._attempts.values())
            for attempt in attempts:
                try:
                    self._look_at(attempt)
                except NotRegular as error:  # what it says cannot be heard any more
                    self._bury(attempt, str(error))
                except Exception as error:  # or nobody would hear the others any more
                    if repr(error) != attempt.complaint:
                        log.exception("job %s: its supervisor cannot be heard", attempt.job)
                    self._complain(attempt, "cannot-hear", repr(error))

    def _look_at(self, attempt: Attempt) -> None:
        with attempt.guard:
            if attempt.over:
                return
            if attempt.waits:
                if attempt.stop:
                    self._put(attempt, JobStopped(self._now(), attempt.job, attempt.number))
                elif time.monotonic() >= attempt.due:
                    self._spawn(attempt)
                return
            attempt.orders.flush()
        gone = self._is_gone(attempt)  # before it is read: who is gone writes no more
        lines = attempt.tail.read()
        for line, position in lines:
            if self._hear(attempt, line, position):
                return
        if gone and not lines:
            if attempt.began:
                self._bury(attempt)
            else:
                self._try_again(attempt, f"the supervisor ended before it began; see {attempt.files.errors}")

    def _is_gone(self, attempt: Attempt) -> bool:
        """Its guardian and its supervisor. Looked at now and then: it takes a lock to know."""
        if time.monotonic() < attempt.due:
            return False
        attempt.due = time.monotonic() + ALIVE_S
        starts = attempt.process is not None and attempt.process.returncode is None
        return not starts and not attempt.files.is_alive

    def _hear(self, attempt: Attempt, line: Line, position: int) -> bool:
        """True if it was the last one."""
        event = None
        try:
            at = float(line["at"])
            if attempt.same_boot and "monotonic" in line:  # the other clock may have been set meanwhile
                at = self.inbox.clock.at(line["monotonic"])
            at = min(at, self._now())
            event = Hearing(attempt.job, attempt.number, at, self._gpu_type(attempt), self._types.values()).event(line)
            attempt.began = attempt.began or line["kind"] == "began"
            if line["kind"] == "note":
                told = {name: value for name, value in line.items() if name not in ("kind", "at", "monotonic")}
                self._on_note(attempt.job, at, told)
        except (FairleadError, LookupError, TypeError, ValueError) as error:
            self._complain(attempt, "unreadable", f"{error!r} in {attempt.files.events} before byte {position}")
        self._put(attempt, event, position)
        return isinstance(event, JobExited | JobStopped)

    def _gpu_type(self, attempt: Attempt) -> str:
        nodes = (*attempt.allocation.nodes, *self._types)
        return self._types.get(nodes[0], "gpu")

    def _put(self, attempt: Attempt, event: Event | None, position: int | None = None) -> None:
        if isinstance(event, JobExited | JobStopped):
            attempt.over = True
            with self._guard:
                if self._attempts.get(attempt.job) is attempt:
                    del self._attempts[attempt.job]
            attempt.orders.close()
        events: Sequence[Event] = [] if event is None else [event]
        self.inbox.put(events, None if position is None else (attempt.mark, str(position)))

    def _complain(self, attempt: Attempt, what: str, why: str) -> None:
        """Once, until something else is wrong."""
        if why != attempt.complaint:
            attempt.complaint = why
            self._on_note(attempt.job, self._now(), {"what": what, "why": why})

    def _now(self) -> float:
        return self.inbox.clock.now()

    # -- others on our GPUs --------------------------------------------------------------------------------------

    def outside(self) -> dict[str, tuple[int, ...]]:
        """By node, the GPUs that outsiders use, as it is now. To be asked before `listen`, which tells what changes."""
        self._look_outside()
        return self._outsiders.gpus

    def _watch(self) -> None:
        """In a thread of its own: to ask the driver can take long, and those who are heard should not wait for it."""
        told = self._outsiders.gpus
        while not self._closed.wait(self.machine.users.every_s):
            self._look_outside()
            found, at = self._outsiders.gpus, self._now()
            self.inbox.put([OutsidersSeen(at, node, gpus) for node, gpus in found.items() if gpus != told[node]])
            told = found
            self._tell_their_neighbours(at)

    def _look_outside(self) -> None:
        try:
            self._news += self._outsiders.look()
            self._trouble = ""
        except Exception as error:  # the driver is not ours, and to know this is not vital
            if repr(error) != self._trouble:
                log.exception("who uses the GPUs cannot be told; it stays as it was")
            self._trouble = repr(error)

    def _tell_their_neighbours(self, at: float) -> None:
        """The jobs that share a GPU with somebody who has come."""
        news, self._news = self._news, []
        with self._guard:
            attempts = [attempt for attempt in self._attempts.values() if not attempt.asleep] if news else []
        for attempt in attempts:
            held = dict(attempt.allocation.shares)
            for each in news:
                if each.gpu in held.get(each.node, ()):
                    fields = {"node": each.node, "gpu": each.gpu, "pid": each.pid, "user": each.user}
                    self._on_note(attempt.job, at, {"what": "outsider", "text": str(each), **fields})

    # -- for people ----------------------------------------------------------------------------------------------

    def logs(self, job: str) -> list[LogFile]:
        """Oldest attempt first. What another job has left in a directory of this number is not among them."""
        found, own = [], dict[int, bool]()
        for path in (self._root / job).glob("attempt-*/logs/rank-*.log"):
            numbers = re.fullmatch(r"attempt-(\d{1,9})/logs/rank-(\d{1,9})\.log", "/".join(path.parts[-3:]))
            if numbers is None:  # a name of the job's own
                continue
            attempt, rank = int(numbers[1]), int(numbers[2])
            if attempt not in own:
                own[attempt] = self.owns(job, attempt)
            if own[attempt]:
                found.append(LogFile(attempt, rank, path, path.with_suffix(".index")))
        return sorted(found)

    @property
    def running(self) -> list[str]:
        """Jobs with an attempt that has not ended."""
        with self._guard:
            return list(self._attempts)
