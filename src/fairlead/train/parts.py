"""What a job trains and saves: whether it can, and its state copied into it.

In place where possible, since to allocate takes longer than to copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fairlead.core.errors import InvalidSpec

#: Where a checkpoint says of which run it is.
ORIGIN = "origin"

#: Names of parts that a job has itself.
OURS = ("model", "optimizer", "tuner", "progress", "stream", "kinds", "data", ORIGIN)


def check_parts(model: torch.nn.Module, optimizer: torch.optim.Optimizer, others: Mapping[str, Any]) -> None:
    """Whether a job can train them; the error says what to do instead."""
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        given = f"{type(model).__name__}, {type(optimizer).__name__}"
        raise InvalidSpec(f"job.wrap({given}): expected a torch.nn.Module and then a torch.optim.Optimizer")
    _check_others(others)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        raise InvalidSpec(f"job.wrap: the model is a {type(model).__name__}; give the model itself, model.module")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidSpec("job.wrap: LBFGS evaluates the loss several times in a step; use another optimiser")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise InvalidSpec(f"job.wrap: {name or 'the model'} has sparse gradients; make it with sparse=False")
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise InvalidSpec(
                f"job.wrap: {name} is a SyncBatchNorm, which waits for workers that may be gone; use BatchNorm"
            )
    known = {id(parameter) for parameter in model.parameters()}
    for place, group in enumerate(optimizer.param_groups):
        if any(parameter.requires_grad and id(parameter) not in known for parameter in group["params"]):
            raise InvalidSpec(
                f"job.wrap: parameter group {place} of the optimiser has parameters that are not the model's; "
                "put all that is trained into one module"
            )


def _check_others(others: Mapping[str, Any]) -> None:
    for name, part in others.items():
        if name in OURS:
            raise InvalidSpec(f"job.wrap: {name} is a name that the job uses itself; give it another one")
        if isinstance(part, torch.optim.lr_scheduler.LRScheduler) and name != "scheduler":
            raise InvalidSpec(
                f"job.wrap: {name} is a {type(part).__name__}; give it as scheduler=, so that it is followed"
            )
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            raise InvalidSpec(
                f"job.wrap: {name} is a {type(part).__name__}, which has no state_dict to be saved; leave it out"
            )


class Parts:
    """Everything of a job that has a state, by name."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        #: What the order of samples depends on.
        self.data: dict[str, int | bool] = {}

    def add(self, **parts: Any) -> None:
        self._parts.update(parts)

    def __getitem__(self, name: str) -> Any:
        return self._parts[name]

    def get(self, name: str) -> Any | None:
        return self._parts.get(name)

    def state(self) -> dict[str, Any]:
        """The tensors are the parts' own, and change with them."""
        states = {name: part.state_dict() for name, part in self._parts.items()}
        if "scheduler" in states:  # torch gives all of a scheduler's attributes, and `step` is ours
            states["scheduler"] = {name: value for name, value in states["scheduler"].items() if name != "step"}
        return {**states, "kinds": self._kinds(), "data": self.data}

    def load(self, state: Mapping[str, Any], *, from_disk: bool) -> None:
        """Of the same parts, in another process or an earlier one. Raises InvalidSpec, and changes nothing, if they are
        others."""
        self.check_kinds(state)
        if not from_disk or state["progress"]["position"] > 0:  # between two epochs a job may get other data
            self._check_data(state)
        for name, part in self._parts.items():
            load_into(part, state[name])

    def _kinds(self) -> dict[str, str]:
        """A model is known by its parameters: in another class it is the same."""
        return {name: type(part).__name__ for name, part in self._parts.items() if name != "model"}

    def check_kinds(self, state: Mapping[str, Any]) -> None:
        """Raises InvalidSpec if a state is of other parts than these."""
        ours, theirs = self._kinds(), state["kinds"]
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                there, here = (f"a {kind[name]}" if name in kind else "absent" for kind in (theirs, ours))
                raise InvalidSpec(
                    f"the state to go on from is of another script: there {name} is {there}, here it is {here}; "
                    "give job.wrap what it was saved with, or name another directory of checkpoints"
                )

    def _check_data(self, state: Mapping[str, Any]) -> None:
        for name, value in self.data.items():
            if value != state["data"][name]:
                raise InvalidSpec(
                    "the state to go on from is of other data: "
                    f"there {name} is {state['data'][name]}, here it is {value}; "
                    "all workers need the same data and seed, and so does a job that goes on from a checkpoint"
                )


class Parked:
    """Model and optimiser in main memory while a job sleeps, so that others can use its GPU."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        states = [value for state in optimizer.state.values() for value in state.values()]
        tensors = [*model.parameters(), *model.buffers(), *(v for v in states if isinstance(v, torch.Tensor))]
        self._homes = [(tensor, tensor.device) for tensor in tensors if tensor.device.type != "cpu"]
        for tensor, _ in self._homes:
            tensor.data = tensor.data.cpu()
        if self._homes:
            torch.cuda.empty_cache()

    def back(self) -> None:
        for tensor, device in self._homes:
            tensor.data = tensor.data.to(device)


def load_into(part: Any, state: Any) -> None:
    """`part.load_state_dict(state)`, of tensors that are somebody else's."""
    if isinstance(part, torch.optim.Optimizer):
        groups, new = part.param_groups, state["param_groups"]
        if len(groups) == len(new) and _copied(part.state_dict()["state"], state["state"]):
            for mine, its in zip(groups, new, strict=True):
                mine.update({key: value for key, value in its.items() if key != "params"})
            return
    elif isinstance(part, torch.nn.Module) and _copied(part.state_dict(), state):
        return
    part.load_state_dict(own(state))


def own(tree: Any) -> Any:
    """The same with tensors of its own."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        copied = type(tree)((key, own(value)) for key, value in tree.items())
        if hasattr(tree, "_metadata"):  # the versions of a model's modules
            copied._metadata = tree._metadata  # type: ignore[attr-defined]
        return copied
    if isinstance(tree, list | tuple):
        return type(tree)(own(value) for value in tree)
    return tree


def _copied(mine: Any, state: Any) -> bool:
    """False, and nothing is copied, unless both have the same tensors at the same places."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    if not _matches(mine, state, pairs):
        return False
    with torch.no_grad():
        for a, b in pairs:
            a.copy_(b)
    return True


def _matches(a: Any, b: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        pairs.append((a, b))
        return True
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_matches(a[key], b[key], pairs) for key in a)
    return bool(a == b)
