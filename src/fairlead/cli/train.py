"""`fairlead train`: an elastic training job on this machine, without any server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import click

from fairlead.cli.errors import reports_errors
from fairlead.cli.output import counted
from fairlead.cli.train_output import EventFile, Teller, print_summary, say
from fairlead.core.errors import InvalidSpec
from fairlead.goodput.search import Measured, ScalingEfficiency, Search, UtilityOverCost, Worthwhile, parse_utility
from fairlead.train.agent import PREEMPTED, Agent, Patience, Slot
from fairlead.train.history import History
from fairlead.train.steering import Decided, Steering
from fairlead.train.wire import Message

#: The exit code of a job whose workers were killed: 128 + SIGKILL. What it learned may be lost.
KILLED = 137

#: A size is measured this many times as long before the search steps back from it, and remembered this many times as
#: long as that: the proportions of `goodput.search`.
ENOUGH, REMEMBERED = 10, 200

#: Options that mean nothing unless the job is scaled.
_AUTOSCALE = ("start", "step", "threshold", "utility", "price", "every_steps")

_POSITIVE = click.IntRange(min=1)


class _Amount(click.FloatRange):
    """A number that is one, and has an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number.", param, ctx)


_OPTIONS = (
    click.option("--gpus", default="auto", show_default=True, metavar="N|A-B|auto",
                 help="Workers, one on each GPU; with --autoscale at most N, or from A to B. auto: all GPUs there are, "
                 "or else all CPU cores."),
    click.option("--autoscale", is_flag=True, help="Find out while it trains how many workers are worthwhile."),
    click.option("--start", type=_POSITIVE, metavar="N", help="Workers to begin with.  [default: the fewest allowed]"),
    click.option("--step", type=_POSITIVE, metavar="N", help="Workers to come or go at a time.  [default: 1]"),
    click.option("--threshold", type=_Amount(0.0, 1.0), metavar="SHARE",
                 help="A worker more has to add this share of what one adds now.  [default: 0.1]"),
    click.option("--utility", metavar="VALUES",
                 help="Instead of --threshold: what the job is worth by when it is done, in seconds. "
                 "linear:100,3600 or 100:1800,40:3600."),
    click.option("--price", type=_Amount(min=0.0), metavar="PRICE",
                 help="With --utility: of one worker for an hour.  [default: 1]"),
    click.option("--every-steps", type=_POSITIVE, metavar="N",
                 help="Steps to measure before a size is left, and ten times as many before stepping back.  "
                 "[default: 10]"),
    click.option("--checkpoints", type=click.Path(file_okay=False), metavar="DIR",
                 help="Where the job saves itself and goes on from, unless its script names another place."),
    click.option("--logs", type=click.Path(file_okay=False), metavar="DIR",
                 help="A file of output for each worker, instead of all on this terminal."),
    click.option("--max-restarts", type=click.IntRange(min=0), default=3, show_default=True, metavar="N",
                 help="How many lost workers are replaced before the job is given up."),
    click.option("--grace", "grace_s", type=_Amount(min=0.0), default=30.0, show_default=True, metavar="SECONDS",
                 help="From being told to stop (Ctrl-C) until being killed."),
    click.option("--events", type=click.Path(dir_okay=False), metavar="FILE",
                 help="Append everything that happens, a line of JSON each."),
    click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
                 help="Form of the summary: a table on standard error, or the last line of standard output."),
)  # fmt: skip


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@_options
@reports_errors
def train(command: tuple[str, ...], gpus: str, output: str, events: str | None, **options: Any) -> None:
    """Run an elastic training job on this machine.

    Its script uses fairlead.train. Ctrl-C asks it to exit, with 143, and to save if there is a place for checkpoints;
    the same command then goes on from there. A second Ctrl-C kills it. Else the exit code is the job's; but 2 may also
    mean an option that cannot be meant, and then nothing was run.
    """
    if not command:
        raise InvalidSpec("there is no command to run; expected: fairlead train [options] -- python train.py")
    place = find_place(os.environ)
    search = search_of(gpus, place, **{name: options[name] for name in ("autoscale", *_AUTOSCALE)})
    env = environment(os.environ, place, options["checkpoints"])
    for name in ("checkpoints", "logs"):
        if options[name] is not None:
            _make_directory(name, options[name])
    agent_options = {
        "env": env,
        "logs": None if options["logs"] is None else Path(options["logs"]),
        "max_restarts": options["max_restarts"],
        "patience": Patience(grace_s=options["grace_s"]),
        "devices": place.devices,
    }
    with _opened(events) as file:
        run = Run(command, search, place, file, agent_options)
        code = asyncio.run(run.until_over())
        print_summary(run.history, run.decisions, code, slot=place.slot, output=output)
        run.say_last(code)
    sys.exit(code)


