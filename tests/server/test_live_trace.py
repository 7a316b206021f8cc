"""A live journal is a trace: what a service ran can be described, replayed under another policy, and exported."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, inspect

from fairlead.cli.main import main
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import Message
from fairlead.journal import MemoryJournal, read_journal, save_journal
from fairlead.server.store import Store
from fairlead.sim.experiment import Experiment, run_experiment
from fairlead.sim.traces import read_trace
from fairlead.sim.traces.canonical import to_csv, to_jsonl
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.reshape import map_applications


def fairlead(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fairlead")


def figures(*args: object) -> Any:
    result = fairlead(*args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Message], Any]:
    """Elastic jobs under `pilot` that resize in place, with pauses of their own: messages, and what was measured."""
    path = tmp_path_factory.mktemp("week") / "apps.jsonl"
    drawn = generate(Workload(jobs=16, gpus=8, load=0.4, sizes=((1, 0.5), (2, 0.5)), seed=5))
    path.write_text(to_jsonl(map_applications(drawn, {"small-cnn": 4e3, "language-model": 1.3e4}, seed=1)))
    journal = MemoryJournal()
    costs = "start=40,restart=70,save=10,rescale=3"
    setting = Experiment(trace=str(path), policy="pilot", cluster="2x4", costs=costs, in_place=True)
    return journal.messages, run_experiment(setting, journal=journal).measured.summary


@pytest.fixture
def served(store_url: str, week: tuple[list[Message], Any]) -> str:
    """The database of a service that ran this week."""
    with Store.open(store_url) as store:
        epoch = store.claim(who="test")
        for begin in range(0, len(week[0]), 100):
            store.write(week[0][begin : begin + 100], {}, epoch=epoch)
    return store_url


def test_a_services_journal_is_read_like_a_file_of_it(
    served: str, week: tuple[list[Message], Any], tmp_path: Path
) -> None:
    assert [message for _, message in read_journal(served)] == week[0]
    save_journal(tmp_path / "week.journal", week[0])
    ours, theirs = read_trace(tmp_path / "week.journal"), read_trace(served)
    assert (ours.jobs, ours.nodes) == (theirs.jobs, theirs.nodes)


def test_a_journal_file_has_the_table_of_a_service(tmp_path: Path, sqlite_url: str) -> None:
    Store.open(sqlite_url).close()
    save_journal(tmp_path / "plain.journal", [])
    tables = []
    for url in (sqlite_url, f"sqlite:///{tmp_path}/plain.journal"):
        found = inspect(create_engine(url)).get_columns("journal")
        tables.append([(column["name"], str(column["type"]), column["nullable"]) for column in found])
    assert tables[0] == tables[1]


def test_the_state_directory_and_the_database_are_traces_for_every_verb(
    sqlite_url: str, week: tuple[list[Message], Any], tmp_path: Path
) -> None:
    with Store.open(sqlite_url) as store:
        store.write(week[0], {}, epoch=store.claim(who="test"))
        told = [figures("trace", "describe", where, "-o", "json") for where in (tmp_path, sqlite_url)]
        assert told[0]["jobs"] == told[1]["jobs"] == 16
        assert figures("simulate", tmp_path, "--policy", "fifo", "-o", "json")["completed"] == 16
        compared = figures("compare", sqlite_url, "--policies", "fifo,pilot", "--workers", 1, "-o", "json")
    runs = compared["runs"] if isinstance(compared, dict) else compared
    assert [run["completed"] for run in runs] == [16, 16]


def test_a_state_directory_whose_service_uses_another_database_leads_there(served: str, tmp_path: Path) -> None:
    """Also where an older file of its own is still beside it: that would be the wrong week."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "cluster.json").write_text(json.dumps({"database": served.removeprefix("sqlite:///")}))
    save_journal(state / "fairlead.db", [])
    assert len(read_trace(state).jobs) == 16
    (state / "cluster.json").write_text(json.dumps({"database": "postgresql://fairlead:***@db/fairlead"}))
    with pytest.raises(InvalidSpec, match="name that database itself, with its password"):
        read_trace(state)


