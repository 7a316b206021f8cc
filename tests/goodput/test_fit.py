"""The fit against known truths, against the documented loss and scipy's minimum of it, and against nonsense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairlead.core.types import Observation
from fairlead.goodput import fit as module
from fairlead.goodput.fit import NEUTRAL, Fit, borrow, fit, fit_many
from fairlead.goodput.throughput import ThroughputParams, grad_time, step_time, throughput, update_time

pytestmark = pytest.mark.filterwarnings("error")

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "data" / "pollux" / "profiles"

TRUTH = ThroughputParams(alpha_c=0.05, beta_c=0.002, alpha_n=0.3, beta_n=0.01, alpha_r=0.1, beta_r=0.005, gamma=1.6)

#: (nodes, GPUs) and per-GPU batches that show every part of the model.
PLACEMENTS = ((1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16))
BATCHES = (16, 64, 128)
EVERYWHERE = [(n, k, m) for n, k in PLACEMENTS for m in BATCHES]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Nothing is remembered from one test to the next."""
    module._memo.clear()
    yield
    module._memo.clear()


def measure(
    params: ThroughputParams, nodes: int, gpus: int, m: int, *, s: int = 0, steps: int = 100, slower: float = 1.0
) -> Observation:
    """What a perfect profiler would report."""
    step = float(step_time(params, nodes, gpus, m, s))
    sync = float(update_time(params, nodes, gpus, m) - grad_time(params, m))
    return Observation("gpu", nodes, gpus, m, s, step * slower, sync * slower, steps)


def measure_all(
    params: ThroughputParams, configurations: Sequence[tuple[int, int, int]] = EVERYWHERE, *, steps: int = 100
) -> list[Observation]:
    return [measure(params, *configuration, steps=steps) for configuration in configurations]


def noisy(observations: Sequence[Observation], share: float, seed: int) -> list[Observation]:
    """With errors in the pass and in the sync. Without accumulation only."""
    factors = np.exp(share * np.random.default_rng(seed).normal(size=(len(observations), 2))).tolist()
    return [
        replace(o, step_s=(o.step_s - o.sync_s) * a + o.sync_s * b, sync_s=o.sync_s * b)
        for o, (a, b) in zip(observations, factors, strict=True)
    ]


def any_params(seed: int) -> ThroughputParams:
    rng = np.random.default_rng(seed)
    alpha_c = math.exp(rng.normal(-3.0, 1.0))
    alpha_r = alpha_c * math.exp(rng.normal())
    alpha_n = alpha_r * math.exp(rng.uniform(0.0, 2.0))
    growth_n, growth_r = rng.choice([0.0, 0.02, 0.1, 0.3], size=2).tolist()
    beta_c, gamma = alpha_c * math.exp(rng.normal(-3.0, 1.0)), float(rng.choice([1.0, 1.5, 2.0, 3.0, 5.0, 8.0]))
    return ThroughputParams(alpha_c, beta_c, alpha_n, alpha_n * growth_n, alpha_r, alpha_r * growth_r, gamma)


def some(observations: Sequence[Observation], count: int, seed: int) -> list[Observation]:
    rows = np.random.default_rng(seed).choice(len(observations), size=count, replace=False)
    return [observations[row] for row in rows.tolist()]


def wrong(params: ThroughputParams, observations: Sequence[Observation]) -> float:
    """RMS of log(predicted / measured) step times."""
    logs = [
        math.log(float(step_time(params, o.nodes, o.gpus, o.per_gpu_batch, o.accumulation)) / o.step_s)
        for o in observations
    ]
    return math.sqrt(sum(x * x for x in logs) / len(logs))


# -- what it finds ---------------------------------------------------------------------------------------------------


def test_known_parameters_are_recovered_from_noise_free_measurements() -> None:
    found = fit(measure_all(TRUTH))
    assert astuple(found.params) == pytest.approx(astuple(TRUTH), rel=0.02)
    assert found.error < 1e-3
    assert wrong(found.params, [measure(TRUTH, n, k, m) for n, k, m in ((1, 3, 40), (3, 12, 90), (8, 64, 32))]) < 5e-3


