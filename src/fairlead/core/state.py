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

from fairlead.core.ending import after_the_end, requeued, tried_again_at
from fairlead.core.errors import InvalidTransition
from fairlead.core.facts import Facts
from fairlead.core.learning import attributed, learn, recall
from fairlead.core.memo import Memo, patched
from fairlead.core.messages import (
    INTENTS,
    AttemptEvent,
    Event,
    Intent,
    JobCancelled,
    JobExited,
    JobHeld,
    JobPinned,
    JobReported,
    JobReprioritised,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeEvent,
    NodeJoined,
    NodeLost,
    OutsidersSeen,
    Release,
    Remember,
    Rent,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.node_order import in_order
from fairlead.core.roster import Roster
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Belief, Job, Node, Phase, Plan
from fairlead.core.usage import HALF_LIFE_S, Ledger
from fairlead.core.wording import counted

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
    JobPinned: dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), SAME),
    JobRescaled: {RESCALING: SETTLED, RUNNING: SAME, SUSPENDED: SAME, STOPPING: SAME},
    JobStopped: dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), REQUEUED),
    JobExited: dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), ENDED),
    JobCancelled: {PENDING: CANCELLED, **dict.fromkeys((STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), SAME)},
    JobHeld: dict.fromkeys((PENDING, STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), SAME),
    JobReprioritised: dict.fromkeys((PENDING, STARTING, RUNNING, RESCALING, SUSPENDED, STOPPING), SAME),
    NodeLost: dict.fromkeys((STARTING, RUNNING, RESCALING, STOPPING), REQUEUED),
}

#: How much of a job's past an error can tell.
_STORY_LENGTH = 64


