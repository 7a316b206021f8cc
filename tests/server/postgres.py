"""A private PostgreSQL server for tests. It ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

#: Waits for a line or the end of its input, which comes when the tests end; then the server ends, and its files go.
_GUARD = """
"$1/postgres" -D "$2/data" -k "$2" -p "$3" >"$2/log" 2>&1 &
read line
kill -QUIT $!
wait
rm -rf "$2"
"""

_SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 200
fsync = off
full_page_writes = off
shared_buffers = 32MB
"""


def find_binaries() -> Path | None:
    """Where the newest PostgreSQL of this machine is."""
    places = [*Path("/usr/lib/postgresql").glob("*/bin")]
    if (found := shutil.which("postgres")) is not None:
        places.append(Path(found).resolve().parent)
    places = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    return max(places, key=lambda place: [int(part) for part in place.parts if part.isdigit()], default=None)


def why_not() -> str | None:
    """What keeps PostgreSQL from being started here, if anything."""
    if find_binaries() is None:
        return "PostgreSQL is not installed (scripts/postgres installs it)"
    if os.geteuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no user postgres or nobody"
    return None


def _unprivileged() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Server:
    """Listens on a loopback port, with a database for each who asks."""

    def __init__(self) -> None:
        self._binaries = find_binaries()
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a socket has a limit
        self._as: dict[str, Any] = {}
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            somebody = _unprivileged()
            assert somebody is not None
            self._as = {"user": somebody.pw_uid, "group": somebody.pw_gid, "extra_groups": []}
            os.chown(self._folder, somebody.pw_uid, somebody.pw_gid)
        self._names = (f"test{number}" for number in count())
        self.port = _free_port()
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _start(self) -> None:
        initdb = [f"{self._binaries}/initdb", "-D", f"{self._folder}/data", "-U", "fairlead", "-A", "trust", "-N"]
        subprocess.run(
            [*initdb, "-E", "UTF8", "--locale=C"], check=True, capture_output=True, cwd=self._folder, **self._as
        )
        with (self._folder / "data" / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self._binaries), str(self._folder), str(self.port)],
            stdin=subprocess.PIPE,
            cwd=self._folder,
            start_new_session=True,  # ^C is for the tests, not for the server
            **self._as,
        )
        ready = [f"{self._binaries}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(300):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            time.sleep(0.1)
        log = (self._folder / "log").read_text()
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start:\n{log}")

    def stop(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"stop\n")  # whoever was forked since holds the other end too, so closing is not enough
        self._guard.stdin.close()
        self._guard.wait(60)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://fairlead@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *, database: str = "postgres") -> list[Any]:
        """Run a statement as the administrator; its rows."""
        import psycopg

        with psycopg.connect(self.url(database).replace("+psycopg", ""), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> str:
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
