"""The benchmarks run, on what they were made for and on small problems made here, and say what is true."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STORED = Path(__file__).resolve().parents[2] / "shared" / "bench" / "allocator"

needs_stored = pytest.mark.skipif(
    not STORED.is_dir(), reason="the stored problems (../shared/bench/allocator) are absent"
)

KEYS = {"problem", "cpu_s", "fitness", "bound", "gap", "allocation", "reference_cpu_s", "reference_fitness", "speedup"}


def run(script: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_job(name: str, most: int, *, nodes: int = 3, exponent: float = 0.7, **more: Any) -> dict[str, Any]:
    """A job that is the slower the more nodes it spans."""
    speedup = {
        f"{n},{k}": k**exponent * (1.0 if n == 1 else 0.9 - 0.1 * n)
        for k in range(1, most + 1)
        for n in range(1, min(k, nodes) + 1)
    }
    return {"name": name, "max_replicas": most, "age": 600, "num_restarts": 1, "speedup": speedup} | more


def write(directory: Path, name: str, jobs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    inputs = {
        "num_nodes": 3,
        "gpus_per_node": 4,
        "p": -1,
        "eps": 0.001,
        "restart_delay": 30.0,
        "max_nodes_per_job": 16,
        "one_distributed_job_per_node": True,
        "scale": 0.25,
        "base_allocation": {},
        "jobs": jobs,
    } | more
    (directory / f"inputs_{name}.json").write_text(json.dumps(inputs))
    return inputs


def count(where: list[int]) -> dict[int, int]:
    return {node: where.count(node) for node in where}


# -- the allocator -----------------------------------------------------------------------------------------------------


def test_a_stored_problem_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "inputs_cut.json"
    for content, why in (('{"jobs": [', "is not JSON, or not all of it"), ("[]", "is no stored problem")):
        path.write_text(content)
        command = [sys.executable, str(BENCHMARKS / "allocator.py"), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Error: {path} {why}")


@needs_stored
def test_the_stored_problems_are_decided_within_half_a_percent_and_far_faster_than_by_the_reference() -> None:
    rows = run("allocator.py", str(STORED), "--repeat", "2")
    scorer = load(STORED / "score.py")
    assert {row["problem"] for row in rows} >= {
        "16_4",
        "24_16",
        "24_16_warm",
        "64_16_warm",
        "160_16_warm",
        "256_64_warm",
    }
    for row in rows:
        assert set(row) >= KEYS
        inputs = json.loads((STORED / f"inputs_{row['problem']}.json").read_text("utf-8"))
        scorer.check(inputs, row["allocation"])
        assert row["fitness"] == scorer.fitness(inputs, row["allocation"]) >= row["reference_fitness"]
        assert row["gap"] == pytest.approx(1.0 - row["fitness"] / row["bound"])
        assert row["gap"] <= 0.005
        assert row["speedup"] == pytest.approx(row["reference_cpu_s"] / row["cpu_s"])
        assert row["speedup"] > 10.0


@needs_stored
@pytest.mark.parametrize("name", ["16_4", "24_16", "24_16_warm", "64_16_warm"])
def test_our_own_score_is_that_of_the_stored_scorer(name: str) -> None:
    ours, theirs = load(BENCHMARKS / "allocator.py"), load(STORED / "score.py")
    inputs = ours.read(STORED / f"inputs_{name}.json")
    for allocation in ({}, inputs["base_allocation"], {inputs["jobs"][0]["name"]: [1]}):
        assert ours.fitness(inputs, allocation) == pytest.approx(theirs.fitness(inputs, allocation))
    assert ours.upper_bound(inputs) == pytest.approx(theirs.upper_bound(inputs))


def test_nodes_of_different_sizes_and_too_many_jobs_with_smallest_sizes(tmp_path: Path) -> None:
    jobs = [make_job(f"j{number}", 4, min_replicas=number % 3, preemptible=True) for number in range(9)]
    inputs = write(tmp_path, "mixed", jobs, gpus_per_node=[4, 2, 1], eps=0.01)
    del inputs["base_allocation"]
    (tmp_path / "inputs_mixed.json").write_text(json.dumps(inputs))
    rows = run("allocator.py", str(tmp_path), "--search", "both")
    assert [row["search"] for row in rows] == ["exact", "genetic"]
    for row in rows:
        used = [node for where in row["allocation"].values() for node in where]
        assert all(used.count(node) <= gpus for node, gpus in enumerate([4, 2, 1]))
        for job in jobs:
            size = len(row["allocation"][job["name"]])
            assert size == 0 or job["min_replicas"] <= size <= 4
        assert 0.0 < row["fitness"] <= row["bound"]
        assert (row["reference_cpu_s"], row["speedup"], row["scored_by"]) == (None, None, "own")
    exact, genetic = rows
    assert exact["bound"] == genetic["bound"]
    assert exact["gap"] <= 0.3


@pytest.mark.parametrize("p", [-1, -0.5, 0, 0.5, 1])
def test_pinned_jobs_stay_and_the_score_counts_the_nodes_that_a_job_spans(tmp_path: Path, p: float) -> None:
    jobs = [
        make_job("pinned", 2, pinned=True),  # it has more than it may have, and keeps it
        make_job("reserved", 8, preemptible=False),
        make_job("new", 12),
        make_job("small", 1),
        make_job("nowhere", 2, pinned=True),
    ]
    base = {"pinned": [0, 0, 0], "reserved": [1, 1, 2], "small": [2]}
    inputs = write(tmp_path, "pinned", jobs, base_allocation=base, p=p)
    (row,) = run("allocator.py", str(tmp_path))
    allocation = row["allocation"]
    assert sorted(allocation["pinned"]) == base["pinned"]
    assert sorted(allocation["reserved"]) == base["reserved"]
    bench = load(BENCHMARKS / "allocator.py")
    assert row["fitness"] == pytest.approx(bench.fitness(inputs, allocation))
    assert row["fitness"] <= row["bound"] * (1 + 1e-9)
    used = [node for where in allocation.values() for node in where]
    assert all(used.count(node) <= 4 for node in range(3))
    spanning = [node for where in allocation.values() if len(count(where)) > 1 for node in count(where)]
    assert len(spanning) == len(set(spanning))


def test_a_base_that_cannot_be_kept_is_not(tmp_path: Path) -> None:
    """Nodes that are gone, that are too small now, or that two jobs span."""
    jobs = [make_job(name, 4) for name in ("gone", "crowded", "second", "far")]
    base = {"gone": [7], "crowded": [0, 0, 0, 0, 0], "second": [0, 1], "far": [1, 2]}
    write(tmp_path, "stale", jobs, base_allocation=base)
    (row,) = run("allocator.py", str(tmp_path))
    used = [node for where in row["allocation"].values() for node in where]
    assert set(used) <= {0, 1, 2}
    assert all(used.count(node) <= 4 for node in range(3))
    assert all(1 <= len(where) <= 4 for where in row["allocation"].values())


@needs_stored
def test_a_scorer_that_does_not_know_the_problem_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_bytes((STORED / "score.py").read_bytes())
    write(tmp_path, "known", [make_job("a", 4)])
    write(tmp_path, "mixed", [make_job("a", 4)], gpus_per_node=[4, 2, 2])
    write(tmp_path, "geometric", [make_job("a", 4)], p=0)
    by = {row["problem"]: row["scored_by"] for row in run("allocator.py", str(tmp_path))}
    assert by == {"known": "score.py", "mixed": "own", "geometric": "own"}


def test_a_directory_without_problems_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "allocator.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "has no inputs_*.json" in done.stderr


# -- scale -------------------------------------------------------------------------------------------------------------


def test_a_cluster_of_several_types_is_decided_cold_and_warm() -> None:
    rows = run("scale.py", "--jobs", "80", "--gpus", "640", "--types", "2")
    assert [row["case"] for row in rows] == ["cold, a quarter", "cold", "one_pct", "unchanged"]
    assert rows[1]["times_quarter"] > 0.0
    assert rows[1]["tables_s"] > 0.0
    for row in rows:
        assert row["cpu_s"] >= 0.0
        assert row["gpus_used"] <= row["gpus"]
        assert -1e-9 <= row["gap"] < 0.1
        assert row["jobs_moved"] <= row["jobs"]
    assert rows[0]["jobs_moved"] == rows[1]["jobs_moved"] == 0


# -- the noise scale ---------------------------------------------------------------------------------------------------


def test_what_measuring_the_noise_costs_is_told_for_one_and_two_workers() -> None:
    pytest.importorskip("torch", reason="the training library needs torch: pip install fairlead[train]")
    rows = run("noise_scale.py", "--case", "mlp1m:8", "--rounds", "2")
    assert [(row["model"], row["workers"], row["batch"], row["tokens"]) for row in rows] == [
        ("mlp1m", 1, 8, 8),
        ("mlp1m", 2, 8, 8),
    ]
    for row in rows:
        assert min(row["ddp_cpu_s"], row["ours_cpu_s"]) > 0.0
        assert set(row["others"]) == {"view", "fixed", "every"}
        for cost in (row, *row["others"].values()):
            low, high = cost["interval"]
            assert -1.0 < low <= cost["overhead"] <= high


def test_a_case_that_is_none_is_refused() -> None:
    pytest.importorskip("torch", reason="the training library needs torch: pip install fairlead[train]")
    for case in ("tf25m:8", "mlp1m:0", "gpt4:1", "mlp1m"):
        command = [sys.executable, str(BENCHMARKS / "noise_scale.py"), "--case", case]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert f"{case!r}; expected for example mlp1m:64" in " ".join(done.stderr.split())


def test_gavels_programs_have_the_optimum_that_cvxpy_finds() -> None:
    rows = run("gavel.py", "--jobs", "60", "--repeat", "1")
    assert {row["objective"] for row in rows} >= {"max-min", "makespan", "finish-time-fairness", "nash", "hierarchical"}
    for row in rows:
        assert row["notes"] == [] or row["objective"] == "cost-slo"
        if row["cvxpy_value"] is not None:
            near = 0.05 if row["objective"] == "makespan" else 1e-5  # the reference's search is 5 % wide
            assert row["value"] == pytest.approx(row["cvxpy_value"], rel=near)


def test_pairs_in_parts_lose_no_more_than_is_stated() -> None:
    whole, parts = run("gavel.py", "--packed", "--jobs", "64", "--parts", "2")
    assert (whole["parts"], parts["parts"]) == (1, 2)
    assert 1.0 - parts["lost_at_most"] - 1e-6 <= parts["value_of_whole"] <= 1.0 + 1e-6
    assert 0.5 < parts["throughput_of_whole"] < 1.5


def test_rates_of_many_jobs_are_quick_to_ask_for_again() -> None:
    rows = run("rates.py", "--jobs", "512")
    assert [row["asked"] for row in rows] == ["alone", "pairs"]
    assert all(row["again_ms"] < row["first_ms"] for row in rows)
    assert rows[0]["again_ms"] < 50.0


GAVEL = Path(__file__).resolve().parents[2] / "shared" / "data" / "gavel"


@pytest.mark.skipif(not GAVEL.is_dir(), reason="Gavel's table (../shared/data/gavel) is absent")
def test_estimated_packed_speeds_are_nearer_than_the_papers_and_the_mean() -> None:
    rows = run("rate_estimates.py", "--data", str(GAVEL), "--repeats", "1")
    packed = [row for row in rows if row["what"] == "packed"]
    assert len(packed) == 12
    for model in ("known", "new"):
        for measured in ("10% of its pairs", "30% of its pairs"):
            error = {
                row["way"]: row["median_error"]
                for row in packed
                if (row["model"], row["measured"]) == (model, measured)
            }
            assert error["fairlead"] < error["paper"] < error["mean"]
