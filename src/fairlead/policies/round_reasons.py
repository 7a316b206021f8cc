"""Why a job runs or waits in a round: the share of time it is owed, what it received, and what decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Allocation, Job, Reason
from fairlead.core.wording import counted
from fairlead.policies.reasons import PLACED, Reasons
from fairlead.policies.round_account import Account
from fairlead.policies.wait_reason import TOO_LARGE, Discipline, Waits, is_bound, nothing_to_share

#: The job came after the shares in force were computed, and waits for their renewal.
RENEWAL = "renewal"


class Remark(NamedTuple):
    """What a policy adds to the reason of a job, such as what it had to give up; and the figures it rests on."""

    text: str
    numbers: Mapping[str, float]


def round_reasons(
    view: Snapshot,
    allocations: Mapping[str, Allocation],
    account: Account,
    *,
    order: Sequence[str],
    discipline: Discipline,
    is_boundary: bool,
    renewal_s: float | None,
    remark: Callable[[Job], Remark | None] | None = None,
) -> Reasons:
    """Reasons of a plan that was made at the beginning of a round (`is_boundary`) or within one.

    `order` are the jobs as they were served, and `discipline` says what that order is; `renewal_s` are the seconds
    until a renewal of the shares is due, if jobs that are not in them have to wait for it.
    """
    left_s = account.ends_at - view.now
    until = f"the round ends in {left_s:.0f} s"
    suited = {(job_id, gpu_type) for group, gpu_type in account.owed for job_id in group}
    covered = {job_id for job_id, _ in suited}
    discipline = replace(
        discipline,
        order=lambda: order,
        preempts=is_boundary,
        until="" if is_boundary else until,
        suits=lambda job, gpu_type: job.id not in covered or (job.id, gpu_type) in suited,
    )
    waits = Waits(view, allocations, discipline)

    none_left = nothing_to_share(view)

    def explain(job: Job) -> Reason:
        owed = sum(share for (group, _), share in account.owed.items() if job.id in group)
        age_s = view.now - job.submitted_at
        received = job.run_at(view.now) / age_s if age_s > 0.0 else 0.0
        numbers = {"owed": owed, "received": received, "round_left_s": left_s}
        figures = f"owed {owed:.0%} of the time, has had {received:.0%} since it came"
        if is_bound(job):
            figures = f"it must not be stopped, and takes no turns; has had {received:.0%} of the time since it came"
        elif none_left:
            figures = f"no time is left to share: {none_left}"
        added = remark(job) if remark is not None else None
        then = until
        if added is not None:
            then, numbers = f"{until}; {added.text}", {**numbers, **added.numbers}
        allocation = allocations.get(job.id)
        if allocation is not None:
            verb = "keeps" if job.allocation == allocation else "gets"
            text = f"{verb} {counted(allocation.total, 'GPU')}: {allocation}; {then} ({figures})"
            return Reason(PLACED, text, {"gpus": allocation.total, **numbers})
        found = waits.reason(job)
        # Shares that rest on all jobs and GPUs of now leave out only a job that fits nowhere: no renewal helps it.
        is_new = account.changed and job.id not in covered and found.code != TOO_LARGE
        if renewal_s is not None and is_new:
            return _held_back(job, renewal_s, numbers, added)
        return Reason(found.code, f"{found.text}; {then} ({figures})", {**found.numbers, **numbers}, found.jobs)

    return Reasons(view, explain)


def _held_back(job: Job, wait_s: float, numbers: Mapping[str, float], added: Remark | None) -> Reason:
    text = (
        f"came after the shares in force were computed, and waits for their renewal: the first round that begins in "
        f"{wait_s:.0f} s or later{f'; {added.text}' if added is not None else ''}"
    )
    return Reason(RENEWAL, text, {"needs": job.spec.gpus, "wait_s": wait_s, **numbers})
