"""The job file's table of fields: the schema and the manual follow it, and whatever is read can be written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.core.types import Batch
from fairlead.jobfile import (
    AUTO_MOST,
    FIELDS,
    Gpus,
    InvalidJob,
    JobRequest,
    check_ready,
    parse_job,
    request_from,
    resolve_paths,
    schema,
    to_data,
    to_spec,
)

MANUAL = (Path(__file__).parents[1] / "docs" / "jobs.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", MANUAL, re.MULTILINE | re.DOTALL)
NAMES = [field.name for field in FIELDS]
NOON = 1_800_000_000.0


# -- the table, the schema and the manual ------------------------------------------------------------------------------


def test_the_table_has_every_field_of_a_request_in_its_order() -> None:
    assert [field.name for field in fields(JobRequest)] == NAMES


def test_the_manual_has_every_field_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\| ([^|]*) \|[^|]*\|$", MANUAL, re.MULTILINE))
    assert list(rows) == NAMES
    for name, described in schema()["properties"].items():
        if described.get("default") not in (None, "", [], {}):
            assert json.dumps(described["default"]).strip('"') in rows[name]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_manual_are_jobs(text: str) -> None:
    request = parse_job(text)
    assert request_from(to_data(request, secrets=True)) == request
    assert validator().is_valid(to_data(request, secrets=True))
    assert to_spec(request, job_id="1", user="ann", now=NOON, cluster_gpus=8).command


@pytest.mark.parametrize("text", EXAMPLES[-3:])
def test_an_editor_finds_nothing_wrong_with_the_examples(text: str) -> None:
    data = yaml.safe_load(text)
    assert validator().is_valid(data)
    assert not validator().is_valid({**data, "gpus": "8 GPUs"})
    assert not validator().is_valid({**data, "prioriy": 5})
    assert not validator().is_valid({key: value for key, value in data.items() if key != "run"})
    assert not validator().is_valid({**data, "env": {"RANK": "0"}})
    assert not validator().is_valid({**data, "backoff": 301})


def test_the_schema_describes_every_field_and_allows_no_other() -> None:
    found = schema()
    assert list(found["properties"]) == NAMES
    assert all(described["description"] for described in found["properties"].values())
    assert found["required"] == ["run"]
    assert found["additionalProperties"] is False
    json.dumps(found)


def validator() -> Any:
    return pytest.importorskip("jsonschema_rs").Draft202012Validator(schema())


def test_the_mistakes_in_the_manual_are_told_by_a_program_as_well() -> None:
    (shown,) = re.findall(r"^```console\n\$ fairlead check train.yaml\n(.*?)\n```$", MANUAL, re.MULTILINE | re.DOTALL)
    with pytest.raises(InvalidJob) as caught:
        parse_job("run: x\ngpus: 8-1\nwalltime: 5\nenv: {RANK: 1}\n", source="train.yaml")
    told = re.sub(r"^train\.yaml:(\d+):(\d+): ", r"  line \1, column \2: ", shown, flags=re.MULTILINE)
    assert str(caught.value) == f"train.yaml has 3 problems:\n{told}"


# -- there and back ----------------------------------------------------------------------------------------------------


def lines(most: int, least: int = 0) -> st.SearchStrategy[str]:
    """Text of one line without what turns or controls it."""
    return st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=least, max_size=most)


VISIBLE = lines(20, 1).filter(str.strip)
WORDS = st.from_regex(r"[A-Za-z0-9._/-]{1,63}", fullmatch=True)
VARIABLES = st.dictionaries(st.from_regex(r"[A-Z]_[A-Z0-9_]{0,8}", fullmatch=True), lines(20), max_size=3)
SIZES = st.integers(1, 2**53)
GPUS = st.one_of(
    st.integers(1, 10**6).map(lambda n: Gpus(n, n, n)),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(lambda n: Gpus(min(n), min(n), max(n))),
    st.just(Gpus(1, 1, AUTO_MOST, auto=True)),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    initial, low = draw(SIZES), draw(SIZES)
    return Batch(initial, draw(st.none() | st.integers(initial, 2**53)), low, draw(st.none() | st.integers(low, 2**53)))


@st.composite
def requests(draw: st.DrawFn) -> JobRequest:
    env = draw(VARIABLES)
    gpus = draw(GPUS)
    return JobRequest(
        name=draw(lines(128)),
        run=draw(VISIBLE | st.tuples(VISIBLE, lines(9)) | st.just("a\n\tb\n")),
        setup=draw(lines(9)),
        workdir=draw(st.none() | st.sampled_from(["~", "~/a", "/a", "a/../b"])),
        env=env,
        secrets={name: value for name, value in draw(VARIABLES).items() if name not in env},
        gpus=gpus,
        gpu_type=tuple(draw(st.lists(VISIBLE, max_size=3, unique=True))),
        elastic=draw(st.sampled_from(["in-place", "restart"])) if gpus.elastic else "in-place",
        queue=draw(WORDS),
        priority=draw(st.integers(-(10**6), 10**6)),
        weight=draw(st.floats(0, 1e6, exclude_min=True)),
        preemptible=draw(st.booleans()),
        batch=draw(st.none() | SIZES.map(Batch) | batches()),
        deadline=draw(st.none() | st.sampled_from(["+6h", "18:00", "2026-11-20", "2026-11-20T18:00+01:00"])),
        budget=draw(st.none() | st.floats(0, 1e12)),
        time_limit=draw(st.none() | st.floats(1, 1e8)),
        max_restarts=draw(st.integers(0, 10**6)),
        restart_on=tuple(draw(st.lists(st.integers(1, 255), unique=True, max_size=3))),
        backoff=draw(st.floats(0, 300)),
        grace_period=draw(st.floats(0, 86400)),
        depends_on=tuple(draw(st.lists(WORDS, unique=True, max_size=3))),
        array=tuple(draw(st.lists(st.integers(0, 10**6), unique=True, max_size=5))),
        labels=draw(st.dictionaries(WORDS, lines(20), max_size=3)),
    )


@given(requests())
def test_a_request_survives_its_json_form_and_its_file(request: JobRequest) -> None:
    data = to_data(request, secrets=True)
    assert request_from(json.loads(json.dumps(data))) == request
    assert parse_job(json.dumps(data)) == request
    assert parse_job(yaml.safe_dump(data, allow_unicode=True)) == request
    assert validator().is_valid(data)
    check_ready(resolve_paths(request, Path("/base")))
    to_spec(replace(request, deadline=None), job_id="1", user="ann", now=NOON, cluster_gpus=8)


def test_what_is_shown_has_the_names_of_secrets_and_not_their_values() -> None:
    request = parse_job("{run: x, secrets: {KEY: hush}}")
    assert to_data(request) == {"run": "x", "secrets": {"KEY": None}}
    assert to_data(request, secrets=True) == {"run": "x", "secrets": {"KEY": "hush"}}


# -- anything at all ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SNIPPETS = st.sampled_from([*NAMES, *":-,[]{}?!&*|>%@`'\"\\#~ \n\t0", "\n  ", ": ", "---", "1-8", "\\u", "<<"])
TEXTS = st.text(st.characters()) | st.lists(SNIPPETS).map("".join)


def accepted(read: Callable[[Any], JobRequest], given: Any) -> JobRequest | None:
    """None if it was refused in an orderly way."""
    try:
        return read(given)
    except InvalidJob as refused:
        found = refused
    assert found.problems
    str(found).encode("utf-8")
    return None


@given(TEXTS | TEXTS.map("run: x\n{}".format))
@example('"\\U00110000"')
@example("run: 0o" + "9" * 5000)
@example("%YAML " + "9" * 5000 + ".1\n---\nrun: x")
@example("\ufeffrun: x")
@example('%TAG ! !\n---\nrun: "\\xZZ"')
def test_any_text_is_a_job_or_a_mistake_that_is_told(text: str) -> None:
    request = accepted(parse_job, text)
    if request is not None:
        assert request_from(to_data(request, secrets=True)) == request


@given(JSON | st.dictionaries(st.sampled_from(NAMES), JSON).map(lambda data: {"run": "x", **data}))
def test_any_json_is_a_job_that_the_schema_allows_or_a_mistake_that_is_told(data: Any) -> None:
    request = accepted(request_from, data)
    if request is not None:
        assert validator().is_valid(data)
        assert parse_job(json.dumps(data, indent="\t")) == request
