"""Why a job runs or waits in a round of the market: rounds it bought and received, the price, and what decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.reasons import PLACED, Reasons
from fairlead.policies.shockwave.memory import MarketMemory
from fairlead.policies.wait_reason import Discipline, Waits, is_bound, nothing_to_share


def market_reasons(
    view: Snapshot,
    allocations: Mapping[str, Allocation],
    memory: MarketMemory,
    *,
    order: Sequence[str],
    window: int,
    is_boundary: bool,
    reference_ends: Callable[[], Mapping[str, float]] | None = None,
) -> Reasons:
    """Reasons of a plan made at the beginning of a round (`is_boundary`) or within one; `order` is that of service.

    `reference_ends` tells of elastic jobs when each would end with 1/N of the cluster.
    """
    left_s = memory.ends_at - view.now
    until = f"the round ends in {left_s:.0f} s"
    resizes = reference_ends is not None
    rule = "rounds bought in the market first, then the longest job"
    if resizes:
        rule = f"jobs that would miss a deadline first, then {rule.replace(' first', '')}"
    elapsed = memory.rounds_since
    waits = Waits(
        view,
        allocations,
        Discipline(rule, lambda: order, preempts=is_boundary, until="" if is_boundary else until, resizes=resizes),
    )

    none_left = nothing_to_share(view)

    def explain(job: Job) -> Reason:
        bought = memory.bought.get(job.id, 0)
        received = memory.received.get(job.id, 0)
        numbers = {
            "owed": bought / window,
            "received": received / elapsed if elapsed else 0.0,
            "price": memory.price,
            "rounds_planned": bought,
            "rounds_to_come": memory.count.get(job.id, 0),
            "rounds_received": received,
            "round_left_s": left_s,
        }
        figures = _figures(job, memory, window, none_left=none_left)
        if reference_ends is not None and math.isfinite(end := reference_ends().get(job.id, math.inf)):
            numbers["reference_end_s"] = end - view.now
            when = f"end in {end - view.now:.0f} s" if end >= view.now else f"have ended {view.now - end:.0f} s ago"
            figures += f"; with an equal share of the cluster it would {when}"
        allocation = allocations.get(job.id)
        if allocation is not None:
            verb = "keeps" if job.allocation == allocation else "gets"
            text = f"{verb} {counted(allocation.total, 'GPU')}: {allocation}; {until} ({figures})"
            return Reason(PLACED, text, {"gpus": allocation.total, **numbers})
        found = waits.reason(job)
        return Reason(found.code, f"{found.text}; {until} ({figures})", {**found.numbers, **numbers}, found.jobs)

    return Reasons(view, explain)


def _figures(job: Job, memory: MarketMemory, window: int, *, none_left: str) -> str:
    """What a job bought and received, or why it is not in the market."""
    if is_bound(job):
        return "it must not be stopped, and takes no part in the market"
    if none_left:
        return f"no rounds are for sale: {none_left}"
    if job.id not in memory.regimes:
        return "it came after the last purchase, and bids when the next round begins"
    return (
        f"bought {memory.bought.get(job.id, 0)} of {counted(window, 'round')}, "
        f"received {memory.received.get(job.id, 0)} of {memory.rounds_since} so far, "
        f"at {memory.price:.3g} doublings of progress a GPU-round"
    )