# -- where it runs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What this machine has for workers."""

    count: int
    #: CUDA_VISIBLE_DEVICES of each; None if there are no GPUs, and CPU cores stand in for them.
    devices: tuple[str, ...] | None

    @property
    def slot(self) -> str:
        return "CPU slot" if self.devices is None else "GPU"


def find_place(env: Mapping[str, str], dev: Path = Path("/dev")) -> Place:
    """The GPUs that may be used, or else CPU cores."""
    if (visible := env.get("CUDA_VISIBLE_DEVICES")) is not None:
        named = [name.strip() for name in visible.split(",") if name.strip()]
        devices = tuple(named[: named.index("-1")] if "-1" in named else named)  # CUDA stops at the first such
    else:
        found = [path for path in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
        devices = tuple(str(place) for place in range(len(found) or _told_by_nvidia_smi(env)))
    if devices:
        return Place(len(devices), devices)
    return Place(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, None)


def _told_by_nvidia_smi(env: Mapping[str, str]) -> int:
    """Under WSL, GPUs have no devices of their own."""
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return 0
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=30.0)
        return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return 0


def environment(env: Mapping[str, str], place: Place, checkpoints: str | None) -> dict[str, str]:
    """Of a worker."""
    # Decisions and lines of progress wait for reports, which are small.
    defaults = {"FAIRLEAD_REPORT_S": "1"}
    if place.devices is None:
        defaults["OMP_NUM_THREADS"] = "1"  # a slot is one core
    given = {} if checkpoints is None else {"FAIRLEAD_CHECKPOINTS": str(Path(checkpoints).absolute())}
    return {**defaults, **env, **given}


