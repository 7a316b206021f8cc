"""The nouns. All are frozen values: to change one is to make another.

Read this first, then `messages.py` (what happens to them), `state.py` (how they change), `plan.py`
(what a policy may ask for) and `loop.py` (how it all turns). Time is seconds as a float; nothing here
asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.core.errors import InvalidSpec
from fairlead.core.memo import Memo


class Phase(StrEnum):
    """Where a job is in its life. The last three are final."""

    PENDING = "pending"  # waits for GPUs; no process exists
    STARTING = "starting"  # was given GPUs; not yet training
    RUNNING = "running"  # trains
    RESCALING = "rescaling"  # changes its GPUs without restarting
    SUSPENDED = "suspended"  # holds no GPUs, but its processes stay warm
    STOPPING = "stopping"  # was told to stop; still holds its GPUs
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})


class Launch(StrEnum):
    """How often a job's command is started on the GPUs that it is given."""

    PER_GPU = "per-gpu"  # a process on each, with what torchrun would tell it
    ONCE = "once"  # one process that sees all of them, as a launcher of its own workers does


#: A back-off up to this is spent on the GPUs that the next attempt gets. To lend them out for so short a time costs
#: more than it brings: a neighbour boots a worker to use them, and is interrupted again to give them back.
SHORT_BACKOFF_S = 10.0

#: The largest whole number that a float, and so a column of a snapshot, holds exactly.
LARGEST = 2**53

#: More GPUs than any node has: allocations are also bit masks, and a mask must stay small.
MOST_GPUS = 2**16


