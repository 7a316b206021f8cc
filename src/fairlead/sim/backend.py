"""A cluster made of a heap: the world behind the loop when nothing is real.

Time is virtual and exact: the next event is whatever comes first, be it an arrival, a start-up that completes,
a change of a job's pace, its end, or a node that fails. What happens at the same instant is delivered together, but
for what a truth rounds down to it: that comes after the instant's decision, which cannot know of it yet.
The same inputs give the same events, bit for bit: all randomness is in the inputs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.core.capability import EVERYTHING
from fairlead.core.errors import InvalidSpec
from fairlead.core.learning import MODEL
from fairlead.core.messages import (
    Command,
    Event,
    JobCancelled,
    JobExited,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Release,
    Rent,
    Resize,
    Start,
    Tick,
)
from fairlead.core.occupancy import Occupancy
from fairlead.core.types import NOTHING, Allocation, Node, Phase
from fairlead.sim.attempt import Attempt, Underway
from fairlead.sim.noise import EXACT, ObservationNoise
from fairlead.sim.truth import Setting
from fairlead.sim.world import Failing, Outage, SimJob

#: Internal entries of the heap; everything else in it is an event to deliver as it is.
_STARTED, _BOOTED, _RESCALED, _STOPPED = "started", "booted", "rescaled", "stopped"
_BOUNDARY, _RETUNE, _REPORT, _CHECKPOINT = "boundary", "retune", "report", "checkpoint"

#: What completes the phases that end by themselves.
_COMPLETES = {Phase.STARTING: _STARTED, Phase.RESCALING: _RESCALED, Phase.STOPPING: _STOPPED}


class SimBackend:
    """See the module. `wait` and `execute` are the Backend protocol; `remaining_s` is for declared oracles."""

    can = EVERYTHING

    def __init__(
        self,
        jobs: Sequence[SimJob],
        nodes: Sequence[Node],
        *,
        outages: Sequence[Outage] = (),
        failing: Failing | None = None,
        interference: float = 0.0,
        report_every_s: float = 0.0,
        retune_every_s: float = 30.0,
        provision_s: float = 0.0,
        noise: ObservationNoise = EXACT,
        patience: int = 1000,
    ) -> None:
        """
        outages: when nodes are away. failing: nodes fail as it says for as long as the world lasts.
        interference: share of speed that a job on several nodes loses while it shares one with another such job.
        report_every_s: running jobs report this often; 0 means only when their batch size or speed changes.
        retune_every_s: jobs that tune their batch do so at every multiple of this, besides whenever their pace changes
            by itself; 0 means only then.
        provision_s: a node that is rented joins after so long. It is paid for from then on.
        noise: errors of what jobs report of their speed.
        patience: give up after so many idle ticks in a row, or so many starts (and ten a job) that were aborted, or so
            many failures of nodes (and a hundred a node) between which no job saved any progress.
        """
        _check_options(interference, retune_every_s=retune_every_s, provision_s=provision_s)
        self.now = 0.0
        self._interference, self._patience, self._provision_s = interference, patience, provision_s
        self._report_every_s, self._retune_every_s, self._noise = report_every_s, retune_every_s, noise
        self._tells_checkpoints = bool(outages) or failing is not None  # of no use while nothing can be lost
        _check_names("jobs", [job.spec.id for job in jobs])
        _check_names("nodes", [node.id for node in nodes])
        self._nodes = {node.id: node for node in nodes}
        self._absent: dict[str, float] = {}  # released nodes, and when each will join; inf if it was not rented
        self._jobs: dict[str, Attempt] = {job.spec.id: Attempt(job) for job in jobs}
        self._idle_ticks = 0  # ticks of an empty world, in a row
        self._aborted = 0  # stops of jobs that had not begun to train, in a row
        self._fruitless = 0  # failures of nodes in a row, between which no job ended or saved more than ever before
        self._most_saved: dict[str, float] = {}  # by job that was hit by a failure
        self._outbox: list[Event] = []  # what happened and was not delivered yet
        self._spread: dict[str, set[str]] = {}  # node -> jobs on several nodes that run there
        self._alive: dict[str, Attempt] = {}  # jobs with processes: from a start until a stop, a fault or the end
        self._present: dict[str, Attempt] = {}  # those that use their GPUs now
        self._used = Occupancy()  # by them
        events = _known_events(jobs, self._nodes, outages)
        # (when, is it late, number, what, job, its version): see `_later`.
        self._heap: list[tuple[float, bool, int, Event | str, str, int]] = [
            (event.at, False, place, event, "", 0) for place, event in enumerate(events)
        ]
        heapq.heapify(self._heap)
        self._pushed = len(events)
        self._to_come = sum(isinstance(event, JobSubmitted | JobCancelled) for event in events)
        self._down: set[str] = set()  # nodes of `_failing` that are away
        self._failing = {
            node.id: failing.outages(place, node.id) for place, node in enumerate(nodes) if failing is not None
        }
        for node_id in self._failing:
            self._fail_later(node_id)

    @classmethod
    def resumed(
        cls,
        now: float,
        underway: Sequence[Underway],
        nodes: Sequence[Node],
        *,
        coming: Sequence[SimJob] = (),
        **options: Any,
    ) -> SimBackend:
        """A world that begins in the middle: with these jobs as they are, and nodes that everybody knows of.

        The first `wait` gives what running jobs have to tell and, last, a Tick. `coming` are jobs that are submitted
        later; `options` are those of a world that begins at its beginning, without outages.
        """
        world = cls(coming, (), **options)
        _check_names("jobs", [*(each.known.id for each in underway), *world._jobs])
        world.now, world._nodes = now, {node.id: node for node in nodes}
        for each in underway:
            world._resume(each)
        world._outbox.append(Tick(now))
        return world

    def _resume(self, underway: Underway) -> None:
        job, phase = underway.attempt(self.now), underway.known.phase
        self._jobs[job.id] = job
        if phase is Phase.PENDING:
            return
        self._alive[job.id] = job
        if phase is Phase.RUNNING:
            self._enter(job)
        elif phase in _COMPLETES:
            self._later(underway.left_s, _COMPLETES[phase], job)

    # -- the Backend protocol ------------------------------------------------------------------------------------

    def wait(self, until: float) -> list[Event] | None:
        while not self._outbox:
            if not self._jobs or self._hopeless():
                return None
            self._drop_void()
            if not self._heap or self._heap[0][:2] > (until, False):
                return self._tick(until)
            self.now, late = self._heap[0][:2]
            while self._heap and self._heap[0][:2] <= (self.now, late):
                self._happen(*heapq.heappop(self._heap)[3:])
        events, self._outbox = self._outbox, []
        return events

    def execute(self, command: Command) -> None:
        if isinstance(command, Release):
            self._absent[command.node] = math.inf
            return
        if isinstance(command, Rent):
            joins_at = self._absent[command.node] = self.now + self._provision_s
            self._pushed += 1
            joined = NodeJoined(joins_at, self._nodes[command.node])
            heapq.heappush(self._heap, (joins_at, False, self._pushed, joined, "", 0))
            return
        job = self._jobs[command.job]
        costs = job.job.costs
        if isinstance(command, Start):
            job.attempt, job.allocation = command.attempt, command.allocation
            self._alive[command.job] = job
            self._later(costs.restart_s if command.attempt > 1 else costs.start_s, _STARTED, job)
            return
        if command.job not in self._alive:
            return  # the command crossed the end of its attempt, which is already in the outbox
        if isinstance(command, Resize) and job.present and costs.boot_s and command.allocation - job.allocation:
            job.growing_to, job.boots = command.allocation, job.boots + 1
            self._push(costs.boot_s, _BOOTED, job.id, job.boots)
        elif isinstance(command, Resize):
            self._change_over(job, command.allocation)
        else:
            job.settle(self.now)
            self._leave(job)
            job.growing_to = None
            self._aborted += not job.began
            self._later(costs.save_s if job.began else 0.0, _STOPPED, job)

    def _change_over(self, job: Attempt, allocation: Allocation) -> None:
        job.settle(self.now)
        self._leave(job)
        job.allocation, job.releasing, job.growing_to = allocation, job.allocation - allocation, None
        self._later(job.job.costs.rescale_s, _RESCALED, job)

    def remaining_s(self, job_id: str) -> float:
        """True seconds left, for oracles: alone, on what the job asked for."""
        job, progress = self.whereabouts(job_id)
        return job.truth.remaining_s(progress)

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended, those to come included."""
        return len(self._jobs)

    def whereabouts(self, job_id: str) -> tuple[SimJob, float]:
        """A job that has not ended, and its true progress now; for oracles."""
        job = self._jobs[job_id]
        return job.job, job.progress_at(self.now)

    # -- what happens --------------------------------------------------------------------------------------------

    def _tick(self, until: float) -> list[Event] | None:
        if math.isinf(until):
            return None  # nothing is under way and nobody wants to be asked again
        self._idle_ticks = self._idle_ticks + 1 if self._is_idle() else 0
        if self._hopeless():
            return None
        self.now = until
        return [Tick(until)]

    def _is_idle(self) -> bool:
        """Nothing is under way. Nodes that will fail some day are no reason to wait; those that come back are."""
        if not self._failing:
            return not self._heap
        rented = any(math.isfinite(joins_at) for joins_at in self._absent.values())
        return not (self._alive or self._to_come or self._down or rented)

    def _hopeless(self) -> bool:
        """Nothing makes progress, and nothing the policy did lately has changed that."""
        return (
            self._idle_ticks > self._patience
            or self._aborted > self._patience + 10 * len(self._jobs)
            or self._fruitless > self._patience + 100 * len(self._nodes)
        )

    def _happen(self, what: Event | str, job_id: str, version: int) -> None:
        if not isinstance(what, str):
            self._occur(what)
            return
        job = self._jobs.get(job_id)
        if job is None or _is_void(what, job, version):
            return
        if what == _BOUNDARY:
            self._cross(job)
        elif what == _BOOTED:
            assert job.growing_to is not None
            self._change_over(job, job.growing_to)
        elif what == _RETUNE:
            job.settle(self.now)
            self._repace(job)
        elif what == _REPORT:
            job.settle(self.now)
            self._report(job)
            self._later(self._report_every_s, _REPORT, job)
        elif what == _CHECKPOINT:
            job.settle(self.now)
            job.save(self.now)  # exactly now, whatever the rounding
            self._report(job, saved=True)
            self._later(job.job.costs.checkpoint_every_s, _CHECKPOINT, job)
        elif what == _STOPPED:
            job.save(self.now)
            self._end(job)
            self._outbox.append(JobStopped(self.now, job_id, job.attempt))
        elif what == _STARTED:
            job.began, self._idle_ticks, self._aborted = True, 0, 0
            job.save(self.now)  # what it loaded; from here on checkpoints are counted
            self._outbox.append(JobStarted(self.now, job_id, job.attempt))
            self._enter(job)
        else:
            job.releasing = NOTHING
            self._outbox.append(JobRescaled(self.now, job_id, job.attempt))
            if job.allocation:
                self._enter(job)

    def _occur(self, event: Event) -> None:
        """Something happens that no job here has caused."""
        self._to_come -= isinstance(event, JobSubmitted | JobCancelled)
        if isinstance(event, NodeLost) and event.node in self._failing:
            self._down.add(event.node)
            self._fail_later(event.node)
        elif isinstance(event, NodeJoined):
            self._down.discard(event.node.id)
        if not self._is_moot(event):
            self._idle_ticks = self._aborted = 0
            self._meet(event)
            self._outbox.append(event)

    def _is_moot(self, event: Event) -> bool:
        """An outage, or the end of one, of a node that was released: the machine does not exist."""
        if isinstance(event, NodeLost):
            return event.node in self._absent
        return isinstance(event, NodeJoined) and event.at < self._absent.get(event.node.id, -math.inf)

    def _meet(self, event: Event) -> None:
        """What an outside event does to the jobs in this world."""
        if isinstance(event, NodeJoined):
            self._absent.pop(event.node.id, None)
        elif isinstance(event, JobCancelled) and (job := self._jobs.get(event.job)) is not None:
            job.cancelled = True
            if event.job not in self._alive:
                del self._jobs[event.job]
        elif isinstance(event, NodeLost):
            self._fruitless += 1
            for job in list(self._alive.values()):
                growing = job.growing_to or NOTHING
                if any(event.node in each.nodes for each in (job.allocation, job.releasing, growing)):
                    job.settle(self.now)
                    if job.present and job.job.costs.checkpoint_every_s == 0.0:
                        self._report(job, saved=True)  # it saves all the time, so nothing is lost
                    self._leave(job)
                    job.progress = job.saved_progress
                    if job.progress > self._most_saved.get(job.id, 0.0):
                        self._most_saved[job.id], self._fruitless = job.progress, 0
                    self._end(job)

    def _end(self, job: Attempt) -> None:
        """The attempt is over, and the job with it if it will not be started again."""
        job.allocation = job.releasing = NOTHING
        job.growing_to, job.began = None, False
        self._alive.pop(job.id, None)
        if job.cancelled or job.failures > job.job.spec.max_restarts:
            self._jobs.pop(job.id, None)

    def _cross(self, job: Attempt) -> None:
        """A job reached the end of its pace: go on at another, or end."""
        assert job.pace is not None
        job.settle(self.now)
        job.progress = job.pace.until  # exactly, whatever the rounding
        if job.progress >= job.job.truth.total:
            self._leave(job)
            del self._jobs[job.id], self._alive[job.id]
            self._most_saved.pop(job.id, None)
            self._fruitless = 0
            self._outbox.append(JobExited(self.now, job.id, job.attempt))
            return
        batch = job.pace.batch
        self._repace(job)
        if job.pace is not None and job.pace.batch != batch:
            self._disturb(self._mates(job))  # what a job leaves to those beside it depends on its batch

    def _enter(self, job: Attempt) -> None:
        """Begin to make progress on its GPUs, which may slow others down."""
        job.present, job.settled_at = True, self.now
        self._present[job.id] = job
        self._used.add(job.allocation)
        if len(job.allocation.shares) > 1:
            for node in job.allocation.nodes:
                self._spread.setdefault(node, set()).add(job.id)
        self._repace(job)
        self._disturb(self._neighbours(job))

    def _leave(self, job: Attempt) -> None:
        """Make no more progress; whoever was slowed down speeds up."""
        job.version += 1
        if not job.present:
            return
        neighbours = self._neighbours(job)
        job.present, job.pace, job.speed = False, None, 0.0
        del self._present[job.id]
        self._used.remove(job.allocation)
        if len(job.allocation.shares) > 1:
            for node in job.allocation.nodes:
                self._spread[node].discard(job.id)
        self._disturb(neighbours)

    def _neighbours(self, job: Attempt) -> set[str]:
        """Jobs whose speed depends on whether this one runs."""
        others = self._mates(job)
        if self._interference and len(job.allocation.shares) > 1:
            others.update(*(self._spread[node] for node in job.allocation.nodes))
            others.discard(job.id)
        return others

    def _mates(self, job: Attempt) -> set[str]:
        """Jobs packed on one of its GPUs."""
        if not self._used.shared:
            return set()
        mine = dict(job.allocation.masks)
        return {
            other_id
            for other_id, other in self._present.items()
            if other is not job and any(mine.get(node, 0) & mask for node, mask in other.allocation.masks)
        }

    def _disturb(self, job_ids: set[str]) -> None:
        """Give jobs a new pace because somebody came or went beside them."""
        for job_id in sorted(job_ids):
            job = self._present.get(job_id)
            if job is not None:  # a new pace of one may have been the end of another
                job.settle(self.now)
                self._repace(job)

    # -- progress ------------------------------------------------------------------------------------------------

    def _repace(self, job: Attempt) -> None:
        """Ask the truth how fast it goes from here, and until when."""
        pace = job.job.truth.pace(self._setting(job))
        if not (pace.speed > 0.0 and (pace.until > job.progress or job.progress >= job.job.truth.total)):
            self._leave(job)
            where = f"{job.allocation.total} x {self._gpu_type(job)}"
            self._outbox.append(JobExited(self.now, job.id, job.attempt, 1, f"cannot run on {where}"))
            job.failures += 1
            self._end(job)
            return
        learned = job.take(pace, slowdown=self._slowdown(job))
        due_s = job.due_s()
        lasts_s = pace.lasts_s(due_s)
        self._later(lasts_s, _BOUNDARY, job, late=lasts_s < due_s)
        if learned and self._retune_every_s > 0.0 and job.job.truth.pace(self._setting(job)) != pace:
            self._later(_until_multiple(self.now, self._retune_every_s), _RETUNE, job)
        if pace.observation is not None or pace.batch is not None or self._report_every_s > 0.0:
            self._report(job)
        if self._report_every_s > 0.0:
            self._later(self._report_every_s, _REPORT, job)
        if self._tells_checkpoints and (every_s := job.job.costs.checkpoint_every_s) > 0.0:
            self._later(max(0.0, job.saved_at + every_s - self.now), _CHECKPOINT, job)

    def _setting(self, job: Attempt) -> Setting:
        where = (job.progress, job.allocation, self._gpu_type(job))
        mates = [self._present[mate] for mate in sorted(self._mates(job))]
        if not mates:
            return Setting(*where, learned=job.learned)
        return Setting(
            *where,
            packed_with=tuple(mate.job.truth for mate in mates),
            learned=job.learned,
            packed_progress=tuple(mate.progress_at(self.now) for mate in mates),
            packed_models=tuple(sorted(mate.job.spec.labels.get(MODEL, "") for mate in mates)),
        )

    def _gpu_type(self, job: Attempt) -> str:
        return self._nodes[job.allocation.shares[0][0]].gpu_type

    def _slowdown(self, job: Attempt) -> float:
        if not self._interference or len(job.allocation.shares) < 2:
            return 0.0
        return self._interference if any(len(self._spread[node]) > 1 for node in job.allocation.nodes) else 0.0

    def _report(self, job: Attempt, *, saved: bool = False) -> None:
        self._outbox.append(self._noise.told(job.report(self.now, saved=saved)))

    # -- the heap ------------------------------------------------------------------------------------------------

    def _fail_later(self, node_id: str) -> None:
        """Note the next failure of a node, and its return."""
        outage = next(self._failing[node_id])
        for event in (NodeLost(outage.at, node_id), NodeJoined(outage.until, self._nodes[node_id])):
            self._pushed += 1
            heapq.heappush(self._heap, (event.at, False, self._pushed, event, "", 0))

    def _later(self, delay_s: float, what: str, job: Attempt, *, late: bool = False) -> None:
        """Note what happens next to a job. What is late comes after all else at that instant, decisions included."""
        self._push(delay_s, what, job.id, job.version, late=late)

    def _push(self, delay_s: float, what: str, job_id: str, version: int, *, late: bool = False) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + delay_s, late, self._pushed, what, job_id, version))

    def _drop_void(self) -> None:
        """Forget entries at the top that a change of course has made void, so that time does not stop for them."""
        heap = self._heap
        while heap and isinstance(heap[0][3], str):
            job = self._jobs.get(heap[0][4])
            if job is not None and not _is_void(heap[0][3], job, heap[0][5]):
                return
            heapq.heappop(heap)


