"""`fairlead doctor`: a checklist of what a server and its jobs need here, with a remedy for whatever is amiss.

It changes nothing, works without the server's packages, and goes on when a check itself fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from fairlead.backends.ownership import left_behind
from fairlead.cli import surroundings
from fairlead.cli.live.connect import errors_told
from fairlead.cli.live.showing import console, output_option, print_data
from fairlead.cli.live.wording import clean, counted, moment, span
from fairlead.cli.surroundings import OK, PROBLEM, WARNING, Finding
from fairlead.cli.up import CONFIG, STATE, directory_of, state_option
from fairlead.client.errors import ClientError
from fairlead.client.finding import Server
from fairlead.client.http import Http, Patience
from fairlead.core.errors import FairleadError
from fairlead.database_url import without_password
from fairlead.server.config import Config, load
from fairlead.server.directory import Directory, account, run_on
from fairlead.server.keys import InvalidConfig

if TYPE_CHECKING:
    from fairlead.server.inspecting import Inspected

_STYLES = {OK: "green", WARNING: "yellow", PROBLEM: "bold red"}

_RESTORE = "restore a backup, see docs/operating.md"

#: Less free disk than this is a warning, and a problem.
_LITTLE, _TOO_LITTLE = 2**30, 100 * 2**20


@dataclass(frozen=True)
class Patient:
    """What the checks look at. No configuration, if that is what is wrong."""

    directory: Directory
    config: Config | None


@click.command()
@STATE
@CONFIG
@output_option("table", "json")
def doctor(*, state: Path | None, file: Path | None, output: str) -> None:
    """Look for what is wrong on this machine, and say what to do about it. Exits with 1 if there is a problem."""
    with errors_told():
        findings = list(examine(directory_of(state), file))
        if output == "json":
            print_data([asdict(finding) for finding in findings], "json")
        else:
            _print(findings)
        sys.exit(any(finding.status == PROBLEM for finding in findings))


def _print(findings: list[Finding]) -> None:
    screen = console()
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text.assemble((f"{finding.status:<8}", _STYLES[finding.status]), f" {finding.name:<{width}}  ")
        screen.print(line + Text(clean(finding.text)), soft_wrap=True)
        if finding.remedy:
            screen.print(Text(" " * (11 + width) + f"-> {finding.remedy}", style="dim"), soft_wrap=True)
    problems, warnings = (sum(finding.status == kind for finding in findings) for kind in (PROBLEM, WARNING))
    screen.print(Text(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}", style="bold"))


# -- the round ---------------------------------------------------------------------------------------------------------


def examine(directory: Directory, file: Path | None) -> Iterator[Finding]:
    """Every check, one after the other."""
    yield from surroundings.everything()
    yield from examine_server(directory, file)


def examine_server(directory: Directory, file: Path | None) -> Iterator[Finding]:
    """What belongs to one server: its configuration, its directory and what is in it."""
    config, faults = _configuration(directory, file)
    patient = Patient(directory, config)
    yield from faults
    rest: tuple[tuple[str, Callable[[Patient], Iterator[Finding]]], ...] = (
        ("state directory", _state),
        ("free disk", _disk),
        ("database", _database),
        ("token", _token),
        ("server", _server),
        ("left behind", _left_behind),
    )
    for name, check in rest:
        try:
            yield from check(patient)
        except (FairleadError, OSError) as error:
            yield Finding(name, PROBLEM, clean(error))


def _configuration(directory: Directory, file: Path | None) -> tuple[Config | None, list[Finding]]:
    """Of the file that was named, or that the server which runs has read, or that one would read."""
    read = _read_by_the_server(directory) if file is None else None
    try:
        config = load(directory.path, file=file or read)
    except InvalidConfig as error:
        faults = [Finding("configuration", PROBLEM, str(each), "correct it") for each in error.problems]
        return None, faults
    if config.file is None:
        return config, [Finding("configuration", OK, "defaults, as there is no file")]
    url = config.server.database
    in_file = config.origins.get("server.database", "").startswith(str(config.file))
    if in_file and url != without_password(url) and config.file.stat().st_mode & 0o077:
        told = f"{config.file} holds a password, and others can read it"
        return config, [Finding("configuration", WARNING, told, f"chmod 600 {config.file}")]
    return config, [Finding("configuration", OK, f"{config.file}{', as the server read it' if read else ''}")]


def _read_by_the_server(directory: Directory) -> Path | None:
    with contextlib.suppress(FairleadError):  # which is told where the server is looked at
        running = directory.running()
        return Path(running.config) if running is not None and running.config else None
    return None


def _state(patient: Patient) -> Iterator[Finding]:
    path = patient.directory.path
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding("state directory", OK, f"{path} is made by the first `fairlead up`")
        else:
            told = f"{path} is not there, and {above} cannot be written"
            yield Finding("state directory", PROBLEM, told, "choose another one with --state DIR")
        return
    found = path.stat()
    if found.st_uid != os.geteuid():
        told = f"{path} belongs to {account(found.st_uid)}"
        yield Finding("state directory", PROBLEM, told, "be that user, or choose another one with --state DIR")
    elif found.st_mode & 0o077:
        told = f"{path} is open to others (mode {found.st_mode & 0o777:03o})"
        yield Finding("state directory", WARNING, told, f"chmod 700 {path}")
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Finding("state directory", PROBLEM, f"{path} cannot be written", f"chmod 700 {path}")
    else:
        yield Finding("state directory", OK, f"{path}, yours alone")


def _disk(patient: Patient) -> Iterator[Finding]:
    path = patient.directory.path
    there = path if path.exists() else next(parent for parent in path.parents if parent.exists())
    usage = shutil.disk_usage(there)
    told = f"{usage.free / 2**30:.1f} GiB of {usage.total / 2**30:.1f} GiB are free at {there}"
    if usage.free >= _LITTLE:
        yield Finding("free disk", OK, told)
    else:
        remedy = f"delete what is not needed, such as old jobs in {path / 'jobs'}"
        yield Finding("free disk", PROBLEM if usage.free < _TOO_LITTLE else WARNING, told, remedy)


def _database(patient: Patient) -> Iterator[Finding]:
    if patient.config is None or surroundings.missing(surroundings.SERVER_PACKAGES):
        return  # that is a problem already
    if not patient.config.server.database and not patient.directory.path.exists():
        yield Finding("database", OK, "is made by the first `fairlead up`")
        return
    from fairlead.server.cluster import check
    from fairlead.server.identity import ForeignDatabase
    from fairlead.server.inspecting import inspect

    url = patient.config.database_url(patient.directory.path)
    found = inspect(url)
    if found is not None and found.broken:
        more = f" (and {len(found.broken) - 1} more)" if len(found.broken) > 1 else ""
        yield Finding("database", PROBLEM, f"{found.name} is damaged: {found.broken[0]}{more}", _RESTORE)
        return
    try:
        checked = check(patient.directory, url)
    except ForeignDatabase as error:
        if patient.directory.running() is None:
            yield Finding("database", PROBLEM, error.found, error.remedy)
        else:  # which was named to it on the command line
            remedy = "say in [server] database which one it is; the next `fairlead up` refuses any other"
            yield Finding("database", WARNING, f"the server uses another database: {error.found}", remedy)
        return
    if checked.pair.notice:
        yield Finding("cluster", WARNING, checked.pair.notice, "the next `fairlead up` goes on from there")
    elif checked.directory.cluster is not None:
        yield Finding("cluster", OK, f"{checked.directory.cluster.cluster}, of the state directory and of the database")
    yield from _journal(found) if found is not None else [Finding("database", OK, "is made by the first `fairlead up`")]


def _journal(found: Inspected) -> Iterator[Finding]:
    if not found.current:
        yield Finding(
            "database", OK, f"{found.name} is of an older version, or empty; the next `fairlead up` sees to it"
        )
        return
    if found.checksums is False:
        told = f"{found.name} is current, but PostgreSQL keeps no checksums, and would not notice a damaged page"
        yield Finding("database", WARNING, told, "stop PostgreSQL, and switch them on with pg_checksums --enable")
    else:
        yield Finding("database", OK, f"{found.name} is current and whole")
    if found.damaged:
        more = f" (and {len(found.damaged) - 1} more)" if len(found.damaged) > 1 else ""
        told = found.damaged[0] + more
        if found.mendable:
            yield Finding("journal", WARNING, told, "the next `fairlead up` puts it aside and goes on without it")
        else:
            yield Finding("journal", PROBLEM, told, _RESTORE)
    elif found.last is None:
        yield Finding("journal", OK, "is empty")
    else:
        yield Finding("journal", OK, f"all {counted(found.count, 'message')} are whole, and can be replayed")
        yield from _clock(found.last[1])


def _clock(last_at: float) -> Iterator[Finding]:
    behind_s = last_at - time.time()
    if behind_s > 1.0:
        told = f"it is {moment(time.time())}, which is {span(behind_s)} before the last message of the journal"
        yield Finding(
            "clock against journal", WARNING, told, "set the clock; until then, times go on from the journal's"
        )
    else:
        yield Finding("clock against journal", OK, f"the last message is {span(-behind_s)} old")


def _token(patient: Patient) -> Iterator[Finding]:
    directory = patient.directory
    if not os.path.lexists(directory.token):
        yield Finding("token", OK, "is made by the next `fairlead up`")
        return
    token = directory.read_token()
    if token is None:
        yield Finding("token", PROBLEM, f"{directory.token} is empty", "remove it, and start the server again")
    else:
        yield Finding("token", OK, f"{directory.token}, yours alone")


def _left_behind(patient: Patient) -> Iterator[Finding]:
    """Processes of attempts that nothing guards. A server that runs ends them by itself."""
    left = left_behind(patient.directory.jobs) if patient.directory.running() is None else []
    if left:
        jobs = ", ".join(sorted({each.job for each in left}))
        pids = sorted(pid for each in left for pid in each.pids)
        named = ", ".join(map(str, pids[:10])) + (", ..." if len(pids) > 10 else "")
        count = f"{len(pids)} process{'es' * (len(pids) != 1)}"
        told = f"{count} of jobs whose supervisors were killed ({jobs}): {named}"
        yield Finding("left behind", WARNING, told, f"`fairlead up{state_option(patient.directory)}` ends them")


def _server(patient: Patient) -> Iterator[Finding]:
    running, here = patient.directory.running(), state_option(patient.directory)
    if running is None:
        if jobs := patient.directory.unattended():
            remedy = f"`fairlead up{here}` takes {'it' if len(jobs) == 1 else 'them'} up again"
            yield Finding("server", WARNING, run_on(jobs), remedy)
        else:
            yield Finding("server", OK, f"none runs; start one with `fairlead up{here}`")
        return
    who, log = f"process {running.pid}", patient.directory.log
    if running.url is None:
        told = f"{who} is starting or stopping"
        yield Finding("server", WARNING, told, f"look again in a moment; {log} tells what it does")
        return
    try:
        Http(lambda: Server(running.url or ""), Patience(first_s=2.0, call_s=10.0)).json("GET", "/readyz")
    except ClientError as error:
        remedy = f"see {log}, and restart it: fairlead down{here} --keep-jobs; fairlead up{here} --detach"
        yield Finding("server", PROBLEM, f"{who} at {running.url} is not ready: {error}", remedy)
    else:
        yield Finding("server", OK, f"{who} at {running.url} is ready, version {running.version}")
