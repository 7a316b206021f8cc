"""The order in which all of them go together.

    Window         outermost: everything below costs more for more jobs
    Drain          so far out that nobody below puts a job back onto a node that has to be empty
    Outsiders      so far out that nobody below sees, lends or exchanges a GPU that somebody outside uses
    LeastLoss      chooses among those that may be stopped, so it comes after who decides whether they may
    MinimumRun     leaves those alone that have just begun, whoever wants them gone
    Tenancy        says how much everybody may have, and who has to give
    ByPriority     of what everybody may have, who goes first
    SpareUnsaved   innermost: among equals nobody is stopped who would lose all its work

Autoscaling, if there is any, goes around all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.loop import Policy
from fairlead.policies.middleware.drain import Drain
from fairlead.policies.middleware.loss import LeastLoss
from fairlead.policies.middleware.minimum import MinimumRun
from fairlead.policies.middleware.outsiders import Outsiders
from fairlead.policies.middleware.priority import ByPriority
from fairlead.policies.middleware.queues import Queue
from fairlead.policies.middleware.tenancy import Tenancy
from fairlead.policies.middleware.unsaved import SpareUnsaved
from fairlead.policies.middleware.window import Window


def standard(
    inner: Policy,
    queues: Sequence[Queue] = (),
    *,
    minimum_run_s: float = 60.0,
    lead_s: float = 120.0,
    spare_unsaved: bool = True,
) -> Policy:
    """What a cluster that several people share should have around its policy."""
    innermost = SpareUnsaved(inner) if spare_unsaved else inner
    shared = MinimumRun(Tenancy(ByPriority(innermost), tuple(queues)), seconds=minimum_run_s)
    return Window(Drain(Outsiders(LeastLoss(shared, spare_s=minimum_run_s)), lead_s=lead_s))
