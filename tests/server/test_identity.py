"""Whether a state directory and a database belong together: the decision, what it is made of, and numbers of jobs."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from fairlead.core import codec
from fairlead.core.errors import BackendError, FairleadError
from fairlead.core.messages import Tick
from fairlead.core.state import State
from fairlead.server.auth import digest
from fairlead.server.cluster import Checked, adopt, check, join, note_run
from fairlead.server.database_copy import copy_database
from fairlead.server.directory import Directory, JobNumbers, read_number
from fairlead.server.identity import (
    ClusterFile,
    CopiedDirectory,
    DatabaseRecord,
    DirectoryRecord,
    ForeignDatabase,
    Pair,
    check_pair,
)
from fairlead.server.store import NewJob, Store, User
from fairlead.server.tables import metadata

X, Y, HERE, THERE = "cluster-x", "cluster-y", "directory-1", "directory-2"
PLACE = Path("/state")


def used_directory(**cluster: Any) -> DirectoryRecord:
    said = {"database": "db", "run": "r7", **cluster}
    return DirectoryRecord(path=PLACE, cluster=ClusterFile(X, HERE, **said), has_jobs=True, highest=9)


def used_database(**fields: Any) -> DatabaseRecord:
    standard = {"identity": X, "directory": HERE, "place": "/state on host", "run": "r7", "used": True}
    return DatabaseRecord(**{"name": "db", "last_number": 9, **standard, **fields})


FRESH = DirectoryRecord(path=PLACE, cluster=None)
#: Of a Fairlead that kept no identities.
OLD_DIRECTORY = DirectoryRecord(path=PLACE, cluster=None, has_jobs=True, highest=9)
OLD_DATABASE = used_database(identity=None, directory="", place="", run="", knows_token=True)


@pytest.mark.parametrize(
    ("directory", "database", "pair"),
    [
        pytest.param(FRESH, None, Pair(), id="the first start"),
        pytest.param(FRESH, used_database(used=False, directory=""), Pair(), id="a first start that was killed"),
        pytest.param(used_directory(), used_database(), Pair(), id="the next start"),
        pytest.param(used_directory(), used_database(run="r8"), Pair(), id="one that was killed as it noted its run"),
        pytest.param(used_directory(), used_database(name="elsewhere"), Pair(), id="an exact copy elsewhere"),
        pytest.param(OLD_DIRECTORY, OLD_DATABASE, Pair(), id="an upgrade"),
        pytest.param(OLD_DIRECTORY, replace(OLD_DATABASE, identity=Y), Pair(), id="an upgrade that was killed"),
        pytest.param(
            OLD_DIRECTORY,
            replace(OLD_DATABASE, knows_token=None, in_directory=True),
            Pair(),
            id="an upgrade after the token was removed",
        ),
        pytest.param(used_directory(), OLD_DATABASE, Pair(X), id="a backup from before the upgrade"),
        pytest.param(
            used_directory(told=9), used_database(last_number=5), Pair(), id="numbers that are missing were told of"
        ),
    ],
)
def test_what_belongs_together_is_let_through(
    directory: DirectoryRecord, database: DatabaseRecord | None, pair: Pair
) -> None:
    assert check_pair(directory, database, name="db") == pair


@pytest.mark.parametrize(
    ("directory", "database", "told"),
    [
        pytest.param(used_directory(), None, f"belongs to cluster {X}", id="the database is lost"),
        pytest.param(OLD_DIRECTORY, None, "has jobs of a cluster", id="lost before the upgrade"),
        pytest.param(used_directory(), used_database(used=False, identity=Y), "has no history", id="a new database"),
        pytest.param(
            used_directory(), used_database(identity=Y), f"database db to cluster {Y}", id="of another cluster"
        ),
        pytest.param(FRESH, used_database(), "belongs to no cluster yet", id="a new directory"),
        pytest.param(
            FRESH, replace(OLD_DATABASE, knows_token=None), "without an identity", id="a new directory, an old database"
        ),
        pytest.param(OLD_DIRECTORY, replace(OLD_DATABASE, knows_token=False), "do not belong", id="another's token"),
        pytest.param(
            used_directory(), replace(OLD_DATABASE, knows_token=False), "do not belong", id="another's old database"
        ),
        pytest.param(
            used_directory(), used_database(run="r6", name="elsewhere"), "last used with db", id="an older copy"
        ),
        pytest.param(
            used_directory(),
            used_database(run="r8", directory=THERE),
            "last used by another state directory, /state on host",
            id="another directory has used it since",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused_with_the_remedy(
    directory: DirectoryRecord, database: DatabaseRecord | None, told: str
) -> None:
    directory = replace(directory, options=" --state /state")
    with pytest.raises(ForeignDatabase, match=told) as refused:
        check_pair(directory, database, name="db")
    assert "`fairlead database adopt --state /state`" in refused.value.remedy
    if directory.cluster is not None:
        assert X in refused.value.found


def test_an_older_backup_in_its_place_is_let_through_and_told() -> None:
    pair = check_pair(used_directory(), used_database(run="r6", last_number=5), name="db")
    assert "knows jobs up to 5, but numbers up to 9 were given" in pair.notice
    assert "jobs 6 to 9" in pair.notice
    assert "numbered from 10" in pair.notice


# -- what it is made of ------------------------------------------------------------------------------------------------


class Cluster:
    """A state directory and its database, without a server."""

    def __init__(self, path: Path, url: str) -> None:
        self.directory, self.url = Directory(path), url
        self.directory.prepare()

    def run(self, *, jobs: int = 0) -> tuple[Checked, list[str]]:
        """What a server does with both; the ids of new jobs."""
        found = check(self.directory, self.url)
        with Store.open(self.url) as store:
            numbers = join(self.directory, store, found)
            epoch = store.claim(who="a test")
            note_run(self.directory, store, found)
            store.write([Tick(1.0)], {}, epoch=epoch)
            ids = [submit(store) for _ in range(jobs)]
            numbers.close()
        return found, ids


def submit(store: Store) -> str:
    row = NewJob(name="train", queue="default", document={"run": "true", "ü": [1.5]}, secrets={"KEY": "x"})
    return store.submit([row], user="ada", at=7.0, key=None, digest="d").result().ids[0]


@pytest.fixture
def cluster(tmp_path: Path, store_url: str) -> Cluster:
    return Cluster(tmp_path / "state", store_url)


def test_a_copy_of_a_state_directory_is_refused_while_the_original_is_there(tmp_path: Path) -> None:
    """The copy holds the records of the original's processes: it would end them, and run their jobs again."""
    original = Cluster(tmp_path / "one", f"sqlite:///{tmp_path}/one/fairlead.db")
    original.run(jobs=1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = Cluster(tmp_path / "two", f"sqlite:///{tmp_path}/two/fairlead.db")
    with pytest.raises(CopiedDirectory, match=r"two is a copy of .*one, which is still there.*--state .*one"):
        copy.run()
    with pytest.raises(CopiedDirectory):  # nor on purpose
        list(adopt(copy.directory, copy.url, end_jobs=True, grace_s=1.0))
    assert original.run(jobs=1)[1] == ["2"]
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "one").rename(tmp_path / "moved")
    moved = Cluster(tmp_path / "moved", f"sqlite:///{tmp_path}/moved/fairlead.db")
    assert moved.run(jobs=1)[1] == ["3"]


