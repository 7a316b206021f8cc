"""Snapshots that can come about: a random past, told to a core State message by message.

Whoever decided in that past was not the policy under test: a policy must cope with what another one left behind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Release,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import NOTHING, Allocation, Job, JobSpec, Node, Phase

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

#: What may happen to a node.
NODE_KINDS = ("lose", "join", "drain", "open", "release", "rent")

#: What may happen next. `go` lets a job take the next step of its life; the others disturb it.
KINDS = ("submit", "go", "wait", "stop", "resize", "cancel", "fail", *NODE_KINDS)

GPU_TYPES = ("a100", "v100", "k80")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens, to the job or node number `which`; `size` picks how many GPUs or how long."""

    kind: str
    which: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """A past. Steps that are impossible when their turn comes are left out."""

    nodes: tuple[Node, ...]
    specs: tuple[JobSpec, ...]
    steps: tuple[Step, ...]
    #: When it begins: 0 as in a simulation, or a UNIX time as in a live cluster.
    begins_at: float = 0.0

    def views(self) -> Iterator[Snapshot]:
        """The snapshot after each step."""
        past = _Past(self)
        yield past.state.snapshot()
        for step in self.steps:
            past.take(step)
            yield past.state.snapshot()


class _Past:
    """The state while a history is told."""

    def __init__(self, history: History) -> None:
        self.state = State()
        self._nodes, self._waiting = history.nodes, list(history.specs)
        self.state.apply(Tick(history.begins_at))
        for node in history.nodes:
            self.state.apply(NodeJoined(self.now, node))

    @property
    def now(self) -> float:
        return self.state.now

    def take(self, step: Step) -> None:
        if step.kind == "wait":
            self.state.apply(Tick(self.now + (0.5, 30.0, 900.0, 20_000.0)[step.size % 4]))
        elif step.kind == "submit":
            if self._waiting:
                self.state.apply(JobSubmitted(self.now, self._waiting.pop(0)))
        elif step.kind in NODE_KINDS:
            if self._nodes:
                self._disturb(step.kind, self._nodes[step.which % len(self._nodes)])
        elif able := [job for job in self.state.live.values() if self._is_able(step, job)]:
            self._live(step, able[step.which % len(able)])

    def _disturb(self, kind: str, node: Node) -> None:
        match kind:
            case "lose":
                self.state.apply(NodeLost(self.now, node.id))
            case "join":
                self.state.apply(NodeJoined(self.now, node))
            case "release":
                if self.state.nodes[node.id].healthy and not self.state.snapshot().held.get(node.id):
                    self.state.issue(Release(self.now, node.id))
            case "rent":
                if node.id in self.state.released:
                    self.state.issue(Rent(self.now, node.id))
            case _:
                self.state.apply(NodeDrained(self.now, node.id, kind == "drain"))

    def _is_able(self, step: Step, job: Job) -> bool:
        """Can this happen to the job?"""
        match step.kind:
            case "go" if job.phase in (Phase.PENDING, Phase.SUSPENDED):
                return not job.cancelled and self._some_gpus(step, job) is not None
            case "stop":
                return job.phase not in (Phase.PENDING, Phase.STOPPING)
            case "fail":
                return job.phase is not Phase.PENDING
            case "resize":
                return job.spec.in_place and job.phase is Phase.RUNNING
        return True

    def _live(self, step: Step, job: Job) -> None:
        at, attempt = self.now, job.attempt
        match step.kind:
            case "go":
                self._go(step, job)
            case "cancel":
                self.state.apply(JobCancelled(at, job.id))
            case "stop":
                self.state.issue(Stop(at, job.id, attempt))
            case "fail":
                self.state.apply(JobExited(at, job.id, attempt, (1, 143)[step.size % 2]))
            case "resize":
                target = NOTHING if step.size % 2 else self._some_gpus(step, job)
                if target is not None and target != job.allocation:
                    self.state.issue(Resize(at, job.id, attempt, target))

    def _go(self, step: Step, job: Job) -> None:
        at, attempt = self.now, job.attempt
        match job.phase:
            case Phase.PENDING | Phase.SUSPENDED:
                gpus = self._some_gpus(step, job)
                assert gpus is not None, "it is able to go"
                pending = job.phase is Phase.PENDING
                self.state.issue(Start(at, job.id, attempt + 1, gpus) if pending else Resize(at, job.id, attempt, gpus))
            case Phase.STARTING:
                self.state.apply(JobStarted(at, job.id, attempt))
            case Phase.RESCALING:
                self.state.apply(JobRescaled(at, job.id, attempt))
            case Phase.STOPPING:
                self.state.apply(JobStopped(at, job.id, attempt))
            case Phase.RUNNING if step.size % 3 == 0:
                self.state.apply(JobExited(at, job.id, attempt))
            case Phase.RUNNING:
                progress = max(job.belief.progress, step.size % 10 / 10)
                self.state.apply(JobReported(at, job.id, attempt, progress))

    def _some_gpus(self, step: Step, job: Job) -> Allocation | None:
        """As many as the job may have, of one type it accepts, anywhere nobody else is; None if there are too few."""
        held, mine = self.state.snapshot().held, dict(job.held.masks)
        by_type: dict[str, list[tuple[str, int]]] = {}
        for node in self.state.nodes.values():
            taken = held.get(node.id, 0) & ~mine.get(node.id, 0)
            if node.open and (not job.spec.gpu_types or node.gpu_type in job.spec.gpu_types):
                free = [(node.id, gpu) for gpu in range(node.gpus) if not taken >> gpu & 1]
                by_type.setdefault(node.gpu_type, []).extend(free)
        options = [gpus for gpus in by_type.values() if len(gpus) >= job.spec.least]
        if not options:
            return None
        free = options[step.size % len(options)]
        count = job.spec.least + step.size % (min(job.spec.most, len(free)) - job.spec.least + 1)
        begin = step.size % len(free)
        chosen: dict[str, list[int]] = {}
        for node_id, gpu in (free[begin:] + free[:begin])[:count]:
            chosen.setdefault(node_id, []).append(gpu)
        return Allocation.of(chosen)