def _is_void(what: str, job: Attempt, version: int) -> bool:
    """A change of course has come between; workers boot whatever else happens, until it is no longer for them."""
    if what == _BOOTED:
        return job.growing_to is None or job.boots != version
    return job.version != version


def _known_events(jobs: Sequence[SimJob], nodes: Mapping[str, Node], outages: Sequence[Outage]) -> list[Event]:
    """Everything that will happen whatever is decided."""
    events: list[Event] = [NodeJoined(0.0, node) for node in nodes.values()]
    events += [JobSubmitted(job.submit_at, job.spec) for job in jobs]
    events += [JobCancelled(job.cancel_at, job.spec.id) for job in jobs if job.cancel_at is not None]
    for outage in outages:
        if outage.node not in nodes:
            raise InvalidSpec(f"there is an outage of node {outage.node!r}, which the cluster does not have")
        events += [NodeLost(outage.at, outage.node), NodeJoined(outage.until, nodes[outage.node])]
    return events


def _check_options(interference: float, **seconds: float) -> None:
    if not 0.0 <= interference < 1.0:
        raise InvalidSpec(f"interference is {interference}; expected a share of speed from 0 to below 1")
    for name, value in seconds.items():
        if not 0.0 <= value < math.inf:
            raise InvalidSpec(f"{name} is {value}; expected a finite number of at least 0")


def _check_names(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidSpec(f"two {what} are called {twice!r}; every one needs its own id")


def _until_multiple(now: float, every_s: float) -> float:
    """Seconds until the next multiple, which is never now."""
    left_s = (math.floor(now / every_s) + 1) * every_s - now
    return left_s if left_s > 0.0 else every_s
