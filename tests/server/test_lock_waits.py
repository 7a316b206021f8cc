"""A job that waits for the lock of its checkpoints says so: as its reason, in its events, and after a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.machine import describe
from fairlead.core.types import Allocation, Job, JobSpec, Phase
from fairlead.jobfile import request_from
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.lock_waits import LockWaits, lock_reason
from fairlead.server.notes import note_sentence
from fairlead.server.published import Published
from fairlead.server.reasons import ADVICE, reason_of
from fairlead.server.resources import document_of
from fairlead.server.store import NewJob, Store

PATIENCE_S = 60.0

WAIT = {
    "text": "waits for the lock of /ck",
    "directory": "/ck",
    "holder": {"pid": 12, "host": "h", "job": "3"},
    "within_s": 600.0,
    "attempt": 1,
}

RUNNING = Job(JobSpec(id="7"), 0.0, phase=Phase.RUNNING, attempt=1, allocation=Allocation.of({"n0": (0,)}))


def test_the_reason_names_the_directory_the_holder_and_the_end() -> None:
    waits = LockWaits()
    assert waits.hear("7", 100.0, "locked", WAIT)
    found = reason_of(Published(0, 130.0, {}, {}, {}, lock_waits=waits.current), RUNNING)
    assert found is not None
    assert (found.code, found.text) == (
        "checkpoint-lock",
        "waits for the lock of its checkpoints in /ck, which process 12 on h, of job 3, holds; it gives up after 600 s",
    )
    assert found.numbers == {"seconds": 30.0, "within_s": 600.0}
    assert "a directory of its own" in ADVICE[found.code]


def test_only_the_attempt_that_waits_has_the_reason() -> None:
    waits = LockWaits()
    waits.hear("7", 100.0, "locked", WAIT)
    for other in (
        replace(RUNNING, attempt=2),
        replace(RUNNING, phase=Phase.PENDING),
        replace(RUNNING, spec=JobSpec(id="8")),
    ):
        assert lock_reason(waits.current, other, 130.0) is None
    for kind in ("begins", "continues", "complete"):
        waits.hear("7", 100.0, "locked", WAIT)
        assert waits.hear("7", 110.0, kind, {})
        assert lock_reason(waits.current, RUNNING, 130.0) is None


def test_what_is_no_such_note_changes_nothing() -> None:
    waits = LockWaits()
    for body in ({}, {**WAIT, "holder": "me"}, {**WAIT, "attempt": None}, {**WAIT, "within_s": "long"}):
        assert not waits.hear("7", 0.0, "locked", body)
    assert not waits.hear("7", 0.0, "begins", {})
    assert not waits.hear("7", 0.0, "paused", {})
    waits.hear("7", 0.0, "locked", WAIT)
    kept = waits.current
    waits.forget_all_but({"7": RUNNING})
    assert waits.current is kept
    waits.forget_all_but({})
    assert waits.current == {}


@contextmanager
def controlled(tmp_path: Path) -> Iterator[tuple[Controller, Store]]:
    """A controller over the same directory and database; jobs run on after it."""
    with Store.open(f"sqlite:///{tmp_path}/fairlead.db") as store:
        options = ControlOptions(policy="fifo", cadence="event+1s")
        controller = Controller(store, describe(gpus=1, nodes=None), tmp_path / "jobs", options)
        controller.start()
        try:
            yield controller, store
        finally:
            controller.stop(keep_jobs=True)


def reason(controller: Controller, job_id: str) -> str:
    published = controller.published
    job = published.live.get(job_id)
    found = None if job is None else reason_of(published, job)
    return "" if found is None else found.code


def until(true: Any) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_wait_is_the_reason_until_the_job_starts_also_after_a_restart(tmp_path: Path) -> None:
    """Of a job whose workers write what `fairlead.train` would."""
    lines = [json.dumps({**WAIT, "kind": "locked"}), json.dumps({"kind": "begins", "step": 0, "text": "begins here"})]
    run = f"""
        echo '{lines[0]}' >> $FAIRLEAD_NOTES
        until [ -e go ]; do sleep 0.05; done
        echo '{lines[1]}' >> $FAIRLEAD_NOTES
        until [ -e end ]; do sleep 0.05; done
    """
    work = tmp_path / "work"
    work.mkdir()
    # A test that fails leaves it running, but not for ever.
    request = request_from({"name": "a", "run": run, "workdir": str(work), "time_limit": "3m"})
    with controlled(tmp_path) as (controller, store):
        row = NewJob(name="a", queue=request.queue, document=document_of(request))
        (job_id,) = store.submit([row], user="ann", at=time.time(), key=None, digest="").result().ids
        controller.hand_over(store.requests()[-1])
        until(lambda: reason(controller, job_id) == "checkpoint-lock")
        until(lambda: store.notes(job_id))
    with controlled(tmp_path) as (controller, store):
        until(lambda: reason(controller, job_id) == "checkpoint-lock")
        (work / "go").touch()
        until(lambda: reason(controller, job_id) not in ("", "checkpoint-lock"))
        until(lambda: store.notes(job_id)[-1].kind == "begins")
        # A note is told once more if the controller ends before it has noted how far it had read.
        told = dict.fromkeys(note_sentence(note) for note in store.notes(job_id))
        assert list(told) == [WAIT["text"], "begins here"]
        (work / "end").touch()
        until(lambda: job_id in controller.published.finished)
