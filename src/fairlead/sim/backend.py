"""A cluster made of a heap: the world behind the loop when nothing is real.

Time is virtual and exact: the next event is whatever comes first, be it an arrival, a start-up that completes,
a change of a job's pace, its end, or a node that fails. What happens at the same instant is delivered together.
The same inputs give the same events, bit for bit: all randomness is in the inputs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import (
    Command,
    Event,
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Resize,
    Start,
    Tick,
)
from fairlead.core.occupancy import Occupancy
from fairlead.core.types import NOTHING, Allocation, Node
from fairlead.sim.truth import Pace, Setting
from fairlead.sim.world import Outage, SimJob


@dataclass(slots=True, eq=False)
class _Attempt:
    """A job's presence in this world, from its submission to its end. Progress outlives attempts."""

    job: SimJob
    attempt: int = 0
    allocation: Allocation = NOTHING
    #: What a rescale under way gives up, and still uses.
    releasing: Allocation = NOTHING
    cancelled: bool = False
    #: The attempt began to train.
    began: bool = False
    failures: int = 0
    #: Progress at `settled_at`, and what a lost node would leave of it, saved at `saved_at`.
    progress: float = 0.0
    settled_at: float = 0.0
    saved_progress: float = 0.0
    saved_at: float = 0.0
    #: It uses its GPUs; not while it is waiting, starting, rescaling, suspended or stopping.
    present: bool = False
    #: None while it makes no progress.
    pace: Pace | None = None
    #: The pace's speed after interference.
    speed: float = 0.0
    #: Every change of course makes a new version; what is in the heap for an older one is void.
    version: int = 0
    #: The pace last reported, so that a report says something new.
    reported: Pace | None = None


#: Internal entries of the heap; everything else in it is an event to deliver as it is.
_STARTED, _RESCALED, _STOPPED = "started", "rescaled", "stopped"
_BOUNDARY, _REPORT, _CHECKPOINT = "boundary", "report", "checkpoint"


