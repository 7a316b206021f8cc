"""What a policy needs of its world beyond GPUs, and what a world can do: the same words for both.

A policy declares `needs`, a backend `can`. What is needed and cannot be done is refused at the start, since at run time
it could only be ignored. A policy without a declaration needs nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.types import Plan


class Capability(enum.StrEnum):
    """One of them. A policy may name it by its text as well."""

    ORACLE = "oracle"
    PACKING = "packing"
    SUSPENSION = "suspension"
    RENTING = "renting"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Capability.ORACLE: "the true remaining time and step times of jobs, which only a simulation knows",
    Capability.PACKING: "several jobs on one GPU at once",
    Capability.SUSPENSION: "jobs that hold no GPU while their processes stay warm",
    Capability.RENTING: "nodes that can be given back and rented again",
}

#: What a simulation can do.
EVERYTHING = frozenset(Capability)


def needs_of(policy: object) -> frozenset[Capability]:
    """What a policy declares. Raises InvalidSpec for what is no such declaration."""
    name = getattr(policy, "__name__", type(policy).__name__)
    if hasattr(policy, "needs_oracle"):
        raise InvalidSpec(f'policy {name} declares needs_oracle; write needs = frozenset({{"oracle"}}) instead')
    declared: object = getattr(policy, "needs", ())
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise InvalidSpec(f"policy {name} declares needs = {declared!r}; expected a set of {_words()}")
    unknown = [each for each in declared if each not in list(Capability)]
    if unknown:
        raise InvalidSpec(f"policy {name} declares that it needs {unknown[0]!r}; expected one of {_words()}")
    return frozenset(map(Capability, declared))


def require(policy: object, can: frozenset[Capability], *, name: str, world: str) -> None:
    """Raise InvalidSpec, with the remedy, unless a world can do all that a policy needs."""
    lacking = sorted(needs_of(policy) - can)
    if lacking:
        what = " and ".join(f"{each} ({each.meaning})" for each in lacking)
        raise InvalidSpec(
            f"policy {name!r} needs what {world} cannot do: {what}. Choose a policy that does not need it "
            "(`fairlead policies` tells what each needs), or run this one with `fairlead simulate`"
        )


def used_by(plan: Plan) -> frozenset[Capability]:
    """What it takes to carry out a plan."""
    packs = {Capability.PACKING} if any(len(group) > 1 for group in plan.packed) else set()
    return frozenset(packs | ({Capability.RENTING} if plan.nodes is not None else set()))


def check_used(plan: Plan, can: frozenset[Capability]) -> None:
    """Raise InvalidPlan if it takes more to carry out a plan than there is."""
    for each in sorted(used_by(plan) - can):
        raise InvalidPlan(f"the plan needs {each} ({each.meaning}), which cannot be done here")


def _words() -> str:
    return ", ".join(Capability)
