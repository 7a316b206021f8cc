"""The real API over a control plane whose jobs do nothing, and the command as one of its users types it."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner, Result

from fairlead.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "server"))
from still import StillPlane  # it stands beside the tests of the server


class Live:
    """A control plane behind a real socket, and the command as one of its users types it."""

    def __init__(self, plane: StillPlane, url: str, states: Path) -> None:
        self.plane, self.controller, self.url, self._states = plane, plane.controller, url, states

    def state(self, user: str) -> Path:
        """The state directory of a server that this user runs."""
        directory = self._states / user
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "server.json").write_text(json.dumps({"url": self.url, "pid": None}))
        (directory / "token").write_text(self.plane.tokens[user])
        (directory / "token").chmod(0o600)
        return directory

    def run(self, *args: object, user: str = "ann", stdin: str | None = None, code: int | None = 0) -> Result:
        """The verb comes first, and --state after it. `code` is what it has to exit with; None is anything."""
        verb, *rest = [str(arg) for arg in args]
        place = 1 if verb == "user" else 0
        rest[place:place] = ["--state", str(self.state(user))]
        result = CliRunner().invoke(main, [verb, *rest], prog_name="fairlead", input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert code in (None, result.exit_code), result.stderr
        return result

    def json(self, *args: object, user: str = "ann") -> Any:
        verb, *rest = args
        return json.loads(self.run(verb, "-o", "json", *rest, user=user).stdout, parse_constant=pytest.fail)

    def submit(self, *args: object, user: str = "ann") -> str:
        """A job that runs for ever, unless told otherwise; its id."""
        words = [*args] if "--" in args else [*args, "--", "sleep", "1d"]
        return self.run("submit", "-q", *words, user=user).stdout.strip()


@contextmanager
def serving(directory: Path) -> Iterator[Live]:
    """For as long as it is open; `directory` is empty."""
    (directory / "server").mkdir()
    with StillPlane(directory / "server") as plane:
        server = uvicorn.Server(uvicorn.Config(plane.app, port=0, log_level="warning", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Live(plane, f"http://127.0.0.1:{port}", directory / "states")
        finally:
            plane.app.state.streams.close()
            server.should_exit = True
            thread.join()
