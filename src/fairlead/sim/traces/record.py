"""What a trace is, whatever file it came from: jobs, and optionally nodes and their failures.

A reader turns one public format into these records; nothing after the reader knows the format.
A record holds facts only. Which truth model brings a job to life is decided in `sim/casting.py` from
the fields present: a recording, a duration, steps of a known model, or an application profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import Batch, Observation, Speed

#: What may change of a job; "" does not say.
ADAPTS = ("", "nothing", "gpus", "batch")


class InvalidTrace(InvalidSpec):
    """A trace file that cannot be read; says where it is wrong and what was expected there."""

    def __init__(self, problem: str, *, source: str, line: int | None = None, column: str | None = None) -> None:
        place = source if line is None else f"{source}:{line}"
        if column is not None:
            place += f", column {column!r}"
        super().__init__(f"{place}: {problem}")
        self.source, self.line, self.column = source, line, column


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a job's work: up to which share of it, how fast it was there and where, and its gradients' noise."""

    until: float
    speed: Speed
    noise_scale: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed.progress_per_s) and self.speed.progress_per_s > 0 and self.speed.gpus >= 1):
            raise InvalidSpec(f"speed is {self.speed}; expected a share of the work above 0 per second, on GPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was measured of a job where it ran: enough to let it run again, on other GPUs and at other times."""

    #: From its begin to its end, the last stretch until 1. `observations` tell how fast it would be on other GPUs.
    course: tuple[Stretch, ...]
    observations: tuple[Observation, ...] = ()
    #: The bounds of its batch, as its script or its user stated them.
    batch: Batch | None = None
    #: Seconds from a first and from a later start until it trained, to save, and of a change of GPUs in place.
    start_s: float = 0.0
    restart_s: float = 0.0
    save_s: float = 0.0
    rescale_s: float = 0.0

    def __post_init__(self) -> None:
        ends = [0.0, *(stretch.until for stretch in self.course)]
        if ends[-1] != 1.0 or any(not earlier < later for earlier, later in pairwise(ends)):
            raise InvalidSpec(f"its course ends at {ends[1:]}; expected shares of the work that grow to 1")
        for name in ("start_s", "restart_s", "save_s", "rescale_s"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise InvalidSpec(f"{name} is {value!r}; expected a finite number of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One submission. Times are seconds; `submit_s` and `deadline_s` count from the trace's first instant."""

    id: str
    submit_s: float
    #: What the job asked for, and what a rigid policy gives it.
    gpus: int
    #: The elastic range; both equal `gpus` for a rigid job.
    gpus_min: int
    gpus_max: int
    #: True run time alone on `gpus` GPUs; None where work is given as `steps` or by an application profile.
    duration_s: float | None = None
    #: What the user said it would take (a time limit); None where the trace has no such column.
    estimate_s: float | None = None
    name: str = ""
    tenant: str = "default"
    #: The application, or Gavel's job type without its batch size.
    model: str | None = None
    #: Global batch size the user chose.
    batch: int | None = None
    #: Training steps in all, at `batch`.
    steps: float | None = None
    #: How the batch size changes while training: static, accordion or gns.
    mode: str = "static"
    #: GPU types the job accepts; empty means any.
    gpu_types: tuple[str, ...] = ()
    #: It can change its GPUs without a restart.
    in_place: bool = False
    #: Others may take its GPUs.
    preemptible: bool = True
    #: What may change of it at most, where a policy makes use of that: nothing, gpus, batch; "" for whatever can.
    adapts: str = ""
    priority: int = 0
    weight: float = 1.0
    deadline_s: float | None = None
    #: How the job ended where it was recorded: completed, failed, cancelled, or "" if unknown.
    outcome: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    #: What was measured of it, where a service ran it; it says more than `duration_s`.
    recording: Recording | None = None

    def __post_init__(self) -> None:
        """Raise InvalidSpec naming the field; readers turn that into a file, line and column."""
        if not self.id:
            raise InvalidSpec("id is empty; every job needs one")
        if not self.tenant or not self.mode or self.model == "":
            raise InvalidSpec("tenant, mode or model is empty; leave the field out to get its default")
        if self.adapts not in ADAPTS:
            raise InvalidSpec(f"adapts is {self.adapts!r}; expected nothing, gpus or batch, or leave it out")
        for name in ("submit_s", "duration_s", "estimate_s", "steps", "deadline_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidSpec(f"{name} is {value!r}; expected a finite number of at least 0")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidSpec(f"weight is {self.weight!r}; expected a positive number")
        if not 1 <= self.gpus_min <= self.gpus <= self.gpus_max:
            raise InvalidSpec(
                f"GPUs are min {self.gpus_min}, requested {self.gpus}, max {self.gpus_max}; "
                "expected 1 <= min <= requested <= max"
            )


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A machine the trace ran on."""

    id: str
    gpu_type: str
    gpus: int


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node that goes away at `at_s` and comes back `repair_s` later. `node` counts from 0 in cluster order."""

    node: int
    at_s: float
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in order of submission, the first at or after second 0."""

    jobs: tuple[TraceJob, ...]
    #: The format's short name: muri, philly, ... or `fairlead` for the canonical form.
    format: str
    #: The file it was read from, for messages.
    source: str
    #: UNIX time of second 0, where the file tells.
    origin: float | None = None
    nodes: tuple[TraceNode, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    #: What the reader left out of the file, counted by reason ("no GPUs": 12).
    skipped: Mapping[str, int] = field(default_factory=dict)
