"""Queues: what a part of the users is guaranteed, may borrow, and may have at most; and who can never run in one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import JobSpec
from fairlead.core.wording import counted

#: The queue of a job that names none, and of one that names a queue which is not there any more.
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Queue:
    """The rules of one queue. Numbers are GPUs of all types together."""

    name: str
    #: GPUs that are its own as soon as it has work for them; None guarantees nothing.
    quota: int | None = None
    #: Its part of the GPUs that nobody is guaranteed or whose owner has no work for them.
    weight: float = 1.0
    #: Queues of higher priority borrow first.
    priority: int = 0
    #: The most it may have, whoever else is there; None for no limit. The same for each of its users.
    max_gpus: int | None = None
    max_gpus_per_user: int | None = None
    #: Jobs that a user may have running at once.
    max_jobs_per_user: int | None = None
    #: May it have more than its quota while others have no work for theirs?
    borrow: bool = True
    #: May others have what is left of its quota while it has no work for it?
    lend: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidSpec("a queue needs a name")
        for option, least in (("quota", 0), ("max_gpus", 1), ("max_gpus_per_user", 1), ("max_jobs_per_user", 1)):
            value = getattr(self, option)
            if value is not None and value < least:
                raise InvalidSpec(f"queue {self.name}: {option} is {value}; expected at least {least}, or none")
        if not 0.0 < self.weight < math.inf:
            raise InvalidSpec(f"queue {self.name}: weight is {self.weight}; expected a positive number")
        if self.quota is not None and self.max_gpus is not None and self.quota > self.max_gpus:
            raise InvalidSpec(
                f"queue {self.name}: quota is {self.quota} and max_gpus {self.max_gpus}; it cannot be guaranteed more "
                "than it may have"
            )
        if not self.borrow and not self.quota:
            raise InvalidSpec(f"queue {self.name} may not borrow and has no quota, so nothing could run; give it one")

    @property
    def guarantee(self) -> int:
        return self.quota or 0

    @property
    def limit(self) -> int | None:
        """The most GPUs it may have, by whichever rule; None for no limit."""
        return self.quota if not self.borrow else self.max_gpus

    @property
    def is_limited(self) -> bool:
        """Is there something that it or one of its users may not do although nobody else wants the GPUs?"""
        limits = (self.limit, self.max_gpus_per_user, self.max_jobs_per_user)
        return any(limit is not None for limit in limits)


def all_queues(queues: Iterable[Queue]) -> dict[str, Queue]:
    """By name, with the default queue, which is always there. Refuses two of one name."""
    found: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in found:
            raise InvalidSpec(f"queue {queue.name} is defined twice; leave one of them out")
        found[queue.name] = queue
    found.setdefault(DEFAULT, Queue(DEFAULT))
    return found


def admit(view: Snapshot, spec: JobSpec, queues: Sequence[Queue]) -> str | None:
    """Why a job can never run in its queue, on all nodes there could be; None if it can."""
    known = all_queues(queues)
    queue = known.get(spec.queue)
    if queue is None:
        close = difflib.get_close_matches(spec.queue, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"there is no queue {spec.queue!r}; {hint}known are {', '.join(sorted(known))}"
    return _beyond_the_cluster(view, spec) or _beyond_the_queue(view, spec, queue, known.values())


def _beyond_the_cluster(view: Snapshot, spec: JobSpec) -> str | None:
    gpus: dict[str, int] = {}
    for node in view.nodes.values():
        gpus[node.gpu_type] = gpus.get(node.gpu_type, 0) + node.gpus
    accepted = [name for name in gpus if not spec.gpu_types or name in spec.gpu_types]
    if max((gpus[name] for name in accepted), default=0) >= spec.least:
        return None
    there = ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "no GPUs"
    kind = f" of type {' or '.join(spec.gpu_types)}" if spec.gpu_types else " of one type"
    return f"it needs at least {counted(spec.least, 'GPU')}{kind}, and the cluster has {there}"


def _beyond_the_queue(view: Snapshot, spec: JobSpec, queue: Queue, queues: Iterable[Queue]) -> str | None:
    needs = f"it needs at least {counted(spec.least, 'GPU')}, and"
    if queue.limit is not None and spec.least > queue.limit:
        why = "" if queue.borrow else ", its quota, and does not borrow"
        return f"{needs} queue {queue.name} may have {queue.limit} at once{why}"
    if queue.max_gpus_per_user is not None and spec.least > queue.max_gpus_per_user:
        return f"{needs} a user of queue {queue.name} may have {queue.max_gpus_per_user} at once"
    others = [other for other in queues if other.name != queue.name]
    kept = sum(other.guarantee for other in others if not (other.lend and spec.preemptible))
    total = sum(node.gpus for node in view.nodes.values())
    if spec.least <= max(queue.guarantee, total - kept):
        return None
    if spec.preemptible:
        return f"{needs} {kept} of the cluster's {total} are quotas of queues that do not lend"
    return (
        f"{needs} it must not be preempted, so it can only have what is guaranteed to queue {queue.name} "
        f"({queue.guarantee}) or to nobody ({max(0, total - kept - queue.guarantee)}); let it be preempted, "
        "or ask for fewer GPUs"
    )
