"""What everybody may read of a running control plane: one value, replaced as a whole after each turn of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Node, Plan
from fairlead.server.lock_waits import LockWait


@dataclass(frozen=True)
class Published:
    """How things are after message `seq` of the journal. Its mappings must not be changed by whoever holds it."""

    seq: int
    #: By the loop's clock, in UNIX seconds.
    now: float
    #: In order of arrival.
    live: Mapping[str, Job]
    #: The last of those that ended, as they did.
    finished: Mapping[str, Job]
    nodes: Mapping[str, Node]
    #: What the policy last saw and said; None before its first decision.
    view: Snapshot | None = None
    plan: Plan = field(default_factory=Plan)
    #: Jobs that have their GPUs, but wait for another process that saves in the same directory.
    lock_waits: Mapping[str, LockWait] = field(default_factory=dict)

    def job(self, job_id: str) -> Job | None:
        return self.live.get(job_id) or self.finished.get(job_id)
