"""What a researcher asks of `simulate` and `compare`: jobs as CSV, intervals, windows, noise, readers from files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fairlead.plugins import POLICIES

Run = Callable[..., Result]
Figures = Callable[..., Any]

SEEDS = ["--cluster", "1x4", "--seeds", "0,1,2", "--resample", "--workers", 2]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_jobs_of_a_simulation_go_to_a_file(run: Run, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "jobs-out.csv"
    result = run("simulate", trace, "--cluster", "1x4", "--costs", "none", "--jobs-csv", file, "-o", "json")
    assert (result.exit_code, result.stderr) == (0, f"jobs: {file}\n")
    rows = rows_of(file)
    assert [row["job"] for row in rows] == list("abcdef")
    assert {row["policy"] for row in rows} == {"fifo"}
    mean = sum(float(row["jct_s"]) for row in rows) / 6
    assert mean == pytest.approx(json.loads(result.stdout)["jct_mean_s"])


def test_jobs_of_a_comparison_say_which_run_they_are_of(run: Run, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "jobs-out.csv"
    options = ["--policies", "fifo,srtf", "--loads", "1,2", *SEEDS]
    assert run("compare", trace, *options, "--jobs-csv", file).exit_code == 0
    rows = rows_of(file)
    runs = {(row["policy"], row["load"], row["seed"]) for row in rows}
    assert runs == {(p, load, seed) for p in ("fifo", "srtf") for load in ("1.0", "2.0") for seed in "012"}
    assert len(rows) == 12 * 6


def test_a_table_of_jobs_may_not_replace_another_file_of_the_command(run: Run, trace: Path) -> None:
    for verb, policy in (("simulate", "--policy"), ("compare", "--policies")):
        result = run(verb, trace, "--cluster", "1x4", policy, "fifo", "--jobs-csv", trace)
        assert (result.exit_code, "uses that file for something else" in result.stderr) == (2, True)


def test_seeds_are_aggregated_in_the_table(run: Run, trace: Path) -> None:
    result = run("compare", trace, "--policies", "fifo,backfill,srtf", *SEEDS)
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "means over 3 seeds ± half of their 95 % confidence interval" in lines
    assert "difference from fifo, seed by seed, ± half of the 95 % confidence interval; * it excludes 0" in lines
    assert len([line for line in lines if line.startswith("fifo")]) == 1
    assert len([line for line in lines if line.startswith("backfill")]) == 2
    assert result.stdout.count("±") > 20


def test_where_the_baseline_has_none_the_table_tells_the_difference_itself(run: Run, trace: Path) -> None:
    """`fifo` restarts no job: there is no share of that."""
    result = run("compare", trace, "--policies", "fifo,srtf", *SEEDS)
    table = result.stdout.split("difference from fifo")[1]
    assert "without %: the difference itself, where fifo has 0" in table
    restarts = next(line for line in table.splitlines() if line.strip().startswith("srtf")).split("   ")[-1]
    assert re.fullmatch(r"\+\d\.\d\d ± \d\.\d\d( \*)?", restarts.strip())
    none = run("compare", trace, "--policies", "fifo,backfill", *SEEDS).stdout
    assert "without %" not in none


def test_json_has_intervals_and_paired_differences(figures: Figures, trace: Path) -> None:
    rows = figures("compare", trace, "--policies", "fifo,srtf", "--baseline", "srtf", *SEEDS)
    assert len(rows) == 6
    by_run = {(row["policy"], row["setting_seed"]): row["jct_mean_s"] for row in rows}
    over = rows[0]["over_seeds"]
    assert (over["seeds"], over["baseline"]) == (3, "srtf (oracle)")
    found = over["figures"]["jct_mean_s"]
    assert found["mean"] == pytest.approx(sum(by_run["fifo", seed] for seed in range(3)) / 3)
    assert found["ci95"][0] < found["mean"] < found["ci95"][1]
    apart = [by_run["fifo", seed] - by_run["srtf", seed] for seed in range(3)]
    assert found["difference"]["mean"] == pytest.approx(sum(apart) / 3)
    assert found["difference"]["relative"]["mean"] > 0
    assert "difference" not in rows[1]["over_seeds"]["figures"]["jct_mean_s"]


def test_one_seed_has_differences_without_intervals_and_only_if_asked(figures: Figures, run: Run, trace: Path) -> None:
    options = ["compare", trace, "--cluster", "1x4", "--policies", "fifo,srtf"]
    assert "over_seeds" not in figures(*options)[0]
    found = figures(*options, "--baseline", "fifo")[1]["over_seeds"]["figures"]["jct_mean_s"]
    assert (found["ci95"], found["difference"]["ci95"]) == (None, None)
    assert found["difference"]["mean"] < 0
    assert "difference from fifo\n" in run(*options, "--baseline", "fifo").stdout.replace(" \n", "\n")
    refused = run(*options, "--baseline", "easy")
    assert (refused.exit_code, "expected one of --policies: fifo, srtf" in refused.stderr) == (2, True)


def test_a_window_counts_the_jobs_that_arrive_in_it(figures: Figures, run: Run, trace: Path) -> None:
    options = ["simulate", trace, "--cluster", "1x4", "--costs", "none"]
    found = figures(*options, "--warmup", "20s", "--window", "1m")
    assert (found["jobs"], found["completed"]) == (3, 3)
    assert found["jct_mean_s"] == pytest.approx((3490 + 3540 + 3530) / 3)
    assert (found["setting_warmup_s"], found["setting_window_s"]) == (20.0, 60.0)
    late = run(*options, "--warmup", "1h")
    assert (late.exit_code, "no job arrives in the measured window" in late.stderr) == (2, True)
    assert run(*options, "--warmup", "soon").exit_code == 2


def test_promises_may_be_wrong_and_each_seed_wrong_otherwise(figures: Figures, trace: Path) -> None:
    options = ["compare", trace, "--cluster", "1x4", "--policies", "fifo,easy", "--seeds", "0,1,2,3"]
    rows = figures(*options, "--estimate-error", 2)
    assert len({row["jct_mean_s"] for row in rows if row["policy"] == "fifo"}) == 1
    assert len({row["jct_mean_s"] for row in rows if row["policy"] == "easy"}) > 1


def test_a_trace_is_read_by_a_function_in_a_file(figures: Figures, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def read_mine(path):\n"
        "    for n, line in enumerate(path.read_text().split()):\n"
        "        yield {'id': f'j{n}', 'submit_s': n, 'gpus': 1, 'duration_s': float(line)}\n"
    )
    (tmp_path / "mine.txt").write_text("100\n200\n")
    reader = f"{tmp_path}/mine.py:read_mine"
    options = [tmp_path / "mine.txt", "--format", reader, "--cluster", "1x4", "--costs", "none"]
    assert figures("simulate", *options)["jct_mean_s"] == pytest.approx(150)
    rows = figures("compare", *options, "--policies", "fifo,srtf")
    assert [row["jct_mean_s"] for row in rows] == [pytest.approx(150), pytest.approx(150)]
    assert figures("trace", "describe", tmp_path / "mine.txt", "--format", reader)["jobs"] == 2


def test_policies_are_listed_as_json(figures: Figures) -> None:
    found = {policy["name"]: policy for policy in figures("policies")}
    assert found.keys() == set(POLICIES)
    assert (found["srtf"]["oracle"], found["fifo"]["oracle"], found["autoscale"]["wraps"]) == (True, False, True)
    (thresholds,) = (each for each in found["tiresias"]["options"] if each["name"] == "thresholds")
    assert (thresholds["default"], thresholds["typed"]) == ([3250.0, 7200.0], "3250.0/7200.0")
    assert all(policy["summary"] for policy in found.values())
