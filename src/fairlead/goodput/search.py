"""How many workers a job puts to good use, found while it trains (Or, Zhang, Freedman, MLSys '20).

    R_k        samples per second with k workers, the mean of all steps with k but the first after each change
    s_{k,d}    ((R_k - R_{k-d}) / d) / (R_{k-d} / (k-d)): 1 if d more workers add their full share, 0 if nothing

The job grows by d workers at a time while that is worthwhile, then steps back to the last size that was. A job that
began with too many looks for the place below. Whoever trains notes every step in `Measured` and asks `Search` for the
next size; who changes the size, and how, is not known here. All that is remembered is in `Measured`, so that the same
measurements lead to the same decision.

Unlike the paper's, the averages age: a size that was not used for `horizon_steps` is forgotten and has to be tried
again. So a job whose scaling changes is found out, at the price of such a trial every so often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from fairlead.core.errors import InvalidSpec

#: Two hundred times what is measured before stepping back: of a job that scales as ever, trials then take less than one
#: step in a hundred, and five or six changes of size per horizon.
HORIZON_STEPS = 20_000.0


# -- what was seen ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What is remembered of one size."""

    size: int
    #: Samples per second, as the mean of the steps' own: one stalled step counts no more than any other.
    throughput: float
    step_s: float
    #: How many were measured since the size was last forgotten.
    steps: int


class Record(Protocol):
    """What the search has to know of the past: `Measured`, or whoever else can tell."""

    def seen(self) -> Sequence[Seen]:
        """All sizes that are remembered, smallest first."""

    def steps_since_change(self, size: int) -> int:
        """Measured at this size without a change since; 0 if it is not the present one."""


@dataclass(slots=True)
class _Average:
    #: Of all steps so far; each counts 1 when it is new, and exp(-age / horizon) later.
    weight: float
    throughput: float
    step_s: float
    steps: int
    #: When the last step was, in steps of the whole job.
    at: int


@dataclass(slots=True)
class Measured:
    """Running averages by size. Only `note`, `changed` and `load_state_dict` change them.

    With a horizon of infinity nothing is forgotten, which is the paper's rule. A horizon shorter than the search takes
    makes it begin anew for ever.
    """

    horizon_steps: float = HORIZON_STEPS
    _averages: dict[int, _Average] = field(default_factory=dict, init=False)
    #: Steps measured at any size.
    _now: int = field(default=0, init=False)
    _size: int | None = field(default=None, init=False)
    #: Steps measured since the last change.
    _since_change: int = field(default=0, init=False)
    #: The next step is the first after a change.
    _fresh: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.horizon_steps >= 1.0:
            raise InvalidSpec(f"horizon_steps is {self.horizon_steps}; expected at least 1, or inf to forget nothing")

    def changed(self) -> None:
        """Something other than the size changed, such as who the workers are: the next step says little."""
        self._fresh = True
        self._since_change = 0

    def note(self, size: int, *, samples: float, step_s: float) -> None:
        """A step of all workers together. The first after a change warms up and is not measured."""
        if size != self._size:
            self._size = size
            self.changed()
        if self._fresh:
            self._fresh = False
            return
        throughput = samples / step_s if step_s > 0.0 else math.nan
        # The paper divides by whatever the clock said. A step without samples or time, or with a broken number, is no
        # measurement, and would spoil the average for as long as it is kept.
        if not (0.0 < throughput < math.inf and step_s < math.inf):
            return
        self._now += 1
        self._since_change += 1
        self._add(size, throughput, step_s)
        self._forget()

    def _add(self, size: int, throughput: float, step_s: float) -> None:
        known = self._averages.setdefault(size, _Average(0.0, throughput, step_s, 0, self._now))
        known.weight = known.weight * math.exp((known.at - self._now) / self.horizon_steps) + 1.0
        known.throughput += (throughput - known.throughput) / known.weight
        known.step_s += (step_s - known.step_s) / known.weight
        known.steps += 1
        known.at = self._now

    def _forget(self) -> None:
        for size in [size for size, known in self._averages.items() if self._now - known.at > self.horizon_steps]:
            del self._averages[size]

    def seen(self) -> list[Seen]:
        """All sizes that are remembered, smallest first."""
        found = sorted(self._averages.items())
        return [Seen(size, known.throughput, known.step_s, known.steps) for size, known in found]

    def steps_since_change(self, size: int) -> int:
        """Measured at this size without a change since; 0 if it is not the present one."""
        return self._since_change if size == self._size else 0

    def state_dict(self) -> dict[str, list[float]]:
        """By size: weight, throughput, step time, steps, and steps of the job since the last."""
        return {
            str(size): [known.weight, known.throughput, known.step_s, known.steps, self._now - known.at]
            for size, known in self._averages.items()
        }

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Whoever loads has just started, so the next step is the first after a change."""
        self._now, self._size = 0, None
        self.changed()
        self._averages = {
            int(size): _Average(weight, throughput, step_s, int(steps), -int(age))
            for size, (weight, throughput, step_s, steps, age) in state.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What else a decision may depend on. None is what is not known."""

    #: Workers are on their way in or out.
    changing: bool = False
    elapsed_s: float = 0.0
    #: In samples, as batches differ between sizes: b t_k of the paper is remaining samples / R_k.
    remaining_samples: float | None = None
    #: The total time that was expected when the first size had been measured (`expected_s`).
    first_expected_s: float | None = None


