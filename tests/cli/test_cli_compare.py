"""`fairlead compare` and `fairlead policies`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fairlead.plugins import POLICIES

Run = Callable[..., Result]
Figures = Callable[..., Any]


def test_runs_come_in_order_of_load_seed_and_policy(figures: Figures, trace: Path) -> None:
    options = ["--policies", "backfill,fifo", "--loads", "1,2", "--seeds", "0,1", "--resample", "--workers", 2]
    rows = figures("compare", trace, "--cluster", "1x4", *options)
    expected = [(load, seed, name) for load in (1.0, 2.0) for seed in (0, 1) for name in ("backfill", "fifo")]
    assert [(row["setting_load"], row["setting_seed"], row["policy"]) for row in rows] == expected


def test_each_run_is_what_simulate_gives(figures: Figures, trace: Path) -> None:
    rows = figures("compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf")
    for row in rows:
        alone = figures("simulate", trace, "--cluster", "1x4", "--policy", row["policy"])
        for name in ("jct_mean_s", "makespan_s", "utilisation", "preemptions", "rho_worst"):
            assert row[name] == alone[name]


def test_a_policy_named_twice_runs_once(figures: Figures, trace: Path) -> None:
    rows = figures("compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf,fifo", "--workers", 1)
    assert [row["policy"] for row in rows] == ["fifo", "srtf"]


def test_policies_may_have_options_and_come_from_files(figures: Figures, trace: Path, own_policy: Path) -> None:
    policies = f"fifo,tiresias:thresholds=100/200,promote=8,{own_policy}:Own:strict=false"
    rows = figures("compare", trace, "--cluster", "1x4", "--policies", policies, "--workers", 1)
    assert [row["policy"] for row in rows] == [
        "fifo",
        "tiresias:thresholds=100/200,promote=8",
        f"{own_policy}:Own:strict=false",
    ]


@pytest.mark.parametrize(
    "policies", ["fifo tiresias:thresholds=9/99,promote=8 srtf", "fifo, tiresias:thresholds=9/99, promote=8 ,srtf,"]
)
def test_policies_are_separated_by_commas_or_spaces(figures: Figures, trace: Path, policies: str) -> None:
    rows = figures("compare", trace, "--cluster", "1x4", "--policies", policies, "--workers", 1)
    assert [row["policy"] for row in rows] == ["fifo", "tiresias:thresholds=9/99,promote=8", "srtf"]


def test_the_table_and_the_report_name_every_policy(run: Run, trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    result = run("compare", trace, "--cluster", "1x4", "--policies", "fifo,backfill,srtf", "--report", report)
    assert result.exit_code == 0
    page = report.read_text("utf-8")
    for policy in ("fifo", "backfill", "srtf"):
        assert policy in result.stdout
        assert policy in page


def test_policies_are_listed_with_what_they_need(run: Run) -> None:
    listed = {each["name"]: each for each in json.loads(run("policies", "-o", "json").stdout)}
    assert {name: each["needs"] for name, each in listed.items() if each["needs"]} == {
        "srtf": ["oracle"],
        "srtf-gpu": ["oracle"],
        "optimus": ["oracle"],
        "allox-oracle": ["oracle"],
        "gavel-oracle": ["oracle"],
        "shockwave-oracle": ["oracle"],
        "random-pairs": ["packing"],
        "random-pairs-oracle": ["oracle", "packing"],
        "autoscale": ["renting"],
    }
    assert "(needs oracle)" in " ".join(run("policies").stdout.split())


def test_the_title_says_what_was_switched_on_in_words(run: Run, trace: Path) -> None:
    result = run("compare", trace, "--cluster", "1x4", "--policies", "fifo", "--in-place", "--resample")
    told = "jobs.csv on 1x4, cadence event, costs default, resample, in place, load 4.28"
    assert result.stdout.splitlines()[0].strip() == told


def test_csv_is_one_row_per_run(run: Run, trace: Path) -> None:
    result = run("compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf", "-o", "csv", "--workers", 1)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["policy"] for row in rows] == ["fifo", "srtf"]
    assert all(float(row["jct_mean_s"]) > 0 for row in rows)


def test_an_unfinished_run_is_named_and_the_others_are_shown(run: Run, trace: Path, own_policy: Path) -> None:
    policies = f"fifo,{own_policy}:Lazy"
    result = run("compare", trace, "--cluster", "1x4", "--policies", policies, "-o", "json", "--workers", 1)
    assert result.exit_code == 1
    assert [row["unfinished"] for row in json.loads(result.stdout)] == [0, 6]
    assert result.stderr.startswith(f"UNFINISHED: 6 of 6 jobs did not finish under {own_policy}:Lazy")
    assert len(result.stderr.splitlines()) == 1


def test_an_error_in_one_run_ends_them_all_without_a_traceback(run: Run, trace: Path, own_policy: Path) -> None:
    policies = f"fifo,{own_policy}:Reckless"
    result = run("compare", trace, "--cluster", "1x4", "--policies", policies, "--workers", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: policy {own_policy}:Reckless at second ")


def test_an_installed_policy_that_cannot_be_loaded_does_not_hide_the_others(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fairlead.policies]\ntheirs = no_such_module:Theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = run("policies")
    assert result.exit_code == 0
    assert "tiresias" in result.stdout
    assert "theirs" in result.stdout
    assert "no_such_module" in result.stdout


@pytest.mark.parametrize("name", POLICIES)
def test_the_list_of_policies_has_every_policy_and_its_options(run: Run, name: str) -> None:
    listed = run("policies").stdout
    assert name in listed
    assert "thresholds=3250.0/7200.0" in listed
    assert "promote=0.0" in listed