def _make_directory(name: str, path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSpec(f"--{name}: cannot make the directory {path}: {error.strerror}") from None


def _opened(path: str | None) -> contextlib.AbstractContextManager[IO[bytes] | None]:
    try:
        return contextlib.nullcontext() if path is None else Path(path).open("ab", buffering=0)
    except OSError as error:
        raise InvalidSpec(f"--events: cannot write {path}: {error.strerror}") from None


# -- how many workers --------------------------------------------------------------------------------------------------


def search_of(gpus: str, place: Place, *, autoscale: bool, **options: Any) -> Search:
    """Within which bounds, and by which rules. Without --autoscale there is one size, and nothing to search."""
    least, most = _bounds(gpus, place, autoscale=autoscale)
    if not autoscale:
        for name, value in options.items():
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise InvalidSpec(f"{option} says how to scale the job; add --autoscale, or leave {option} out")
        return Search(least=most, most=most, step=1, start=most)
    start, step, every_steps = options["start"] or least, options["step"] or 1, options["every_steps"] or 10
    if not least <= start <= most:
        raise InvalidSpec(f"--start is {start}; expected from {least} to {most}, which --gpus allows")
    return Search(
        least=least,
        most=most,
        step=step,
        start=start,
        worthwhile=_worthwhile(options["threshold"], options["utility"], options["price"]),
        every_steps=every_steps,
        enough_steps=ENOUGH * every_steps,
    )


def _bounds(gpus: str, place: Place, *, autoscale: bool) -> tuple[int, int]:
    """The fewest and most workers."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)", gpus)
    if gpus != "auto" and match is None:
        raise InvalidSpec(f"--gpus is {gpus!r}; expected a number, a range such as 1-8, or auto")
    first, last = match.groups() if match is not None else (None, str(place.count))
    least, most = int(first or 1), int(last)
    if first is not None and not autoscale:
        raise InvalidSpec(f"--gpus is {gpus}, a range; add --autoscale, or give one number")
    if not 1 <= least <= most:
        raise InvalidSpec(f"--gpus is {gpus}; expected at least 1, and in a range the smaller number first")
    if place.devices is not None and most > place.count:
        raise InvalidSpec(f"--gpus is {gpus}, but there are {place.count} GPUs here; give at most {place.count}")
    return least, most


def _worthwhile(threshold: float | None, utility: str | None, price: float | None) -> Worthwhile:
    if utility is None:
        if price is not None:
            raise InvalidSpec("--price is compared with --utility; add --utility, or leave --price out")
        return ScalingEfficiency() if threshold is None else ScalingEfficiency(threshold)
    if threshold is not None:
        raise InvalidSpec("--threshold and --utility are two ways to say what is worthwhile; leave one of them out")
    return UtilityOverCost(parse_utility(utility), (1.0 if price is None else price) / 3600.0)


# -- running -----------------------------------------------------------------------------------------------------------


class Run:
    """One job under its agent, and everybody who hears of it."""

    def __init__(
        self,
        command: Sequence[str],
        search: Search,
        place: Place,
        file: IO[bytes] | None,
        agent_options: Mapping[str, Any],
    ) -> None:
        self._command, self._place = list(command), place
        self._scaled = search.least < search.most
        slots = [Slot("localhost", gpu) for gpu in range(search.most)]
        horizon_steps = float(ENOUGH * REMEMBERED * search.every_steps)
        self._steering = Steering(slots, search, measured=Measured(horizon_steps), on_decision=self._decided)
        self._teller = Teller(self.history, place.slot, logs=agent_options["logs"] is not None)
        self._file = EventFile(file)
        self._agent = Agent(command, on_event=self._hear, **agent_options)
        self._saves = "FAIRLEAD_CHECKPOINTS" in agent_options["env"]
        self._grace_s = agent_options["patience"].grace_s
        self._interrupts = 0
        self._in_time = True
        #: Its script ended as if all were well, but has never trained.
        self._untrained = False

    @property
    def history(self) -> History:
        return self._steering.history

    @property
    def decisions(self) -> list[Decided]:
        return self._steering.decisions if self._scaled else []

    async def until_over(self) -> int:
        if self._place.devices is None:
            cores = counted(self._place.count, "CPU core")
            say(f"note: there is no GPU here; workers run on CPU slots instead, and this machine has {cores}")
        loop = asyncio.get_running_loop()
        job = loop.create_task(self._agent.run(self._steering.first))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
                loop.add_signal_handler(number, self._interrupted, job)
        try:
            code = await job
        except asyncio.CancelledError:
            return KILLED
        if not self._untrained:
            return code
        return 0 if len(self._steering.first) == 1 else 1

    def _interrupted(self, job: asyncio.Task[int]) -> None:
        self._interrupts += 1
        self._teller.interrupted()
        if self._interrupts == 1:
            say(f"stops; has {self._grace_s:g} s to save, or press Ctrl-C again to kill it")
            self._agent.stop()
        else:
            job.cancel()

    def _hear(self, event: Message) -> None:
        self._file.write(event)
        if self._scaled:
            self._steering.hear(event, self._agent)
        else:
            self.history.note(event)
        self._teller.tell(event)
        if event["kind"] == "exited":
            self._exited(event)
        elif event["kind"] == "ended" and event["why"]:
            say(f"error: {event['why']}{self._advice(event['code'])}")

    def _exited(self, event: Message) -> None:
        if self._interrupts and event["code"] != PREEMPTED and event["stage"] == "member":
            self._in_time = False
        if event["stage"] == "booting" and event["code"] == 0 and not self.history.transitions:
            # It would be taken for lost, and started again.
            self._untrained = True
            self._agent.stop()

    def _decided(self, decided: Decided) -> None:
        event = {"kind": "decision", "at": time.time(), **asdict(decided)}
        self._file.write(event)
        self._teller.tell(event)

    def _advice(self, code: int) -> str:
        name = self._command[0]
        if code == 127 and name.endswith(".py"):
            return f"; to run a script, say: fairlead train -- python {shlex.join(self._command)}"
        return ""

    def say_last(self, code: int) -> None:
        """What to do next."""
        if self._untrained:
            copies = len(self._steering.first)
            told = "the command has ended without training with fairlead.train, so it was neither scaled nor saved"
            if copies == 1:
                say(f"note: {told}")
            else:
                say(f"error: {told}; {copies} copies of it ran side by side. Call fairlead.train.init in its script, "
                    "or use --gpus 1")  # fmt: skip
        elif code == KILLED and self._interrupts > 1:
            say("killed; what it learned since its last checkpoint is lost")
        elif code == PREEMPTED and not self._in_time:
            say(f"stopped, but it took longer than {self._grace_s:g} s to save; give it more with --grace")
        elif code == PREEMPTED and (self._saves or self.history.saves):
            say("stopped; run the same command again to go on")
        elif code == PREEMPTED:
            say("stopped; with --checkpoints DIR, the same command would go on from here next time")