@pytest.mark.parametrize("seed", range(20))
def test_any_model_predicts_what_it_was_fitted_on_without_noise(seed: int) -> None:
    # Pollux's pulls trade a little of the agreement for less overlap, and so the limit is not 0.
    truth = any_params(seed)
    assert fit(measure_all(truth)).error < 0.015
    assert wrong(fit(measure_all(truth)).params, measure_all(truth, [(1, 3, 30), (2, 6, 100), (3, 12, 20)])) < 0.03


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_five_percent_leaves_predictions_about_as_exact(seed: int) -> None:
    truth = any_params(seed)
    found = fit(noisy(measure_all(truth), 0.05, seed))
    assert found.error < 0.08
    assert wrong(found.params, measure_all(truth)) < 0.05


def test_accumulated_micro_steps_are_told_apart_from_the_one_that_averages() -> None:
    observations = [measure(TRUTH, *at, s=s) for s, at in enumerate(EVERYWHERE)]
    assert astuple(fit(observations).params) == pytest.approx(astuple(TRUTH), rel=0.02)


def test_more_steps_weigh_more_but_equal_ones_are_equal() -> None:
    slow, fast = measure(TRUTH, 1, 1, 64, slower=1.2), replace(measure(TRUTH, 1, 1, 64), accumulation=0)
    middle = fit([slow, fast])
    assert fit([replace(slow, steps=7), replace(fast, steps=7)]).params == pytest.approx(middle.params)
    leaning = fit([replace(slow, steps=1), fast])
    assert grad_time(leaning.params, 64) < grad_time(middle.params, 64)
    assert grad_time(leaning.params, 64) == pytest.approx(fast.step_s, rel=0.02)


def test_a_sync_of_zero_on_several_gpus_is_one_that_was_not_told() -> None:
    # A source that cannot split the step says 0; what several GPUs cost more than one must then be averaging.
    untold = [replace(o, sync_s=0.0) for o in measure_all(TRUTH)]
    assert wrong(fit(untold).params, measure_all(TRUTH)) < 0.02
    assert grad_time(fit(untold).params, 64) == pytest.approx(grad_time(TRUTH, 64), rel=0.02)


# -- what it assumes -------------------------------------------------------------------------------------------------


def test_without_observations_speed_is_linear_in_the_gpus_and_not_to_be_trusted() -> None:
    assert fit([]) == NEUTRAL
    assert NEUTRAL.confidence == 0.0
    assert NEUTRAL.most_gpus == 0
    for m in (1, 10):
        assert throughput(NEUTRAL.params, 1, np.array([1, 4, 8]), m) == pytest.approx([1.0, 4.0, 8.0])


def test_with_one_batch_half_of_a_pass_is_taken_to_be_constant() -> None:
    observations = [measure(TRUTH, 1, 1, 64), measure(TRUTH, 1, 2, 64, slower=1.1), measure(TRUTH, 2, 8, 64)]
    found = fit(observations)
    passes = [o.step_s - o.sync_s for o in observations]
    assert not found.batches
    assert found.params.alpha_c == pytest.approx(sum(passes) / 3 / 2)
    assert grad_time(found.params, 64) == pytest.approx(float(grad_time(TRUTH, 64)), rel=0.05)


def test_before_several_nodes_were_seen_they_are_a_tenth_worse_than_one() -> None:
    found = fit(measure_all(TRUTH, [(1, k, m) for k in (1, 2, 4) for m in BATCHES]))
    assert (found.within, found.across, found.most_gpus) == (True, False, 4)
    assert found.params.alpha_r == pytest.approx(TRUTH.alpha_r, rel=0.05)
    assert found.params.alpha_n == pytest.approx(1.1 * found.params.alpha_r)
    assert found.params.beta_n == pytest.approx(1.1 * found.params.beta_r)


def test_before_several_gpus_of_a_node_were_seen_averaging_there_is_free() -> None:
    found = fit(measure_all(TRUTH, [(n, k, m) for n, k in ((1, 1), (2, 2), (2, 8)) for m in BATCHES]))
    assert (found.within, found.across) == (False, True)
    assert found.params.alpha_r == found.params.beta_r == 0.0
    assert found.params.alpha_n == pytest.approx(TRUTH.alpha_n, rel=0.05)