@dataclass(frozen=True, slots=True)
class Batch:
    """Bounds within which a job may retune its batch size. None means no bound was stated."""

    initial: int
    max_total: int | None = None
    min_per_gpu: int = 1
    max_per_gpu: int | None = None

    def __post_init__(self) -> None:
        if self.initial < 1 or self.min_per_gpu < 1:
            raise InvalidSpec(f"batch sizes are whole numbers of at least 1, not {self}")
        if self.max_total is not None and self.max_total < self.initial:
            raise InvalidSpec(f"the largest batch ({self.max_total}) is below the initial one ({self.initial})")
        if self.max_per_gpu is not None and self.max_per_gpu < self.min_per_gpu:
            raise InvalidSpec(f"the per-GPU batch bounds are reversed: {self.min_per_gpu} to {self.max_per_gpu}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the user asked for. Only its priority can be changed later."""

    id: str
    name: str = ""
    #: Who asked, and the line it was put into: quotas and fair shares are theirs.
    tenant: str = "default"
    queue: str = "default"
    command: tuple[str, ...] = ()
    #: What a policy that does not resize gives the job. Within [gpus_min, gpus_max].
    gpus: int = 1
    gpus_min: int | None = None
    gpus_max: int | None = None
    #: GPU types the job accepts; empty means any. It runs on one type at a time.
    gpu_types: tuple[str, ...] = ()
    #: The job can change its GPUs without a restart, and be suspended with its processes warm.
    in_place: bool = False
    launch: Launch = Launch.PER_GPU
    preemptible: bool = True
    priority: int = 0
    weight: float = 1.0
    #: The run time the user promises (a time limit) on `gpus` GPUs; None means no promise.
    estimate_s: float | None = None
    deadline: float | None = None
    #: The most it may cost, in the unit of the nodes' prices.
    budget: float | None = None
    #: Jobs that must have succeeded before it may start.
    depends_on: tuple[str, ...] = ()
    max_restarts: int = 3
    #: Exit codes after which it is tried again; empty means all but 0.
    restart_on: tuple[int, ...] = ()
    #: Seconds between a failure and the next try, doubled with every further one.
    backoff_s: float = 0.0
    batch: Batch | None = None
    scaling_rule: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            raise InvalidSpec("a job needs an id")
        if self.gpus_min is None:
            object.__setattr__(self, "gpus_min", self.gpus)
        if self.gpus_max is None:
            object.__setattr__(self, "gpus_max", self.gpus)
        if not 1 <= self.least <= self.gpus <= self.most <= LARGEST:
            raise InvalidSpec(
                f"job {self.id}: GPUs are min {self.least}, requested {self.gpus}, max {self.most}; "
                "expected 1 <= min <= requested <= max"
            )
        if abs(self.priority) > LARGEST:
            raise InvalidSpec(f"job {self.id}: priority is {self.priority}; expected at most {LARGEST} either way")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidSpec(f"job {self.id}: weight is {self.weight}; expected a positive number")
        for name in ("estimate_s", "deadline", "budget", "backoff_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidSpec(f"job {self.id}: {name} is {value}; expected a finite number of at least 0")
        if self.max_restarts < 0:
            raise InvalidSpec(f"job {self.id}: max_restarts is {self.max_restarts}; expected at least 0")

    @property
    def least(self) -> int:
        """The fewest GPUs it can run on."""
        return self.gpus if self.gpus_min is None else self.gpus_min

    @property
    def most(self) -> int:
        """The most GPUs it can use."""
        return self.gpus if self.gpus_max is None else self.gpus_max

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The fewest GPUs, what a policy that does not resize gives, and the most."""
        return (self.least, self.gpus, self.most)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one type, numbered from 0."""

    id: str
    gpus: int
    gpu_type: str = "gpu"
    #: False between its loss and its return; nothing runs on it.
    healthy: bool = True
    #: Nothing new may be placed on it; who is there may stay until moved.
    draining: bool = False
    price_per_hour: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    #: While it drains: when it has to be empty; None if whoever is there may stay.
    drain_by: float | None = None
    #: GPUs that outsiders use, processes that no job of ours started: ascending. Who holds one may keep it.
    outside: tuple[int, ...] = ()
    #: How fast its GPUs are next to those of other nodes, by their data sheet or a benchmark; None if nothing says so.
    speed: float | None = None

    def __post_init__(self) -> None:
        if not self.id or not 1 <= self.gpus <= MOST_GPUS:
            raise InvalidSpec(f"node {self.id!r} has {self.gpus} GPUs; expected an id and 1 to {MOST_GPUS} GPUs")
        if not (math.isfinite(self.price_per_hour) and self.price_per_hour >= 0):
            raise InvalidSpec(f"node {self.id!r}: the price per hour is {self.price_per_hour}; expected at least 0")
        if self.speed is not None and not 0.0 < self.speed < math.inf:
            raise InvalidSpec(f"node {self.id!r}: the speed of its GPUs is {self.speed}; expected a positive number")
        if self.outside and not _are_numbers(self.outside, self.gpus):
            raise InvalidSpec(f"node {self.id!r}: outside is {self.outside}; expected numbers of its {self.gpus} GPUs")

    @property
    def open(self) -> bool:
        """May something new be placed here?"""
        return self.healthy and not self.draining

    @property
    def outside_mask(self) -> int:
        """`outside` as a bit mask."""
        return sum(1 << gpu for gpu in self.outside)

    @property
    def usable(self) -> int:
        """GPUs on which something new may be placed, as far as it is up to the node."""
        return self.gpus - len(self.outside) if self.open else 0


def _are_numbers(gpus: tuple[int, ...], count: int) -> bool:
    """Ascending numbers of so many GPUs?"""
    return gpus == tuple(sorted(set(gpus))) and gpus[0] >= 0 and gpus[-1] < count


#: One node's part of an allocation: the node's id and the GPUs on it.
Share = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Which GPUs, exactly: shares sorted by node, GPUs ascending within each. Hashable.

    Two jobs that hold the same GPU are packed together, and only a plan that says so may do it.
    """

    shares: tuple[Share, ...] = ()
    #: How many GPUs, and the same shares as bit masks (bit g = GPU g). Derived.
    total: int = field(init=False, compare=False, repr=False)
    masks: tuple[tuple[str, int], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        total, last_node = 0, ""
        masks: list[tuple[str, int]] = []
        for node, gpus in self.shares:
            mask, last_gpu = 0, -1
            for gpu in gpus:
                if not last_gpu < gpu < MOST_GPUS:
                    break
                mask, last_gpu = mask | 1 << gpu, gpu
            else:
                if gpus and node > last_node:
                    masks.append((node, mask))
                    last_node = node
                    total += len(gpus)
                    continue
            raise InvalidSpec(f"{self.shares} is no allocation; use Allocation.of({{node: gpu indices}})")
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "masks", tuple(masks))

    @staticmethod
    def of(gpus: Mapping[str, Iterable[int]]) -> Allocation:
        """From {node id: GPU indices} in any order."""
        return Allocation(tuple((node, tuple(sorted(gpus[node]))) for node in sorted(gpus)))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for node, _ in self.shares)

    def __iter__(self) -> Iterator[Share]:
        return iter(self.shares)

    def __bool__(self) -> bool:
        return self.total > 0

    def __or__(self, other: Allocation) -> Allocation:
        if not self or not other:
            return other or self
        mine, theirs = dict(self.shares), dict(other.shares)
        return Allocation.of({node: {*mine.get(node, ()), *theirs.get(node, ())} for node in mine | theirs})

    def __sub__(self, other: Allocation) -> Allocation:
        if not self or not other:
            return self
        theirs = dict(other.shares)
        left = {node: set(gpus).difference(theirs.get(node, ())) for node, gpus in self.shares}
        return Allocation.of({node: gpus for node, gpus in left.items() if gpus})

    def __str__(self) -> str:
        return " ".join(f"{node}[{','.join(map(str, gpus))}]" for node, gpus in self.shares) or "nothing"


NOTHING = Allocation()


@dataclass(frozen=True, slots=True)
class Observation:
    """Mean step time measured at one configuration, over `steps` steps."""

    gpu_type: str
    nodes: int
    gpus: int
    per_gpu_batch: int
    accumulation: int
    step_s: float
    sync_s: float
    steps: int = 1
    #: Models of the jobs that trained on the same GPUs meanwhile, sorted; empty if it was alone.
    partners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1 or not (0.0 <= self.sync_s < math.inf and 0.0 <= self.step_s < math.inf):
            raise InvalidSpec(f"{self} is no measurement; expected finite times of at least 0 over at least 1 step")

    def __hash__(self) -> int:
        return hash(self.step_s)  # fits are looked up by many of these, and no two measured times agree

    @property
    def configuration(self) -> tuple[str, int, int, int, int]:
        """What was measured, but for the jobs beside it."""
        return (self.gpu_type, self.nodes, self.gpus, self.per_gpu_batch, self.accumulation)


@dataclass(frozen=True, slots=True)
class Speed:
    """Share of its work that a job does per second on certain GPUs."""

    progress_per_s: float
    gpu_type: str
    nodes: int
    gpus: int
    #: Models of the jobs that trained on the same GPUs meanwhile, sorted; empty if it was alone.
    partners: tuple[str, ...] = ()
    #: The global batch meanwhile, where it was reported.
    batch: int | None = None

    @property
    def place(self) -> tuple[str, int, int, tuple[str, ...]]:
        return (self.gpu_type, self.nodes, self.gpus, self.partners)


@dataclass(frozen=True, slots=True)
class PackedShare:
    """Share of its speed alone that a model keeps beside other jobs on the same GPUs, all else being equal."""

    gpu_type: str
    nodes: int
    gpus: int
    partners: tuple[str, ...]
    share: float

    @property
    def place(self) -> tuple[str, int, int, tuple[str, ...]]:
        return (self.gpu_type, self.nodes, self.gpus, self.partners)


@dataclass(frozen=True, slots=True)
class Belief:
    """What a job's reports taught us. All that a policy may know of its true speed."""

    #: Share of the work done, 0 to 1, when that was said, and how long the job had run by then.
    progress: float = 0.0
    reported_at: float | None = None
    reported_run_s: float = 0.0
    #: Between the last two reports that had nothing but running alone between them.
    speed: Speed | None = None
    #: The last one on each number of GPUs and nodes of each type, alone and beside each set of partners.
    speeds: tuple[Speed, ...] = ()
    #: When it last told of a checkpoint.
    saved_at: float | None = None
    #: (progress, global batch) where each regime began, oldest first.
    regimes: tuple[tuple[float, int], ...] = ()
    noise_scale: float | None = None
    #: One per configuration ever measured alone, and one per configuration and set of partners.
    observations: tuple[Observation, ...] = ()
    packed: tuple[Observation, ...] = ()
    #: Of a model (`Snapshot.lore`): what its jobs kept of their speed beside others, the last one for each place.
    shares: tuple[PackedShare, ...] = ()
    #: Of its batch, as its script says.
    bounds: Batch | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job and everything known about it. Only `State` makes new versions of one.

    Invariants: `allocation` is what it was last told to hold, `releasing` what it was told to give up but
    may still use; they are disjoint, and both are empty in PENDING, SUSPENDED and the final phases.
    """

    spec: JobSpec
    submitted_at: float
    phase: Phase = Phase.PENDING
    #: When the phase last changed.
    since: float = 0.0
    allocation: Allocation = NOTHING
    releasing: Allocation = NOTHING
    #: How many times it was started: the fencing number of the current or last attempt.
    attempt: int = 0
    #: How many attempts ended by themselves with an error.
    failures: int = 0
    #: How often it lost its GPUs to the plan.
    preemptions: int = 0
    first_started_at: float | None = None
    #: While it changes its GPUs: how many it had before, on which it may train on meanwhile.
    had: int = 0
    #: The type of the GPUs on which it trains or trained last; empty if it never did.
    gpu_type: str = ""
    #: Models of the jobs that run on some of its GPUs while it does, sorted (a job that names none counts as ""), and
    #: since when these are the ones.
    partners: tuple[str, ...] = ()
    partners_since: float = 0.0
    #: When it last ran, as of `accounted_at`; None if it never did. One that runs now ran last now.
    last_ran_at: float | None = None
    #: GPU-seconds and seconds spent RUNNING, up to `accounted_at`: what start-up and waiting take is nobody's service.
    service_gpu_s: float = 0.0
    run_s: float = 0.0
    #: The seconds of `run_s` by GPU type; types on which it never ran are absent.
    served_s: Mapping[str, float] = field(default_factory=dict)
    #: GPU-seconds it was told to hold GPUs, start-up and rescales included, up to `accounted_at`.
    held_gpu_s: float = 0.0
    accounted_at: float = 0.0
    #: `Snapshot.fair_gpu_s` when it came: what has been added since is what an equal share would have given it.
    fair_from_gpu_s: float = 0.0
    #: How long its last start, and its last change in place, kept it from training; None before the first.
    start_s: float | None = None
    rescale_s: float | None = None
    #: The user wants it gone: it is stopped, and then final.
    cancelled: bool = False
    #: Who said so, and why, where that is known.
    cancelled_by: str = ""
    cancelled_why: str = ""
    #: The user wants it to hold no GPUs until further notice.
    on_hold: bool = False
    #: Jobs it depends on that have not succeeded yet.
    waits_for: tuple[str, ...] = ()
    #: After a failure: when it may be tried again. Its GPUs may be given to it before, if that is soon.
    not_before: float = 0.0
    #: The sizes its user asked for (`JobSpec.sizes`), while its spec is that of a job of the one size it was given: see
    #: `JobPinned`. Not None only while an attempt exists.
    pinned_from: tuple[int, int, int] | None = None
    #: How its last attempt that ended by itself did so.
    exit_code: int | None = None
    detail: str = ""
    #: What that attempt printed last, if it failed and that is known. Part of its log: not shown without a right to it.
    last_line: str = ""
    belief: Belief = Belief()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def held(self) -> Allocation:
        """Every GPU nobody else may use now."""
        return self.allocation | self.releasing

    def may_run(self, now: float) -> bool:
        """Is it for the policy to decide whether it gets GPUs?"""
        backs_off = self.not_before > now and self.not_before - self.since > SHORT_BACKOFF_S
        return not (self.cancelled or self.on_hold or self.waits_for or backs_off)

    def service_at(self, now: float) -> float:
        """GPUs x seconds spent RUNNING until `now`: the attained service of 2D-LAS."""
        return self.service_gpu_s + self.allocation.total * (self.run_at(now) - self.run_s)

    def served_at(self, now: float) -> dict[str, float]:
        """Seconds spent RUNNING until `now`, by GPU type."""
        served_s = dict(self.served_s)
        if (more_s := self.run_at(now) - self.run_s) > 0.0:
            served_s[self.gpu_type] = served_s.get(self.gpu_type, 0.0) + more_s
        return served_s

    def held_at(self, now: float) -> float:
        """GPUs x seconds it held them until `now`, whatever for."""
        return self.held_gpu_s + self.allocation.total * max(0.0, now - self.accounted_at)

    def run_at(self, now: float) -> float:
        """Seconds spent RUNNING until `now`."""
        return self.run_s + (max(0.0, now - self.accounted_at) if self.phase is Phase.RUNNING else 0.0)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job is where the plan puts it."""

    #: Machine-readable; the codes are listed in docs/concepts.md.
    code: str
    #: One sentence for the person who waits.
    text: str
    #: The figures the decision rests on.
    numbers: Mapping[str, float] = field(default_factory=dict)
    #: Ids of the jobs that decide: those that hold the GPUs, and those that are ahead. The text may not name them all.
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything should be. A job that is absent should not run."""

    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    #: Why, for every live job. May compute each reason only when asked for it.
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    #: Groups of jobs that may share GPUs. Any other overlap is an error.
    packed: frozenset[frozenset[str]] = frozenset()
    #: How far from the optimum at most, as a share of it; None where the policy does not optimise.
    bound: float | None = None
    #: Ask again at this time even if nothing happens: the next moment the answer may change by itself.
    review_at: float = math.inf
    #: The nodes that should exist: others are released once nobody is on them, released ones among these are rented.
    #: None leaves all of them as they are.
    nodes: frozenset[str] | None = None
    #: What the policy wants to find in the next snapshot as `Snapshot.memo`: plain JSON values under a key of its own.
    #: All that a policy may remember from one decision to the next. It is journalled whenever it changes.
    memo: Memo = field(default_factory=dict)
