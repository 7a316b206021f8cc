"""How long a job that changes its batch size still takes: a Dirichlet mixture over batch-size regimes.

Shockwave (Zheng et al., NSDI '23, section 5): the shares of a job's work that it does at each batch size have a
Dirichlet prior with the same weight for every batch size it may use. As work is done, the restatement rule adds what
was seen to the prior, restates the expected share of the *whole* work at each batch, and takes off what is done
already.

Work is counted in shares of the whole job, not in epochs: the expectation does not depend on how many epochs there are,
for the prior weighs as much as the whole job. Only the spread does; without a number of epochs it is that of the
uniform Dirichlet prior, one pseudo-epoch for each batch size.

Legend: B batch sizes, ascending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Floats
from fairlead.core.types import Batch, Belief, Job, JobSpec, Observation

#: How many times as fast as on what it asked for a job is on so many GPUs.
Speedup = Callable[[float], float]

#: The prior weighs as much as so many whole jobs: 1 in the artifact (epochs / batch sizes for each batch size).
PRIOR_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class RegimeMixture:
    """Shares of a job's whole work: done, and expected, at each of the batch sizes it may use."""

    batches: tuple[int, ...]
    done_B: Floats
    left_B: Floats
    #: What the posterior weighs, in epochs.
    concentration: float

    @property
    def left(self) -> float:
        """Share of the work that is left."""
        return float(self.left_B.sum())

    def remaining(self, whole_B: Floats) -> tuple[float, float]:
        """Expectation and standard deviation of the time left, from the time of the whole work at each batch size.

        The mean and variance of a linear function of a Dirichlet vector.
        """
        left = self.left
        if left <= 0.0:
            return 0.0, 0.0
        share_B = self.left_B / left
        mean = float(share_B @ whole_B)
        variance = max(0.0, float(share_B @ (whole_B - mean) ** 2)) / (self.concentration + 1.0)
        return left * mean, left * math.sqrt(variance)


def mixture(
    batches: Sequence[int], regimes: Iterable[tuple[float, int]], progress: float, *, epochs: float | None = None
) -> RegimeMixture:
    """The restatement posterior after `progress`, a share of the work, with the regimes (where it began, batch) so far.

    Batch sizes that were reported but not foreseen are added to the set.
    """
    progress = min(1.0, max(0.0, progress))
    seen = done_by_batch(regimes, progress)
    every = tuple(sorted({*batches, *seen})) or (1,)
    done_B = np.array([seen.get(batch, 0.0) for batch in every])
    done = float(done_B.sum())
    whole_B = (PRIOR_WEIGHT / len(every) + done_B) / (PRIOR_WEIGHT + done)  # expected share of all work, restated
    left_B = np.maximum(0.0, whole_B - done_B)
    total = float(left_B.sum())
    # A regime that took more than its share leaves too little to the other regimes: scale to what is really left.
    left_B = left_B * ((1.0 - progress) / total) if total > 0.0 else np.full(len(every), (1.0 - progress) / len(every))
    prior_epochs = float(len(every)) if epochs is None else max(1.0, epochs)
    return RegimeMixture(every, done_B, left_B, prior_epochs * (PRIOR_WEIGHT + done))


def done_by_batch(regimes: Iterable[tuple[float, int]], progress: float) -> dict[int, float]:
    """Share of the work done at each batch size; work before the first report counts to the first regime."""
    listed = sorted(regimes, key=lambda regime: regime[0])
    done: dict[int, float] = {}
    for place, (began, batch) in enumerate(listed):
        begin = 0.0 if place == 0 else min(began, progress)
        end = min(listed[place + 1][0], progress) if place + 1 < len(listed) else progress
        done[batch] = done.get(batch, 0.0) + max(0.0, end - begin)
    return done


def possible_batches(spec: JobSpec, belief: Belief) -> tuple[int, ...]:
    """Batch sizes the job may use, ascending: what it reported, and its bounds in doublings, where it states both ends.

    The bounds of its script go before those of its spec. A job without stated bounds may use what it has used.
    """
    found = {batch for _, batch in belief.regimes}
    bounds: Batch | None = belief.bounds or spec.batch
    if bounds is not None:
        found.add(bounds.initial)
        size = bounds.initial
        while bounds.max_total is not None and size < bounds.max_total:
            size = min(2 * size, bounds.max_total)
            found.add(size)
    return tuple(sorted(found))


