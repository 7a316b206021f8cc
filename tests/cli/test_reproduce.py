"""`fairlead reproduce`: a paper's experiment from a directory of its data."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from fairlead.cli.reproduce import reproduce
from fairlead.sim.reproduction import AS_PUBLISHED, LEVERS, POLICIES

Run = Callable[..., Result]
Figures = Callable[..., Any]

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "pollux"

#: Every use of up to four GPUs, as the profiles write it: one digit for each node.
PLACEMENTS = ("1", "2", "3", "4", "11", "12", "13", "22", "111", "112", "1111")

JOBS = """\
name,time,application,num_replicas,batch_size
quick-0,5,quick,1,8
slow-1,20,slow,2,32
quick-2,65,quick,4,32
slow-3,70,slow,1,16
quick-4,200,quick,2,16
slow-5,240,slow,4,32
"""

JOB_NAMES = [line.split(",")[0] for line in JOBS.splitlines()[1:]]

PUBLISHED = {
    "pollux": {"avgs": {"workload-1": 500.0}, "jcts": {"workload-1": dict.fromkeys(JOB_NAMES, 100.0)}},
    "tiresias": {"avgs": {"workload-1": 400.0}, "jcts": {"workload-1": dict.fromkeys(JOB_NAMES, 1.0)}},
}


def write_profile(directory: Path, *, sample_s: float) -> None:
    """Batches of 8 to 32, at least 8 on each GPU; two epochs."""
    directory.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement in PLACEMENTS:
        sync_s = 0.0 if placement == "1" else 0.02 * len(placement)
        rows += [f"{placement},{m},{0.05 + sample_s * m + sync_s},{sync_s}" for m in (8, 16, 32)]
    (directory / "placements.csv").write_text("\n".join(rows) + "\n")
    (directory / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
    for batch in (8, 16, 32):
        epochs = "".join(f"{400 * e},{3200 * e // batch},0,1.0,{5.0 * e}\n" for e in (1, 2))
        (directory / f"validation-{batch}.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n" + epochs)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Workloads 1 and 3 of six jobs of two applications; of the second nothing is published."""
    write_profile(tmp_path / "data" / "profiles" / "quick", sample_s=0.005)
    write_profile(tmp_path / "data" / "profiles" / "slow", sample_s=0.02)
    (tmp_path / "data" / "workloads").mkdir()
    for number in (1, 3):
        (tmp_path / "data" / "workloads" / f"workload-{number}.csv").write_text(JOBS)
    (tmp_path / "data" / "published_jct.json").write_text(json.dumps(PUBLISHED))
    return tmp_path / "data"


# -- what it prints --------------------------------------------------------------------------------------------------


def test_every_policy_on_every_workload_comes_with_what_was_published(figures: Figures, data: Path) -> None:
    rows = figures("reproduce", "pollux", "--data", data, "--policies", "tiresias,optimus,fifo", "--workers", 2)
    assert [(row["workload"], row["policy"]) for row in rows] == [
        (workload, policy) for workload in (1, 3) for policy in ("tiresias", "optimus", "fifo")
    ]
    tiresias, optimus, fifo = rows[:3]
    assert [row["published_policy"] for row in rows[:3]] == ["tiresias", "optimus", "pollux"]
    assert [row["published_jct_mean_s"] for row in rows] == [400.0, None, 500.0, None, None, None]
    assert tiresias["reduction_vs_published"] == pytest.approx(1.0 - tiresias["jct_mean_s"] / 400.0)
    assert fifo["reduction_vs_published"] == pytest.approx(1.0 - fifo["jct_mean_s"] / 500.0)
    assert (tiresias["jobs_equal"], tiresias["policy_spec"]) == (0, AS_PUBLISHED["tiresias"])
    assert tiresias["jct_max_difference_s"] > 0.0
    assert optimus["jobs_equal"] is optimus["reduction_vs_published"] is fifo["jobs_equal"] is None


