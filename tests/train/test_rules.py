"""How the learning rate follows the batch, by hand and within the bounds every rule keeps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.train.rules import RULES, Rule, default_rule, rule


@pytest.mark.parametrize(
    ("name", "expected"),
    [("adascale", 2.25), ("adamscale", 1.5), ("linear", 4.0), ("sqrt", 2.0), ("legw", 2.0), ("none", 1.0)],
)
def test_four_times_the_batch_with_a_gain_of_two_and_a_quarter(name: str, expected: float) -> None:
    assert rule(name).factor(batch=128, initial_batch=32, gain=2.25, progress_steps=0.0) == expected


@given(st.sampled_from(sorted(RULES)), st.integers(1, 10_000), st.floats(0.0, 1e6))
def test_at_the_initial_batch_every_rule_keeps_the_rate(name: str, batch: int, progress: float) -> None:
    assert rule(name).factor(batch, batch, 1.0, progress) == 1.0


@given(st.sampled_from(sorted(RULES)), st.integers(1, 1000), st.integers(1, 100), st.floats(0.0, 1.0))
def test_no_rule_goes_beyond_the_linear_one(name: str, initial: int, times: int, share: float) -> None:
    gain = 1.0 + share * (times - 1)
    assert 1.0 <= rule(name).factor(times * initial, initial, gain, 0.0) <= times


def test_the_warm_up_of_legw_is_as_many_times_longer_as_the_batch_is_larger() -> None:
    warming = rule("legw", warmup_steps=100)
    factors = [warming.factor(128, 32, 1.0, progress) for progress in (0, 100, 200, 400, 10_000)]
    assert factors == [0.0, 0.5, 1.0, 2.0, 2.0]
    assert warming.factor(32, 32, 1.0, 50.0) == 0.5


def test_a_warm_up_of_no_steps_is_none() -> None:
    assert rule("legw", warmup_steps=0).factor(128, 32, 1.0, 0.0) == 2.0


@pytest.mark.parametrize("steps", [-1.0, math.nan, math.inf])
def test_a_warm_up_is_a_finite_number_of_steps(steps: float) -> None:
    with pytest.raises(InvalidSpec, match=r"warmup_steps is .*; expected a finite number"):
        rule("legw", warmup_steps=steps)


def test_a_warm_up_for_a_rule_without_one_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="warmup_steps is 10, but rule 'linear' has no warm-up; use legw"):
        rule("linear", warmup_steps=10)


def test_an_unknown_rule_is_answered_with_the_nearest_and_all_there_are() -> None:
    with pytest.raises(InvalidSpec) as error:
        rule("adascal")
    assert str(error.value).startswith("rule is 'adascal', which is not known; did you mean 'adascale'?")
    assert all(name in str(error.value) for name in RULES)


def test_the_same_name_gives_the_same_rule() -> None:
    assert rule("sqrt") == Rule("sqrt") != rule("linear")


class Adam:
    """Stands for an optimiser of another package with a familiar name."""


class Mine(Adam):
    pass


class Momentum:
    pass


@pytest.mark.parametrize(
    ("optimizer", "name"), [(Adam(), "adamscale"), (Mine(), "adamscale"), (Momentum(), "adascale")]
)
def test_what_divides_by_the_gradients_scale_gets_adamscale(optimizer: object, name: str) -> None:
    assert default_rule(optimizer) == name


@pytest.mark.parametrize(
    ("kind", "name"), [("Adam", "adamscale"), ("AdamW", "adamscale"), ("RMSprop", "adamscale"), ("SGD", "adascale")]
)
def test_the_optimisers_of_torch_get_their_rules(kind: str, name: str) -> None:
    torch = pytest.importorskip("torch", reason="the training library needs torch: pip install fairlead[train]")
    optimizer = getattr(torch.optim, kind)([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert default_rule(optimizer) == name
