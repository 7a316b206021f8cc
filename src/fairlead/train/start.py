"""How a script becomes a worker of a job: of the agent that started it, of torchrun's world, or alone."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from fairlead.core.errors import InvalidSpec
from fairlead.train.checkpoint import Store
from fairlead.train.ending import ERROR_EXIT
from fairlead.train.group import wait_for_torch_threads
from fairlead.train.link import connect
from fairlead.train.resumption import StartOptions
from fairlead.train.session import Job


def init(
    *,
    seed: int = 0,
    checkpoints: Path | str | None = None,
    save_every_s: float = 60.0,
    grace_s: float = 30.0,
    resume: bool = False,
    lock_timeout_s: float = 60.0,
) -> Job:
    """Join the agent that started this process, or torchrun's world, or train alone.

    A job that finds checkpoints of its own in its directory continues. Those of another run, with other arguments or
    hyper-parameters, are refused, unless `resume` says to continue them with the values given here. If another process
    saves in the same directory, this one waits for it to end, for at most `lock_timeout_s`.
    """
    if not isinstance(seed, int) or seed < 0:
        raise InvalidSpec(f"fairlead.train.init: seed is {seed!r}; expected a whole number of at least 0")
    if not isinstance(resume, bool):
        raise InvalidSpec(f"fairlead.train.init: resume is {resume!r}; expected True or False")
    for name, value in (("save_every_s", save_every_s), ("grace_s", grace_s), ("lock_timeout_s", lock_timeout_s)):
        if not isinstance(value, int | float) or not value >= 0.0:
            raise InvalidSpec(f"fairlead.train.init: {name} is {value!r}; expected seconds")
    if not math.isfinite(lock_timeout_s):
        raise InvalidSpec(f"fairlead.train.init: lock_timeout_s is {lock_timeout_s}; a wait for a lock needs an end")
    directory = checkpoint_directory(checkpoints, os.environ)
    store = Store(directory) if directory else None
    if store is not None:
        store.check()
    jobs: list[Job] = []
    link = connect(lambda: jobs[0].beat() if jobs else {})
    start = StartOptions(resume=resume, lock_timeout_s=lock_timeout_s)
    job = Job(link, seed=seed, store=store, save_every_s=save_every_s, start=start)
    jobs.append(job)
    link.on_stop = job.ending.stop
    ERROR_EXIT.armed = not link.fixed
    atexit.register(_leave_torch, job)
    atexit.register(job.ending.vanish)  # the last to be registered is the first to be called
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: job.ending.stop(grace_s))
        if store is not None and link.fixed and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: _interrupted(job, grace_s))
    return job


def checkpoint_directory(given: Path | str | None, env: Mapping[str, str]) -> Path | None:
    """Where a job saves; None if there is no place for it.

    Under the service every job has a directory of its own, and a relative path is in there: `checkpoints` itself, the
    name of that directory, or a path below it. Else a relative path is in the working directory, as usual.
    """
    if not given:
        place = env.get("FAIRLEAD_CHECKPOINTS")
        return Path(place).absolute() if place else None
    path, own = Path(given).expanduser(), env.get("FAIRLEAD_CHECKPOINT_DIR")
    if path.is_absolute() or not own or "FAIRLEAD_JOB_ID" not in env:
        return path.absolute()
    inside = Path(os.path.normpath(path))
    if ".." in inside.parts:
        raise InvalidSpec(
            f"fairlead.train.init: checkpoints is {str(given)!r}, which leads out of the job's own directory {own}, "
            "where relative paths are; name a path within it, or an absolute one"
        )
    return Path(own) / (inside.relative_to(Path(own).name) if inside.parts[:1] == (Path(own).name,) else inside)


def _leave_torch(job: Job) -> None:
    """Close the group before the interpreter ends: one of its threads may still be on its way out of a callback, and
    torch aborts the process if Python is gone by then. A job that is done would count as failed."""
    if (group := job._members.group) is not None:
        group.retire()
    wait_for_torch_threads()


def _interrupted(job: Job, grace_s: float) -> None:
    """Ctrl-C, where no agent handles it: what was learned is saved first."""
    print("saves and stops; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job.ending.stop(grace_s)
