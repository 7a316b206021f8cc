"""`fairlead reproduce sia`: generated jobs on three types of GPUs, or the artifact's own data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fairlead.sim.applications import APPLICATIONS
from fairlead.sim.experiment import prepare
from fairlead.sim.reproduction_sia import (
    CLUSTER,
    POLICIES,
    SHARES,
    sia_experiment,
    sia_rules,
    sia_trace,
    sia_variants,
    tuned_wishes,
)
from fairlead.sim.reproduction_sia_data import read_sia_data

Run = Callable[..., Result]
Figures = Callable[..., Any]

JOBS = """\
name,time,application,num_replicas,batch_size,category
toy-0,5,toy,1,8,adaptive
toy-1,20,toy,2,32,rigid
toy-2,65,toy,4,32,adaptive
toy-3,70,toy,1,16,scale-gpus
"""


def write_data(directory: Path) -> Path:
    """An application measured on two types, and three workloads of four jobs."""
    profile = directory / "traces" / "toy"
    profile.mkdir(parents=True)
    for name, sample_s in (("aws", 0.02), ("dgx-ext", 0.004)):
        rows = ["local_bsz,step_time,sync_time,placement"]
        for placement in ("1", "2", "3", "4", "11", "12", "22", "44"):
            sync_s = 0.0 if placement == "1" else 0.02 * len(placement)
            rows += [f"{m},{0.05 + sample_s * m + sync_s},{sync_s},{placement}" for m in (8, 16, 32)]
        (profile / f"placements-{name}.csv").write_text("\n".join(rows) + "\n")
        (profile / f"scalability-{name}.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
    for batch in (8, 16, 32):
        epochs = "".join(f"{400 * e},{3200 * e // batch},0,1.0,{5.0 * e}\n" for e in (1, 2))
        (profile / f"validation-{batch}.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n" + epochs)
    for workload in ("philly/workload-1.csv", "philly/workload-10.csv", "saturn/workload-2.csv"):
        path = directory / "workloads" / workload
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(JOBS)
    return directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "sia-simulator")


# -- generated jobs ----------------------------------------------------------------------------------------------------


def test_generated_jobs_run_under_every_policy_next_to_what_was_published(figures: Figures) -> None:
    rows = figures("reproduce", "sia", "--jobs", 6, "--workers", 1)
    assert [(row["workload"], row["seed"], row["policy"]) for row in rows] == [("seed 0", 0, name) for name in POLICIES]
    assert all((row["jobs"], row["unfinished"], row["setting_cluster"]) == (6, 0, CLUSTER) for row in rows)
    assert [row["published_jct_mean_s"] for row in rows] == [2160.0, 3600.0, None, None]
    assert [row["published_jct_p99_s"] for row in rows] == [34200.0, 53640.0, None, None]
    sia, pollux, pilot, _ = rows
    assert (sia["ratio_to_sia"], sia["published_ratio_to_sia"]) == (1.0, 1.0)
    assert pollux["ratio_to_sia"] == pytest.approx(pollux["jct_mean_s"] / sia["jct_mean_s"])
    assert pollux["published_ratio_to_sia"] == pytest.approx(1.0 / 0.6)
    assert "ratios only" in sia["published_on"]
    assert pilot["published_ratio_to_sia"] is pilot["published_on"] is pilot["published_policy"] is None
    assert all(row["reduction_vs_published"] is row["setting_trace"] is None for row in rows)
    assert {"cpu_s", "decision_ms_mean", "rho_worst", "restarts_per_job", "makespan_s"} <= sia.keys()


def test_seeds_give_other_jobs_and_the_same_seed_the_same(figures: Figures) -> None:
    options = ["--policies", "sia", "--jobs", 4, "--workers", 1]
    first, second = figures("reproduce", "sia", "--seeds", "0,3", *options)
    (again,) = figures("reproduce", "sia", "--seeds", "3", *options)
    assert first["jct_mean_s"] != second["jct_mean_s"] == again["jct_mean_s"]


def test_the_table_keeps_the_papers_figures_apart_and_says_why(run: Run) -> None:
    result = run("reproduce", "sia", "--policies", "sia,tiresias", "--jobs", 3, "--workers", 1)
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"Sia (SOSP '23), {CLUSTER}, cadence 60s, costs start=30,restart=30"
    apart = lines.index("Next to the paper, which ran other jobs on other GPUs: only the ratios compare")
    assert not any("36m 00s" in line for line in lines[:apart])
    assert "sia n/a 1.00 1.00 36m 00s 9h 30m" in lines[apart:]
    assert "gavel n/a n/a 3.17 1h 54m 30h 00m" in lines[apart:]
    assert lines[-1].startswith("2 runs took ")


def test_without_sia_there_are_no_ratios(figures: Figures) -> None:
    (row,) = figures("reproduce", "sia", "--policies", "fifo", "--jobs", 3, "--workers", 1, "--cluster", "t4=4x4")
    assert row["ratio_to_sia"] is None


def test_generated_jobs_are_in_the_papers_mix_and_ask_for_what_they_can_use() -> None:
    trace = sia_trace(seed=1, jobs=2000, most=16)
    assert len(trace.jobs) == 2000
    for name, share in SHARES.items():
        assert sum(job.model == name for job in trace.jobs) / 2000 == pytest.approx(share, abs=0.02)
    assert {job.gpus for job in trace.jobs} <= set(range(1, 17))
    assert trace.jobs[-1].submit_s / 3600.0 == pytest.approx(100.0, rel=0.05)
    for name in APPLICATIONS:
        assert all(gpus <= 4 for gpus, _ in tuned_wishes(name, 4))


# -- the artifact's data -----------------------------------------------------------------------------------------------

TYPES = ["--cluster", "t4=2x4,a100=1x4"]


def test_the_data_of_the_artifact_is_read_as_it_lies_there(figures: Figures, data: Path) -> None:
    rows = figures("reproduce", "sia", "--data", data, *TYPES, "--policies", "sia,pollux", "--workers", 1)
    assert [(row["workload"], row["policy"]) for row in rows] == [
        (workload, policy) for workload in ("philly/1", "philly/10") for policy in ("sia", "pollux")
    ]
    assert all(
        (row["seed"], row["jobs"], row["unfinished"], row["setting_costs"]) == (None, 4, 0, "sia") for row in rows
    )
    assert [row["setting_batch_limit"] for row in rows] == ["requested", "application"] * 2
    assert {row["policy_spec"] for row in rows} == {"sia:restarts=published,digits=2", "pollux"}
    assert all(row["artifact_jct_mean_s"] is row["jct_mean_to_artifact"] is None for row in rows)
    assert rows[0]["setting_trace"].endswith("philly/workload-1.csv")


def test_what_the_artifacts_simulator_wrote_is_the_yardstick(figures: Figures, run: Run, data: Path) -> None:
    (data / "results" / "philly").mkdir(parents=True)
    jct_s = {f"toy-{job}": 100.0 * (job + 1) for job in range(4)}
    (data / "results" / "philly" / "summary.json").write_text(json.dumps({"jcts": {"workload-1": jct_s}}))
    for node in ("aws", "dgx-ext"):  # a measured third type, as the paper's cluster has
        for kind in ("placements", "scalability"):
            source = data / "traces" / "toy" / f"{kind}-{node}.csv"
            source.with_name(f"{kind}-rtx.csv").write_text(source.read_text())
    options = ["--data", data, "--policies", "sia,pilot", "--workloads", "1,saturn/2", "--workers", 1]
    sia, pilot, *others = figures("reproduce", "sia", *options)
    for row in (sia, pilot):
        assert (row["artifact_jct_mean_s"], row["artifact_jct_p50_s"]) == (250.0, 250.0)
        assert row["artifact_makespan_s"] == 70.0 + 400.0 - 5.0
        assert row["jct_mean_to_artifact"] == pytest.approx(row["jct_mean_s"] / 250.0)
        assert row["makespan_to_artifact"] == pytest.approx(row["makespan_s"] / row["artifact_makespan_s"])
    assert all(row["jct_mean_to_artifact"] is None for row in others)
    few = figures("reproduce", "sia", *options, "--jobs", 2)
    assert all(row["artifact_jct_mean_s"] is None for row in few)
    (data / "results" / "philly" / "summary.json").write_text("[]")
    assert "summary.json cannot be used" in refused(run("reproduce", "sia", *options))


def test_jobs_of_every_kind_change_what_their_kind_may(data: Path) -> None:
    found = read_sia_data(data)
    (workload,) = found.choose(["1"])
    (variant,) = sia_variants(["sia"], sia_rules(cluster=TYPES[1], jobs=None), released=True)
    world = prepare(sia_experiment(workload, variant, data=found))
    told = {job.spec.id: (job.spec.gpus_min, job.spec.gpus_max, job.spec.batch) for job in world.jobs}
    adaptive, rigid, _, scaling = (told[f"toy-{place}"] for place in range(4))
    assert adaptive[:2] == (1, 4)
    assert rigid[:2] == (2, 2)
    assert scaling[:2] == (1, 1)
    assert rigid[2] is not None
    assert scaling[2] is not None
    assert (rigid[2].initial, rigid[2].max_total, scaling[2].max_total) == (32, 32, 16)


def test_workloads_are_chosen_by_name_and_jobs_cut_them_short(figures: Figures, data: Path) -> None:
    options = [*TYPES, "--policies", "sia", "--workloads", "saturn/2,10", "--jobs", 2, "--workers", 1]
    rows = figures("reproduce", "sia", "--data", data, *options)
    assert [(row["workload"], row["jobs"]) for row in rows] == [("saturn/2", 2), ("philly/10", 2)]


def test_csv_is_one_row_per_run(run: Run, data: Path) -> None:
    options = [*TYPES, "--policies", "fifo", "-o", "csv", "--workers", 1]
    rows = list(csv.DictReader(io.StringIO(run("reproduce", "sia", "--data", data, *options).stdout)))
    assert [(row["workload"], row["policy"]) for row in rows] == [("philly/1", "fifo"), ("philly/10", "fifo")]


# -- what it refuses ---------------------------------------------------------------------------------------------------


def refused(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--workloads", "1"], "--workloads are those of the paper's data"),
        (["--seeds", "one"], "--seeds is 'one'; expected numbers separated by commas"),
        (["--seeds", "-1"], "expected numbers of at least 0"),
        (["--policies", "siaa"], "there is no policy 'siaa'; did you mean 'sia'?"),
        (["--cluster", "4by4"], "cluster '4by4': cannot read"),
        (["--data", "nowhere"], "there is no directory nowhere; the data comes from the SOSP '23 artifact of Sia"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, options: list[str], expected: str) -> None:
    assert expected in refused(run("reproduce", "sia", *options))


def test_what_is_missing_in_the_data_is_named(run: Run, data: Path, tmp_path: Path) -> None:
    assert "has no workload 'philly/2'; it has 'philly/1', 'philly/10', 'saturn/2'" in refused(
        run("reproduce", "sia", "--data", data, "--workloads", "2")
    )
    assert "--seeds are of generated jobs" in refused(run("reproduce", "sia", "--data", data, "--seeds", "1"))
    assert "none of which the job can have" in refused(run("reproduce", "sia", "--data", data, "--cluster", "4x4"))
    (tmp_path / "empty").mkdir()
    assert "has no workloads/<trace>/workload-N.csv" in refused(run("reproduce", "sia", "--data", tmp_path / "empty"))
