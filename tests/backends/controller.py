"""A controller that starts one job and then does nothing, until it is killed. Takes the root and the shell script."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fairlead.backends.inbox import Clock, Inbox
from fairlead.backends.local import LocalBackend
from fairlead.backends.machine import describe
from fairlead.backends.task import Task
from fairlead.core.messages import Start
from fairlead.core.types import Allocation

root, work, script = sys.argv[1:]
machine = describe(gpus=None, nodes="1x4")
allocation = Allocation.of({machine.nodes[0].id: [0]})


def prepare(start: Start) -> Task:
    return Task(
        job=start.job,
        attempt=start.attempt,
        command=("bash", "-c", script),
        workdir=work,
        env=dict(os.environ),
        places=tuple(machine.places(allocation)),
    )


backend = LocalBackend(Path(root), machine, Inbox(Clock()), prepare=prepare)
backend.listen()
backend.execute(Start(0.0, "j", 1, allocation))
print("started", flush=True)
time.sleep(600.0)
