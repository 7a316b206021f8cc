"""The forms of requests and answers, for the OpenAPI document. Answers are made of plain values, not of these."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fairlead.core.types import Launch
from fairlead.server.auth import NAME, Role
from fairlead.server.resources import State

#: A text of one line, which people will read.
Words = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]

#: Up to the year 9999, so that it can be shown.
Moment = Annotated[float, Field(ge=0.0, le=253402300799.0, allow_inf_nan=False)]


class _In(BaseModel):
    """What clients send: a field that is not known is a mistake, and none is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _integral(value: Any) -> Any:
    """To JSON, 2.0 is the whole number 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Priority(_In):
    """Another priority for a job."""

    priority: Annotated[int, BeforeValidator(_integral)] = Field(
        ge=-1_000_000, le=1_000_000, description="The higher, the earlier."
    )


class Cancellation(_In):
    """Why a job is cancelled."""

    why: Words = Field(default="", description="For whoever reads the job's events.")


class Drain(_In):
    """How a node is drained."""

    by: Moment | None = Field(default=None, description="When it has to be empty, in UNIX seconds; null: whenever.")


class NewUser(_In):
    """Somebody who is to get a token."""

    # The pattern is for the document: whoever adds the user says in words what a name is.
    name: str = Field(
        max_length=200, json_schema_extra={"pattern": f"^{NAME}$"}, description="What their jobs are listed under."
    )
    # Strings are what JSON has, and strict would refuse to make a role of one.
    role: Role = Field(default=Role.USER, strict=False)


class Login(_In):
    """What a browser logs in with."""

    token: str = Field(min_length=1, max_length=200)


class Found(BaseModel):
    """A field of what was sent that is wrong."""

    field: str
    text: str
    line: int | None = None
    column: int | None = None


class Problem(BaseModel):
    """RFC 9457. `errors` lists mistakes; `answer` is of a deadline or budget that cannot be met."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[Found] | None = None


class Why(BaseModel):
    """Why a job is where it is: a code for programs, a sentence, the figures it rests on, and the jobs that decide."""

    code: str
    text: str
    numbers: dict[str, float | None]
    jobs: list[str]


class Gpus(BaseModel):
    """The GPUs it holds (`current`, and which), and what it accepts."""

    current: int
    min: int
    max: int
    requested: int
    allocation: dict[str, list[int]]
    pinned: bool = Field(description="It accepts only what it holds until its attempt ends, as it cannot change size.")
    type: str | None


class Job(BaseModel):
    """A job. In lists, somebody else's job is shown without what it runs and how it fares."""

    id: str
    name: str
    user: str
    queue: str
    state: State
    phase: str
    reason: Why | None
    gpus: Gpus
    batch: int | None
    goodput: float | None = Field(description="Useful samples per second: throughput x statistical efficiency.")
    progress: float | None = Field(description="Share of its work done, as it last reported.")
    ends_at: float | None
    starts_at: float | None
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    restarts: int
    failures: int
    preemptions: int
    exit_code: int | None
    detail: str
    priority: int
    weight: float
    preemptible: bool
    launch: Launch = Field(description="How often its command is started: on each of its GPUs, or once for all.")
    labels: dict[str, str]
    deadline: float | None
    budget: float | None
    depends_on: list[str]
    waits_for: list[str]
    on_hold: bool
    gpu_seconds: float
    command: list[str]
    seq: int = Field(description="The last message of the journal when this was true.")
    document: dict[str, Any] | None = Field(
        default=None, description="What was submitted, for its owner and admins; the values of secrets are null."
    )


class Array(BaseModel):
    """Jobs that were handed in as one."""

    id: str = Field(description="What their ids begin with.")
    ids: list[str]


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]
    next: str | None = Field(description="The cursor of the next page; null if this is the last.")
    seq: int


class Outcome(BaseModel):
    """What a forecast says of a job. Null is what cannot be told, and `why` says why."""

    starts_at: float | None
    ends_at: float | None
    starts_p90: float | None
    ends_p90: float | None
    gpus_at: list[list[float]]
    restarts: int
    gpu_hours: float | None
    cost: float | None
    basis: str
    why: str


