"""Curves against the search over every batch, one placement at a time, that they stand for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.core.types import Batch
from fairlead.goodput.curves import Curve, Model, curves
from fairlead.goodput.throughput import ThroughputParams, throughput
from fairlead.goodput.tune import best_batch, candidates
from fairlead.sim.applications import APPLICATIONS

pytestmark = pytest.mark.filterwarnings("error")

#: What the module promises: the best of its grid is within this share of the best whole number.
TOLERANCE = 0.005

PARAMS = ThroughputParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.3, beta_n=0.01, alpha_r=0.1, beta_r=0.005, gamma=1.6)
FIXED = Batch(128, 128)
FREE = Batch(128, 4096, min_per_gpu=8, max_per_gpu=256)


def curve(model: Model, most: int = 16) -> Curve:
    (found,) = curves([model], [most])
    return found


def searched(model: Model, nodes: int, most: int = 16) -> list[float]:
    """Goodput on 0 to `most` GPUs, by the search that tries every batch."""
    by_gpus = [best_batch(model.params, model.noise_scale, nodes, k, model.batch)[2] for k in range(1, most + 1)]
    return [0.0, *(goodput if nodes == 1 or k > 1 else 0.0 for k, goodput in enumerate(by_gpus, start=1))]


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    """Nothing, or a time of this range on a logarithmic scale."""
    spread = st.floats(math.log(low), math.log(high)).map(math.exp)
    return st.one_of(st.just(0.0), spread)


@st.composite
def params(draw: st.DrawFn) -> ThroughputParams:
    alpha_c, beta_c = draw(seconds(1e-3, 10.0)), draw(seconds(1e-6, 0.1))
    return ThroughputParams(
        alpha_c=alpha_c if alpha_c + beta_c > 0.0 else 0.1,
        beta_c=beta_c,
        alpha_n=draw(seconds(1e-3, 10.0)),
        beta_n=draw(seconds(1e-5, 1.0)),
        alpha_r=draw(seconds(1e-3, 10.0)),
        beta_r=draw(seconds(1e-5, 1.0)),
        gamma=draw(st.floats(1.0, 10.0)),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Of any bounds, the largest at most 256 times the initial one: four times the range of any known application."""
    initial = draw(st.integers(1, 4096))
    least = draw(st.one_of(st.just(1), st.integers(1, 2 * initial)))
    total = draw(st.one_of(st.none(), st.just(1), st.integers(1, 256)))
    cap = draw(st.one_of(st.none(), st.integers(least, least + 2 * initial)))
    if total is None and cap is not None:
        cap = max(least, min(cap, 16 * initial))
    return Batch(initial, None if total is None else initial * total, least, cap)


noise_scales = st.one_of(st.just(0.0), seconds(1.0, 1e6))


@st.composite
def models(draw: st.DrawFn) -> Model:
    return Model(draw(params()), draw(noise_scales), draw(batches()))


def assert_close(model: Model, *, least: int = 1, share: float = TOLERANCE) -> None:
    """From `least` GPUs on, on one node and on several, the grid finds what the search finds."""
    found = curve(model, most=9)
    for nodes, curve_K in ((1, found.one_K), (2, found.many_K)):
        best_K = np.array(searched(model, nodes, most=9))
        assert curve_K[least:].tolist() == pytest.approx(best_K[least:].tolist(), rel=share), f"on {nodes} nodes"


@settings(max_examples=300, deadline=None)
@given(params(), noise_scales, st.integers(1, 4096), st.integers(1, 8))
def test_the_best_of_the_grid_is_as_good_as_the_best_of_every_batch_that_fits_into_memory(
    given_params: ThroughputParams, phi: float, initial: int, times: int
) -> None:
    assert_close(Model(given_params, phi, Batch(initial, times * initial)), least=2)


@settings(max_examples=300, deadline=None)
@given(params(), noise_scales, st.integers(1, 4096), st.integers(1, 256))
def test_over_a_wide_range_of_batches_the_grid_is_within_three_percent(
    given_params: ThroughputParams, phi: float, initial: int, times: int
) -> None:
    assert_close(Model(given_params, phi, Batch(initial, times * initial)), least=2, share=0.03)


@settings(max_examples=200, deadline=None)
@given(params(), noise_scales, st.integers(1, 4096))
def test_with_a_fixed_batch_there_is_nothing_to_search_and_both_agree(
    given_params: ThroughputParams, phi: float, initial: int
) -> None:
    assert_close(Model(given_params, phi, Batch(initial, initial)), share=1e-9)


