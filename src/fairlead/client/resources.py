"""What the server's answers hold. They are JSON objects as they came: a newer server may put more into them."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

#: The states in which nothing more will happen to a job.
ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"})
#: Every state of a job, in the order of its life.
STATES = (
    *("PENDING", "HELD", "STARTING", "RUNNING", "RESCALING", "SUSPENDED", "PREEMPTING", "CANCELLING", "RECOVERING"),
    *("SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"),
)


class Reason(TypedDict):
    """Why a job is where it is."""

    code: str
    text: str
    #: Not told to other users.
    numbers: NotRequired[dict[str, float | None]]
    #: Ids of the jobs that decide: those that hold the GPUs, and those that are ahead.
    jobs: NotRequired[list[str]]


class Gpus(TypedDict):
    """How many a job holds, and could."""

    current: int
    min: int
    max: int
    requested: int
    #: GPU numbers by node.
    allocation: NotRequired[dict[str, list[int]]]
    #: It accepts only what it holds until its attempt ends, as it cannot change size.
    pinned: NotRequired[bool]
    type: NotRequired[str | None]


class Job(TypedDict):
    """A job. Times are UNIX seconds; what is not known is None."""

    id: str
    name: str
    user: str
    queue: str
    state: str
    phase: str
    reason: Reason | None
    gpus: Gpus
    batch: int | None
    goodput: float | None
    progress: float | None
    starts_at: float | None
    ends_at: float | None
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    restarts: int
    failures: int
    preemptions: int
    exit_code: int | None
    priority: int
    weight: float
    preemptible: bool
    #: per-gpu or once.
    launch: str
    deadline: float | None
    budget: float | None
    depends_on: list[str]
    waits_for: list[str]
    on_hold: bool
    gpu_seconds: float
    seq: int
    #: The next three are not told to other users, and the last only of one job at a time.
    command: NotRequired[list[str]]
    detail: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    document: NotRequired[dict[str, Any]]


class Forecast(TypedDict):
    """What will become of a job. None is what cannot be told, and `why` says why."""

    starts_at: float | None
    ends_at: float | None
    #: Nine times in ten it is no later.
    starts_p90: float | None
    ends_p90: float | None
    why: str
    gpus_at: NotRequired[list[tuple[float, int]]]
    restarts: NotRequired[int]
    gpu_hours: NotRequired[float | None]
    cost: NotRequired[float | None]
    basis: NotRequired[str]


class Answer(TypedDict):
    """Can a job meet its deadline and its budget?"""

    verdict: str
    why: str
    #: With so many it can, if not as it was asked for.
    gpus: int | None
    forecast: Forecast | None


class Submitted(TypedDict):
    """The answer to a submission, with the first hundred of its jobs. `answer` is about a deadline or a budget."""

    ids: list[str]
    jobs: list[Job]
    answer: NotRequired[Answer | None]


class Array(TypedDict):
    """Jobs that were handed in as one: what their ids begin with, and those that are meant."""

    id: str
    ids: list[str]


class Check(TypedDict):
    """What would become of a job."""

    jobs: int
    document: dict[str, Any]
    answer: Answer | None
    forecast: Forecast | None
    #: Why there is no forecast, if there is none.
    why: str


class Explanation(TypedDict):
    """Why a job is where it is: the reason that counts, and sentences for people."""

    id: str
    reason: Reason | None
    text: list[str]


class Node(TypedDict):
    """A machine, and who is on it."""

    id: str
    gpus: int
    gpu_type: str
    used: int
    free: int
    #: GPUs used by processes that no job started.
    outside: list[int]
    healthy: bool
    draining: bool
    drain_by: float | None
    price_per_hour: float
    #: Of its GPUs next to those of other nodes, if it is stated.
    speed: float | None
    labels: dict[str, str]
    #: The GPUs that each job holds there.
    jobs: dict[str, list[int]]


class Queue(TypedDict):
    """A line that jobs wait in: GPUs it is guaranteed, is entitled to, may hold at most, and holds."""

    name: str
    weight: float
    priority: int
    quota: int | None
    max_gpus: int | None
    max_gpus_per_user: int | None
    max_jobs_per_user: int | None
    borrow: bool
    lend: bool
    entitled: float
    used: int
    running: int
    pending: int
    gpu_seconds: float


class Cluster(TypedDict):
    """The summary: what there is, who decides, and how many jobs are where."""

    version: str
    policy: str
    cadence: str
    now: float
    seq: int
    ready: bool
    nodes: dict[str, int]
    #: By type: `total`, `used` and `free`.
    gpus: dict[str, dict[str, int]]
    #: By state.
    jobs: dict[str, int]
    queues: list[str]


class User(TypedDict):
    """Somebody who may ask."""

    name: str
    role: str
    created_at: NotRequired[float]


class NewUser(TypedDict):
    """A user who was added, with the token that is told only now."""

    name: str
    role: str
    token: str


class StoryEvent(TypedDict):
    """One sentence of a job's story, and the fields of the message it tells."""

    #: Its number in the journal; None of what is not there.
    seq: int | None
    at: float
    type: str
    text: str


class LogLine(TypedDict):
    """A line of a job's output."""

    rank: int
    attempt: int
    text: str


def exit_code_of(job: Job) -> int:
    """What a command that waits for this job should exit with, now that it has ended."""
    match job["state"]:
        case "SUCCEEDED":
            return 0
        case "TIMEOUT":
            return 124
        case "CANCELLED":
            return 130
        case _:
            return job["exit_code"] or 1
