"""How the learning rate follows the batch, by hand and within the bounds every rule keeps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.train.rules import RULES, Moment, Rule, default_rule, rule


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


def adam_steps(batches: list[int], noise: float) -> list[float]:
    """How far Adam goes in each step, if its rate follows adamscale and the mean square is as expected."""
    beta, v, weight, moment = 0.9, 0.0, 0.0, Moment(0.9)
    lengths = []
    for batch in batches:
        gain = (noise / 32 + 1.0) / (noise / batch + 1.0)
        factor = rule("adamscale").factor(batch, 32, gain, 0.0, moment.value)
        lengths.append(factor / math.sqrt(v / weight) if weight else math.nan)
        v, weight = beta * v + (1 - beta) * (1.0 + noise / batch), beta * weight + (1 - beta)
        moment.note(gain)
    return lengths


@given(st.lists(st.sampled_from([32, 64, 256, 2048]), min_size=2, max_size=50), st.floats(0.0, 1e5))
def test_whatever_batch_adam_remembers_a_step_is_as_long_as_its_gain(batches: list[int], noise: float) -> None:
    at_initial = adam_steps([32] * 60, noise)[-1]
    for batch, length in list(zip(batches, adam_steps(batches, noise), strict=True))[1:]:
        gain = (noise / 32 + 1.0) / (noise / batch + 1.0)
        assert length == pytest.approx(gain * at_initial)


def test_a_moment_survives_a_checkpoint_and_is_of_the_optimiser() -> None:
    class Optimizer:
        param_groups = ({"betas": (0.9, 0.5)},)

    moment, again = Moment.of(Optimizer()), Moment.of(Optimizer())
    assert moment.value is None
    moment.note(1.0)
    moment.note(2.0)
    assert moment.value == pytest.approx((0.25 + 0.25) / 0.75)
    again.load_state_dict(moment.state_dict())
    assert again.value == moment.value