def expected_s(seen: Seen, situation: Situation) -> float:
    """T_k: the total time of the job if it goes on at this size."""
    return situation.elapsed_s + _remaining_s(seen, situation)


def _remaining_s(seen: Seen, situation: Situation) -> float:
    if situation.remaining_samples is None:
        raise InvalidSpec("remaining_samples is not known, but utility is a matter of the remaining time; state it")
    return math.inf if seen.throughput == 0.0 else situation.remaining_samples / seen.throughput


# -- whether more workers are worthwhile -----------------------------------------------------------------------------


class Worthwhile(Protocol):
    """Whether the larger of two sizes is worth its additional workers. In doubt it is not."""

    def passes(self, smaller: Seen, larger: Seen, situation: Situation) -> bool: ...


def scaling_efficiency(smaller: Seen, larger: Seen) -> float:
    """s_{k,d}; without any throughput at the smaller size, what is gained is beyond measure."""
    if smaller.throughput == 0.0:
        return math.inf if larger.throughput > 0.0 else math.nan
    gain_per_worker = (larger.throughput - smaller.throughput) / (larger.size - smaller.size)
    return gain_per_worker / (smaller.throughput / smaller.size)


@dataclass(frozen=True, slots=True)
class ScalingEfficiency:
    """s_{k,d} > S. Equal throughputs never pass, not even with S = 0, and neither does a NaN."""

    threshold: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise InvalidSpec(f"threshold is {self.threshold}; expected 0 (any gain) to 1 (perfect scaling)")

    def passes(self, smaller: Seen, larger: Seen, situation: Situation) -> bool:
        return scaling_efficiency(smaller, larger) > self.threshold


#: (total time, the one first expected) -> what such a job is worth to its user, in the currency of the price.
Utility = Callable[[float, float | None], float]


