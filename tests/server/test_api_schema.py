"""The API against its own document: whatever is sent, the answer is a documented one, and never our fault."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from still import StillPlane

from fairlead.server.api import Settings

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    allow_header_conformance,
]

#: What is told to whoever runs schemathesis against a server: which operations are streams, and so on.
CONFIG = Path(__file__).parents[2] / "schemathesis.toml"

#: Values that exist, and some that do not: random ones would find nothing but 404.
WORDS = {
    "job_id": ["1", "2.0", "3", "77", "x"],
    "node_id": ["n0", "nowhere"],
    "name": ["zoe", "nobody", "bob"],
}

FEW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StillPlane, str]]:
    generous = Settings(failures_burst=10**6, requests_burst=10**6)
    with StillPlane(tmp_path_factory.mktemp("schema"), generous) as plane:
        plane.submit(time_limit="1h")
        plane.submit(array=2, labels={"a": "b"})
        plane.submit("bob", gpus="1-4")
        plane.write_log("1", b"a line\n")
        plane.controller.exits("1")
        with plane.serving() as url:
            yield plane, url


def document(plane: StillPlane) -> dict[str, Any]:
    """Without streams, which do not end."""
    whole = copy.deepcopy(plane.app.openapi())
    whole["paths"] = {path: methods for path, methods in whole["paths"].items() if not _streams(methods)}
    for path, methods in whole["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and not path.startswith("/static"):
                    known = parameter["schema"].get("enum") or WORDS.get(parameter["name"])
                    parameter["schema"] = {"type": "string", **({"enum": known} if known else parameter["schema"])}
    return whole


def _can_be_wrong(operation: dict[str, Any]) -> bool:
    """Does it take anything but a path, which is wrong by what is there? Wrong job files have tests of their own."""
    if "JobRequest" in str(operation.get("requestBody")):
        return False
    return "requestBody" in operation or any(each["in"] == "query" for each in operation.get("parameters", ()))


def _streams(methods: dict[str, Any]) -> bool:
    return "text/event-stream" in methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user", "mode"),
    [("ann", GenerationMode.POSITIVE), ("eve", GenerationMode.POSITIVE), ("root", GenerationMode.NEGATIVE)],
    ids=str,
)
def test_whatever_is_sent_the_answer_is_a_documented_one(
    served: tuple[StillPlane, str], user: str, mode: GenerationMode
) -> None:
    """Data that fits the document is taken, and data that does not is refused, each by an answer that it names."""
    plane, url = served
    headers = {"Authorization": f"Bearer {plane.tokens[user]}"}
    whole = document(plane)
    schema = schemathesis.openapi.from_dict(whole, config=schemathesis.Config.from_path(CONFIG))
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        asked.add(operation.label)
        if mode is GenerationMode.NEGATIVE and not _can_be_wrong(whole["paths"][operation.path][operation.method]):
            continue

        @FEW
        @given(operation.as_strategy(generation_mode=mode))
        def fits(case: Any) -> None:
            response = case.call(base_url=url, headers=headers, allow_redirects=False)
            case.validate_response(response, checks=CHECKS)

        fits()
    assert len(asked) > 25


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/v1/jobs/1/logs", "GET"),
        ("OPTIONS", "/api/v1/jobs/1/logs", "GET"),
        ("POST", "/api/v1/jobs/1/explain", "GET"),
        ("DELETE", "/api/v1/jobs/1", "GET, PATCH"),
        ("PUT", "/api/v1/jobs", "GET, POST"),
        ("GET", "/api/v1/arrays/2/cancel", "POST"),
        ("GET", "/session", "DELETE, POST"),
        ("TRACE", "/healthz", "GET"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused_with_those_it_has(
    served: tuple[StillPlane, str], method: str, path: str, allowed: str
) -> None:
    response = served[0].ask(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert response.headers["content-type"] == "application/problem+json"


def test_the_document_tells_what_cursors_and_moments_are(served: tuple[StillPlane, str]) -> None:
    """Whatever a list gives as `next` fits the document, and so does every form of `since` in the manual."""
    plane, paths = served[0], served[0].app.openapi()["paths"]

    def fits(path: str, name: str, value: str) -> bool:
        (found,) = (each for each in paths[path]["get"]["parameters"] if each["name"] == name)
        (schema,) = (each for each in found["schema"].get("anyOf", [found["schema"]]) if each.get("type") != "null")
        pattern = found["schema"].get("pattern") or schema["pattern"]
        return re.search(pattern, value) is not None

    live, stored = (plane.get(f"/api/v1/jobs?limit=1{more}")["next"] for more in ("", "&all=true"))
    assert live.startswith("live-")
    assert stored.startswith("all-")
    assert fits("/api/v1/jobs", "cursor", live)
    assert fits("/api/v1/jobs", "cursor", stored)
    assert fits("/api/v1/history", "cursor", stored)
    assert not fits("/api/v1/history", "cursor", live)
    for path, cursor, status in (
        ("/api/v1/jobs?all=true", live, 409),
        ("/api/v1/jobs?all=false", stored, 409),
        ("/api/v1/jobs?all=true", "x", 422),
        ("/api/v1/history?limit=5", live, 409),
        ("/api/v1/history?limit=5", stored, 200),
    ):
        assert plane.ask("GET", f"{path}&cursor={cursor}").status_code == status, (path, cursor)
    for since in ("1700000000", "1700000000.5", "90", "90s", "10m", "2h30m", "1d", "1:30:00"):
        assert fits("/api/v1/jobs/{job_id}/logs", "since", since), since
        assert plane.ask("GET", f"/api/v1/jobs/1/logs?since={since}").status_code == 200, since
    for since in ("yesterday", "%2010m", "1" * 13, "-5", "1e9", ""):
        assert not fits("/api/v1/jobs/{job_id}/logs", "since", since), since
        assert plane.ask("GET", f"/api/v1/jobs/1/logs?since={since}").status_code == 422, since


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/v1/users"), ("PATCH", "/api/v1/jobs/1"), ("POST", "/api/v1/jobs/1/cancel")],
)
def test_a_body_that_is_no_json_in_utf_8_gets_a_documented_answer(
    served: tuple[StillPlane, str], method: str, path: str, body: bytes
) -> None:
    response = served[0].ask(method, path, "root", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    if response.status_code == 400:
        assert response.json()["detail"] == "the body cannot be read; expected JSON in UTF-8"
    for methods in served[0].app.openapi()["paths"].values():
        assert all("400" in operation["responses"] for operation in methods.values())


def test_the_document_describes_every_route_and_says_who_may_ask(served: tuple[StillPlane, str]) -> None:
    whole = served[0].app.openapi()
    assert set(whole["components"]["securitySchemes"]) == {"token", "session"}
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert "security" in operation
            codes = operation["responses"].keys()
            assert "421" in codes
            if operation["security"]:
                assert {"401", "403", "429"} <= codes
            for code, response in operation["responses"].items():
                if int(code) >= 400 and path not in ("/", "/login", "/session"):
                    assert list(response["content"]) == ["application/problem+json"], (method, path, code)


def test_the_document_has_no_loose_ends(served: tuple[StillPlane, str]) -> None:
    whole = served[0].app.openapi()

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(found := value.get("$ref"), str):
                yield found
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    assert set(references(whole)) <= known
