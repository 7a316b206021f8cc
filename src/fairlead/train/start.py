"""How a script becomes a worker of a job: of the agent that started it, of torchrun's world, or alone."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from pathlib import Path

from fairlead.train.checkpoint import Store
from fairlead.train.link import connect
from fairlead.train.session import Job


def init(
    *, seed: int = 0, checkpoints: Path | str | None = None, save_every_s: float = 60.0, grace_s: float = 30.0
) -> Job:
    """Join the agent that started this process, or torchrun's world, or train alone."""
    directory = checkpoints or os.environ.get("FAIRLEAD_CHECKPOINTS")
    store = Store(directory) if directory else None
    if store is not None:
        store.check()
    jobs: list[Job] = []
    link = connect(lambda: jobs[0].beat() if jobs else {})
    job = Job(link, seed=seed, store=store, save_every_s=save_every_s)
    jobs.append(job)
    link.on_stop = job.ending.stop
    atexit.register(job.ending.vanish)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: job.ending.stop(grace_s))
    return job
