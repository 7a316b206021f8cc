"""An example policy: the waiting job that promises the shortest run starts first, and waiting makes up for length.

    fairlead compare TRACE --cluster 8x4 --policies fifo,examples/shortest_first.py:ShortestFirst
    fairlead compare TRACE --cluster 8x4 --policies 'fifo examples/shortest_first.py:ShortestFirst:forgiveness=2'

A policy is a frozen dataclass with one method, `plan`. Its fields are its options, its docstring is its description.
docs/writing-a-policy.md tells the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.policies.filling import start_waiting, waiting
from fairlead.policies.reasons import queued_reasons


@dataclass(frozen=True)
class ShortestFirst:
    """The shortest promised run time starts first; nobody is preempted. A wide job can wait for ever."""

    #: Seconds of promised run time that one second of waiting makes up for; 0 forgives nothing.
    forgiveness: float = 0.0

    def __post_init__(self) -> None:
        # Refuse an option that cannot be meant here, before anything runs. InvalidSpec becomes exit code 2.
        if not 0 <= self.forgiveness < math.inf:
            raise InvalidSpec(f"ShortestFirst: forgiveness is {self.forgiveness}; expected a number of at least 0")

    def plan(self, view: Snapshot) -> Plan:
        # Which jobs hold no GPUs, as indices into the columns, in order of arrival.
        queue = waiting(view)
        # The columns are numpy arrays with one entry per live job. A job without a promise has an estimate of inf.
        waited_s = view.now - view.columns.submitted_at_J[queue]
        rank = view.columns.estimate_s_J[queue] - self.forgiveness * waited_s
        # A stable sort leaves equals in order of arrival, so that the same snapshot always gives the same plan.
        order = queue[np.argsort(rank, kind="stable")]
        # Everyone who runs stays. With skip, a job that does not fit is passed by those behind it.
        allocations = start_waiting(view, order, skip=True)
        # Every live job gets a reason: where it runs, or what it waits for.
        return Plan(allocations, queued_reasons(view, allocations, "shortest promise first"))
