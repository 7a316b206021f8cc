"""A state directory and its database brought together: checked before a start, noted in both, or changed on purpose.

The decision whether they belong together is in `identity`; here is what has to be read for it, and what is written.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from uuid import uuid4

from fairlead.backends.identity import read_identity
from fairlead.backends.unclaimed import end_unclaimed, find_unclaimed
from fairlead.core.errors import BackendError
from fairlead.database_url import without_password
from fairlead.server.auth import digest
from fairlead.server.directory import Directory, JobNumbers, run_on
from fairlead.server.identity import (
    ClusterFile,
    CopiedDirectory,
    DatabaseRecord,
    DirectoryRecord,
    ForeignDatabase,
    Pair,
    check_pair,
)
from fairlead.server.inspecting import find_record, refuse_second_controller
from fairlead.server.store import Store

#: Directories of jobs that are looked at to know whose `jobs/` is.
_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Checked:
    """A state directory and a database that belong together, as they were found."""

    pair: Pair
    directory: DirectoryRecord
    database: DatabaseRecord | None


def check(directory: Directory, url: str) -> Checked:
    """Before anything is made or changed. Raises ForeignDatabase, or BackendError for a database that is damaged."""
    own, database = _records(directory, url)
    name = database.name if database is not None else without_password(url).removeprefix("sqlite:///")
    try:
        return Checked(check_pair(own, database, name=name), own, database)
    except ForeignDatabase:
        refuse_second_controller(url)  # which is told first: whose it is matters only once no server uses it
        raise


def _records(directory: Directory, url: str) -> tuple[DirectoryRecord, DatabaseRecord | None]:
    token = directory.read_token()
    database = find_record(url, directory.path, token_hash=None if token is None else digest(token))
    named = "" if url.endswith(str(directory.path / "fairlead.db")) else f" --database {without_password(url)}"
    return directory.record(options=f" --state {directory.path}{named}"), database


def join(directory: Directory, store: Store, found: Checked) -> JobNumbers:
    """Give both the same identity, and let numbers of jobs go on beyond all that were given here."""
    if found.pair.identity is not None:
        store.settle(identity=found.pair.identity)
    known, identity = found.directory.cluster, store.identity()
    if known is None or known.cluster != identity:
        directory.write_cluster(directory.make_cluster(identity))
    last = 0 if found.database is None else found.database.last_number
    numbers = JobNumbers(directory.job_number, max(last, found.directory.highest))
    store.floor, store.on_number = found.directory.highest, numbers.note
    return numbers


def note_run(directory: Directory, store: Store, found: Checked) -> None:
    """That they run together now; for the controller, once it has claimed the database."""
    cluster = directory.read_cluster()
    assert cluster is not None, "it was written before the controller started"
    told = found.directory.highest if found.pair.notice else cluster.told
    _note(directory, store, replace(cluster, database=store.name, run=str(uuid4()), told=told))


def _note(directory: Directory, store: Store, cluster: ClusterFile) -> None:
    directory.write_cluster(cluster)  # first: a database in its place may be of another run, one elsewhere may not
    store.settle(directory=cluster.directory, place=_place(directory), run=cluster.run)


def _place(directory: Directory) -> str:
    return f"{directory.path} on {socket.gethostname()}"


# -- on purpose --------------------------------------------------------------------------------------------------------


def adopt(directory: Directory, url: str, *, end_jobs: bool, grace_s: float) -> Iterator[str]:
    """Let a database belong to this state directory from now on, whatever either said before. Tells what was done."""
    directory.prepare()
    lock = directory.lock()
    try:
        refuse_second_controller(url)
        try:
            check(directory, url)
        except CopiedDirectory:
            raise
        except ForeignDatabase:
            yield from _adopt(directory, url, end_jobs=end_jobs, grace_s=grace_s)
        else:
            yield f"state directory {directory.path} and the database belong together already; nothing was changed"
    finally:
        os.close(lock)


def _adopt(directory: Directory, url: str, *, end_jobs: bool, grace_s: float) -> Iterator[str]:
    before = directory.record()
    with Store.open(url) as store:
        identity = store.identity()
        kept = (before.cluster is not None and before.cluster.cluster == identity) or _has_jobs_of(directory, identity)
        if not kept:
            _end_jobs(directory, end_jobs=end_jobs, grace_s=grace_s)
        JobNumbers(directory.job_number, before.highest).close()  # numbers go on, also if jobs/ is put aside
        if before.has_jobs and not kept:
            yield f"the jobs of before were put aside: {_put_jobs_aside(directory)}"
        made = replace(directory.make_cluster(identity), database=store.name, run=str(uuid4()), told=before.highest)
        _note(directory, store, made)
        yield f"state directory {directory.path} and database {store.name} are cluster {identity} from now on"
        if before.highest:
            yield f"new jobs are numbered from {before.highest + 1}, or beyond those in the database"


def _has_jobs_of(directory: Directory, identity: str) -> bool:
    """Jobs carry the identity of their cluster, also where the directory above them has lost it."""
    with suppress(FileNotFoundError), os.scandir(directory.jobs) as entries:
        for _, entry in zip(range(_LOOKED_AT), entries, strict=False):
            found = read_identity(Path(entry.path))
            if found is not None and found.cluster == identity:
                return True
    return False


def _end_jobs(directory: Directory, *, end_jobs: bool, grace_s: float) -> None:
    running = find_unclaimed(directory.jobs, ())
    if running and not end_jobs:
        jobs = sorted({job for job, _ in running})
        raise BackendError(
            f"{run_on(jobs)} ({', '.join(jobs[:5])}), and the database to be adopted does not know them; end them with "
            "--end-jobs, or start the server that knows them"
        )
    end_unclaimed(directory.jobs, running, grace_s=grace_s)


def _put_jobs_aside(directory: Directory) -> Path:
    names = (directory.path / f"jobs-aside-{number}" for number in count(1))
    return directory.jobs.rename(next(name for name in names if not name.exists()))
