"""A real browser for tests, driven over two pipes with the DevTools protocol. No driver, no port, no network."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

#: The browser expects its pipes at 3 and 4: put them there, by way of numbers that cannot collide, and become it.
_LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Page:
    """One page at one size and colour scheme. `complaints` is what its console said, errors first to last."""

    def __init__(self, browser: str, profile: Path, *, width: int, dark: bool = False, timeout_s: float = 60.0) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        command = [browser, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(their_in), str(their_out), *command],
            pass_fds=(their_in, their_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        try:
            self._attach(width, dark)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _attach(self, width: int, dark: bool) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, file: Path) -> None:
        self.call("Page.navigate", url=file.absolute().as_uri())
        while self.evaluate("document.readyState") != "complete":
            time.sleep(0.05)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is painted."""
        painted = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        self.call("Runtime.evaluate", expression=painted, awaitPromise=True)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def screenshot(self, file: Path) -> None:
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._listen(answer)

    def _listen(self, event: dict[str, Any]) -> None:
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        if event.get("method") in kinds:
            self.complaints.append(json.dumps(event["params"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left_s = self._deadline - time.monotonic()
            ready, _, _ = select.select([self._in], [], [], max(0.0, left_s))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser ended or did not answer in time")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer
