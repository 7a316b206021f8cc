"""The process that runs one attempt, and outlives the controller that started it.

It is three processes, each the parent of the next: two *guardians* and the *supervisor*. A guardian does nothing but
wait for its child, and see that nothing of the attempt survives it. All are reapers, so that whatever the job starts
stays below one of them, and each is told by the kernel when its parent has ended: whichever two are killed at once, the
third ends the job. The supervisor runs the job: it follows orders and appends events (`files`), and keeps the record by
which the rest is known if all three are killed (`ownership`). Started as

    python -m fairlead.backends.supervisor DIRECTORY < task
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairlead.backends import cgroup
from fairlead.backends.cgroup import Cgroup
from fairlead.backends.files import Appender, AttemptFiles, Tail, open_log
from fairlead.backends.ownership import Recorder, close_record
from fairlead.backends.processes import (
    become_reaper,
    below,
    boot_id,
    descendants,
    end_all,
    exit_code,
    reap_strangers,
    table,
)
from fairlead.backends.regular_file import APPEND, NotRegular, open_regular
from fairlead.backends.throttle import Throttle
from fairlead.backends.worker_notes import WorkerNotes
from fairlead.train.agent import is_stopped
from fairlead.train.parent_death import die_with_parent, killed_with_us

#: Seconds between two looks for orders, two entries in the indexes of logs, and two tries to write to a full disk.
LOOK_S, INDEX_S, ROOM_S = 0.05, 1.0, 1.0

#: Seconds that a guardian tries to get its lock: whoever looks whether it is held has it for an instant.
LOCK_S = 1.0

SETUP_LOG = "setup.log"

#: The exit code of a job that took too long, as of timeout(1), and the one of a setup that was stopped.
TIMED_OUT, STOPPED = 124, 143


def main(arguments: Sequence[str] | None = None) -> None:
    """The guardian."""
    (directory,) = sys.argv[1:] if arguments is None else arguments
    files = AttemptFiles(Path(directory))
    lock = files.lock(within_s=LOCK_S)
    if lock is None or files.told("began") is not None:
        return  # it runs or ran already: an attempt never begins twice
    text = sys.stdin.read()
    if not _is_whole(text):
        return  # the controller was killed while it told us; the next one starts it again
    _detach(files)
    group = cgroup.place("-".join(files.directory.parts[-2:]))
    Recorder(files, group).note(())  # before there is anything to be found by it
    if group is not None and not group.make():
        group = None
    life = os.pipe()
    _guard(files, group, life, lambda: _guard(files, group, life, lambda: _supervise(files, text, group)))


def _guard(files: AttemptFiles, group: Cgroup | None, life: tuple[int, int], work: Callable[[], int]) -> int:
    """Have the work done by a child that ends with us, and let nothing of the attempt outlive it.

    `life` is a pipe that can be read to its end once the supervisor is dead, which alone keeps its other side: if our
    child was a guardian and is killed, the supervisor stops the job, and has the time for it that it would have had.
    """
    become_reaper()
    guardian, child = os.getpid(), os.fork()
    if child == 0:
        die_with_parent(guardian, signal.SIGTERM)
        os._exit(work())
    os.close(life[1])
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(child))
    while _waited(child):
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its number may soon be that of another
    os.read(life[0], 1)
    left = end_all(lambda: _remaining(guardian, group))
    with contextlib.suppress(NotRegular):  # the controller notices that, too
        if files.told("began") is not None and files.told("ended") is None:
            _append_end(files, "its supervisor was killed")
    if not left:
        close_record(files, group)
    return 0


def _remaining(guardian: int, group: Cgroup | None) -> list[int]:
    return [*{*descendants(guardian), *(() if group is None else group.members())}]


def _is_whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _detach(files: AttemptFiles) -> None:
    """From everything that the controller has open."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        errors = open_regular(files.errors, APPEND, root=files.root)
    except OSError:
        errors = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((nothing, 0), (errors, 1), (errors, 2)):
        os.dup2(source, target)


