"""The job file: every form of every field, every mistake with its place, and the same again as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fairlead.core.types import Batch
from fairlead.jobfile import (
    AUTO_MOST,
    Gpus,
    InvalidJob,
    JobRequest,
    parse_job,
    request_from,
)
from fairlead.jobfile.fields import TAKEN


def problems(text: str) -> list[tuple[int | None, int | None, str]]:
    """(line, column, field) of everything wrong with a file."""
    with pytest.raises(InvalidJob) as caught:
        parse_job(text)
    return [(problem.line, problem.column, problem.field) for problem in caught.value.problems]


def message(text: str) -> str:
    with pytest.raises(InvalidJob) as caught:
        parse_job(text, source="train.yaml")
    return str(caught.value)


def read(field: str, written: str) -> Any:
    """What a field is when this is written after its colon."""
    return getattr(parse_job(f"run: x\n{field}: {written}\n"), field)


# -- forms -------------------------------------------------------------------------------------------------------------


def test_the_least_a_file_can_hold_is_a_command() -> None:
    assert parse_job("run: python train.py") == JobRequest(run="python train.py")


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("name", "a job", "a job"),
        ("name", "2024", "2024"),
        ("name", '""', ""),
        ("workdir", "~", "~"),
        ("workdir", "~/a", "~/a"),
        ("workdir", "null", None),
        ("env", "{PORT: 8080, DEBUG: true}", {"PORT": "8080", "DEBUG": "true"}),
        ("env", "{COUNTRY: no, LR: 1e-3, AT: 18:00}", {"COUNTRY": "no", "LR": "1e-3", "AT": "18:00"}),
        ("env", '{EMPTY: "", LINES: "a\\nb"}', {"EMPTY": "", "LINES": "a\nb"}),
        ("secrets", "{KEY: hush}", {"KEY": "hush"}),
        ("gpus", "4", Gpus(4, 4, 4)),
        ("gpus", '"4"', Gpus(4, 4, 4)),
        ("gpus", "4-4", Gpus(4, 4, 4)),
        ("gpus", "1-8", Gpus(1, 1, 8)),
        ("gpus", "auto", Gpus(1, 1, AUTO_MOST, auto=True)),
        ("gpu_type", "a100", ("a100",)),
        ("gpu_type", "[a100, NVIDIA H100]", ("a100", "NVIDIA H100")),
        ("queue", "research/vision", "research/vision"),
        ("priority", "-5", -5),
        ("weight", "0.5", 0.5),
        ("preemptible", "no", False),
        ("preemptible", "True", True),
        ("batch", "64", Batch(64)),
        ("batch", "64-4096", Batch(64, 4096)),
        ("batch", "{initial: 8, max: 64, min_per_gpu: 2, max_per_gpu: 16}", Batch(8, 64, 2, 16)),
        ("deadline", "18:00", "18:00"),
        ("deadline", "2026-11-20", "2026-11-20"),
        ("deadline", "2026-11-20 18:00:30Z", "2026-11-20 18:00:30Z"),
        ("deadline", "+6h", "+6h"),
        ("budget", "12.5", 12.5),
        ("time_limit", "1:30:00", 5400.0),
        ("time_limit", "2h30m", 9000.0),
        ("time_limit", "5400", 5400.0),
        ("time_limit", "", None),
        ("restart_on", "137", (137,)),
        ("restart_on", "[1, 137]", (1, 137)),
        ("backoff", "0", 0.0),
        ("grace_period", "2m", 120.0),
        ("depends_on", "42", ("42",)),
        ("array", "3", (0, 1, 2)),
        ("array", "3-5", (3, 4, 5)),
        ("array", "[7, 1]", (7, 1)),
        ("labels", "{a/b: 1.0, c: true}", {"a/b": "1.0", "c": "true"}),
    ],
)  # fmt: skip
def test_a_form_is_read(field: str, written: str, value: object) -> None:
    assert read(field, written) == value


def test_how_gpus_change_is_said_with_a_range_or_auto_only() -> None:
    assert parse_job("{run: x, gpus: 1-2, elastic: restart}").elastic == "restart"
    assert parse_job("{run: x, gpus: auto, elastic: in-place}").elastic == "in-place"
    assert problems("run: x\nelastic: restart") == [(2, 1, "elastic")]
    assert problems("run: x\ngpus: 4\nelastic: in-place") == [(3, 1, "elastic")]
    assert problems("run: x\ngpus: many\nelastic: in-place") == [(2, 7, "gpus")]


def test_a_script_keeps_its_lines_and_a_list_its_words() -> None:
    assert parse_job("run: |\n  a\n  b\n").run == "a\nb\n"
    assert parse_job("run: [python, x.py, --lr, 1e-3, yes, '']").run == ("python", "x.py", "--lr", "1e-3", "yes", "")


def test_json_is_read_also_if_tabs_indent_it_and_if_it_splits_characters() -> None:
    assert parse_job('{\n\t"run": "a\\tb",\n\t"gpus": 2\n}') == JobRequest(run="a\tb", gpus=Gpus(2, 2, 2))
    assert parse_job(json.dumps({"run": "echo \U0001f600"})).run == "echo \U0001f600"
    assert request_from({"run": "echo \ud83d\ude00"}).run == "echo \U0001f600"


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "written"),
    [
        *(("name", written) for written in ("null", "[a]", "x" * 129, '"a\\nb"', '"a\\u202eb"', '"\\x07"', "{a: b}")),
        *(("setup", written) for written in ('"a\\0"', "", "[a]")),
        *(("workdir", written) for written in ('""', '"a\\nb"', "~bob", "[a]")),
        *(("env", written) for written in ("[A]", "A", "{9A: 1}", "{A-B: 1}", "{A: }", "{A: [1]}", '{A: "\\0"}')),
        *(("env", f"{{{name}: 1}}") for name in (*TAKEN, "FAIRLEAD_X", "TORCHELASTIC_RUN_ID")),
        *(("secrets", written) for written in ("{RANK: 1}", "{A: ~}")),
        *(("gpus", written) for written in ("0", "8-1", "0-4", "-1", "1.5", "1000001", "many", "[1]", "1-", "", "0x4")),
        *(("gpu_type", written) for written in ('""', "[a, a]", "{a: b}", "[[a]]")),
        *(("elastic", written) for written in ("yes", "[]")),
        *(("queue", written) for written in ("a b", '""', "x" * 64, "null")),
        *(("priority", written) for written in ("high", "1.5", '"5"', "1000001", "1_000", "9" * 5000)),
        *(("weight", written) for written in ("0", "-1", ".inf", ".nan", "1e999", "true")),
        *(("preemptible", written) for written in ("1", "maybe", '"yes"', "null")),
        *(("batch", written) for written in ("0", "64-8", "big", "{max: 8}", "{initial: 8, max: 4}")),
        *(("batch", written) for written in ("{initial: 1, x: 2}", "[64]", "1.5")),
        *(("deadline", written) for written in ("tomorrow", "24:00", "2026-02-30", "+6", "+6x", "18")),
        *(("deadline", written) for written in ("+999999999d", "[1]", "2026-11-20T25:00", "0001-01-01T00:00+01:00")),
        *(("budget", written) for written in ("-1", "much")),
        *(("time_limit", written) for written in ("0", "1:30", "90 minutes", "-5", "30m2h", "[1]", "9999999999h")),
        *(("restart_on", written) for written in ("0", "256", "[1, 1]", "SIGTERM")),
        *(("backoff", written) for written in ("10m", "301", "null")),
        *(("grace_period", written) for written in ("2d", "-1")),
        *(("depends_on", written) for written in ("a b", "[a, a]", "null")),
        *(("array", written) for written in ("0", "10001", "5-1", "0-10000", "[1, 1]", "[-1]", "x", "{}")),
        *(("array", written) for written in ("1000001-1000002", "")),
        *(("labels", written) for written in ("{a b: c}", "{a: [1]}", "{a: " + "x" * 257 + "}")),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_field_and_place(field: str, written: str) -> None:
    (line, column, where), *others = problems(f"run: x\n{field}: {written}\n")
    assert others == []
    assert line == 2
    assert column is not None
    assert column > len(field)
    assert where.startswith(field)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = "name: [a]\nruns: x\ngpus: 8-1\ngpus: 2\nenv:\n  RANK: 1\n  A-B: 2\nweight: *w\nlabels: !x {}\n"
    assert problems(text) == [
        (None, None, "run"),
        (1, 7, "name"),
        (2, 1, "runs"),
        (3, 7, "gpus"),
        (4, 1, "gpus"),
        (6, 3, "env"),
        (7, 3, "env"),
        (8, 9, ""),
        (9, 9, ""),
    ]


def test_a_long_list_of_mistakes_is_cut_in_the_message_only() -> None:
    with pytest.raises(InvalidJob) as caught:
        request_from({"run": "x", "array": [-1] * 30})
    assert len(caught.value.problems) == 30
    assert str(caught.value).endswith("and 10 more")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("prioriy", "priority"), ("command", "run"), ("envs", "env"), ("timeout", "time_limit"), ("GPUs", "gpus")],
)
def test_an_unknown_field_is_told_with_what_was_meant(name: str, meant: str) -> None:
    assert f"train.yaml, line 2, column 1: there is no field '{name}'; did you mean '{meant}'?" in message(
        f"run: x\n{name}: 5"
    )


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", None, "the file is empty"),
        ("# nothing\n", None, "the file is empty"),
        ("- a", (1, 1), "this is a list of 1"),
        ("null", (1, 1), "this is empty"),
        ("run: x\n---\nrun: y\n", (2, 1), "a second document"),
        ("run: x\nenv:\n\tA: 1\n", (3, 1), "indent by spaces"),
        ("run: python -c 'a': b: c", (1, 19), "quote a text"),
        ("run: x\nname: @me", (2, 7), "quote a text that begins with this character"),
        ('run: x\nname: "a', (2, 9), "not closed"),
        ("run: x\nname: a\0", (2, 8), "U+0000"),
        ('run: x\nname: "\\UFFFFFFFF"', (2, 10), "this is not YAML"),
        ('run: x\nname: "\\ud800"', (2, 7), "half a character"),
        ("run: x\n? [a]\n: b", (2, 3), "a name is expected here"),
        ("run: *.py", (1, 7), "quote a text that begins with *"),
        ("run: *py", (1, 6), "aliases"),
        ("run: !!python/object:os.system x", (1, 6), "tags"),
        ("[" * 100_000, (1, 18), "nested more than 16 deep"),
        ("- " * 100_000, (1, 35), "nested more than 16 deep"),
        ("run: [" + "a," * 30_000 + "]", (1, 50001), "more than 25000 values"),
        ("run: " + "x" * 2**20, None, "larger than 1048576 bytes"),
        ("run: " + "é" * 2**19, None, "larger than 1048576 bytes"),
    ],
)
def test_what_is_no_job_at_all_is_refused(text: str, place: tuple[int, int] | None, words: str) -> None:
    found = message(text)
    assert words in found
    assert ("line" in found.split(":")[0]) == (place is not None)
    if place is not None:
        assert problems(text)[0][:2] == place


def test_aliases_that_multiply_are_refused_without_being_followed() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
    )
    assert "aliases" in message(bomb)


def test_a_secret_is_in_no_message_and_no_text_of_the_request() -> None:
    assert "hush" not in message('run: x\nsecrets: {A: "hush\\0", B: [hush], C: {hush: 1}, D: "hush\\ud800"}')
    assert "hush" not in repr(parse_job("run: x\nsecrets: {A: hush}"))


@pytest.mark.parametrize(
    "written",
    [
        *(
            "hush",
            '"hush"',
            "|\n  hush",
            "[hush]",
            "[{hush: 1, hush: 2}]",
            "{hush=1: A}",
            "{A: 1, B: {hush: 1, hush: 2}}",
        ),
        *("{hush!: 1, hush!: 2}", "{? [hush] : 1}", "{A: !hush!x y}", "{A: !hush x}", "{A: *hush}", "{A: [hush}"),
    ],
)
def test_whatever_is_wrong_at_or_below_secrets_its_words_are_in_no_message(written: str) -> None:
    assert "hush" not in message(f"run: x\nsecrets: {written}\n")


@pytest.mark.parametrize(
    "secrets",
    [
        *("hush", ["hush"], {"hush=1": "A"}, {"A": {"hush": float("nan")}}, {"A": [{"hush": "\ud800"}]}),
        *({"hush!": float("inf")}, {"A": "hush\0"}, {"A": {"hush": {1, 2}}}, {"A": {"hush": {5: 5}}}),
    ],
)
def test_nor_are_they_if_it_came_as_json(secrets: object) -> None:
    with pytest.raises(InvalidJob) as caught:
        request_from({"run": "x", "secrets": secrets})
    assert "hush" not in str(caught.value)
    assert all("hush" not in problem.field for problem in caught.value.problems)
    assert all(problem.field.startswith("secrets") for problem in caught.value.problems)


def test_a_number_that_is_no_mapping_of_secrets_is_not_shown_either() -> None:
    assert "20230917" not in message("run: x\nsecrets: 20230917")
    with pytest.raises(
        InvalidJob, match=r"secrets is something that is not shown; expected a mapping of names"
    ) as told:
        request_from({"run": "x", "secrets": 20230917})
    assert "20230917" not in str(told.value)


def test_the_name_of_a_secret_that_fairlead_sets_itself_is_told() -> None:
    assert "secrets has the name 'RANK'; Fairlead sets it" in message("run: x\nsecrets: {RANK: hush}")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"run": "a\0b"}, "run"),
        ({"run": ["a", "b\0"]}, "run[1]"),
        ({"run": "x", "setup": "a\0"}, "setup"),
        ({"run": "x", "env": {"A": "b\0"}}, "env.A"),
        ({"run": "x", "secrets": {"A": "b\0"}}, "secrets.A"),
        ({"run": "x", "workdir": "/a\0"}, "workdir"),
    ],
)
def test_a_null_character_which_no_process_can_be_given_is_refused(data: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidJob, match=f"{re.escape(field)} is .*control characters") as caught:
        request_from(data)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_a_name_in_env_and_in_secrets_is_told_at_the_secret() -> None:
    assert problems("run: x\nenv: {A: 1}\nsecrets: {B: 1, A: 2}") == [(3, 17, "secrets.A")]


@pytest.mark.parametrize(
    "data",
    [
        *(None, 5, "run", [], [{"run": "x"}], {}, {"run": None}, {"run": b"x"}, {"run": ["x", 5]}, {"run": {"x"}}),
        *({"run": "x", "name": 5}, {"run": "x", 5: 5}, {"run": "x", "priority": "5"}),
        *({"run": "x", "priority": 10**5000}, {"run": "x", "priority": float("inf")}),
        *({"run": "x", "weight": float("nan")}, {"run": "x", "weight": True}, {"run": "x", "preemptible": "true"}),
        *({"run": "x", "name": "\ud800"}, {"run": "x", "secrets": {"A": None}}, {"run": "x", "env": {"A": 10**5000}}),
        *({"run": "x" * 32_001}, {"run": ["x" * 32_000] * 40}, {"run": []}, {"run": [""]}, {"run": " \n"}),
    ],
)  # fmt: skip
def test_json_that_is_no_job_is_refused(data: object) -> None:
    with pytest.raises(InvalidJob):
        request_from(data)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidJob, match="nested"):
        request_from({"run": loop})