# -- drawing -------------------------------------------------------------------------------------------------------


def node_tuples(*, most: int, types: Sequence[str] = GPU_TYPES) -> SearchStrategy[tuple[Node, ...]]:
    """2 to `most` nodes of 1 to 5 GPUs, of these types."""
    from hypothesis import strategies as st

    node = st.tuples(st.integers(1, 5), st.sampled_from(types))
    return st.lists(node, min_size=2, max_size=most).map(
        lambda drawn: tuple(Node(f"n{place}", gpus, gpu_type) for place, (gpus, gpu_type) in enumerate(drawn))
    )


def job_specs() -> SearchStrategy[JobSpec]:
    """Jobs of every kind, all of the id "job"."""
    from hypothesis import strategies as st

    def make(
        least: int, more: int, most: int, traits: tuple[bool, bool, int], types: tuple[str, ...], promise: int
    ) -> JobSpec:
        in_place, preemptible, priority = traits
        return JobSpec(
            id="job",
            gpus=least + more,
            gpus_min=least,
            gpus_max=least + more + most,
            gpu_types=types,
            in_place=in_place,
            preemptible=preemptible,
            priority=priority,
            estimate_s=(None, 0.0, 60.0, 5000.0)[promise],
        )

    return st.builds(
        make,
        st.sampled_from((1, 2, 3, 4, 6)),
        st.sampled_from((0, 0, 1, 2)),
        st.sampled_from((0, 0, 1, 3)),
        st.tuples(st.sampled_from((True, True, False)), st.booleans(), st.integers(0, 2)),
        st.sampled_from(((), (), (), GPU_TYPES[:1], GPU_TYPES[:2], GPU_TYPES[1:])),
        st.integers(0, 3),
    )


def histories() -> SearchStrategy[History]:
    """Any past of 2 to 5 nodes, 1 to 9 jobs and a few dozen steps."""
    from hypothesis import strategies as st

    specs = st.lists(job_specs(), min_size=1, max_size=9).map(
        lambda drawn: tuple(replace(spec, id=f"j{place}") for place, spec in enumerate(drawn))
    )
    step = st.builds(Step, st.sampled_from(_LIKELY), st.integers(0, 9), st.integers(0, 29))
    listed = st.lists(step, min_size=20, max_size=60).map(tuple)
    # Hypothesis makes the listed steps small when one fails, but draws them timidly; seeded ones go further.
    steps = st.one_of(listed, st.integers(0, 2**32).map(_seeded_steps))
    return st.builds(History, node_tuples(most=5), specs, steps, st.sampled_from((0.0, 1.75e9)))


#: Kinds as often as they are drawn: lives should mostly go on.
_LIKELY = (*KINDS, *["submit"] * 4, *["go"] * 12, *["resize"] * 3, "stop", "join", "open")


def _seeded_steps(seed: int) -> tuple[Step, ...]:
    draw = random.Random(seed)
    return tuple(Step(draw.choice(_LIKELY), draw.randrange(10), draw.randrange(30)) for _ in range(60))
