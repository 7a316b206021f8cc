"""Gradients and norms of one worker's micro-batches, against those of a plain backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

torch = pytest.importorskip("torch", reason="the training library needs torch: pip install fairlead[train]")

from torch.utils.checkpoint import checkpoint  # noqa: E402  after the skip

from fairlead.core.errors import InvalidSpec  # noqa: E402
from fairlead.train import reducer as under_test  # noqa: E402
from fairlead.train.group import Group  # noqa: E402
from fairlead.train.link import Plan  # noqa: E402
from fairlead.train.noise import NoiseScale, Preconditioner  # noqa: E402
from fairlead.train.reducer import Reducer  # noqa: E402

SAMPLES = 64


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a small model has several. One thread: on a busy machine many mostly wait for each other."""
    monkeypatch.setattr(under_test, "BUCKET_BYTES", 300)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(SAMPLES, 6, dtype=torch.float64)
    return inputs, inputs[:, :1] - 0.5 * inputs[:, 1:2] ** 2 + 0.3 * torch.randn(SAMPLES, 1, dtype=torch.float64)


Data = tuple[torch.Tensor, torch.Tensor]


def alone(model: torch.nn.Module) -> Reducer:
    return Reducer(list(model.named_parameters()), Group(Plan(0, ("",), ("",)), 0, None))


def loss_of(model: torch.nn.Module, data: Data, rows: Sequence[int]) -> torch.Tensor:
    inputs, targets = data
    return torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])


def gradient(model: torch.nn.Module, data: Data, rows: Sequence[int]) -> torch.Tensor:
    """As torch has it."""
    every = torch.autograd.grad(loss_of(model, data, rows), list(model.parameters()))
    return torch.cat([each.reshape(-1) for each in every])


def gradients_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def step(
    reducer: Reducer,
    model: torch.nn.Module,
    data: Data,
    groups: Sequence[Sequence[int]],
    preconditioner: Preconditioner | None = None,
) -> None:
    """One step with these rows in its micro-batches."""
    reducer.begin(measure=True, preconditioner=preconditioner)
    for place, rows in enumerate(groups):
        weight = len(rows) / sum(map(len, groups))
        last = place == len(groups) - 1
        reducer.expect(last=last, weight=weight)
        (loss_of(model, data, rows) * weight).backward()
        reducer.passed()
        if not last:
            assert float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)) == 0.0
    reducer.finish(torch.zeros(1))


#: What tells the norms of an optimiser's steps, and by what that multiplies each element of a gradient.
Scaling = tuple[Preconditioner | None, torch.Tensor]


@pytest.fixture(params=["sgd", "adam"])
def scaling(request: pytest.FixtureRequest, model: torch.nn.Module, data: Data) -> Scaling:
    """Of Adam, after a few steps: SGD takes gradients as they are."""
    if request.param == "sgd":
        return None, torch.ones(())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for start in range(0, SAMPLES, 16):
        optimizer.zero_grad()
        loss_of(model, data, range(start, start + 16)).backward()
        optimizer.step()
    v = torch.cat([optimizer.state[parameter]["exp_avg_sq"].reshape(-1) for parameter in model.parameters()])
    return Preconditioner(optimizer), 1.0 / ((v / (1.0 - 0.999**4)).sqrt() + 1e-8)


GROUPS = [range(5), range(5, 25), range(25, 32)]


@pytest.mark.parametrize("groups", [GROUPS[:1], GROUPS[:2], GROUPS])
def test_micro_batches_add_up_to_the_gradient_of_the_whole_step_in_every_step(
    model: torch.nn.Module, data: Data, groups: list[range]
) -> None:
    reducer = alone(model)
    assert len(reducer.buckets) > 1
    for rows in (groups, groups[:1], groups):  # what one step has left is no part of the next
        step(reducer, model, data, rows)
        torch.testing.assert_close(gradients_of(model), gradient(model, data, range(rows[-1].stop)))
        for bucket in reducer.buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                assert parameter.grad is view


