"""What every policy that wears another has to do, whatever it is for."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.core.capability import Capability, needs_of
from fairlead.core.loop import Policy
from fairlead.policies.tiresias import Tiresias


@dataclass(frozen=True)
class Wearer:
    """A policy around a policy. It declares what the inner one declares; what fields a subclass adds are options."""

    wears = True

    #: The policy that plans.
    inner: Policy = field(default_factory=Tiresias)
    #: As the inner policy says.
    adapts: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapts", getattr(self.inner, "adapts", "nothing"))

    @property
    def needs(self) -> frozenset[Capability]:
        return needs_of(self.inner)