def test_replayed_under_the_same_policy_it_fares_as_it_did(served: str, week: tuple[list[Message], Any]) -> None:
    """Sizes, pauses and speeds are those that were measured, so that the replay is the week again, nearly."""
    again = run_experiment(Experiment(trace=served, policy="pilot", in_place=True)).measured.summary
    assert again.completed == 16
    assert again.jct_mean_s == pytest.approx(week[1].jct_mean_s, rel=0.1)
    assert again.gpu_h_useful == pytest.approx(week[1].gpu_h_useful, rel=0.1)


def test_another_policy_fares_otherwise_with_the_same_work(served: str) -> None:
    pilot, fifo = (
        run_experiment(Experiment(trace=served, policy=policy)).measured.summary for policy in ("pilot", "fifo")
    )
    assert fifo.jct_mean_s is not None
    assert pilot.jct_mean_s is not None
    assert fifo.jct_mean_s > 1.1 * pilot.jct_mean_s


def test_starts_and_changes_take_as_long_as_they_did(served: str) -> None:
    recordings = [job.recording for job in read_trace(served).jobs]
    assert all(recording is not None for recording in recordings)
    assert {round(recording.start_s) for recording in recordings if recording is not None} == {40}
    assert any(recording.observations for recording in recordings if recording is not None)
    pauses = [recording.rescale_s for recording in recordings if recording is not None]
    assert min(abs(pause - 3.0) for pause in pauses) < 0.5


def test_what_is_exported_is_the_same_trace(served: str, tmp_path: Path) -> None:
    out = tmp_path / "week.jsonl"
    result = fairlead("trace", "export", out, "--database", served)
    assert result.exit_code == 0, result.output
    live, exported = read_trace(served), read_trace(out)
    assert exported.jobs == live.jobs
    assert exported.nodes == live.nodes
    (tmp_path / "week.csv").write_text(to_csv(live))
    assert read_trace(tmp_path / "week.csv").jobs == live.jobs
    replays = [run_experiment(Experiment(trace=str(trace), policy="pilot")).measured.summary for trace in (served, out)]
    assert replays[0] == replays[1]


def test_an_anonymous_export_tells_of_nobody(served: str, tmp_path: Path) -> None:
    out = tmp_path / "week.jsonl"
    assert fairlead("trace", "export", out, "--database", served, "--anonymous").exit_code == 0
    jobs = read_trace(out).jobs
    assert {job.tenant for job in jobs} <= {f"user-{number}" for number in range(16)}
    assert all(not job.name and not job.labels for job in jobs)
    assert [job.recording for job in jobs] == [job.recording for job in read_trace(served).jobs]


def test_only_the_last_days_are_exported_if_so_asked(served: str, tmp_path: Path) -> None:
    result = fairlead("trace", "export", tmp_path / "out.jsonl", "--database", served, "--last", "1d")
    assert result.exit_code == 2, "a simulated week is long past"
    assert "has no jobs between" in result.stderr


def test_a_password_is_not_in_what_is_printed(postgres_url: str, week: tuple[list[Message], Any]) -> None:
    with Store.open(postgres_url) as store:
        store.write(week[0], {}, epoch=store.claim(who="test"))
    head, _, tail = postgres_url.partition("//")
    user, at, rest = tail.rpartition("@")
    url = f"{head}//{user.partition(':')[0] or 'postgres'}:hidden-word{at or '@'}{rest}"
    told = fairlead("simulate", url, "-o", "json")
    assert "hidden-word" not in told.output


def test_a_journal_is_no_database_for_a_service_and_the_other_way_round(tmp_path: Path, sqlite_url: str) -> None:
    save_journal(tmp_path / "plain.journal", [])
    result = fairlead("trace", "describe", "sqlite:///nowhere.db")
    assert (result.exit_code, "there is no journal at nowhere.db" in result.stderr) == (2, True)
    result = fairlead("trace", "describe", sqlite_url, "--format", "swf")
    assert "is a database, and not of format 'swf'; leave --format out" in result.stderr or (
        "leave --format out" in result.stderr
    )
    with sqlite3.connect(tmp_path / "plain.journal") as db:
        assert db.execute("PRAGMA application_id").fetchone() == (0x464C4A31,)
