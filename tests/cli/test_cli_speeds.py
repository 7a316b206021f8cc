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