def samples_per_s(
    batches: Sequence[int], observations: Iterable[Observation], gpus: int, gpu_type: str | None = None
) -> Floats | None:
    """Speed at each batch size on so many GPUs, from step times; None if none was measured there.

    A batch that was not measured has the step time of the straight line through those that were (step = a + c batch);
    from a single measurement the same samples per second are assumed.
    """
    step_s: dict[int, tuple[float, int]] = {}  # by samples on each GPU
    for seen in observations:
        if seen.gpus != gpus or seen.step_s <= 0.0 or (gpu_type is not None and seen.gpu_type != gpu_type):
            continue
        each = seen.per_gpu_batch * (seen.accumulation + 1)
        step, steps = step_s.get(each, (0.0, 0))
        step_s[each] = (step + (seen.step_s - step) * seen.steps / (steps + seen.steps), steps + seen.steps)
    if not step_s:
        return None
    if len(step_s) == 1:
        ((each, (step, _)),) = step_s.items()
        return np.full(len(batches), each * gpus / step)
    known = {each: step for each, (step, _) in step_s.items()}
    constant, slope = _line(known)
    each_B = [-(-batch // gpus) for batch in batches]
    return np.array([b / known.get(each, constant + slope * each) for b, each in zip(batches, each_B, strict=True)])


def _line(step_s: Mapping[int, float]) -> tuple[float, float]:
    """Least squares with both coefficients at least 0.

    A larger batch takes no less time, and no step less than none.
    """
    batch, step = np.array(list(step_s), dtype=np.float64), np.array(list(step_s.values()))
    spread = batch - batch.mean()
    slope = max(0.0, float(spread @ step) / float(spread @ spread))
    constant = float(step.mean()) - slope * float(batch.mean())
    if constant < 0.0:
        return 0.0, float(batch @ step) / float(batch @ batch)
    return constant, slope


@dataclass(frozen=True, slots=True)
class JobForecast:
    """What is expected of one job on the GPUs it asks for, alone."""

    #: Share of the work done by now, as reported and carried on at its last speed.
    progress: float
    #: Seconds of the whole job, done and to come, and of what is left; and the standard deviation of that.
    whole_s: float
    remaining_s: float
    spread_s: float
    #: Nothing but what the job has run so far tells how long it takes.
    guessed: bool = False


def forecast(
    job: Job, now: float, *, oracle_s: Mapping[int, float] | None = None, speedup: Speedup = lambda _gpus: 1.0
) -> JobForecast:
    """From what a job reported, or else from the run time its user states; failing both, as long again as it has run.

    `oracle_s` gives the true batch sizes, and the time of the whole work at each: for policies that say oracle.
    `speedup` tells how much faster a job that was resized is on other GPUs than on those it asked for.
    """
    belief, run_s = job.belief, job.run_at(now)
    average = job.service_at(now) / run_s if run_s > 0.0 else float(job.spec.gpus)
    batches = possible_batches(job.spec, belief) if oracle_s is None else tuple(sorted(oracle_s))
    so_far = mixture(batches, belief.regimes, belief.progress)
    seen_s = belief.reported_run_s * speedup(average)
    whole_B = _whole_s(job, so_far, seen_s) if oracle_s is None else _oracle_s(so_far.batches, oracle_s)
    if whole_B is None:
        ran_s = run_s * speedup(average)
        return JobForecast(0.0, 2.0 * ran_s, ran_s, ran_s, guessed=True)
    current = belief.regimes[-1][1] if belief.regimes else so_far.batches[0]
    speed = 1.0 / float(whole_B[so_far.batches.index(current)])
    has_reported = belief.reported_run_s > 0.0
    since_s = max(0.0, run_s - belief.reported_run_s)
    since_s *= speedup(float(job.allocation.total) if has_reported and job.allocation else average)
    progress = min(belief.progress + since_s * speed, max(belief.progress, _ALMOST))  # only its end says that it ended
    by_now = mixture(so_far.batches, belief.regimes, progress)
    remaining_s, spread_s = by_now.remaining(whole_B)
    done_s = float(by_now.done_B @ whole_B) if belief.regimes else progress / speed
    return JobForecast(progress, done_s + remaining_s, remaining_s, spread_s)


#: A stated run time counts as much as this share of the work, once work is seen.
_STATED_WEIGHT = 0.01

#: The most that a job is believed to have done without having said so.
_ALMOST = 0.99


def _whole_s(job: Job, so_far: RegimeMixture, seen_s: float) -> Floats | None:
    """Seconds of the whole work at each batch size, on the GPUs the job asks for; None if nothing tells.

    It took `seen_s` on them to do what was done so far.
    """
    belief, stated_s = job.belief, job.spec.estimate_s
    speed_B = _speeds_seen(job, so_far.batches)
    relative_B = np.ones(len(so_far.batches)) if speed_B is None else speed_B.max() / speed_B
    done = float(so_far.done_B @ relative_B) if belief.regimes else belief.progress
    first = belief.regimes[0][1] if belief.regimes else so_far.batches[0]
    weight, total_s = (done, seen_s) if done > 0.0 and seen_s > 0.0 else (0.0, 0.0)
    if stated_s:  # on the batch it begins with
        weight += _STATED_WEIGHT * float(relative_B[so_far.batches.index(first)])
        total_s += _STATED_WEIGHT * stated_s
    return relative_B * (total_s / weight) if weight > 0.0 else None


def _speeds_seen(job: Job, batches: Sequence[int]) -> Floats | None:
    """Speed at each batch size, on the number of GPUs that it was measured with at the most of them."""
    seen: dict[int, set[int]] = {}
    for each in job.belief.observations:
        if each.gpu_type == job.gpu_type or not job.gpu_type:
            seen.setdefault(each.gpus, set()).add(each.per_gpu_batch * (each.accumulation + 1))
    if not seen:
        return None
    gpus = max(seen, key=lambda count: (len(seen[count]), count == job.spec.gpus, -count))
    return samples_per_s(batches, job.belief.observations, gpus, job.gpu_type or None)


def _oracle_s(batches: Sequence[int], true_s: Mapping[int, float]) -> Floats:
    """A batch that the truth has not heard of takes what the next larger one does, or the largest."""
    known = sorted(true_s)
    nearest = [next((size for size in known if size >= batch), known[-1]) for batch in batches]
    return np.array([max(true_s[size], 1e-9) for size in nearest])