def test_a_batch_just_beyond_what_fits_into_memory_is_not_rounded_up_to_twice_that() -> None:
    """130 samples at 128 a pass: two passes of 65. The grid tries 256 instead, which at no noise is worth half."""
    constant = ThroughputParams(alpha_c=0.1, beta_c=0.01, alpha_n=0.0, beta_n=0.0, alpha_r=0.0, beta_r=0.0, gamma=1.0)
    assert_close(Model(constant, 0.0, Batch(130, 1000, max_per_gpu=128)))


@settings(max_examples=300, deadline=None)
@given(models())
@example(Model(PARAMS, 1000.0, FREE))
@example(Model(PARAMS, 20.0, Batch(100, 3000)))  # one GPU: the best batch is 100, without a second micro-step
@example(Model(PARAMS, 0.0, Batch(150, 4000, max_per_gpu=128)))
def test_the_best_of_the_grid_is_nearly_as_good_as_the_best_of_every_batch(model: Model) -> None:
    """Within the 2 % that the module states: 85 micro-steps of seven samples are hard to hit."""
    assert_close(model, share=0.02)


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.parametrize("end", [0, 1])
def test_the_built_in_applications_have_the_goodput_that_they_find_for_themselves(name: str, end: int) -> None:
    app = APPLICATIONS[name]
    for gpu_params in app.params.values():
        model = Model(gpu_params, app.noise_scale[end], app.batch)
        found = curve(model, most=64)
        assert found.one_K.tolist() == pytest.approx(searched(model, 1, most=64), rel=TOLERANCE)
        assert found.many_K.tolist() == pytest.approx(searched(model, 2, most=64), rel=TOLERANCE)


def test_a_curve_has_an_entry_for_every_number_from_none_up() -> None:
    for most in (1, 2, 7):
        found = curve(Model(PARAMS, 1000.0, FREE), most)
        assert found.one_K.shape == found.many_K.shape == (most + 1,)
        assert found.one_K[0] == found.many_K[0] == 0.0
    assert curves([], []) == []


def test_one_gpu_averages_nothing_and_is_never_on_several_nodes() -> None:
    slow = ThroughputParams(alpha_c=0.1, beta_c=0.01, alpha_n=9.0, beta_n=9.0, alpha_r=9.0, beta_r=9.0, gamma=1.0)
    found = curve(Model(slow, 0.0, FIXED))
    assert found.one_K[1] == pytest.approx(128 / (0.1 + 0.01 * 128))
    assert found.many_K[1] == 0.0
    assert found.many_K[2] > 0.0


def test_one_gpu_takes_its_larger_batches_in_two_micro_steps() -> None:
    """So that there are two gradients to tell the noise by: 0.2 s for the second pass, nothing else."""
    constant = ThroughputParams(alpha_c=0.2, beta_c=0.0, alpha_n=0.0, beta_n=0.0, alpha_r=0.0, beta_r=0.0, gamma=1.0)
    always_useful = 1e12
    (one_step,) = curves([Model(constant, always_useful, Batch(100, 199))], [1])
    assert one_step.one_K[1] == pytest.approx(100 / 0.2, rel=1e-6)  # 198 in two passes would be 495 a second
    (two_steps,) = curves([Model(constant, always_useful, Batch(100, 300))], [1])
    assert two_steps.one_K[1] == pytest.approx(300 / 0.4, rel=1e-6)