def test_before_more_than_two_gpus_were_seen_more_take_no_longer() -> None:
    found = fit(measure_all(TRUTH, [(n, k, m) for n, k in ((1, 1), (1, 2), (2, 2)) for m in BATCHES]))
    assert (found.within, found.across, found.beyond_two) == (True, True, False)
    assert found.params.beta_r == found.params.beta_n == 0.0


def test_on_one_gpu_nothing_is_known_of_averaging_and_so_it_is_free() -> None:
    found = fit(measure_all(TRUTH, [(1, 1, m) for m in BATCHES]))
    assert (found.batches, found.within, found.across, found.beyond_two, found.most_gpus) == (
        *(True, False, False, False),
        1,
    )
    assert astuple(found.params)[2:] == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert astuple(found.params)[:2] == pytest.approx(astuple(TRUTH)[:2], rel=0.01)


# -- what it withstands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [20.0, 1 / 20])
@pytest.mark.parametrize("bad", range(8))
def test_one_point_of_eight_that_is_far_off_does_not_move_the_others(bad: int, factor: float) -> None:
    at = [(1, 1, 16), (1, 1, 128), (1, 2, 64), (1, 2, 128), (2, 4, 16), (2, 4, 64), (2, 8, 64), (2, 8, 128)]
    observations = measure_all(TRUTH, at)
    observations[bad] = measure(TRUTH, *at[bad], slower=factor)
    found = fit(observations)
    assert wrong(found.params, [measure(TRUTH, *at[k]) for k in range(8) if k != bad]) < 0.1
    assert found.confidence < 0.5 * fit(measure_all(TRUTH, at)).confidence


def test_an_outlier_does_not_move_the_prior_of_a_single_batch() -> None:
    observations = [measure(TRUTH, 1, k, 64, slower=20.0 if k == 5 else 1.0) for k in range(1, 9)]
    assert fit(observations).params.alpha_c == pytest.approx(float(grad_time(TRUTH, 64)) / 2)


ONE = Observation("gpu", 1, 4, 32, 0, 0.5, 0.1, 10)


@pytest.mark.parametrize(
    "observations",
    [
        [ONE],
        [ONE, ONE, ONE],
        [ONE, replace(ONE, step_s=50.0), replace(ONE, step_s=0.005, sync_s=0.001)],
        [replace(ONE, sync_s=0.5), replace(ONE, sync_s=0.7, gpus=8)],
        [replace(ONE, step_s=0.0, sync_s=0.0), ONE],
        [replace(ONE, step_s=1e300, sync_s=1e299), replace(ONE, step_s=1e-300, sync_s=0.0)],
        [replace(ONE, step_s=5e-324, sync_s=0.0)],
        [replace(ONE, nodes=0, gpus=0, per_gpu_batch=0, accumulation=-3)],
        [replace(ONE, gpus=10**400, steps=10**400), replace(ONE, accumulation=10**400)],
    ],
    ids=["one", "same", "contradictory", "all-sync", "zero", "extreme", "subnormal", "nowhere", "huge-counts"],
)
def test_degenerate_measurements_give_a_usable_model(observations: list[Observation]) -> None:
    found = fit(observations)
    assert 0.0 < found.confidence < 1.0
    usable(found)


def test_only_zero_times_are_as_good_as_none() -> None:
    assert fit([replace(ONE, step_s=0.0)]) == NEUTRAL


def usable(found: Fit) -> None:
    assert math.isfinite(found.error)
    assert 0.0 <= found.confidence <= 1.0
    speed = throughput(found.params, np.array([1, 1, 2, 16]), np.array([1, 4, 8, 64]), np.array([1, 100, 7, 32]))
    assert np.isfinite(speed).all()
    assert (speed > 0.0).all()


counts = st.one_of(st.sampled_from([1, 2, 3, 4, 8, 64]), st.integers(-3, 2**70))
seconds = st.one_of(st.floats(1e-3, 10.0), st.floats(0.0, 1.7e308), st.sampled_from([0.0, 5e-324, 1e-9, 0.5, 1.0]))
anything = st.builds(
    Observation, st.just("gpu"), counts, counts, counts, counts, seconds, seconds, st.integers(1, 2**70)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(anything, max_size=12), st.randoms(use_true_random=False))