def test_a_run_is_what_simulate_gives_under_the_papers_rules(figures: Figures, data: Path) -> None:
    (row,) = figures("reproduce", "pollux", "--data", data, "--workloads", "3", "--policies", "pilot:hurry=0")
    rules = ["--cluster", "16x4", "--cadence", "60s", "--costs", "start=30,restart=30", "--estimates", "none"]
    workload = data / "workloads" / "workload-3.csv"
    alone = figures("simulate", workload, *rules, "--retune-every", 60, "--policy", "pilot:hurry=0")
    assert alone.keys() <= row.keys()
    timing = {"wall_s", "cpu_s", "decision_ms_mean", "decision_ms_p99", "setting_format", "setting_profiles"}
    assert {name: row[name] for name in alone.keys() - timing} == {name: alone[name] for name in alone.keys() - timing}


def test_in_place_changes_are_for_policies_that_adapt_jobs(figures: Figures, data: Path) -> None:
    options = [
        "--policies",
        "tiresias,pilot",
        "--cadence",
        "event",
        "--restart-s",
        20,
        "--in-place",
        "--rescale-s",
        1.5,
    ]
    tiresias, pilot = figures("reproduce", "pollux", "--data", data, "--workloads", 1, *options)
    assert (tiresias["setting_in_place"], tiresias["setting_costs"]) == (False, "start=20,restart=20")
    assert (pilot["setting_in_place"], pilot["setting_costs"]) == (True, "start=20,restart=20,rescale=1.5")
    assert pilot["setting_retune_every_s"] == 10.0
    assert tiresias["setting_cadence"] == pilot["setting_cadence"] == "event"


def test_the_table_has_each_run_a_summary_and_what_it_took(run: Run, data: Path) -> None:
    result = run(
        "reproduce", "pollux", "--data", data, "--workloads", "1", "--policies", "tiresias,pollux", "--workers", 1
    )
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "Pollux (OSDI '21), workload 1, 16x4, cadence 60s, costs start=30,restart=30"
    (tiresias, over_tiresias), (pollux, over_pollux) = (
        [line for line in lines if re.match(rf"(1 )?{policy} ", line)] for policy in ("tiresias", "pollux")
    )
    assert tiresias.startswith("1 tiresias 400 s ")
    assert tiresias.endswith("0 of 6")
    assert pollux.startswith("1 pollux 500 s ")
    assert re.fullmatch(r"(tiresias|pollux) \d\.\d{3} -?[\d.]+ %", over_tiresias)
    assert re.fullmatch(r"(tiresias|pollux) \d\.\d{3} -?[\d.]+ %", over_pollux)
    assert lines[-1].startswith("2 runs took ")
    assert lines[-1].endswith("35 to 50 CPU minutes for one workload under Pollux.")


