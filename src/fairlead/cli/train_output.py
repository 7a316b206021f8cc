"""What `fairlead train` says while a job runs, in one line each, and its summary at the end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any

import click

from fairlead.cli.output import counted
from fairlead.sim.report.wording import NONE, duration
from fairlead.train.history import History, Transition
from fairlead.train.steering import Decided
from fairlead.train.wire import Message

#: Seconds between two lines of progress.
PROGRESS_S = 10.0


def say(text: str) -> None:
    """On standard error; whether anybody still reads that is no matter of the job's."""
    with contextlib.suppress(OSError):
        click.echo(f"fairlead: {text}", err=True)


class Teller:
    """Tells people what an agent's events mean for them. `history` has to know of an event first."""

    def __init__(self, history: History, slot: str) -> None:
        self._history, self._slot = history, slot
        self._told = 0
        self._progress_s = 0.0

    def tell(self, event: Message) -> None:
        for line in self._lines(event):
            say(f"{self._history.elapsed_s:.1f} s: {line}")

    def _lines(self, event: Message) -> Iterator[str]:
        yield from self._transitions(event)
        match event["kind"]:
            case "started":
                yield f"{event['worker']} starts on {self._slot} {event['gpu']}"
            case "exited" if event["code"] < 0 and event["stage"] == "member":
                yield f"{event['worker']} was killed by signal {-event['code']}"
            case "exited" if event["code"] < 0 and event["stage"] in ("booting", "ready"):
                yield f"{event['worker']} has ended before it trained"
            case "hung":
                yield f"{event['worker']} hangs"
            case "decision":
                yield event["why"]
            case "report":
                yield from self._progress()

    def _transitions(self, event: Message) -> Iterator[str]:
        """Each once, as soon as its pause is known or will never be."""
        every = self._history.transitions
        while self._told < len(every):
            change = every[self._told]
            reported = event["kind"] == "report" and [step[0] for step in event["steps"][-1:]] == [change.after]
            over = self._told < len(every) - 1
            if change.before and change.pause_s is None and not reported and not over:
                return
            self._told += 1
            told = f"trains with {counted(change.after, 'worker')}"
            if not change.before:
                yield f"{told} from step {self._history.first_step} on"
            else:
                yield told if change.pause_s is None else f"{told}, pause {pause(change)}"

    def _progress(self) -> Iterator[str]:
        """Once in a while, if there is something to say."""
        history = self._history
        pace = history.paces.get(history.size)
        if pace is None or history.remaining_samples is None or history.elapsed_s - self._progress_s < PROGRESS_S:
            return
        self._progress_s = history.elapsed_s
        left = duration(history.remaining_samples / pace.throughput)
        done = f"{history.progress:.0%} done with {counted(history.size, 'worker')}"
        yield f"{done}, {pace.throughput:.4g} samples/s, about {left} left"


def pause(transition: Transition) -> str:
    if transition.pause_s is None:
        return NONE
    return f"{1000 * transition.pause_s:.0f} ms" if transition.pause_s < 1.0 else duration(transition.pause_s)


def summary(history: History, decisions: Sequence[Decided], code: int) -> dict[str, Any]:
    """For programs."""
    return {
        "code": code,
        "seconds": history.elapsed_s,
        "gpu_s": history.gpu_s,
        "progress": history.progress,
        "sizes": [
            {"workers": workers, "steps": pace.steps, "samples_per_s": pace.throughput}
            for workers, pace in sorted(history.paces.items())
        ],
        "transitions": [asdict(transition) for transition in history.transitions],
        "decisions": [asdict(decided) for decided in decisions],
    }


def print_summary(history: History, decisions: Sequence[Decided], code: int, *, slot: str, output: str) -> None:
    """The table belongs to what is said of the job; JSON is the last line of standard output, after the workers'."""
    if output == "json":
        click.echo(json.dumps(summary(history, decisions, code), allow_nan=False))
        return
    say(f"exit code {code} after {duration(history.elapsed_s)}, {slot} time {duration(history.gpu_s)}")
    sizes = [
        (str(workers), str(pace.steps), f"{pace.throughput:.4g}") for workers, pace in sorted(history.paces.items())
    ]
    changes = [
        (f"{change.before} to {change.after}", duration(change.at_s), pause(change))
        for change in history.transitions
        if change.before
    ]
    with contextlib.suppress(OSError):
        for line in (*_table(("workers", "steps", "samples/s"), sizes), *_table(("change", "after", "pause"), changes)):
            click.echo(line, err=True)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Right-aligned columns; nothing if there are no rows."""
    if not rows:
        return
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


class EventFile:
    """Takes every event as a line of JSON; if it cannot be written to any more, the job goes on without."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file

    def write(self, event: Message) -> None:
        if self._file is None:
            return
        try:
            told = {name: value for name, value in event.items() if name != "token"}  # which is a secret
            self._file.write(json.dumps(told).encode() + b"\n")
        except OSError as error:
            say(f"warning: no more events are written to {self._file.name}: {error.strerror}")
            self._file = None
