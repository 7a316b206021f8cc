"""A cluster that knows rounds only, with the rules of the simulator in Shockwave's artifact (NSDI '23).

A job that is started does as many whole steps as fit into a round, and is then stopped. The round ends when the last of
its jobs has done its steps; until then nothing is told and nothing decided, so jobs that arrive or end in between are
known at its end. A job that did not run in the round before loses `restart_s` of a full round to its start. Batches
change at ends of rounds (`stepwise_job.py`). A job that ran half as long again as its profile says is ended.

This is for the comparison with published figures. `SimBackend` is the simulator proper: it frees GPUs when a job ends,
and knows no rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.core.capability import Capability
from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import (
    Command,
    Event,
    JobExited,
    JobReported,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    Start,
    Stop,
    Tick,
)
from fairlead.core.snapshot import TrueRates
from fairlead.core.types import Node, Observation
from fairlead.sim.regimes import RegimeTruth
from fairlead.sim.stepwise_job import StepwiseJob
from fairlead.sim.tables import job_type
from fairlead.sim.world import SimJob

#: A round that is shorter than this much less than its full length is the last of its job: no start is charged to it.
_SHORT_S = 5.0

#: A job that cannot do a step in so many rounds is done: counting its steps anew may have left it with none.
_ATTEMPTS = 5


@dataclass(slots=True)
class RoundJob:
    """A job of this world, and what it is made of."""

    sim: SimJob
    steps: StepwiseJob
    #: Seconds of running after which it is ended.
    limit_s: float
    ran_s: float = 0.0
    fruitless: int = 0


@dataclass(frozen=True, slots=True)
class _Lease:
    """What a job does in the round under way."""

    job: RoundJob
    start: Start
    gpu_type: str
    begins_at: float
    ends_at: float
    steps: int

    @property
    def id(self) -> str:
        return self.start.job


class RoundWorld:
    """See the module. A Backend, and for policies that declare themselves oracles a `StepOracle`."""

    can = frozenset({Capability.ORACLE})

    def __init__(
        self,
        jobs: Sequence[RoundJob],
        nodes: Sequence[Node],
        *,
        round_s: float = 120.0,
        restart_s: float = 20.0,
        patience: int = 1000,
    ) -> None:
        """`patience`: give up after so many rounds in a row in which no job is started."""
        self.now = 0.0
        self._round_s, self._restart_s, self._patience = round_s, restart_s, patience
        self._nodes = {node.id: node for node in nodes}
        self._joining: list[Event] = [NodeJoined(0.0, node) for node in nodes]
        self._jobs = {job.sim.spec.id: job for job in jobs}
        self._coming = sorted(jobs, key=lambda job: job.sim.submit_at)
        self._leases: list[_Lease] = []
        self._before: set[str] | None = None  # jobs of the last round; None before the first
        self._idle = 0

    # -- the Backend protocol ------------------------------------------------------------------------------------

    def wait(self, until: float) -> list[Event] | None:
        if not self._jobs:
            return None
        if not self._leases:
            return self._idle_until(until)
        ends_at = max(lease.ends_at for lease in self._leases)
        if until < ends_at:
            self.now = until
            return [Tick(until)]
        leases, self._leases = self._leases, []
        events = [event for lease in leases for event in self._end(lease)]
        for job in self._jobs.values():
            job.steps.look_ahead()
        self._before, self._idle, self.now = {lease.id for lease in leases}, 0, ends_at
        events += self._arrivals()
        return [*sorted(events, key=lambda event: event.at), Tick(ends_at)]

    def execute(self, command: Command) -> None:
        if isinstance(command, Stop):
            return  # its lease runs out with the round
        if not isinstance(command, Start):
            raise InvalidSpec(f"a world of rounds knows no {type(command).__name__}; jobs are started and run out")
        job = self._jobs[command.job]
        gpu_type = self._nodes[command.allocation.nodes[0]].gpu_type
        if command.allocation.total != job.steps.gpus or not (speed := job.steps.steps_per_s(gpu_type)):
            raise InvalidSpec(f"job {command.job} cannot run on {command.allocation} in a world of rounds")
        steps = min(int(speed * self._round_s), job.steps.left)
        ends_at = max(self.now, self.now + steps / speed)
        self._leases.append(_Lease(job, command, gpu_type, self.now, ends_at, steps))

    # -- for oracles -----------------------------------------------------------------------------------------------

    def remaining_s(self, job_id: str) -> float:
        """True seconds left, alone, on what the job asked for."""
        job = self._jobs[job_id]
        return job.sim.truth.remaining_s(min(job.steps.epochs_done, job.sim.truth.total))

    def whereabouts(self, job_id: str) -> tuple[SimJob, float]:
        job = self._jobs[job_id]
        return job.sim, min(job.steps.epochs_done, job.sim.truth.total)

    def steps_left(self, job_id: str) -> float:
        """Steps left at the batch it has now: what the artifact's policies are told."""
        return float(max(0, self._jobs[job_id].steps.left))

    def step_s(self, job_id: str, gpus: int) -> float:
        """Seconds of one step at the batch it has now, on the fastest GPU type; infinite on another number of GPUs."""
        steps = self._jobs[job_id].steps
        speed = max(steps.steps_per_s(node.gpu_type) for node in self._nodes.values())
        return 1.0 / speed if gpus == steps.gpus and speed else math.inf

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        """In samples, at the batch it has now. It runs on the GPUs that it asked for, and alone."""
        steps = self._jobs[job_id].steps
        rate_C = tuple(
            steps.steps_per_s(gpu_type) * steps.batch if gpus == steps.gpus and not partners else 0.0
            for gpu_type, _, gpus, partners in configurations
        )
        return TrueRates(rate_C, max(0, steps.left) * float(steps.batch), float(steps.batch))

    def batch_s(self, job_id: str) -> Mapping[int, float]:
        truth = self._jobs[job_id].sim.truth
        return truth.batch_s() if isinstance(truth, RegimeTruth) else {1: truth.remaining_s(0.0)}

    def workload(self, job_id: str) -> str:
        steps = self._jobs[job_id].steps
        return job_type(steps.model, steps.batch)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _idle_until(self, until: float) -> list[Event] | None:
        """No job runs: the next arrival, or the time at which the loop wants to go on."""
        is_first = bool(self._joining)
        joined, self._joining = self._joining, []
        if not is_first:
            self._before, self._idle = set(), self._idle + 1
        arrives_at = max(self.now, self._coming[0].sim.submit_at) if self._coming else math.inf
        if self._idle > self._patience or math.isinf(min(arrives_at, until)):
            return None
        self.now = min(arrives_at, until)
        return [*joined, *self._arrivals(), Tick(self.now)]

    def _arrivals(self) -> list[Event]:
        events: list[Event] = []
        while self._coming and self._coming[0].sim.submit_at <= self.now:
            job = self._coming.pop(0).sim
            events.append(JobSubmitted(job.submit_at, job.spec))
        return events

    def _end(self, lease: _Lease) -> list[Event]:
        """What a job has to tell of its round, and what comes of it."""
        job, attempt = lease.job, lease.start.attempt
        ran_s, begins_at, steps = lease.ends_at - lease.begins_at, lease.begins_at, lease.steps
        charged = self._before is not None and lease.id not in self._before and ran_s > self._round_s - _SHORT_S
        if charged:
            steps = int(steps * ((ran_s - self._restart_s) / ran_s))
            ran_s, begins_at = ran_s - self._restart_s, begins_at + self._restart_s
        if steps <= 0 and ran_s <= 0.0:
            return [self._fruitless(lease)]
        job.fruitless = 0
        job.ran_s += ran_s
        batch, speed = job.steps.batch, job.steps.steps_per_s(lease.gpu_type)
        job.steps.done += steps
        ended = job.steps.left <= 0 or job.ran_s > job.limit_s
        job.steps.rebatch(lease.gpu_type)
        gpus, nodes = lease.start.allocation.total, len(lease.start.allocation.nodes)
        seen = Observation(lease.gpu_type, nodes, gpus, -(-batch // gpus), 0, 1.0 / speed, 0.0, max(1, steps))
        progress = 1.0 if ended else job.steps.progress
        events: list[Event] = [
            JobStarted(begins_at, lease.id, attempt),
            JobReported(lease.ends_at, lease.id, attempt, progress, job.steps.batch, observations=(seen,), saved=True),
        ]
        if ended:
            del self._jobs[lease.id]
            return [*events, JobExited(lease.ends_at, lease.id, attempt)]
        return [*events, JobStopped(lease.ends_at, lease.id, attempt)]

    def _fruitless(self, lease: _Lease) -> Event:
        """It could not do a step; the artifact takes it for done after a few of these."""
        job = lease.job
        job.fruitless += 1
        job.steps.rebatch(lease.gpu_type)
        if job.fruitless < _ATTEMPTS:
            return JobExited(lease.ends_at, lease.id, lease.start.attempt, 1, "it had no step left to do")
        del self._jobs[lease.id]
        return JobExited(lease.ends_at, lease.id, lease.start.attempt)
