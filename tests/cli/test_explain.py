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
        ("d", "error: job d has ended before the decision at 900 s (15m 00s); live then: a, b and f"),
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
    assert message == "error: job f comes at 900 s (15m 00s), and the decision is at 0 s; live then: a\n"


def test_a_time_without_a_decision_is_told_with_that_of_the_next(explain: Callable[..., Result]) -> None:
    for options in ([], ["--job", "f"], ["-o", "json"]):
        result = explain("--policy", "fifo", *options)
        message = result.stderr.replace("\u00a0", " ")
        assert (
            message == "note: no decision at 600 s (10m 00s); the next one is at 900 s (15m 00s), and explained here\n"
        )
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
    assert result.stdout.replace("\u00a0", " ").startswith("decision at 0 s: 1 job;")


def test_a_decision_months_into_a_trace_is_told_to_the_second(run: Run, tmp_path: Path) -> None:
    """357 days and 6 hours are 30,866,400 s; the two decisions are half a minute apart, which words do not show."""
    path = tmp_path / "late.csv"
    path.write_text("id,submit_s,gpus,duration_s\na,0,1,60\nb,30866410.25,1,600\nc,30866440,1,600\n")
    options = ["--cluster", "1x4", "--policy", "fifo", "--costs", "none", "--at"]
    result = run("explain", path, *options, "30866420")
    assert result.stdout.replace("\u00a0", " ").startswith("decision at 30866440 s (357d 6h): 2 jobs")
    told = result.stderr.replace("\u00a0", " ")
    assert "no decision at 30866420 s (357d 6h); the next one is at 30866440 s (357d 6h)" in told
    assert "at 30866410.25 s" in run("explain", path, *options, "30866400").stdout.replace("\u00a0", " ")


def test_the_help_says_that_the_first_decision_at_or_after_a_time_is_explained(run: Run) -> None:
    told = " ".join(run("explain", "--help").stdout.split())
    assert "first decision at or after this time" in told
