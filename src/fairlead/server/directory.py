"""The state directory: that it is its owner's alone, who runs on it, and the files by which others find the server.

Whoever runs holds a lock on `server.lock` for as long as it lives, however it ends; so what `server.json` says counts
only while somebody holds that. Needs none of the server's packages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairlead.backends.files import AttemptFiles
from fairlead.core.errors import BackendError, InvalidSpec
from fairlead.server.identity import ClusterFile, DirectoryRecord

#: What may be in it. Anything else means that it was meant for something else.
FILES = (
    "cluster.json",
    "config.toml",
    "fairlead.db",
    "job-number",
    "jobs",
    "server.json",
    "server.lock",
    "server.log",
    "token",
)

#: How often, and after how long, a lock is tried again that somebody may hold for a moment.
_TRIES, _PAUSE_S = 20, 0.05

#: A log that is longer at the start is put aside, once.
LONGEST_LOG = 16 * 2**20


class AlreadyRuns(BackendError):
    """Another server has this state directory."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is there. `url` is None while it starts, and while it ends."""

    pid: int
    url: str | None = None
    started_at: float | None = None
    version: str = ""
    #: The configuration file that it read, if there is one.
    config: str | None = None


@dataclass(frozen=True)
class Directory:
    """A state directory. Nothing is made before `prepare`."""

    path: Path

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def server(self) -> Path:
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def cluster(self) -> Path:
        return self.path / "cluster.json"

    @property
    def job_number(self) -> Path:
        return self.path / "job-number"

    # -- making it --

    def prepare(self) -> None:
        """Make it, or see that it is ours and nobody else's. Raises BackendError or InvalidSpec."""
        if "?" in str(self.path) or "\n" in str(self.path):
            raise InvalidSpec(f"state directory {str(self.path)!r} has a ? or a line break in its name; choose another")
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_private()
            probe = self.path / f".probe-{os.getpid()}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            probe.unlink()
        except FileExistsError:
            raise InvalidSpec(f"{self.path} is a file; a state directory is a directory") from None
        except OSError as error:
            told = f"state directory {self.path} cannot be written: {error.strerror}"
            raise BackendError(f"{told}; choose another one with --state DIR") from None

    def _make_private(self) -> None:
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            raise BackendError(
                f"state directory {self.path} belongs to {account(found.st_uid)}, and you are "
                f"{account(os.geteuid())}; choose another one with --state DIR"
            )
        if not found.st_mode & 0o077:
            return
        strange = sorted(entry for entry in os.listdir(self.path) if not entry.startswith(FILES))
        if strange:
            raise InvalidSpec(
                f"{self.path} is open to others (mode {stat.S_IMODE(found.st_mode):03o}) and holds other things "
                f"({', '.join(strange[:3])}); give the server a directory of its own, or: chmod 700 {self.path}"
            )
        self.path.chmod(0o700)

    # -- who runs --

    def lock(self) -> int:
        """Be the only one here, until the descriptor is closed. Raises AlreadyRuns."""
        handle = os.open(self.path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(_TRIES):  # whoever only looks holds it for a moment
                if _try(handle, fcntl.LOCK_EX):
                    break
                if (other := self.running()) is not None:
                    raise self.taken(other)
                time.sleep(_PAUSE_S)
            else:
                raise self.taken(None)
        except BaseException:
            os.close(handle)
            raise
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {_born(os.getpid())}\n".encode(), 0)
        return handle

    def taken(self, other: Running | None) -> AlreadyRuns:
        who = "another server" if other is None else f"a server (process {other.pid})"
        at = f" at {other.url}" if other is not None and other.url else ""
        return AlreadyRuns(
            f"{who} runs on {self.path} already{at}; stop it with `fairlead down --state {self.path}`, or choose "
            "another directory with --state DIR"
        )

    def running(self) -> Running | None:
        """Who holds the lock. A server.json that a dead one left counts for nothing."""
        try:
            handle = os.open(self.path / "server.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendError(f"cannot look into state directory {self.path}: {error.strerror}") from None
        try:
            for _ in range(_TRIES):
                if _try(handle, fcntl.LOCK_SH):
                    return None
                pid, _, born = os.pread(handle, 100, 0).decode("ascii", "replace").strip().partition(" ")
                if pid.isdecimal() and _born(int(pid)) == born:
                    return self._told(int(pid))
                time.sleep(_PAUSE_S)  # it is about to say so
        finally:
            os.close(handle)
        raise BackendError(
            f"a server runs on {self.path}, but not among the processes that can be seen here: it is on another "
            "machine or in a container. Stop it there"
        )

    def _told(self, pid: int) -> Running:
        with contextlib.suppress(OSError, ValueError, TypeError):
            told = Running(**json.loads(self.server.read_text(encoding="utf-8")))
            if told.pid == pid:
                return told
        return Running(pid)

    def unattended(self) -> list[str]:
        """Jobs whose supervisors live. While no server runs, nobody schedules them."""
        alive = {lock.parent.parent.name for lock in self.jobs.glob("*/attempt-*/lock") if _is_alive(lock.parent)}
        return sorted(alive)

    def announce(self, running: Running) -> None:
        """Write server.json, whole or not at all."""
        self._write(self.server, json.dumps(asdict(running)) + "\n")

    def withdraw(self) -> None:
        with contextlib.suppress(OSError):
            self.server.unlink()

    # -- the token --

    def read_token(self) -> str | None:
        """The owner's token; None if there is none yet. Raises BackendError if somebody else could know it."""
        try:
            handle = os.open(self.token, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise BackendError(f"cannot read the token {self.token}: {why}; remove it, and a new one is made") from None
        with open(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise BackendError(
                    f"the token {self.token} may be known to others (owner {account(found.st_uid)}, mode "
                    f"{stat.S_IMODE(found.st_mode):03o}); remove it, and a new one is made"
                )
            return file.read(1000).decode("ascii", "replace").strip() or None

    def write_token(self, token: str) -> None:
        self._write(self.token, token + "\n")

    def _write(self, path: Path, text: str) -> None:
        """For nobody else to read. What was there before, were it a link, is replaced and not written through."""
        draft = path.with_name(f".{path.name}-{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise BackendError(f"cannot write {path}: {error.strerror}") from None

    # -- the cluster --

    def record(self, *, options: str = "") -> DirectoryRecord:
        """Which cluster it belongs to, and what it holds. `options`: see DirectoryRecord."""
        numbers = [*self._job_numbers(), read_number(self.job_number)]
        return DirectoryRecord(
            path=self.path,
            cluster=self.read_cluster(),
            has_jobs=len(numbers) > 1,
            highest=max(numbers),
            options=options,
            original=self._original(),
        )

    def _original(self) -> Path | None:
        """The directory that this is a copy of: it has the same identity, and is where this one says it was."""
        known = self.read_cluster()
        if known is None or known.path in ("", str(self.path)):
            return None
        other = Directory(Path(known.path))
        try:
            found = other.read_cluster()
        except BackendError:
            return None
        return other.path if found is not None and found.directory == known.directory else None

    def _job_numbers(self) -> list[int]:
        """Of the jobs that have a directory: that of 13.1 is 13."""
        with contextlib.suppress(FileNotFoundError):
            names = (name.partition(".")[0] for name in os.listdir(self.jobs))
            return [int(name) for name in names if name.isdecimal()]
        return []

    def read_cluster(self) -> ClusterFile | None:
        try:
            return ClusterFile(**json.loads(self.cluster.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendError(f"cannot read {self.cluster}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise BackendError(
                f"{self.cluster}, which says to which cluster this state directory belongs, cannot be read; remove it, "
                f"and say which database belongs here with `fairlead database adopt --state {self.path}`"
            ) from None

    def write_cluster(self, cluster: ClusterFile) -> None:
        self._write(self.cluster, json.dumps(asdict(replace(cluster, path=str(self.path)))) + "\n")

    def make_cluster(self, identity: str) -> ClusterFile:
        """What it has to say from now on. Its own identity stays."""
        known = self.read_cluster()
        return ClusterFile(identity, known.directory if known is not None else str(uuid.uuid4()))

    # -- the log --

    def open_log(self) -> int:
        """To append to. A long one is put aside as server.log.1 first."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with contextlib.suppress(FileNotFoundError):
                if self.log.lstat().st_size > LONGEST_LOG:
                    self.log.replace(self.log.with_name("server.log.1"))
            return os.open(self.log, flags, 0o600)
        except OSError as error:
            raise BackendError(f"cannot write {self.log}: {error.strerror}") from None


class JobNumbers:
    """The file with the highest number that was ever given to a job, for a database that knows less than that.

    It is written with each submission, in place and without waiting for the disk: it outlives the process, and of what
    a power cut takes from it, jobs that were started have a directory, and the database has the rest.
    """

    _WIDTH = 19

    def __init__(self, path: Path, highest: int) -> None:
        self._path, self._highest = path, highest
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._put()
            os.fsync(self._handle)
        except OSError as error:
            raise BackendError(f"cannot write {path}: {error.strerror}") from None

    def note(self, number: int) -> None:
        """Before it is given. Raises BackendError."""
        if number > self._highest:
            self._highest = number
            try:
                self._put()
            except OSError as error:
                raise BackendError(f"cannot write {self._path}: {error.strerror}") from None

    def _put(self) -> None:
        os.pwrite(self._handle, f"{self._highest:<{self._WIDTH}}\n".encode(), 0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._handle)
        os.close(self._handle)


def read_number(path: Path) -> int:
    """0 if there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return 0


def _is_alive(attempt: Path) -> bool:
    with contextlib.suppress(OSError):  # it was just removed
        return AttemptFiles(attempt).is_alive
    return False


def run_on(jobs: Collection[str]) -> str:
    """What to know of jobs whose server is gone."""
    one = len(jobs) == 1
    return f"{len(jobs)} job{'s' * (not one)} {'runs' if one else 'run'} on without a server"


def account(uid: int) -> str:
    """The name of a Unix account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise BackendError(
            f"the state directory cannot be locked: {error.strerror}; choose one on a local disk"
        ) from None
    return True


def _born(pid: int) -> str:
    """When a process began: two of the same number differ in it. Empty if it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""
