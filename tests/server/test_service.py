"""What can be asked of the control plane, without HTTP: against the real loop, over a world that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from still import ANN, BOB, EVE, ROOT, StillPlane, ids, submit

from fairlead.core.messages import JobExited, JobHeld, NodeDrained
from fairlead.core.types import Batch, Job, JobSpec, Node, Observation, Phase
from fairlead.policies.middleware.queues import Queue
from fairlead.server import resources
from fairlead.server.asking import Ended, Forbidden, NotFound
from fairlead.server.auth import Caller, Sight
from fairlead.server.listing import Query
from fairlead.server.published import Published
from fairlead.server.resources import State, job_of, outcome_of, state_of


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        yield plane


# -- who sees what -----------------------------------------------------------------------------------------------------


@pytest.fixture
def secretive(plane: StillPlane) -> str:
    """A job of ann's with everything in it that is nobody else's business."""
    fields = {"env": {"A": "envword"}, "secrets": {"KEY": "secretword"}, "labels": {"l": "labelword"}}
    (job_id,) = submit(plane, run="python commandword.py", name="a name", budget=77.0, **fields)
    plane.controller.runs(job_id)
    plane.controller.reports(job_id, 0.25, batch=64)
    return job_id


WORDS = ("envword", "secretword", "labelword", "commandword")


def test_the_owner_and_an_admin_see_all_but_the_values_of_secrets(plane: StillPlane, secretive: str) -> None:
    for caller in (ANN, ROOT):
        told = plane.service.job(caller, secretive)
        assert told["document"]["env"] == {"A": "envword"}
        assert told["document"]["secrets"] == {"KEY": None}
        assert told["command"] == ["python", "commandword.py"]
        assert "secretword" not in str(told)


def test_a_viewer_sees_how_it_fares_but_not_what_it_runs(plane: StillPlane, secretive: str) -> None:
    told = plane.service.job(EVE, secretive)
    assert (told["progress"], told["command"]) == (0.25, [])
    assert "document" not in told
    assert not any(word in str(told) for word in ("envword", "secretword", "commandword"))


def test_another_user_sees_a_row_and_nothing_else(plane: StillPlane, secretive: str) -> None:
    (row,) = plane.service.jobs(BOB, Query())["jobs"]
    assert (row["id"], row["user"], row["state"], row["name"]) == (secretive, "ann", "RUNNING", "a name")
    assert (row["progress"], row["budget"], row["batch"], row["detail"]) == (None, None, None, "")
    assert row["reason"] == {"code": "placed", "text": "placed", "numbers": {}, "jobs": []}
    assert not any(word in str(row) for word in WORDS)


@pytest.mark.parametrize("ask", ["job", "explain", "log_files"])
def test_details_of_somebody_elses_job_do_not_exist(plane: StillPlane, secretive: str, ask: str) -> None:
    with pytest.raises(NotFound) as theirs:
        getattr(plane.service, ask)(BOB, secretive)
    with pytest.raises(NotFound) as nobodys:
        getattr(plane.service, ask)(BOB, "9")
    assert str(theirs.value).replace(secretive, "9") == str(nobodys.value)


@pytest.mark.parametrize("what", ["cancel", "hold", "release", "suspend", "resume"])
def test_nobody_can_do_anything_to_somebody_elses_job(plane: StillPlane, secretive: str, what: str) -> None:
    before = len(plane.store.requests())
    with pytest.raises(NotFound):
        plane.service.wish(BOB, secretive, what)
    assert len(plane.store.requests()) == before


def test_labels_cannot_be_guessed_by_searching_for_them(plane: StillPlane, secretive: str) -> None:
    wanted = Query(labels=(("l", "labelword"),))
    assert [ids(plane.service.jobs(caller, wanted)) for caller in (ANN, BOB, ROOT)] == [[secretive], [], [secretive]]


def test_an_ended_job_is_as_secret_as_a_live_one(plane: StillPlane, secretive: str) -> None:
    plane.controller.exits(secretive, 1, "detailword")
    (row,) = plane.service.jobs(BOB, Query(ended=True))["jobs"]
    assert not any(word in str(row) for word in (*WORDS, "detailword"))
    with pytest.raises(NotFound):
        plane.service.job(BOB, secretive)
    assert plane.service.job(ANN, secretive)["detail"] == "detailword"


# -- lists -------------------------------------------------------------------------------------------------------------


def pages(plane: StillPlane, query: Query, caller: Caller = ANN) -> list[list[str]]:
    found, cursor = [], query.cursor
    while True:
        page = plane.service.jobs(caller, replace(query, cursor=cursor))
        found.append(ids(page))
        if (cursor := page["next"]) is None:
            return found


def test_pages_of_live_jobs_are_newest_first_and_complete(plane: StillPlane) -> None:
    submit(plane, array=5)
    submit(plane)
    assert pages(plane, Query(limit=4)) == [["2", "1.4", "1.3", "1.2"], ["1.1", "1.0"]]
    assert pages(plane, Query(limit=6)) == [["2", "1.4", "1.3", "1.2", "1.1", "1.0"]]


def test_a_page_goes_on_where_the_last_ended_even_if_that_job_is_gone(plane: StillPlane) -> None:
    submit(plane, array=6)
    page = plane.service.jobs(ANN, Query(limit=2))
    assert ids(page) == ["1.5", "1.4"]
    plane.service.wish(ANN, "1.4", "cancel")
    plane.controller.until(lambda p: "1.4" in p.finished)
    submit(plane)
    assert ids(plane.service.jobs(ANN, Query(limit=2, cursor=page["next"]))) == ["1.3", "1.2"]


def test_lists_are_narrowed_by_every_condition_at_once(plane: StillPlane) -> None:
    submit(plane, name="Bert base", labels={"a": "1", "b": "2"}, gpus=4, gpu_type="a100")
    submit(plane, name="bert large", queue="vision", gpus=4, gpu_type="a100")
    submit(plane, BOB, name="resnet", labels={"a": "1"})
    plane.controller.runs("1")
    plane.controller.runs("3")
    assert pages(plane, Query(name="BERT")) == [["2", "1"]]
    assert pages(plane, Query(user="bob")) == [["3"]]
    assert pages(plane, Query(queue="vision")) == [["2"]]
    assert pages(plane, Query(labels=(("a", "1"), ("b", "2")))) == [["1"]]
    assert pages(plane, Query(states=frozenset({State.PENDING}))) == [["2"]]
    assert pages(plane, Query(states=frozenset({State.RUNNING}), user="ann")) == [["1"]]


def test_ended_jobs_are_found_with_the_live_ones_or_alone(plane: StillPlane) -> None:
    for _ in range(5):
        submit(plane)
    plane.controller.exits("1")
    plane.controller.exits("3", 2)
    plane.service.wish(ANN, "4", "cancel")
    plane.controller.until(lambda p: "4" in p.finished)
    assert pages(plane, Query(ended=True, limit=2)) == [["5", "4"], ["3", "2"], ["1"]]
    assert pages(plane, Query(ended=True, live=False, limit=2)) == [["4", "3"], ["1"]]
    assert pages(plane, Query(states=frozenset({State.FAILED}))) == [["3"]]
    assert pages(plane, Query(states=frozenset({State.FAILED, State.RUNNING}))) == [["5", "3", "2"]]


@pytest.mark.parametrize("cursor", ["", "live-", "all-1", "live-1.2.3", "live-x", "../x", "live-" + "9" * 40])
def test_a_cursor_that_is_none_of_ours_is_refused(plane: StillPlane, cursor: str) -> None:
    from fairlead.core.errors import InvalidSpec

    with pytest.raises(InvalidSpec, match="cursor"):
        plane.service.jobs(ANN, Query(cursor=cursor))


# -- wishes ------------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_is_stopped_and_says_by_whom_and_why(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    plane.service.wish(ROOT, job_id, "cancel", why="maintenance")
    plane.controller.until(lambda p: job_id in p.finished)
    assert plane.service.job(ANN, job_id)["state"] == "CANCELLED"
    told = plane.service.events(ANN, job_id, after="0", limit=100, reports=False)["events"]
    assert "root cancelled it: maintenance" in [event["text"] for event in told]


def test_a_job_on_hold_says_who_put_it_there(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    plane.service.wish(ANN, job_id, "suspend")
    plane.controller.until(lambda p: p.live[job_id].on_hold and p.live[job_id].phase is Phase.PENDING)
    told = plane.service.explain(ANN, job_id)
    assert told["reason"]["code"] == "held"
    assert any(line.startswith("ann suspended it at ") for line in told["text"])
    assert plane.service.job(ANN, job_id)["state"] == "HELD"
    plane.service.wish(ANN, job_id, "resume")
    plane.controller.runs(job_id)


def test_another_priority_is_the_jobs_from_then_on(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.until(lambda p: job_id in p.live)
    plane.service.wish(ANN, job_id, "priority", priority=-9)
    plane.controller.until(lambda p: p.live[job_id].spec.priority == -9)
    with pytest.raises(Forbidden, match="only administrators may give one above 0"):
        plane.service.wish(ANN, job_id, "priority", priority=1)


def test_nothing_can_be_done_about_a_job_that_has_ended(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.exits(job_id)
    with pytest.raises(Ended, match="SUCCEEDED"):
        plane.service.wish(ANN, job_id, "cancel")


def test_only_an_admin_drains_a_node(plane: StillPlane) -> None:
    with pytest.raises(Forbidden, match="admin"):
        plane.service.drain(ANN, "n0", by=None)
    with pytest.raises(NotFound, match="known are n0, n1"):
        plane.service.drain(ROOT, "n7", by=None)
    plane.service.drain(ROOT, "n0", by=5e9)
    plane.controller.until(lambda p: p.nodes["n0"].drain_by == 5e9)
    plane.service.undrain(ROOT, "n0")
    plane.controller.until(lambda p: not p.nodes["n0"].draining)


# -- why, and what happened --------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_gpus_has_the_policys_reason_with_its_numbers(plane: StillPlane) -> None:
    submit(plane, gpus=3, gpu_type="a100")
    (job_id,) = submit(plane, gpus=2, gpu_type="a100")
    plane.controller.runs("1")
    plane.controller.until(lambda p: p.plan.reasons.get(job_id))
    told = plane.service.explain(ANN, job_id)
    assert told["reason"]["code"] == "waiting"
    assert told["reason"]["numbers"] == {"needs": 2.0, "free": 1.0, "total": 4.0, "ahead": 0.0, "held_elsewhere": 3.0}
    assert told["reason"]["jobs"] == ["1"]
    assert told["text"][1].startswith("needs 2 GPUs, 1 is free; job 1 ")
    assert told["text"][1].endswith(" 3 until it ends: it states no time limit and cannot shrink")


def test_a_job_that_failed_waits_for_its_next_try_and_says_until_when(plane: StillPlane) -> None:
    (job_id,) = submit(plane, backoff=300)
    plane.controller.exits(job_id, 7, "boom", final=False)
    told = plane.service.explain(ANN, job_id)
    assert told["reason"]["code"] == "backoff"
    assert "exit code 7" in told["reason"]["text"]
    assert plane.service.job(ANN, job_id)["state"] == "RECOVERING"


def test_a_job_whose_next_try_is_soon_waits_for_it_on_its_gpus(plane: StillPlane) -> None:
    (job_id,) = submit(plane, backoff=10)
    plane.controller.runs(job_id)
    plane.controller.exits(job_id, 7, "boom", final=False)
    plane.controller.until(lambda p: p.live[job_id].attempt == 2)
    job = plane.controller.published.live[job_id]
    assert (job.allocation.total, job.not_before > job.since) == (1, True)
    told = plane.service.explain(ANN, job_id)["reason"]
    assert told["code"] == "backoff"
    assert told["text"].endswith(", on the 1 GPU it keeps meanwhile")
    waiting = replace(job, phase=Phase.STARTING)
    assert state_of(waiting, job.not_before - 1.0) is State.RECOVERING
    assert state_of(waiting, job.not_before) is State.STARTING


def test_what_a_job_printed_last_is_not_for_a_viewer(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    attempt = plane.controller.published.live[job_id].attempt
    last = "bad key sk-123"
    plane.controller.happens(JobExited(plane.controller.now(), job_id, attempt, 1, "boom", final=True, last_line=last))
    plane.controller.until(lambda p: p.job(job_id) is not None and p.job(job_id).phase.final)

    def told(caller: Caller) -> str:
        story = plane.service.events(caller, job_id, after="0", limit=99, reports=False)
        return repr((plane.service.job(caller, job_id), plane.service.explain(caller, job_id), story))

    assert told(ANN).count(last) >= 3
    assert "sk-123" not in told(EVE)
    assert "boom" in told(EVE)


@pytest.mark.parametrize(
    ("code", "detail", "state"),
    [(0, "", "SUCCEEDED"), (3, "boom", "FAILED"), (124, "time limit of 1 h", "TIMEOUT"), (124, "else", "FAILED")],
)
def test_how_a_job_ended_is_told(plane: StillPlane, code: int, detail: str, state: str) -> None:
    (job_id,) = submit(plane)
    plane.controller.exits(job_id, code, detail)
    told = plane.service.job(ANN, job_id)
    assert (told["state"], told["exit_code"], told["detail"]) == (state, code, detail)
    assert told["ended_at"] >= told["started_at"]


def test_the_story_of_a_job_is_told_in_order_and_in_pages(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    plane.controller.reports(job_id, 0.5, batch=32)
    plane.store.note([job_id], "preempted", plane.controller.now(), {"text": "gave way to job 9"})
    plane.service.wish(ANN, job_id, "hold")
    plane.controller.until(lambda p: p.live[job_id].phase is Phase.PENDING and p.live[job_id].on_hold)
    whole = plane.service.events(ANN, job_id, after="0", limit=100, reports=True)
    assert whole["next"] is None
    kinds = [event["type"] for event in whole["events"]]
    assert kinds[:4] == ["JobSubmitted", "Start", "JobStarted", "JobReported"]
    assert kinds.index("preempted") < kinds.index("asked") < kinds.index("JobHeld") < kinds.index("JobStopped")
    texts = {event["type"]: event["text"] for event in whole["events"]}
    assert texts["preempted"] == "gave way to job 9"
    assert texts["asked"] == "ann put it on hold"
    assert texts["JobReported"] == "is 50.0 % done at batch 32"
    after, told = "0", []
    while after is not None:
        page = plane.service.events(ANN, job_id, after=after, limit=2, reports=True)
        told, after = told + page["events"], page["next"]
    assert told == whole["events"]
    quiet = plane.service.events(ANN, job_id, after="0", limit=100, reports=False)["events"]
    assert quiet == [event for event in whole["events"] if event["type"] != "JobReported"]


def test_a_reason_that_the_policy_cannot_compute_is_no_error(plane: StillPlane) -> None:
    class Broken(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise ZeroDivisionError

    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    published = plane.controller.published
    plane.controller.published = replace(published, plan=replace(published.plan, reasons=Broken()))
    assert plane.service.explain(ANN, job_id)["reason"]["code"] == "unknown"


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_queues_tell_their_rules_and_what_they_use(plane: StillPlane) -> None:
    submit(plane, queue="vision", gpus=2, gpu_type="t4")
    plane.controller.runs("1")
    submit(plane, gpus=4)
    plane.controller.runs("2")
    told = {queue["name"]: queue for queue in plane.service.queues()["queues"]}
    assert (told["vision"]["quota"], told["vision"]["used"], told["vision"]["running"]) == (2, 2, 1)
    assert told["default"]["used"] == 4
    assert told["vision"]["users"]["ann"]["used"] == 2


def test_the_summary_counts_what_there_is(plane: StillPlane) -> None:
    submit(plane, array=2, gpus=4, gpu_type="a100")
    plane.controller.until(lambda p: len(p.live) == 2 and any(j.phase is Phase.RUNNING for j in p.live.values()))
    plane.controller.happens(NodeDrained(plane.controller.now(), "n1"))
    plane.controller.until(lambda p: p.nodes["n1"].draining)
    told = plane.service.cluster()
    assert told["jobs"] == {"PENDING": 1, "RUNNING": 1}
    assert told["gpus"] == {"a100": {"total": 4, "used": 4, "free": 0}, "t4": {"total": 2, "used": 0, "free": 0}}
    assert told["nodes"] == {"total": 2, "open": 1, "draining": 1, "lost": 0}


# -- resources ---------------------------------------------------------------------------------------------------------

SPEC = JobSpec(id="1", tenant="ann", gpus_max=8, batch=Batch(32), in_place=True)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (Job(SPEC, 0.0), "PENDING"),
        (Job(SPEC, 0.0, on_hold=True), "HELD"),
        (Job(SPEC, 0.0, failures=1, not_before=20.0), "RECOVERING"),
        (Job(SPEC, 0.0, failures=1, not_before=5.0), "PENDING"),
        (Job(SPEC, 0.0, phase=Phase.STOPPING), "PREEMPTING"),
        (Job(SPEC, 0.0, phase=Phase.STOPPING, cancelled=True), "CANCELLING"),
        (Job(SPEC, 0.0, phase=Phase.SUSPENDED), "SUSPENDED"),
        (Job(SPEC, 0.0, phase=Phase.RESCALING), "RESCALING"),
        (Job(SPEC, 0.0, phase=Phase.FAILED, exit_code=124, detail="time limit"), "TIMEOUT"),
    ],
)
def test_a_state_says_more_than_a_phase(job: Job, state: str) -> None:
    assert state_of(job, 10.0) == state


def test_goodput_is_throughput_times_efficiency_at_the_present_size(plane: StillPlane) -> None:
    (job_id,) = submit(plane, gpus=2, gpu_type="a100", batch=32)
    plane.controller.runs(job_id)
    here = Observation("a100", 1, 2, 64, 0, step_s=0.5, sync_s=0.0)
    elsewhere = Observation("a100", 1, 4, 64, 0, step_s=0.1, sync_s=0.0)
    plane.controller.reports(job_id, 0.1, batch=128, noise_scale=100.0, observations=(here, elsewhere))
    told = plane.service.job(ANN, job_id)
    assert told["goodput"] == pytest.approx(128 / 0.5 * (100 + 32) / (100 + 128))
    assert told["batch"] == 128


def test_an_ended_job_comes_back_from_the_store_as_it_was(plane: StillPlane) -> None:
    (job_id,) = submit(plane, gpus="1-2", labels={"a": "b"})
    plane.controller.runs(job_id)
    plane.controller.reports(job_id, 0.5, batch=64)
    plane.controller.exits(job_id, 3, "boom")
    ended = plane.controller.published.finished[job_id]
    row = plane.store.job(job_id)
    assert row is not None
    kept = job_of(row, ())
    assert outcome_of(kept) == outcome_of(ended)
    published = Published(0, ended.since, {}, {}, {})
    assert resources.job_resource(kept, published, Sight.ALL) == resources.job_resource(ended, published, Sight.ALL)


def test_a_row_without_an_outcome_that_can_be_read_still_is_a_job(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.runs(job_id)
    row = plane.store.job(job_id)
    assert row is not None
    ended = replace(row, phase="cancelled", ended_at=row.submitted_at + 5, outcome={"detail": "it could not be"})
    job = job_of(ended, (Node("n", 1),))
    assert (job.phase, job.since, job.detail) == (Phase.CANCELLED, row.submitted_at + 5, "it could not be")
    unreadable = job_of(replace(ended, document={"nonsense": 1}), ())
    assert (unreadable.id, unreadable.spec.tenant) == (job_id, "ann")


def test_a_default_queue_is_there_without_being_named(tmp_path: Path) -> None:
    with StillPlane(tmp_path, queues=(Queue("vision"),)) as plane:
        submit(plane)
        assert plane.service.cluster()["queues"] == ["vision", "default"]


def test_a_held_job_that_never_ran_is_told_as_held(plane: StillPlane) -> None:
    submit(plane, gpus=4, gpu_type="a100")
    (job_id,) = submit(plane, gpus=4, gpu_type="a100")
    plane.controller.until(lambda p: job_id in p.live)
    plane.controller.happens(JobHeld(plane.controller.now(), job_id))
    plane.controller.until(lambda p: p.live[job_id].on_hold)
    assert plane.service.explain(ANN, job_id)["text"][1] == "is on hold"


def test_a_loop_that_waits_for_a_disk_is_not_ready(plane: StillPlane) -> None:
    assert plane.service.unready() is None
    plane.controller.complaints = ["cannot write: no space left"]
    assert plane.service.unready() == "the loop waits: cannot write: no space left"
