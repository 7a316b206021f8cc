"""The verbs: events are facts that come in, commands are intents that go out. Both go to the journal.

Every message is a frozen dataclass with the time it happened (`at`). Messages about a running job carry
its `attempt`, a fencing number: a late message about an old attempt is ignored. `encode` and `decode` are
their JSON form; it carries a version, and an older journal stays readable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from fairlead.core import codec
from fairlead.core.errors import InvalidSpec
from fairlead.core.memo import Memo
from fairlead.core.types import Allocation, Batch, JobSpec, Node, Observation

#: Version of the JSON form. A reader accepts its own and every older one.
VERSION = 1


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user handed in a job."""

    at: float
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user took a job back. If it runs, it will be stopped."""

    at: float
    job: str
    #: Who did so, and why, where that is known.
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A user wants a job to hold no GPUs until further notice, or lets it go on. If it runs, it gives its GPUs up."""

    at: float
    job: str
    on_hold: bool = True


@dataclass(frozen=True, slots=True)
class JobReprioritised:
    """A user gave a job another priority."""

    at: float
    job: str
    priority: int


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The attempt finished starting up and trains."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobReported:
    """The attempt told how far and how fast it is."""

    at: float
    job: str
    attempt: int
    #: Share of the work done, 0 to 1.
    progress: float
    batch: int | None = None
    noise_scale: float | None = None
    observations: tuple[Observation, ...] = ()
    #: The progress is in a checkpoint: from here on, this is what a fault leaves.
    saved: bool = False
    #: Within which its script lets the batch change.
    bounds: Batch | None = None
    #: How long its last change of GPUs kept it from training, if there was one since the last report.
    paused_s: float | None = None
    #: Its observations say which jobs were on the same GPUs. A process on a real machine cannot tell: the state can.
    knows_partners: bool = True


@dataclass(frozen=True, slots=True)
class JobPinned:
    """The attempt cannot change its GPUs in place although its job was submitted as one that can: its command does not
    speak with the library, or is a launcher. It keeps what it was given. Or, if not `pinned`, it speaks after all."""

    at: float
    job: str
    attempt: int
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class JobRescaled:
    """The attempt now uses exactly the GPUs of the last Resize; the others are free."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The attempt ended without finishing, on request or by preemption from outside; it can go on later."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobExited:
    """The attempt ended by itself: code 0 is success, 143 asks to be queued again, others are failures."""

    at: float
    job: str
    attempt: int
    code: int = 0
    detail: str = ""
    #: Another attempt would end in the same way.
    final: bool = False
    #: What it printed last, of one that failed; empty where that is not known.
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node can be used, for the first time or again."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, and with it every attempt that had a GPU there: the backend has ended what was left of them."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """An administrator closed a node to new work, or opened it again."""

    at: float
    node: str
    draining: bool = True
    #: When it has to be empty; None if whoever is there may stay.
    by: float | None = None


@dataclass(frozen=True, slots=True)
class OutsidersSeen:
    """Which GPUs of a node are used by processes that no job of ours started: all of them, none if they have left."""

    at: float
    node: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened, but it is time to decide."""

    at: float


@dataclass(frozen=True, slots=True)
class Start:
    """Start a new attempt of a pending job on these GPUs."""

    at: float
    job: str
    attempt: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Resize:
    """Change a running attempt's GPUs without restarting it; NOTHING suspends it and keeps it warm."""

    at: float
    job: str
    attempt: int
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt, keeping its progress; its GPUs are free once the backend says JobStopped or JobExited."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Rent:
    """Bring a released node back; it can be used, and is paid for, once the backend says NodeJoined."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Release:
    """Give back a node on which nobody holds a GPU. From here on it is out of use, and no longer paid for."""

    at: float
    node: str


@dataclass(frozen=True, slots=True)
class Remember:
    """What the policy remembers has changed: a JSON merge patch of its memo. No backend gets to see it."""

    at: float
    patch: Memo


AttemptEvent: TypeAlias = JobStarted | JobReported | JobPinned | JobRescaled | JobStopped | JobExited
NodeEvent: TypeAlias = NodeJoined | NodeLost | NodeDrained | OutsidersSeen
UserEvent: TypeAlias = JobSubmitted | JobCancelled | JobHeld | JobReprioritised
Event: TypeAlias = UserEvent | AttemptEvent | NodeEvent | Tick
#: What a backend carries out, and all that a decision may bring about.
Command: TypeAlias = Start | Resize | Stop | Rent | Release
Intent: TypeAlias = Command | Remember
Message: TypeAlias = Event | Intent

EVENTS: tuple[type, ...] = get_args(Event)
INTENTS: tuple[type, ...] = (*get_args(Command), Remember)
_BY_NAME: dict[str, type] = {cls.__name__: cls for cls in EVENTS + INTENTS}


def encode(message: Message) -> dict[str, Any]:
    """The JSON form: {"v": 1, "type": "JobStarted", "at": ..., ...}. Fields at their defaults are left out."""
    return {"v": VERSION, "type": type(message).__name__, **codec.encode(message)}


def decode(data: object) -> Message:
    """The inverse of `encode`; raises InvalidSpec that names the field at fault."""
    if not isinstance(data, dict):
        raise InvalidSpec(f"a message is a JSON object, not {type(data).__name__}")
    fields = dict(data)
    version, name = fields.pop("v", None), fields.pop("type", None)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise InvalidSpec(f"message version {version!r} is unknown; this Fairlead reads 1 to {VERSION}: upgrade it")
    if not isinstance(name, str) or name not in _BY_NAME:
        raise InvalidSpec(f"message type {name!r} is unknown; expected one of {', '.join(_BY_NAME)}")
    message: Message = codec.decode(_BY_NAME[name], fields, place=name)
    return message
