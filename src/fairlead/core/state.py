"""The only mutable thing in the core: what happened so far, folded into jobs, nodes and GPU occupancy.

Two rules of this file:
1. Nothing changes but through `apply(event)` and `issue(command)`. Both check everything first and change after,
   so a message that is refused leaves no trace.
2. The phases a message may meet are a table, not code. What the table does not list raises InvalidTransition
   with the job's story; what it lists as SAME is a repeat or crossed another message on the way, and changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fairlead.core.ending import after_the_end, requeued
from fairlead.core.errors import InvalidTransition
from fairlead.core.learning import learn, recall
from fairlead.core.messages import (
    AttemptEvent,
    Command,
    Event,
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
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
from fairlead.core.occupancy import Occupancy
from fairlead.core.snapshot import NodeTable, Snapshot, Table
from fairlead.core.types import NOTHING, Allocation, Belief, Job, Node, Phase, Plan

PENDING, STARTING, RUNNING, RESCALING = Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.RESCALING
SUSPENDED, STOPPING = Phase.SUSPENDED, Phase.STOPPING
SUCCEEDED, FAILED, CANCELLED = Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED

#: The message is allowed and changes no phase.
SAME = "same"
#: RUNNING, or SUSPENDED if the job was told to hold nothing.
SETTLED = "settled"
#: PENDING again, or CANCELLED if the user took it back.
REQUEUED = "requeued"
#: By exit code, failures so far and who asked for the end: SUCCEEDED, FAILED, CANCELLED or PENDING.
ENDED = "ended"

#: message type -> phase it meets -> phase that follows. The diagram in docs/concepts.md is made from this table.
TRANSITIONS: dict[type, dict[Phase, Phase | str]] = {
    Start: {PENDING: STARTING},
    Resize: {RUNNING: RESCALING, SUSPENDED: RESCALING},
    Stop: {STARTING: STOPPING, RUNNING: STOPPING, RESCALING: STOPPING, SUSPENDED: STOPPING},
    JobStarted: {STARTING: RUNNING, RUNNING: SAME, RESCALING: SAME, SUSPENDED: SAME, STOPPING: SAME},
    JobReported: {RUNNING: SAME, RESCALING: SAME, SUSPENDED: SAME, STOPPING: SAME},
    JobRescaled: {RESCALING: SETTLED, RUNNING: SAME, SUSPENDED: SAME, STOPPING: SAME},
    JobStopped: dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), REQUEUED),
    JobExited: dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), ENDED),
    JobCancelled: {PENDING: CANCELLED, **dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), SAME)},
    NodeLost: dict.fromkeys((STARTING, RUNNING, RESCALING, STOPPING), REQUEUED),
}

#: How much of a job's past an error can tell.
_STORY_LENGTH = 64


class State:
    """Jobs, nodes and who holds which GPU. Owned by one loop; everyone else gets snapshots."""

    def __init__(self) -> None:
        #: The latest time any message carried. Never goes back, even if a message does.
        self.now = 0.0
        #: GPU-seconds that one of the live jobs would have had, if all had shared equally from the beginning.
        self.fair_gpu_s = 0.0
        self.nodes: dict[str, Node] = {}
        #: Nodes given back, and nodes on their way; disjoint, and none of them is healthy.
        self.released: frozenset[str] = frozenset()
        self.coming: frozenset[str] = frozenset()
        self._open_gpus = 0  # of nodes where something new may be placed
        self._nodes_view: dict[str, Node] | None = None  # a copy for snapshots, void once a node changes
        #: Every job whose phase is not final, in order of arrival.
        self.live: dict[str, Job] = {}
        self.finished: dict[str, Job] = {}
        self._schedulable: dict[str, Job] = {}  # live, not cancelled
        self._allocations: dict[str, Allocation] = {}  # non-empty allocations of schedulable jobs
        self._assigned = Occupancy()  # of _allocations
        self._held = Occupancy()  # of every live job's `held`
        self._table = Table()  # the columns of _schedulable
        self._node_table = NodeTable()  # the columns of nodes, with what _assigned takes of them
        self._lore: dict[str, Belief] = {}  # by model; never changed in place, so snapshots share it
        self._stories: dict[str, list[Message]] = {}
        self._gaps = 0  # entries taken out of the dictionaries that snapshots copy, since they were last packed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _facts(self) -> tuple[Any, ...]:
        return (self.now, self.nodes, self.released, self.coming, list(self.live.items()), self.finished)

    def job(self, job_id: str) -> Job | None:
        return self.live.get(job_id) or self.finished.get(job_id)

    def story(self, job_id: str) -> list[Message]:
        """What happened to a job, oldest first; the distant past of a long life is forgotten."""
        return list(self._stories.get(job_id, ()))

    def follows(self, plan: Plan) -> bool:
        """Was everybody told to be where the plan wants them, and every node to be there that it wants?"""
        return (
            self._allocations == plan.allocations
            and len(self.live) == len(self._schedulable)
            and (plan.nodes is None or self.nodes.keys() - self.released == plan.nodes)
        )

    def snapshot(self) -> Snapshot:
        if self._nodes_view is None:
            self._nodes_view = self.nodes.copy()
        if self._gaps > len(self._schedulable) // 4:
            self._pack()
        return Snapshot(
            now=self.now,
            fair_gpu_s=self.fair_gpu_s,
            jobs=self._schedulable.copy(),
            nodes=self._nodes_view,
            allocations=self._allocations.copy(),
            assigned=self._assigned.masks.copy(),
            held=self._held.masks.copy(),
            shared=self._assigned.shared,
            released=self.released,
            coming=self.coming,
            lore=self._lore,
            cancelled=tuple(job for job in self.live.values() if job.cancelled)
            if len(self.live) > len(self._schedulable)
            else (),
            _table=self._table,
            _node_table=self._node_table,
            _version=(self._table.version, self._node_table.version),
        )

    # -- facts ---------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> bool:
        """Learn a fact. False if it was a repeat or came late, and told nothing but the time."""
        _check_time(event)
        fair_gpu_s = self._fair_at(event.at)
        match event:
            case Tick():
                applied = True
            case JobSubmitted():
                applied = self._submit(event)
            case JobCancelled():
                applied = self._cancel(event)
            case NodeJoined() | NodeLost() | NodeDrained():
                applied = self._apply_to_node(event)
            case _:
                applied = self._apply_to_attempt(event)
        self.now, self.fair_gpu_s = max(self.now, event.at), fair_gpu_s
        return applied

    def _fair_at(self, at: float) -> float:
        """`fair_gpu_s` at a time from now on, if nothing changes before."""
        return self.fair_gpu_s + max(0.0, at - self.now) * self._open_gpus / max(1, len(self._schedulable))

    def _submit(self, event: JobSubmitted) -> bool:
        spec = event.spec
        if known := self.job(spec.id):
            if known.spec == spec:
                return False
            raise InvalidTransition(f"job id {spec.id!r} is taken by another job; submit under a new id")
        at = max(self.now, event.at)
        self._remember(spec.id, event)
        fair_from = self._fair_at(at)
        self._index(None, Job(spec=spec, submitted_at=at, since=at, accounted_at=at, fair_from_gpu_s=fair_from))
        return True

    def _cancel(self, event: JobCancelled) -> bool:
        job = self._find(event, event.job)
        if job.cancelled or job.phase.final:
            return False
        following = self._following(event, job)
        self._remember(job.id, event)
        self._change(job, event.at, phase=job.phase if following is SAME else following, cancelled=True)
        return True

    def _apply_to_attempt(self, event: AttemptEvent) -> bool:
        job = self._find(event, event.job)
        if event.attempt > job.attempt or event.attempt < 1:
            raise self._refusal(event, job, f"attempt {event.attempt} was never started; the last is {job.attempt}")
        if event.attempt < job.attempt or job.phase is PENDING or job.phase.final:
            return False  # fenced: that attempt has ended
        following = self._following(event, job)
        if isinstance(event, JobReported):
            self._report(event, job)
        elif following is SAME:
            return False
        elif isinstance(event, JobExited | JobStopped):
            phase, failures = after_the_end(event, job)
            self._release(job, event.at, phase, failures=failures)
        elif following is SETTLED:
            self._change(job, event.at, phase=RUNNING if job.allocation else SUSPENDED, releasing=NOTHING)
        else:
            self._change(job, event.at, phase=following)
        self._remember(job.id, event)
        return True

    def _report(self, event: JobReported, job: Job) -> None:
        if not 0.0 <= event.progress <= 1.0:
            raise self._refusal(event, job, f"progress {event.progress} is not between 0 and 1")
        if event.batch is not None and event.batch < 1:
            raise self._refusal(event, job, f"batch {event.batch} is not at least 1")
        if event.noise_scale is not None and not math.isfinite(event.noise_scale):
            raise self._refusal(event, job, f"noise scale {event.noise_scale} is not a finite number")
        gpu_type = self.nodes[job.allocation.shares[0][0]].gpu_type if job.allocation else ""
        self._change(job, event.at, belief=learn(job, event, gpu_type))
        self._lore = recall(self._lore, self.live[job.id], event)

    def _apply_to_node(self, event: NodeJoined | NodeLost | NodeDrained) -> bool:
        if isinstance(event, NodeJoined):
            return self._join(event)
        node = self.nodes.get(event.node)
        if node is None:
            raise InvalidTransition(f"{_brief(event)}: no such node; known are {', '.join(self.nodes) or 'none'}")
        if isinstance(event, NodeDrained):
            self._put_node(replace(node, draining=event.draining))
            return node.draining != event.draining
        if not node.healthy:
            return False
        self._put_node(replace(node, healthy=False))
        for job in [j for j in self.live.values() if (j.allocation or j.releasing) and node.id in j.held.nodes]:
            self._remember(job.id, event)
            self._release(job, event.at, requeued(job))
        return True

    def _join(self, event: NodeJoined) -> bool:
        node, known = event.node, self.nodes.get(event.node.id)
        if node == known:
            return False
        if (
            known is not None
            and (node.gpus, node.gpu_type) != (known.gpus, known.gpu_type)
            and self._held.masks.get(node.id)
        ):
            raise InvalidTransition(
                f"{_brief(event)}: node {node.id} joins with {node.gpus} x {node.gpu_type} while jobs hold some of its "
                f"{known.gpus} x {known.gpu_type}; report NodeLost first"
            )
        if known is not None and known.healthy and not node.healthy:
            raise InvalidTransition(f"{_brief(event)}: a node joins healthy; report NodeLost when it fails")
        self._put_node(node)
        if node.healthy:
            self.released, self.coming = self.released - {node.id}, self.coming - {node.id}
        return True

    # -- intents -------------------------------------------------------------------------------------------------

    def issue(self, command: Command) -> None:
        """Record an intent. From here on a job counts as holding what it was told to hold, a released node as gone."""
        _check_time(command)
        if isinstance(command, Rent | Release):
            self._order(command)
            return
        job = self._find(command, command.job)
        following = self._following(command, job)
        expected = job.attempt + 1 if isinstance(command, Start) else job.attempt
        if command.attempt != expected:
            raise self._refusal(command, job, f"its attempt should be {expected}")
        if not isinstance(command, Stop) and (fault := self._fault(command)):
            raise self._refusal(command, job, fault)
        self._remember(job.id, command)
        self.fair_gpu_s = self._fair_at(command.at)
        self.now = max(self.now, command.at)
        if isinstance(command, Start):
            first = self.now if job.first_started_at is None else job.first_started_at
            self._change(
                job,
                command.at,
                phase=following,
                allocation=command.allocation,
                attempt=expected,
                first_started_at=first,
            )
        elif isinstance(command, Resize):
            lost = job.releasing | (job.allocation - command.allocation)
            suspended = job.preemptions + (bool(job.allocation) and not command.allocation)
            self._change(
                job, command.at, phase=following, allocation=command.allocation, releasing=lost, preemptions=suspended
            )
        else:
            preempted = job.preemptions + (not job.cancelled and bool(job.allocation))
            self._change(
                job, command.at, phase=following, allocation=NOTHING, releasing=job.held, preemptions=preempted
            )

    def _order(self, command: Rent | Release) -> None:
        node = self.nodes.get(command.node)
        if fault := self._order_fault(command, node):
            raise InvalidTransition(f"{_brief(command)}: node {command.node} {fault}")
        assert node is not None
        self.fair_gpu_s = self._fair_at(command.at)
        self.now = max(self.now, command.at)
        if isinstance(command, Rent):
            self.released, self.coming = self.released - {node.id}, self.coming | {node.id}
        else:
            self.released |= {node.id}
            self._put_node(replace(node, healthy=False))

    # -- the one way a job changes -------------------------------------------------------------------------------

    def _release(self, job: Job, at: float, phase: Phase, **changes: Any) -> None:
        self._change(job, at, phase=phase, allocation=NOTHING, releasing=NOTHING, **changes)

    def _change(self, job: Job, at: float, **changes: Any) -> None:
        """Replace a job by its next version: account for the time until now, and keep every index true."""
        now = max(self.now, at)
        if job.phase is RUNNING:
            changes |= {"service_gpu_s": job.service_at(now), "run_s": job.run_at(now), "last_ran_at": now}
        if job.allocation:
            changes["held_gpu_s"] = job.held_at(now)
        changes["accounted_at"] = now
        if (phase := changes.get("phase", job.phase)) is not job.phase:
            changes["since"] = now
            if phase is RUNNING:
                changes["start_s" if job.phase is STARTING else "rescale_s"] = now - job.since
        self._index(job, replace(job, **changes))

    def _index(self, old: Job | None, new: Job) -> None:
        """Let every index know that `old` has become `new`."""
        job_id, schedulable = new.spec.id, not (new.phase.final or new.cancelled)
        if new.phase.final:
            self.live.pop(job_id, None)
            self.finished[job_id] = new
        else:
            self.live[job_id] = new
        if schedulable:
            self._schedulable[job_id] = new
            self._table.put(new)
        elif self._schedulable.pop(job_id, None) is not None:
            self._table.drop(job_id)
        was_held = (NOTHING, NOTHING) if old is None else (old.allocation, old.releasing)
        for before, after in zip(was_held, (new.allocation, new.releasing), strict=True):
            if before is not after:
                self._held.remove(before)
                self._held.add(after)
        self._assign(
            job_id,
            NOTHING if old is None or old.cancelled else old.allocation,
            new.allocation if schedulable else NOTHING,
        )

    def _assign(self, job_id: str, before: Allocation, after: Allocation) -> None:
        if before is after:
            return
        for node, gpus in self._assigned.remove(before):
            self._node_table.use(node, -gpus)
        for node, gpus in self._assigned.add(after):
            self._node_table.use(node, gpus)
        if after:
            self._allocations[job_id] = after
        else:
            self._allocations.pop(job_id, None)
            self._gaps += 1

    def _pack(self) -> None:
        """Python copies a dictionary several times as fast if few entries were taken out of it."""
        self._schedulable, self._allocations = dict(self._schedulable.items()), dict(self._allocations.items())
        self._gaps = 0

    def _put_node(self, node: Node) -> None:
        known = self.nodes.get(node.id)
        self._open_gpus += (node.gpus if node.open else 0) - (known.gpus if known is not None and known.open else 0)
        self.nodes[node.id] = node
        self._nodes_view = None
        self._node_table.put(node)

    # -- refusing ------------------------------------------------------------------------------------------------

    def _find(self, message: Message, job_id: str) -> Job:
        job = self.job(job_id)
        if job is None:
            raise InvalidTransition(f"{_brief(message)}: there is no job {job_id!r}")
        return job

    def _following(self, message: Message, job: Job) -> Any:
        following = TRANSITIONS[type(message)].get(job.phase)
        if following is None:
            raise self._refusal(message, job, f"not possible while it is {job.phase}")
        return following

    def _fault(self, command: Start | Resize) -> str:
        """Why these GPUs cannot be held by anyone: the part of `check` on which the occupancy rests; empty if none."""
        if isinstance(command, Start) and not command.allocation:
            return "it would start on no GPUs"
        for node_id, gpus in command.allocation:
            node = self.nodes.get(node_id)
            if node is None:
                return f"there is no node {node_id}"
            if not node.healthy:
                return f"node {node_id} is lost"
            if gpus[-1] >= node.gpus:
                return f"node {node_id} has {node.gpus} GPUs"
        return ""

    def _order_fault(self, command: Rent | Release, node: Node | None) -> str:
        """Why this node can neither be asked for nor given back now; empty if it can."""
        if node is None:
            return f"does not exist; known are {', '.join(self.nodes) or 'none'}"
        if node.id in self.coming:
            return "is on its way; wait for NodeJoined"
        if isinstance(command, Release):
            if self._held.masks.get(node.id):
                return "is in use: jobs hold some of its GPUs; stop or move them first"
            return "" if node.healthy else "is not there to be released"
        if node.healthy:
            return "is there already"
        return "" if node.id in self.released else "was not released; it failed, and returns by itself"

    def _refusal(self, message: Message, job: Job, problem: str) -> InvalidTransition:
        story = "\n  ".join(_brief(m) for m in self.story(job.id))
        return InvalidTransition(f"{_brief(message)}: {problem}. The story of job {job.id}:\n  {story}")

    def _remember(self, job_id: str, message: Message) -> None:
        story = self._stories.setdefault(job_id, [])
        story.append(message)
        if len(story) > _STORY_LENGTH:
            del story[1 : _STORY_LENGTH // 2]  # keep the submission


def _check_time(message: Message) -> None:
    if not math.isfinite(message.at):
        raise InvalidTransition(f"{message} has no finite time")


def _brief(message: Message) -> str:
    """One line of a story: "12.0 JobStarted attempt 1"."""
    words = [f"{message.at:.1f} {type(message).__name__}"]
    for name in ("attempt", "allocation", "code", "progress"):
        if (value := getattr(message, name, None)) is not None:
            words.append(f"{name} {value}")
    return " ".join(words)
