"""Every route, state, reason and metric is in the documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from still import StillPlane

from fairlead.server import reasons
from fairlead.server.api.problems import _KINDS
from fairlead.server.auth import Role
from fairlead.server.resources import State

DOCS = Path(__file__).parents[2] / "docs"
API, SECURITY = ((DOCS / name).read_text(encoding="utf-8") for name in ("api.md", "security.md"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StillPlane]:
    with StillPlane(tmp_path_factory.mktemp("docs")) as plane:
        yield plane


def test_every_route_is_described(plane: StillPlane) -> None:
    routes = {f"{m.upper()} {path}" for path, methods in plane.app.openapi()["paths"].items() for m in methods}
    assert len(routes) > 30
    assert {route for route in routes if f"`{route}`" not in API} == set()


def test_no_route_is_described_that_is_not_there(plane: StillPlane) -> None:
    paths = {*plane.app.openapi()["paths"], "/openapi.json"}
    named = set(re.findall(r"`(?:GET|POST|PATCH|DELETE|PUT) (/[^`?]*)`", API + SECURITY))
    assert named <= paths


def test_every_metric_is_described(plane: StillPlane) -> None:
    names = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in plane.app.state.metrics.registry.collect()
    }
    assert len(names) > 10
    assert {name for name in names if f"| `{name}` |" not in API} == set()
    described = set(re.findall(r"^\| `(fairlead_\w+)` \|", API, re.MULTILINE))
    assert described - names == set()


def test_metrics_have_the_names_and_labels_that_prometheus_expects(plane: StillPlane) -> None:
    plane.submit()
    plane.controller.runs("1")
    plane.ask("GET", "/api/v1/jobs")
    bounded = {"queue", "state", "reason", "gpu_type", "policy", "version", "route", "method", "status", "le"}
    for family in plane.app.state.metrics.registry.collect():
        assert family.name.startswith("fairlead_")
        assert not family.name.endswith(("_milliseconds", "_ms"))
        for sample in family.samples:
            assert sample.labels.keys() <= bounded


def test_every_state_role_status_and_reason_is_described() -> None:
    assert {state for state in State if f"`{state}`" not in API} == set()
    assert {role for role in Role if f"`{role}`" not in SECURITY} == set()
    codes = set(re.findall(r'Reason\(\s*"([\w-]+)"', inspect.getsource(reasons)))
    assert len(codes) >= 7
    assert {code for code in codes if f"| `{code}` |" not in API} == set()
    documented = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", API, re.MULTILINE) for code in row.split(",")}
    assert _KINDS.keys() - {400} <= documented
