"""Simulated and live agree: the same jobs as real processes, and in the simulator with what those measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.machine import describe
from fairlead.core.loop import Cadence
from fairlead.core.messages import Resize, Start, Stop
from fairlead.core.types import Job, Phase
from fairlead.jobfile import request_from
from fairlead.plugins import make_policy
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.launching import LaunchRules
from fairlead.server.resources import document_of
from fairlead.server.store import NewJob, Store
from fairlead.sim.forecast import Forecast, retold

EMULATED = Path(__file__).parents[1] / "train" / "emulated.py"

#: When it comes, its GPUs, and its epochs: ten steps of 0.4 s each on one worker, and so many times as fast on more.
ELASTIC = [("a", 0.0, "1-4", 32), ("b", 20.0, "1-2", 16), ("c", 40.0, "1-4", 24)]


@contextmanager
def controlled(root: Path) -> Iterator[tuple[Controller, Store]]:
    options = ControlOptions(policy="even", cadence="event", minimum_run_s=0.0, launch=LaunchRules(report_s=1.0))
    with Store.open(f"sqlite:///{root}/fairlead.db") as store:
        controller = Controller(store, describe(gpus=4, nodes=None), root / "jobs", options)
        controller.start()
        try:
            yield controller, store
        finally:
            controller.stop(keep_jobs=False, timeout_s=60.0)


def submit(store: Store, controller: Controller, data: dict[str, Any]) -> None:
    request = request_from(data)
    row = NewJob(name=request.name, queue=request.queue, document=document_of(request))
    store.submit([row], user="ann", at=time.time(), key=None, digest="").result()
    controller.hand_over(store.requests()[-1])


def run_live(root: Path) -> tuple[list[Job], list[tuple[str, str, int]]]:
    """The jobs as they ended, and the commands: what, which job, and how many GPUs."""
    out = root / "out"
    out.mkdir()
    with controlled(root) as (controller, store):
        began, coming = time.monotonic(), list(ELASTIC)
        while coming or controller.published.live:
            while coming and time.monotonic() - began >= coming[0][1]:
                name, _, gpus, epochs = coming.pop(0)
                options = json.dumps({"epochs": epochs, "knee": 4, "sample_s": 0.02})
                env = {"OUT": str(out), "OPTIONS": options}
                run = [sys.executable, str(EMULATED)]
                submit(store, controller, {"name": name, "run": run, "gpus": gpus, "env": env, "workdir": str(out)})
            assert time.monotonic() - began < 300.0
            time.sleep(0.1)
        jobs = sorted(controller.published.finished.values(), key=lambda job: job.submitted_at)
        messages = [message for _, message in store.read()]
    commands = [
        (type(m).__name__, m.job, 0 if isinstance(m, Stop) else m.allocation.total)
        for m in messages
        if isinstance(m, Start | Resize | Stop)
    ]
    return jobs, commands


def told_commands(told: Forecast) -> list[tuple[str, str, int]]:
    changes = sorted((at, job_id, gpus) for job_id, job in told.jobs.items() for at, gpus in job.gpus_at)
    held: dict[str, int] = {}
    commands = []
    for at, job_id, gpus in changes:
        ended = told.jobs[job_id].ends_at
        if gpus != held.get(job_id, 0) and not (gpus == 0 and at == ended):
            commands.append(("Resize" if job_id in held else "Start", job_id, gpus))
        held[job_id] = gpus
    return commands


@pytest.mark.slow
def test_the_simulator_gives_the_commands_and_the_times_of_real_jobs(tmp_path: Path) -> None:
    jobs, commands = run_live(tmp_path)
    ended = [(job.spec.name, job.exit_code, job.detail, job.last_line) for job in jobs]
    assert not any(job.failures for job in jobs), ended
    assert [job.phase for job in jobs] == [Phase.SUCCEEDED] * len(ELASTIC)
    told = retold(jobs, describe(gpus=4, nodes=None).nodes, policy=make_policy("even"), cadence=Cadence())
    for job in jobs:
        ends_at = told.jobs[job.id].ends_at
        assert ends_at is not None
        print(
            f"{job.spec.name}: live {job.since - job.submitted_at:.1f} s, simulated {ends_at - job.submitted_at:.1f} s"
        )
    assert told_commands(told) == commands
    for job in jobs:
        ends_at = told.jobs[job.id].ends_at
        assert ends_at is not None
        assert ends_at - job.submitted_at == pytest.approx(job.since - job.submitted_at, rel=0.15)
