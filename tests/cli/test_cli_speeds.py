"""`--speeds`: how fast GPU types are where a trace has nothing but durations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
Figures = Callable[..., Any]

MIXED = ["--cluster", "v100=1x4,k80=1x4", "--costs", "none"]


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """One job of an hour."""
    path = tmp_path / "alone.csv"
    path.write_text("id,submit_s,gpus,duration_s\na,0,2,3600\n")
    return path


@pytest.mark.parametrize("speeds", ["v100=2,k80=0.3", "k80=0.3,v100=2"])
@pytest.mark.parametrize("policy", ["fifo", "easy", "srtf", "tiresias", "optimus", "pilot", "sia", "pollux"])
def test_a_job_takes_the_fastest_type_and_its_duration_over_the_speed_of_it(
    figures: Figures, alone: Path, policy: str, speeds: str
) -> None:
    found = figures("simulate", alone, *MIXED, "--speeds", speeds, "--policy", policy)
    assert found["jct_mean_s"] == pytest.approx(1800.0)
    assert found["setting_speeds"] == speeds


def test_a_job_that_accepts_only_the_slow_type_takes_longer(figures: Figures, tmp_path: Path) -> None:
    path = tmp_path / "picky.csv"
    path.write_text("id,submit_s,gpus,duration_s,gpu_types\na,0,2,3600,k80\n")
    found = figures("simulate", path, *MIXED, "--speeds", "v100=2,k80=0.25")
    assert found["jct_mean_s"] == pytest.approx(4 * 3600.0)


def test_all_speeds_times_two_give_half_the_times(figures: Figures, trace: Path) -> None:
    one, other = (
        figures("simulate", trace, *MIXED, "--speeds", speeds, "--arrival-factor", load)["makespan_s"]
        for speeds, load in (("v100=1,k80=0.5", 1), ("v100=2,k80=1", 2))
    )
    assert one == pytest.approx(2 * other)


@pytest.mark.parametrize(
    ("speeds", "told"),
    [
        ("v100=2", "lacks k80; state every GPU type, as in v100=1,k80=1"),
        ("v100=2,k80=1,p100=1", "the cluster has no GPU type 'p100'; did you mean 'v100'? Known are k80, v100"),
        ("v100=2,k80=0", "cannot read 'k80=0'; expected TYPE=SPEED with a speed above 0"),
        ("v100=2,k80=-1", "cannot read 'k80=-1'"),
        ("v100=2,k80=nan", "cannot read 'k80=nan'"),
        ("v100=2,k80=1e999", "cannot read 'k80=1e999'"),
        ("v100", "cannot read 'v100'"),
        ("v100=1,v100=2,k80=1", "has GPU type 'v100' twice"),
        ("", "cannot read ''"),
    ],
)
def test_speeds_that_cannot_be_meant_are_refused(run: Run, trace: Path, speeds: str, told: str) -> None:
    for command in (["simulate"], ["compare", "--policies", "fifo"], ["explain"]):
        result = run(command[0], trace, *MIXED, *command[1:], "--speeds", speeds)
        assert (result.exit_code, result.stdout) == (2, "")
        text = " ".join(result.stderr.split())
        assert told.replace("as in v100=1,k80=1", "as in") in text, text


def test_speeds_of_jobs_that_have_their_own_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "applications.csv"
    path.write_text("id,submit_s,gpus,model\na,0,1,recommender\n")
    result = run("simulate", path, "--cluster", "v100=1x4,a100=1x4", "--speeds", "v100=1,a100=2")
    assert result.exit_code == 2
    assert "no job of the trace is a plain duration" in result.stderr


def test_explain_knows_speeds_by_their_option_alone(run: Run) -> None:
    assert "no-such-trace.csv" in run("explain", "no-such-trace.csv", "--speeds", "v100=1").stderr


# -- load at these speeds ------------------------------------------------------------------------------------------

TWO_TYPES = ["--cluster", "v100=2x4,a100=2x4"]
SPEEDS = ["--speeds", "v100=1,a100=2"]


@pytest.fixture
def generated(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "generated.jsonl"
    options = ["--jobs", 40, "--load", 1.5, "--seed", 5, "--sizes", "1:0.5,2:0.2,4:0.2,8:0.1", "--run-sigma", 1.3]
    assert run("trace", "generate", path, *TWO_TYPES, *SPEEDS, *options).exit_code == 0
    return path


def test_generate_describe_and_compare_agree_on_the_load_at_stated_speeds(figures: Figures, generated: Path) -> None:
    assert figures("trace", "describe", generated, *TWO_TYPES, *SPEEDS)["load"] == pytest.approx(1.5, rel=1e-4)
    assert figures("simulate", generated, *TWO_TYPES, *SPEEDS)["offered_load"] == pytest.approx(1.5, rel=1e-4)
    # At equal speeds the same cluster can do two thirds of that, by the harmonic mean of the two types.
    assert figures("trace", "describe", generated, *TWO_TYPES)["load"] == pytest.approx(1.5 * 1.5, rel=1e-4)


def test_loads_of_a_comparison_are_those_at_stated_speeds(figures: Figures, generated: Path) -> None:
    options = ["--policies", "fifo,srtf", "--loads", "0.5,2", "--no-cache"]
    rows = figures("compare", generated, *TWO_TYPES, *SPEEDS, *options)
    assert [row["offered_load"] for row in rows] == pytest.approx([0.5, 0.5, 2.0, 2.0])
    slower = figures("compare", generated, *TWO_TYPES, "--speeds", "v100=0.5,a100=1", *options)
    for fast, slow in zip(rows, slower, strict=True):
        # Half as fast, at the same load: arrivals are twice as far apart.
        assert slow["queue_mean_s"] == pytest.approx(2 * fast["queue_mean_s"], rel=0.2, abs=30.0)


def test_where_nothing_tells_speeds_describe_and_generate_say_so(run: Run, generated: Path, tmp_path: Path) -> None:
    note = "note: the trace does not tell how fast GPU types are: every job takes as long on a100 as on v100"
    assert note in run("trace", "describe", generated, *TWO_TYPES).stderr
    assert run("trace", "describe", generated, *TWO_TYPES, *SPEEDS).stderr == ""
    told = run("trace", "generate", tmp_path / "other.jsonl", "--jobs", 5, *TWO_TYPES, "--sizes", "1:1")
    assert note in told.stderr
    assert "--speeds a100=1,v100=1" in told.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--jobs", 5, *SPEEDS], "name the cluster with --cluster"),
        (["--jobs", 5, *TWO_TYPES, *SPEEDS, "--rate", 9], "leave out --speeds or --rate"),
        (["--jobs", 5, *TWO_TYPES, *SPEEDS, "--applications", "all"], "applications have speeds of their own"),
        (["--jobs", 5, *TWO_TYPES, "--speeds", "v100=1"], "lacks a100"),
    ],
)
def test_speeds_that_would_change_nothing_of_a_generated_trace_are_refused(
    run: Run, options: list[object], told: str
) -> None:
    result = run("trace", "generate", "-", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in " ".join(result.stderr.split())


def test_describe_refuses_speeds_without_a_cluster_or_of_jobs_that_have_their_own(run: Run, tmp_path: Path) -> None:
    plain, own = tmp_path / "plain.csv", tmp_path / "own.csv"
    plain.write_text("id,submit_s,gpus,duration_s\na,0,1,60\nb,9,1,60\n")
    own.write_text("id,submit_s,gpus,model\na,0,1,recommender\nb,9,1,recommender\n")
    for path, options, told in (
        (plain, SPEEDS, "name the cluster with --cluster"),
        (plain, [*TWO_TYPES, "--speeds", "v100=1"], "lacks a100"),
        (own, [*TWO_TYPES, *SPEEDS], "no job of the trace is a plain duration"),
    ):
        result = run("trace", "describe", path, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert told in " ".join(result.stderr.split())


def test_on_gpu_types_of_different_speed_the_oracle_is_better_than_fifo_and_the_report_says_so(
    run: Run, tmp_path: Path
) -> None:
    """It was not, while a long job stayed for ever on the slow GPUs that it had begun on."""
    path, page, cluster = tmp_path / "mixed.jsonl", tmp_path / "report.html", ["--cluster", "v100=4x4,a100=4x4"]
    options = ["--jobs", 200, "--load", 1.5, "--seed", 5, "--sizes", "1:0.5,2:0.2,4:0.2,8:0.1", "--run-sigma", 1.3]
    run("trace", "generate", path, *cluster, *options)
    policies = ["--policies", "fifo,srtf", "--no-cache"]
    assert run("compare", path, *cluster, *SPEEDS, *policies, "--report", page).exit_code == 0
    head = page.read_text("utf-8").split("<h1>")[1].split("</h1>")[0]
    assert "With knowledge of the future it could be" in head