@dataclass(frozen=True, slots=True)
class Linear:
    """A line from `value` at once to 0 at `end_s`, and on below."""

    value: float
    end_s: float

    def __call__(self, total_s: float, first_expected_s: float | None) -> float:
        return self.value * (1.0 - total_s / self.end_s)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Straight lines between (value, end in seconds), level before the first, down to 0 where the job was expected.

    Later the last line goes on, below 0. If the job was expected before the last end there is no such line to 0, and
    the last of the user's own goes on; where that is level, a faster job is worth nothing more.
    """

    points: tuple[tuple[float, float], ...]

    def __call__(self, total_s: float, first_expected_s: float | None) -> float:
        points = list(self.points)
        if points[0][1] > 0.0:
            points.insert(0, (points[0][0], 0.0))
        if first_expected_s is not None and first_expected_s > points[-1][1]:
            points.append((0.0, first_expected_s))
        if len(points) == 1:
            return points[0][0]
        lines = list(pairwise(points))
        (value, start_s), (next_value, end_s) = next((line for line in lines if total_s < line[1][1]), lines[-1])
        return value + (total_s - start_s) * (next_value - value) / (end_s - start_s)


def parse_utility(text: str) -> Linear | Piecewise:
    """`linear:<value>,<end_s>` or `<value>:<end_s>,...`, such as linear:100,3600 and 100:1800,40:3600."""
    kind, _, rest = text.partition(":")
    if kind.strip() == "linear":
        value, end_s = _two_numbers(text, rest, ",")
        if not (value > 0.0 and end_s > 0.0):
            raise InvalidSpec(f"utility is {text!r}; the value and the end of a line have to be above 0")
        return Linear(value, end_s)
    points = tuple(_two_numbers(text, part, ":") for part in text.split(","))
    if points[0][1] < 0.0 or points[-1][0] < 0.0:
        raise InvalidSpec(f"utility is {text!r}; values and ends may not be negative")
    for (value, end_s), (next_value, next_end_s) in pairwise(points):
        if next_value > value:
            raise InvalidSpec(
                f"utility is {text!r}; its values rise from {value:g} to {next_value:g} but may only fall"
            )
        if next_end_s <= end_s:
            raise InvalidSpec(f"utility is {text!r}; its ends go from {end_s:g} to {next_end_s:g} s but have to rise")
    return Piecewise(points)


def _two_numbers(text: str, part: str, separator: str) -> tuple[float, float]:
    try:
        first, second = (float(number) for number in part.split(separator))
    except ValueError:
        first = second = math.nan
    if not (math.isfinite(first) and math.isfinite(second)):
        raise InvalidSpec(
            f"utility is {text!r}; {part!r} is not two finite numbers with {separator!r} between them. "
            "Expected linear:<value>,<end_s> or <value>:<end_s>,<value>:<end_s>,..."
        )
    return first, second


@dataclass(frozen=True, slots=True)
class UtilityOverCost:
    """dU > dC: the job is done sooner, and that is worth more than the workers cost until then."""

    utility: Utility
    #: P, by default 1 per worker and hour.
    price_per_worker_s: float = 1.0 / 3600.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.price_per_worker_s < math.inf:
            raise InvalidSpec(f"price_per_worker_s is {self.price_per_worker_s}; expected a finite number from 0")

    def passes(self, smaller: Seen, larger: Seen, situation: Situation) -> bool:
        # The past costs the same either way. Where both are infinite the difference is NaN, which is above nothing.
        more_cost = self._remaining_cost(larger, situation) - self._remaining_cost(smaller, situation)
        return self._utility(larger, situation) - self._utility(smaller, situation) > more_cost

    def _remaining_cost(self, seen: Seen, situation: Situation) -> float:
        return _remaining_s(seen, situation) * seen.size * self.price_per_worker_s

    def _utility(self, seen: Seen, situation: Situation) -> float:
        return self.utility(expected_s(seen, situation), situation.first_expected_s)


# -- the search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers there should be, and one sentence for people."""

    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Search:
    """The rules of the search, and nothing it found.

    The paper wants `least` and `most` to be multiples of `step`. Here the last step towards either is as short as it
    has to be, and s_{k,d} takes the real distance.
    """

    least: int
    most: int
    step: int
    start: int
    worthwhile: Worthwhile = ScalingEfficiency()
    #: K: so many steps have to be measured at a size before it is left.
    every_steps: int = 10
    #: N: so many steps in size, from the smallest seen, have to be worthwhile before nothing smaller is tried.
    passes_to_stay: int = 3
    #: So many steps have to be measured at the size that was not worthwhile before it is believed.
    enough_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("least", "step", "every_steps", "passes_to_stay", "enough_steps"):
            if getattr(self, name) < 1:
                raise InvalidSpec(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.most < self.least:
            raise InvalidSpec(f"most is {self.most}, below least, which is {self.least}")
        if not self.least <= self.start <= self.most:
            raise InvalidSpec(f"start is {self.start}; expected from {self.least} (least) to {self.most} (most)")

    def due(self, measured: Record, now_size: int) -> bool:
        """For those who could ask after each step: every K steps is often enough."""
        steps = measured.steps_since_change(now_size)
        return steps > 0 and steps % self.every_steps == 0

    def next_size(self, measured: Record, now_size: int, situation: Situation) -> Decision:
        """The size from now on, within the bounds; only during a change it stays what it is, whatever that is."""
        if situation.changing:
            return Decision(now_size, f"Stays at {_workers(now_size)}: a change is under way.")
        inside = self._bounded(now_size)
        if inside != now_size:
            return Decision(
                inside, f"Goes from {now_size} to {_workers(inside)}: allowed are {self.least} to {self.most}."
            )
        seen = self.within(measured)
        if not seen:
            verb = "Stays at" if now_size == self.start else f"Goes from {now_size} to"
            return Decision(self.start, f"{verb} {_workers(self.start)}, the start: nothing has been measured yet.")
        steps = measured.steps_since_change(now_size)
        if steps < self.every_steps:
            why = f"Stays at {_workers(now_size)}: {steps} of {self.every_steps} steps have been measured there."
            return Decision(now_size, why)
        return self._explore(seen, now_size, situation)

    def _explore(self, seen: list[Seen], now_size: int, situation: Situation) -> Decision:
        """The steps 0 to 3 of the paper: as long as there is a size to try, try it."""
        smallest, largest = seen[0].size, seen[-1].size
        # 0. One size says nothing of scaling. With least = most there is no other.
        if len(seen) == 1:
            target = self._bounded(largest + self.step if largest < self.most else largest - self.step)
            return _decision(now_size, target, f"{_told(seen)}, and no other size is known")
        # 1. Is each size worth more than the one before?
        failed = first_failure(seen, self.worthwhile, situation)
        # 2. All are: grow.
        if failed is None and largest < self.most:
            target = self._bounded(largest + self.step)
            return _decision(now_size, target, f"every step up was worthwhile so far ({_told(seen[-2:])})")
        # 3. The job may have begun with too many: look below, until enough sizes in a row were worthwhile.
        passed = len(seen) - 1 if failed is None else failed
        if passed < self.passes_to_stay and smallest > self.least:
            reason = f"{passed} of {self.passes_to_stay} steps up from {smallest} were worthwhile ({_told(seen[:2])})"
            return _decision(now_size, self._bounded(smallest - self.step), reason)
        return self._settle(seen, failed, now_size)

    def _settle(self, seen: list[Seen], failed: int | None, now_size: int) -> Decision:
        """Step 4: just before the first step up that was not worthwhile."""
        if failed is None:
            return _decision(now_size, seen[-1].size, f"every step up to the most was worthwhile ({_told(seen[-2:])})")
        best, beyond = seen[failed : failed + 2]
        told = f"{_told([best, beyond])}, which is not worthwhile"
        # The paper never forgets a size and so knows of no gaps. What failed as one long step may pass as a short one.
        if beyond.size - best.size > self.step:
            return _decision(now_size, best.size + self.step, f"{told}, and nothing between is known")
        # A short measurement may be bad luck. Before the larger size is given up it is measured well.
        if beyond.steps < self.enough_steps:
            reason = f"{told}, but only {beyond.steps} of {self.enough_steps} steps have been measured there"
            return _decision(now_size, beyond.size, reason)
        return _decision(now_size, best.size, told)

    def _bounded(self, size: int) -> int:
        return min(max(size, self.least), self.most)

    def within(self, measured: Record) -> list[Seen]:
        """What the search knows. Sizes out of bounds, from before those were changed, are not its business."""
        return [seen for seen in measured.seen() if self.least <= seen.size <= self.most]


def first_failure(seen: Sequence[Seen], worthwhile: Worthwhile, situation: Situation) -> int | None:
    """Which size, counted from 0, has a next one that is not worthwhile."""
    pairs = enumerate(pairwise(seen))
    return next((i for i, (one, more) in pairs if not worthwhile.passes(one, more, situation)), None)


def _decision(now_size: int, target: int, reason: str) -> Decision:
    move = "Stays at" if target == now_size else f"Goes from {now_size} to"
    return Decision(target, f"{move} {_workers(target)}: {reason}.")


def _told(seen: Sequence[Seen]) -> str:
    return ", ".join(f"{_speed(each.throughput)} samples/s with {_workers(each.size)}" for each in seen)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def limit(measured: Record, search: Search, situation: Situation) -> int | None:
    """More workers than this are known not to be worthwhile; None while there is no such number.

    A cluster policy may give fewer. It is what is known so far: of a job that has only ever had too many workers it
    is learned from `next_size`, not from here, how few would do.
    """
    seen = search.within(measured)
    failed = first_failure(seen, search.worthwhile, situation)
    if failed is None or seen[failed + 1].steps < search.enough_steps:
        return None
    # Of sizes in a gap between the two nothing is known, so they are not ruled out.
    return max(seen[failed].size, seen[failed + 1].size - search.step)


# -- the batch -------------------------------------------------------------------------------------------------------


def local_batch(size: int, max_local: int, max_global: int, rank: int) -> int:
    """Samples per step of one worker: as many as fit, until all together reach the largest batch and share it."""
    if max_local < 1:
        raise InvalidSpec(f"max_local is {max_local}; expected at least 1")
    if max_global < size:
        raise InvalidSpec(f"max_global is {max_global}, but each of {size} workers needs a sample; use fewer workers")
    if not 0 <= rank < size:
        raise InvalidSpec(f"rank is {rank}; expected from 0 to {size - 1}, as there are {size} workers")
    total = min(max_local * size, max_global)
    return total // size + (rank < total % size)


def _speed(throughput: float) -> str:
    """In four digits, as no more would be the same the next time; 24,180 and 3.27."""
    return f"{float(f'{throughput:.4g}'):,.10g}"