def test_the_norms_of_micro_batches_and_of_their_mean_are_measured(
    model: torch.nn.Module, data: Data, scaling: Scaling
) -> None:
    preconditioner, factor = scaling
    reducer = alone(model)
    step(reducer, model, data, GROUPS, preconditioner)
    each = [gradient(model, data, rows) * factor for rows in GROUPS]
    local = sum(len(rows) / 32 * float(g @ g) for rows, g in zip(GROUPS, each, strict=True))
    mean = gradient(model, data, range(32)) * factor
    assert reducer.groups == 3
    assert (reducer.local_sqr, reducer.mean_sqr()) == pytest.approx((local, float(mean @ mean)))

    before = [bucket.flat.clone() for bucket in reducer.buckets]
    step(reducer, model, data, [range(32, 64)], preconditioner)
    now = gradient(model, data, range(32, 64)) * factor
    expected = float((now - mean) @ (now - mean)), float(now @ mean)
    assert reducer.compare(before) == pytest.approx(expected)


def test_the_noise_scale_from_micro_batches_agrees_with_brute_force_within_five_percent(
    model: torch.nn.Module, data: Data, scaling: Scaling
) -> None:
    preconditioner, factor = scaling
    each = torch.stack([gradient(model, data, [row]) * factor for row in range(SAMPLES)])
    mu = each.mean(dim=0)
    exact = float(((each - mu) ** 2).sum() / SAMPLES / (mu @ mu))
    reducer, noise = alone(model), NoiseScale(1e12)
    for _ in range(600):
        groups = [rows.tolist() for rows in torch.randint(SAMPLES, (120,)).split([8, 20, 36, 56])]
        step(reducer, model, data, groups, preconditioner)
        noise.update(reducer.local_sqr, reducer.mean_sqr(), reducer.groups, 120)
    assert noise.scale == pytest.approx(exact, rel=0.05)


def test_an_only_micro_batch_is_not_measured_and_one_without_samples_is_no_group(
    model: torch.nn.Module, data: Data
) -> None:
    reducer = alone(model)
    step(reducer, model, data, GROUPS[:1])
    assert (reducer.groups, reducer.local_sqr) == (1, 0.0)
    reducer.begin(measure=True)
    reducer.expect(last=True, weight=0.0)
    (loss_of(model, data, [0]) * 0.0).backward()
    reducer.passed()
    assert (reducer.groups, reducer.local_sqr) == (0, 0.0)
    assert not gradients_of(model).any()


def test_what_was_given_up_is_never_written_to_again(model: torch.nn.Module, data: Data) -> None:
    reducer = alone(model)
    step(reducer, model, data, GROUPS[:1])
    stale = [bucket.flat for bucket in reducer.buckets]
    kept = [flat.clone() for flat in stale]
    reducer.give_up()
    step(reducer, model, data, GROUPS[1:2])
    torch.testing.assert_close(gradients_of(model), gradient(model, data, GROUPS[1]))
    torch.testing.assert_close(stale, kept)


def test_a_parameter_without_a_gradient_is_named(data: Data) -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(6, 1), "idle": torch.nn.Linear(6, 1)}).double()
    reducer = alone(model)
    reducer.begin(measure=False)
    reducer.expect(last=True, weight=1.0)
    loss_of(model["used"], data, range(4)).backward()
    with pytest.raises(InvalidSpec, match=r"2 parameters got no gradient from the loss, idle\.bias for one"):
        reducer.passed()


def test_a_second_gradient_in_one_backward_pass_is_refused_before_it_is_sent(data: Data) -> None:
    model = torch.nn.Linear(6, 6).double()
    reducer = alone(model)
    reducer.begin(measure=False)
    reducer.expect(last=True, weight=1.0)
    inputs = data[0].clone().requires_grad_()
    twice = checkpoint(model, checkpoint(model, inputs, use_reentrant=True), use_reentrant=True)
    with pytest.raises(InvalidSpec, match=r"(weight|bias) got two gradients in one backward pass.*use_reentrant=False"):
        twice.sum().backward()
