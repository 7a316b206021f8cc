"""A backend with real processes, driven step by step. Nothing here waits for longer than it has to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fairlead.backends.inbox import Clock, Inbox
from fairlead.backends.local import LocalBackend
from fairlead.backends.machine import Machine, describe
from fairlead.backends.processes import COOKIE
from fairlead.backends.task import Task
from fairlead.core.messages import AttemptEvent, Event, JobExited, JobStopped, Resize, Start, Stop, Tick
from fairlead.core.types import NOTHING, Allocation, Job, JobSpec, Phase

#: Generous, as only a test that fails waits for so long.
PATIENCE_S = 60.0

E = TypeVar("E", bound=AttemptEvent)


class World:
    """Jobs, and everything that was heard of them. `work` is their directory."""

    def __init__(
        self, out: Path, *, nodes: str = "1x4", root: Path | None = None, machine: Machine | None = None
    ) -> None:
        self.out, self.root, self.work = out, root or out / "jobs", out / "work"
        self.work.mkdir()
        self.machine: Machine = machine or describe(gpus=None, nodes=nodes)
        self.tasks: dict[str, dict[str, Any]] = {}
        self.reason: dict[str, Any] = {}
        self.events: list[Event] = []
        self.notes: list[dict[str, Any]] = []
        self.marks: dict[str, str] = {}
        self.old: list[LocalBackend] = []
        self.backend = self.make_backend()
        self.backend.listen()

    def make_backend(self) -> LocalBackend:
        """Another one over the same directory; nobody listens yet."""
        inbox = Inbox(Clock())
        inbox.on_mark = self.marks.__setitem__
        return LocalBackend(
            self.root,
            self.machine,
            inbox,
            prepare=lambda start: self.prepare(start),  # a test may change its mind
            on_note=lambda job, at, note: self.notes.append({"job": job, "at": at, **note}),
            why_stopped=lambda _: self.reason,
        )

    def prepare(self, start: Start) -> Task:
        machine = {
            "gpu_types": {node.id: node.gpu_type for node in self.machine.nodes},
            "cpu_shares": self.machine.cpu_shares,
        }
        given = {"workdir": str(self.work), "grace_s": 10.0, **machine, **self.tasks[start.job]}
        env = {"PATH": os.environ["PATH"], **given.pop("env", {})}
        places = tuple(self.machine.places(start.allocation))
        return Task(job=start.job, attempt=start.attempt, env=env, places=places, **given)

    # -- commands ------------------------------------------------------------------------------------------------

    def gpus(self, *gpus: int, node: int = 0) -> Allocation:
        return Allocation.of({self.machine.nodes[node].id: gpus})

    def start(self, job: str, run: str | Iterable[str], *, gpus: Allocation | int = 1, **task: Any) -> None:
        """Attempt 1, of a shell script or a command."""
        command = ("bash", "-c", run) if isinstance(run, str) else tuple(run)
        self.tasks[job] = {"command": command, **task}
        self.backend.execute(Start(0.0, job, 1, self.gpus(*range(gpus)) if isinstance(gpus, int) else gpus))

    def again(self, job: str, attempt: int, *, gpus: Allocation | None = None) -> None:
        self.backend.execute(Start(0.0, job, attempt, gpus or self.gpus(0)))

    def resize(self, job: str, *gpus: int, attempt: int = 1) -> None:
        self.backend.execute(Resize(0.0, job, attempt, self.gpus(*gpus) if gpus else NOTHING))

    def stop(self, job: str, *, attempt: int = 1, **reason: Any) -> None:
        self.reason = reason
        self.backend.execute(Stop(0.0, job, attempt))

    # -- what is heard -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Take out what has come, as the loop does."""
        found = self.backend.wait(self.backend.inbox.clock.now() + 0.02)
        self.events += [event for event in found or () if not isinstance(event, Tick)]

    def until(self, true: Callable[[], object]) -> None:
        limit = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < limit, f"it did not come about:\n{self.told()}"
            self.pump()

    def heard(self, job: str, kind: type[E] | None = None) -> list[E]:
        return [
            event  # type: ignore[misc]
            for event in self.events
            if getattr(event, "job", None) == job and (kind is None or isinstance(event, kind))
        ]

    def hear(self, job: str, kind: type[E], *, count: int = 1) -> E:
        """Wait until there were so many of them; the last of these."""
        self.until(lambda: len(self.heard(job, kind)) >= count)
        return self.heard(job, kind)[count - 1]

    def end(self, job: str) -> JobExited | JobStopped:
        """Wait for the end, and until nobody of the attempt is left to say anything more."""
        self.until(lambda: job not in self.backend.running and self.ends(job))
        self.until(lambda: not self.carriers())
        (end,) = self.ends(job)
        return end

    def ends(self, job: str) -> list[JobExited | JobStopped]:
        return [*self.heard(job, JobExited), *self.heard(job, JobStopped)]

    def exit(self, job: str) -> JobExited:
        end = self.end(job)
        assert isinstance(end, JobExited), self.told()
        return end

    def noted(self, what: str, job: str | None = None) -> list[dict[str, Any]]:
        return [note for note in self.notes if note["what"] == what and job in (None, note["job"])]

    def worker(self, job: str, rank: int = 0) -> int:
        """Its process, once it is known."""
        self.until(lambda: any(note["rank"] == rank for note in self.noted("worker", job)))
        return next(int(note["pid"]) for note in self.noted("worker", job) if note["rank"] == rank)

    # -- what is on disk -----------------------------------------------------------------------------------------

    def lines(self, job: str, attempt: int = 1) -> list[dict[str, Any]]:
        text = self.backend.files(job, attempt).events.read_text()
        return [json.loads(line) for line in text.splitlines()]

    def supervisor(self, job: str, attempt: int = 1) -> int:
        events = self.backend.files(job, attempt)
        self.until(lambda: events.told("began"))
        return int((events.told("began") or {})["pid"])

    def guardian(self, job: str, attempt: int = 1) -> int:
        return parent(self.supervisor(job, attempt))

    def chain(self, job: str, attempt: int = 1) -> list[int]:
        """What sees to an attempt: the outer guardian, the inner one, the supervisor."""
        inner = self.guardian(job, attempt)
        return [parent(inner), inner, self.supervisor(job, attempt)]

    def log(self, job: str, rank: int = 0, attempt: int = 1) -> str:
        return self.backend.files(job, attempt).log(rank).read_text()

    def written(self, name: str) -> str:
        """By a job, into its directory. Empty if there is none yet."""
        path = self.work / name
        return path.read_text() if path.exists() else ""

    def pids(self, name: str, count: int = 1) -> list[int]:
        """That a job has written down, once they are so many."""
        self.until(lambda: self.written(name).count("\n") >= count)
        return [int(line) for line in self.written(name).split()]

    # -- coming back ---------------------------------------------------------------------------------------------

    def crash(self, *jobs: Job) -> list[str]:
        """The controller is gone, and another one takes up these jobs where the marks say."""
        self.backend.close()
        self.old.append(self.backend)
        self.backend = self.make_backend()
        told = self.backend.attach(jobs, self.marks)
        self.backend.listen()
        return told

    def believed(self, job: str, phase: Phase, *gpus: int, attempt: int = 1) -> Job:
        """As the state has it."""
        spec = JobSpec(id=job, gpus=max(1, len(gpus)), in_place=bool(self.tasks.get(job, {}).get("elastic")))
        held = self.gpus(*gpus) if gpus else NOTHING
        made = Job(spec, 0.0, phase=phase, attempt=attempt)
        return replace(made, releasing=held) if phase is Phase.STOPPING else replace(made, allocation=held)

    # -- the end -------------------------------------------------------------------------------------------------

    def carriers(self) -> list[int]:
        """Every process of this world."""
        wanted = f"{COOKIE}={self.root}:".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and any(
                    each.startswith(wanted) for each in (entry / "environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
        return found

    def leave(self) -> list[str]:
        """Who is still there, and should not be; killed now."""
        self.backend.close()
        ended(lambda: not self.carriers(), within_s=10.0)
        left = self.carriers()
        names = [f"{pid} {_name(pid)}" for pid in left]
        for pid in left:
            kill(pid)
        return names

    def told(self) -> str:
        """For whoever has to find out why a test has failed."""
        parts = [str(event) for event in self.events[-20:]] + [str(note) for note in self.notes[-20:]]
        for path in sorted(self.root.glob("*/attempt-*/**/*")):
            if path.suffix in (".log", ".jsonl") and path.is_file() and not path.is_symlink():
                parts.append(f"--- {path.relative_to(self.root)}\n{path.read_text(errors='replace')[-2000:]}")
        return "\n".join(parts)


def ended(true: Callable[[], object], *, within_s: float = PATIENCE_S) -> bool:
    """Wait for it, without a world."""
    limit = time.monotonic() + within_s
    while not true():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """And no zombie, which nobody may have cared for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_at_once(pids: Iterable[int]) -> None:
    """So that none of them can do anything about the others."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            kill(pid, number)
    assert ended(lambda: not any(map(alive, pids)))


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "(gone)"
