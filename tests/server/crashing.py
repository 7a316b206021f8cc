"""A controller that kills itself at the n-th step of its loop, for the tests of crashes.

Steps are counted over everything the loop does to the world: what it hears (`wait`), writes (`append`, `commit`, before
and after) and orders (`execute`, before and after). Step 0 never comes; with it the process runs until all jobs have
ended, and tells how many steps that took.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from fairlead.backends.machine import describe
from fairlead.core.messages import Command, Message
from fairlead.jobfile import request_from
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.resources import document_of
from fairlead.server.store import NewJob, Store

#: Each writes a line when it begins and when it ends. The last waits for the first.
JOBS: list[dict[str, Any]] = [
    {"name": name, "run": f"echo {name} begins >> told; sleep 0.4; echo {name} ends >> told", "gpus": gpus} | launch
    for name, gpus, launch in (("a", 2, {"launch": "per-gpu"}), ("b", 1, {}), ("c", 1, {}))
]


class Steps:
    """Counts, and kills."""

    def __init__(self, last: int) -> None:
        self.last, self.taken = last, 0

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingJournal:
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, message: Message) -> None:
        self._inner.append(message)
        self._steps.step()

    def commit(self) -> None:
        self._steps.step()
        self._inner.commit()
        self._steps.step()


class CrashingBackend:
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wait(self, until: float) -> Any:
        events = self._inner.wait(until)
        self._steps.step()
        return events

    def execute(self, command: Command) -> None:
        self._steps.step()
        self._inner.execute(command)
        self._steps.step()


class CrashingController(Controller):
    def __init__(self, *args: Any, steps: Steps, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = steps

    def _turn(self) -> None:
        self._journal = CrashingJournal(self._journal, self._steps)  # type: ignore[assignment]
        self.backend = CrashingBackend(self.backend, self._steps)  # type: ignore[assignment]
        super()._turn()


def submit(store: Store, work: Path) -> None:
    """Once, however often it is called."""
    for data in JOBS:
        request = request_from({**data, "workdir": str(work)})
        row = NewJob(name=request.name, queue=request.queue, document=document_of(request))
        store.submit([row], user="ann", at=time.time(), key=request.name, digest=request.name).result()


def run(root: Path, step: int) -> None:
    """In a process of its own. What it has to tell stands in the file `told` of the directory."""
    steps, work = Steps(step), root / "work"
    work.mkdir(parents=True, exist_ok=True)
    with Store.open(f"sqlite:///{root}/fairlead.db") as store:
        options = ControlOptions(policy="fifo", cadence="event+1s", snapshot_every=7)
        controller = CrashingController(store, describe(gpus=2, nodes=None), root / "jobs", options, steps=steps)
        submit(store, work)
        controller.start()
        seq, until = -1, time.monotonic() + 60.0
        while time.monotonic() < until:
            published = controller.wait(seq, 1.0)
            seq = published.seq
            if len(published.finished) == len(JOBS):
                break
        controller.stop(keep_jobs=False)
    jobs = (f"{job.id}:{job.phase}:{job.attempt}" for job in published.finished.values())
    (root / "told").write_text(" ".join([str(steps.taken), *jobs]))
