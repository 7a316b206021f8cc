"""What the tests of faults share: a server in a process of its own, its jobs' processes, and how all has to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_crashes import assert_journal_replays
from test_running import PATIENCE_S, Here, is_alive, until

from fairlead.backends.processes import COOKIE

SCRIPT = Path(__file__).parents[1] / "train" / "script.py"


class Service(Here):
    """A server that things are done to, and to its jobs. `out` is where elastic ones write down their steps."""

    def __init__(self, directory: Path, state: Path | None = None) -> None:
        super().__init__(directory)
        self.state, self.out = state or self.state, directory / "out"
        self.out.mkdir()
        self.env |= {"FAIRLEAD_SCHEDULER_MINIMUM_RUN": "0s", "FAIRLEAD_SCHEDULER_REPORT_INTERVAL": "0.5s"}

    def up(self, *, gpus: int = 1, policy: str = "fifo") -> None:
        self.fairlead("up", "--detach", "--port", 0, "--gpus", gpus, "--policy", policy)

    def kill(self, *others: int) -> None:
        """The server and some others, so soon after one another that none can do anything about it."""
        pids = (self.server["pid"], *others)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)))

    # -- asking ----------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Whatever it is."""
        headers = {"Authorization": f"Bearer {(self.state / 'token').read_text().strip()}"}
        return httpx.request(method, self.server["url"] + path, headers=headers, timeout=PATIENCE_S, **options)

    def job(self, job_id: str) -> dict[str, Any]:
        told: dict[str, Any] = self.call("GET", f"/api/v1/jobs/{job_id}")
        return told

    def ends(self, job_id: str) -> tuple[str, int, int]:
        """Wait for it: its state, attempts, and how many of them failed."""
        until(lambda: self.job(job_id)["ended_at"] is not None)
        job = self.job(job_id)
        return job["state"], job["attempt"], job["failures"]

    def told_of(self, job_id: str) -> list[str]:
        """The kinds of everything that people are told happened to it."""
        return [event["type"] for event in self.call("GET", f"/api/v1/jobs/{job_id}/events")["events"]]

    # -- processes -------------------------------------------------------------------------------------------------

    def said(self, job_id: str, attempt: int = 1) -> list[dict[str, Any]]:
        """By a job's supervisor, so far."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.state / "jobs" / job_id / f"attempt-{attempt}" / "events.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return []

    def worker(self, job_id: str, number: int, attempt: int = 1) -> int:
        """The first, second, ... that was started in an attempt."""

        def found() -> list[int]:
            return [line["pid"] for line in self.said(job_id, attempt) if line.get("what") == "worker"]

        until(lambda: len(found()) > number)
        return found()[number]

    def everybody(self) -> list[int]:
        """All processes of all jobs."""
        mark = f"{COOKIE}={self.state}/".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (process / "environ").read_bytes().split(b"\0")
                if any(each.startswith(mark) for each in variables):
                    found.append(int(process.name))
        return found

    # -- elastic training ------------------------------------------------------------------------------------------

    def train(self, *, gpus: str = "2-3", steps: int = 10_000, **fields: Any) -> str:
        """Hand in a job that is over after about so many steps, which take 20 ms each."""
        pytest.importorskip("torch", reason="it trains; pip install 'fairlead[train]'")
        options = {"epochs": max(1, steps // 34), "pace_s": 0.02, "grace_s": 30.0}
        env = {"OUT": str(self.out), "OPTIONS": json.dumps(options)}
        return self.submit(sys.executable, str(SCRIPT), gpus=gpus, env=env, backoff="0s", **fields)

    def rows(self, worker: str = "*") -> list[dict[str, Any]]:
        """What workers have written down: one for each step."""
        lines = [line for path in self.out.glob(f"{worker}.jsonl") for line in path.read_text().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def done(self, world: int | None = None) -> int:
        """The last step, of those that so many workers have done together."""
        return max((row["step"] for row in self.rows() if world in (None, row["world"])), default=0)

    def trains_on(self, steps: int, world: int | None = None) -> None:
        goal = self.done() + steps
        until(lambda: self.done(world) >= goal)

    def saved(self) -> int:
        """The step of the last checkpoint."""
        found = [path.stem.rpartition("-")[2] for path in (self.out / "checkpoints").glob("*-step-*.ckpt")]
        return max(map(int, found), default=0)

    # -- the end ---------------------------------------------------------------------------------------------------

    def ends_well(self) -> None:
        """Nothing runs any more, and the journal tells what happened."""
        self.fairlead("down")
        assert within(10.0, lambda: not self.everybody()), f"still there after the test: {self.everybody()}"
        assert_journal_replays(self.state)


def within(seconds: float, true: Callable[[], object]) -> bool:
    limit = time.monotonic() + seconds
    while not true():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
