"""What can be asked of the control plane, without HTTP: against the real loop, over a world that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from still import StillPlane

from fairlead.core.messages import JobCancelled, JobHeld, NodeDrained
from fairlead.core.types import Batch, Job, JobSpec, Node, Observation, Phase
from fairlead.jobfile import InvalidJob, JobRequest, request_from
from fairlead.policies.middleware.queues import Queue
from fairlead.server import resources
from fairlead.server.asking import Ended, Forbidden, NotFound, TooMany, Unavailable
from fairlead.server.auth import Caller, Role, Sight
from fairlead.server.listing import Query
from fairlead.server.published import Published
from fairlead.server.resources import State, job_of, outcome_of, request_of, spec_of, state_of
from fairlead.server.store import Conflict

ANN, BOB = Caller("ann", Role.USER), Caller("bob", Role.USER)
ROOT, EVE = Caller("root", Role.ADMIN), Caller("eve", Role.VIEWER)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        yield plane


def request(**fields: Any) -> JobRequest:
    return request_from({"run": "python train.py", **fields})


def submit(plane: StillPlane, caller: Caller = ANN, key: str | None = None, **fields: Any) -> list[str]:
    prepared = plane.service.prepare(caller, request(**fields))
    ids: list[str] = list(plane.service.submit(prepared, key=key).result().ids)
    return ids


def ids(page: dict[str, Any]) -> list[str]:
    return [job["id"] for job in page["jobs"]]


# -- submitting --------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_there_before_the_loop_has_heard_of_it(plane: StillPlane) -> None:
    plane.controller.stop()
    (job_id,) = submit(plane, name="first")
    assert plane.service.job(ANN, job_id)["state"] == "PENDING"
    assert ids(plane.service.jobs(ANN, Query())) == [job_id]
    assert plane.store.requests()[-1].body == {"ids": [job_id]}


def test_a_submitted_job_runs(plane: StillPlane) -> None:
    (job_id,) = submit(plane, gpus="1-2", labels={"model": "cnn"})
    plane.controller.runs(job_id)
    told = plane.service.job(ANN, job_id)
    assert (told["state"], told["user"], told["gpus"]["current"]) == ("RUNNING", "ann", 1)
    assert told["document"] == {"run": "python train.py", "gpus": "1-2", "labels": {"model": "cnn"}}


def test_the_same_key_is_the_same_submission(plane: StillPlane) -> None:
    assert submit(plane, key="k") == submit(plane, key="k") == ["1"]
    with pytest.raises(Conflict, match="'k'"):
        submit(plane, key="k", name="another")
    assert submit(plane, BOB, key="k") == ["2"]


def test_a_key_is_known_to_the_store_when_nobody_else_remembers(plane: StillPlane) -> None:
    """As after a restart: the same submission would be refused now, but it was taken in before."""
    wanted = request(name="first")
    (job_id,) = submit(plane, key="k", name="first")
    again = plane.service.repeated_long_ago(ANN, wanted, "k")
    assert again is not None
    assert (again.ids, again.fresh) == ((job_id,), False)
    assert plane.service.repeated_long_ago(ANN, request(name="another"), "k") is None
    assert plane.service.repeated_long_ago(BOB, wanted, "k") is None


def test_what_is_being_written_counts_towards_the_limit(tmp_path: Path) -> None:
    with StillPlane(tmp_path, most_live_jobs_each=10) as plane:
        plane.service._submissions._reserve("ann", 8)  # on its way to the disk
        plane.service._submissions._counted_at = -1e9  # and then they are counted anew
        with pytest.raises(TooMany, match="you have 8 jobs"):
            submit(plane, array=3)
        plane.service._submissions._release("ann", 8)
        assert len(submit(plane, array=3)) == 3
        with pytest.raises(TooMany, match="you have 3 jobs"):
            submit(plane, array=8)


def test_a_relative_deadline_does_not_make_a_repeat_another_submission(plane: StillPlane) -> None:
    assert submit(plane, key="k", deadline="+6h") == submit(plane, key="k", deadline="+6h")


def test_an_array_is_many_jobs_in_ascending_order(plane: StillPlane) -> None:
    assert submit(plane, array=[7, 1, 5]) == ["1.1", "1.5", "1.7"]
    assert plane.service.job(ANN, "1.5")["document"] == {"run": "python train.py"}


def test_a_viewer_changes_nothing(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    with pytest.raises(Forbidden, match="viewer"):
        submit(plane, EVE)
    with pytest.raises(Forbidden, match="viewer"):
        plane.service.wish(EVE, job_id, "cancel")


def test_a_queue_that_is_not_there_is_refused_with_a_hint(plane: StillPlane) -> None:
    with pytest.raises(InvalidJob, match="did you mean 'vision'"):
        submit(plane, queue="vison")


def test_a_working_directory_has_to_mean_the_same_everywhere(plane: StillPlane) -> None:
    with pytest.raises(InvalidJob, match="relative"):
        submit(plane, workdir="here")


def test_a_job_that_could_never_run_is_refused(plane: StillPlane) -> None:
    with pytest.raises(InvalidJob, match="4 x a100"):
        submit(plane, gpus=5)
    with pytest.raises(InvalidJob, match="h100"):
        submit(plane, gpu_type="h100")


def test_gpus_auto_may_use_the_largest_type(plane: StillPlane) -> None:
    submit(plane, gpus="auto")
    submit(plane, gpus="auto", gpu_type="t4")
    assert [plane.service.job(ANN, job_id)["gpus"]["max"] for job_id in ("1", "2")] == [4, 2]


def test_nobody_may_have_too_many_jobs(tmp_path: Path) -> None:
    with StillPlane(tmp_path, most_live_jobs_each=3) as plane:
        submit(plane, array=2)
        with pytest.raises(TooMany, match="limit of 3"):
            submit(plane, array=2)
        submit(plane)
        submit(plane, BOB)


def test_a_repeat_does_not_count_twice(tmp_path: Path) -> None:
    with StillPlane(tmp_path, most_live_jobs_each=2) as plane:
        assert [submit(plane, key="k") for _ in range(2)] == [["1"]] * 2
        assert submit(plane) == ["2"]


def test_a_repeat_is_the_same_submission_even_if_it_could_not_be_made_any_more(tmp_path: Path) -> None:
    with StillPlane(tmp_path, most_live_jobs_each=2) as plane:
        submit(plane)
        job = {"run": "x", "depends_on": ["1"]}
        first, second = (
            plane.ask("POST", "/api/v1/jobs", json=job, headers={"Idempotency-Key": "k"}) for _ in range(2)
        )
        assert (first.status_code, second.status_code) == (201, 200)
        plane.controller.exits("1", 3)
        third = plane.ask("POST", "/api/v1/jobs", json=job, headers={"Idempotency-Key": "k"})
        assert (third.status_code, third.json()["ids"]) == (200, ["2"])


def test_nothing_is_taken_in_when_the_loop_is_dead(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    plane.controller.fail("the disk is full")
    with pytest.raises(Unavailable, match="the disk is full"):
        submit(plane)
    with pytest.raises(Unavailable, match="the disk is full"):
        plane.service.wish(ANN, job_id, "cancel")
    assert plane.service.unready() == "the loop has stopped: the disk is full"


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_a_wish_for_an_array_is_one_for_its_jobs_that_have_not_ended(plane: StillPlane) -> None:
    first, second, third = submit(plane, array=3)
    plane.controller.exits(first)
    assert plane.service.array(ANN, "1") == {"id": "1", "ids": [first, second, third]}
    assert plane.service.wish_for_array(ANN, "1", "hold") == {"id": "1", "ids": [second, third]}
    plane.controller.until(lambda p: p.live[second].on_hold and p.live[third].on_hold)
    assert "on hold" in str(plane.service.explain(ANN, third)["text"])
    plane.service.wish_for_array(ANN, "1", "cancel", why="enough")
    plane.controller.until(lambda p: second in p.finished and third in p.finished)
    with pytest.raises(Ended, match="array 1 have ended"):
        plane.service.wish_for_array(ANN, "1", "cancel")


def test_an_array_is_nobody_elses_business(plane: StillPlane) -> None:
    submit(plane, array=2)
    (alone,) = submit(plane)
    for caller, number in ((BOB, "1"), (ANN, alone), (ANN, "9"), (ANN, "1.0"), (ANN, "x"), (ANN, "9" * 30)):
        with pytest.raises(NotFound, match="there is no array"):
            plane.service.wish_for_array(caller, number, "cancel")
    with pytest.raises(Forbidden):
        plane.service.wish_for_array(EVE, "1", "cancel")
    with pytest.raises(Forbidden, match="administrators"):
        plane.service.wish_for_array(ANN, "1", "priority", priority=5)


def test_who_names_an_array_where_a_job_is_meant_is_told_its_jobs(plane: StillPlane) -> None:
    submit(plane, array=3)
    with pytest.raises(NotFound, match=r"1 is an array, and its jobs are 1\.0 to 1\.2"):
        plane.service.job(ANN, "1")
    with pytest.raises(NotFound) as error:
        plane.service.job(BOB, "1")
    assert "array" not in str(error.value)


# -- depending on others -----------------------------------------------------------------------------------------------


def test_a_job_waits_for_those_it_depends_on(plane: StillPlane) -> None:
    (first,) = submit(plane)
    (second,) = submit(plane, depends_on=[first])
    plane.controller.until(lambda p: second in p.live)
    assert plane.service.job(ANN, second)["waits_for"] == [first]
    assert plane.service.explain(ANN, second)["reason"]["code"] == "dependency"
    plane.controller.exits(first)
    plane.controller.runs(second)


def test_the_number_of_an_array_means_all_its_jobs(plane: StillPlane) -> None:
    parts = submit(plane, array=3)
    (last,) = submit(plane, depends_on=["1", parts[2]])
    plane.controller.until(lambda p: last in p.live)
    assert plane.service.job(ANN, last)["waits_for"] == parts
    with pytest.raises(InvalidJob) as error:
        submit(plane, BOB, depends_on=["1"])
    assert [problem.text for problem in error.value.problems] == ["you have no job '1' that it could depend on"]


def test_nobody_waits_for_more_than_can_be_written_down(plane: StillPlane) -> None:
    submit(plane, array=1001, gpus=4)
    submit(plane, array=1000, gpus=4)
    with pytest.raises(InvalidJob, match="2001 jobs; at most 2000"):
        submit(plane, depends_on=["1", "2"])
    with pytest.raises(InvalidJob, match="no job '01'"):
        submit(plane, depends_on=["01"])


def test_what_is_told_offhand_is_what_the_store_would_have_told(plane: StillPlane) -> None:
    """A restart reads from the store what was handed over: both must be the same job."""
    (before,) = submit(plane)
    fields = {"gpus": "1-4", "gpu_type": ["a100"], "batch": "32-256", "priority": -1, "weight": 2, "time_limit": "2h"}
    extra = {"deadline": "+6h", "budget": 9, "max_restarts": 1, "restart_on": [3], "grace_period": "5s"}
    (job_id,) = submit(plane, depends_on=[before], labels={"a": "b"}, secrets={"K": "v"}, **fields, **extra)
    told = plane.controller.until(lambda p: job_id in p.live).live[job_id].spec
    row = plane.store.job(job_id)
    assert row is not None
    nodes = plane.service.published.nodes.values()
    assert told == spec_of(request_of(row), job_id=job_id, user="ann", at=row.submitted_at, nodes=nodes)


def test_what_has_succeeded_need_not_be_waited_for(plane: StillPlane) -> None:
    (first,) = submit(plane)
    plane.controller.exits(first)
    (second,) = submit(plane, depends_on=[first])
    assert plane.service.job(ANN, second)["depends_on"] == []
    plane.controller.runs(second)


def test_nothing_depends_on_what_has_failed_is_cancelled_or_is_not_there(plane: StillPlane) -> None:
    failed, cancelled = submit(plane)[0], submit(plane)[0]
    plane.controller.exits(failed, 3)
    plane.service.wish(ANN, cancelled, "cancel")
    plane.controller.until(lambda p: cancelled in p.finished)
    with pytest.raises(InvalidJob) as error:
        submit(plane, depends_on=[failed, cancelled, "99", ";DROP-TABLE"])
    assert [problem.field for problem in error.value.problems] == [f"depends_on[{i}]" for i in range(4)]
    assert "has failed" in error.value.problems[0].text
    assert "was cancelled" in error.value.problems[1].text


def test_somebody_elses_job_cannot_be_depended_on_and_is_not_confirmed(plane: StillPlane) -> None:
    (job_id,) = submit(plane)
    with pytest.raises(InvalidJob) as theirs:
        submit(plane, BOB, depends_on=[job_id])
    with pytest.raises(InvalidJob) as nobodys:
        submit(plane, BOB, depends_on=["9"])
    assert str(theirs.value).replace(job_id, "9") == str(nobodys.value)
    submit(plane, ROOT, depends_on=[job_id])


def test_a_job_whose_dependency_fails_later_can_be_told_so(plane: StillPlane) -> None:
    (first,) = submit(plane)
    (second,) = submit(plane, depends_on=[first])
    plane.controller.until(lambda p: second in p.live)
    plane.controller.exits(first, 3)
    told = plane.service.explain(ANN, second)
    assert told["reason"]["code"] == "dependency-failed"
    assert "submit it again" in told["text"][-1]


def test_a_cancelled_job_says_who_did_it_and_why_wherever_it_is_told(plane: StillPlane) -> None:
    (job_id,), (plain,) = submit(plane), submit(plane)
    plane.service.wish(ANN, job_id, "cancel", why="enough of it")
    plane.service.wish(ROOT, plain, "cancel")
    plane.controller.until(lambda p: {job_id, plain} <= p.finished.keys())
    told = plane.service.job(ANN, job_id)["reason"]
    assert (told["code"], told["text"]) == ("cancelled", "was cancelled by ann: enough of it")
    assert plane.service.explain(ANN, job_id)["text"][1] == "was cancelled by ann: enough of it"
    assert plane.service.job(ANN, plain)["reason"]["text"] == f"was cancelled by {ROOT.name}"
    last = plane.service.events(ANN, job_id, after="0", limit=100, reports=True)["events"][-1]
    assert "later" not in last["text"]


def test_a_job_that_was_cancelled_for_its_dependency_says_so(plane: StillPlane) -> None:
    (first,) = submit(plane)
    (second,) = submit(plane, depends_on=[first])
    plane.controller.until(lambda p: second in p.live)
    why = f"job {first}, on which it depends, has failed"
    plane.controller.happens(JobCancelled(plane.controller.now(), second, "fairlead", why))
    plane.controller.until(lambda p: second in p.finished)
    told = plane.service.explain(ANN, second)
    assert told["reason"]["code"] == "dependency-failed"
    assert told["text"][1] == f"was cancelled by fairlead: {why}"
    assert "submit it again" in told["text"][2]


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
    assert row["reason"] == {"code": "placed", "text": "placed", "numbers": {}}
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
    assert told["reason"]["numbers"] == {"needs": 2.0, "free": 1.0, "total": 4.0}
    assert told["text"][1].startswith("needs 2 GPUs, 1 is free")


def test_a_job_that_failed_waits_for_its_next_try_and_says_until_when(plane: StillPlane) -> None:
    (job_id,) = submit(plane, backoff=300)
    plane.controller.exits(job_id, 7, "boom", final=False)
    told = plane.service.explain(ANN, job_id)
    assert told["reason"]["code"] == "backoff"
    assert "exit code 7" in told["reason"]["text"]
    assert plane.service.job(ANN, job_id)["state"] == "RECOVERING"


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
