"""`fairlead simulate`: what it prints and writes when all is well, and how it says that not all is."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fairlead.core.messages import Start
from fairlead.journal import read_journal, replay

Run = Callable[..., Result]
Figures = Callable[..., Any]

KEYS = {
    *("policy", "jobs", "unfinished", "jct_mean_s", "jct_p50_s", "jct_p99_s", "queue_mean_s", "makespan_s"),
    *("rho_worst", "rho_mean", "unfair_share", "utilisation", "restarts_per_job", "preemptions"),
    *("decision_ms_mean", "decision_ms_p99", "wall_s"),
}

#: What differs between two equal runs.
TIMING = {"decision_ms_mean", "decision_ms_p99", "wall_s", "cpu_s"}


def settled(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name not in TIMING}


def test_json_has_the_figures_that_programs_rely_on(figures: Figures, trace: Path) -> None:
    found = figures("simulate", trace, "--cluster", "1x4", "--costs", "none")
    assert found.keys() >= KEYS
    assert (found["policy"], found["jobs"], found["unfinished"], found["preemptions"]) == ("fifo", 6, 0, 0)


def test_the_figures_are_right(figures: Figures, trace: Path) -> None:
    """Fifo on 4 GPUs: a and b at once, c once both are done, then d, e and f together."""
    found = figures("simulate", trace, "--cluster", "1x4", "--costs", "none")
    ends = {"a": 1000, "b": 3010, "c": 3510, "d": 3570, "e": 3570, "f": 4110}
    submitted = {"a": 0, "b": 10, "c": 20, "d": 30, "e": 40, "f": 900}
    assert found["jct_mean_s"] == pytest.approx(sum(ends[job] - submitted[job] for job in ends) / 6)
    assert found["makespan_s"] == pytest.approx(4110)
    held_gpu_s = 2 * 1000 + 2 * 3000 + 4 * 500 + 60 + 60 + 2 * 600
    assert found["utilisation"] == pytest.approx(held_gpu_s / (4 * 4110))


def test_json_tells_the_setting_of_the_run(figures: Figures, trace: Path) -> None:
    options = ["--cluster", "2x4", "--cadence", "event+60s", "--seed", 3, "--load", 2, "--jobs", 5]
    found = figures("simulate", trace, *options)
    setting = {name.removeprefix("setting_"): value for name, value in found.items() if name.startswith("setting_")}
    assert setting["trace"] == str(trace)
    expected = {"cluster": "2x4", "cadence": "event+60s", "seed": 3, "load": 2.0, "jobs": 5}
    assert {name: setting[name] for name in expected} == expected
    assert found["jobs"] == 5


def test_csv_is_one_header_and_one_row(run: Run, trace: Path) -> None:
    result = run("simulate", trace, "--cluster", "1x4", "-o", "csv")
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert row.keys() >= KEYS
    assert (row["policy"], row["jobs"]) == ("fifo", "6")


def test_a_person_gets_a_table(run: Run, trace: Path) -> None:
    result = run("simulate", trace, "--cluster", "1x4", "--policy", "backfill")
    assert result.exit_code == 0
    assert "jobs.csv on 1x4" in result.stdout
    assert "backfill" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("policy", ["backfill", "easy", "smallest", "srtf", "srtf-gpu", "tiresias:thresholds=500"])
def test_every_policy_finishes_every_job(figures: Figures, trace: Path, policy: str) -> None:
    found = figures("simulate", trace, "--cluster", "1x4", "--policy", policy)
    assert (found["policy"], found["unfinished"]) == (policy, 0)


def test_without_a_cluster_a_common_one_is_taken_and_named(figures: Figures, trace: Path) -> None:
    assert figures("simulate", trace)["setting_cluster"] == "16x4"


def test_a_policy_comes_from_a_file_with_options(figures: Figures, trace: Path, own_policy: Path) -> None:
    strict, loose = (
        figures("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Own:strict={strict}")
        for strict in ("true", "false")
    )
    assert strict["policy"] == f"{own_policy}:Own:strict=true"
    assert strict["jct_mean_s"] == figures("simulate", trace, "--cluster", "1x4")["jct_mean_s"]
    assert loose["jct_mean_s"] < strict["jct_mean_s"]


def test_jobs_run_on_the_gpu_types_they_accept_at_the_price_of_the_nodes(
    figures: Figures, write_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write_trace("a,0,2,3600,a100\nv,0,2,3600,v100\nx,0,2,3600,\n")
    journal = tmp_path / "run.journal"
    options = ["--cluster", "a100=1x4@2,v100=1x2@0.5", "--costs", "none", "--journal", journal]
    found = figures("simulate", path, *options)
    assert found["makespan_s"] == pytest.approx(3600)
    assert found["cost"] == pytest.approx(4 * 2 + 2 * 0.5)
    starts = {m.job: m.allocation.nodes for _, m in read_journal(journal) if isinstance(m, Start)}
    assert (starts["a"], starts["v"], starts["x"]) == (("n0",), ("n1",), ("n0",))


def test_oversized_jobs_are_dropped_or_clipped_on_request(figures: Figures, run: Run, trace: Path) -> None:
    dropped = figures("simulate", trace, "--cluster", "1x2", "--oversized", "drop")
    assert (dropped["jobs"], figures("simulate", trace, "--cluster", "1x2", "--oversized", "clip")["jobs"]) == (5, 6)
    noted = run("simulate", trace, "--cluster", "1x2", "--oversized", "drop").stderr
    assert "note: left out of the trace: 1, larger than the cluster" in noted


# -- seeds ---------------------------------------------------------------------------------------------------------

CHANCE = ["--resample", "--failures", "0.5,0.1", "--cluster", "2x4"]


def test_the_same_seed_gives_the_same_figures_and_the_same_journal(
    figures: Figures, trace: Path, tmp_path: Path
) -> None:
    journals = [tmp_path / "one.journal", tmp_path / "two.journal"]
    one, two = (settled(figures("simulate", trace, *CHANCE, "--seed", 7, "--journal", path)) for path in journals)
    assert one == two
    assert journals[0].read_bytes() == journals[1].read_bytes()


def test_another_seed_gives_another_run(figures: Figures, trace: Path) -> None:
    means = {figures("simulate", trace, *CHANCE, "--seed", seed)["jct_mean_s"] for seed in range(4)}
    assert len(means) > 1


def test_without_chance_the_seed_does_not_matter(figures: Figures, trace: Path) -> None:
    one, two = (settled(figures("simulate", trace, "--cluster", "1x4", "--seed", seed)) for seed in (0, 1))
    assert one | {"setting_seed": 1} == two


def test_failures_cost_restarts(figures: Figures, trace: Path) -> None:
    found = figures("simulate", trace, "--cluster", "1x4", "--failures", "0.2,0.01", "--seed", 1)
    assert found["restarts_per_job"] > 0
    assert found["unfinished"] == 0


# -- files ---------------------------------------------------------------------------------------------------------


def test_the_journal_can_be_replayed(run: Run, trace: Path, tmp_path: Path) -> None:
    journal = tmp_path / "run.journal"
    assert run("simulate", trace, "--cluster", "1x4", "--journal", journal).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.csv", "run.journal"}
    state = replay(message for _, message in read_journal(journal))
    assert sorted(state.finished) == list("abcdef")


def test_the_report_is_one_page_with_nothing_else_beside_it(run: Run, trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    result = run("simulate", trace, "--cluster", "1x4", "--report", report)
    assert (result.exit_code, result.stderr) == (0, f"report: {report}\n")
    page = report.read_text("utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert not re.search(r"(src|href)=[\"']https?:", page), "it should open without a network"
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.csv", "report.html"}


def test_a_run_that_fails_leaves_an_older_report_as_it_was(
    run: Run, trace: Path, own_policy: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    report.write_text("the last one")
    result = run("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Reckless", "--report", report)
    assert (result.exit_code, report.read_text()) == (2, "the last one")
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.csv", "own.py", "report.html"}


# -- not all is well -----------------------------------------------------------------------------------------------


def test_unfinished_jobs_are_said_loudly_and_exit_with_1(run: Run, trace: Path, own_policy: Path) -> None:
    result = run("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Lazy", "-o", "json")
    assert result.exit_code == 1
    assert '"unfinished": 6' in result.stdout
    assert result.stderr == (
        f"UNFINISHED: 6 of 6 jobs did not finish under {own_policy}:Lazy: a, b, c, d, e and more. "
        "Its figures cover only the jobs that did.\n"
    )


def test_a_policy_that_plans_nonsense_is_named_with_the_nonsense(run: Run, trace: Path, own_policy: Path) -> None:
    result = run("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Reckless")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: policy {own_policy}:Reckless at second ")
    assert "both get GPU 0 of node n0" in result.stderr


def test_a_policy_that_raises_is_an_error_with_the_place_and_no_traceback(
    run: Run, trace: Path, own_policy: Path
) -> None:
    result = run("simulate", trace, "--cluster", "1x4", "--policy", f"{own_policy}:Broken")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nonsense" in result.stderr
    assert "own.py" in result.stderr
    assert "Traceback" not in result.stderr
