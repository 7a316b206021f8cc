"""A worker's line to its agent: a thread hears what is said, and the training loop looks when it has time.

Without an agent (`python train.py`, or under torchrun) there is nobody to hear, and `Link` is a `Silence`. If the agent
is gone, nobody says who trains together after the next death, and nobody would end us: so we save and stop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fairlead.train.wire import ADDRESS, NAME, NOTED, NOTES, TOKEN, Message, encode, messages

#: Seconds between two signs of life, and to save and stop if the agent is gone.
BEAT_S, LOST_S = 1.0, 30.0


class Plan(NamedTuple):
    """A generation: who trains together, in the order of their ranks, and where they are."""

    generation: int
    members: tuple[str, ...]
    nodes: tuple[str, ...]
    #: The generation before cannot go on.
    broken: bool = False

    @property
    def world(self) -> int:
        return len(self.members)


class Link(Protocol):
    """What a worker knows of the world outside, and can tell it."""

    name: str
    #: The world is torchrun's, and never changes.
    fixed: bool
    #: Others train already: whoever comes late warms up first.
    running: bool
    #: Which epoch they were in.
    epoch: int

    @property
    def plan(self) -> Plan | None:
        """The latest one; None before the first."""

    @property
    def suspended(self) -> bool: ...

    @property
    def finishing(self) -> bool:
        """Somebody who has left has had enough."""

    #: Called, by any thread, when somebody wants it to stop, with the seconds it has for that.
    on_stop: Callable[[float], None]

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until something was heard that makes it so."""

    def say(self, kind: str, **fields: Any) -> None: ...

    def nudge(self) -> None:
        """Let whoever waits look again."""

    def store(self, generation: int) -> tuple[str, int] | None:
        """Where the leader of a generation can be met; None until it has said so."""


def is_over(plan: Plan, link: Link) -> bool:
    """Somebody of this generation was lost, as the agent says: it will never complete anything again."""
    newer = link.plan
    return newer is not None and newer.broken and newer.generation > plan.generation


class Silence:
    """No agent: one worker alone, or one of a fixed number under torchrun. Under the service it leaves notes in a
    file."""

    fixed, running, epoch, suspended, finishing = True, False, 0, False, False

    def __init__(self, plan: Plan, name: str, notes: str | None = None) -> None:
        self.name, self._plan, self._notes = name, plan, notes
        self.on_stop: Callable[[float], None] = lambda grace_s: None  # noqa: ARG005

    @property
    def plan(self) -> Plan:
        return self._plan

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        return until()

    def say(self, kind: str, **fields: Any) -> None:
        """What people should know. All else no process would hear."""
        if self._notes and kind in NOTED:
            with contextlib.suppress(OSError):
                handle = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                with open(handle, "wb") as file:
                    file.write(encode(kind, worker=self.name, **fields))

    def nudge(self) -> None:
        """Nobody waits."""

    def store(self, generation: int) -> None:
        return None


class AgentLink:
    """The line to an agent."""

    fixed = False

    def __init__(self, address: str, name: str, token: str, beat: Callable[[], Message]) -> None:
        host, port = address.rsplit(":", 1)
        self.name = name
        self.running, self.epoch, self.suspended, self.finishing = False, 0, False, False
        self.on_stop: Callable[[float], None] = lambda grace_s: None  # noqa: ARG005
        self._beat = beat
        self._plan: Plan | None = None
        self._stores: dict[int, tuple[str, int]] = {}
        self._heard = threading.Condition()
        self._welcome = False
        self._connection = socket.create_connection((host, int(port)), timeout=30.0)
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending = threading.Lock()
        self.say("hello", token=token, pid=os.getpid())
        threading.Thread(target=self._listen, name="fairlead-link", daemon=True).start()
        threading.Thread(target=self._beat_on, name="fairlead-beat", daemon=True).start()
        self.wait(lambda: self._welcome, 30.0)

    @property
    def plan(self) -> Plan | None:
        return self._plan

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        with self._heard:
            return self._heard.wait_for(until, timeout_s)

    def say(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(OSError), self._sending:
            self._connection.sendall(encode(kind, worker=self.name, **fields))

    def store(self, generation: int) -> tuple[str, int] | None:
        return self._stores.get(generation)

    def nudge(self) -> None:
        """Let whoever waits look again."""
        with self._heard:
            self._heard.notify_all()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for message in messages(self._connection):
                with self._heard:
                    self._hear(message)
                    self._heard.notify_all()
        self.on_stop(LOST_S)

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "welcome":
            self.running, self.epoch, self._welcome = message["running"], message["epoch"], True
            self.suspended = message["suspended"]
        elif kind == "plan":
            members, nodes = tuple(message["members"]), tuple(message["hosts"])
            self._plan = Plan(message["generation"], members, nodes, broken=bool(message["lost"]))
        elif kind == "store":
            self._stores[message["generation"]] = (message["host"], message["port"])
        elif kind in ("suspend", "resume"):
            self.suspended = kind == "suspend"
        elif kind == "finish":
            self.finishing = True
        elif kind == "stop":
            self.on_stop(message["grace_s"])

    def _beat_on(self) -> None:
        while True:
            self.say("beat", **self._beat())
            time.sleep(BEAT_S)


def connect(beat: Callable[[], Message]) -> Link:
    """To the agent, if there is one; as a member of torchrun's fixed world; or to nobody."""
    env = os.environ
    if ADDRESS in env:
        return AgentLink(env[ADDRESS], env[NAME], env[TOKEN], beat)
    if "TORCHELASTIC_RUN_ID" in env or {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        local = int(env.get("LOCAL_WORLD_SIZE", world))
        names = tuple(f"w{place}" for place in range(world))
        nodes = tuple(f"n{place // max(1, local)}" for place in range(world))
        return Silence(Plan(1, names, nodes), names[rank], env.get(NOTES))
    return Silence(Plan(1, ("w0",), ("n0",)), "w0", env.get(NOTES))
