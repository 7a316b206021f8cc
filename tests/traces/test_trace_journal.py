"""A journal is a trace: what ran can be run again, under another policy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fairlead.core.messages import Message
from fairlead.journal import MemoryJournal, save_journal
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces import InvalidTrace, read_trace
from fairlead.sim.traces.canonical import to_jsonl
from fairlead.sim.traces.generate import Workload, generate


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.jsonl"
    path.write_text(to_jsonl(generate(Workload(jobs=60, gpus=16, load=0.9, seed=3))))
    return path


def simulate(trace: Path, **setting: object) -> tuple[list[Message], object]:
    journal = MemoryJournal()
    result = run_experiment(
        Experiment(trace=str(trace), cluster="4x4", policy="tiresias", **setting),  # type: ignore[arg-type]
        journal=journal,
    )
    return journal.messages, result.measured.summary


def test_a_journal_replayed_under_the_same_policy_without_costs_gives_the_same_figures(
    workload: Path, tmp_path: Path
) -> None:
    messages, summary = simulate(workload, costs="none")
    save_journal(tmp_path / "week.db", messages)
    assert read_trace(tmp_path / "week.db").format == "journal"
    _, again = simulate(tmp_path / "week.db", costs="none")
    assert again.jct_mean_s == pytest.approx(summary.jct_mean_s, rel=1e-9)  # type: ignore[attr-defined]
    assert again.preemptions == summary.preemptions  # type: ignore[attr-defined]


def test_start_up_and_restart_time_is_not_taken_for_work(workload: Path, tmp_path: Path) -> None:
    messages, _ = simulate(workload, costs="default")
    save_journal(tmp_path / "week.db", messages)
    before = {job.id: job.duration_s for job in read_trace(workload).jobs}
    after = {job.id: job.duration_s for job in read_trace(tmp_path / "week.db").jobs}
    assert after == pytest.approx(before, rel=1e-9)


def test_nodes_and_their_outages_come_along(workload: Path, tmp_path: Path) -> None:
    messages, _ = simulate(workload, costs="none", failures_h=(50.0, 1.0), seed=1)
    save_journal(tmp_path / "week.db", messages)
    trace = read_trace(tmp_path / "week.db")
    assert [node.gpus for node in trace.nodes] == [4, 4, 4, 4]
    assert trace.failures
    assert all(failure.repair_s > 0 for failure in trace.failures)


def test_jobs_that_had_not_succeeded_are_left_out_and_counted(workload: Path, tmp_path: Path) -> None:
    messages, _ = simulate(workload, costs="none")
    save_journal(tmp_path / "half.db", messages[: len(messages) // 2])
    trace = read_trace(tmp_path / "half.db")
    assert trace.skipped["had not succeeded"] > 0
    assert len(trace.jobs) + sum(trace.skipped.values()) <= 60


def test_another_sqlite_file_is_refused(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(InvalidTrace, match=r"other\.db.*neither a Fairlead journal nor"):
        read_trace(tmp_path / "other.db")


def test_an_empty_journal_has_no_jobs(tmp_path: Path) -> None:
    save_journal(tmp_path / "empty.db", [])
    with pytest.raises(InvalidTrace, match="has no jobs"):
        read_trace(tmp_path / "empty.db")
