"""Means over seeds, their confidence intervals, and paired differences: against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.sim.intervals import difference, interval


def test_an_interval_is_students() -> None:
    """Values 1 to 5: mean 3, s = sqrt(2.5), t(0.975, 4) = 2.776445."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (found.mean, found.n) == (3.0, 5)
    assert found.half == pytest.approx(half, rel=1e-6)
    assert found.to_dict()["ci95"] == pytest.approx([3.0 - half, 3.0 + half], rel=1e-6)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    one = interval([7.0])
    assert one is not None
    assert (one.mean, one.half, one.excludes_zero) == (7.0, None, False)
    assert one.to_dict() == {"mean": 7.0, "ci95": None, "n": 1}
    assert interval([]) is None


def test_nineteen_of_twenty_intervals_hold_the_true_mean() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        found = interval(random.normal(10.0, 3.0, 6).tolist())
        assert found is not None
        held += found.low <= 10.0 <= found.high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_differences_are_taken_seed_by_seed() -> None:
    """What a seed does to both policies cancels out: the spread between seeds is large, that of differences nil."""
    baseline = {"0": 100.0, "1": 1000.0, "2": 10_000.0}
    found = difference({seed: value - 10.0 for seed, value in baseline.items()}, baseline)
    assert found is not None
    assert found.absolute.mean == pytest.approx(-10.0)
    assert found.absolute.half == pytest.approx(0.0, abs=1e-9)
    assert found.absolute.excludes_zero
    assert found.relative is not None
    assert found.relative.mean == pytest.approx(-10.0 / 3700.0)


def test_only_seeds_of_both_are_compared() -> None:
    found = difference({"0": 1.0, "1": 5.0}, {"1": 4.0, "2": 9.0})
    assert found is not None
    assert (found.absolute.mean, found.absolute.n) == (1.0, 1)
    assert difference({"0": 1.0}, {"1": 1.0}) is None
    none = difference({"0": 1.0}, {"0": 0.0})
    assert none is not None
    assert (none.absolute.mean, none.relative) == (1.0, None)