def test_a_directory_and_a_database_go_on_together(cluster: Cluster) -> None:
    assert cluster.run(jobs=2)[1] == ["1", "2"]
    said = cluster.directory.read_cluster()
    found, ids = cluster.run(jobs=1)
    assert ids == ["3"]
    assert found.database is not None
    assert (found.directory.highest, found.database.last_number) == (2, 2)
    now = cluster.directory.read_cluster()
    assert said is not None
    assert now is not None
    assert (now.cluster, now.directory) == (said.cluster, said.directory)
    assert now.run != said.run


def test_numbers_do_not_start_over_when_the_database_has_forgotten_some(cluster: Cluster) -> None:
    cluster.run(jobs=3)
    with create_engine(cluster.url).begin() as connection:
        for table in ("jobs", "submissions"):
            connection.execute(text(f"DELETE FROM {table} WHERE number > 1"))
    found, ids = cluster.run(jobs=1)
    assert "numbers up to 3 were given" in found.pair.notice
    assert ids == ["4"]
    assert cluster.run()[0].pair.notice == ""


def test_directories_of_jobs_count_where_the_number_was_lost(cluster: Cluster) -> None:
    cluster.run(jobs=1)
    cluster.directory.job_number.unlink()
    (cluster.directory.jobs / "12.3").mkdir(parents=True)
    assert cluster.run(jobs=1)[1] == ["13"]


def test_a_number_is_noted_before_it_is_given_and_a_failure_refuses_the_job(cluster: Cluster, tmp_path: Path) -> None:
    with Store.open(cluster.url) as store:
        numbers = JobNumbers(tmp_path / "job-number", 0)
        store.on_number = numbers.note
        assert submit(store) == "1"
        assert read_number(tmp_path / "job-number") == 1
        numbers.close()
        with pytest.raises(BackendError, match="cannot write"):
            submit(store)
        assert store.job("2") is None


