"""What `fairlead train` says while a job runs, in one line each, and its summary at the end."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any

import click

from fairlead.cli.output import counted
from fairlead.sim.report.wording import NONE, duration, number
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

    def __init__(self, history: History, slot: str, *, logs: bool = False) -> None:
        """With `logs`, workers do not print here."""
        self._history, self._slot, self._logs = history, slot, logs
        self._told = 0
        self._progress_s = 0.0
        self._batch: int | None = None
        self._trained: set[str] = set()
        self._hung: set[str] = set()
        #: Training is over or stopped, so its agent kills whoever is late.
        self._over = False
        #: Nobody needs to be told of those who are killed.
        self._quiet = False

    def interrupted(self) -> None:
        """By the user: the first time the job should end, and the second time be killed."""
        self._over, self._quiet = True, self._over

    def tell(self, event: Message) -> None:
        for line in self._lines(event):
            say(f"{self._history.elapsed_s:.1f} s: {line}")

    def _lines(self, event: Message) -> Iterator[str]:
        yield from self._transitions(event)
        match event["kind"]:
            case "started":
                yield f"{event['worker']} starts on {self._slot} {event['gpu']}"
            case "joined":
                self._trained.add(event["worker"])
            case "exited":
                yield from self._exited(event)
            case "hung":
                self._hung.add(event["worker"])
                yield f"{event['worker']} hangs, and is killed"
            case "refused":
                yield f"{event['worker']} ended with exit code {event['code']} before it trained; the others go on"
            case "straggler":
                yield f"{event['worker']} has been slow for long, and a new process takes its place"
            case "continues" | "complete" | "foreign" | "locked" if self._logs:  # else the worker has said so itself
                yield event["text"]
            case "unsaved":
                yield f"warning: {event['why']}"
            case "ended":
                self._over = self._quiet = True
            case "decision":
                yield event["why"]
            case "report":
                self._over = self._over or event["progress"] >= 1.0
                yield from self._new_batch()
                yield from self._progress()

    def _exited(self, event: Message) -> Iterator[str]:
        """Who was killed, unless everybody knows already; and why, if its agent did it."""
        worker, code, trained = event["worker"], event["code"], event["worker"] in self._trained
        if code >= 0:  # the others will end as well, unless it comes and goes while they train
            self._over = self._over or event["stage"] == "member" or not self._trained
        elif code != -signal.SIGKILL:
            yield f"{worker} was killed by signal {-code}"
        elif self._quiet or worker in self._hung:
            return
        elif event["stage"] == "left" or (self._over and not trained):
            yield f"{worker} is not needed any more"
        elif self._over:
            yield f"{worker} was killed, as it had not ended in time"
        elif trained:
            yield f"{worker} was killed by signal {-code}"
        else:  # the first that is done tells the agent, which ends whoever boots, before the leader tells us
            yield f"{worker} has ended before it trained"

    def _new_batch(self) -> Iterator[str]:
        history = self._history
        before, self._batch = self._batch or history.first_batch, history.batch
        if self._batch != before:
            yield f"batch {before} -> {self._batch}"

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
        throughput = None if pace is None else pace.throughput
        if throughput is None or history.remaining_samples is None or history.elapsed_s - self._progress_s < PROGRESS_S:
            return
        self._progress_s = history.elapsed_s
        left = duration(history.remaining_samples / throughput)
        done = f"{history.progress:.0%} done with {counted(history.size, 'worker')}"
        yield f"{done}, {rate(throughput)} samples/s, about {left} left"


def rate(throughput: float | None) -> str:
    """Four digits at most, as no more of them would be the same the next time."""
    return NONE if throughput is None else number(float(f"{throughput:.4g}"))


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
        "batch": {"first": history.first_batch, "last": history.batch},
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
    batch = f", batch {history.first_batch} to {history.batch}" if history.batch != history.first_batch else ""
    say(f"exit code {code} after {duration(history.elapsed_s)}, {slot} time {duration(history.gpu_s)}{batch}")
    sizes = [(str(workers), str(pace.steps), rate(pace.throughput)) for workers, pace in sorted(history.paces.items())]
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
