"""Whose a directory under `jobs/` is: the identity of cluster, submission and attempt, written into the directory.

The number of a job says where its directory is, but not that the directory is its own: a database that was restored or
replaced may give a number again. So each job's directory, and in it each attempt's, carries `identity.json`, and
nothing in a directory with another identity is ever read or continued. It is put aside, into `aside` next to it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from fairlead.backends.regular_file import read_whole, write_whole

FILE, ASIDE = "identity.json", "aside"


@dataclass(frozen=True, slots=True)
class Identity:
    """Of a job's directory or, with `attempt`, of one attempt's."""

    #: Made once with the database.
    cluster: str
    job: str
    #: Made anew for each submission. None: it was submitted to a Fairlead that kept no identities.
    submission: str | None = None
    attempt: int | None = None

    def of_attempt(self, number: int) -> Identity:
        return replace(self, attempt=number)


#: What a file says that cannot be read. It belongs to no job.
_UNREADABLE = Identity("", "")


def read_identity(directory: Path) -> Identity | None:
    """What the directory carries; None if it carries nothing."""
    try:
        found = Identity(**json.loads(read_whole(directory / FILE, root=directory.parent)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError):
        return _UNREADABLE
    return found


def belongs_to(directory: Path, identity: Identity) -> bool:
    """May what is in the directory, if there is one, be taken for this job's or attempt's own?"""
    found = read_identity(directory)
    if found is not None:
        return found == identity
    return identity.submission is None or not _is_used(directory)


def take_directory(directory: Path, identity: Identity) -> Path | None:
    """Make the directory, or make sure that it is its own. Returns where another job's was moved to, if one was here.

    It is safe on disk when this returns: a job must not lose its checkpoints to a half-written identity.
    """
    moved = None if belongs_to(directory, identity) else put_aside(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if read_identity(directory) is None:
        write_whole(directory / FILE, json.dumps(asdict(identity)), root=directory.parent, durable=True)
    return moved


def put_aside(directory: Path) -> Path:
    """Move it out of the way, where it is neither read nor removed."""
    aside = directory.parent / ASIDE
    aside.mkdir(mode=0o700, exist_ok=True)
    free = next(path for number in count(1) if not (path := aside / f"{directory.name}-{number}").exists())
    return directory.rename(free)


def _is_used(directory: Path) -> bool:
    """A directory that was only made carries no identity yet, and nothing else."""
    try:
        return any(entry.suffix != ".draft" for entry in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
