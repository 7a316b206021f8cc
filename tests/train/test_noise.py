"""The gradient noise scale, against closed forms and against every sample of a small data set."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the training library needs torch: pip install fairlead[train]")

from fairlead.train.noise import (  # noqa: E402  after the skip
    CPU_CHUNK,
    LEAST_V,
    NOISE_SCALE_MAX,
    Divisor,
    NoiseScale,
    Preconditioner,
    compared,
    squared_norm,
)

#: A horizon beyond any test: a plain mean.
FOREVER = 1e12

lengths = st.floats(0.0, 1e6)
batches = st.integers(2, 10_000)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine the threads of such small sums mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def noise_scale(noise: NoiseScale) -> float:
    assert noise.scale is not None
    return noise.scale


# -- a quadratic with known covariance -------------------------------------------------------------------------------


class Quadratic:
    """Gradients mu + noise of known covariance: those of |x - sample|^2 / 2 at a fixed x."""

    deviations = np.linspace(0.2, 3.0, 12)
    mu = np.linspace(-0.5, 0.9, 12)
    trace = float((deviations**2).sum())
    sqr = float((mu**2).sum())
    phi = trace / sqr

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def mean_gradient(self, samples: int) -> np.ndarray:
        return self.mu + self._random.normal(size=12) * self.deviations / math.sqrt(samples)

    def statistics(self, sizes: Sequence[int]) -> tuple[float, float]:
        """(sum w_i |g_i|^2, |G|^2) of one step."""
        total = sum(sizes)
        gradients = [self.mean_gradient(size) for size in sizes]
        local = sum(size / total * float(g @ g) for size, g in zip(sizes, gradients, strict=True))
        mean = sum(size / total * g for size, g in zip(sizes, gradients, strict=True))
        return local, float(mean @ mean)


@pytest.mark.parametrize("sizes", [(8, 8), (8,) * 8, (1, 31), (3, 0x20, 7, 2), (1, 1, 1, 61)])
def test_noise_and_signal_are_unbiased_for_equal_and_unequal_groups(sizes: tuple[int, ...]) -> None:
    world, traces, sqrs = Quadratic(seed=1), [], []
    for _ in range(4000):
        one = NoiseScale(FOREVER)
        local, mean = world.statistics(sizes)
        trace = (local - mean) * sum(sizes) / (len(sizes) - 1)
        one.update(local, mean, len(sizes), sum(sizes))
        assert one.trace == pytest.approx(trace)
        traces.append(trace)
        sqrs.append(mean - trace / sum(sizes))  # not clipped at 0, unlike what is reported
    for found, truth in ((traces, world.trace), (sqrs, world.sqr)):
        error = np.std(found) / math.sqrt(len(found))
        assert abs(np.mean(found) - truth) < 4 * error
        assert error < 0.05 * truth, "the test would not see a bias"


def test_the_noise_scale_of_a_quadratic_is_found_within_three_percent() -> None:
    world, noise = Quadratic(seed=2), NoiseScale(FOREVER)
    for _ in range(3000):
        noise.update(*world.statistics((16,) * 4), groups=4, batch=64)
    assert noise_scale(noise) == pytest.approx(world.phi, rel=0.03)


def test_a_changing_number_of_groups_and_samples_changes_nothing() -> None:
    world, noise = Quadratic(seed=3), NoiseScale(FOREVER)
    for step in range(3000):
        sizes = ((16, 16), (5, 40, 19), (9,) * 8)[step % 3]
        noise.update(*world.statistics(sizes), groups=len(sizes), batch=sum(sizes))
    assert noise_scale(noise) == pytest.approx(world.phi, rel=0.03)


def test_pairs_of_single_gradients_find_the_same_noise_scale_while_the_mean_rests() -> None:
    world, noise = Quadratic(seed=4), NoiseScale(FOREVER)
    last, last_size = world.mean_gradient(32), 32
    for step in range(6000):
        size = (32, 48, 16)[step % 3]
        gradient = world.mean_gradient(size)
        change = gradient - last
        noise.update_pair(float(change @ change), float(gradient @ last), size, last_size)
        last, last_size = gradient, size
    assert noise_scale(noise) == pytest.approx(world.phi, rel=0.05)


# -- smoothing -------------------------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_estimate() -> None:
    noise = NoiseScale.for_batch(32)
    assert (noise.scale, noise.sqr, noise.trace) == (None, None, None)
    assert noise.gain(128, 32) == 1.0
    assert noise.gain(16, 32) == 0.5


def test_the_first_estimate_counts_in_full() -> None:
    # tr = (6 - 4) x 64 / (2 - 1) = 128, |mu|^2 = 4 - 128 / 64 = 2
    noise = NoiseScale.for_batch(32)
    noise.update(6.0, 4.0, groups=2, batch=64)
    assert (noise.trace, noise.sqr, noise.scale) == pytest.approx((128.0, 2.0, 64.0))
    # (128 / 32 + 2) / (128 / 64 + 2) = 6 / 4
    assert noise.gain(64, 32) == pytest.approx(1.5)


def test_what_is_a_horizon_of_samples_away_weighs_1_over_e() -> None:
    noise = NoiseScale.for_batch(10, horizon_steps=5)
    noise.update_pair(0.0, 1.0, 10, 10)
    for _ in range(5):
        noise.update_pair(0.0, 0.0, 10, 10)
    first, all_six = 1 - math.exp(-1 / 5), 1 - math.exp(-6 / 5)
    assert noise.sqr == pytest.approx(first / math.e / all_six)


@given(st.integers(1, 64), st.integers(1, 64))
def test_forgetting_goes_by_samples_and_not_by_steps(steps: int, size: int) -> None:
    """However the same samples are cut into steps, what was before them keeps the same weight."""
    many, one = NoiseScale(500.0), NoiseScale(500.0)
    for noise in (many, one):
        noise.update_pair(3.0, 1.0, 7, 7)
    for _ in range(steps):
        many.update_pair(0.0, 5.0, size, size)
    one.update_pair(0.0, 5.0, steps * size, steps * size)
    assert many.sqr == pytest.approx(one.sqr)
    assert many.trace == pytest.approx(one.trace)


def test_the_bias_of_pairs_is_forgotten_when_the_first_groups_are_seen() -> None:
    noise = NoiseScale.for_batch(32)
    noise.update_pair(1e6, 1e-3, 32, 32)
    noise.update(math.nan, 4.0, groups=2, batch=64)
    assert noise_scale(noise) == pytest.approx(16e9)
    noise.update(6.0, 4.0, groups=2, batch=64)
    assert noise.scale == pytest.approx(64.0)
    noise.update_pair(0.0, 2.0, 32, 32)
    noise.update(6.0, 4.0, groups=2, batch=64)
    assert noise.trace == pytest.approx(128 * 4 / 5, rel=0.01), "later pairs are part of the mean"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_with_an_infinite_or_undefined_gradient_is_ignored_and_counted(bad: float) -> None:
    noise = NoiseScale.for_batch(32)
    noise.update(6.0, 4.0, groups=2, batch=64)
    before = noise.scale
    noise.update(bad, 4.0, groups=2, batch=64)
    noise.update(6.0, bad, groups=2, batch=64)
    noise.update(bad, bad, groups=2, batch=64)
    noise.update_pair(bad, 1.0, 32, 32)
    noise.update_pair(1.0, bad, 32, 32)
    assert noise.scale == before
    assert noise.skipped == 5


def test_a_scale_without_bound_is_capped_and_one_of_zero_gradients_is_zero() -> None:
    drowned, silent = NoiseScale.for_batch(32), NoiseScale.for_batch(32)
    drowned.update_pair(5.0, -1.0, 32, 32)
    silent.update(0.0, 0.0, groups=2, batch=64)
    assert drowned.scale == NOISE_SCALE_MAX
    assert drowned.gain(320, 32) == pytest.approx(10.0)
    assert silent.scale == 0.0
    assert silent.gain(320, 32) == 1.0


@given(lengths, lengths, st.integers(2, 64), batches, batches, batches)
def test_scale_and_gain_stay_in_their_bounds(a: float, b: float, groups: int, seen: int, batch: int, m0: int) -> None:
    noise = NoiseScale.for_batch(m0)
    noise.update(a, b, groups=groups, batch=groups * seen)
    assert 0.0 <= noise_scale(noise) <= NOISE_SCALE_MAX
    low, high = sorted((1.0, batch / m0))
    assert low <= noise.gain(batch, m0) <= high
    assert noise.gain(m0, m0) == 1.0


@pytest.mark.parametrize(("groups", "batch"), [(1, 64), (0, 0), (4, 3)])
def test_one_group_alone_is_refused(groups: int, batch: int) -> None:
    with pytest.raises(ValueError, match=f"{groups} groups of {batch} samples.*update_pair"):
        NoiseScale.for_batch(32).update(6.0, 4.0, groups=groups, batch=batch)


def test_a_restored_state_goes_on_as_if_nothing_had_happened() -> None:
    world, noise, restored = Quadratic(seed=5), NoiseScale.for_batch(32), NoiseScale.for_batch(32)
    noise.update_pair(3.0, 1.0, 32, 32)
    noise.update_pair(math.nan, 1.0, 32, 32)
    restored.load_state_dict(json.loads(json.dumps(noise.state_dict())))
    for _ in range(5):
        statistics = world.statistics((8, 24))
        for each in (noise, restored):
            each.update(*statistics, groups=2, batch=32)
    assert restored == noise
    assert all(type(value) is float for value in restored.state_dict().values())


# -- a small model, against every sample of its data -----------------------------------------------------------------

SAMPLES = 128


@pytest.fixture
def task() -> Iterator[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        inputs = torch.randn(SAMPLES, 6, dtype=torch.float64)
        targets = inputs[:, :1] - 0.5 * inputs[:, 1:2] ** 2 + 0.3 * torch.randn(SAMPLES, 1, dtype=torch.float64)
        yield model, inputs, targets


def flat_gradient(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def every_gradient(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[samples, parameters]. The gradient of a group is the mean of its rows."""
    each = torch.stack([flat_gradient(model, inputs[i : i + 1], targets[i : i + 1]) for i in range(SAMPLES)])
    torch.testing.assert_close(each[3:12].mean(dim=0), flat_gradient(model, inputs[3:12], targets[3:12]))
    return each


