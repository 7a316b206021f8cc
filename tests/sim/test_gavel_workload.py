"""Gavel's job types and workloads: the compact table against the authors' file, and the mix that the paper states."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.sim.gavel_workload import LONG, REFERENCE, SHORT, gavel_trace, published_table, table_json
from fairlead.sim.reproduction_gavel import FULL, PUBLISHED_H, QUICK, points, table_in
from fairlead.sim.tables import job_type, load_table
from fairlead.sim.traces.record import TraceJob

DATA = Path(__file__).parents[3] / "shared" / "data" / "gavel"


def minutes(job: TraceJob) -> float:
    assert job.steps is not None
    key = job_type(str(job.model), job.batch), job.gpus
    return job.steps / published_table().entries[REFERENCE][key].alone / 60.0


def test_a_table_survives_the_format_of_its_authors(tmp_path: Path) -> None:
    table = published_table()
    (tmp_path / "table.json").write_text(table_json(table))
    assert load_table(tmp_path / "table.json").entries == table.entries


def test_the_compact_table_is_the_authors_to_its_digits() -> None:
    if not DATA.exists():
        pytest.skip("../shared/data/gavel is not here: it holds the table that Gavel's authors published")
    theirs, ours = table_in(DATA), table_in(None)
    assert ours.gpu_types == ("v100", "p100", "k80")
    for gpu_type in ours.gpu_types:
        assert ours.entries[gpu_type].keys() == theirs.entries[gpu_type].keys()
        for key, entry in theirs.entries[gpu_type].items():
            mine = ours.entries[gpu_type][key]
            assert mine.alone == pytest.approx(entry.alone, rel=5e-4)
            for other, speed in entry.packed.items():
                assert mine.packed.get(other, 0.0) == pytest.approx(speed, abs=0.0056 * max(entry.alone, 1e-9))


def test_durations_sizes_and_arrivals_are_those_that_the_paper_states() -> None:
    jobs = gavel_trace(published_table(), jobs=20_000, per_hour=4.0, seed=1, multi_gpu=True, at_start=108).jobs
    lengths = [minutes(job) for job in jobs]
    assert min(lengths) >= 0.99 * 10 ** SHORT[0]
    assert max(lengths) <= 1.01 * 10 ** LONG[1]
    assert sum(length > 1000.0 for length in lengths) / len(jobs) == pytest.approx(0.2, abs=0.01)
    sizes = Counter(job.gpus for job in jobs)
    assert [sizes[gpus] / len(jobs) for gpus in (1, 2, 4, 8)] == pytest.approx([0.70, 0.10, 0.15, 0.05], abs=0.01)
    assert jobs[-1].submit_s / 3600.0 == pytest.approx(20_000 / 4.0, rel=0.03)
    assert len({(job.model, job.batch) for job in jobs if job.gpus == 1}) == 26


def test_one_gpu_each_and_all_at_once_where_that_is_asked_for() -> None:
    jobs = gavel_trace(published_table(), jobs=50, per_hour=None, seed=0, multi_gpu=False).jobs
    assert {(job.gpus, job.submit_s) for job in jobs} == {(1, 0.0)}


def test_the_same_seed_gives_the_same_workload_and_another_another() -> None:
    one, same, other = (
        gavel_trace(published_table(), jobs=30, per_hour=1.0, seed=seed, multi_gpu=True).jobs for seed in (3, 3, 4)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize(
    ("jobs", "per_hour", "at_start"), [(0, 1.0, 0), (5, 0.0, 0), (5, float("inf"), 0), (5, 1.0, 6)]
)
def test_a_workload_that_cannot_be_is_refused(jobs: int, per_hour: float, at_start: int) -> None:
    with pytest.raises(InvalidSpec, match="a workload of"):
        gavel_trace(published_table(), jobs=jobs, per_hour=per_hour, seed=0, multi_gpu=False, at_start=at_start)


def test_every_published_load_of_a_policy_is_a_point() -> None:
    found = points(["single", "static"], ["tiresias"], None, [0, 1])
    assert {point.load for point in found if point.workload == "single"} == set(PUBLISHED_H["single"]["fifo_perf"])
    assert len(found) == 2 * (8 + 4)
    with pytest.raises(InvalidSpec, match="expected single, multiple, static"):
        points(["double"], ["fifo:seed=1"], None, [0])


def test_a_quick_run_prints_ours_and_no_published_figure_since_it_is_another_experiment() -> None:
    arguments = ["reproduce", "gavel", "--quick", "--policies", "srtf", "--loads", "4", "--workers", "1", "-o", "json"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    (row,) = json.loads(done.stdout)
    assert (done.exit_code, row["policy"], row["unfinished"]) == (0, "srtf", 0)
    assert row["published_jct_mean_s"] is None
    assert row["jct_mean_s"] > 3600.0
    assert row["jobs"] == QUICK.window[1] - QUICK.window[0]
    assert FULL.gpus == 108


def test_data_without_a_table_is_refused_with_the_file_that_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["reproduce", "gavel", "--quick", "--policies", "srtf", "--data", str(tmp_path)])
    assert done.exit_code == 2
    assert "simulation_throughputs.json" in done.stderr