def printed(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


FIFO = ["--workloads", "1", "--policies", "fifo", "--workers", 1]


def test_a_workload_that_was_cut_short_compares_with_nothing_and_the_table_says_why(run: Run, data: Path) -> None:
    (data / "workloads" / "workload-1.csv").write_text("".join(JOBS.splitlines(keepends=True)[:4]))
    lines = printed(run("reproduce", "pollux", "--data", data, *FIFO))
    assert "No published figures on workload 1: they are of 6 jobs, and 3 ran." in lines
    assert not any(word in line for line in lines for word in ("n/a", "reduction", "jobs as published", "averaged"))


@pytest.mark.parametrize(("jobs", "published"), [(5, False), (6, True), (999, True)])
def test_figures_are_published_of_all_jobs_however_many_were_asked_for(
    run: Run, figures: Figures, data: Path, jobs: int, published: bool
) -> None:
    (row,) = figures("reproduce", "pollux", "--data", data, *FIFO, "--jobs", jobs)
    assert row["published_jct_mean_s"] == (500.0 if published else None)
    assert "reduction_vs_published" in row
    lines = printed(run("reproduce", "pollux", "--data", data, *FIFO, "--jobs", jobs))
    assert any(line.startswith("No published figures") for line in lines) != published


def test_one_line_says_for_all_workloads_that_nothing_was_published(run: Run, data: Path) -> None:
    (data / "published_jct.json").unlink()
    lines = printed(run("reproduce", "pollux", "--data", data, "--policies", "fifo,tiresias", "--workers", 1))
    told = [line for line in lines if line.startswith("No published figures")]
    assert told == [f"No published figures on workloads 1 and 3: {data} has no published_jct.json."]
    assert not any("n/a" in line for line in lines)


def test_what_is_lacking_is_named_beside_what_is_there(run: Run, data: Path) -> None:
    lines = printed(run("reproduce", "pollux", "--data", data, "--policies", "tiresias,optimus", "--workers", 1))
    assert "No published figures on workload 1: published_jct.json has nothing of optimus there." in lines
    assert "No published figures on workload 3: published_jct.json has nothing of it." in lines
    assert any(line.startswith("1 tiresias 400 s ") for line in lines)
    assert any(line.startswith("1 optimus (oracle) n/a ") for line in lines)


def test_a_job_too_large_for_the_cluster_is_named_with_an_option_that_exists(run: Run, data: Path) -> None:
    message = refused(run("reproduce", "pollux", "--data", data, "--cluster", "1x2"))
    assert message.endswith("job quick-2 needs 4 GPUs of one type, of which 1x2 has 2; use a larger --cluster")
    assert run("reproduce", "pollux", "--data", data, "--cluster", "1x2", "--jobs", 2, *FIFO).exit_code == 0


def test_levers_are_shown_one_by_one_and_together(run: Run, data: Path, tmp_path: Path) -> None:
    report = tmp_path / "levers.html"
    result = run("reproduce", "pollux", "--data", data, "--workloads", 1, "--levers", "--report", report)
    assert result.exit_code == 0, result.stderr
    for lever in LEVERS:
        assert f"pilot, + {lever}" in result.stdout
        assert f"pilot, all but {lever}" in result.stdout
    assert "pilot, all levers" in report.read_text("utf-8")


def test_csv_is_one_row_per_run(run: Run, data: Path) -> None:
    result = run("reproduce", "pollux", "--data", data, "--policies", "fifo", "-o", "csv", "--workers", 1)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["workload"], row["policy"]) for row in rows] == [("1", "fifo"), ("3", "fifo")]


def test_one_page_reports_all_workloads_with_a_headline_over_them(run: Run, data: Path, tmp_path: Path) -> None:
    content = {"pollux": {"avgs": {"workload-1": 500.0, "workload-3": 600.0}}}
    (data / "published_jct.json").write_text(json.dumps(content))
    report = tmp_path / "report.html"
    result = run("reproduce", "pollux", "--data", data, "--policies", "fifo,tiresias", "--report", report)
    assert (result.exit_code, result.stderr) == (0, f"report: {report}\n")
    page = report.read_text("utf-8").replace("\u00a0", " ")
    headline = re.search(r"<h1>(.*?)</h1>", page)
    assert headline is not None
    assert headline[1].startswith("Mean completion time over workloads 1 and 3, next to Pollux as published: ")
    assert re.search(r"fifo \S+ % less", headline[1])
    for name in ("workload 1", "workload 3", "less than published, in percent"):
        assert name in page


def test_without_published_figures_the_page_says_who_won(run: Run, data: Path, tmp_path: Path) -> None:
    (data / "published_jct.json").unlink()
    report = tmp_path / "report.html"
    run("reproduce", "pollux", "--data", data, "--policies", "fifo,tiresias", "--report", report, "--workloads", 1)
    assert "on average" in re.findall(r"<h1>(.*?)</h1>", report.read_text("utf-8"))[0]


# -- what it refuses -------------------------------------------------------------------------------------------------


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return " ".join(result.stderr.split())


