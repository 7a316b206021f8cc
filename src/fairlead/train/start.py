"""How a script becomes a worker of a job: of the agent that started it, of torchrun's world, or alone."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.train.checkpoint import Store
from fairlead.train.group import wait_for_torch_threads
from fairlead.train.link import connect
from fairlead.train.session import Job


def init(
    *, seed: int = 0, checkpoints: Path | str | None = None, save_every_s: float = 60.0, grace_s: float = 30.0
) -> Job:
    """Join the agent that started this process, or torchrun's world, or train alone."""
    if not isinstance(seed, int) or seed < 0:
        raise InvalidSpec(f"fairlead.train.init: seed is {seed!r}; expected a whole number of at least 0")
    for name, value in (("save_every_s", save_every_s), ("grace_s", grace_s)):
        if not isinstance(value, int | float) or not value >= 0.0:
            raise InvalidSpec(f"fairlead.train.init: {name} is {value!r}; expected seconds")
    directory = checkpoints or os.environ.get("FAIRLEAD_CHECKPOINTS")
    store = Store(directory) if directory else None
    if store is not None:
        store.check()
    jobs: list[Job] = []
    link = connect(lambda: jobs[0].beat() if jobs else {})
    job = Job(link, seed=seed, store=store, save_every_s=save_every_s)
    jobs.append(job)
    link.on_stop = job.ending.stop
    atexit.register(wait_for_torch_threads)
    atexit.register(job.ending.vanish)  # the last to be registered is the first to be called
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: job.ending.stop(grace_s))
        if store is not None and link.fixed and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: _interrupted(job, grace_s))
    return job


def _interrupted(job: Job, grace_s: float) -> None:
    """Ctrl-C, where nobody else sees to it: what was learned is saved first."""
    print("saves and stops; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job.ending.stop(grace_s)