def test_a_fixed_batch_is_divided_and_where_it_does_not_divide_the_rest_is_left_out() -> None:
    found = curve(Model(PARAMS, 0.0, FIXED), most=10)
    for gpus in range(2, 11):
        assert found.one_K[gpus] == pytest.approx(float(throughput(PARAMS, 1, gpus, 128 // gpus)))
        assert found.many_K[gpus] == pytest.approx(float(throughput(PARAMS, 2, gpus, 128 // gpus)))


def test_a_batch_that_nobody_gave_bounds_to_is_fixed() -> None:
    stated, unstated = (curve(Model(PARAMS, 5000.0, batch)) for batch in (Batch(96, 96), Batch(96)))
    np.testing.assert_allclose(stated.one_K, unstated.one_K)
    np.testing.assert_allclose(stated.many_K, unstated.many_K)


def test_a_batch_that_does_not_fit_into_memory_is_accumulated() -> None:
    found = curve(Model(PARAMS, 0.0, Batch(128, 128, max_per_gpu=32)), most=8)
    assert found.one_K[1] == pytest.approx(float(throughput(PARAMS, 1, 1, 32, 3)))
    assert found.one_K[2] == pytest.approx(float(throughput(PARAMS, 1, 2, 32, 1)))
    assert found.one_K[4] == pytest.approx(float(throughput(PARAMS, 1, 4, 32, 0)))


@pytest.mark.parametrize(
    ("batch", "most"),
    [(Batch(4, 4), 4), (Batch(8, 8, min_per_gpu=2), 4), (Batch(8, 20, min_per_gpu=4), 5), (Batch(3), 3)],
)
def test_there_is_nothing_to_be_had_where_the_batch_cannot_be_split_so(batch: Batch, most: int) -> None:
    found = curve(Model(PARAMS, 10.0, batch), most=2 * most)
    assert (found.one_K[1 : most + 1] > 0.0).all()
    assert (found.one_K[most + 1 :] == 0.0).all()
    assert (found.many_K[2 : most + 1] > 0.0).all()
    assert (found.many_K[most + 1 :] == 0.0).all()


@settings(max_examples=200, deadline=None)
@given(models())
def test_there_is_something_to_be_had_exactly_where_there_is_a_batch_to_try(model: Model) -> None:
    found = curve(model, most=9)
    possible = [False, *(len(candidates(gpus, model.batch)[0]) > 0 for gpus in range(1, 10))]
    assert (found.one_K > 0.0).tolist() == possible
    assert (found.many_K > 0.0).tolist() == [some and gpus > 1 for gpus, some in enumerate(possible)]


# -- what more and less of something does ------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(params(), batches(), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_a_noisier_gradient_never_lowers_goodput(
    given_params: ThroughputParams, batch: Batch, phi: float, more: float
) -> None:
    quiet, noisy = curves([Model(given_params, phi, batch), Model(given_params, phi + more, batch)], [8, 8])
    assert (noisy.one_K >= quiet.one_K * (1.0 - 1e-9)).all()
    assert (noisy.many_K >= quiet.many_K * (1.0 - 1e-9)).all()


@settings(max_examples=200, deadline=None)
@given(models(), st.floats(1.0, 10.0))
def test_hardware_that_is_so_many_times_faster_gives_as_many_times_the_goodput(model: Model, times: float) -> None:
    fast = Model(model.params.faster(times, within_node=times, between_nodes=times), model.noise_scale, model.batch)
    slow, quick = curves([model, fast], [8, 8])
    np.testing.assert_allclose(quick.one_K, times * slow.one_K, rtol=1e-6)
    np.testing.assert_allclose(quick.many_K, times * slow.many_K, rtol=1e-6)


@settings(max_examples=200, deadline=None)
@given(models())
def test_one_node_is_better_than_several_if_averaging_is_quicker_there(model: Model) -> None:
    given_params = model.params
    quicker = given_params.alpha_r <= given_params.alpha_n and given_params.beta_r <= given_params.beta_n
    found = curve(model, most=8)
    if quicker:
        assert (found.one_K >= found.many_K * (1.0 - 1e-9)).all()
    if given_params.alpha_r == given_params.alpha_n and given_params.beta_r == given_params.beta_n:
        np.testing.assert_allclose(found.one_K[2:], found.many_K[2:])


@settings(max_examples=200, deadline=None)
@given(models())
def test_no_number_of_gpus_does_more_than_as_many_times_the_best_of_one_sample(model: Model) -> None:
    """Each GPU computes at most 1 / beta_c samples a second; averaging and the constant part only take away."""
    if model.params.beta_c == 0.0:
        return
    found = curve(model, most=8)
    assert (found.one_K <= np.arange(9) / model.params.beta_c * (1.0 + 1e-9)).all()


def test_where_averaging_is_free_and_the_batch_may_grow_more_gpus_are_never_worse() -> None:
    free = ThroughputParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.0, beta_n=0.0, alpha_r=0.0, beta_r=0.0, gamma=1.0)
    found = curve(Model(free, 5000.0, Batch(128, 1 << 16)), most=32)
    assert (np.diff(found.one_K) > 0.0).all()
    each_K = found.one_K[2:] / np.arange(2, 33)
    assert (np.diff(each_K) < 0.01 * each_K[:-1]).all()  # and each adds less, but for the grid


# -- many at once ------------------------------------------------------------------------------------------------------


def alone(some: Sequence[Model], most: Sequence[int]) -> list[Curve]:
    return [curves([model], [count])[0] for model, count in zip(some, most, strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(models(), st.integers(1, 20)), min_size=2, max_size=6))
def test_many_models_in_one_call_have_the_curves_they_have_one_by_one(drawn: list[tuple[Model, int]]) -> None:
    some, most = [model for model, _ in drawn], [count for _, count in drawn]
    for together, single in zip(curves(some, most), alone(some, most), strict=True):
        np.testing.assert_allclose(together.one_K, single.one_K, rtol=1e-12)
        np.testing.assert_allclose(together.many_K, single.many_K, rtol=1e-12)


def test_a_longer_curve_begins_with_the_shorter_one() -> None:
    short, long = curves([Model(PARAMS, 1000.0, FREE)] * 2, [5, 50])
    np.testing.assert_allclose(short.one_K, long.one_K[:6], rtol=1e-12)
    np.testing.assert_allclose(short.many_K, long.many_K[:6], rtol=1e-12)
