"""`fairlead top`: the cluster as it changes, on the whole screen."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click

from fairlead.cli.live.connect import talks
from fairlead.cli.live.drawing import View, frame
from fairlead.cli.live.showing import console, look_of
from fairlead.client.calls import Client
from fairlead.client.errors import ClientError
from fairlead.client.http import Patience
from fairlead.client.resources import ENDED, Cluster, Job
from fairlead.client.sse import ServerEvent

#: Seconds between two frames, and between two summaries of the cluster.
_FRAME_S, _SUMMARY_S = 0.5, 5.0
#: A job that ended stays in sight for so long.
_STAYS_S = 20.0


@dataclass
class Scene:
    """What is known of the cluster. Told by events; `view` is a picture of it."""

    jobs: dict[str, Job] = field(default_factory=dict)
    cluster: Cluster | None = None
    #: The goodput that each job had before the present one.
    before: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def put(self, job: Job) -> None:
        """A job as it is now. What is older than what is known is ignored."""
        known = self.jobs.get(job["id"])
        if known is not None:
            if job["seq"] < known["seq"]:
                return
            if known["goodput"] is not None and known["goodput"] != job["goodput"]:
                self.before[job["id"]] = known["goodput"]
        self.jobs[job["id"]] = job

    def forget(self, now: float) -> None:
        """Those that ended a while ago."""
        for job_id, job in list(self.jobs.items()):
            if job["state"] in ENDED and now - (job["ended_at"] or 0.0) > _STAYS_S:
                del self.jobs[job_id]
                self.before.pop(job_id, None)

    def view(self) -> View:
        return View(list(self.jobs.values()), self.cluster, self.before, self.note)


@click.command()
@talks
def top(client: Client) -> None:
    """Watch the cluster on the whole screen: every job with its GPUs, batch, goodput and progress. q leaves.

    Where there is no terminal, it prints one picture.
    """
    scene = Scene()
    _load(client, scene)
    screen = console()
    if not screen.is_terminal or not sys.stdin.isatty():
        screen.print(frame(scene.view(), look_of(screen)), soft_wrap=True)
        return
    _watch(client, scene)


def _load(client: Client, scene: Scene) -> None:
    scene.cluster = client.cluster()
    scene.jobs.clear()
    for job in client.jobs():
        scene.put(job)


#: What comes from the server while the picture is drawn: an event, a summary, a remark, or the end.
Told = ServerEvent | Cluster | str | ClientError


def _watch(client: Client, scene: Scene) -> None:
    from rich.live import Live

    screen = console()
    told: queue.SimpleQueue[Told] = queue.SimpleQueue()
    patience = Patience(tell=told.put)
    heard = str(scene.cluster["seq"]) if scene.cluster is not None else ""
    for listen in (_listen, _summarise):
        # Each has a connection of its own, and ends with the process.
        threading.Thread(target=listen, args=(client.twin(patience), told, heard), daemon=True).start()
    with keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            scene.forget(time.time())
            live.update(frame(scene.view(), look_of(screen), height=screen.height), refresh=True)
            if pressed(_FRAME_S) in ("q", "Q", ""):
                return
            _take(told, client, scene)


def _take(told: queue.SimpleQueue[Told], client: Client, scene: Scene) -> None:
    """Everything that was told since the last frame."""
    missed = False
    while not told.empty():
        news = told.get()
        if isinstance(news, ClientError):
            raise news
        if isinstance(news, str):
            scene.note = news
            continue
        scene.note = ""
        if not isinstance(news, ServerEvent):
            scene.cluster = news
        elif news.event == "job":
            scene.put(json.loads(news.data))
        elif news.event == "reset":
            missed = True
    if missed:
        _load(client, scene)


def _listen(client: Client, told: queue.SimpleQueue[Told], heard: str) -> None:
    """Changes, from the moment on that the picture began with."""
    try:
        for event in client.events(last_id=heard):
            told.put(event)
    except ClientError as error:
        told.put(error)


def _summarise(client: Client, told: queue.SimpleQueue[Told], _: str) -> None:
    try:
        while True:
            time.sleep(_SUMMARY_S)
            told.put(client.cluster())
    except ClientError as error:
        told.put(error)


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], str | None]]:
    """A function that waits so many seconds for a key: None if there is none, "" if there never will be.

    Keys come at once, and are not shown.
    """
    import select
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)

    def pressed(wait_s: float) -> str | None:
        ready, _, _ = select.select([handle], [], [], wait_s)
        try:
            return os.read(handle, 1).decode("ascii", "replace") if ready else None
        except OSError:  # the terminal is gone
            return ""

    try:
        yield pressed
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(handle, termios.TCSADRAIN, before)
