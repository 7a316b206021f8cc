"""The agent of one job: starts its workers, says who trains together, and notices who is gone. Knows nothing of torch.

A *generation* is a set of workers that train together. To change it the agent starts the new workers, waits until they
have booted while the others train on, and then tells everybody the next generation. When and how they change over is
the workers' own affair (`membership`). If a worker dies, the generation is over at once, and the next one is whoever is
left. At least one worker of a generation is in the next, so what was learned is never lost while one worker lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from fairlead.core.errors import InvalidSpec
from fairlead.train.memory import clean_up
from fairlead.train.parent_death import killed_with_us
from fairlead.train.wire import ADDRESS, NAME, TOKEN, Message, decode, encode

#: The exit code of a job that was stopped and should be queued again: 128 + SIGTERM.
PREEMPTED = 143

#: Bytes of a message. A report of all that a job has measured in its life is the longest.
LONGEST_LINE = 1 << 24


def too_many(workers: int, most: int) -> str:
    """For more workers than can have a part in a step."""
    return (
        f"{workers} workers are too many: this job takes at most {most}; raise batch_size, max_batch_size or "
        "virtual_shards of job.loader, or lower the least of per_gpu"
    )


class Slot(NamedTuple):
    """A place for one worker."""

    node: str
    gpu: int


class Stage(enum.Enum):
    """How far a worker is."""

    BOOTING = "booting"
    READY = "ready"
    MEMBER = "member"
    #: It is no member of the next generation, but trains until that begins.
    LEAVING = "leaving"
    LEFT = "left"


#: Those that have a place in the next generation.
PRESENT = (Stage.BOOTING, Stage.READY, Stage.MEMBER)


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds."""

    #: From being told to stop until being killed.
    grace_s: float = 30.0
    #: Without a sign of life.
    silent_s: float = 10.0
    #: In one step, while all others wait for it; or ten times what a step usually takes, if that is longer.
    hung_s: float = 20.0
    #: Behind the others, until a new process is tried in its place; infinity for never.
    straggling_s: float = 60.0


