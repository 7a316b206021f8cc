"""Of the steps of a configuration, what counts is their mean without the extremes."""

from __future__ import annotations

import pytest

from fairlead.train.profile import WARM_UP, Profile

CONFIGURATION = ("slow", 1, 1, 32, 0)


def profile_of(*steps_s: float) -> Profile:
    profile = Profile()
    for step_s in (*[99.0] * WARM_UP, *steps_s):
        profile.record(CONFIGURATION, step_s, step_s / 2)
    return profile


def test_single_steps_that_are_held_up_do_not_count() -> None:
    (seen,) = profile_of(*[1.0] * 19, 500.0).observations()
    assert (seen.gpu_type, seen.step_s, seen.sync_s, seen.steps) == ("slow", 1.0, 0.5, 20)


def test_what_holds_up_every_third_step_counts() -> None:
    """As where a CPU share stops the process every few milliseconds: the median would not see it."""
    (seen,) = profile_of(*[1.0, 1.0, 7.0] * 10).observations()
    assert seen.step_s == pytest.approx(3.0, rel=0.25)


def test_types_are_told_apart_and_survive_a_checkpoint() -> None:
    profile = profile_of(1.0, 1.0)
    for _ in range(WARM_UP + 3):
        profile.record(("fast", *CONFIGURATION[1:]), 0.5, 0.0)
    again = Profile()
    again.load_state_dict(profile.state_dict())
    assert {seen.gpu_type: (seen.step_s, seen.steps) for seen in again.observations()} == {
        "slow": (1.0, 2),
        "fast": (0.5, 3),
    }
