"""Where samples come from, and what a script may do with them: the result is that of a plain loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

import torch
from alone import loss_of, make_model
from script import Points

import fairlead.train
from fairlead.core.errors import InvalidSpec
from fairlead.train.order import Order

pytestmark = pytest.mark.usefixtures("own_sigterm")


def train(
    data: Any,
    *,
    epochs: int = 2,
    compiled: Callable[[Any], Any] = lambda model: model,
    checkpoints: Path | None = None,
    stop_after: int | None = None,
    **options: Any,
) -> tuple[list[float], list[torch.Tensor]]:
    """The losses, and the weights in the end."""
    job = fairlead.train.init(checkpoints=checkpoints)
    model = compiled(make_model())
    model, optimizer = job.wrap(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loader = job.loader(data, **{"batch_size": 32, **options})
    losses = []
    for _ in job.epochs(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
            if job.reduced:
                losses.append(job.loss)
                if len(losses) == stop_after:
                    job.ending.stop(1e6)  # seconds: the thread that would save in their midst is not wanted here
    return losses, [parameter.detach() for parameter in model.parameters()]


def assert_same(
    found: tuple[list[float], list[torch.Tensor]], expected: tuple[list[float], list[torch.Tensor]]
) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    for mine, its in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-12)


# -- processes that fetch ahead ----------------------------------------------------------------------------------------


class Many(Points):
    """Gives a whole batch at once."""

    def __getitem__(self, place: int) -> Any:
        raise AssertionError("one by one")

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [Points.__getitem__(self, place) for place in places]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "per_gpu": (1, 10)}])
def test_samples_fetched_ahead_by_processes_are_the_same(options: dict[str, Any]) -> None:
    assert_same(train(Points(100), **options), train(Points(100), per_gpu=options.get("per_gpu", (1, None))))


def test_a_data_set_that_gives_many_samples_at_once_is_asked_for_many() -> None:
    assert_same(train(Many(100)), train(Points(100)))


def test_what_was_fetched_for_nothing_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch changes in the middle of an epoch, while the next ones have been fetched already."""
    from fairlead.train import retuning

    monkeypatch.setattr(retuning, "RETUNE_S", 0.0)
    options = {"batch_size": 4, "max_batch_size": 64, "schedule": "doubling", "epochs": 1}
    found = train(Points(1000), num_workers=2, **options)
    assert_same(found, train(Points(1000), **options))
    assert len(found[0]) < 1000 / 4


class Noisy(Points):
    """Random in all three ways that a data set may be."""

    def __getitem__(self, place: int) -> Any:
        point, target = super().__getitem__(place)
        return point + torch.randn(8) + random.random() + float(np.random.rand()), target


@pytest.mark.parametrize("workers", [0, 2])
def test_in_reproducible_mode_random_samples_do_not_depend_on_who_fetches_them(workers: int) -> None:
    random.seed(workers)
    np.random.seed(workers)
    found = train(Noisy(50), reproducible=True, num_workers=workers)
    assert_same(found, train(Noisy(50), reproducible=True))
    assert found[0][0] != found[0][2]  # the next epoch has other ones


# -- streams -----------------------------------------------------------------------------------------------------------


class Flow:
    """An iterable in the order of a data set that is shuffled, so that both can be compared."""

    def __init__(self, count: int) -> None:
        self.points, self.order, self.epoch, self.read = Points(count), Order(count, 0), 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for place in self.order.ids(self.epoch, 0, len(self.points)).tolist():
            self.read += 1
            yield self.points[place]


@pytest.mark.parametrize("length", [100, 1000])
def test_a_stream_trains_as_a_data_set_in_the_same_order(length: int) -> None:
    """Also if it ends sooner than expected."""
    assert_same(train(Flow(100), length=length), train(Points(100)))


class Resumable(Flow):
    """Can go on at any place of an epoch without reading what is before."""

    at = begin_at = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.begin_at = self.begin_at, 0
        for place in self.order.ids(self.epoch, self.at, len(self.points)).tolist():
            self.read += 1
            self.at += 1
            yield self.points[place]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin_at = state["at"]


@pytest.mark.parametrize(("kind", "read"), [(Flow, 100), (Resumable, 36)])
def test_a_stream_goes_on_in_the_middle_of_an_epoch(kind: type[Flow], read: int, tmp_path: Path) -> None:
    """By reading what is before, or at once if it can."""
    with pytest.raises(SystemExit) as ended:
        train(kind(100), length=100, checkpoints=tmp_path, stop_after=6)
    assert ended.value.code == 143
    again = kind(100)
    found = train(again, length=100, checkpoints=tmp_path)
    assert again.read == read
    assert_same(found, (train(Points(100))[0][6:], train(Points(100))[1]))


def test_a_stream_that_can_be_read_once_goes_on_as_long_as_there_is_something() -> None:
    points = Points(192)
    endless = (points[place % 192] for place in range(10**9))
    assert_same(train(endless, length=96), train(points, shuffle=False, epochs=1))
    with pytest.raises(InvalidSpec, match="gave no sample"):
        train(iter([]), length=100)


# -- mixed precision, compiled models ----------------------------------------------------------------------------------


def train_scaled(*, most: int | None, spoil: bool = False) -> tuple[list[float], list[torch.Tensor], float]:
    """With a gradient scaler, whose scale changes every second step."""
    job = fairlead.train.init()
    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model, optimizer = job.wrap(model, torch.optim.Adam(model.parameters(), lr=1e-2), scaler=scaler)
    loader = job.loader(Points(100), 32, per_gpu=(1, most))
    losses = []
    for _ in job.epochs(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(model, inputs, targets)
            job.backward(scaler.scale(loss * (float("inf") if spoil and job.progress.step == 3 else 1.0)))
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            scaler.step(optimizer)
            scaler.update()
            if job.reduced:
                losses.append(job.loss)
    return losses, [parameter.detach() for parameter in model.parameters()], scaler.get_scale()


@pytest.mark.parametrize("most", [None, 10])
def test_a_gradient_scaler_changes_nothing_and_grows_once_in_two_steps(most: int | None) -> None:
    """Also in several micro-batches, which must not be counted as steps, nor scaled differently."""
    losses, weights, scale = train_scaled(most=most)
    assert_same((losses, weights), train(Points(100)))
    assert scale == 1024.0 * 2 ** (len(losses) // 2)


def test_a_step_whose_gradients_are_infinite_is_left_out_and_the_scale_shrinks() -> None:
    losses, weights, scale = train_scaled(most=10, spoil=True)
    assert len(losses) == 8
    assert all(parameter.isfinite().all() for parameter in weights)
    assert scale == 1024.0 * 2**1 / 2 * 2**2  # three steps, one that failed, four more


def test_a_compiled_model_trains_alike_and_its_checkpoint_fits_the_plain_one(tmp_path: Path) -> None:
    plain = train(Points(100))
    compiled = train(
        Points(100), compiled=lambda model: torch.compile(model, backend="aot_eager"), checkpoints=tmp_path
    )
    assert_same(compiled, plain)
    again = train(Points(100), checkpoints=tmp_path)  # nothing is left to do
    assert again[0] == []
    assert_same(([], again[1]), ([], plain[1]))


def test_autocast_works() -> None:
    job = fairlead.train.init()
    model = make_model().float()
    model, optimizer = job.wrap(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loader = job.loader(Points(128), 32)
    losses = []
    for _ in job.epochs(4):
        for inputs, targets in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, inputs.float(), targets.float())
            optimizer.zero_grad()
            job.backward(loss)
            optimizer.step()
            losses.append(job.loss)
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
