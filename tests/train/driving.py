"""Real jobs in real processes, driven step by step: nothing here waits for longer than it has to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairlead.train.agent import Agent, Patience, Slot, Worker

SCRIPT = Path(__file__).parent / "script.py"
#: Generous, as only a test that fails waits for so long.
TIMEOUT_S = 400.0


class Drive:
    """One job under an agent, and what a test does to it."""

    def __init__(
        self,
        out: Path,
        *,
        patience: Patience | None = None,
        env: dict[str, str] | None = None,
        max_restarts: int = 3,
        **options: Any,
    ) -> None:
        self.out, self.events = out, list[dict[str, Any]]()
        told = {"epochs": 10_000, "pace_s": 0.005, **options}
        env = {**os.environ, **(env or {}), "OUT": str(out), "OPTIONS": json.dumps(told)}
        self.agent = Agent(
            [sys.executable, str(SCRIPT)],
            env=env,
            logs=out / "logs",
            max_restarts=max_restarts,
            patience=patience or Patience(grace_s=20.0),
            on_event=self.events.append,
        )
        self._ended: asyncio.Task[int] | None = None

    def run(self, workers: int, play: Callable[[Drive], Awaitable[None]]) -> int:
        """Start so many workers, let a test play with them, stop the job unless it has ended, and return its code."""

        async def whole() -> int:
            self._ended = asyncio.create_task(self.agent.run(slots(workers)))
            try:
                await play(self)
                self.agent.stop()
                return await self._ended
            finally:
                self._ended.cancel()

        try:
            return asyncio.run(asyncio.wait_for(whole(), TIMEOUT_S))
        except TimeoutError:
            raise AssertionError(f"not over after {TIMEOUT_S:g} s:\n{self.told()}") from None

    async def size(self, workers: int) -> None:
        """Resize, and wait until everybody trains and a few steps were done so."""
        self.agent.resize(slots(workers))
        await self.settled(workers)

    async def settled(self, workers: int) -> None:
        await self.until(lambda: self.agent.settled and len(self.agent.members) == workers)
        done = self.steps()
        await self.until(lambda: self.steps() >= done + 5)

    async def ended(self) -> None:
        assert self._ended is not None
        await self._ended

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert self._ended is not None
            assert not self._ended.done(), f"the job has ended:\n{self.told()}"
            await asyncio.sleep(0.02)

    def member(self, rank: int) -> Worker:
        return self.agent.worker(rank)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.member(rank).process.pid, number)

    def steps(self) -> int:
        return max((row["step"] for row in rows(self.out)), default=0)

    def told(self) -> str:
        logs = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.out.glob("logs/*")))
        return "\n".join(map(str, self.events[-30:])) + "\n" + logs


def slots(workers: int) -> list[Slot]:
    return [Slot("n0", gpu) for gpu in range(workers)]


def rows(out: Path) -> list[dict[str, Any]]:
    """What all workers wrote down, without lines that are only half there."""
    found = []
    for path in sorted(out.glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(json.loads(line) | {"worker": path.stem})
    return found


def trajectory(out: Path) -> dict[int, dict[str, Any]]:
    """Every step once. All who took part in it must agree, also those who did it again after a restart."""
    steps: dict[int, dict[str, Any]] = {}
    for row in rows(out):
        known = steps.setdefault(row["step"], row)
        assert abs(known["loss"] - row["loss"]) <= 1e-9 * abs(known["loss"]), (known, row)
        assert abs(known["weights"] - row["weights"]) <= 1e-9 * known["weights"], (known, row)
    return dict(sorted(steps.items()))
