"""Notes as sentences; and that a job which gives up its GPUs for others, and only such a job, finds out for whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends.machine import Machine, Users
from fairlead.core.types import Node, Phase
from fairlead.jobfile import request_from
from fairlead.server.controller import Controller, ControlOptions
from fairlead.server.notes import SENTENCES, note_sentence
from fairlead.server.published import Published
from fairlead.server.reasons import clock, reason_of
from fairlead.server.resources import document_of
from fairlead.server.store import NewJob, Note, Store

PATIENCE_S = 30.0


def told(kind: str, **body: Any) -> str:
    return note_sentence(Note(1, 0.0, "1", kind, body))


def receipt(text: str, code: str = "queue-quota", **changes: Any) -> dict[str, Any]:
    whole = {
        "job": "26.3",
        "gets": [{"job": "27.1", "user": "root"}],
        "reason": {"code": code, "text": text, "numbers": {}},
        "gpus_before": 1,
        "gpus_after": 0,
        "lost_gpu_s": 10.790868759155273,
        "restart_s": 0.7912345,
        "saved_at": None,
    }
    return {**whole, **changes}


def test_a_preempted_job_is_told_by_whom_why_and_what_it_cost() -> None:
    assert told("preempted", **receipt("waits: queue vision takes back what is guaranteed")) == (
        "gave up 1 GPU for job 27.1 of root: queue vision takes back what is guaranteed; "
        "lost at most 10.8 GPU-seconds of work, and a restart takes about 0.79 s"
    )


def test_a_job_that_shrinks_is_told_how_much_it_keeps_of() -> None:
    gets = [{"job": str(k), "user": "bob"} for k in range(1, 6)]
    text = told(
        "preempted",
        **receipt("has 2 GPUs: its share", gets=gets, gpus_before=4, gpus_after=2, lost_gpu_s=0.0, restart_s=None),
    )
    assert text == (
        "gave up 2 of its 4 GPUs for job 1 of bob, job 2 of bob, job 3 of bob and 2 other jobs: its share; lost no work"
    )


def test_a_job_that_leaves_a_node_is_told_that_it_drains() -> None:
    text = told("preempted", **receipt("leaves node n0, which has to be empty now", "drain", gets=[], restart_s=None))
    assert text.startswith("gave up 1 GPU to a drain: leaves node n0, which has to be empty now; lost at most 10.8")


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("asked", {"by": "ann", "what": "hold"}, "ann put it on hold"),
        (
            "paused",
            {"worker": "w1", "generation": 2, "world": 2, "seconds": 0.036001732005388476},
            "training paused for 36 ms to go on with 2 workers",
        ),
        ("paused", {"world": 1, "seconds": 12.34}, "training paused for 12 s to go on with 1 worker"),
        (
            "worker-hung",
            {"worker": "w2", "silent_s": 61.23},
            "worker w2 hung, and was ended; it was last heard 61 s before",
        ),
        (
            "worker-slow",
            {"worker": "w2", "node": "n0", "gpu": 1},
            "worker w2 on GPU 1 of node n0 is much slower than the others, and is replaced",
        ),
        (
            "worker-refused",
            {"asked": 4, "most": 1},
            "takes 1 worker at most, so that 3 of its 4 GPUs are not used",
        ),
        (
            "worker-refused",
            {"worker": "w3", "node": "n0", "gpu": 2, "code": 1, "left": 2},
            "worker w3 on GPU 2 of node n0 ended with exit code 1 before it joined; the others go on without it",
        ),
        (
            "worker-lost",
            {"worker": "w1", "how": "signal 9"},
            "worker w1 ended with signal 9; the others go on without it",
        ),
        ("begins", {"step": 0, "directory": "/ck"}, "begins at step 0"),
        ("continues", {"step": 7, "saved_at": 1.0}, "continues at step 7"),
        ("complete", {"step": 7}, "was already complete at step 7: nothing to do"),
        ("foreign", {"checkpoint": "/ck/1", "step": 7}, "checkpoint /ck/1 is of another run"),
        ("locked", {"directory": "/ck", "within_s": 60.0}, "waits for the lock of /ck, for at most 60 s"),
        ("unsaved", {"step": 120, "why": "the disk is full"}, "could not be saved at step 120: the disk is full"),
        ("left-behind", {"pids": [17]}, "process 17 of it could not be ended"),
        ("left-behind", {"pids": [17, 18]}, "processes 17, 18 of it could not be ended"),
        (
            "order-refused",
            {"order": {"order": "resize"}, "why": "Traceback:\n  File\nKeyError: 'slots'\n"},
            "could not follow the order to resize: KeyError: 'slots'",
        ),
        ("cannot-start", {"why": "no space"}, "cannot be started now, and is tried again: no space"),
        ("cannot-hear", {"why": "it is odd"}, "its supervisor cannot be heard: it is odd"),
        ("unreadable", {"why": "half a line"}, "something that its supervisor said cannot be read: half a line"),
        ("silent", {"text": "says nothing"}, "says nothing"),
        ("new-kind", {"step": 3, "seconds": 0.123456}, "new-kind: step 3, seconds 0.123"),
        ("paused", {"seconds": 0.123456}, "paused: seconds 0.123"),
    ],
)
def test_every_note_is_a_sentence_without_too_many_digits(kind: str, body: dict[str, Any], text: str) -> None:
    assert told(kind, **body) == text


def test_every_kind_that_the_backend_tells_has_a_sentence() -> None:
    from fairlead.backends.elastic import _NOTES

    assert {*_NOTES.values()} <= SENTENCES.keys()


def test_times_are_the_servers_own_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        assert clock(0.0) == "1970-01-01 03:00:00 XYZ"
    finally:
        monkeypatch.undo()
        time.tzset()


class Cluster:
    """One node with one GPU, and the real loop, store, backend and processes."""

    def __init__(self, store: Store, root: Path) -> None:
        machine = Machine((Node("n0", 1, "a100"),), ("GPU-0",), ((),), Users(dict, 60.0))
        options = ControlOptions(policy="fifo", cadence="event", minimum_run_s=0.0)
        self.store, self.controller = store, Controller(store, machine, root / "jobs", options)

    def submit(self, user: str, **more: Any) -> str:
        request = request_from({"name": user, "run": "sleep 600", **more})
        row = NewJob(name=user, queue=request.queue, document=document_of(request))
        (job_id,) = self.store.submit([row], user=user, at=time.time(), key=None, digest="").result().ids
        self.controller.hand_over(self.store.requests()[-1])
        return job_id

    def wish(self, kind: str, job_id: str, **more: Any) -> None:
        self.store.request(kind, user="bob", at=time.time(), body={"jobs": [job_id], **more})
        self.controller.hand_over(self.store.requests()[-1])

    def until(self, true: Callable[[Published], object]) -> Published:
        limit, published = time.monotonic() + PATIENCE_S, self.controller.published
        while not true(published):
            assert time.monotonic() < limit, f"it did not come about: {published.live}"
            published = self.controller.wait(published.seq, 0.1)
        return published

    def until_runs(self, job_id: str) -> None:
        self.until(lambda p: job_id in p.live and p.live[job_id].phase is Phase.RUNNING)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Store.open(f"sqlite:///{tmp_path}/fairlead.db") as store:
        cluster = Cluster(store, tmp_path)
        cluster.controller.start()
        try:
            yield cluster
        finally:
            if cluster.controller.ready:
                cluster.controller.stop(keep_jobs=False, timeout_s=PATIENCE_S)


def test_only_who_gives_way_to_others_has_a_receipt(cluster: Cluster) -> None:
    low = cluster.submit("ann")
    cluster.until_runs(low)
    high = cluster.submit("bob", priority=5)
    cluster.until_runs(high)
    cluster.wish("hold", high)
    cluster.until_runs(low)
    cluster.controller.stop(keep_jobs=False, timeout_s=PATIENCE_S)
    (note,) = cluster.store.notes(low)
    assert note.kind == "preempted"
    assert note_sentence(note).startswith(f"gave up 1 GPU for job {high} of bob: 1 job of higher priority")
    assert cluster.store.notes(high) == []  # its own user had it stopped; and in the end all are, for nobody


def test_who_depends_on_a_job_that_was_cancelled_is_cancelled_and_says_so(cluster: Cluster) -> None:
    first = cluster.submit("ann")
    second = cluster.submit("ann", depends_on=[first])
    cluster.until_runs(first)
    cluster.wish("cancel", first, why="enough of it")
    published = cluster.until(lambda p: {first, second} <= p.finished.keys())
    told = [reason_of(published, published.finished[job_id]) for job_id in (first, second)]
    assert [(reason.code, reason.text) for reason in told if reason is not None] == [
        ("cancelled", "was cancelled by bob: enough of it"),
        ("dependency-failed", f"was cancelled by fairlead: job {first}, on which it depends, was cancelled"),
    ]
