"""All that a state knows, as one value: what is saved so that a long journal need not be read from its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.memo import Memo
from fairlead.core.types import Belief, Job, Node


@dataclass(frozen=True, slots=True)
class Facts:
    """`State.facts()` makes it, `State.of(facts)` is that state again, and `codec` gives it a JSON form."""

    now: float
    fair_gpu_s: float
    nodes: tuple[Node, ...]
    released: tuple[str, ...]
    coming: tuple[str, ...]
    #: In order of arrival, and as they ended.
    live: tuple[Job, ...]
    finished: tuple[Job, ...]
    #: (queue, tenant, GPU-seconds, as of), and the half-life they fade with.
    usage: tuple[tuple[str, str, float, float], ...]
    half_life_s: float
    keep_finished: int | None
    lore: Mapping[str, Belief]
    #: What the policy wants to remember.
    memo: Memo = field(default_factory=dict)
