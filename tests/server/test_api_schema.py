"""The API against its own document: whatever is sent, the answer is a documented one, and never our fault."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
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
]

#: Values that exist, and some that do not: random ones would find nothing but 404.
WORDS = {
    "job_id": ["1", "2.0", "3", "77", "x"],
    "node_id": ["n0", "nowhere"],
    "name": ["zoe", "nobody", "bob"],
}

FEW = settings(
    max_examples=12,
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


def _streams(methods: dict[str, Any]) -> bool:
    return "text/event-stream" in methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ann", "eve", "root"])
def test_whatever_is_sent_the_answer_is_a_documented_one(served: tuple[StillPlane, str], user: str) -> None:
    plane, url = served
    headers = {"Authorization": f"Bearer {plane.tokens[user]}"}
    asked = set()
    for found in schemathesis.openapi.from_dict(document(plane)).get_all_operations():
        operation = found.ok()
        asked.add(operation.label)

        @FEW
        @given(operation.as_strategy())
        def fits(case: Any) -> None:
            response = case.call(base_url=url, headers=headers, allow_redirects=False)
            case.validate_response(response, checks=CHECKS)

        fits()
    assert len(asked) > 25


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