def test_jobs_of_one_submission_carry_the_same_and_of_two_another(store: Store) -> None:
    rows = [NewJob(name="a", queue="q", document={}, element=element) for element in (0, 1)]
    ids = store.submit(rows, user="ada", at=7.0, key=None, digest="d").result().ids
    one, two = (store.jobs(ids)[job_id].submission for job_id in ids)
    assert one is not None
    assert one == two
    other = store.job(submit(store))
    assert other is not None
    assert other.submission not in (one, None)


def test_a_pair_from_before_there_were_identities_is_upgraded(tmp_path: Path) -> None:
    """With the tables of the first version, as a Fairlead of then left them."""
    cluster = Cluster(tmp_path / "state", f"sqlite:///{tmp_path}/state/fairlead.db")
    cluster.directory.write_token("fl_secret")
    with Store.open(cluster.url) as store:
        store.put_user(User("ada", "admin", digest("fl_secret"), 0.0, disabled=False))
        submit(store)
    with sqlite3.connect(tmp_path / "state" / "fairlead.db") as database:
        database.execute("DROP TABLE cluster")
        database.execute("ALTER TABLE jobs DROP COLUMN submission")
        database.execute("UPDATE alembic_version SET version_num = '001'")
    database.close()
    (cluster.directory.jobs / "1").mkdir(parents=True)
    _, ids = cluster.run(jobs=1)
    assert ids == ["2"]
    with Store.open(cluster.url) as store:
        before, after = store.job("1"), store.job("2")
        assert before is not None
        assert after is not None
        assert before.submission is None
        assert after.submission is not None


def test_a_cluster_file_that_cannot_be_read_is_told(cluster: Cluster) -> None:
    cluster.run()
    cluster.directory.cluster.write_text("{")
    with pytest.raises(BackendError, match="cannot be read; remove it"):
        check(cluster.directory, cluster.url)


def test_a_database_can_be_adopted_by_a_directory_of_another_cluster(tmp_path: Path) -> None:
    one, two = (Cluster(tmp_path / name, f"sqlite:///{tmp_path}/{name}/fairlead.db") for name in ("one", "two"))
    one.run(jobs=1)
    two.run(jobs=5)
    (two.directory.jobs / "1").mkdir(parents=True)
    mixed = Cluster(tmp_path / "two", one.url)
    with pytest.raises(ForeignDatabase):
        mixed.run()
    told = list(adopt(mixed.directory, mixed.url, end_jobs=False, grace_s=1.0))
    assert any("put aside" in line for line in told)
    assert (tmp_path / "two" / "jobs-aside-1" / "1").is_dir()
    assert mixed.run(jobs=1)[1] == ["6"]
    with pytest.raises(ForeignDatabase, match="last used by another state directory"):
        one.run()
    assert "belong together already" in next(iter(adopt(mixed.directory, mixed.url, end_jobs=False, grace_s=1.0)))


# -- copies ------------------------------------------------------------------------------------------------------------


def rows(url: str) -> dict[str, list[tuple[Any, ...]]]:
    with create_engine(url).connect() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(table.select())), key=repr)
            for table in metadata.sorted_tables
        }


@pytest.mark.parametrize("there_and_back", [False, True])
def test_a_copy_has_every_row_and_counts_on(
    tmp_path: Path, sqlite_url: str, postgres_url: str, there_and_back: bool
) -> None:
    cluster = Cluster(tmp_path / "state", sqlite_url)
    cluster.run(jobs=3)
    with Store.open(sqlite_url) as store:
        store.claim(who="a test")
        store.note(["1"], "worker", 1.0, {"text": "ü"})
        store.save_snapshot(store.last_seq(), codec.encode(State().facts()))
    copy_database(sqlite_url, target := postgres_url)
    if there_and_back:
        copy_database(postgres_url, target := f"sqlite:///{tmp_path}/back.db")
    assert rows(target) == rows(sqlite_url)
    cluster.url = target
    assert cluster.run(jobs=1)[1] == ["4"]
    with Store.open(target) as store:
        store.note(["1"], "worker", 2.0, {"text": "another"})
        assert len(store.notes("1")) == 2


def test_a_copy_needs_a_source_that_is_whole_and_a_target_that_is_empty(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/second.db"
    with pytest.raises(FairleadError, match="there is no database"):
        copy_database(first, second)
    for name, url in (("one", first), ("two", second)):
        Cluster(tmp_path / name, url).run(jobs=1)
    with pytest.raises(FairleadError, match="holds a cluster already"):
        copy_database(first, second)
    with Store.open(first) as store:
        store.claim(who="a server")
        with pytest.raises(BackendError, match="another controller uses"):
            copy_database(first, f"sqlite:///{tmp_path}/third.db")