@dataclass(eq=False)
class Worker:
    """A process, and what is known of it."""

    name: str
    slot: Slot
    process: asyncio.subprocess.Process
    stage: Stage = Stage.BOOTING
    writer: asyncio.StreamWriter | None = None
    heard_at: float = field(default_factory=time.monotonic)
    #: It has been part of a generation, and has the state.
    trained: bool = False
    #: It was told to leave, and may do so although it was asked to stay after all.
    may_leave: bool = False
    #: Its training is over. What its script does after that takes as long as it takes.
    done: bool = False
    #: What it last said of itself.
    beat: Message = field(default_factory=dict)
    #: Since when the others have been waiting for it.
    straggles_since: float | None = None
    #: It trains until another process has taken its place.
    replaced: bool = False

    def tell(self, line: bytes) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(line)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """To it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def is_stopped(pid: int) -> bool:
    """By a signal, as SIGSTOP."""
    with contextlib.suppress(OSError):
        # The name, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    return False


class Agent:
    """Runs one job until it ends. All methods but `run` return at once."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        devices: Sequence[str] | None = None,
        logs: Path | None = None,
        log_name: Callable[[int], str] = "w{}.log".format,
        open_log: Callable[[Path], IO[bytes]] = lambda path: path.open("ab"),
        workdir: str | None = None,
        max_restarts: int = 3,
        patience: Patience | None = None,
        on_event: Callable[[Message], None] | None = None,
        slot_env: Callable[[Slot], Mapping[str, str]] = lambda slot: {},  # noqa: ARG005
        is_stopped: Callable[[int], bool] = is_stopped,
    ) -> None:
        """`devices` are what a worker on GPU 0, 1, ... is told to see, as in CUDA_VISIBLE_DEVICES. `log_name` is of the
        first, second, ... worker's file in `logs`, which `open_log` opens. `slot_env` is what the worker on a slot is
        told besides `env`; `is_stopped` tells whether a signal has stopped a process that should run."""
        if not command:
            raise InvalidSpec("there is no command to run; expected for example: python train.py")
        self._command = list(command)
        self._env = dict(os.environ if env is None else env)
        self._devices = devices
        self._logs, self._log_name, self._open_log, self._workdir = logs, log_name, open_log, workdir
        self._max_restarts = self._restarts_left = max_restarts
        self._patience = patience or Patience()
        self._on_event = on_event
        self._slot_env, self._is_stopped = slot_env, is_stopped
        self._token = secrets.token_hex(16)
        self._address = ""
        self._wanted: list[Slot] = []
        self._workers: dict[str, Worker] = {}
        #: Slots for which a process is being made.
        self._starting: set[Slot] = set()
        #: How many workers there have been.
        self.started = 0
        self._generation = 0
        self._members: list[str] = []
        self._joined: set[str] = set()
        self._stopping = False
        self._suspended = False
        self._finished = False
        #: Of the first that failed, and what happened.
        self._code, self._why = 0, ""
        #: How many workers the job can use; known when the first has booted.
        self.most = sys.maxsize
        #: Slots on which a new process was no faster.
        self._slow: set[Slot] = set()
        self._ended: asyncio.Future[int] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> list[Slot]:
        """Where the present generation trains."""
        return [self._workers[name].slot for name in self._members if name in self._workers]

    def worker(self, rank: int) -> Worker:
        """A member of the present generation."""
        return self._workers[self._members[rank]]

    @property
    def settled(self) -> bool:
        """Everybody who should train does, and nobody else."""
        return sorted(self.members) == sorted(self._wanted) and self._joined == set(self._members)

    async def run(self, slots: Sequence[Slot]) -> int:
        """Until training is over (0), was stopped (143), or failed: then the exit code of whoever failed first."""
        if self._stopping:
            return PREEMPTED
        self._ended = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LONGEST_LINE)
        host, port = server.sockets[0].getsockname()[:2]
        self._address = f"{host}:{port}"
        watch = self._background(self._watch())
        try:
            self.resize(slots)
            return await self._ended
        finally:
            self._stopping = True
            watch.cancel()
            server.close()
            while self._starting:  # or they would be left behind
                await asyncio.sleep(0.01)
            workers = list(self._workers.values())
            for worker in workers:
                worker.kill()
            for worker in workers:
                await worker.process.wait()
            clean_up(self._token)

    def resize(self, slots: Sequence[Slot]) -> None:
        """Who should train: one worker on each slot. They come and go while the others train on."""
        if not slots:
            raise InvalidSpec("a job needs at least one slot; to take all of them away, suspend or stop it")
        if len(set(slots)) < len(slots):
            raise InvalidSpec(f"a slot is given twice in {', '.join(f'{node}[{gpu}]' for node, gpu in slots)}")
        if len(slots) > self.most:
            raise InvalidSpec(too_many(len(slots), self.most))
        highest = max(slot.gpu for slot in slots)
        if self._devices is not None and highest >= len(self._devices):
            raise InvalidSpec(f"a worker should run on GPU {highest}, but there are {len(self._devices)}, from 0 on")
        self._wanted = list(slots)
        self._settle()

    def suspend(self) -> None:
        """Stop training at a step boundary and give the devices back, but keep the processes."""
        self._suspended = True
        self._tell_all(encode("suspend"))

    def resume(self) -> None:
        self._suspended = False
        self._tell_all(encode("resume"))

    def stop(self, grace_s: float | None = None) -> None:
        """Save and exit, within the grace period: the usual one, unless another is given."""
        if self._stopping:
            return
        self._stopping = True
        grace_s = self._patience.grace_s if grace_s is None else grace_s
        line = encode("stop", grace_s=grace_s)
        for worker in self._workers.values():
            if worker.stage in (Stage.MEMBER, Stage.LEAVING):
                worker.tell(line)
                worker.send(signal.SIGCONT)  # who was stopped by a signal would not hear it
            elif worker.writer is None:  # perhaps no script of ours, which never says a word, but can save
                worker.send(signal.SIGTERM)
                worker.send(signal.SIGCONT)
            else:
                worker.kill()
        self._end_if_gone()
        self._background(self._kill_late(grace_s))

    # -- starting ------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """A worker for every slot that has none."""
        taken = {worker.slot for worker in self._staying()} | self._starting
        for slot in self._wanted:
            if slot not in taken:
                self.started += 1
                self._starting.add(slot)
                self._background(self._start(self.started, slot))

    def _staying(self) -> list[Worker]:
        """Those that have a place in the next generation."""
        return [worker for worker in self._workers.values() if worker.stage in PRESENT and not worker.replaced]

    async def _start(self, number: int, slot: Slot) -> None:
        name = f"w{number}"
        devices = {} if self._devices is None else {"CUDA_VISIBLE_DEVICES": self._devices[slot.gpu]}
        env = {
            **self._env,
            **self._slot_env(slot),
            **devices,
            ADDRESS: self._address,
            NAME: name,
            TOKEN: self._token,
            "FAIRLEAD_NODE": slot.node,
            "FAIRLEAD_GPU": str(slot.gpu),
        }
        try:
            with self._log(number) as log:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    env=env,
                    cwd=self._workdir,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=killed_with_us(signal.SIGTERM),  # so that it saves first
                )
        except OSError as error:
            what = "write" if self._logs is not None and str(self._logs) in str(error.filename) else "run"
            self._end(127, f"cannot {what} {error.filename or self._command[0]}: {error.strerror}")
            return
        except ValueError as error:  # what no command or environment can be, such as one with a null byte
            self._end(127, f"cannot run {self._command[0]!r}: {error} in its command or environment")
            return
        finally:
            self._starting.discard(slot)
        worker = self._workers[name] = Worker(name, slot, process)
        self._event("started", worker=name, pid=process.pid, node=slot.node, gpu=slot.gpu)
        if self._stopping:
            worker.kill()
        code = await process.wait()
        worker.kill()  # what it started and left behind
        self._gone(worker, code)

    def _log(self, number: int) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self._logs is None:
            return contextlib.nullcontext()
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._open_log(self._logs / self._log_name(number))

    # -- the next generation -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Tell everybody the next generation, if the present one is complete and not what it should be."""
        if self._stopping or self._finished or self._joined != set(self._members):
            return
        self._fill()  # not before: booting takes what those need who find together again
        for worker in self._workers.values():
            if worker.stage in (Stage.BOOTING, Stage.READY) and worker.slot not in self._wanted:
                worker.stage = Stage.LEFT  # it is not wanted any more
                worker.kill()
        by_slot = {worker.slot: worker for worker in self._staying()}
        wanted = [by_slot[slot] for slot in self._wanted if slot in by_slot]
        if len(wanted) < len(self._wanted) or any(worker.stage is Stage.BOOTING for worker in wanted):
            return
        names = [worker.name for worker in wanted]
        if self._members and not set(names) & set(self._members):
            names = [*self._members, *names]  # first the new ones come, then the old ones go
        # Who stays keeps its place, so that the one with the lowest rank is the oldest.
        place = {name: rank for rank, name in enumerate(self._members)}
        names.sort(key=lambda name: place.get(name, len(place)))
        if names != self._members:
            self._publish(names, lost=[])

    def _publish(self, names: list[str], *, lost: Sequence[str]) -> None:
        leaving = [name for name in self._members if name not in names and name in self._workers]
        self._generation += 1
        self._members, self._joined = names, set()
        hosts = [self._workers[name].slot.node for name in names]
        line = encode("plan", generation=self._generation, members=names, hosts=hosts, lost=list(lost))
        for name in (*names, *leaving):
            worker = self._workers[name]
            worker.stage = Stage.MEMBER if name in names else Stage.LEAVING
            worker.may_leave = worker.may_leave or name in leaving
            worker.tell(line)
        self._event("plan", generation=self._generation, members=names, leaving=leaving, lost=list(lost))

    def _gone(self, worker: Worker, code: int) -> None:
        """A worker's process has ended."""
        del self._workers[worker.name]
        self._event("exited", worker=worker.name, code=code, stage=worker.stage.value)
        if self._stopping or self._finished:
            self._ending(worker, code)
            return
        comes_late = not worker.trained and any(other.trained for other in self._workers.values())
        if worker.stage is Stage.LEFT or (worker.may_leave and code == 0):
            self._left(worker)
        elif comes_late and (code >= 0 or self._restarts_left <= 0):
            self._do_without(worker, code)
        elif code == 0:  # its script has ended, and so will that of the others
            self._finish()
            self._ending(worker, code)
        elif code == PREEMPTED:  # somebody has told it to stop, and it has told the others
            self.stop()
            self._ending(worker, code)
        elif code > 0:  # its own error: the others will make it too
            self._fail(worker, code, f"worker {worker.name} failed with exit code {code}")
        elif self._restarts_left <= 0:
            allowed = f"max_restarts is {self._max_restarts}"
            self._fail(worker, 1, f"worker {worker.name} was killed by signal {-code}, and {allowed}")
        else:
            self._restarts_left -= 1
            self._regroup(worker)
            self._settle()

    def _left(self, worker: Worker) -> None:
        """As it was told to, even if it was asked to stay meanwhile."""
        worker.stage = Stage.LEFT
        if worker.name in self._members:
            self._regroup(worker)
        self._settle()

    def _regroup(self, lost: Worker) -> None:
        """Those who are left, if the one who is gone had a part in anything. Also those who were about to leave: they
        have the state, and leave later. To stop, nobody waits for those who have none."""
        trains = lost.name in self._members or lost.stage is Stage.LEAVING
        present = [self._workers[name] for name in self._members if name in self._workers and name != lost.name]
        present += [worker for worker in self._workers.values() if worker.stage is Stage.LEAVING]
        if self._stopping:
            present = [worker for worker in present if worker.trained]
        if trains and present:
            self._publish([worker.name for worker in present], lost=[lost.name])
        elif not present:
            self._members, self._joined = [], set()

    def _do_without(self, worker: Worker, code: int) -> None:
        """It has ended before it joined: the others go on as they are."""
        before = [other for other in self._workers.values() if other.slot == worker.slot and other.replaced]
        for other in before:
            other.replaced = False
        if not before:
            self._wanted = [slot for slot in self._wanted if slot != worker.slot] or self.members
        where = {"node": worker.slot.node, "gpu": worker.slot.gpu}
        self._event("refused", worker=worker.name, **where, code=code, left=len(self._wanted))
        self._regroup(worker)
        self._settle()

    def _fail(self, worker: Worker, code: int, why: str) -> None:
        """The job cannot go on without it. Whoever is left saves before it ends."""
        if not self._code:
            self._code, self._why = code, why
        self.stop()
        self._ending(worker, code)

    def _ending(self, worker: Worker, code: int) -> None:
        """A worker's process has ended while the job does."""
        failed = code > 0 or (code < 0 and worker.done)  # who was not done was killed by us, as it waited in vain
        if self._finished and failed and code != PREEMPTED:
            self._code = self._code or (code if code > 0 else 128 - code)
        self._end_if_gone()
        if not self._finished and code not in (0, PREEMPTED):
            self._regroup(worker)  # they find together once more, and save

    def _end_if_gone(self) -> None:
        """Everybody."""
        if not self._workers and not self._starting:
            self._end(self._code or (0 if self._finished else PREEMPTED), self._why)

    # -- talking to workers --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker: Worker | None = None
        with contextlib.suppress(ConnectionError, ValueError, asyncio.CancelledError):
            while line := await reader.readline():
                message = decode(line)
                if worker is None:
                    worker = await self._greet(message, writer)
                    if worker is None:
                        break
                worker.heard_at = time.monotonic()
                self._hear(worker, message)
        writer.close()

    async def _greet(self, message: Message, writer: asyncio.StreamWriter) -> Worker | None:
        if not secrets.compare_digest(str(message.pop("token", "")), self._token):
            return None
        while (worker := self._workers.get(message["worker"])) is None:
            await asyncio.sleep(0.01)  # its process has not been noted yet
        worker.writer = writer
        if self._stopping or self._finished:  # it comes too late, and would wait for others in vain
            worker.kill()
        running = [self._workers[name].beat.get("epoch", 0) for name in self._members if name in self._workers]
        epoch = max(running, default=0)
        worker.tell(encode("welcome", running=bool(running), epoch=epoch, suspended=self._suspended))
        return worker

    def _hear(self, worker: Worker, message: Message) -> None:
        kind = message["kind"]
        if kind == "beat":
            worker.beat = message
        elif kind == "ready":
            self._booted(worker, message["most"])
        elif kind == "store":
            for name in self._members:
                if name != worker.name and name in self._workers:
                    self._workers[name].tell(encode(**message))
        elif kind == "joined":
            worker.trained, worker.may_leave = True, False
            if message["generation"] == self._generation:
                self._joined.add(worker.name)
            self._event(**message)
            self._settle()
        elif kind == "done":
            worker.done = True
            self._finish()
        else:
            self._event(**message)
            self._heed(worker, message)

    def _heed(self, worker: Worker, message: Message) -> None:
        """What others are told of as well."""
        kind = message["kind"]
        if kind == "left":
            if message["finish"]:  # it could say so to nobody else
                self._tell_all(encode("finish"))
            self._left(worker)
        elif kind == "report":
            self._look_after(message["stragglers"])
        elif kind == "stuck" and message["generation"] == self._generation and not self._finished:
            self._publish([name for name in self._members if name in self._workers], lost=[worker.name])

    def _booted(self, worker: Worker, most: int) -> None:
        worker.stage, self.most = Stage.READY, most
        self._event("ready", worker=worker.name, most=most)
        if len(self._wanted) > most:
            self._end(1, too_many(len(self._wanted), most))
        self._settle()

    def _finish(self) -> None:
        """Training is over: whoever has not joined yet comes too late. Or there was none, and those who have not said a
        word are copies of a script that does not use the library: each ends by itself."""
        self._finished = True
        for worker in self._workers.values():
            if not worker.trained and (self._generation > 0 or worker.writer is not None):
                worker.kill()

    def _tell_all(self, line: bytes) -> None:
        """Also those who boot: they were told when they came what was so then."""
        for worker in self._workers.values():
            worker.tell(line)

    # -- watching ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Kill whoever hangs: then everybody notices, as if it had died."""
        while True:
            await asyncio.sleep(1.0)
            everybody = list(self._workers.values())
            # Also who is about to leave: until it has, the others do their steps with it.
            trains = [each for each in everybody if each.name in self._members or each.stage is Stage.LEAVING]
            for worker in everybody:
                silent_s = time.monotonic() - worker.heard_at
                # Who boots may be silent for as long as it takes, unless somebody has stopped it.
                dead = silent_s > self._patience.silent_s and (worker in trains or self._is_stopped(worker.process.pid))
                if dead or (worker in trains and self._keeps_waiting(worker, trains)):
                    self._event("hung", worker=worker.name, silent_s=silent_s, beat=worker.beat)
                    worker.kill()

    def _keeps_waiting(self, worker: Worker, trains: Sequence[Worker]) -> bool:
        """All others, in a step that has no end; or itself, for those whose scripts have ended."""
        others = {other.beat.get("phase") for other in trains if other is not worker}
        computing = worker.beat.get("phase") == "computing"
        usual_s = worker.beat.get("usual_s", 0.0)
        late = computing and worker.beat.get("since_s", 0.0) > max(self._patience.hung_s, 10.0 * usual_s)
        return (late and others == {"waiting"}) or (self._finished and self._waits_too_long(worker))

    def _waits_too_long(self, worker: Worker) -> bool:
        """For others whose scripts have ended."""
        beat = worker.beat
        return not worker.done and beat.get("phase") == "waiting" and beat["since_s"] > self._patience.grace_s

    def _look_after(self, stragglers: Sequence[str]) -> None:
        """Whoever has been too slow for too long gets a successor, which joins before it leaves. If that is no faster,
        then it is the slot that is slow, and only a scheduler has another one."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.name not in stragglers:
                worker.straggles_since = None
                continue
            worker.straggles_since = worker.straggles_since or now
            lasting = now - worker.straggles_since >= self._patience.straggling_s
            if lasting and not worker.replaced and worker.slot not in self._slow:
                self._slow.add(worker.slot)
                worker.replaced = True
                self._event("straggler", worker=worker.name, node=worker.slot.node, gpu=worker.slot.gpu)
                self._settle()

    async def _kill_late(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        for worker in self._workers.values():
            worker.kill()

    def _end(self, code: int, why: str = "") -> None:
        if self._ended is not None and not self._ended.done():
            self._event("ended", code=code, why=why)
            self._ended.set_result(code)
            self._stopping = True  # nobody is started any more

    def _event(self, kind: str, **fields: object) -> None:
        if self._on_event is not None:
            self._on_event({"kind": kind, "at": time.time(), **fields})

    def _background(self, coroutine: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