def test_any_observations_in_any_order_give_one_finite_model(observations: list[Observation], random: object) -> None:
    found = fit(observations)
    usable(found)
    random.shuffle(observations)  # type: ignore[attr-defined]
    assert fit(observations) == found


# -- one by one and together -----------------------------------------------------------------------------------------


def many_profiles() -> list[list[Observation]]:
    """Of every size, so that some are padded, and with duplicates and empty ones."""
    profiles = [some(noisy(measure_all(any_params(k)), 0.1, k), 1 + k % 18, k) for k in range(60)]
    return [*profiles, [], profiles[3], [ONE], [replace(ONE, step_s=0.0)], noisy(measure_all(TRUTH) * 5, 0.1, 0)]


def test_many_fits_together_equal_each_alone_to_the_last_bit() -> None:
    profiles = many_profiles()
    together = fit_many(profiles)
    module._memo.clear()
    assert together == [fit(profile) for profile in profiles]
    assert fit_many([]) == []


def test_a_fit_does_not_depend_on_what_was_fitted_before() -> None:
    profiles = many_profiles()
    first = fit_many(profiles)
    assert fit_many(profiles) == first
    module._memo.clear()
    assert fit_many(profiles[::-1]) == first[::-1]


def test_the_order_of_observations_makes_no_difference() -> None:
    observations = noisy(measure_all(TRUTH), 0.1, 1)
    found = fit(observations)
    for seed in range(5):
        assert fit(some(observations, len(observations), seed)) == found


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMO_SIZE", 3)
    profiles = [[measure(TRUTH, 1, 1, m)] for m in range(1, 9)]
    found = fit_many(profiles)
    assert len(module._memo) == 3
    assert [fit(profile) for profile in profiles] == found


# -- confidence ------------------------------------------------------------------------------------------------------


def test_confidence_rises_with_steps() -> None:
    rising = [fit(measure_all(TRUTH, steps=steps)).confidence for steps in (1, 10, 100, 10_000)]
    assert all(a < b for a, b in pairwise(rising))


def test_confidence_rises_with_configurations() -> None:
    rising = [fit(measure_all(TRUTH, [(1, 1, m) for m in range(8, 8 + n)])).confidence for n in (1, 2, 3, 8, 30)]
    assert all(a < b for a, b in pairwise(rising))


def test_confidence_rises_with_each_regime_seen() -> None:
    regimes = ([(1, 1, 16)] * 6, [(1, 1, 16), (1, 1, 64)] * 3, [(1, 1, 16), (1, 2, 64)] * 3)
    wider = ([(1, 1, 16), (1, 2, 64), (2, 2, 64)] * 2, [(1, 1, 16), (1, 2, 64), (2, 8, 64)] * 2)
    rising = [fit(measure_all(TRUTH, at)).confidence for at in (*regimes, *wider)]
    assert all(a < b for a, b in pairwise(rising))


def test_confidence_falls_with_error() -> None:
    falling = [fit(noisy(measure_all(TRUTH), share, 3)).confidence for share in (0.0, 0.1, 0.3, 1.0)]
    assert all(a > b for a, b in pairwise(falling))


def test_the_same_configuration_told_twice_is_one_configuration_of_more_steps() -> None:
    apart = [measure(TRUTH, 1, 1, 64, s=s, steps=10) for s in (0, 1)]
    assert fit(apart).confidence == pytest.approx(fit([measure(TRUTH, 1, 1, 64, steps=20)]).confidence, rel=1e-6)


# -- borrowing -------------------------------------------------------------------------------------------------------


def test_a_borrowed_model_is_as_much_slower_everywhere_as_a_pass_is() -> None:
    borrowed = borrow(TRUTH, source_grad_s=0.2, grad_s=0.5)
    assert borrowed.gamma == TRUTH.gamma
    for nodes, gpus, m in EVERYWHERE:
        assert step_time(borrowed, nodes, gpus, m, 2) == pytest.approx(2.5 * float(step_time(TRUTH, nodes, gpus, m, 2)))


