"""Time sharing in rounds: shares of wall time in, a plan out (Gavel, OSDI '20, section 5).

A policy that thinks in shares ("job a should hold V100s 40 % of the time and K80s 20 %") says what it owes to each
group of jobs on each GPU type, and `next_round` makes a plan of it. At the beginning of a round the groups are selected
that are furthest behind in the share received, next to the share owed; a deficit in seconds breaks ties. A group
that is selected again keeps exactly its GPUs, so an unchanged job never stops. Free GPUs go to groups that are owed
nothing at the moment as well. Within a round nothing that runs is moved or stopped; GPUs that become free are given out
at once, by the same priorities. The end of the round is the plan's `review_at`: the loop knows nothing of rounds.

All memory is `Plan.memo["rounds"]` (see `round_account`), so that a restart in the middle of a round goes on with the
same debts. What a job received is measured, never assumed: a start that takes long or a lost node is made good.

`GAVEL` are the options under which the mechanism does what Gavel's released scheduler does, and `SHOCKWAVE` what
Shockwave's does (NSDI '23). Ours differ where that is better for a user: accounts are never reset, so debts outlive the
arrival of other jobs; new jobs do not wait for a renewal of shares (up to 32 minutes in Gavel); and all GPU
types are served from one queue, as an order of types would let a job that is little owed on the first type pass one
that is owed more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Plan
from fairlead.policies.round_account import Account, Deadline, Group, Owed, Reset
from fairlead.policies.round_reasons import Remark, round_reasons
from fairlead.policies.round_selection import Candidate, Selection, bound_jobs, open_to
from fairlead.policies.wait_reason import Discipline, gpu_type_of

__all__ = ["GAVEL", "MECHANISMS", "SHOCKWAVE", "Group", "Owed", "RoundOptions", "next_round", "round_options"]

#: A round that ends within this share of its length ends now: clocks are not exact.
_ALMOST = 1e-9

_CHOICES = {"leftovers": ("give", "keep"), "queue": ("one", "by-type")}

_BY_DEADLINE = Deadline()

FURTHEST_BEHIND = Discipline("furthest behind its share first")


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """How rounds are made. The defaults are ours."""

    #: Length of a round, in seconds: from one selection to the next.
    round_s: float = 360.0
    #: How owed and received time is kept: `Deadline` or `Reset` (see `round_account`).
    account: Deadline | Reset = _BY_DEADLINE
    #: GPUs that are left once all that is owed was served: `give` them to any job, or `keep` them free.
    leftovers: str = "give"
    #: All GPU types from `one` queue, or `by-type`, one type after the other.
    queue: str = "one"

    def __post_init__(self) -> None:
        if not 0.0 < self.round_s < math.inf:
            raise InvalidSpec(f"rounds: round_s is {self.round_s}; expected a positive number of seconds")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidSpec(f"rounds: {name} is {getattr(self, name)!r}; expected {' or '.join(allowed)}")


#: Gavel's scheduler: shares are renewed every 32 minutes at most, when a job or a GPU came or went.
GAVEL = RoundOptions(360.0, Reset(renewal_s=1920.0), queue="by-type")
#: The copy of it in Shockwave's artifact.
SHOCKWAVE = replace(GAVEL, round_s=120.0, account=Reset(renewal_s=1000.0))

MECHANISMS = {"fairlead": RoundOptions(), "gavel": GAVEL, "shockwave": SHOCKWAVE}


def round_options(mechanism: str, round_s: float) -> RoundOptions:
    """Of a policy's options: the name of a mechanism, and the length of its rounds."""
    if mechanism not in MECHANISMS:
        raise InvalidSpec(f"mechanism is {mechanism!r}; expected {', '.join(MECHANISMS)}")
    return replace(MECHANISMS[mechanism], round_s=round_s)


def next_round(
    view: Snapshot,
    owed: Owed | Callable[[], Owed],
    rounds: RoundOptions,
    *,
    discipline: Discipline = FURTHEST_BEHIND,
    remark: Callable[[Job], Remark | None] | None = None,
) -> Plan:
    """Who runs where until the round ends, with reasons, and the memory of the mechanism in `Plan.memo["rounds"]`.

    `owed` has a share of wall time, 0 to 1, for each (group of jobs, GPU type). A share of 0 means that the group can
    run there, and is owed nothing; a type that is missing beside others means that it cannot; a job without any entry
    may fill what is left. `owed` may be a function: it is called only if the shares in force are to be renewed.
    `discipline` says what comes of the shares, for reasons, and `remark` what a policy has to add to that of a job.
    """
    account = Account.of(view)
    compute = owed if callable(owed) else lambda: owed
    # A round in which nothing runs any more is over.
    is_boundary = not view.allocations or view.now >= account.ends_at - _ALMOST * rounds.round_s
    rounds.account.update(account, view, compute, round_s=rounds.round_s, is_boundary=is_boundary)
    if is_boundary:
        account.ends_at = view.now + rounds.round_s
    queue = _queue(view, account, rounds)
    selection = Selection(view)
    selection.keep(bound_jobs(view) if is_boundary else list(view.allocations))
    waits_s = rounds.account.waits_s(account, view.now)
    for candidate in queue:
        if candidate.share <= 0.0 and rounds.leftovers == "keep":
            continue
        if candidate.is_new and waits_s is not None:
            selection.block(candidate)
        else:
            selection.take(candidate)
    allocations = selection.place()
    account.group = {
        job_id: selection.chosen[job_id].group if job_id in selection.chosen else account.group.get(job_id, (job_id,))
        for job_id in allocations
    }
    reasons = round_reasons(
        view,
        allocations,
        account,
        order=_served(queue, selection),
        discipline=discipline,
        is_boundary=is_boundary,
        renewal_s=waits_s,
        remark=remark,
    )
    review_at = account.ends_at if view.jobs else math.inf
    return Plan(allocations, reasons, packed=selection.packed(), review_at=review_at, memo=account.memo())


def _served(queue: Sequence[Candidate], selection: Selection) -> list[str]:
    """Jobs in the order in which they had their turn: with what was chosen, or with the last that was not."""
    place: dict[str, int] = {}
    for turn, candidate in enumerate(queue):
        for job_id in candidate.group:
            chosen = selection.chosen.get(job_id)
            if chosen is None or chosen is candidate:
                place[job_id] = turn
    return sorted(place, key=lambda job_id: place[job_id])


def _queue(view: Snapshot, account: Account, rounds: RoundOptions) -> list[Candidate]:
    """All that could run, the one that goes first first."""
    found: list[Candidate] = []
    held = {job_id: gpu_type_of(view, allocation) for job_id, allocation in view.allocations.items()}
    for group, gpu_type, share, is_new in open_to(view, account.owed):
        priority, deficit_s = rounds.account.standing(account, (group, gpu_type), rounds.round_s)
        gpus = view.jobs[group[0]].spec.gpus
        holds = any(held.get(job_id) == gpu_type for job_id in group)
        found.append(Candidate(group, gpu_type, gpus, priority, deficit_s, share, holds, is_new))
    kind = {name: place for place, name in enumerate(view.node_columns.gpu_types)}
    if rounds.queue == "by-type":
        return sorted(found, key=lambda each: (kind[each.gpu_type], *(-value for value in each.rank)))
    # Of those equally far behind, a group that runs goes on.
    return sorted(found, key=lambda each: (-each.priority, -each.deficit_s, not each.holds, -each.share))