class SimBackend:
    """See the module. `wait` and `execute` are the Backend protocol; `remaining_s` is for declared oracles."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        nodes: Sequence[Node],
        *,
        outages: Sequence[Outage] = (),
        interference: float = 0.0,
        report_every_s: float = 0.0,
        patience: int = 1000,
    ) -> None:
        """
        interference: share of speed that a job on several nodes loses while it shares one with another such job.
        report_every_s: running jobs report this often; 0 means only when their batch size or speed changes.
        patience: give up after so many idle ticks in a row, or so many starts (and ten a job) that were aborted.
        """
        if not 0.0 <= interference < 1.0:
            raise InvalidSpec(f"interference is {interference}; expected a share of speed from 0 to below 1")
        self.now = 0.0
        self._interference, self._report_every_s, self._patience = interference, report_every_s, patience
        self._tells_checkpoints = bool(outages)  # nobody wants to know while nothing can be lost
        _check_names("jobs", [job.spec.id for job in jobs])
        _check_names("nodes", [node.id for node in nodes])
        self._nodes = {node.id: node for node in nodes}
        self._jobs: dict[str, _Attempt] = {job.spec.id: _Attempt(job) for job in jobs}
        self._idle_ticks = 0  # ticks of an empty world, in a row
        self._aborted = 0  # stops of jobs that had not begun to train, in a row
        self._outbox: list[Event] = []  # what happened and was not delivered yet
        self._spread: dict[str, set[str]] = {}  # node -> jobs on several nodes that run there
        self._alive: dict[str, _Attempt] = {}  # jobs with processes: from a start until a stop, a fault or the end
        self._present: dict[str, _Attempt] = {}  # those that use their GPUs now
        self._used = Occupancy()  # by them
        events: list[Event] = [NodeJoined(0.0, node) for node in nodes]
        events += [JobSubmitted(job.submit_at, job.spec) for job in jobs]
        events += [JobCancelled(job.cancel_at, job.spec.id) for job in jobs if job.cancel_at is not None]
        for outage in outages:
            if outage.node not in self._nodes:
                raise InvalidSpec(f"there is an outage of node {outage.node!r}, which the cluster does not have")
            events += [NodeLost(outage.at, outage.node), NodeJoined(outage.until, self._nodes[outage.node])]
        self._heap: list[tuple[float, int, Event | str, str, int]] = [
            (event.at, place, event, "", 0) for place, event in enumerate(events)
        ]
        heapq.heapify(self._heap)
        self._pushed = len(events)

    # -- the Backend protocol ------------------------------------------------------------------------------------

    def wait(self, until: float) -> list[Event] | None:
        while not self._outbox:
            if not self._jobs or self._hopeless():
                return None
            self._drop_void()
            if not self._heap or self._heap[0][0] > until:
                return self._tick(until)
            self.now = self._heap[0][0]
            while self._heap and self._heap[0][0] <= self.now:
                self._happen(*heapq.heappop(self._heap)[2:])
        events, self._outbox = self._outbox, []
        return events

    def execute(self, command: Command) -> None:
        job = self._jobs[command.job]
        costs = job.job.costs
        if isinstance(command, Start):
            job.attempt, job.allocation = command.attempt, command.allocation
            self._alive[command.job] = job
            self._later(costs.restart_s if command.attempt > 1 else costs.start_s, _STARTED, job)
            return
        if command.job not in self._alive:
            return  # the command crossed the end of its attempt, which is already in the outbox
        self._settle(job)
        self._leave(job)
        if isinstance(command, Resize):
            job.allocation, job.releasing = command.allocation, job.allocation - command.allocation
            self._later(costs.rescale_s, _RESCALED, job)
        else:
            self._aborted += not job.began
            self._later(costs.save_s if job.began else 0.0, _STOPPED, job)

    def remaining_s(self, job_id: str) -> float:
        """True seconds left, for oracles: alone, on what the job asked for."""
        job = self._jobs[job_id]
        return job.job.truth.remaining_s(job.progress + job.speed * (self.now - job.settled_at))

    # -- what happens --------------------------------------------------------------------------------------------

    def _tick(self, until: float) -> list[Event] | None:
        if math.isinf(until):
            return None  # nothing is under way and nobody wants to be asked again
        self._idle_ticks = 0 if self._heap else self._idle_ticks + 1
        if self._hopeless():
            return None
        self.now = until
        return [Tick(until)]

    def _hopeless(self) -> bool:
        """Nothing makes progress, and nothing the policy did lately has changed that."""
        return self._idle_ticks > self._patience or self._aborted > self._patience + 10 * len(self._jobs)

    def _happen(self, what: Event | str, job_id: str, version: int) -> None:
        if not isinstance(what, str):
            self._idle_ticks = self._aborted = 0
            self._meet(what)
            self._outbox.append(what)
            return
        job = self._jobs.get(job_id)
        if job is None or job.version != version:
            return
        if what == _BOUNDARY:
            self._cross(job)
        elif what == _REPORT:
            self._settle(job)
            self._report(job)
            self._later(self._report_every_s, _REPORT, job)
        elif what == _CHECKPOINT:
            self._settle(job)
            self._save(job)  # exactly now, whatever the rounding
            self._report(job, saved=True)
            self._later(job.job.costs.checkpoint_every_s, _CHECKPOINT, job)
        elif what == _STOPPED:
            self._save(job)
            self._end(job)
            self._outbox.append(JobStopped(self.now, job_id, job.attempt))
        elif what == _STARTED:
            job.began, self._idle_ticks, self._aborted = True, 0, 0
            self._save(job)  # what it loaded; from here on checkpoints are counted
            self._outbox.append(JobStarted(self.now, job_id, job.attempt))
            self._enter(job)
        else:
            job.releasing = NOTHING
            self._outbox.append(JobRescaled(self.now, job_id, job.attempt))
            if job.allocation:
                self._enter(job)

    def _meet(self, event: Event) -> None:
        """What an outside event does to the jobs in this world."""
        if isinstance(event, JobCancelled) and (job := self._jobs.get(event.job)) is not None:
            job.cancelled = True
            if event.job not in self._alive:
                del self._jobs[event.job]
        elif isinstance(event, NodeLost):
            for job in list(self._alive.values()):
                if event.node in job.allocation.nodes or event.node in job.releasing.nodes:
                    self._settle(job)
                    if job.present and job.job.costs.checkpoint_every_s == 0.0:
                        self._report(job, saved=True)  # it saves all the time, so nothing is lost
                    self._leave(job)
                    job.progress = job.saved_progress
                    self._end(job)

    def _end(self, job: _Attempt) -> None:
        """The attempt is over, and the job with it if it will not be started again."""
        job.allocation = job.releasing = NOTHING
        job.began = False
        self._alive.pop(job.job.spec.id, None)
        if job.cancelled or job.failures > job.job.spec.max_restarts:
            self._jobs.pop(job.job.spec.id, None)

    def _cross(self, job: _Attempt) -> None:
        """A job reached the end of its pace: go on at another, or end."""
        assert job.pace is not None
        self._settle(job)
        job.progress = job.pace.until  # exactly, whatever the rounding
        if job.progress >= job.job.truth.total:
            self._leave(job)
            del self._jobs[job.job.spec.id], self._alive[job.job.spec.id]
            self._outbox.append(JobExited(self.now, job.job.spec.id, job.attempt))
            return
        self._repace(job)

    def _enter(self, job: _Attempt) -> None:
        """Begin to make progress on its GPUs, which may slow others down."""
        job.present, job.settled_at = True, self.now
        self._present[job.job.spec.id] = job
        self._used.add(job.allocation)
        if len(job.allocation.shares) > 1:
            for node in job.allocation.nodes:
                self._spread.setdefault(node, set()).add(job.job.spec.id)
        self._repace(job)
        self._disturb(self._neighbours(job))

    def _leave(self, job: _Attempt) -> None:
        """Make no more progress; whoever was slowed down speeds up."""
        job.version += 1
        if not job.present:
            return
        neighbours = self._neighbours(job)
        job.present, job.pace, job.speed = False, None, 0.0
        del self._present[job.job.spec.id]
        self._used.remove(job.allocation)
        if len(job.allocation.shares) > 1:
            for node in job.allocation.nodes:
                self._spread[node].discard(job.job.spec.id)
        self._disturb(neighbours)

    def _neighbours(self, job: _Attempt) -> set[str]:
        """Jobs whose speed depends on whether this one runs."""
        others = self._mates(job)
        if self._interference and len(job.allocation.shares) > 1:
            others.update(*(self._spread[node] for node in job.allocation.nodes))
            others.discard(job.job.spec.id)
        return others

    def _mates(self, job: _Attempt) -> set[str]:
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
                self._settle(job)
                self._repace(job)

    # -- progress ------------------------------------------------------------------------------------------------

    def _settle(self, job: _Attempt) -> None:
        """Bring the job's progress up to now."""
        if job.pace is None:
            return
        every_s = job.job.costs.checkpoint_every_s
        if every_s > 0.0:
            saved_at = job.saved_at + math.floor((self.now - job.saved_at) / every_s) * every_s
            if saved_at > job.saved_at:
                job.saved_progress = job.progress + job.speed * max(0.0, saved_at - job.settled_at)
                job.saved_at = saved_at
        job.progress = min(job.progress + job.speed * (self.now - job.settled_at), job.pace.until)
        job.settled_at = self.now
        if every_s == 0.0:
            self._save(job)

    def _save(self, job: _Attempt) -> None:
        job.saved_progress, job.saved_at = job.progress, self.now

    def _repace(self, job: _Attempt) -> None:
        """Ask the truth how fast it goes from here, and until when."""
        pace = job.job.truth.pace(self._setting(job))
        if not (pace.speed > 0.0 and (pace.until > job.progress or job.progress >= job.job.truth.total)):
            self._leave(job)
            where = f"{job.allocation.total} x {self._gpu_type(job)}"
            self._outbox.append(JobExited(self.now, job.job.spec.id, job.attempt, 1, f"cannot run on {where}"))
            job.failures += 1
            self._end(job)
            return
        job.pace, job.speed = pace, pace.speed * (1.0 - self._slowdown(job))
        job.version += 1
        self._later((pace.until - job.progress) / job.speed, _BOUNDARY, job)
        if pace.observation is not None or pace.batch is not None or self._report_every_s > 0.0:
            self._report(job)
        if self._report_every_s > 0.0:
            self._later(self._report_every_s, _REPORT, job)
        if self._tells_checkpoints and (every_s := job.job.costs.checkpoint_every_s) > 0.0:
            self._later(max(0.0, job.saved_at + every_s - self.now), _CHECKPOINT, job)

    def _setting(self, job: _Attempt) -> Setting:
        packed_with = tuple(self._present[mate].job.truth for mate in sorted(self._mates(job)))
        return Setting(job.progress, job.allocation, self._gpu_type(job), packed_with)

    def _gpu_type(self, job: _Attempt) -> str:
        return self._nodes[job.allocation.shares[0][0]].gpu_type

    def _slowdown(self, job: _Attempt) -> float:
        if not self._interference or len(job.allocation.shares) < 2:
            return 0.0
        return self._interference if any(len(self._spread[node]) > 1 for node in job.allocation.nodes) else 0.0

    def _report(self, job: _Attempt, *, saved: bool = False) -> None:
        pace = job.pace
        assert pace is not None
        news = pace if pace != job.reported else None
        job.reported = pace
        self._outbox.append(
            JobReported(
                self.now,
                job.job.spec.id,
                job.attempt,
                progress=min(1.0, job.progress / total) if (total := job.job.truth.total) > 0.0 else 1.0,
                batch=pace.batch,
                noise_scale=pace.noise_scale,
                observations=(news.observation,) if news is not None and news.observation is not None else (),
                saved=saved,
            )
        )

    # -- the heap ------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, what: str, job: _Attempt) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._pushed, what, job.job.spec.id, job.version))

    def _drop_void(self) -> None:
        """Forget entries at the top that a change of course has made void, so that time does not stop for them."""
        heap = self._heap
        while heap and isinstance(heap[0][2], str):
            job = self._jobs.get(heap[0][3])
            if job is not None and job.version == heap[0][4]:
                return
            heapq.heappop(heap)


def _check_names(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidSpec(f"two {what} are called {twice!r}; every one needs its own id")