@pytest.mark.parametrize(("source_grad_s", "grad_s"), [(0.0, 0.5), (0.2, 0.0), (0.0, 0.0)])
def test_without_a_pass_on_both_a_model_is_borrowed_as_it_is(source_grad_s: float, grad_s: float) -> None:
    assert borrow(TRUTH, source_grad_s=source_grad_s, grad_s=grad_s) == TRUTH


# -- the numerics ----------------------------------------------------------------------------------------------------

Floats = NDArray[np.float64]


def as_arrays(observations: Sequence[Observation]) -> tuple[module._Profiles, float, float]:
    raw_7BP = np.array([module._points(observations)], dtype=np.float64).transpose(2, 0, 1)
    profiles, unit_B1, batch_B1, _ = module._profiles(raw_7BP)
    return profiles, float(unit_B1[0, 0]), float(batch_B1[0, 0])


def theta_of(params: ThroughputParams, unit: float, batch: float) -> Floats:
    theta_7 = np.array(astuple(params)) / unit
    theta_7[1] *= batch
    theta_7[6] = params.gamma
    return theta_7


def documented_loss(params: ThroughputParams, observations: Sequence[Observation]) -> float:
    """As the head of the module says, in plain Python."""
    total, mass = 0.0, 0.0
    for o in observations:
        grad = (o.step_s - o.sync_s) / (o.accumulation + 1)
        wrong_grad = math.log(float(grad_time(params, o.per_gpu_batch)) / grad)
        wrong_opt = math.log(float(update_time(params, o.nodes, o.gpus, o.per_gpu_batch)) / (grad + o.sync_s))
        n2 = (wrong_grad**2 + wrong_opt**2) / 2
        weight = o.steps / (o.steps + 20.0)
        total, mass = total + weight * n2 / (1.0 + n2 / math.log(2.0) ** 2), mass + weight
    growth = (params.beta_n / params.alpha_n) ** 2 + (params.beta_r / params.alpha_r) ** 2
    return 2.0 * math.sqrt(1e-6 + total / mass) + 1e-3 * (params.gamma - 1.0) ** 2 + 1e-2 * growth