def test_without_data_it_says_where_the_data_comes_from(run: Run, data: Path) -> None:
    message = refused(run("reproduce", "pollux"))
    assert message.startswith("error: name the paper's data with --data DIR")
    assert "petuum/adaptdl, branch osdi21-artifact" in message
    assert "profiles/<application>/*.csv simulator/traces there" in message
    assert "there is no directory" in refused(run("reproduce", "pollux", "--data", data / "none"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--workloads", "1,2"], "has no workload-2.csv; it has 'workload-1.csv', 'workload-3.csv'"),
        (["--workloads", "-1"], "--workloads is '-1'; expected numbers of at least 0"),
        (["--workloads", "one"], "--workloads is 'one'; expected numbers separated by commas"),
        (["--policies", "polux"], "there is no policy 'polux'; did you mean 'pollux'?"),
        (["--policies", ","], "--policies is empty"),
        (["--policies", "pilot:hury=1"], "has no option 'hury'; did you mean 'hurry'?"),
        (["--cadence", "now"], "cadence 'now' is unknown"),
        (["--cluster", "4by4"], "cluster '4by4': cannot read"),
        (["--cluster", "1x2"], "job quick-2 needs 4 GPUs"),
        (["--restart-s", "nan"], "cost start_s is nan"),
        (["--levers", "--in-place"], "--levers chooses policies, cadence and changes in place itself"),
        (["--levers", "--policies", "fifo"], "--levers chooses policies"),
        (["--report", "/nowhere/report.html"], "there is no directory /nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    run: Run, data: Path, options: list[str], expected: str
) -> None:
    assert expected in refused(run("reproduce", "pollux", "--data", data, *options))


def test_the_data_is_not_overwritten_by_a_report(run: Run, data: Path) -> None:
    for file in (data / "published_jct.json", data / "workloads" / "workload-1.csv"):
        before = file.read_bytes()
        message = refused(run("reproduce", "pollux", "--data", data, "--report", file))
        assert "the command uses that file for something else" in message
        assert file.read_bytes() == before


def test_an_empty_profile_lacks_columns_and_not_jobs(run: Run, data: Path) -> None:
    path = data / "profiles" / "quick" / "placements.csv"
    path.write_text("")
    message = refused(run("reproduce", "pollux", "--data", data))
    assert f"{path}: is empty; expected the columns placement, local_bsz" in message


@pytest.mark.parametrize(("content", "why"), [("[]", "it holds []"), ("{", "it is not JSON (")])
def test_published_figures_that_cannot_be_used_are_told_in_words(run: Run, data: Path, content: str, why: str) -> None:
    (data / "published_jct.json").write_text(content)
    message = refused(run("reproduce", "pollux", "--data", data))
    assert f"published_jct.json cannot be used: {why}" in message
    assert "Error" not in message


def test_a_missing_profile_is_named_with_those_there_are(run: Run, data: Path) -> None:
    (data / "profiles" / "slow" / "placements.csv").unlink()
    message = refused(run("reproduce", "pollux", "--data", data))
    assert "workload-1.csv has jobs of 'slow'" in message
    assert "it has 'quick'." in message


def test_unfinished_jobs_are_named_with_their_workload_and_compare_with_nothing(
    run: Run, data: Path, own_policy: Path
) -> None:
    result = run(
        "reproduce", "pollux", "--data", data, "--policies", f"{own_policy}:Lazy", "-o", "json", "--workers", 1
    )
    assert result.exit_code == 1
    assert [row["reduction_vs_published"] for row in json.loads(result.stdout)] == [None, None]
    assert f"6 of 6 jobs did not finish under {own_policy}:Lazy on workload-3.csv" in result.stderr


# -- the real data, and the documentation ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"the data of the Pollux artifact is not at {REAL}")
def test_the_artifacts_tiresias_comes_out_to_the_second(figures: Figures) -> None:
    (row,) = figures("reproduce", "pollux", "--data", REAL, "--workloads", "1", "--policies", "tiresias")
    assert (row["jobs_equal"], row["jct_max_difference_s"], row["reduction_vs_published"]) == (160, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"the data of the Pollux artifact is not at {REAL}")
def test_a_few_jobs_of_the_real_data_run_under_every_policy(figures: Figures) -> None:
    rows = figures("reproduce", "pollux", "--data", REAL, "--workloads", 1, "--jobs", 10, "--in-place")
    assert [row["policy"] for row in rows] == list(POLICIES)
    assert all((row["jobs"], row["unfinished"], row["published_jct_mean_s"]) == (10, 0, None) for row in rows)


def test_every_paper_and_every_option_is_described() -> None:
    page = (ROOT / "docs" / "reproductions.md").read_text("utf-8")
    for name, command in reproduce.commands.items():
        assert f"fairlead reproduce {name}" in page
        for option in command.params:
            assert isinstance(option, click.Option)
            assert any(re.search(rf"`[^`]*{re.escape(text)}\b", page) for text in option.opts), f"{name} {option.opts}"
