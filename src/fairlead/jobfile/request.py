"""The nouns of the job file: a request, its GPUs, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairlead.core.errors import InvalidSpec
from fairlead.core.types import LARGEST, Batch

#: What `gpus: auto` may use at most before a cluster is known: `to_spec` puts the cluster's GPUs in its place.
AUTO_MOST = LARGEST

#: So many problems are written out in one message; all of them are in `InvalidJob.problems`.
_TOLD = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: the field it is in, a sentence about it, and where it stands, counted from 1."""

    field: str
    text: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"line {self.line}, column {self.column}: {self.text}"


class InvalidJob(InvalidSpec):
    """A job that cannot be meant. Carries every problem found, in the order in which they stand in the file."""

    def __init__(self, problems: Iterable[Problem], *, source: str = "job") -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))
        super().__init__(_message(self.problems, source))

    @staticmethod
    def at(field: str, text: str, *, line: int | None = None, column: int | None = None) -> InvalidJob:
        """Of one problem."""
        return InvalidJob([Problem(field, text, line, column)])


def _message(problems: tuple[Problem, ...], source: str) -> str:
    if len(problems) == 1:
        (only,) = problems
        return f"{source}{': ' if only.line is None else ', '}{only}"
    lines = [f"{source} has {len(problems)} problems:", *(f"  {problem}" for problem in problems[:_TOLD])]
    if len(problems) > _TOLD:
        lines.append(f"  and {len(problems) - _TOLD} more")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Gpus:
    """How many GPUs a job wants: a number (4, 4, 4), a range (1, 1, 8), or whatever helps it (1, 1, AUTO_MOST, auto).

    A policy that does not resize gives `requested`, which is always the least of the range: a job that accepts fewer
    GPUs starts earlier.
    """

    requested: int
    least: int
    most: int
    auto: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.least == self.requested <= self.most <= LARGEST:
            raise InvalidSpec(f"{self} is no number of GPUs; use parse_gpus")

    @property
    def elastic(self) -> bool:
        """May their number change while the job lives?"""
        return self.most > self.least

    def __str__(self) -> str:
        if self.auto:
            return "auto"
        return f"{self.least}-{self.most}" if self.elastic else str(self.least)


ONE_GPU = Gpus(1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What a user asks for, with every form of the file made one. What each field means stands in `fields.py`.

    Made by `parse_job` and `request_from`; one that was made or changed by hand is checked by `check_ready`.
    """

    name: str = ""
    run: str | tuple[str, ...]
    setup: str = ""
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: Never shown: neither in the text of this object, nor in a problem.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: Gpus = ONE_GPU
    gpu_type: tuple[str, ...] = ()
    elastic: Literal["in-place", "restart"] = "in-place"
    #: None leaves it to the rule in `launch.py`.
    launch: Literal["per-gpu", "once"] | None = None
    queue: str = "default"
    priority: int = 0
    weight: float = 1.0
    preemptible: bool = True
    batch: Batch | None = None
    #: As written; `deadline_at` makes it a time.
    deadline: str | None = None
    budget: float | None = None
    #: This and the next three in seconds, but for `restart_on`, which are exit codes.
    time_limit: float | None = None
    max_restarts: int = 3
    restart_on: tuple[int, ...] = ()
    backoff: float = 1.0
    grace_period: float = 30.0
    depends_on: tuple[str, ...] = ()
    array: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
