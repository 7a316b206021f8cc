"""Jobs as a service has measured them: from a journal to recordings, and from a recording to a truth.

All that a job did is its work, cut into stretches where it reported how far it was. Of each stretch is known how fast
the job was on the GPUs it had, and how noisy its gradients were; how fast it would have been on others follows the
goodput model, fitted to the steps that it observed, or is in proportion to the GPUs where it observed none.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fairlead.core.learning import informed
from fairlead.core.messages import JobExited, JobReported, Message
from fairlead.core.state import State
from fairlead.core.types import Belief, Job, JobSpec, Phase, Speed
from fairlead.goodput.evidence import batch_of
from fairlead.sim.believed import Basis, BelievedTruth, Believer, Place, Scaling
from fairlead.sim.traces.record import Recording, Stretch
from fairlead.sim.truth import Pace, Setting

#: A recording has at most so many stretches, of equal work.
STRETCHES = 16


# -- from a journal to recordings --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Leg:
    """A part of a job's work: up to which progress, the seconds it trained at each place, and its noise at the end."""

    until: float
    ran_s: dict[Place, float]
    noise_scale: float | None


@dataclass(slots=True)
class _Course:
    """What one job did so far. `place` and `run_s` are as of the last message about it."""

    legs: list[_Leg] = field(default_factory=list)
    ran_s: dict[Place, float] = field(default_factory=dict)
    place: Place | None = None
    run_s: float = 0.0

    def account(self, job: Job, now: float, place: Place | None) -> None:
        """Charge what it ran since the last message to where it was; `place` is where it is now."""
        ran_s = job.run_at(now) - self.run_s
        at = self.place or place
        if ran_s > 0.0 and at is not None:
            self.ran_s[at] = self.ran_s.get(at, 0.0) + ran_s
        self.run_s += max(0.0, ran_s)
        self.place = place or self.place

    def close(self, until: float, noise_scale: float | None) -> None:
        """Begin another leg, if this one is long enough to tell a speed."""
        begin = self.legs[-1].until if self.legs else 0.0
        if self.ran_s and (until >= 1.0 or math.floor(until * STRETCHES) > math.floor(begin * STRETCHES)):
            self.legs.append(_Leg(until, self.ran_s, noise_scale))
            self.ran_s = {}


def recorded_jobs(messages: Iterable[Message]) -> dict[str, Recording]:
    """Of every job of a journal that succeeded and was seen to train."""
    state, courses = State(), dict[str, _Course]()
    for message in messages:
        _follow(state, courses, message)
    ended = [job for job in state.finished.values() if job.phase is Phase.SUCCEEDED]
    view = state.snapshot()
    believer = Believer(ended, tuple(state.nodes.values()), view.lore, state.now)
    found = {job.id: _recording(job, courses[job.id], informed(job, view.lore), believer) for job in ended}
    return {job_id: recording for job_id, recording in found.items() if recording is not None}


def _follow(state: State, courses: dict[str, _Course], message: Message) -> None:
    job_id = getattr(message, "job", None)
    job = None if job_id is None else state.job(job_id)
    if job is not None and not job.phase.final:
        courses.setdefault(job.id, _Course()).account(job, message.at, _place(state, job))
    state.replay(message)
    after = None if job is None else state.job(job.id)
    if job is None or after is None:
        return
    course = courses.setdefault(job.id, _Course())
    course.place = _place(state, after) or course.place
    if isinstance(message, JobReported):
        course.close(min(message.progress, 1.0 - 1e-9), after.belief.noise_scale)
    elif isinstance(message, JobExited) and after.phase is Phase.SUCCEEDED:
        course.close(1.0, after.belief.noise_scale)


def _place(state: State, job: Job) -> Place | None:
    """Where it trains; None if it has no GPUs."""
    if not job.allocation or job.phase is not Phase.RUNNING:
        return None
    node = state.nodes.get(job.allocation.shares[0][0])
    return ("" if node is None else node.gpu_type, len(job.allocation.shares), job.allocation.total)


def _recording(job: Job, course: _Course, belief: Belief, believer: Believer) -> Recording | None:
    stretches: list[Stretch] = []
    for leg in course.legs:
        begin = stretches[-1].until if stretches else 0.0
        scaling = Scaling(job.spec, replace(belief, noise_scale=leg.noise_scale))
        achieved = math.fsum(seconds * scaling.at(place).goodput for place, seconds in leg.ran_s.items())
        longest = max(leg.ran_s, key=lambda place: leg.ran_s[place])
        speed = (leg.until - begin) * scaling.at(longest).goodput / achieved
        stretches.append(Stretch(leg.until, Speed(speed, *longest), leg.noise_scale))
    if not stretches or stretches[-1].until < 1.0:
        return None
    costs = believer.costs(job)
    return Recording(
        course=tuple(stretches),
        observations=belief.observations,
        batch=batch_of(job.spec, belief) if belief.observations else None,
        start_s=costs.start_s,
        restart_s=costs.restart_s,
        save_s=costs.save_s,
        rescale_s=costs.rescale_s,
    )


# -- from a recording to a truth ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RecordedTruth:
    """A job that runs again. Progress is a share of its work, so its total is 1."""

    #: One for each stretch, in which its speed and its noise are as they were.
    stretches: tuple[BelievedTruth, ...]
    #: Progress at the end of each.
    ends: tuple[float, ...]
    total: float = field(default=1.0, init=False)

    @staticmethod
    def of(recording: Recording, spec: JobSpec) -> RecordedTruth:
        spec = replace(spec, batch=recording.batch)
        stretches = []
        for stretch in recording.course:
            belief = Belief(
                noise_scale=stretch.noise_scale, observations=recording.observations, bounds=recording.batch
            )
            speed = stretch.speed
            reference = (speed.gpu_type, speed.nodes if spec.gpus == speed.gpus else 1, spec.gpus)
            scaling = Scaling(spec, belief)
            stretches.append(BelievedTruth(spec, scaling, speed, Basis.SPEED, reference, stretch.noise_scale))
        return RecordedTruth(tuple(stretches), tuple(stretch.until for stretch in recording.course))

    def pace(self, setting: Setting) -> Pace:
        place = min(bisect_right(self.ends, setting.progress), len(self.ends) - 1)
        pace = self.stretches[place].pace(setting)
        return replace(pace, until=min(pace.until, self.ends[place]))

    def remaining_s(self, progress: float) -> float:
        left_s, begin = 0.0, 0.0
        for stretch, end in zip(self.stretches, self.ends, strict=True):
            if end > progress:
                left_s += (end - max(begin, progress)) * stretch.remaining_s(0.0)
            begin = end
        return left_s
