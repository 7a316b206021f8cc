"""What can go wrong between somebody who asks and the control plane, beyond what they wrote. Errors say whose fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.core.errors import FairleadError, InvalidSpec
from fairlead.core.types import JobSpec
from fairlead.server.published import Published
from fairlead.server.store import Request


class NotFound(InvalidSpec):
    """There is no such thing, or it is somebody else's: the answer is the same."""


class Forbidden(InvalidSpec):
    """Their role does not allow it."""


class Ended(InvalidSpec):
    """It was too late: the job has ended."""


class TooMany(InvalidSpec):
    """They have reached a limit that protects the others."""

    def __init__(self, message: str, *, again_after_s: float | None = None) -> None:
        super().__init__(message)
        self.again_after_s = again_after_s


class Unavailable(FairleadError):
    """The control plane cannot do it now, whoever asks."""


class Controller(Protocol):
    """What the service needs of the loop's thread."""

    @property
    def published(self) -> Published: ...

    @property
    def ready(self) -> bool: ...

    def wait(self, after_seq: int, timeout_s: float) -> Published:
        """The first that is newer, or the latest when the time is over."""

    def hand_over(self, request: Request, specs: Sequence[JobSpec] = ()) -> None:
        """A request that is in the store; returns at once. `specs` are those of the jobs it makes, where known."""

    def failure(self) -> str | None:
        """Why the loop died, if it did."""

    @property
    def complaints(self) -> list[str]:
        """What keeps it from its work now, but not for good."""
