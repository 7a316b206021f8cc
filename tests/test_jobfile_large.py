"""Job files that are large or nasty: what they may cost before they are refused, and that length changes no meaning."""

from __future__ import annotations

import time

import pytest
import yaml

from fairlead.jobfile import InvalidJob, JobRequest, parse_job, request_from
from fairlead.jobfile.values import MOST_BYTES, MOST_SLOWLY, MOST_WITHOUT_LIBYAML

#: CPU seconds for a file of 1 MiB. A tenth of it is usual, and a parser in Python takes at least twice as much.
AFFORDABLE_S = 0.3

NASTY = {
    "lines of words": "run: " + "a b c\n  " * 130_000,
    "a quote that is not closed": 'run: "' + "a " * 520_000,
    "a script of short lines": "run: |\n" + "  a\n" * 260_000,
    "empty lines": "\n" * MOST_BYTES,
    "comments": "#x\n" * 340_000,
    "fields": "".join(f"runn{number}: 1\n" for number in range(80_000)),
    "a list": "run: x\narray: [" + "1," * 510_000,
    "brackets": "[" * MOST_BYTES,
    "tags": "run: [" + "!a b," * 200_000,
    "aliases": "a: &a x\nb: [" + "*a," * 340_000,
    "names that are the same": "run: x\nenv:\n" + "  a: 1\n" * 140_000,
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
def test_a_nasty_file_costs_little_before_it_is_refused(text: str) -> None:
    def cost_s() -> float:
        begun = time.process_time()
        with pytest.raises(InvalidJob):
            parse_job(text[:MOST_BYTES])
        return time.process_time() - begun

    assert min(cost_s() for _ in range(3)) < AFFORDABLE_S


def test_many_unknown_fields_of_json_cost_little_either() -> None:
    data = {"run": "x", **{f"runn{number}": 1 for number in range(20_000)}}
    begun = time.process_time()
    with pytest.raises(InvalidJob, match="more than 200 fields"):
        request_from(data)
    assert time.process_time() - begun < AFFORDABLE_S


def test_mistakes_are_counted_up_to_a_limit() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job("run: [" + "!a b," * 1000 + "c]")
    assert len(caught.value.problems) == 200
    with pytest.raises(InvalidJob) as caught:
        request_from({"run": [float("nan")] * 1000})
    assert len(caught.value.problems) == 200


LONG = f"\n# {'x' * MOST_SLOWLY}\n"

SAME = [
    "run: python train.py --lr 0.1\ngpus: 1-8\nbatch: {initial: 64, max: 4096}\ndeadline: '18:00'",
    "run: |\n  set -e\n  echo 'a: b'\nenv: {A: \"x\\ty\", B: 'it''s', C: '', D: 08}\nlabels: {team: 日本}",
    'run: [python, "-c", "print(1)"]\npreemptible: no\nrestart_on: [1, 137]\ntime_limit: 2h30m\narray: 3-7',
    'workdir: ~\nrun: "a\\\n  b"\nsetup: >-\n  a\n  b\n',
]
WRONG = [
    "run: x\nenv:\n\tA: 1",
    "run: python -c 'a': b: c",
    "run: *x",
    "run: !x y",
    "run: x\ngpus: many\nnope: 1",
    "run: {a: b]\nname: y",
    "- run: x",
    "run: x\n---\nrun: y",
    'run: "\\q"',
    "run: x\nrun: y",
    "run: x\nname: \x07",
]


@pytest.mark.parametrize("text", SAME)
def test_a_long_file_means_what_a_short_one_does(text: str) -> None:
    assert parse_job(text + LONG) == parse_job(text)


def places(text: str) -> list[tuple[str, int | None]]:
    with pytest.raises(InvalidJob) as caught:
        parse_job(text)
    return [(problem.field, problem.line) for problem in caught.value.problems]


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_in_a_long_file_is_told_where_it_is_in_a_short_one(text: str) -> None:
    before = f"# {'x' * MOST_SLOWLY}\n"
    shifted = [(field, None if line is None else line + 1) for field, line in places(text)]
    assert places(before + text) == shifted


def test_characters_that_json_splits_are_joined_in_a_long_file_too() -> None:
    text = '{"run": "x", "name": "\\ud83d\\ude00"}'
    assert parse_job(text.ljust(2 * MOST_SLOWLY)).name == "\U0001f600"
    with pytest.raises(InvalidJob, match="write the character itself"):
        parse_job(text.ljust(MOST_WITHOUT_LIBYAML + 1))


def test_without_libyaml_a_file_of_ordinary_length_is_read_and_a_long_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse_job("run: x" + LONG) == JobRequest(run="x")
    with pytest.raises(InvalidJob, match="send the job as JSON"):
        parse_job("run: x\n" + "#\n" * MOST_WITHOUT_LIBYAML)


def test_the_largest_array_is_read_as_a_list() -> None:
    indices = list(range(10_000))
    assert parse_job(f"run: x\narray: {indices}").array == tuple(indices)
