"""One worker alone: against a plain PyTorch loop, a batch that grows, and every mistake a script can make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install 'fairlead[train]'")

import torch
from alone import loss_of, make_model
from script import Points

import fairlead.train
from fairlead.core.errors import InvalidSpec
from fairlead.train import retuning
from fairlead.train.group import Group
from fairlead.train.link import Plan
from fairlead.train.order import Order

pytestmark = pytest.mark.usefixtures("own_sigterm")


def train_plainly(epochs: int, data: Points) -> torch.nn.Module:
    model = make_model()
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-3}], lr=1e-2
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    order = Order(len(data), 0)
    for epoch in range(epochs):
        for start in range(0, len(data), 32):
            ids = order.ids(epoch, start, min(start + 32, len(data)))
            inputs, targets = (torch.stack(parts) for parts in zip(*map(data.__getitem__, ids.tolist()), strict=True))
            optimizer.zero_grad()
            loss_of(model, inputs, targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        scheduler.step()
    return model


@pytest.mark.parametrize(("most", "rule"), [(None, None), (32, "linear"), (10, "sqrt"), (1, None)])
def test_a_job_alone_trains_like_a_plain_loop_however_small_its_micro_batches_are(
    most: int | None, rule: str | None
) -> None:
    """With clipping, weight decay, two parameter groups, a scheduler and the rest of an epoch."""
    data = Points(100)
    job = fairlead.train.init()
    model = make_model()
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-3}], lr=1e-2
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer = job.wrap(model, optimizer, scheduler=scheduler, rule=rule)
    loader = job.loader(data, 32, per_gpu=(1, most))
    for _ in job.epochs(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            job.backward(loss_of(model, inputs, targets))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        scheduler.step()
    for found, expected in zip(model.parameters(), train_plainly(3, data).parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def wrapped(model: torch.nn.Module | None = None, **options: Any) -> tuple[Any, Any, Any]:
    job = fairlead.train.init(**options)
    model = model or make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return job, *job.wrap(model, optimizer)


def run(job: fairlead.train.Job, model: torch.nn.Module, optimizer: Any, loader: Any, epochs: int) -> list[int]:
    """The batches it trained with."""
    batches = []
    for _ in job.epochs(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
            if job.reduced:
                batches.append(job.step_samples)
    return batches


def test_a_batch_that_may_grow_grows_and_fewer_steps_make_as_much_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retuning, "RETUNE_S", 0.0)
    job = fairlead.train.init()
    model = make_model()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(Points(1000), 4, max_batch_size=64, schedule="doubling")  # the noise scale is about 15
    batches = run(job, model, optimizer, loader, 1)
    assert batches[0] == 4
    assert max(batches) >= 8
    assert len(batches) < 1000 / 4
    assert job.progress.scale_invariant >= 1000 / 4
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2]  # schedulers see the initial one
    scale = job.tuner.noise.scale if job.tuner else None
    assert scale is not None
    assert scale > 0.0


def test_a_break_out_of_the_loop_loses_no_sample() -> None:
    job = fairlead.train.init()
    model = make_model()
    model, optimizer = job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = job.loader(Points(100), 10)
    epochs = job.epochs(2)
    next(epochs)
    for count, (inputs, targets) in enumerate(loader):
        job.backward(loss_of(model, inputs, targets))
        optimizer.step()
        if count == 3:
            break
    assert (job.progress.step, job.progress.position) == (4, 40)


def test_a_step_ends_with_its_epoch_and_the_next_one_begins_at_the_start() -> None:
    job, model, optimizer = wrapped()
    loader = job.loader(Points(10), 4)
    begun = []
    for _ in job.epochs(2):
        for inputs, targets in loader:
            begun.append((job.progress.epoch, job.progress.position, len(inputs)))
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
    assert begun == [(0, 0, 4), (0, 4, 4), (0, 8, 2), (1, 0, 4), (1, 4, 4), (1, 8, 2)]
    assert (job.progress.epoch, job.progress.position) == (2, 0)


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, r"job\.loader: batch_size is 0; expected a whole number of samples"),
        ({"batch_size": "64"}, "batch_size is '64'; expected a whole number"),
        ({"batch_size": 64, "max_batch_size": 1e3}, r"max_batch_size is 1000\.0; expected a whole number"),
        ({"batch_size": 64, "per_gpu": 8}, r"per_gpu is 8; expected the least and the most samples, such as \(1, 64\)"),
        ({"batch_size": 64, "max_batch_size": 32}, r"\(32\) is below the initial one \(64\); .* max_batch_size"),
        ({"batch_size": 64, "per_gpu": (8, 4)}, "per-GPU batch bounds are reversed: 8 to 4; .* per_gpu"),
        ({"batch_size": 64, "max_batch_size": 128, "reproducible": True}, "reproducible"),
        ({"batch_size": 64, "per_gpu": (65, 128)}, "the least of per_gpu is 65, but a step has 64 samples; lower it"),
        ({"batch_size": 64, "schedule": "doubling"}, "schedule is 'doubling', but .* state max_batch_size as well"),
        ({"batch_size": 64, "max_batch_size": 128, "schedule": "doubbling"}, r"job\.loader: schedule .* 'doubling'"),
    ],
)
def test_batches_that_contradict_each_other_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    job, _, _ = wrapped()
    with pytest.raises(InvalidSpec, match=named):
        job.loader(Points(10), **options)


def test_a_loop_that_forgets_something_is_told_what() -> None:
    job, model, optimizer = wrapped()
    loader = job.loader(Points(10), 2)
    with pytest.raises(InvalidSpec, match=r"outside of job\.epochs"):
        next(iter(loader))
    with pytest.raises(InvalidSpec, match=r"job\.epochs\(0\): expected at least one"):
        next(job.epochs(0))
    next(job.epochs(1))
    inputs, targets = next(batches := iter(loader))
    with pytest.raises(InvalidSpec, match=r"call job\.backward\(loss\) instead"):
        loss_of(model, inputs, targets).backward()
    optimizer.step()
    with pytest.raises(InvalidSpec, match=r"came round without job\.backward"):
        next(batches)
    with pytest.raises(InvalidSpec, match=r"job\.loader was called twice"):
        job.loader(Points(10), 2)


def test_a_loop_that_is_left_and_entered_again_goes_on() -> None:
    """With the loss of its own step, and what must happen between two."""
    losses: dict[bool, list[float]] = {}
    for left in (False, True):
        job, model, optimizer = wrapped()
        loader = job.loader(Points(40), 4)
        losses[left] = []
        for _ in job.epochs(1):
            for inputs, targets in loader:
                job.backward(loss_of(model, inputs, targets))
                optimizer.step()
                losses[left].append(job.loss)
                if left:
                    break
    assert losses[True] == losses[False]
    assert len(losses[True]) == 10


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    model = make_model()
    with pytest.raises(InvalidSpec, match=r"job\.wrap: rule .*adascale"):
        fairlead.train.init().wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), rule="adascal")


def test_things_in_the_wrong_order_are_refused_with_the_right_one() -> None:
    job = fairlead.train.init()
    with pytest.raises(InvalidSpec, match=r"before job\.wrap"):
        job.loader(Points(10), 2)
    with pytest.raises(InvalidSpec, match=r"before job\.loader"):
        next(job.epochs(1))
    with pytest.raises(InvalidSpec, match="outside of a loop"):
        job.backward(torch.zeros(()))
    job, model, optimizer = wrapped()
    with pytest.raises(InvalidSpec, match="twice"):
        job.wrap(model, optimizer)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Points(0), {}, "empty"),
        (7, {}, "int; expected one with __getitem__"),
        (iter([1, 2]), {}, "length is None; state how many samples"),
        (iter([1, 2]), {"length": 2, "num_workers": 1}, "num_workers is 1, but a list_iterator can only be iterated"),
        (Points(10), {"length": 5}, "length is for iterables"),
        (Points(10), {"num_workers": -1}, "num_workers is -1"),
        (torch.utils.data.DataLoader([1, 2]), {}, "give its data set"),  # type: ignore[arg-type]
    ],
)
def test_data_that_cannot_be_used_is_refused(data: Any, options: dict[str, Any], message: str) -> None:
    job, _, _ = wrapped()
    with pytest.raises(InvalidSpec, match=message):
        job.loader(data, 2, **options)


def with_sparse_words() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def with_strangers() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = make_model()
    return model, torch.optim.SGD([*model.parameters(), *make_model().parameters()], lr=1.0)


def with_history() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = make_model()
    return model, torch.optim.LBFGS(model.parameters())


def already_parallel() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = make_model()
    return torch.nn.DataParallel(model), torch.optim.SGD(model.parameters(), lr=1.0)


def with_statistics_of_all() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.SyncBatchNorm(4))
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_sparse_words, "0 has sparse gradients"),
        (with_strangers, "parameter group 0 .* not the model's"),
        (with_history, "LBFGS"),
        (already_parallel, r"DataParallel; .* model\.module"),
        (with_statistics_of_all, "1 is a SyncBatchNorm"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_what_to_do(make: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        fairlead.train.init().wrap(*make())


def test_a_parameter_without_a_gradient_is_named() -> None:
    class Unused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = torch.nn.Linear(8, 1).double(), torch.nn.Linear(8, 1).double()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)

    job, model, optimizer = wrapped(Unused())
    with pytest.raises(InvalidSpec, match=r"spare\.(weight|bias).*requires_grad=False"):
        run(job, model, optimizer, job.loader(Points(10), 2), 1)


def test_a_model_without_parameters_is_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.requires_grad_(False)
    with pytest.raises(InvalidSpec, match="nothing to train"):
        fairlead.train.init().wrap(model, optimizer)


def test_a_part_that_cannot_be_saved_is_named() -> None:
    model = make_model()
    with pytest.raises(InvalidSpec, match="counter is a dict"):
        fairlead.train.init().wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), counter={})


def test_a_name_that_the_job_uses_itself_is_refused() -> None:
    model = make_model()
    with pytest.raises(InvalidSpec, match="progress is a name"):
        fairlead.train.init().wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), progress=make_model())


def test_a_checkpoint_of_another_model_is_refused_and_stays(tmp_path: Path) -> None:
    job, model, optimizer = wrapped(checkpoints=tmp_path)
    run(job, model, optimizer, job.loader(Points(10), 2), 1)
    saved = sorted(tmp_path.iterdir())
    job, model, optimizer = wrapped(make_model(width=17), checkpoints=tmp_path)
    with pytest.raises(InvalidSpec, match=r"0\.weight"):
        run(job, model, optimizer, job.loader(Points(10), 2), 1)
    assert sorted(tmp_path.iterdir()) == saved


def test_a_model_and_an_optimiser_the_wrong_way_round_are_refused() -> None:
    model = make_model()
    with pytest.raises(InvalidSpec, match=r"job\.wrap\(SGD, Sequential\): expected a torch\.nn\.Module and then"):
        fairlead.train.init().wrap(torch.optim.SGD(model.parameters(), lr=1.0), model)  # type: ignore[arg-type]


def left_in_the_middle(tmp_path: Path, samples: int) -> None:
    """A checkpoint in the middle of an epoch."""
    job, model, optimizer = wrapped(checkpoints=tmp_path, seed=1)
    loader = job.loader(Points(samples), 2)
    for _ in job.epochs(1):
        for done, (inputs, targets) in enumerate(loader):
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
            if done == 2:
                job.finish()


@pytest.mark.parametrize(
    ("samples", "seed", "message"),
    [(11, 1, "there samples is 10, here it is 11"), (10, 2, "there seed is 1, here it is 2")],
)
def test_other_data_in_the_middle_of_an_epoch_is_refused(samples: int, seed: int, message: str, tmp_path: Path) -> None:
    left_in_the_middle(tmp_path, 10)
    job, _, _ = wrapped(checkpoints=tmp_path, seed=seed)
    job.loader(Points(samples), 2)
    with pytest.raises(InvalidSpec, match=message):
        list(job.epochs(1))


def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path: Path) -> None:
    left_in_the_middle(tmp_path, 10)
    model = make_model()
    job = fairlead.train.init(checkpoints=tmp_path, seed=1)
    job.wrap(model, torch.optim.RMSprop(model.parameters()))
    job.loader(Points(10), 2)
    with pytest.raises(InvalidSpec, match=r"there optimizer is a \w+, here it is a RMSprop; give job\.wrap what"):
        list(job.epochs(1))


def test_between_two_epochs_the_data_may_change_on_purpose(tmp_path: Path) -> None:
    job, model, optimizer = wrapped(checkpoints=tmp_path)
    run(job, model, optimizer, job.loader(Points(10), 2), 1)
    job, model, optimizer = wrapped(checkpoints=tmp_path, resume=True)
    run(job, model, optimizer, job.loader(Points(20), 2), 2)
    assert job.progress.step == 5 + 10


def test_in_reproducible_mode_speeds_are_of_what_each_was_dealt() -> None:
    job, _, _ = wrapped()
    loader = job.loader(Points(100), 10, reproducible=True, virtual_shards=4)
    job._members.group = Group(Plan(1, ("a", "b", "c"), ("n",) * 3), 0, None)
    assert loader.dealt(10) == [3 + 3, 2, 2]


def test_a_worker_for_whom_nothing_is_left_gets_samples_that_count_nothing() -> None:
    """Two of them: of one, batch norm makes nothing."""
    job, _, _ = wrapped()
    loader = job.loader(Points(100), 10)
    job._members.group = Group(Plan(1, ("a", "b", "c"), ("n",) * 3), 2, None)
    assert [(len(share.positions), share.weight) for share in loader._shares(2, step=0)] == [(2, 0.0)]


def test_a_job_goes_on_with_another_schedule(tmp_path: Path) -> None:
    job, model, optimizer = wrapped(checkpoints=tmp_path)
    run(job, model, optimizer, job.loader(Points(10), 2, max_batch_size=4, schedule="accordion"), 1)
    job, model, optimizer = wrapped(checkpoints=tmp_path)
    assert run(job, model, optimizer, job.loader(Points(10), 2, max_batch_size=4, schedule="doubling"), 2)


@pytest.mark.parametrize("loss", [0.5, torch.ones(3, requires_grad=True)])
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    job, _, _ = wrapped()
    loader = job.loader(Points(10), 2)
    for _ in job.epochs(1):
        for _ in loader:
            with pytest.raises(InvalidSpec, match="expected the loss as a tensor of one number, the mean"):
                job.backward(loss)
            return


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "a"}, "seed is 'a'; expected a whole number"),
        ({"save_every_s": "10"}, "save_every_s is '10'; expected seconds"),
        ({"grace_s": -1}, "grace_s is -1; expected seconds"),
    ],
)
def test_what_is_no_option_of_init_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        fairlead.train.init(**options)


def with_scheduler(**options: Any) -> tuple[Any, Any, Any, Any]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    job = fairlead.train.init()
    return job, *job.wrap(model, optimizer, scheduler=scheduler, **options), scheduler


def step_scheduler_in_every_step(job: Any, model: Any, optimizer: Any, scheduler: Any) -> None:
    loader = job.loader(Points(10), 5)
    for _ in job.epochs(2):
        for inputs, targets in loader:
            job.backward(loss_of(model, inputs, targets))
            optimizer.step()
            scheduler.step()


def test_a_scheduler_that_counts_epochs_is_not_called_in_every_step() -> None:
    with pytest.raises(InvalidSpec, match=r'within an epoch, .* scheduler_every="step"'):
        step_scheduler_in_every_step(*with_scheduler())
    *job, scheduler = with_scheduler(scheduler_every="step")
    step_scheduler_in_every_step(*job, scheduler)
    assert scheduler.last_epoch == 4


def test_a_scheduler_by_another_name_is_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(InvalidSpec, match="schedular is a ExponentialLR; give it as scheduler="):
        fairlead.train.init().wrap(model, optimizer, schedular=scheduler)
