"""Any command, on a fixed number of GPUs: one process on each, with torchrun's environment, or one process for all of
them, which is told nothing of ranks. All end together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.backends.files import open_log
from fairlead.backends.processes import exit_code
from fairlead.backends.task import Task
from fairlead.core.types import Launch
from fairlead.train.agent import PREEMPTED, Slot
from fairlead.train.parent_death import killed_with_us

#: What starting a process fails with if another attempt would fail in the same way.
_HOPELESS = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.E2BIG, errno.EINVAL),
}


@dataclass(frozen=True)
class End:
    """How a crew's work has ended."""

    code: int
    why: str = ""
    #: Another attempt would end in the same way.
    final: bool = False
    #: The name of the log of the process that failed first.
    log: str = ""


def torchrun_environment(slots: Sequence[Slot], rank: int, task: Task, port: int) -> dict[str, str]:
    """What torchrun would tell the worker of this rank, if each node were a machine of its own."""
    nodes = sorted({slot.node for slot in slots})
    node = slots[rank].node
    local = [place for place, slot in enumerate(slots) if slot.node == node]
    world, group = str(len(slots)), str(nodes.index(node))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
        "GROUP_RANK": group,
        "NODE_RANK": group,
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(task.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(task.max_restarts),
        "TORCHELASTIC_RUN_ID": f"fairlead-{task.job}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def place_environment(slots: Sequence[Slot], own: Sequence[Slot]) -> dict[str, str]:
    """Where a process is: `own` are its GPUs, of the `slots` of its job."""
    return {
        "FAIRLEAD_GPUS": str(len(slots)),
        "FAIRLEAD_NODE": ",".join(sorted({slot.node for slot in own})),
        "FAIRLEAD_GPU": ",".join(str(slot.gpu) for slot in own),
    }


def visible(slots: Sequence[Slot], devices: Sequence[str] | None) -> dict[str, str]:
    """These GPUs and no others; none, if CPU slots stand in for them."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices[slot.gpu] for slot in slots) if devices is not None else ""}


def environments(task: Task, slots: Sequence[Slot], port: int) -> list[dict[str, str]]:
    """What each process of the job is told besides `Task.env`. Its GPUs are all of the job's on its node, as LOCAL_RANK
    counts them; a launcher has all of the job's, which are of this machine whatever their nodes are called."""
    if task.launch is Launch.ONCE:
        return [{**place_environment(slots, slots), **task.gpu_type(slots), **visible(slots, task.devices)}]
    return [
        {
            **torchrun_environment(slots, rank, task, port),
            **place_environment(slots, [slot]),
            **task.gpu_type([slot]),
            **visible([each for each in slots if each.node == slot.node], task.devices),
        }
        for rank, slot in enumerate(slots)
    ]


@dataclass
class Gang:
    """The processes of one attempt. `on_start` hears of each: its rank, slot and process id."""

    task: Task
    logs: Callable[[int], Path]
    on_start: Callable[[int, Slot, int], None]
    _processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    _stopping: bool = False

    async def run(self) -> End:
        """Until all have ended; if one fails, the others are ended too."""
        slots = sorted(self.task.slots)
        try:
            await self._start(slots)
        except OSError as error:
            self._signal(signal.SIGKILL)
            why = f"cannot run {error.filename or self.task.command[0]}: {error.strerror}"
            return End(127, why, final=error.errno in _HOPELESS)
        except ValueError as error:  # what no command or environment can be
            self._signal(signal.SIGKILL)
            return End(127, f"cannot run {self.task.command[0]!r}: {error} in its command or environment", final=True)
        waiting = {asyncio.ensure_future(self._wait(rank)): rank for rank in self._processes}
        first: End | None = None
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                rank, code = waiting.pop(future), future.result()
                if code != 0 and first is None:
                    first = End(code, self._story(rank, code), log=self.logs(rank).name)
                    self.stop(self.task.grace_s)
        return first or End(0 if self._processes else PREEMPTED)

    def stop(self, grace_s: float) -> None:
        """Ask everybody to end, and end them when the time is up."""
        if self._stopping:
            return
        self._stopping = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # who was stopped would not hear the other one
        asyncio.get_running_loop().call_later(grace_s, self._signal, signal.SIGKILL)

    async def _start(self, slots: Sequence[Slot]) -> None:
        for rank, own in enumerate(environments(self.task, slots, _free_port())):
            if self._stopping:
                return
            env: Mapping[str, str] = {**self.task.env, **own}
            with open_log(self.logs(rank)) as log:
                self._processes[rank] = process = await asyncio.create_subprocess_exec(
                    *self.task.command,
                    env=env,
                    cwd=self.task.workdir,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=killed_with_us(),
                )
            self.on_start(rank, slots[rank], process.pid)
            if self._stopping:  # it came too late to be asked with the others
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)

    async def _wait(self, rank: int) -> int:
        process = self._processes[rank]
        code = exit_code(await process.wait())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started and left behind
        return code

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def _story(self, rank: int, code: int) -> str:
        who = "it" if len(self._processes) == 1 else f"rank {rank}"
        killed_by = {128 + number: number.name for number in signal.Signals}.get(code)
        if killed_by is not None and not self._stopping and code != PREEMPTED:
            hint = "; perhaps memory ran out" if code == 137 else ""
            return f"{who} was killed by {killed_by}{hint}"
        return f"{who} ended with exit code {code}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
