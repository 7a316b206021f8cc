"""The routes, and the form of their answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from still import StillPlane

from fairlead.core.types import Phase
from fairlead.jobfile import schema


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[StillPlane]:
    with StillPlane(tmp_path) as plane:
        yield plane


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StillPlane]:
    """For tests that change nothing. There is one job."""
    with StillPlane(tmp_path_factory.mktemp("shared")) as plane:
        plane.submit()
        yield plane


def assert_problem(response: Any, status: int) -> dict[str, Any]:
    """It is one, by RFC 9457."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert {"type", "title", "status", "detail", "instance"} <= body.keys()
    assert body["status"] == status
    assert body["type"].startswith("urn:fairlead:")
    assert body["instance"] == response.request.url.path
    return body


# -- submitting --------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_as_json(plane: StillPlane) -> None:
    response = plane.ask("POST", "/api/v1/jobs", json={"run": ["python", "train.py"], "name": "first", "gpus": 2})
    assert response.status_code == 201
    body = response.json()
    assert body["ids"] == ["1"]
    assert body["answer"] is None
    (job,) = body["jobs"]
    assert (job["id"], job["name"], job["command"], job["gpus"]["min"]) == ("1", "first", ["python", "train.py"], 2)


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"])
def test_a_job_is_submitted_as_a_file(plane: StillPlane, kind: str) -> None:
    text = "name: first\nrun: python train.py\ntime_limit: 2h30m\n"
    response = plane.ask("POST", "/api/v1/jobs", content=text, headers={"Content-Type": kind})
    assert response.status_code == 201
    assert plane.get("/api/v1/jobs/1")["document"]["time_limit"] == 9000


