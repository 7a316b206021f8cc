"""Whole runs of the search for the efficient number of workers, on curves whose answer is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.goodput.search import Decision, Measured, Search, Seen, Situation, first_failure, limit

Curve = Callable[[int], float]

NOTHING = Situation()
SEARCH = Search(least=4, most=60, step=4, start=4)


# -- curves ----------------------------------------------------------------------------------------------------------


def linear(size: int) -> float:
    return 100.0 * size


def flat(_: int) -> float:
    return 1000.0


def harmful_beyond_20(size: int) -> float:
    return 100.0 * size if size <= 20 else 2000.0 - 30.0 * (size - 20)


def saturating(share: float) -> Curve:
    """100 k / (1 + share k), for which s_{k,d} is 1 / (1 + share k): more than 0.1 where share k < 9."""
    return lambda size: 100.0 * size / (1.0 + share * size)


# -- a job that does what it is told ---------------------------------------------------------------------------------


@dataclass
class Job:
    """Trains, and asks after each step whether it should change."""

    search: Search
    curve: Curve
    measured: Measured = field(default_factory=lambda: Measured(math.inf))
    #: Relative, of each step.
    noise: float = 0.0
    seed: int = 0
    size: int = field(default=0, init=False)
    moves: list[int] = field(default_factory=list, init=False)
    decisions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.size = self.search.start
        self._random = random.Random(self.seed)

    def train(self, steps: int) -> Job:
        for _ in range(steps):
            throughput = self.curve(self.size) * (1.0 + self.noise * self._random.uniform(-1.0, 1.0))
            self.measured.note(self.size, samples=128.0 * self.size, step_s=128.0 * self.size / throughput)
            if self.search.due(self.measured, self.size):
                self.decide()
        return self

    def decide(self) -> Decision:
        decision = self.search.next_size(self.measured, self.size, NOTHING)
        self.decisions += 1
        if decision.size != self.size:
            self.moves.append(decision.size)
        self.size = decision.size
        return decision


def sizes_of(search: Search) -> list[int]:
    """All that the search may come to from its start."""
    up = [min(size, search.most) for size in range(search.start, search.most + search.step, search.step)]
    down = [max(size, search.least) for size in range(search.start, search.least - search.step, -search.step)]
    return sorted({*up, *down})


def best_of(search: Search, curve: Curve) -> int:
    """Where a search that had measured everything would settle."""
    everything = [Seen(size, curve(size), step_s=1.0, steps=100) for size in sizes_of(search)]
    failed = first_failure(everything, search.worthwhile, NOTHING)
    return everything[-1 if failed is None else failed].size


# -- whole runs ------------------------------------------------------------------------------------------------------


STARTS = pytest.mark.parametrize("start", [4, 20, 32, 56, 60])

CLEAR = [(linear, 60), (flat, 4), (harmful_beyond_20, 20)]

#: Curves on which the step to the best size and the one beyond are both within 0.02 of the threshold of 0.1.
CLOSE = [(saturating(0.3), 28), (saturating(9 / 14), 12)]


def assert_ends_at(job: Job, best: int, *, most_moves: int) -> None:
    """And stays there."""
    moves = len(job.train(1000).moves)
    assert job.size == best
    assert moves <= most_moves
    job.train(1000)
    assert (job.size, len(job.moves)) == (best, moves)


@STARTS
@pytest.mark.parametrize(("curve", "best"), CLEAR + CLOSE)
def test_the_search_ends_at_the_best_size_and_stays(curve: Curve, best: int, start: int) -> None:
    job = Job(replace(SEARCH, start=start), curve)
    # Each of the other 14 sizes, then to the one beyond the best and back.
    assert_ends_at(job, best, most_moves=16)


@STARTS
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("curve", "best"), CLEAR)
def test_noise_does_not_hide_what_is_clear(curve: Curve, best: int, start: int, seed: int) -> None:
    job = Job(replace(SEARCH, start=start), curve, noise=0.05, seed=seed)
    assert_ends_at(job, best, most_moves=20)


@STARTS
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("curve", "best"), CLOSE)
def test_with_noise_a_close_call_is_missed_by_a_step_at_most(curve: Curve, best: int, start: int, seed: int) -> None:
    # Of ten steps with 2% noise, s_{28,4} is known to about 0.035 only; and what has passed is not measured again.
    job = Job(replace(SEARCH, start=start), curve, noise=0.02, seed=seed).train(2000)
    moves = len(job.moves)
    assert abs(job.size - best) <= SEARCH.step
    assert moves <= 40
    job.train(1000)
    assert len(job.moves) == moves


def test_a_run_reaches_bounds_that_are_no_whole_number_of_steps_away() -> None:
    search = Search(least=3, most=10, step=4, start=5)
    assert Job(search, linear).train(1000).size == 10
    assert Job(search, flat).train(1000).size == 3


def test_a_run_from_far_too_many_workers_move_by_move() -> None:
    assert Job(replace(SEARCH, start=36), harmful_beyond_20).train(1000).moves == [
        40,
        32,
        28,
        24,
        20,
        16,
        12,
        8,
        24,
        20,
    ]


@given(
    least=st.integers(1, 20),
    span=st.integers(0, 60),
    step=st.integers(1, 12),
    place=st.floats(0.0, 1.0),
    throughputs=st.lists(st.floats(1.0, 1e6), min_size=81, max_size=81),
)
def test_on_any_curve_without_noise_it_settles_within_a_stated_number_of_decisions(
    least: int, span: int, step: int, place: float, throughputs: list[float]
) -> None:
    search = Search(least, least + span, step, least + round(place * span), enough_steps=30)
    job = Job(search, throughputs.__getitem__)
    sizes = sizes_of(search)
    # Once at each size; to the one beyond the best and, while that is measured well, there; and back.
    bound = len(sizes) + 2 + search.enough_steps // search.every_steps
    while job.decisions < bound:
        job.train(1)
    assert len(job.moves) <= len(sizes) + 1
    assert set(job.moves) <= set(sizes)
    settled, moves = job.size, len(job.moves)
    job.train(100)
    assert (job.size, len(job.moves)) == (settled, moves)


@given(
    share=st.floats(0.01, 5.0),
    least=st.integers(1, 8),
    span=st.integers(0, 40),
    step=st.integers(1, 9),
    place=st.floats(0.0, 1.0),
)
def test_on_a_concave_curve_it_settles_at_the_best_size_from_any_start(
    share: float, least: int, span: int, step: int, place: float
) -> None:
    search = Search(least, least + span, step, least + round(place * span), enough_steps=20)
    job = Job(search, saturating(share))
    while job.decisions < len(sizes_of(search)) + 4:
        job.train(1)
    assert job.size == best_of(search, saturating(share))


# -- scaling that changes --------------------------------------------------------------------------------------------

SHIFT_STEPS = 10_000


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [(saturating(9 / 14), saturating(0.3), 12, 28), (saturating(0.3), saturating(9 / 14), 28, 12)],
)
def test_with_ageing_the_new_best_size_is_found(before: Curve, after: Curve, old: int, new: int) -> None:
    job = Job(SEARCH, before, Measured(1000.0)).train(SHIFT_STEPS)
    assert best_of(SEARCH, before) == old
    job.curve = after
    job.train(SHIFT_STEPS)
    assert limit(job.measured, SEARCH, NOTHING) in (new, None)
    where = [job.train(1).size for _ in range(SHIFT_STEPS)]
    # It comes and goes to see whether all is still as it was, and is mostly where it should be.
    assert where.count(new) > 0.75 * SHIFT_STEPS


def test_without_ageing_a_size_that_failed_once_is_never_tried_again() -> None:
    job = Job(SEARCH, saturating(9 / 14)).train(SHIFT_STEPS)
    job.curve = saturating(0.3)
    moves = len(job.moves)
    job.train(2 * SHIFT_STEPS)
    assert (job.size, len(job.moves)) == (12, moves)


def test_what_ageing_costs_while_nothing_changes() -> None:
    job = Job(SEARCH, saturating(9 / 14), Measured(1000.0)).train(SHIFT_STEPS)
    moves = len(job.moves)
    where = [job.train(1).size for _ in range(SHIFT_STEPS)]
    assert where.count(12) > 0.8 * SHIFT_STEPS
    assert len(job.moves) - moves <= 8 * SHIFT_STEPS / 1000
