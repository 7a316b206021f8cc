"""States copied into the things they are of: in place where possible, since to allocate takes longer than to copy."""

from __future__ import annotations

from typing import Any

import torch


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
        return type(tree)((key, own(value)) for key, value in tree.items())
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