def _pass_on(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _waited(child: int) -> bool:
    """Some child has ended; False once it was this one."""
    try:
        return os.waitpid(-1, 0)[0] != child
    except ChildProcessError:
        return False


def _append_end(files: AttemptFiles, why: str) -> None:
    appender = Appender(files.events, root=files.root)
    done = appender.append({"kind": "ended", "at": time.time(), "monotonic": time.monotonic(), "code": 137, "why": why})
    while not done:
        time.sleep(ROOM_S)
        done = appender.flush()


def _supervise(files: AttemptFiles, text: str, group: Cgroup | None) -> int:
    from fairlead.backends.task import Task

    become_reaper()
    if group is not None and not group.join():
        group = None
    asyncio.run(Supervisor(files, Task.from_json(text), Recorder(files, group)).run())
    return 0


class Crew(Protocol):
    """Whoever does the work: a gang or an elastic job."""

    async def run(self) -> Any: ...
    def stop(self, grace_s: float) -> None: ...


class Supervisor:
    """Of one attempt. Everything it learns goes into the file of events."""

    def __init__(self, files: AttemptFiles, task: Any, recorder: Recorder) -> None:
        self._files, self._task, self._recorder = files, task, recorder
        self._events = Appender(files.events, on_full=self._complain, root=files.root)
        self._complained = False
        self._worker_notes = WorkerNotes(files.worker_notes, task.attempt)
        self._crew: Crew | None = None
        self._setup: asyncio.subprocess.Process | None = None
        self._throttle = Throttle(os.getpid())
        self._sizes: dict[Path, int] = {}
        self._stopping = self._timed_out = False
        self._began_at: float | None = None
        self._time_left_s: float | None = task.time_limit_s
        self._timer: asyncio.TimerHandle | None = None
        #: Processes that we wait for; and ended ones that others have left to us, as of the last look.
        self._own: set[int] = set()
        self._strangers: set[int] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, self._task.grace_s)
        self.tell("began", pid=os.getpid(), boot=boot_id())
        while not self._events.flush() and not self._stopping:
            await asyncio.sleep(ROOM_S)  # what is not known to have begun could begin twice
        watching = [asyncio.ensure_future(self._follow_orders()), asyncio.ensure_future(self._index_logs())]
        code, why, final, log = 1, "the supervisor was interrupted", False, ""
        try:
            code, why, final, log = await self._work()
        except OSError as error:  # of the machine
            why = f"cannot run it here: {error}"
        except Exception as error:  # a mistake of ours must not leave the job without an end
            why = f"the supervisor failed: {error!r}"
            raise
        finally:
            for each in watching:
                each.cancel()
            self._throttle.lift()
            if left := end_all(lambda: descendants(os.getpid())):
                self.tell("note", what="left-behind", pids=left)
            self._pass_on_notes()
            self._index()
            if self._timed_out:
                code, why, final = TIMED_OUT, self._time_is_up, True
            # Who trains elastically says for sure that it is done. Of others, whoever ends with 0 after it was asked to
            # end may just have been polite.
            stopped = self._stopping and not self._timed_out and not (self._task.elastic and code == 0)
            end = {"code": code, "why": why, "stopped": stopped, "final": final, "lasted_s": self._lasted_s}
            self.tell("ended", **(end if stopped or code == 0 else self._failure(end, log)))
            while not self._events.flush():
                await asyncio.sleep(ROOM_S)

    async def _work(self) -> tuple[int, str, bool, str]:
        """Exit code, what happened, whether another attempt would end in the same way, and the name of its log."""
        from fairlead.backends.elastic import Elastic
        from fairlead.backends.gang import Gang

        await self._back_off()
        self._began_at = time.monotonic()
        self._let_time_run(True)
        if self._stopping:
            return STOPPED, "it was stopped before it began", False, ""
        if not os.path.isdir(self._task.workdir):
            return 1, f"there is no directory {self._task.workdir}; change workdir", True, ""
        self._throttle.limit_rest(self._task.cpu_share(self._task.slots))
        if self._task.setup:
            try:
                code = await self._set_up()
            except ValueError as error:  # what no script or environment can be, such as one with a null byte
                return 127, f"cannot run setup: {error} in its script or environment", True, ""
            if code != 0 or self._stopping:
                why = f"setup ended with exit code {code}; see its log, {SETUP_LOG}"
                return code or STOPPED, why, False, SETUP_LOG
        crew: Gang | Elastic
        if self._task.elastic:
            crew = Elastic(self._task, self._files, self.tell, self._settle_in, is_stopped=self._is_stopped)
        else:
            crew = Gang(self._task, self._files.log, self._settle_in)
        self._crew = crew
        working = asyncio.ensure_future(crew.run())
        if isinstance(crew, Gang):
            if self._task.pinned:  # before it runs, when it could be told to change
                self.tell("pinned", pinned=True)
            self.tell("started")
        end = await working
        return end.code, end.why, end.final, end.log

    async def _back_off(self) -> None:
        """What is left of the wait after the last failure: on its GPUs, so that none is lent out for a few seconds."""
        until = time.monotonic() + self._task.delay_s
        while (left_s := until - time.monotonic()) > 0.0 and not self._stopping:
            await asyncio.sleep(min(LOOK_S, left_s))

    @property
    def _lasted_s(self) -> float:
        """Since its command, or its setup, was begun."""
        return 0.0 if self._began_at is None else time.monotonic() - self._began_at

    def _failure(self, end: dict[str, Any], log: str) -> dict[str, Any]:
        """The end of an attempt that failed, with what it printed last. If the attempt before failed at once with just
        that, another one is not worth its GPUs, unless the user wants one after this exit code."""
        from fairlead.backends.failure import last_line, repeats

        end["last_line"] = last_line(self._files.logs / log) if log else ""
        before: dict[str, Any] | None = None
        with contextlib.suppress(OSError):  # which that one has spoilt itself
            before = AttemptFiles(self._files.directory.with_name(f"attempt-{self._task.attempt - 1}")).told("ended")
        if not end["final"] and end["code"] not in self._task.restart_on and repeats(before, end):
            end |= {"final": True, "why": f"{end['why']}, as the attempt before did and with the same last line"}
        return end

    async def _set_up(self) -> int:
        with open_log(self._files.logs / SETUP_LOG) as log:
            self._setup = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-e", "-o", "pipefail", "-c", self._task.setup),
                env=self._task.env,
                cwd=self._task.workdir,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=killed_with_us(),
            )
        self._own.add(self._setup.pid)
        self._look_around()
        if self._stopping:  # it came too late to be stopped
            self._end_setup()
        try:
            return exit_code(await self._setup.wait())
        finally:
            self._setup = None

    def _end_setup(self) -> None:
        if self._setup is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._setup.pid, signal.SIGKILL)

    # -- orders --------------------------------------------------------------------------------------------------

    async def _follow_orders(self) -> None:
        tail = Tail(self._files.orders, root=self._files.root)
        while True:
            for order, _ in self._read_orders(tail):
                try:
                    self._follow(order)
                except Exception:  # or those that come after it would not be followed
                    self.tell("note", what="order-refused", order=order, why=traceback.format_exc(limit=-1))
            await asyncio.sleep(LOOK_S)

    def _read_orders(self, tail: Tail) -> list[tuple[dict[str, Any], int]]:
        try:
            return tail.read()
        except OSError as error:
            self._complain(str(error))
            return []

    def _follow(self, order: dict[str, Any]) -> None:
        from fairlead.backends.elastic import Elastic
        from fairlead.train.agent import Slot

        if order["order"] == "stop":
            grace_s = float(order.get("grace_s", self._task.grace_s))
            self._stop(grace_s, why=order.get("why", ""), by=order.get("by", ""))
        elif order["order"] == "resize" and isinstance(self._crew, Elastic) and not self._stopping:
            slots = [Slot(*place) for place in order["slots"]]
            self._let_time_run(bool(slots))  # who sleeps does not run
            self._throttle.limit_rest(self._task.cpu_share(slots))
            self._crew.resize(slots)

    def _stop(self, grace_s: float, *, why: str = "", by: str = "") -> None:
        if self._stopping:
            return
        self._stopping = True
        self._throttle.lift()  # to save is not to train, and its time is short
        with contextlib.suppress(OSError):  # a full disk
            self._files.give_notice(deadline=time.time() + grace_s, why=why, by=by)
        if self._crew is not None:
            self._crew.stop(grace_s)
        else:
            self._end_setup()

    def _let_time_run(self, runs: bool) -> None:
        """Towards the time limit, if there is one."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and not runs:
            self._time_left_s = self._timer.when() - loop.time()
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and runs and self._time_left_s is not None:
            self._timer = loop.call_later(max(0.0, self._time_left_s), self._time_out)

    def _time_out(self) -> None:
        if not self._stopping:  # or it is not the time that ends it
            self._timed_out = True
            self._stop(self._task.grace_s, why=self._time_is_up)

    @property
    def _time_is_up(self) -> str:
        return "time limit reached"

    # -- events --------------------------------------------------------------------------------------------------

    def tell(self, kind: str, **fields: Any) -> None:
        self._events.append({"kind": kind, "at": time.time(), "monotonic": time.monotonic(), **fields})

    def _pass_on_notes(self) -> None:
        """What workers without an agent have to say."""
        for note in self._worker_notes.read():
            self.tell("note", **note)

    def _complain(self, why: str) -> None:
        if not self._complained:  # where, if not here? The log may be on another disk
            self._complained = True
            with contextlib.suppress(OSError):  # or it is on the same one
                print(f"{self._files.directory}: {why}; it is tried again", file=sys.stderr, flush=True)

    # -- workers -------------------------------------------------------------------------------------------------

    def _settle_in(self, rank: int, slot: Any, pid: int) -> None:
        """A process has begun: give it its processors and its place behind those who wait for answers."""
        task = self._task
        self._own.add(pid)
        self._throttle.limit_worker(pid, task.cpu_share([slot]))
        with contextlib.suppress(OSError):  # it may have ended
            slots = task.slots if task.launch == "once" else [slot]  # a launcher has the processors of all its GPUs
            if task.cpus and all(task.cpus[each.gpu] for each in slots):
                os.sched_setaffinity(pid, {cpu for each in slots for cpu in task.cpus[each.gpu]})
            if task.nice:
                os.setpriority(os.PRIO_PROCESS, pid, task.nice)
        self.tell("note", what="worker", rank=rank, node=slot.node, gpu=slot.gpu, pid=pid)
        self._look_around()

    def _is_stopped(self, pid: int) -> bool:
        """By something else than its CPU share."""
        return is_stopped(pid) and not self._throttle.holds(pid)

    def _look_around(self) -> None:
        """Write down which processes there are, and let those be gone that have ended and were left to us."""
        processes = table()
        self._strangers = reap_strangers(self._own, self._strangers, processes)
        self._recorder.note(processes[pid].identity for pid in below([os.getpid()], processes))

    async def _index_logs(self) -> None:
        while True:
            self._look_around()
            with contextlib.suppress(OSError):  # it is tried again
                self._events.flush()
            self._pass_on_notes()
            self._index()
            await asyncio.sleep(INDEX_S)

    def _index(self) -> None:
        """Note how long each log is now: so it can be read from a time on."""
        for path in self._files.logs.glob("*.log"):
            with contextlib.suppress(OSError):  # a full disk, or something else in its place
                size = path.lstat().st_size
                if size != self._sizes.get(path):
                    with open_log(path.with_suffix(".index")) as index:
                        index.write(f"{time.time():.3f} {size}\n".encode())
                    self._sizes[path] = size


if __name__ == "__main__":
    main()
