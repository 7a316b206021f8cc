"""What can go wrong between here and the server, by whose fault it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.errors import FairleadError


class ClientError(FairleadError):
    """The root of what a client raises."""


class NoServer(ClientError):
    """Nothing to talk to: no server runs here, or none was named."""


class Unreachable(ClientError):
    """There should be a server, but it does not answer, or what answers is none."""


@dataclass(frozen=True)
class Problem:
    """An answer of type application/problem+json (RFC 9457)."""

    status: int
    title: str = ""
    detail: str = ""
    type: str = "about:blank"
    #: One for each mistake, with `field`, `text`, `line` and `column`.
    errors: Sequence[Mapping[str, Any]] = field(default=())

    def __str__(self) -> str:
        return self.detail or self.title or f"the server answered with status {self.status}"


class Refused(ClientError):
    """The server answered, and said no. Its types say why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Invalid(Refused):
    """What was asked cannot be meant."""


class NotAllowed(Refused):
    """The token is none of the server's, or its user may not do this."""


class NotFound(Refused):
    """There is no such job, node, queue or user; or it is not for this user to know."""


class Conflict(Refused):
    """It cannot be done as things are now."""


class Failed(Refused):
    """The server's fault."""


_TYPES: dict[int, type[Refused]] = {
    **dict.fromkeys((400, 413, 415, 422), Invalid),
    **dict.fromkeys((401, 403), NotAllowed),
    404: NotFound,
    409: Conflict,
}


def refused(problem: Problem) -> Refused:
    """The error of the type that fits the status."""
    return _TYPES.get(problem.status, Failed if problem.status >= 500 else Refused)(problem)
