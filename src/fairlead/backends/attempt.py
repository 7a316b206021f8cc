"""An attempt as the backend knows it, and how its guardian is started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from fairlead.backends.descriptors import give_first_limit
from fairlead.backends.files import Appender, AttemptFiles, Tail
from fairlead.backends.processes import COOKIE
from fairlead.backends.task import Task
from fairlead.core.messages import Start
from fairlead.core.types import Allocation


@dataclass(eq=False)
class Attempt:
    """One that may still say something."""

    start: Start
    files: AttemptFiles
    tail: Tail
    orders: Appender
    #: The GPUs it was last given, so that it is known of which type they are.
    allocation: Allocation
    #: Its guardian is still to be started.
    waits: bool = False
    #: Its guardian, if that is a child of ours.
    process: subprocess.Popen[bytes] | None = None
    began: bool = False
    #: It was told to hold no GPUs, and its processes to stay.
    asleep: bool = False
    #: False if it began before the machine was last booted.
    same_boot: bool = True
    #: When to try to start it again, or to look whether it lives.
    due: float = 0.0
    #: It should stop, but does not run yet.
    stop: bool = False
    #: Its end was told.
    over: bool = False
    #: What was last found wrong.
    complaint: str = ""
    #: For whoever starts it or says something to it.
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def job(self) -> str:
        return self.start.job

    @property
    def number(self) -> int:
        return self.start.attempt

    @property
    def mark(self) -> str:
        return f"attempt:{self.job}:{self.number}"


def start_guardian(task: Task, files: AttemptFiles) -> subprocess.Popen[bytes]:
    """Whoever runs it. Nothing of the controller's own environment goes with it: that may hold secrets."""
    kept = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "HOME", "LANG", "TZ", "TMPDIR", "PYTHONUTF8")
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead.backends.supervisor", str(files.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**{name: os.environ[name] for name in kept if name in os.environ}, COOKIE: task.env[COOKIE]},
        start_new_session=True,
    )
    give_first_limit(process.pid)
    threading.Thread(target=_feed, args=(process, task.to_json()), name="fairlead-feed", daemon=True).start()
    return process


def _feed(process: subprocess.Popen[bytes], text: str) -> None:
    """Tell it what to run, which can be more than a pipe holds, and take note of its end."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # it need not read it if the attempt runs already
        process.stdin.write(text.encode())
    process.wait()
