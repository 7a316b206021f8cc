"""Why a job runs or waits in a round of the market: rounds it bought, the price of one, and what decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.reasons import PLACED, Reasons
from fairlead.policies.shockwave.memory import MarketMemory
from fairlead.policies.wait_reason import Discipline, Waits


def market_reasons(
    view: Snapshot,
    allocations: Mapping[str, Allocation],
    memory: MarketMemory,
    *,
    order: Sequence[str],
    window: int,
    is_boundary: bool,
    resizes: bool = False,
) -> Reasons:
    """Reasons of a plan made at the beginning of a round (`is_boundary`) or within one; `order` is that of service."""
    left_s = memory.ends_at - view.now
    until = f"the round ends in {left_s:.0f} s"
    rule = "rounds bought in the market first, then the longest job"
    waits = Waits(
        view,
        allocations,
        Discipline(rule, lambda: order, preempts=is_boundary, until="" if is_boundary else until, resizes=resizes),
    )

    def explain(job: Job) -> Reason:
        bought = memory.bought.get(job.id, 0)
        age_s = view.now - job.submitted_at
        received = job.run_at(view.now) / age_s if age_s > 0.0 else 0.0
        numbers = {
            "owed": bought / window,
            "received": received,
            "price": memory.price,
            "rounds_planned": bought,
            "rounds_to_come": memory.count.get(job.id, 0),
            "share_owed": bought / window,
            "round_left_s": left_s,
        }
        bids = f"{bought} of {window} rounds planned"
        if job.id not in memory.regimes:
            bids = "it came after the last purchase, and bids when the next round begins"
        figures = f"{bids}, price {memory.price:.3g} a GPU-round, has had {received:.0%} of the time since it came"
        allocation = allocations.get(job.id)
        if allocation is not None:
            verb = "keeps" if job.allocation == allocation else "gets"
            text = f"{verb} {counted(allocation.total, 'GPU')}: {allocation}; {until} ({figures})"
            return Reason(PLACED, text, {"gpus": allocation.total, **numbers})
        found = waits.reason(job)
        return Reason(found.code, f"{found.text}; {until} ({figures})", {**found.numbers, **numbers}, found.jobs)

    return Reasons(view, explain)