class Answer(BaseModel):
    """Can a deadline and a budget be met?"""

    verdict: str
    why: str
    gpus: int | None
    forecast: Outcome | None


class Submission(BaseModel):
    """What became of a job file: one job, or those of an array."""

    ids: list[str]
    jobs: list[Job] = Field(description="The first hundred of them.")
    answer: Answer | None


class Check(BaseModel):
    """What would become of a job, had it been submitted."""

    jobs: int = Field(description="How many jobs it would be.")
    document: dict[str, Any]
    answer: Answer | None
    forecast: Outcome | None
    why: str = Field(description="Why there is no forecast, if there is none.")


class Happening(BaseModel):
    """A message of the journal with its fields, or a note about the job, which has no number."""

    model_config = ConfigDict(extra="allow")
    seq: int | None
    at: float
    type: str
    text: str


class Story(BaseModel):
    """What happened to a job, in order."""

    events: list[Happening]
    next: str | None = Field(description="Send it as `after` to go on; null if this was all.")


class Explanation(BaseModel):
    """Why a job is where it is, in sentences."""

    id: str
    reason: Why | None
    text: list[str]


class Eta(BaseModel):
    """When a job starts and ends. Null is what cannot be told, and `why` says why."""

    id: str
    starts_at: float | None
    ends_at: float | None
    starts_p90: float | None
    ends_p90: float | None
    why: str
    gpus_at: list[list[float]] = []
    restarts: int = 0
    gpu_hours: float | None = None
    cost: float | None = None
    basis: str = "unknown"
    at: float | None = Field(default=None, description="The moment that was rolled forward.")
    truncated: bool = False


class Node(BaseModel):
    """A machine with GPUs of one type, and who is on it."""

    id: str
    gpus: int
    gpu_type: str
    used: int
    free: int
    outside: list[int] = Field(description="GPUs used by processes that no job started. They are not free.")
    healthy: bool
    draining: bool
    drain_by: float | None
    price_per_hour: float
    speed: float | None = Field(description="Of its GPUs next to those of other nodes, as the administrator states it.")
    labels: dict[str, str]
    jobs: dict[str, list[int]] = Field(description="The jobs on it, with the GPUs each holds there.")


class Nodes(BaseModel):
    """All machines."""

    nodes: list[Node]
    seq: int


class Share(BaseModel):
    """What a user of a queue may count on now, and has. GPUs."""

    entitled: int
    used: int
    demand: int
    used_share: float = Field(description="Of what its like have used lately, from 0 to 1.")


class Queue(Share):
    """The rules of a queue, what follows from them now, and who is in it."""

    name: str
    quota: int | None
    weight: float
    priority: int
    max_gpus: int | None
    max_gpus_per_user: int | None
    max_jobs_per_user: int | None
    borrow: bool
    lend: bool
    guaranteed: int = Field(description="What of its quota it can have now.")
    gpu_seconds: float
    running: int
    pending: int
    users: dict[str, Share]


class Queues(BaseModel):
    """All queues."""

    queues: list[Queue]
    seq: int


class Cluster(BaseModel):
    """The summary: what there is, who decides, and how many jobs are where."""

    version: str
    policy: str
    cadence: str
    now: float
    seq: int
    ready: bool
    nodes: dict[str, int]
    gpus: dict[str, dict[str, int]]
    jobs: dict[str, int]
    queues: list[str]


class User(BaseModel):
    """Somebody who has a token."""

    name: str
    role: Role
    created_at: float


class Users(BaseModel):
    """Everybody who has a token."""

    users: list[User]


class Token(BaseModel):
    """A new user's token."""

    name: str
    role: Role
    token: str = Field(description="Shown this once.")


class Me(BaseModel):
    """Who asks."""

    name: str
    role: Role
    session: bool = Field(description="True for a browser that has logged in: it may only look.")


class Code(BaseModel):
    """A word by which a browser can log in."""

    code: str
    path: str = Field(description="Open this in a browser, once and soon.")
    expires_in_s: float


class Health(BaseModel):
    """That all is well."""

    status: str
