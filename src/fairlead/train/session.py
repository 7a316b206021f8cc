"""What a training script talks to: `job = fairlead.train.init()`, and then six lines of its loop.

    job = fairlead.train.init()
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(dataset, batch_size=64, max_batch_size=1024)
    for epoch in job.epochs(10):
        for inputs, labels in loader:
            loss = loss_of(model(inputs), labels)
            optimizer.zero_grad()
            job.backward(loss)
            optimizer.step()

A *step* is one update of the model, with the whole batch of all workers. Each worker passes its share of it through the
loop in one or more micro-batches; `optimizer.step()` does nothing but for the last one. Between two steps anything may
happen: workers come and go, the batch changes, the state is saved, the job is suspended or stopped. If a worker dies
within a step, the step is void: `optimizer.step()` does nothing, and the loader begins the same step again with
whoever is left. So the loop of a script knows nothing of all this, and no sample is lost or used twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NoReturn

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.train import numbers as place
from fairlead.train.agent import too_many
from fairlead.train.checkpoint import Store, signature_of
from fairlead.train.chronicle import Chronicle
from fairlead.train.ending import Ending
from fairlead.train.group import Broken, Group
from fairlead.train.guards import check_loss, check_rates, following, guarded_scaler, nothing, rate_of, scaled_rates
from fairlead.train.keeper import Keeper
from fairlead.train.link import Link, Plan
from fairlead.train.loader import Loader, as_told, batch_of, make_loader, schedule_of
from fairlead.train.membership import Membership
from fairlead.train.meter import Meter
from fairlead.train.noise import Preconditioner
from fairlead.train.parts import Parked, Parts, check_parts
from fairlead.train.progress import Micro, Progress
from fairlead.train.reducer import Reducer
from fairlead.train.resumption import Resumption, StartOptions
from fairlead.train.retuning import UNCHANGED, Retuning
from fairlead.train.rules import Moment, Rule, default_rule
from fairlead.train.rules import rule as find_rule
from fairlead.train.source import Streamed
from fairlead.train.transfer import hand_over, meet, room_for
from fairlead.train.tuner import Tuner
from fairlead.train.wire import TOKEN


class Job:
    """One worker's part in a training job."""

    def __init__(self, link: Link, *, seed: int, store: Store | None, save_every_s: float, start: StartOptions) -> None:
        self.seed = seed
        self.progress = Progress()
        #: Of the last step, the mean over all workers.
        self.loss = float("nan")
        self._link = link
        self._keeper = Keeper(store, save_every_s, lambda: self._resumption.marked(self), self._unsaved)
        self._members = Membership(link, self._enter, self._go_on, self._leave, lambda: room_for(self.state()))
        self._reducer: Reducer | None = None
        self._parts = Parts()
        self._resumption = Resumption(self._keeper, link, self._parts, start)
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._micro: Micro | None = None
        self._void = self._reduced = False
        self._numbers = torch.zeros(place.FIRST_RANK + 1, dtype=torch.float64)
        self.tuner: Tuner | None = None
        self._rule: Rule | None = None
        self._preconditioner: Preconditioner | None = None
        #: How many there should be; 0 outside of `epochs`.
        self._epochs = 0
        self._total = 0
        self._loader: Loader | None = None
        self._chronicle, self.meter = Chronicle(), Meter()
        self._scaler: torch.amp.GradScaler | None = None
        self._retuning: Retuning | None = None
        self._stepped = self._finishing = False
        self.ending = Ending(self._save_whole, link.nudge)

    # -- what a script uses --------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._members.group.rank if self._members.group else 0

    @property
    def world(self) -> int:
        return self._members.group.world if self._members.group else 1

    @property
    def _plan(self) -> Plan:
        assert self._members.group is not None
        return self._members.group.plan

    @property
    def on_gpu(self) -> bool:
        """The model is."""
        return self._model is not None and any(parameter.is_cuda for parameter in self._model.parameters())

    @property
    def leader(self) -> bool:
        """The one that should print and write; never more than one."""
        plan = self._members.group.plan if self._members.group else self._link.plan
        return plan is not None and plan.members[0] == self._link.name

    @property
    def name(self) -> str:
        """Of this worker, for its agent."""
        return self._link.name

    @property
    def generation(self) -> str:
        """Of the workers that train together, unlike any other of this job."""
        return f"{os.environ.get(TOKEN, '')[:8]}-{self._plan.generation}"

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    @property
    def passes(self) -> float:
        """Over the data so far, with the part of the present one."""
        return self.progress.passes(self.tuner.length) if self.tuner is not None else 0.0

    @property
    def step_samples(self) -> int:
        """The batch of the present step, over all workers."""
        return self._total

    @property
    def noise_scale(self) -> float | None:
        """Samples of a batch whose gradient is half noise, as measured so far; only where the batch may change."""
        return self.tuner.noise.scale if self.tuner is not None else None

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        scheduler_every: str = "epoch",
        rule: str | None = None,
        warmup_steps: float | None = None,
        **others: Any,
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Take care of a model and its optimiser, and of anything else that has a `state_dict`.

        `rule` says how learning rates follow the batch: adascale, adamscale, linear, sqrt, legw or none. A `scheduler`
        counts updates at the initial batch, or epochs of them, whatever the batch is.
        """
        if self._model is not None:
            raise InvalidSpec("job.wrap was called twice; a job trains one model with one optimiser")
        if scheduler_every not in ("epoch", "step"):
            raise InvalidSpec(f"job.wrap: scheduler_every is {scheduler_every!r}; expected epoch or step")
        every = {**others, **({} if scheduler is None else {"scheduler": scheduler})}
        plain = getattr(model, "_orig_mod", model)  # of a compiled model, whose parameters have other names
        check_parts(plain, optimizer, every)
        self._model, self._optimizer = plain, optimizer
        self._parts.add(model=plain, optimizer=optimizer, **every)
        try:
            self._rule = find_rule(rule or default_rule(optimizer), warmup_steps=warmup_steps)
        except InvalidSpec as error:
            raise InvalidSpec(f"job.wrap: {error}") from None
        self._reducer = Reducer(list(plain.named_parameters()), Group(Plan(0, ("",), ("",)), 0, None))
        self._preconditioner = Preconditioner(optimizer)
        self._resumption.note_optimizer(optimizer, rule=self._rule.name)
        if self._keeper.store is not None:
            self._keeper.store.signature = signature_of(plain.state_dict())
        optimizer.step = self._guarded(optimizer.step)  # type: ignore[method-assign]
        optimizer.zero_grad = nothing  # type: ignore[method-assign]
        if scheduler is not None and not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step = following(
                scheduler,
                lambda: self._done(scheduler_every),
                too_often=lambda: scheduler_every == "epoch" and self._reduced,
            )
        self._scaler = guarded_scaler(
            every.values(), lambda: self._reduced or (self._micro is not None and self._micro.rehearsal)
        )
        return model, optimizer

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        max_batch_size: int | None = None,
        per_gpu: tuple[int, int | None] = (1, None),
        reproducible: bool = False,
        virtual_shards: int = 8,
        schedule: str | None = None,
        shuffle: bool = True,
        length: int | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Any:
        """The data set in batches of `batch_size` samples over all workers.

        With `max_batch_size` the batch may grow that far, as the `schedule` says: goodput (unless stated), doubling,
        accordion or fixed. In `reproducible` mode neither the batch nor the order of samples nor the random numbers
        ever depend on the number of workers. Data that can only be iterated over is read in its own order, up to
        `length` samples in an epoch. `num_workers` and `collate_fn` are as of a `DataLoader`.
        """
        if self._rule is None:
            raise InvalidSpec("job.loader was called before job.wrap; call job.wrap(model, optimizer) first")
        if self.tuner is not None:
            raise InvalidSpec("job.loader was called twice; for data to evaluate on use an ordinary DataLoader")
        batch_size, max_batch_size = as_told(batch_size, max_batch_size)
        try:
            batch = batch_of(batch_size, max_batch_size, per_gpu, reproducible=reproducible)
            chosen = schedule_of(schedule, max_batch_size)
        except InvalidSpec as error:
            raise InvalidSpec(f"job.loader: {error}") from None
        shards = virtual_shards if reproducible else None
        loader = make_loader(
            self, dataset, batch, collate_fn, shards=shards, shuffle=shuffle, length=length, processes=num_workers
        )
        most = virtual_shards if reproducible else (max_batch_size or batch_size) // batch.min_per_gpu
        moment = Moment.of(self._optimizer)
        self.tuner = Tuner(batch, loader.source.length, self._rule, moment, chosen, most_workers=most)
        self._retuning = Retuning(self.tuner)
        self._parts.add(tuner=self.tuner)
        self._parts.data = {"samples": loader.source.length, "seed": self.seed, "shuffle": shuffle}
        self._resumption.note_data(batch, shards, **self._parts.data)
        if isinstance(loader.source, Streamed):
            self._parts.add(stream=loader.source)
        self._loader = loader
        return loader

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, until `count` epochs at the initial batch would have made as much progress.

        A worker that comes late is told the epoch that the others were in when it came; see `job.epoch`.
        """
        if self.tuner is None:
            raise InvalidSpec("job.epochs was called before job.loader; make the loader first")
        if count < 1:
            raise InvalidSpec(f"job.epochs({count}): expected at least one epoch")
        self._epochs = count
        self._resumption.epochs = self._resumption.epochs or count
        if self._link.running:
            yield self._link.epoch
        if not self.joined:  # or if it has left its rehearsal by a break
            self.boundary()
        while not self.finished:
            yield self.progress.epoch
        self._finish()

    @property
    def finished(self) -> bool:
        """All epochs are done, or a worker has called `finish`."""
        return self.progress.over or self.reaches_end(self.progress)

    def reaches_end(self, progress: Progress) -> bool:
        """All epochs would be done there."""
        assert self.tuner is not None
        return progress.reached(self._epochs, epoch_steps=self.tuner.epoch_steps if self.tuner.adaptive else None)

    def finish(self) -> None:
        """It is enough, though there are epochs left: the loop ends after the next step, for all, and it is saved."""
        if self._micro is not None and self._micro.rehearsal:
            return  # it knows nothing yet
        self._finishing = True
        if self.world == 1:
            self.progress.over = True

    def backward(self, loss: torch.Tensor) -> None:
        """Instead of `loss.backward()`. The loss is the mean over the samples that the loader gave."""
        micro, reducer = self._micro, self._reducer
        if micro is None or reducer is None:
            raise InvalidSpec("job.backward was called outside of a loop over the loader that job.loader returns")
        check_loss(loss)
        if self._void:
            return
        reducer.expect(last=micro.last, weight=micro.weight)
        (loss * micro.weight).backward()  # type: ignore[no-untyped-call]
        reducer.passed()
        self._numbers[place.LOSS] += float(loss.detach()) * micro.weight / self._loss_scale
        if not micro.last:
            return
        if micro.rehearsal:
            micro.complete = True
            return
        self._say_numbers()
        self._chronicle.enter("waiting")
        try:
            reducer.finish(self._numbers)
            micro.complete = self._reduced = True
        except Broken:
            self._void = True
            reducer.give_up()
            return
        self._chronicle.enter("scripting")  # the script may evaluate, for as long as it likes
        self.loss = float(self._numbers[place.LOSS])
        check_rates(self._numbers, self.world, rate_of(self._optimizer))
        assert self.tuner is not None
        if not self.leader:
            self.tuner.remember(self._numbers[place.SCHEDULE : place.FIRST_RANK].tolist())
        self.meter.learn(
            self._numbers, self.tuner.noise, reducer, self._total, leader=self.leader, loss_scale=self._loss_scale
        )

    # -- between two steps ---------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Whatever must not happen within a step."""
        self._chronicle.enter("waiting")
        if self.joined and not self._void:
            self._heed()
        if not self.joined:
            self._join()
        elif self._void or self._members.broken:
            self._members.rejoin()
        elif self._members.next_is_ready and (self.world == 1 or self._numbers[place.READY] >= self.world):
            self._members.change()
        assert self._retuning is not None
        self._retuning.look(self._plan, self.progress, leads=self.leader)
        self._report()
        self._numbers = torch.zeros(place.FIRST_RANK + self.world, dtype=torch.float64)
        if self.leader:
            self._keeper.save_if_due()
        if self._members.prepare() and self.leader:
            self._retuning.prepare(self._members.next_plan, self.progress)

    def commit(self) -> None:
        """The step is done: its samples have been used."""
        with self.ending.quiet:
            self._advance()
        self._record_times()

    def _advance(self) -> None:
        assert self.tuner is not None
        progress, total = self.progress, self._total
        progress.position += total
        if progress.position >= self.tuner.length:
            self.end_epoch()
        progress.step += 1
        progress.scale_invariant += self.tuner.count(total)
        self._reduced = self._stepped = False

    def end_epoch(self) -> None:
        """The data has ended, sooner than expected."""
        self.progress.epoch, self.progress.position = self.progress.epoch + 1, 0

    def begin(self, micro: Micro, *, first: bool, total: int) -> None:
        """The loader is about to give a micro-batch, of a step of `total` samples, to the loop."""
        assert self._reducer is not None
        if first:
            self._void = self._reduced = False
            self._total = total
            adaptive = self.tuner is not None and self.tuner.adaptive
            measure = self.meter.begin(self.progress.step, adaptive=adaptive)
            self._reducer.begin(measure=measure, preconditioner=self._preconditioner)
            self._chronicle.enter("computing")
        self._micro = micro

    @property
    def begun(self) -> bool:
        """Within `epochs`."""
        return self._epochs > 0

    @property
    def joined(self) -> bool:
        """A member of a generation."""
        return self._members.group is not None

    @property
    def reduced(self) -> bool:
        """The gradients of the present step are complete, so it counts."""
        return self._reduced

    @property
    def shares(self) -> list[float]:
        """How much of a step each member takes."""
        assert self.tuner is not None
        return self.tuner.speeds.shares(self._plan.members)

    @property
    def void(self) -> bool:
        """The step cannot be completed: it has to begin again."""
        return self._void or (not self._reduced and self._members.broken)

    def _join(self) -> None:
        """For the first time."""
        assert self.tuner is not None
        plan, most = self._link.plan, self.tuner.most_workers
        if plan is not None and plan.world > most:
            raise InvalidSpec(too_many(plan.world, most))
        if plan is None or self._link.name not in plan.members:
            self._link.say("ready", most=most)
        self._members.rejoin()

    def _enter(self, group: Group) -> None:
        """Make sure that everybody has the state of whoever is furthest, and go on together."""
        meeting = meet(group, step=self.progress.step if self.ending.has_state else None)
        if meeting.nobody_knows and group.rank == 0:
            self._resumption.start(self)
        if meeting.needy:
            knows = group.rank in meeting.donors
            state = hand_over(group, meeting.donors, self.state() if knows else None, local=meeting.local)
            if state is not None:
                self.load(state)
        self.ending.has_state = True
        self._keeper.put_off()
        assert self._retuning is not None
        split = self._retuning.split_for(group.plan, self.progress) if group.rank == 0 else UNCHANGED
        told = torch.tensor(split, dtype=torch.int64)
        group.broadcast(told, 0)
        self._change_to(group, int(told[0]), int(told[1]))

    def _go_on(self, group: Group) -> None:
        """With some of those who have done the last step together, as the leader said beside its gradients."""
        numbers = self._numbers
        assert self._retuning is not None
        if self.world == 1:
            split = self._retuning.split_for(group.plan, self.progress)
            numbers[place.THEIR_MICRO], numbers[place.THEIR_ACCUMULATION] = split
        self._change_to(group, int(numbers[place.THEIR_MICRO]), int(numbers[place.THEIR_ACCUMULATION]))

    def _change_to(self, group: Group, micro: int, accumulation: int) -> None:
        assert self._reducer is not None
        assert self.tuner is not None
        self._reducer.group = group
        self._void = False
        self.progress.per_gpu_batch, self.progress.accumulation = micro, accumulation
        self.tuner.profile.changed()
        self.meter.changed()
        self._chronicle.interrupted()
        self._link.say("joined", generation=group.plan.generation, step=self.progress.step, epoch=self.progress.epoch)

    def _say_numbers(self) -> None:
        """What everybody should know after this step."""
        assert self._reducer is not None
        assert self.tuner is not None
        numbers = self._numbers
        numbers[place.LOCAL_SQR], numbers[place.GROUPS] = self._reducer.local_sqr, self._reducer.groups
        numbers[place.READY] = float(self._members.next_is_ready)
        numbers[place.STOP], numbers[place.SUSPEND] = float(self.ending.stopping), float(self._link.suspended)
        numbers[place.FINISH] = float(self._finishing or self._link.finishing)
        numbers[place.RATE], numbers[place.RATE_SQR] = (rate := rate_of(self._optimizer)), rate * rate
        numbers[place.FIRST_RANK + self.rank] = self._chronicle.in_phase_s
        if self.leader:
            self.meter.tell(numbers, self.tuner.noise)
            assert self._retuning is not None
            numbers[place.MICRO], numbers[place.ACCUMULATION] = self._retuning.next_split
            numbers[place.THEIR_MICRO], numbers[place.THEIR_ACCUMULATION] = self._retuning.their_split
            numbers[place.SCHEDULE : place.FIRST_RANK] = torch.tensor(self.tuner.memory, dtype=torch.float64)

    def _record_times(self) -> None:
        """How long the step took, and each member's part of it."""
        assert self.tuner is not None
        assert self._loader is not None
        plan = self._plan
        compute_s = self._numbers[place.FIRST_RANK : place.FIRST_RANK + plan.world].tolist()
        pause_s = self._chronicle.step_done(self.tuner, plan, self.progress, self._loader.dealt(self._total), compute_s)
        if pause_s is not None and self.leader:
            self._link.say("paused", generation=plan.generation, world=plan.world, seconds=pause_s)

    def _heed(self) -> None:
        """What all members agreed on in the last step. Before anybody joins: whoever is new knows nothing of it."""
        numbers, progress = self._numbers, self.progress
        if numbers[place.STOP] > 0.0 or (self.world == 1 and self.ending.stopping):
            self._save_and_exit()
        progress.over = progress.over or bool(numbers[place.FINISH] > 0.0)
        if numbers[place.SUSPEND] > 0.0:
            self._sleep()
        if numbers[place.MICRO] > 0.0:
            progress.per_gpu_batch, progress.accumulation = int(numbers[place.MICRO]), int(numbers[place.ACCUMULATION])

    def _report(self, *, last: bool = False) -> None:
        """For the scheduler, once in a while."""
        if not self.leader:
            self._chronicle.forget()
            return
        if self.tuner is None or not (last or self._chronicle.report_is_due):
            return
        target = self._epochs * (self.tuner.epoch_steps if self.tuner.adaptive else 1.0)
        done = self.progress.scale_invariant if self.tuner.adaptive else self.passes
        fraction = min(1.0, done / max(target, 1e-9))
        report = self._chronicle.report(self.tuner, self._plan, self.progress, self._total, fraction)
        keeper = self._keeper
        saved_step = keeper.store.last_step if keeper.store is not None else None
        self._link.say(
            "report", saves=keeper.store is not None, save_s=keeper.last_save_s, saved_step=saved_step, **report
        )

    # -- the state -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that another worker needs to go on from here."""
        return {**self._parts.state(), "progress": asdict(self.progress)}

    def load(self, state: dict[str, Any], *, from_disk: bool = False) -> None:
        self._parts.load(state, from_disk=from_disk)
        self.progress = Progress(**state["progress"])
        if from_disk and self.tuner is not None:
            self.tuner.speeds.forget()  # of workers that are gone, and whose names others may have

    # -- ending --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Training is over."""
        self._link.say("done")
        if self._resumption.complete_at != self.progress.step:
            self._save()
        self._report(last=True)

    def _leave(self) -> NoReturn:
        self._link.say("left", step=self.progress.step, finish=self._finishing)
        self.ending.leave()

    def _save(self) -> None:
        """Between two steps."""
        with self.ending.quiet:
            self._save_now()

    def _save_now(self) -> None:
        if self.leader and self.ending.has_state:
            self._keeper.save()

    def _save_whole(self) -> None:
        """In the middle of a step, while nobody changes anything: if its update is made, it counts."""
        if self._stepped:
            self._advance()
        self._save_now()

    def _unsaved(self, why: str) -> None:
        self._link.say("unsaved", step=self.progress.step, why=why)

    def _save_and_exit(self) -> None:
        self._save()
        self._report(last=True)
        self.ending.preempted()

    def _sleep(self) -> None:
        """Until the job is resumed or stopped. The process stays warm, but its GPU is free."""
        assert self._model is not None
        assert self._optimizer is not None
        assert self._reducer is not None
        self._chronicle.enter("waiting")
        self._reducer.release()
        parked = Parked(self._model, self._optimizer)
        self._link.say("suspended", step=self.progress.step)
        self._link.wait(lambda: not self._link.suspended or self.ending.stopping)
        parked.back()
        self._reducer.renew()
        self._chronicle.interrupted()
        self._link.say("resumed", step=self.progress.step)

    # -- small things --------------------------------------------------------------------------------------------

    def _guarded(self, step: Any) -> Any:
        """The optimiser's step, but only if the gradients are complete."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            micro, tuner = self._micro, self.tuner
            assert self._optimizer is not None
            if micro is None or not micro.complete:
                return None
            with self.ending.quiet:
                micro.complete = False
                self._stepped = not micro.rehearsal
                factor = 1.0
                if tuner is not None and not micro.rehearsal:
                    factor = tuner.factor(self._total, self.progress.scale_invariant)
                with scaled_rates(self._optimizer, factor):
                    return step(*args, **kwargs)

        guarded._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or else schedulers warn of a wrapper
        return guarded

    def _done(self, every: str) -> float:
        """Updates at the initial batch, or epochs of them, with the one that is being made."""
        assert self.tuner is not None
        if every == "epoch" and not self.tuner.adaptive:
            return float(self.progress.epoch)
        done = self.progress.scale_invariant + (self.tuner.gain(self._total) if self._reduced else 0.0)
        return done if every == "step" else done / self.tuner.epoch_steps

    @property
    def _loss_scale(self) -> float:
        """By what the script multiplies its loss before it gives it to us."""
        return float(self._scaler.get_scale()) if self._scaler is not None and self._scaler.is_enabled() else 1.0

    def beat(self) -> dict[str, Any]:
        """Where this worker is, for its agent."""
        return self._chronicle.beat(self.progress)
