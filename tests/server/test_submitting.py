"""Handing jobs in, without HTTP: what is checked, what is written, arrays, and jobs that wait for others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from still import ANN, BOB, EVE, ROOT, StillPlane, ids, request, submit

from fairlead.core.messages import JobCancelled
from fairlead.jobfile import InvalidJob
from fairlead.server.asking import Ended, Forbidden, NotFound, TooMany, Unavailable
from fairlead.server.listing import Query
from fairlead.server.resources import request_of, spec_of
from fairlead.server.store import Conflict


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        yield plane


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
