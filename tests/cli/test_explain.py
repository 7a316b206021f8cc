"""`fairlead explain`: what it says of jobs that a decision is not about, and how it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def explain(run: Run, trace: Path) -> Callable[..., Result]:
    """Of the six jobs of the small trace, after 15 minutes: d and e have ended, and f is about to come."""
    return lambda *options: run("explain", trace, "--cluster", "2x4", "--costs", "none", "--at", "10m", *options)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("d", "error: job d has ended before the decision after 15m 00s; live then: a, b and f"),
        ("nobody", "error: there is no job 'nobody' in "),
    ],
)
def test_a_job_the_decision_is_not_about_is_told_why(explain: Callable[..., Result], job: str, expected: str) -> None:
    result = explain("--policy", "fifo", "--job", job)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.replace("\u00a0", " ").startswith(expected)


def test_a_job_that_has_not_come_is_told_when_it_does(run: Run, trace: Path) -> None:
    result = run("explain", trace, "--cluster", "2x4", "--policy", "fifo", "--at", "0", "--job", "f")
    message = result.stderr.replace("\u00a0", " ")
    assert message == "error: job f comes after 15m 00s, and the decision after 0 s; live then: a\n"


def test_a_time_without_a_decision_is_told_with_that_of_the_next(explain: Callable[..., Result]) -> None:
    for options in ([], ["--job", "f"], ["-o", "json"]):
        result = explain("--policy", "fifo", *options)
        message = result.stderr.replace("\u00a0", " ")
        assert message == "note: no decision at 10m 00s; the next one is at 15m 00s, and explained here\n"
    assert json.loads(result.stdout)["at_s"] == 900.0


def test_a_time_with_a_decision_needs_no_word(run: Run, trace: Path) -> None:
    assert run("explain", trace, "--cluster", "2x4", "--policy", "fifo", "--at", "15m", "--costs", "none").stderr == ""


def test_several_policies_are_refused_and_one_with_several_options_is_not(explain: Callable[..., Result]) -> None:
    result = explain("--policy", "fifo,pilot")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--policy is 'fifo,pilot'; it takes one policy" in result.stderr
    assert explain("--policy", "pilot:hurry=0,lore=false").exit_code == 0


def test_one_job_is_one_job(run: Run, trace: Path) -> None:
    result = run("explain", trace, "--cluster", "2x4", "--policy", "pilot", "--at", "0")
    assert result.stdout.replace("\u00a0", " ").startswith("decision after 0 s: 1 job;")
