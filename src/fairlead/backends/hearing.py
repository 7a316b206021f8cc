"""What a line in the file of events means to the loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from fairlead.backends.files import Line
from fairlead.core import codec
from fairlead.core.messages import (
    AttemptEvent,
    JobExited,
    JobPinned,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
)
from fairlead.core.types import Batch, Observation


@dataclass(frozen=True)
class Hearing:
    """Of whom, and when."""

    job: str
    attempt: int
    at: float
    #: Where the attempt runs now; and the others of this machine, on which it may have measured before.
    gpu_type: str
    gpu_types: Collection[str] = ()

    def event(self, line: Line) -> AttemptEvent | None:
        """None for what is for people, or for the backend itself."""
        match line["kind"]:
            case "started":
                return JobStarted(self.at, self.job, self.attempt)
            case "pinned":
                return JobPinned(self.at, self.job, self.attempt, pinned=line["pinned"])
            case "rescaled":
                return JobRescaled(self.at, self.job, self.attempt)
            case "report":
                return self._report(line)
            case "ended" if line.get("stopped"):
                return JobStopped(self.at, self.job, self.attempt)
            case "ended":
                why, final, last = line.get("why", ""), line.get("final", False), line.get("last_line", "")
                return JobExited(self.at, self.job, self.attempt, line["code"], why, final=final, last_line=last)
        return None

    def _report(self, line: Line) -> JobReported:
        seen = (codec.decode(Observation, each, place="observation") for each in line["observations"])
        bounds: Any = line.get("bounds")
        return JobReported(
            self.at,
            self.job,
            self.attempt,
            progress=min(1.0, max(0.0, line["progress"])),
            batch=line["batch"] or None,  # none before the first step
            noise_scale=line["noise_scale"],
            observations=tuple(each if each.gpu_type in self.gpu_types else self._typed(each) for each in seen),
            saved=line["saved"],
            bounds=None if bounds is None else codec.decode(Batch, bounds, place="bounds"),
            paused_s=line.get("paused_s"),
            knows_partners=False,
        )

    def _typed(self, seen: Observation) -> Observation:
        """Of a worker that was not told the type of its GPU, or is of another machine's checkpoint."""
        return replace(seen, gpu_type=self.gpu_type)
