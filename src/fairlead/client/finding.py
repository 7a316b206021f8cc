"""Where the server is and what to show it: two environment variables, or two files of its state directory, which a
third one may name."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fairlead.client.errors import ClientError, NoServer

NONE_HERE = "no Fairlead server runs here; start one with: fairlead up"


@dataclass(frozen=True)
class Server:
    """A server's address, and the token that says who asks."""

    url: str
    #: Never shown.
    token: str | None = field(default=None, repr=False)

    @property
    def local(self) -> bool:
        """Is it on this machine?"""
        return _local(self.url)


def default_state(env: Mapping[str, str] = os.environ) -> Path:
    """FAIRLEAD_STATE, or the directory of the server that a user runs for himself."""
    if named := env.get("FAIRLEAD_STATE", "").strip():
        return Path(named).expanduser()
    base = env.get("XDG_STATE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "fairlead"


def find_server(state: Path | None = None, *, env: Mapping[str, str] = os.environ) -> Server:
    """The server of a state directory that was named; or of FAIRLEAD_URL; or of the default state directory."""
    url = env.get("FAIRLEAD_URL", "").strip()
    if state is None and url:
        return Server(_checked(url), _token_of(env) or _token_if_ours(url, default_state(env)))
    directory = state or default_state(env)
    url = _running(directory, start="" if state is None else f" --state {shlex.quote(str(state))}")
    given = None if state is not None else _token_of(env)
    return Server(url, given or read_token(directory / "token"))


def read_token(path: Path) -> str | None:
    """The token in a file that nobody else can read; None if there is no such file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise ClientError(
                    f"the token in {path} can be read by others (mode {stat.S_IMODE(mode):03o}), and is not used; "
                    f"make it your own with: chmod 600 {path}"
                )
            return file.read(10_000).decode("ascii", "replace").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClientError(f"cannot read the token in {path}: {error.strerror}; set FAIRLEAD_TOKEN instead") from None


def _token_of(env: Mapping[str, str]) -> str | None:
    # A worker of an elastic job finds another token by this name: that of its agent.
    return None if "FAIRLEAD_AGENT" in env else env.get("FAIRLEAD_TOKEN", "").strip() or None


def _token_if_ours(url: str, directory: Path) -> str | None:
    """A token is shown to no server but its own."""
    try:
        ours = _running(directory) == _checked(url)
    except NoServer:
        return None
    return read_token(directory / "token") if ours else None


def _checked(url: str) -> str:
    parts = urlsplit(url)
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        good = False
    if not good:
        raise ClientError(f"FAIRLEAD_URL is {url!r}; expected an address such as http://127.0.0.1:7447")
    return url.rstrip("/")


def _running(directory: Path, *, start: str = "") -> str:
    """The address in a state directory, unless the process that wrote it is gone. `start` is for `fairlead up`."""
    try:
        found = json.loads((directory / "server.json").read_text(encoding="utf-8"))
        url, pid = str(found["url"]).rstrip("/"), int(found.get("pid") or 0)
    except FileNotFoundError:
        raise NoServer(NONE_HERE + start) from None
    except PermissionError:
        told = f"{directory} belongs to another user; ask for a token, and set FAIRLEAD_URL and FAIRLEAD_TOKEN"
        raise NoServer(told) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = f"{directory / 'server.json'} cannot be read ({error}); restart the server: fairlead up{start}"
        raise NoServer(told) from None
    if pid > 0 and _local(url) and not _alive(pid):
        raise NoServer(NONE_HERE + start)
    return url


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # somebody else's
    return True


def _local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
