"""What happened to a job, as the events of its agent tell it. Decides nothing, and knows no clock but theirs.

Times are seconds since the first event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.train.wire import Message


class Step(NamedTuple):
    """One update of the model, by all workers together."""

    workers: int
    samples: int
    seconds: float


@dataclass(slots=True)
class Pace:
    """What was done and measured with one number of workers."""

    #: All of them.
    steps: int = 0
    #: Of those that were timed: the first step of a generation is not, as it began with a pause.
    samples: int = 0
    seconds: float = 0.0

    def add(self, step: Step) -> None:
        self.samples += step.samples
        self.seconds += step.seconds

    @property
    def throughput(self) -> float | None:
        """Samples per second; None if no step was timed."""
        return self.samples / self.seconds if self.seconds > 0.0 else None


@dataclass(slots=True)
class Transition:
    """From one generation to the next; from 0 workers if it is the first."""

    at_s: float
    generation: int
    before: int
    after: int
    #: Who was lost, if that was the reason.
    lost: list[str]
    #: How long nobody trained; None until that is known, and for ever if nobody has seen both ends of it.
    pause_s: float | None = None


@dataclass(slots=True)
class _Plan:
    generation: int
    members: Sequence[str]
    lost: list[str]
    joined: set[str] = field(default_factory=set)


class History:
    """Everything that a summary needs. Only `note` changes it."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.paces: dict[int, Pace] = {}
        self.transitions: list[Transition] = []
        #: Of the job, from 0 to 1; None before the first report.
        self.progress: float | None = None
        #: The step that training began with, here and now.
        self.first_step = 0
        #: The job writes checkpoints.
        self.saves = False
        #: Samples of a step, over all workers: of the first one, and now. None before the first report.
        self.first_batch: int | None = None
        self.batch: int | None = None
        #: Of the last step, if it was smaller than the batch.
        self._smaller: int | None = None
        self._began_at: float | None = None
        self._started_s: dict[str, float] = {}
        self._gone_gpu_s = 0.0
        self._plan = _Plan(0, [], [])
        #: Of the last report.
        self._step: int | None = None
        #: How many workers train, and the steps up to this one are in `paces`.
        self._workers, self._done_step = 0, 0
        #: Progress when counting began, and samples since.
        self._counted_from, self._counted = 0.0, 0

    @property
    def size(self) -> int:
        """Workers of the last generation that came about."""
        return self.transitions[-1].after if self.transitions else 0

    @property
    def gpu_s(self) -> float:
        """How long workers have held their slots, all together: from their start, not from when they train."""
        return self._gone_gpu_s + sum(self.elapsed_s - started_s for started_s in self._started_s.values())

    @property
    def remaining_samples(self) -> float | None:
        """As many as it took for the progress so far, in proportion; None while that is not known."""
        if self.progress is None or self.progress <= self._counted_from:
            return None
        return self._counted * (1.0 - self.progress) / (self.progress - self._counted_from)

    def note(self, event: Message) -> list[Step]:
        """The steps that it tells of."""
        self._began_at = event["at"] if self._began_at is None else self._began_at
        self.elapsed_s = event["at"] - self._began_at
        match event["kind"]:
            case "started":
                self._started_s[event["worker"]] = self.elapsed_s
            case "exited":
                self._gone_gpu_s += self.elapsed_s - self._started_s.pop(event["worker"], self.elapsed_s)
            case "plan":
                self._plan = _Plan(event["generation"], event["members"], event["lost"])
            case "joined":
                self._note_joined(event)
            case "paused":
                self._note_pause(event["generation"], event["seconds"])
            case "report":
                return self._note_report(event)
        return []

    def _note_joined(self, event: Message) -> None:
        plan = self._plan
        if event["generation"] != plan.generation or event["worker"] in plan.joined:
            return
        if not plan.joined:  # nobody takes a step before all have joined, but its report may be heard sooner than that
            self._note_done(event["step"])
            self._workers, self._done_step = len(plan.members), event["step"]
        plan.joined.add(event["worker"])
        if len(plan.joined) < len(plan.members):
            return
        if not self.transitions:
            self.first_step = event["step"]
        change = Transition(self.elapsed_s, plan.generation, self.size, len(plan.members), plan.lost)
        self.transitions.append(change)

    def _note_pause(self, generation: int, seconds: float) -> None:
        for transition in self.transitions:
            if transition.generation == generation:
                transition.pause_s = seconds

    def _note_report(self, event: Message) -> list[Step]:
        steps = [Step(*step) for step in event["steps"]]
        done = len(steps)
        if self._step is not None and event["step"] >= self._step:
            done = event["step"] - self._step
            # Who has just become the leader tells of steps that the one before has already told of.
            steps = steps[len(steps) - min(done, len(steps)) :]
        self._step = event["step"]
        self._note_done(event["step"])
        self._note_batch(steps)
        self._count(event, sum(step.samples for step in steps) + (done - len(steps)) * event["batch"])
        for step in steps:
            self.paces.setdefault(step.workers, Pace()).add(step)
        return steps

    def _note_done(self, step: int) -> None:
        """All steps up to this one, by those who train. Their numbers tell; not each step is timed and reported."""
        if self._workers and step > self._done_step:
            self.paces.setdefault(self._workers, Pace()).steps += step - self._done_step
            self._done_step = step

    def _note_batch(self, steps: Sequence[Step]) -> None:
        """A step that is smaller is the rest of an epoch, unless the next one is as small."""
        if self.first_batch is None and steps:
            self.first_batch = steps[0].samples
        for step in steps:
            if self.batch is None or step.samples >= self.batch or step.samples == self._smaller:
                self.batch, self._smaller = step.samples, None
            else:
                self._smaller = step.samples

    def _count(self, event: Message, samples: int) -> None:
        if self.progress is None or event["progress"] < self.progress:  # it began here, or went back to a checkpoint
            self._counted_from, self._counted = event["progress"], 0
        else:
            self._counted += samples
        self.progress = event["progress"]
        self.saves = event["saves"]