def varied(seed: int) -> list[Observation]:
    observations = noisy(measure_all(any_params(seed)), 0.3, seed)
    return [replace(o, steps=1 + 7 * k, accumulation=0) for k, o in enumerate(observations)]


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_the_one_documented(seed: int) -> None:
    observations, params = varied(seed), any_params(seed + 50)
    profiles, unit, batch = as_arrays(observations)
    loss_B, _ = module._slope(profiles, theta_of(params, unit, batch)[None])
    assert loss_B[0] == pytest.approx(documented_loss(params, observations), rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_jacobian_agrees_with_finite_differences(seed: int) -> None:
    profiles, unit, batch = as_arrays(varied(seed))
    theta_7 = np.maximum(theta_of(any_params(seed + 70), unit, batch), 1e-3)
    predicted = module._predict(profiles, theta_7[None])
    J_B8Q = np.zeros((1, 8, predicted[0].shape[1]))
    module._fill_jacobian(J_B8Q, predicted)
    for k in range(7):
        up_7, down_7 = theta_7.copy(), theta_7.copy()
        up_7[k] *= math.exp(1e-6)
        down_7[k] *= math.exp(-1e-6)
        slope_Q = (module._predict(profiles, up_7[None])[0] - module._predict(profiles, down_7[None])[0])[0] / 2e-6
        assert J_B8Q[0, k] == pytest.approx(slope_Q, abs=1e-7, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_of_the_loss_agrees_with_finite_differences(seed: int) -> None:
    profiles, unit, batch = as_arrays(varied(seed))
    theta_7 = np.maximum(theta_of(any_params(seed + 90), unit, batch), 1e-3)
    _, curve_B78 = module._slope(profiles, theta_7[None])
    for k in range(7):
        moved_27 = np.stack([theta_7, theta_7])
        moved_27[:, k] *= np.exp([1e-6, -1e-6])
        above, below = (float(module._slope(profiles, theta_7[None])[0][0]) for theta_7 in moved_27)
        assert curve_B78[0, k, 7] == pytest.approx((above - below) / 2e-6, abs=1e-7, rel=1e-5)


# -- against scipy ---------------------------------------------------------------------------------------------------


def scipy_minimum(observations: Sequence[Observation], starts: int = 2) -> float:
    """The least loss that L-BFGS-B finds from several starts."""
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    profiles, _, _ = as_arrays(observations)
    low_7, high_7 = profiles.low_B7[0], profiles.high_B7[0]
    free_7 = low_7 < high_7
    low, high = np.log(low_7[free_7]), np.log(high_7[free_7])

    def loss_and_slope(x: Floats) -> tuple[float, Floats]:
        theta_7 = low_7.copy()
        theta_7[free_7] = np.exp(x)
        loss_B, curve_B78 = module._slope(profiles, theta_7[None])
        return float(loss_B[0]), curve_B78[0, free_7, 7]

    rng = np.random.default_rng(0)
    found = []
    for k in range(starts):
        start_7 = np.array([0.5, 0.5, 0.5, 0.05, 0.5, 0.05, (1.001, 3.0)[k % 2]])
        start_7[:6] *= np.exp(rng.normal(0.0, 1.5 if k else 0.0, size=6))
        x = np.clip(np.log(start_7[free_7]), low, high)
        within = {"bounds": list(zip(low, high, strict=True)), "options": {"maxiter": 100}}
        found.append(optimize.minimize(loss_and_slope, x, jac=True, method="L-BFGS-B", **within).fun)
    return float(min(found))


def our_minimum(observations: Sequence[Observation]) -> float:
    profiles, _, _ = as_arrays(observations)
    return float(module._slope(profiles, module._descend(profiles, module._start(profiles)))[0][0])


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_loss_is_within_a_few_percent_of_the_best_that_scipy_finds(noise: float) -> None:
    profiles = [some(noisy(measure_all(any_params(k)), noise, k), 4 + 3 * k, k) for k in range(5)]
    ratios = [our_minimum(profile) / scipy_minimum(profile) for profile in profiles]
    assert max(ratios) < 1.03
    assert float(np.median(ratios)) < 1.005


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[list[Observation], ...]]:
    """By application, what was measured in several placements: at three batches each, and at all others."""
    if not PROFILES.is_dir():
        pytest.skip(f"the measured profiles are not at {PROFILES}")
    from fairlead.sim.measured import applications_in, load_profile

    found: dict[str, tuple[list[Observation], ...]] = {}
    for name in applications_in(PROFILES):
        profile = load_profile(PROFILES / name)
        assert profile.batch.max_per_gpu is not None
        batches = np.geomspace(profile.batch.min_per_gpu, profile.batch.max_per_gpu, 7).round().astype(int).tolist()
        sets: tuple[list[Observation], list[Observation]] = ([], [])
        for placement in ((1,), (2,), (4,), (4, 2), (4, 4), (4, 4, 4, 4)):
            for k, m in enumerate(batches):
                if (times := profile.times(placement, m)) is not None:
                    sets[k not in (1, 3, 5)].append(Observation("t4", len(placement), sum(placement), m, 0, *times))
        found[name] = sets
    return found


def test_the_loss_on_measured_profiles_is_within_a_few_percent_of_the_best_that_scipy_finds(
    measured: dict[str, tuple[list[Observation], ...]],
) -> None:
    ratios = []
    for observations, _ in measured.values():
        for seed, count in enumerate((5, 12)):
            profile = some(observations, min(count, len(observations)), seed)
            ratios.append(our_minimum(profile) / scipy_minimum(profile))
    assert max(ratios) < 1.03


def test_measured_step_times_at_batches_never_tried_are_predicted(
    measured: dict[str, tuple[list[Observation], ...]],
) -> None:
    # The model itself is only so good: a fit of all points, seen and unseen, is the measure.
    for name, (seen, unseen) in measured.items():
        assert wrong(fit(seen).params, unseen) < 1.1 * wrong(fit([*seen, *unseen]).params, unseen) + 0.02, name
