"""`fairlead reproduce shockwave`: a small trace of the artifact's kind, from files to rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fairlead.sim.reproduction_shockwave import cluster_of, entrants, read_shockwave_data
from fairlead.sim.shockwave_workload import write_shockwave_workload

Run = Callable[..., Result]

SHARED = Path(__file__).parents[3] / "shared" / "data" / "shockwave"

ROW = "ResNet-18 (batch size {batch})\tmain.py\tcifar10\t--num_steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1.0\t900\t{at}\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    jobs = [("static", 32, 4000, 1), ("accordion", 32, 40_000, 2), ("gns", 64, 20_000, 1), ("static", 128, 3000, 4)]
    rows = [
        ROW.format(mode=mode, batch=batch, steps=steps, gpus=gpus, at=60 * place)
        for place, (mode, batch, steps, gpus) in enumerate(jobs)
    ]
    (tmp_path / "jobs-120.trace").write_text("".join(rows))
    speeds = {
        f"('ResNet-18 (batch size {batch})', {gpus})": {"null": 640.0 / batch * (1 + gpus / 4)}
        for batch in (32, 64, 128, 256)
        for gpus in (1, 2, 4)
    }
    (tmp_path / "tacc_throughputs.json").write_text(json.dumps({"v100": speeds}))
    (tmp_path / "batch_schedules.json").write_text(json.dumps({"gns": {"ResNet-18|64|sf1": [[0, 64], [11, 128]]}}))
    return tmp_path


@pytest.mark.parametrize("semantics", ["event", "rounds"])
def test_every_policy_has_a_row_with_figures_and_null_where_nothing_is_published(
    run: Run, data: Path, semantics: str
) -> None:
    result = run("reproduce", "shockwave", "--data", str(data), "--semantics", semantics, "--gpus", "4", "-o", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {"gandiva_fair", "isolated", "fifo"} <= {row["policy"] for row in rows}
    for row in rows:
        assert row["unfinished"] == 0
        for name in ("makespan_s", "jct_mean_s", "rho_worst", "unfair_share", "utilisation", "cpu_s"):
            assert row[name] >= 0.0
            assert row[f"published_{name}"] is None


def test_the_jobs_are_compared_with_what_was_published_of_them(run: Run, data: Path) -> None:
    arguments = ("reproduce", "shockwave", "--data", str(data), "--semantics", "rounds", "--policies", "isolated", "-o")
    (row,) = json.loads(run(*arguments, "json").stdout)
    published = {
        "makespan_s": 1.0,
        "avg_jct_s": 2.0,
        "utilisation": 0.5,
        "jct_s": [1.0] * 4,
        "rho": [1.0, 1.1, 1.2, 1.0],
    }
    (data / "published_jobs-120.json").write_text(json.dumps({"about": "a test", "isolated": published}))
    (then,) = json.loads(run(*arguments, "json").stdout)
    assert (then["published_makespan_s"], then["published_rho_worst"], then["published_unfair_share"]) == (
        1.0,
        1.2,
        0.5,
    )
    assert then["published_jct_off_s"] > 0.0
    assert then["makespan_s"] == row["makespan_s"]
    other = data / "other.trace"
    other.write_text(
        (data / "jobs-120.trace").read_text() + ROW.format(mode="static", batch=32, steps=9, gpus=1, at=300)
    )
    (third,) = json.loads(run(*arguments, "json", "--trace", str(other)).stdout)
    assert (third["jobs"], third["published_makespan_s"]) == (5, None)


def test_any_policy_can_be_named_and_a_table_is_printed(run: Run, data: Path) -> None:
    result = run("reproduce", "shockwave", "--data", str(data), "--policies", "tiresias,fifo", "--semantics", "both")
    assert result.exit_code == 0, result.output
    assert "tiresias" in result.stdout
    assert "4 runs took" in result.stdout


def test_what_is_missing_is_named(run: Run, data: Path, tmp_path: Path) -> None:
    (data / "tacc_throughputs.json").unlink()
    result = run("reproduce", "shockwave", "--data", str(data))
    assert (result.exit_code, "tacc_throughputs.json" in result.stderr) == (2, True)
    result = run("reproduce", "shockwave", "--data", str(tmp_path / "nowhere"))
    assert (result.exit_code, "jobs-120.trace" in result.stderr) == (2, True)


def test_rows_go_by_the_artifacts_names_and_clusters_are_of_nodes_of_four() -> None:
    assert [each.name for each in entrants(["gandiva_fair", "tiresias:promote=2"])] == [
        "gandiva_fair",
        "tiresias:promote=2",
    ]
    assert (cluster_of(32), cluster_of(6), cluster_of(2)) == ("v100=8x4", "v100=1x4,v100=1x2", "v100=1x2")


def test_without_data_jobs_are_generated_and_the_same_seed_gives_the_same(run: Run) -> None:
    arguments = ("reproduce", "shockwave", "--policies", "fifo", "--jobs", "12", "-o", "json")
    rows = [json.loads(run(*arguments, "--seed", seed).stdout)[0] for seed in (1, 1, 2)]
    assert rows[0]["jobs"] == 12
    assert rows[0]["jct_mean_s"] == rows[1]["jct_mean_s"] != rows[2]["jct_mean_s"]
    assert rows[0]["published_makespan_s"] is None


def test_options_of_generated_jobs_and_of_data_do_not_mix(run: Run, data: Path) -> None:
    result = run("reproduce", "shockwave", "--data", data, "--seed", 1)
    assert (result.exit_code, "of generated jobs" in result.stderr) == (2, True)
    result = run("reproduce", "shockwave", "--trace", data / "jobs-120.trace")
    assert (result.exit_code, "--data" in result.stderr) == (2, True)


def test_generated_jobs_come_as_the_authors_say(tmp_path: Path) -> None:
    write_shockwave_workload(tmp_path, seed=0, jobs=2000)
    jobs = read_shockwave_data(tmp_path).trace.jobs
    wide = [job for job in jobs if job.model != "Recommendation"]
    assert jobs[-1].submit_s / len(jobs) == pytest.approx(40.0, rel=0.1)
    assert sum(job.gpus == 1 for job in wide) / len(wide) == pytest.approx(0.6, abs=0.04)
    assert {job.mode for job in jobs if job.estimate_s < 1000} == {"static", "gns"}  # type: ignore[operator]
    assert all(720 <= job.estimate_s <= 18_000 for job in jobs)  # type: ignore[operator]
    short = sum(job.estimate_s <= 3600 * 1.16 for job in jobs)  # type: ignore[operator,misc]
    assert short / len(jobs) == pytest.approx(0.72, abs=0.03)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"Shockwave's data is not in {SHARED}")
def test_the_figures_that_come_with_fairlead_are_those_of_the_artifact(tmp_path: Path) -> None:
    write_shockwave_workload(tmp_path, seed=0, jobs=1)
    ours, theirs = (read_shockwave_data(path) for path in (tmp_path, SHARED))
    assert ours.gns == theirs.gns
    for key, entry in ours.table.entries["v100"].items():
        assert entry.alone == pytest.approx(theirs.table.entries["v100"][key].alone, rel=6e-4)
    measured = {key for key, entry in theirs.table.entries["v100"].items() if entry.alone > 0.0}
    assert measured == ours.table.entries["v100"].keys()


def test_pilot_and_pollux_are_compared_event_by_event_and_not_under_rules_by_which_jobs_have_one_size() -> None:
    by_events, in_rounds = ({each.name for each in entrants([], semantics)} for semantics in ("event", "rounds"))
    assert by_events - in_rounds == {"pilot", "pollux"}