class State:
    """Jobs, nodes and who holds which GPU. Owned by one loop; everyone else gets snapshots."""

    def __init__(self, *, half_life_s: float = HALF_LIFE_S, keep_finished: int | None = None) -> None:
        """`half_life_s`: after so long, use counts half in `Snapshot.usage`. `keep_finished`: jobs not to forget."""
        #: The latest time any message carried. Never goes back, even if a message does.
        self.now = 0.0
        #: GPU-seconds that one of the live jobs would have had, if all had shared equally from the beginning.
        self.fair_gpu_s = 0.0
        self.nodes: dict[str, Node] = {}
        #: Nodes given back, and nodes on their way; disjoint, and none of them is healthy.
        self.released: frozenset[str] = frozenset()
        self.coming: frozenset[str] = frozenset()
        self._open_gpus = 0  # on which something new may be placed
        self._nodes_view: dict[str, Node] | None = None  # for snapshots, void once a node changes
        self._jobs = Roster(keep_finished=keep_finished)
        self._dependents: dict[str, list[str]] = {}  # job -> those that wait for it to succeed
        self._ledger = Ledger(half_life_s)
        self._lore: dict[str, Belief] = {}  # by model; never changed in place, so snapshots share it
        self._stories: dict[str, list[Message]] = {}
        #: What the policy wants to remember; never changed in place, so snapshots share it.
        self._memo: Memo = {}

    @property
    def live(self) -> dict[str, Job]:
        """Every job whose phase is not final, in order of arrival."""
        return self._jobs.live

    @property
    def finished(self) -> dict[str, Job]:
        """The others, or the last of them."""
        return self._jobs.finished

    @property
    def wakes_at(self) -> float:
        """When somebody may run again who may not run now, without anything else happening."""
        return self._jobs.wakes_at

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return self.facts() == other.facts()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def facts(self) -> Facts:
        """Everything but the stories."""
        return Facts(
            now=self.now,
            fair_gpu_s=self.fair_gpu_s,
            nodes=tuple(self.nodes.values()),
            released=tuple(sorted(self.released)),
            coming=tuple(sorted(self.coming)),
            live=tuple(self.live.values()),
            finished=tuple(self.finished.values()),
            usage=tuple((*account, *used) for account, used in self._ledger.entries.items()),
            half_life_s=self._ledger.half_life_s,
            keep_finished=self._jobs.keep_finished,
            lore=self._lore,
            memo=self._memo,
        )

    @classmethod
    def of(cls, facts: Facts) -> State:
        """The state that knows just this."""
        state = cls(half_life_s=facts.half_life_s, keep_finished=facts.keep_finished)
        state.now, state.fair_gpu_s = facts.now, facts.fair_gpu_s
        state.released, state.coming = frozenset(facts.released), frozenset(facts.coming)
        state._lore, state._memo = dict(facts.lore), facts.memo
        for node in facts.nodes:
            state._put_node(node)
        for queue, tenant, gpu_s, at in facts.usage:
            state._ledger.entries[queue, tenant] = (gpu_s, at)
        for job in (*facts.finished, *facts.live):
            state._jobs.put(None, job, facts.now)
            for other in job.waits_for if not job.phase.final else ():
                state._dependents.setdefault(other, []).append(job.id)
        return state

    def job(self, job_id: str) -> Job | None:
        return self._jobs.find(job_id)

    def story(self, job_id: str) -> list[Message]:
        """What happened to a job, oldest first; the distant past of a long life is forgotten."""
        return list(self._stories.get(job_id, ()))

    def follows(self, plan: Plan) -> bool:
        """Was everybody told to be where the plan wants them, and every node to be there that it wants?"""
        jobs = self._jobs
        return (
            jobs.allocations == plan.allocations
            and all(job.phase is SUSPENDED and not job.cancelled for job in jobs.barred.values())
            and (plan.nodes is None or self.nodes.keys() - self.released == plan.nodes)
        )

    def snapshot(self) -> Snapshot:
        if self._nodes_view is None:
            self._nodes_view = {node.id: node for node in in_order(self.nodes.values())}
        jobs = self._jobs
        jobs.tidy()
        schedulable = jobs.schedulable.copy()
        return Snapshot(
            now=self.now,
            fair_gpu_s=self.fair_gpu_s,
            jobs=schedulable,
            nodes=self._nodes_view,
            allocations=jobs.allocations.copy(),
            assigned=jobs.assigned.masks.copy(),
            held=jobs.held.masks.copy(),
            shared=jobs.assigned.shared,
            released=self.released,
            coming=self.coming,
            lore=self._lore,
            barred=tuple(jobs.barred.values()),
            ledger=self._ledger.copy(),
            memo=self._memo,
            absent=frozenset(jobs.absent),
            _schedulable=schedulable,
            _table=jobs.table,
            _node_table=jobs.node_table,
            _version=(jobs.table.version, jobs.node_table.version),
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
            case JobCancelled() | JobHeld() | JobReprioritised():
                applied = self._wish(event)
            case NodeJoined() | NodeLost() | NodeDrained() | OutsidersSeen():
                applied = self._apply_to_node(event)
            case _:
                applied = self._apply_to_attempt(event)
        self.now, self.fair_gpu_s = max(self.now, event.at), fair_gpu_s
        self._jobs.wake(self.now)
        return applied

    def _fair_at(self, at: float) -> float:
        """`fair_gpu_s` at a time from now on, if nothing changes before."""
        return self.fair_gpu_s + max(0.0, at - self.now) * self._open_gpus / max(1, len(self._jobs.schedulable))

    def _submit(self, event: JobSubmitted) -> bool:
        spec = event.spec
        if known := self.job(spec.id):
            if known.spec == spec:
                return False
            raise InvalidTransition(f"job id {spec.id!r} is taken by another job; submit under a new id")
        at = max(self.now, event.at)
        waits_for = tuple(each for each in spec.depends_on if not self._has_succeeded(each, event))
        self._remember(spec.id, event)
        for other in waits_for:
            self._dependents.setdefault(other, []).append(spec.id)
        fair_from = self._fair_at(at)
        job = Job(spec, at, since=at, accounted_at=at, fair_from_gpu_s=fair_from, waits_for=waits_for)
        self._jobs.put(None, job, at)
        return True

    def _has_succeeded(self, job_id: str, event: JobSubmitted) -> bool:
        job = self.job(job_id)
        if job is None or job.phase in (FAILED, CANCELLED):
            fate = "is not known" if job is None else f"has {job.phase}"
            raise InvalidTransition(f"{_brief(event)}: job {event.spec.id} depends on job {job_id!r}, which {fate}")
        return job.phase is SUCCEEDED

    def _wish(self, event: JobCancelled | JobHeld | JobReprioritised) -> bool:
        """What a user wants of a job that is there already."""
        job = self._find(event, event.job)
        if job.cancelled or job.phase.final:
            return False
        following = self._following(event, job)
        changes: dict[str, Any] = {}
        if isinstance(event, JobCancelled):
            phase = job.phase if following is SAME else following
            changes = {"phase": phase, "cancelled": True, "cancelled_by": event.by, "cancelled_why": event.why}
        elif isinstance(event, JobHeld):
            changes = {"on_hold": event.on_hold}
        else:
            changes = {"spec": replace(job.spec, priority=event.priority)}
        if all(getattr(job, name) == value for name, value in changes.items()):
            return False
        self._remember(job.id, event)
        self._change(job, event.at, **changes)
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
        elif isinstance(event, JobPinned):
            if not self._pin(event, job):
                return False
        elif following is SAME:
            return False
        elif isinstance(event, JobExited | JobStopped):
            self._release(job, event.at, **self._ended(event, job))
        elif following is SETTLED:
            self._change(job, event.at, phase=RUNNING if job.allocation else SUSPENDED, releasing=NOTHING)
        else:
            self._change(job, event.at, phase=following)
        self._remember(job.id, event)
        return True

    def _ended(self, event: JobExited | JobStopped, job: Job) -> dict[str, Any]:
        """How a job is after its attempt has ended."""
        phase, failures = after_the_end(event, job)
        changes: dict[str, Any] = {"phase": phase, "failures": failures}
        if isinstance(event, JobExited):
            changes |= {"exit_code": event.code, "detail": event.detail, "last_line": event.last_line}
        if phase is PENDING and failures > job.failures and job.spec.backoff_s > 0.0:
            changes["not_before"] = tried_again_at(job, failures, max(self.now, event.at))
        return changes

    def _pin(self, event: JobPinned, job: Job) -> bool:
        """To the size it holds, as a job that cannot change in place; or let it change again. False if it is so."""
        if not event.pinned:
            if job.pinned_from is None:
                return False
            self._change(job, event.at, **_unpinned(job))
        elif job.pinned_from is None and job.spec.in_place and job.phase in (STARTING, RUNNING):
            gpus = job.allocation.total
            spec = replace(job.spec, gpus=gpus, gpus_min=gpus, gpus_max=gpus, in_place=False)
            self._change(job, event.at, spec=spec, pinned_from=job.spec.sizes)
        else:
            return False
        return True

    def _report(self, event: JobReported, job: Job) -> None:
        if not 0.0 <= event.progress <= 1.0:
            raise self._refusal(event, job, f"progress {event.progress} is not between 0 and 1")
        if event.batch is not None and event.batch < 1:
            raise self._refusal(event, job, f"batch {event.batch} is not at least 1")
        if event.noise_scale is not None and not math.isfinite(event.noise_scale):
            raise self._refusal(event, job, f"noise scale {event.noise_scale} is not a finite number")
        if event.paused_s is not None and not 0.0 <= event.paused_s < math.inf:
            raise self._refusal(event, job, f"a pause of {event.paused_s} s is not a finite number of at least 0")
        gpu_type = self.nodes[job.allocation.shares[0][0]].gpu_type if job.allocation else ""
        pause = {} if event.paused_s is None else {"rescale_s": event.paused_s}
        if job.phase is RESCALING and event.progress > job.belief.progress:
            # It trains on while others boot: what it did since then was service, on the GPUs it had.
            trained_s = max(0.0, max(self.now, event.at) - job.accounted_at)
            service_gpu_s = job.service_gpu_s + job.had * trained_s
            served_s = {**job.served_s, job.gpu_type: job.served_s.get(job.gpu_type, 0.0) + trained_s}
            job = replace(job, run_s=job.run_s + trained_s, service_gpu_s=service_gpu_s, served_s=served_s)
        event = attributed(job, event, gpu_type)
        self._change(job, event.at, belief=learn(job, event, gpu_type), **pause)
        self._lore = recall(self._lore, self.live[job.id], event)

    def _apply_to_node(self, event: NodeEvent) -> bool:
        if isinstance(event, NodeJoined):
            return self._join(event)
        node = self.nodes.get(event.node)
        if node is None:
            raise InvalidTransition(f"{_brief(event)}: no such node; known are {', '.join(self.nodes) or 'none'}")
        if isinstance(event, NodeDrained):
            drained = replace(node, draining=event.draining, drain_by=event.by if event.draining else None)
            self._put_node(drained)
            return node != drained
        if isinstance(event, OutsidersSeen):
            return self._see_outsiders(event, node)
        if not node.healthy:
            return False
        self._put_node(replace(node, healthy=False))
        for job in [j for j in self.live.values() if (j.allocation or j.releasing) and node.id in j.held.nodes]:
            self._remember(job.id, event)
            self._release(job, event.at, phase=requeued(job))
        return True

    def _see_outsiders(self, event: OutsidersSeen, node: Node) -> bool:
        gpus = tuple(sorted(set(event.gpus)))
        if gpus and not 0 <= gpus[0] <= gpus[-1] < node.gpus:
            raise InvalidTransition(f"{_brief(event)}: node {node.id} has GPUs 0 to {node.gpus - 1}, not all of {gpus}")
        self._put_node(replace(node, outside=gpus))
        return node.outside != gpus

    def _join(self, event: NodeJoined) -> bool:
        node, known = event.node, self.nodes.get(event.node.id)
        if node == known:
            return False
        if (
            known is not None
            and (node.gpus, node.gpu_type) != (known.gpus, known.gpu_type)
            and self._jobs.held.masks.get(node.id)
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

    def replay(self, message: Message) -> None:
        """Take up one message of a journal, be it a fact or an intent."""
        if isinstance(message, INTENTS):
            self.issue(message)  # type: ignore[arg-type]  # INTENTS is the union as a tuple
        else:
            self.apply(message)  # type: ignore[arg-type]

    def issue(self, command: Intent) -> None:
        """Record an intent. From here on a job counts as holding what it was told to hold, a released node as gone."""
        _check_time(command)
        if isinstance(command, Rent | Release):
            self._order(command)
            return
        if isinstance(command, Remember):
            self._memo = patched(self._memo, command.patch)
            return
        job = self._find(command, command.job)
        following = self._following(command, job)
        expected = job.attempt + 1 if isinstance(command, Start) else job.attempt
        if command.attempt != expected:
            raise self._refusal(command, job, f"its attempt should be {expected}")
        if isinstance(command, Start) and not job.may_run(max(self.now, command.at)):
            raise self._refusal(command, job, "it may not run now: it is on hold, waits for others, or failed just now")
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
                job,
                command.at,
                phase=following,
                allocation=command.allocation,
                releasing=lost,
                preemptions=suspended,
                had=job.allocation.total,
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

    def _release(self, job: Job, at: float, **changes: Any) -> None:
        """The attempt is over. The next one may have another size, also of a job that was pinned to one."""
        self._change(job, at, allocation=NOTHING, releasing=NOTHING, **_unpinned(job), **changes)

    def _change(self, job: Job, at: float, **changes: Any) -> None:
        """Replace a job by its next version: account for the time until now, and keep every index true."""
        now = max(self.now, at)
        if job.phase is RUNNING:
            changes |= {
                "service_gpu_s": job.service_at(now),
                "run_s": job.run_at(now),
                "served_s": job.served_at(now),
                "last_ran_at": now,
            }
        if job.allocation:
            changes["held_gpu_s"] = job.held_at(now)
            self._ledger.add(job.spec, job.allocation.total, job.accounted_at, now)
        changes["accounted_at"] = now
        if (phase := changes.get("phase", job.phase)) is not job.phase:
            changes["since"] = now
            if phase is RUNNING:
                changes["gpu_type"] = self.nodes[job.allocation.nodes[0]].gpu_type
                starts = job.phase is STARTING  # whose command is not run before its back-off is over
                begin = max(job.since, job.not_before) if starts else job.since
                changes["start_s" if starts else "rescale_s"] = max(0.0, now - begin)
        if phase is not RUNNING and job.partners:
            changes |= {"partners": (), "partners_since": now}
        shared, after = self._jobs.held.shared, replace(job, **changes)
        self._jobs.put(job, after, now)
        if shared or self._jobs.held.shared:
            for other, partners in self._jobs.new_partners(job, after):
                self._change(other, now, partners=partners, partners_since=now)
        if phase is SUCCEEDED:
            self._succeeded(job.id, now)

    def _succeeded(self, job_id: str, now: float) -> None:
        """Those that waited for it wait no longer."""
        for other in self._dependents.pop(job_id, ()):
            if (job := self.live.get(other)) is not None:
                self._change(job, now, waits_for=tuple(each for each in job.waits_for if each != job_id))

    def _put_node(self, node: Node) -> None:
        known = self.nodes.get(node.id)
        self._open_gpus += node.usable - (0 if known is None else known.usable)
        self.nodes[node.id] = node
        self._nodes_view = None
        self._jobs.node_table.put(node)

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
                return f"node {node_id} has {counted(node.gpus, 'GPU')}"
        return ""

    def _order_fault(self, command: Rent | Release, node: Node | None) -> str:
        """Why this node can neither be asked for nor given back now; empty if it can."""
        if node is None:
            return f"does not exist; known are {', '.join(self.nodes) or 'none'}"
        if node.id in self.coming:
            return "is on its way; wait for NodeJoined"
        if isinstance(command, Release):
            if self._jobs.held.masks.get(node.id):
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


def _unpinned(job: Job) -> dict[str, Any]:
    """What changes when a job may have any of its sizes again; nothing, if it may already."""
    if job.pinned_from is None:
        return {}
    least, gpus, most = job.pinned_from
    spec = replace(job.spec, gpus=gpus, gpus_min=least, gpus_max=most, in_place=True)
    return {"spec": spec, "pinned_from": None}


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
