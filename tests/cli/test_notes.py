"""What is told on standard error before a run: assumed GPU types, and files that break off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]

NOTE = "note: GPU type h100 counts as t4: nothing tells how fast these jobs are on it\n"


@pytest.fixture
def applications(tmp_path: Path) -> Path:
    """Two jobs of a built-in application."""
    path = tmp_path / "applications.csv"
    path.write_text("id,submit_s,gpus,model\na,0,1,recommender\nb,5,1,recommender\n")
    return path


def test_a_gpu_type_that_built_in_applications_do_not_know_is_named_once(run: Run, applications: Path) -> None:
    cluster = ["--cluster", "h100=1x4,v100=1x4"]
    assert run("simulate", applications, *cluster).stderr == NOTE
    assert run("compare", applications, *cluster, "--policies", "fifo,easy", "--workers", 1).stderr == NOTE
    assert run("explain", applications, *cluster).stderr == NOTE
    generated = ["--jobs", 2, "--cluster", "h100=2x8", "--policies", "fifo,easy", "--workers", 1]
    assert run("reproduce", "sia", *generated).stderr == NOTE


@pytest.mark.parametrize("cluster", ["1x4", "t4=1x4", "T4=1x4", "v100=1x4", "a100=1x4,rtx=1x4"])
def test_there_is_nothing_to_say_of_types_that_are_known_or_not_named(
    run: Run, applications: Path, cluster: str
) -> None:
    assert run("simulate", applications, "--cluster", cluster).stderr == ""


def test_a_type_makes_no_difference_to_jobs_with_a_duration_and_is_not_named(run: Run, trace: Path) -> None:
    assert run("simulate", trace, "--cluster", "h100=1x4").stderr == ""


UNTOLD = (
    "the trace does not tell how fast GPU types are: every job takes as long on k80 as on v100; "
    "state their speeds with --speeds k80=1,v100=1"
)


def test_plain_durations_on_several_gpu_types_are_said_to_know_no_speeds(
    run: Run, figures: Callable[..., Any], trace: Path
) -> None:
    """Once, on standard error, whatever the command; and in what programs read."""
    cluster = ["--cluster", "v100=1x4,k80=1x4"]
    many = ["--policies", "fifo,easy", "--workers", 1]
    assert run("simulate", trace, *cluster).stderr == f"note: {UNTOLD}\n"
    assert run("compare", trace, *cluster, *many).stderr == f"note: {UNTOLD}\n"
    assert run("explain", trace, *cluster).stderr == f"note: {UNTOLD}\n"
    assert figures("simulate", trace, *cluster)["notes"] == [UNTOLD]
    assert [row["notes"] for row in figures("compare", trace, *cluster, *many)] == [[UNTOLD]] * 2
    assert figures("explain", trace, *cluster)["notes"] == [UNTOLD]


@pytest.mark.parametrize(
    "more", [["--cluster", "v100=2x4"], ["--cluster", "v100=1x4,k80=1x4", "--speeds", "v100=1,k80=0.3"]]
)
def test_there_is_nothing_to_say_of_one_type_or_of_speeds_that_are_stated(
    run: Run, figures: Callable[..., Any], trace: Path, more: list[str]
) -> None:
    assert run("simulate", trace, *more).stderr == ""
    assert figures("simulate", trace, *more)["notes"] == []


def test_a_type_that_no_such_job_accepts_is_not_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "picky.csv"
    path.write_text("id,submit_s,gpus,model,gpu_types\na,0,1,recommender,v100\n")
    assert run("simulate", path, "--cluster", "h100=1x4,v100=1x4").stderr == ""


def test_a_table_that_breaks_off_is_named(run: Run, trace: Path) -> None:
    trace.write_text(trace.read_text().rstrip())
    result = run("simulate", trace, "--cluster", "1x4")
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith(f"warning: {trace} ends in the middle of a line?")


def test_a_policy_that_is_made_for_a_period_says_so_where_there_is_none(
    run: Run, figures: Callable[..., Any], trace: Path
) -> None:
    """The policy declares it, or the one inside; once for each policy, and in what programs read."""
    made_for = "is made to decide every 60 s; with --cadence event it decides only when a job or node comes or goes"
    told = run("simulate", trace, "--cluster", "1x4", "--policy", "pollux").stderr
    assert told.startswith(f"note: pollux {made_for}")
    assert told.endswith("give it a period, as --cadence event+60s\n")
    assert f"note: frugal+sia {made_for}" in run("simulate", trace, "--cluster", "1x4", "--policy", "frugal+sia").stderr
    many = ["--cluster", "1x4", "--workers", 1, "--policies"]
    compared = run("compare", trace, *many, "fifo,pollux,sia,pilot", "--resample", "--seeds", "0,1").stderr
    assert [line.split()[1] for line in compared.splitlines() if line.startswith("note: ")] == ["pollux", "sia"]
    assert [len(row["notes"]) for row in figures("compare", trace, *many, "fifo,pollux")] == [0, 1]


@pytest.mark.parametrize("more", [["--cadence", "60s"], ["--cadence", "event+60s"]])
def test_there_is_nothing_to_say_of_a_cadence_with_a_period(run: Run, trace: Path, more: list[str]) -> None:
    assert run("simulate", trace, "--cluster", "1x4", "--policy", "pollux", *more).stderr == ""


def test_a_policy_of_ones_own_may_declare_a_period(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from fairlead.policies.fifo import Fifo\n\n\nclass Mine(Fifo):\n    period_s = 300.0\n")
    told = run("simulate", trace, "--cluster", "1x4", "--policy", f"{path}:Mine").stderr
    assert "Mine is made to decide every 300 s" in told
    assert "as --cadence event+300s" in told
