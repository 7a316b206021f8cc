"""`fairlead up`: start the control plane of this machine, here or in the background."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fairlead import __version__
from fairlead.cli.live.connect import errors_told, state_words
from fairlead.cli.surroundings import SERVER_PACKAGES, missing
from fairlead.client.errors import ClientError
from fairlead.client.finding import Server, default_state, read_token
from fairlead.client.http import Http, Patience
from fairlead.core.errors import BackendError
from fairlead.server.config import DEFAULT_PORT, LOOPBACK, Config, load
from fairlead.server.directory import Directory, Running
from fairlead.server.keys import InvalidConfig
from fairlead.server.listening import is_loopback

if TYPE_CHECKING:
    from fairlead.server.running import Plane

STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The state directory.  [default: $FAIRLEAD_STATE, or $XDG_STATE_HOME/fairlead, or ~/.local/state/fairlead]",
)
CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration.  [default: $FAIRLEAD_CONFIG, or the first that is there; see `fairlead config path`]",
)

#: What begins a line that is told again by `up --detach`.
_NOTICE = "warning: "

#: After so long without news, whoever waits is told where to look.
_SLOW_S = 10.0


@click.command()
@click.option("--gpus", type=int, metavar="N", help="Use so many GPUs, or CPU cores if there are none.  [default: all]")
@click.option(
    "--nodes",
    metavar="SPEC",
    help="Divide them: 2x4 are two nodes of four GPUs each; fast=1x2,slow=1x2@50% have CPU cores stand in for GPUs of "
    "two types, the second with half the CPU time.",
)
@click.option("--speeds", metavar="SPEC", help="Tell policies how fast these types are, as in fast=1,slow=0.5.")
@STATE
@click.option("--host", metavar="ADDRESS", help=f"The address to listen on.  [default: {LOOPBACK}]")
@click.option("--port", type=int, metavar="P", help=f"0 is any that is free.  [default: {DEFAULT_PORT}]")
@click.option("--policy", metavar="NAME", help="Who gets how many GPUs; see `fairlead policies`.  [default: pilot]")
@click.option("--cadence", metavar="WHEN", help="When to decide: event, 60s or event+60s.  [default: event+10s]")
@click.option("--database", metavar="URL", help="SQLite or PostgreSQL.  [default: a file in the state directory]")
@CONFIG
@click.option("--detach", is_flag=True, help="Run in the background; return when it is ready.")
@click.option("--keep-jobs", is_flag=True, help="Let jobs run on when the server stops.")
@click.option("--background", is_flag=True, hidden=True, help="Is what --detach starts.")
def up(
    *, state: Path | None, file: Path | None, detach: bool, keep_jobs: bool, background: bool, **options: Any
) -> None:
    """Start the server on this machine, for yourself or for everybody you give a token.

    Without --detach it runs until Ctrl-C, which asks jobs to save and stop; they go on with the next `fairlead up`.
    """
    with errors_told(), config_told():
        directory = directory_of(state)
        file = None if file is None else file.expanduser().absolute()
        config = load(directory.path, file=file, flags=flags_of(options))
        if lacking := missing(SERVER_PACKAGES):
            raise BackendError(f"{', '.join(lacking)}: not installed; install it with: pip install 'fairlead[server]'")
        warn_of(config)
        if detach:
            _detach(directory, file, keep_jobs, options)
        else:
            _serve(directory, config, keep_jobs=keep_jobs, background=background)


def directory_of(state: Path | None) -> Directory:
    """By the one name it really has: jobs are recognised by it."""
    return Directory(Path(os.path.realpath((state or default_state()).expanduser())))


def state_option(directory: Directory) -> str:
    """What has to be added to a command for it to mean this directory."""
    return "" if directory.path == directory_of(None).path else f" {state_words(directory.path)}"


def flags_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options by the keys of the configuration."""
    sections = {
        "gpus": "cluster",
        "nodes": "cluster",
        "speeds": "cluster",
        "policy": "scheduler",
        "cadence": "scheduler",
    }
    return {f"{sections.get(name, 'server')}.{name}": value for name, value in options.items()}


@contextlib.contextmanager
def config_told() -> Iterator[None]:
    """Every problem of a configuration on a line of its own, and exit code 2."""
    try:
        yield
    except InvalidConfig as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(2)


def warn_of(config: Config) -> None:
    keys = config.server
    if not is_loopback(keys.host) and not keys.https:
        click.echo(
            f"warning: it listens on {keys.host} without TLS, so that tokens and jobs can be read on the way; put a "
            "proxy with TLS before it, and set https and hosts in [server]",
            err=True,
        )


# -- in the foreground -------------------------------------------------------------------------------------------------


