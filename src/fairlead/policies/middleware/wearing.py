"""What every policy that wears another has to do, whatever it is for."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from fairlead.core.loop import Policy


def pass_on(wearer: Any, inner: Policy) -> None:
    """Let the wearer declare what the inner policy declares. For `__post_init__` of a frozen dataclass."""
    object.__setattr__(wearer, "adapts", getattr(inner, "adapts", "nothing"))
    object.__setattr__(wearer, "needs_oracle", bool(getattr(inner, "needs_oracle", False)))


def twin(policy: Policy) -> Policy:
    """The same policy without its memories, and so everything it wears: for what-ifs, which nobody should remember."""
    if not is_dataclass(policy) or isinstance(policy, type):
        return policy
    if getattr(policy, "wears", False):
        return replace(policy, inner=twin(policy.inner))  # that is what it means to wear
    return replace(policy)