def brute_force(each: torch.Tensor) -> float:
    """tr / |mu|^2 over the whole data set."""
    mu = each.mean(dim=0)
    return float(((each - mu) ** 2).sum() / SAMPLES / (mu @ mu))


def sampled(each: torch.Tensor, norm: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The estimate from 600 batches of unequal groups, drawn with replacement."""
    random, noise, sizes = np.random.default_rng(0), NoiseScale(FOREVER), (8, 20, 36, 64)
    for _ in range(600):
        rows = torch.as_tensor(random.integers(0, SAMPLES, sum(sizes)))
        local = 0.0
        for group in rows.split(sizes):
            local += len(group) / sum(sizes) * float(norm(each[group].mean(dim=0)))
        mean_sqr = float(norm(each[rows].mean(dim=0)))
        noise.update(local, mean_sqr, groups=len(sizes), batch=sum(sizes))
    return noise_scale(noise)


def test_the_noise_scale_of_a_model_agrees_with_brute_force_within_five_percent(
    task: tuple[torch.nn.Module, torch.Tensor, torch.Tensor],
) -> None:
    each = every_gradient(*task)
    assert sampled(each, squared_norm) == pytest.approx(brute_force(each), rel=0.05)


def test_the_noise_scale_under_adam_agrees_with_brute_force_within_five_percent(
    task: tuple[torch.nn.Module, torch.Tensor, torch.Tensor],
) -> None:
    model, inputs, targets = task
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for start in range(0, 64, 16):
        flat_gradient(model, inputs[start : start + 16], targets[start : start + 16])
        optimizer.step()
    by_hand = torch.cat([adam_factor(optimizer, p, 0.999, 1e-8).reshape(-1) for p in model.parameters()])
    each = every_gradient(*task)
    plain, exact = brute_force(each), brute_force(each * by_hand)
    assert abs(exact / plain - 1) > 0.3, "the test would not see a forgotten preconditioner"
    parameters, preconditioner = list(model.parameters()), Preconditioner(optimizer)

    def norm(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([parameter.numel() for parameter in parameters])
        return sum(squared_norm(part, preconditioner.divisor(p)) for part, p in zip(parts, parameters, strict=True))

    assert sampled(each, norm) == pytest.approx(exact, rel=0.05)


# -- the preconditioner ----------------------------------------------------------------------------------------------


def adam_factor(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, beta: float, eps: float, v: str = "exp_avg_sq"
) -> torch.Tensor:
    state = optimizer.state[parameter]
    floored = torch.maximum(state[v], LEAST_V * state[v].mean())
    return 1.0 / ((floored / (1.0 - beta ** float(state["step"]))).sqrt() + eps)


def factors(preconditioner: Preconditioner, *parameters: torch.Tensor) -> torch.Tensor:
    """What each element is multiplied with, one parameter after the other: as many norms as there are elements."""
    found = []
    for parameter in parameters:
        divisor = preconditioner.divisor(parameter)
        found += [squared_norm(one, divisor).sqrt() for one in torch.eye(parameter.numel())]
    return torch.stack(found).float()


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_every_parameter_group_has_its_own_factor(kind: str, amsgrad: bool) -> None:
    one, two = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(4))
    optimizer = getattr(torch.optim, kind)(
        [{"params": [one], "betas": (0.9, 0.95)}, {"params": [two], "eps": 0.1}], amsgrad=amsgrad
    )
    for step in (3.0, 1.0, 0.5):
        one.grad, two.grad = step * torch.arange(1.0, 7.0).reshape(3, 2), step * torch.arange(1.0, 5.0)
        optimizer.step()
    preconditioner, v = Preconditioner(optimizer), "max_exp_avg_sq" if amsgrad else "exp_avg_sq"
    expected = adam_factor(optimizer, one, 0.95, 1e-8, v), adam_factor(optimizer, two, 0.999, 0.1, v)
    found = factors(preconditioner, two, one)
    torch.testing.assert_close(found, torch.cat([expected[1], expected[0].reshape(-1)]))


def test_the_gradient_times_the_factor_is_the_first_step_that_adam_took() -> None:
    """The first step of Adam is lr g / (|g| + eps)."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    parameter.grad = torch.tensor([2.0, -0.5, 3.0])
    optimizer.step()
    torch.testing.assert_close(parameter.grad * factors(Preconditioner(optimizer), parameter), -parameter.detach())


def test_a_loaded_state_and_a_group_that_was_added_are_seen() -> None:
    one, two = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([one])
    preconditioner = Preconditioner(optimizer)
    one.grad = two.grad = torch.full((2,), 0.5)
    optimizer.step()
    torch.testing.assert_close(factors(preconditioner, one), torch.full((2,), 2.0))
    state = optimizer.state_dict()
    state["param_groups"][0]["eps"] = 0.5
    optimizer.load_state_dict(state)
    optimizer.add_param_group({"params": [two], "eps": 1.5})
    optimizer.step()
    torch.testing.assert_close(factors(preconditioner, one, two), torch.tensor([1.0, 1.0, 0.5, 0.5]))


def test_nothing_is_divided_before_the_first_step_or_for_other_optimisers() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    adam, sgd = torch.optim.Adam([parameter]), torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    assert Preconditioner(adam).divisor(parameter) is None
    parameter.grad = torch.ones(3)
    sgd.step()
    assert Preconditioner(sgd).divisor(parameter) is None


def test_what_never_had_a_gradient_counts_little_more_than_its_neighbours_or_is_left_out_with_them() -> None:
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([used, unused])
    used.grad = torch.tensor([0.5, 0.0])
    optimizer.step()
    found = factors(Preconditioner(optimizer), used, unused)
    torch.testing.assert_close(found, torch.tensor([2.0, 2.0 / (LEAST_V / 2) ** 0.5, 0.0, 0.0]))


# -- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 1000, CPU_CHUNK, 2 * CPU_CHUNK + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_squares_have_64_bits_whatever_the_gradient_has(length: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    g, h, v = (torch.randn(length, generator=random).to(dtype) for _ in range(3))
    v = v.abs()
    floor = torch.cat([LEAST_V * part.double().mean().expand(len(part)) for part in v.split(CPU_CHUNK)])
    a, b, root = g.double(), h.double(), torch.maximum(v.double(), floor).sqrt() + 0.5
    divisor = Divisor(v, shift=0.5, correction=0.25)  # elements are divided by root and multiplied with sqrt(0.25)
    for found, exact in (
        (squared_norm(g), a @ a),
        (squared_norm(g, divisor), 0.25 * ((a / root) ** 2).sum()),
        (compared(g, h)[0], ((a - b) ** 2).sum()),
        (compared(g, h)[1], a @ b),
        (compared(g, h, divisor)[0], 0.25 * (((a - b) / root) ** 2).sum()),
        (compared(g, h, divisor)[1], 0.25 * (a * b / root**2).sum()),
    ):
        assert found.shape == ()
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-3)


def test_half_precision_gradients_do_not_overflow() -> None:
    assert float(squared_norm(torch.full((100,), 1000.0, dtype=torch.float16))) == pytest.approx(1e8)
