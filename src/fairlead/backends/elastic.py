"""A job whose workers come and go while it trains: an agent of `fairlead.train`, and what it says in our words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairlead.backends.files import AttemptFiles, Line, Tail, open_log
from fairlead.backends.gang import End
from fairlead.backends.regular_file import NotRegular
from fairlead.backends.task import Task
from fairlead.train.agent import PREEMPTED, Agent, Patience, Slot, is_stopped
from fairlead.train.wire import NOTED, Message

#: What people want to know: the agent's word for it, and ours.
_NOTES = {
    "paused": "paused",
    "hung": "worker-hung",
    "straggler": "worker-slow",
    "refused": "worker-refused",
    **{kind: kind for kind in NOTED},
}

#: Seconds that a worker which has left may keep its GPU.
LEAVE_S = 10.0

#: Says a kind of event and its fields.
Tell = Callable[..., None]


class Elastic:
    """One attempt of an elastic job. It outlives its agent only if it has to move while it is suspended."""

    def __init__(
        self,
        task: Task,
        files: AttemptFiles,
        tell: Tell,
        on_start: Callable[[int, Slot, int], None],
        *,
        is_stopped: Callable[[int], bool] = is_stopped,
    ) -> None:
        """`is_stopped` tells whether a signal has stopped a process that should run."""
        self._task, self._logs, self._tell, self._on_start = task, files.logs, tell, on_start
        self._is_stopped = is_stopped
        self._slots = list(task.slots)
        #: Steps of every configuration that were told already: a checkpoint holds those of earlier attempts too.
        self._told = _told_before(files)
        self._saved_step: int | None = None
        self._trains = self._changing = self._suspended = self._moving = self._stopping = False
        #: A worker has spoken with the agent: the command uses the library.
        self._heard = False
        #: None had, when it should have: the attempt counts as one that cannot change its GPUs.
        self._pinned = False
        #: The log of the first worker that failed.
        self._failed_log = ""
        self._asleep: set[str] = set()
        #: Slot and process of every worker that has not ended.
        self._alive: dict[str, tuple[Slot, int]] = {}
        #: How long the last change took, until it is told.
        self._paused_s: float | None = None
        self._started = 0
        self._agent = self._make_agent()

    def _make_agent(self) -> Agent:
        task = self._task
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if task.devices is None else {}
        return Agent(
            task.command,
            env={**task.env, **hidden},
            devices=task.devices,
            logs=self._logs,
            workdir=task.workdir,
            max_restarts=task.max_restarts,
            patience=Patience(grace_s=task.grace_s),
            on_event=self._hear,
            open_log=open_log,
            log_name=lambda number: f"rank-{self._started + number - 1}.log",
            slot_env=lambda slot: task.gpu_type([slot]),
            is_stopped=self._is_stopped,
        )

    async def run(self) -> End:
        asyncio.get_running_loop().call_later(self._task.pin_after_s, self._pin)
        while True:
            code = await self._agent.run(self._slots)
            if not (self._moving and code == PREEMPTED) or self._stopping:
                final = code == 127 and self._why.startswith("cannot run")
                return End(code, self._why, final, self._failed_log)
            self._moving, self._started, self._alive = False, self._started + self._agent.started, {}
            self._agent = self._make_agent()

    _why = ""

    def resize(self, slots: Sequence[Slot]) -> None:
        """These from now on; none means to sleep."""
        self._changing = True
        if not slots:
            self._suspended, self._asleep = True, set()
            self._agent.suspend()
            return
        slots = sorted(slots)
        if self._suspended and self._task.devices is not None and not set(slots) >= set(self._agent.members):
            # Its processes would wake on GPUs that are somebody else's now.
            self._slots, self._moving, self._suspended = slots, True, False
            self._agent.stop()
            return
        self._slots = slots
        self._agent.resize(slots[: self._agent.most])
        self._keep_to(self._agent.most)
        if self._suspended:
            self._suspended = False
            self._agent.resume()
        self._settle()

    def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._agent.stop(grace_s)

    def _hear(self, event: Message) -> None:
        kind = event["kind"]
        if kind == "started":
            slot = Slot(event["node"], event["gpu"])
            self._alive[event["worker"]] = slot, event["pid"]
            self._on_start(self._started + int(event["worker"][1:]) - 1, slot, event["pid"])
        elif kind == "hello":
            self._heard = True
        elif kind == "ready":
            self._keep_to(event["most"])
        elif kind == "joined":
            self._settle()
        elif kind == "suspended":
            self._asleep.add(event["worker"])
            self._settle()
        elif kind == "report":
            self._begin()  # the leader may report before we have heard that all others have joined
            self._tell("report", **self._report(event))
        elif kind == "exited":
            self._alive.pop(event["worker"], None)
            self._note_exit(event)
            self._settle()  # perhaps everybody was waiting for that
        elif kind == "ended":
            self._why = event["why"]
        elif kind in _NOTES:
            if kind == "paused":
                self._paused_s = event["seconds"]
            told = {name: value for name, value in event.items() if name not in ("kind", "at", "beat")}
            self._tell("note", what=_NOTES[kind], **told, **({"attempt": self._task.attempt} if kind in NOTED else {}))

    def _keep_to(self, most: int) -> None:
        """The job takes no more workers than this: it then has GPUs that it does not use."""
        if len(self._slots) > most:
            self._tell("note", what="worker-refused", asked=len(self._slots), most=most)
            self._slots = self._slots[:most]
            self._agent.resize(self._slots)

    def _settle(self) -> None:
        """Say so, if everybody is where they should be."""
        if self._suspended:
            if self._changing and len(self._asleep) >= len(self._agent.members):
                self._changing = False
                self._tell("rescaled", slots=[])
        elif self._agent.settled and not self._lingering():
            self._begin()
            if self._changing:
                self._changing = False
                self._tell("rescaled", slots=[list(slot) for slot in self._agent.members])

    def _lingering(self) -> bool:
        """Somebody has left the others, but not yet its GPU."""
        if self._task.devices is None:
            return False
        members = self._agent.members
        late = [name for name, (slot, _) in self._alive.items() if slot not in members]
        if late:
            asyncio.get_running_loop().call_later(LEAVE_S, self._end_late, [self._alive[name] for name in late])
        return bool(late)

    def _end_late(self, late: Sequence[tuple[Slot, int]]) -> None:
        for slot, pid in set(late) & set(self._alive.values()):
            if slot not in self._slots:  # it may be wanted again meanwhile
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _pin(self) -> None:
        """The command does not use the library, as far as can be known: it runs, and keeps the GPUs it has. In this
        order, so that it is never one that runs and may be told to change."""
        if not self._heard and not self._stopping:
            self._pinned = True
            self._tell("pinned", pinned=True)
            self._tell("started")

    def _begin(self) -> None:
        if not self._trains:
            self._trains = True
            self._tell("started")
            if self._pinned:  # its start took longer than expected
                self._pinned = False
                self._tell("pinned", pinned=False)

    def _note_exit(self, event: Message) -> None:
        if event["code"] not in (0, PREEMPTED) and not self._failed_log and not self._stopping:
            self._failed_log = f"rank-{self._started + int(event['worker'][1:]) - 1}.log"
        trained = event["stage"] in ("member", "leaving")
        if trained and event["code"] not in (0, PREEMPTED) and not self._stopping and not self._moving:
            how = f"signal {-event['code']}" if event["code"] < 0 else f"exit code {event['code']}"
            self._tell("note", what="worker-lost", worker=event["worker"], how=how)

    def _report(self, event: Message) -> dict[str, Any]:
        """What is new since the last one: the scheduler adds up what it hears."""
        fresh = []
        for seen in event["observations"]:
            key = _configuration(seen)
            if (steps := seen["steps"] - self._told.get(key, 0)) > 0:
                self._told[key] = seen["steps"]
                fresh.append({**seen, "steps": steps})
        saved = event.get("saved_step") is not None and event["saved_step"] != self._saved_step
        self._saved_step = event.get("saved_step")
        kept = {name: event[name] for name in ("progress", "batch", "noise_scale", "bounds", "step", "epoch")}
        paused_s, self._paused_s = self._paused_s, None
        return {**kept, "observations": fresh, "saved": saved, "paused_s": paused_s}


def _configuration(seen: Line) -> tuple[Any, ...]:
    return tuple(seen[name] for name in ("gpu_type", "nodes", "gpus", "per_gpu_batch", "accumulation"))


def _told_before(files: AttemptFiles) -> dict[tuple[Any, ...], int]:
    """Steps of every configuration, in all attempts so far."""
    told: dict[tuple[Any, ...], int] = {}
    for path in files.directory.parent.glob(f"attempt-*/{files.events.name}"):
        for line, _ in _lines(path, files.root):
            for seen in line.get("observations", ()):
                told[_configuration(seen)] = told.get(_configuration(seen), 0) + seen["steps"]
    return told


def _lines(path: Path, root: Path) -> list[tuple[Line, int]]:
    with contextlib.suppress(NotRegular):  # an earlier attempt has spoilt its own
        return Tail(path, root=root).read()
    return []