def test_a_repeat_with_the_same_key_answers_200_and_the_same_ids(plane: StillPlane) -> None:
    one, two = (
        plane.ask("POST", "/api/v1/jobs", json={"run": "x", "array": 3}, headers={"Idempotency-Key": "k-1"})
        for _ in range(2)
    )
    assert (one.status_code, two.status_code) == (201, 200)
    assert one.json()["ids"] == two.json()["ids"] == ["1.0", "1.1", "1.2"]
    assert [job["id"] for job in two.json()["jobs"]] == ["1.0", "1.1", "1.2"]
    other = plane.ask("POST", "/api/v1/jobs", json={"run": "y"}, headers={"Idempotency-Key": "k-1"})
    assert "k-1" in assert_problem(other, 409)["detail"]


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\xff"])
def test_a_key_is_a_word(shared: StillPlane, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    assert_problem(shared.ask("POST", "/api/v1/jobs", json={"run": "x"}, headers=headers), 422)


def test_every_mistake_in_a_file_is_told_with_its_place(plane: StillPlane) -> None:
    text = "run: x\ngpus: many\npriorty: 3\n"
    body = assert_problem(
        plane.ask("POST", "/api/v1/jobs", content=text, headers={"Content-Type": "application/yaml"}), 422
    )
    assert [(error["field"], error["line"]) for error in body["errors"]] == [("gpus", 2), ("priorty", 3)]
    assert "did you mean 'priority'" in body["errors"][1]["text"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"NaN",
        b'{"run": "x", "priority": NaN}',
        b'{"run": "x", "priority": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"run": "\\ud800"}',
        b'{"run": "x", "name": "\\u0000"}',
        b'{"run": "x", "gpus": 1e400}',
        b'{"run": "x", "array": 100000000}',
        b'{"run": {"a": ' * 50,
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
@pytest.mark.parametrize("route", ["/api/v1/jobs", "/api/v1/check"])
def test_nonsense_is_refused_and_never_our_fault(shared: StillPlane, body: bytes, kind: str, route: str) -> None:
    assert_problem(shared.ask("POST", route, content=body, headers={"Content-Type": kind}), 422)


def test_a_body_of_another_kind_is_refused(plane: StillPlane) -> None:
    response = plane.ask("POST", "/api/v1/jobs", content=b"<run/>", headers={"Content-Type": "application/xml"})
    assert "application/yaml" in assert_problem(response, 415)["detail"]


# -- deadlines and budgets ---------------------------------------------------------------------------------------------


def test_a_deadline_that_can_be_met_is_answered_so(plane: StillPlane) -> None:
    body = plane.ask("POST", "/api/v1/jobs", json={"run": "x", "deadline": "+2h", "time_limit": "1h"}).json()
    assert body["answer"]["verdict"] == "feasible"
    assert body["answer"]["forecast"]["ends_at"] is not None


def test_a_deadline_that_cannot_be_met_is_taken_in_with_the_answer_unless_strict(plane: StillPlane) -> None:
    job = {"run": "x", "deadline": "+10m", "time_limit": "1h"}
    strict = assert_problem(plane.ask("POST", "/api/v1/jobs?strict=true", json=job), 422)
    assert strict["answer"]["verdict"] == "infeasible"
    assert plane.get("/api/v1/jobs")["jobs"] == []
    response = plane.ask("POST", "/api/v1/jobs", json=job)
    assert response.status_code == 201
    assert response.json()["answer"]["verdict"] == "infeasible"
    assert len(plane.get("/api/v1/jobs")["jobs"]) == 1


def test_a_job_of_unknown_length_has_an_unknown_answer_and_is_taken_in_even_if_strict(plane: StillPlane) -> None:
    response = plane.ask("POST", "/api/v1/jobs?strict=true", json={"run": "x", "deadline": "+2h"})
    assert response.status_code == 201
    assert response.json()["answer"]["verdict"] == "unknown"


def test_a_deadline_that_is_past_is_a_mistake(plane: StillPlane) -> None:
    body = assert_problem(plane.ask("POST", "/api/v1/jobs", json={"run": "x", "deadline": "2020-01-01"}), 422)
    assert body["errors"][0]["field"] == "deadline"


def test_a_check_tells_what_would_be_and_submits_nothing(plane: StillPlane) -> None:
    plane.submit(gpus=4, gpu_type="a100", time_limit="1h")
    plane.controller.runs("1")
    job = {"run": "x", "gpus": 4, "gpu_type": "a100", "time_limit": "1h", "deadline": "+3h", "secrets": {"K": "hush"}}
    response = plane.ask("POST", "/api/v1/check", json=job)
    assert response.status_code == 200
    body = response.json()
    assert body["answer"]["verdict"] == "feasible"
    assert body["forecast"]["starts_at"] > plane.controller.now() + 1800
    assert body["document"]["secrets"] == {"K": None}
    assert len(plane.get("/api/v1/jobs")["jobs"]) == 1


# -- looking -----------------------------------------------------------------------------------------------------------


def test_lists_are_paged_by_the_cursor_of_the_page_before(plane: StillPlane) -> None:
    plane.submit(array=5)
    page = plane.get("/api/v1/jobs?limit=3")
    rest = plane.get("/api/v1/jobs", params={"limit": 3, "cursor": page["next"]})
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ["1.4", "1.3", "1.2", "1.1", "1.0"]
    assert rest["next"] is None


def test_lists_take_several_states_and_labels(plane: StillPlane) -> None:
    plane.submit(labels={"a": "1", "b": "x=y"})
    plane.submit(labels={"a": "1"})
    plane.controller.exits("2")
    query = "?state=RUNNING&state=SUCCEEDED&label=a=1"
    assert [job["id"] for job in plane.get(f"/api/v1/jobs{query}")["jobs"]] == ["2", "1"]
    assert [job["id"] for job in plane.get(f"/api/v1/jobs{query}&label=b=x=y")["jobs"]] == ["1"]
    assert [job["id"] for job in plane.get("/api/v1/history")["jobs"]] == ["2"]
    assert [job["id"] for job in plane.get("/api/v1/jobs?all=true")["jobs"]] == ["2", "1"]


@pytest.mark.parametrize(
    "query",
    ["state=running", "limit=0", "limit=1001", "limit=x", "cursor=x", "label=x", "label==x", "user=%00", "name=%0a"],
)
def test_a_query_that_makes_no_sense_is_told_which_part(shared: StillPlane, query: str) -> None:
    body = assert_problem(shared.ask("GET", f"/api/v1/jobs?{query}"), 422)
    assert query.partition("=")[0] in body["detail"]


def test_the_job_itself_its_story_its_reason_and_its_future(plane: StillPlane) -> None:
    plane.submit(time_limit="1h")
    plane.controller.runs("1")
    assert plane.get("/api/v1/jobs/1")["state"] == "RUNNING"
    assert [e["type"] for e in plane.get("/api/v1/jobs/1/events")["events"]] == ["JobSubmitted", "Start", "JobStarted"]
    assert plane.get("/api/v1/jobs/1/explain")["reason"]["code"] == "placed"
    eta = plane.get("/api/v1/jobs/1/eta")
    assert 3000 < eta["ends_at"] - plane.controller.now() < 4000
    assert plane.get("/api/v1/jobs/1")["ends_at"] == eta["ends_at"]


def test_the_future_of_a_job_of_unknown_length_is_unknown_and_says_why(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    eta = plane.get("/api/v1/jobs/1/eta")
    assert eta["ends_at"] is None
    assert "time_limit" in eta["why"]


def test_a_job_that_has_ended_needs_no_forecast(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.exits("1")
    eta = plane.get("/api/v1/jobs/1/eta")
    assert eta["ends_at"] == plane.get("/api/v1/jobs/1")["ended_at"]


@pytest.mark.parametrize("job", ["2", "1.0", "x", "%2e%2e", "0", "-1", "9" * 30, "1%00"])
@pytest.mark.parametrize("part", ["", "/events", "/explain", "/eta", "/logs", "/logs/stream"])
def test_a_job_that_is_not_there_is_not_found(shared: StillPlane, job: str, part: str) -> None:
    assert_problem(shared.ask("GET", f"/api/v1/jobs/{job}{part}"), 404)


# -- changing ----------------------------------------------------------------------------------------------------------


def test_a_job_is_cancelled_held_released_and_reprioritised(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    assert plane.ask("PATCH", "/api/v1/jobs/1", json={"priority": 5}).status_code == 403
    assert plane.ask("PATCH", "/api/v1/jobs/1", json={"priority": -5}).status_code == 202
    plane.controller.until(lambda p: p.live["1"].spec.priority == -5)
    assert plane.ask("POST", "/api/v1/jobs/1/hold").status_code == 202
    plane.controller.until(lambda p: p.live["1"].on_hold)
    assert plane.ask("POST", "/api/v1/jobs/1/resume").status_code == 202
    plane.controller.runs("1")
    response = plane.ask("POST", "/api/v1/jobs/1/cancel", json={"why": "no need"})
    assert (response.status_code, response.json()["id"]) == (202, "1")
    plane.controller.until(lambda p: p.job("1").phase is Phase.CANCELLED)  # type: ignore[union-attr]
    assert "SUCCEEDED" not in assert_problem(plane.ask("POST", "/api/v1/jobs/1/cancel"), 409)["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/api/v1/jobs/1", {"priority": 1.5}),
        ("PATCH", "/api/v1/jobs/1", {"priority": "1"}),
        ("PATCH", "/api/v1/jobs/1", {"priority": 10**9}),
        ("PATCH", "/api/v1/jobs/1", {"priority": 1, "name": "x"}),
        ("PATCH", "/api/v1/jobs/1", {}),
        ("POST", "/api/v1/jobs/1/cancel", {"why": "a\nb"}),
        ("POST", "/api/v1/jobs/1/cancel", {"why": "x" * 501}),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(shared: StillPlane, method: str, path: str, body: Any) -> None:
    assert_problem(shared.ask(method, path, json=body), 422)


def test_a_change_that_is_not_there_is_not_found(shared: StillPlane) -> None:
    for path in ("/api/v1/jobs/1/explode", "/api/v1/arrays/1/explode", "/api/v1/jobs/1/cancelled"):
        assert_problem(shared.ask("POST", path), 404)


def test_an_admin_drains_and_opens_a_node(plane: StillPlane) -> None:
    assert_problem(plane.ask("POST", "/api/v1/nodes/n0/drain"), 403)
    assert plane.ask("POST", "/api/v1/nodes/n0/drain", "root", json={"by": 4e9}).status_code == 202
    plane.controller.until(lambda p: p.nodes["n0"].draining)
    (first, _) = plane.get("/api/v1/nodes")["nodes"]
    assert (first["draining"], first["drain_by"], first["free"]) == (True, 4e9, 0)
    assert plane.ask("POST", "/api/v1/nodes/n0/undrain", "root").status_code == 202
    assert_problem(plane.ask("POST", "/api/v1/nodes/n9/drain", "root"), 404)
    for by in (-1, "soon", 1e300):
        assert_problem(plane.ask("POST", "/api/v1/nodes/n0/drain", "root", json={"by": by}), 422)


# -- users -------------------------------------------------------------------------------------------------------------


def test_an_admin_adds_and_removes_users(plane: StillPlane) -> None:
    response = plane.ask("POST", "/api/v1/users", "root", json={"name": "zoe", "role": "viewer"})
    assert response.status_code == 201
    plane.tokens["zoe"] = response.json()["token"]
    assert plane.get("/api/v1/whoami", "zoe") == {"name": "zoe", "role": "viewer", "session": False}
    listed = plane.get("/api/v1/users", "root")["users"]
    assert [user["name"] for user in listed] == ["ann", "bob", "eve", "root", "zoe"]
    assert not any(token in str(listed) for token in plane.tokens.values())
    assert plane.ask("DELETE", "/api/v1/users/zoe", "root").status_code == 204
    assert_problem(plane.ask("GET", "/api/v1/whoami", "zoe"), 401)
    assert_problem(plane.ask("DELETE", "/api/v1/users/zoe", "root"), 404)
    assert_problem(plane.ask("DELETE", "/api/v1/users/root", "root"), 409)
    assert_problem(plane.ask("POST", "/api/v1/users", "root", json={"name": "ann"}), 409)


@pytest.mark.parametrize("body", [{"name": "A"}, {"name": "../x"}, {"name": "zoe", "role": "king"}, {"name": 1}, []])
def test_a_user_that_makes_no_sense_is_refused(shared: StillPlane, body: Any) -> None:
    assert_problem(shared.ask("POST", "/api/v1/users", "root", json=body), 422)


@pytest.mark.parametrize("user", ["ann", "eve"])
def test_only_an_admin_deals_with_users(shared: StillPlane, user: str) -> None:
    assert_problem(shared.ask("GET", "/api/v1/users", user), 403)
    assert_problem(shared.ask("POST", "/api/v1/users", user, json={"name": "zoe"}), 403)
    assert_problem(shared.ask("DELETE", "/api/v1/users/bob", user), 403)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_the_schema_of_a_job_is_told(plane: StillPlane) -> None:
    assert plane.get("/api/v1/schema/job") == schema()


def test_a_method_that_is_not_allowed_says_which_are(plane: StillPlane) -> None:
    response = plane.ask("PUT", "/api/v1/jobs")
    assert_problem(response, 405)
    assert response.headers["allow"] == "GET, POST"


def test_ready_is_more_than_healthy(plane: StillPlane) -> None:
    assert plane.get("/readyz", None) == plane.get("/healthz", None) == {"status": "ok"}
    plane.controller.ready = False
    assert plane.ask("GET", "/healthz", None).status_code == 200
    assert "starting" in assert_problem(plane.ask("GET", "/readyz", None), 503)["detail"]
    plane.controller.ready = True
    plane.controller.fail("no more disk")
    assert "no more disk" in assert_problem(plane.ask("GET", "/readyz", None), 503)["detail"]


def test_an_error_of_ours_is_a_problem_with_a_reference_and_nothing_else(
    plane: StillPlane, caplog: pytest.LogCaptureFixture
) -> None:
    plane.controller.published = None  # type: ignore[assignment]  # as if something had gone very wrong
    detail = assert_problem(plane.ask("GET", "/api/v1/nodes"), 500)["detail"]
    assert "NoneType" not in detail
    reference = detail.rpartition(" ")[2]
    assert any(reference in record.getMessage() and record.exc_info for record in caplog.records)


def test_a_database_that_is_gone_is_said_to_be_and_not_where_it_was(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.stop()
    plane.store.close()
    problem = assert_problem(plane.ask("POST", "/api/v1/jobs", json={"run": "x"}), 503)
    assert str(plane.directory) not in str(problem)