def _serve(directory: Directory, config: Config, *, keep_jobs: bool, background: bool) -> NoReturn:
    from fairlead.server.running import run

    _log()
    config = replace(config, file=config.file and config.file.absolute())
    os.chdir("/")  # a server stands in nobody's way

    def ready(plane: Plane) -> None:
        # What is written to a log is read by others, and for longer than a code lives.
        logged = background or "JOURNAL_STREAM" in os.environ
        for notice in plane.notices:
            click.echo(f"{_NOTICE}{notice}", err=True)
        tell_ready(directory, plane.url, None if logged else plane.login_url())
        _tell_systemd()
        if not background:
            click.echo("Ctrl-C stops it", err=True)

    sys.exit(run(directory, config, keep_jobs=keep_jobs, tell=_tell, ready=ready))


def _tell_systemd() -> None:
    """That it is ready, if it is a unit that waits for it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.sendall(b"READY=1")


def _tell(text: str) -> None:
    click.echo(text if text.startswith("error: ") else f"fairlead: {text}", err=True)


def _log() -> None:
    """Of the server itself, with times where no person looks on."""
    form = "fairlead: %(message)s" if sys.stderr.isatty() else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=form)
    logging.getLogger("fairlead").setLevel(logging.INFO)
    logging.getLogger("fairlead.server.migrations").setLevel(logging.WARNING)


def tell_ready(directory: Directory, url: str, login: str | None) -> None:
    """What to know, and what to do next."""
    click.echo(f"Fairlead {__version__} runs at {url}")
    click.echo(f"State:   {directory.path}")
    if login is not None:
        click.echo(f"Browser: {login}  (once, within two minutes)")
    click.echo(f"Next:    fairlead submit{state_option(directory)} --gpus 1 -- python train.py")
    sys.stdout.flush()


# -- in the background -------------------------------------------------------------------------------------------------


def _detach(directory: Directory, file: Path | None, keep_jobs: bool, options: dict[str, Any]) -> None:
    directory.prepare()
    if (other := directory.running()) is not None:
        raise directory.taken(other)
    command = [sys.executable, "-m", "fairlead", "up", "--background", "--state", str(directory.path)]
    command += ["--config", str(file)] if file is not None else []
    command += ["--keep-jobs"] * keep_jobs
    env = dict(os.environ)
    if (database := options.pop("database")) is not None:
        env["FAIRLEAD_SERVER_DATABASE"] = database  # it may hold a password, and command lines are there for all to see
    for name, value in options.items():
        command += [f"--{name}", str(value)] if value is not None else []
    log = directory.open_log()
    begin = os.fstat(log).st_size
    try:
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    finally:
        os.close(log)
    try:
        running = _wait(directory, child, begin)
    except KeyboardInterrupt:
        child.terminate()
        raise
    for notice in _printed(directory, begin, _NOTICE):
        click.echo(notice, err=True)
    tell_ready(directory, running.url or "", _login(directory, running))
    click.echo(f"Stop it: fairlead down{state_option(directory)}")


def _wait(directory: Directory, child: subprocess.Popen[bytes], begin: int) -> Running:
    """Until it is ready. What kept it from that is in its log, from `begin` on."""
    slow_at = time.monotonic() + _SLOW_S
    while child.poll() is None:
        running = directory.running() if directory.server.exists() else None
        if running is not None and running.pid == child.pid and running.url is not None and _is_ready(running.url):
            return running
        if time.monotonic() > slow_at:
            click.echo(f"fairlead: it is still starting; {directory.log} tells what it does", err=True)
            slow_at = float("inf")
        time.sleep(0.05)
    raise BackendError(_why(directory, begin) or f"it ended with exit code {child.returncode}; see {directory.log}")


def _why(directory: Directory, begin: int) -> str:
    errors = [line.removeprefix("error: ") for line in _printed(directory, begin, "error: ")]
    return "\n".join(errors or _printed(directory, begin)[-5:])


def _printed(directory: Directory, begin: int, start: str = "") -> list[str]:
    """What a server in the background has printed since."""
    with directory.log.open("rb") as log:
        log.seek(begin)
        lines = log.read(2**20).decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.startswith(start)]


def _is_ready(url: str) -> bool:
    try:
        _http(Server(url)).json("GET", "/readyz")
    except ClientError:
        return False
    return True


def _login(directory: Directory, running: Running) -> str | None:
    token = read_token(directory.token)
    answer = _http(Server(running.url or "", token)).json("POST", "/api/v1/login-codes")
    return f"{running.url}{answer['path']}"


def _http(server: Server) -> Http:
    return Http(lambda: server, Patience(first_s=1.0, call_s=10.0))
