"""Why tenancy keeps a job waiting, or with fewer GPUs than were proposed, and who has them instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Job, Plan, Reason
from fairlead.core.wording import are, counted
from fairlead.policies.middleware.bounding import Bounds
from fairlead.policies.middleware.claims import NO_LIMIT, Claims
from fairlead.policies.middleware.judging import Verdict
from fairlead.policies.middleware.water import Ints
from fairlead.policies.reasons import Reasons

#: Another queue takes back what is guaranteed to it; or nothing is guaranteed that a job could keep for good.
QUOTA = "queue-quota"
#: The queue, or the user, may have no more, whoever else is there.
QUEUE_LIMIT, USER_LIMIT = "queue-limit", "user-limit"
#: The user has its share, and others have less than theirs.
FAIR_SHARE = "fair-share"
#: It has more than its share, because nobody else takes it now.
LENT = "lent"

#: A number in the reason `QUOTA`: how long the queue whose quota it is has waited.
OWNER_WAITS_S = "owner_waits_s"

#: Others that are named.
_NAMED = 3


@dataclass(frozen=True)
class Outcome:
    """All that is known when reasons are asked for."""

    found: Claims
    #: Jobs that may not begin, and how many GPUs there would be for each; by their ids.
    guarded: Mapping[str, int]
    #: Of what was proposed at first.
    verdict: Verdict
    #: None if nobody was bounded.
    bounds: Bounds | None
    #: What was proposed at first, and within the bounds; and what is planned.
    proposed: Mapping[str, Allocation]
    within: Plan
    planned: Mapping[str, Allocation]


def reasons(view: Snapshot, outcome: Outcome) -> Mapping[str, Reason]:
    """Of every job: ours, where tenancy changed something for it or kept it out, or else the inner policy's."""
    within = outcome.within
    ruled = any(queue.is_limited or queue.quota for queue in outcome.found.queues)
    if not ruled and outcome.bounds is None and not outcome.guarded and outcome.planned is within.allocations:
        return within.reasons
    used: list[Ints] = []  # by user, once somebody asks

    def explain(job: Job) -> Reason:
        if job.id in outcome.guarded:
            return _guarded(outcome, job)
        place = outcome.found.row[job.id]
        got, before, proposed = (
            allocations.get(job.id, NOTHING).total
            for allocations in (outcome.planned, within.allocations, outcome.proposed)
        )
        most = NO_LIMIT if outcome.bounds is None else int(outcome.bounds.most_J[place])
        as_proposed = got == before and most > 0 and (got >= proposed or most == NO_LIMIT)
        if as_proposed and (got or not ruled):
            return within.reasons[job.id]
        if not used:
            used.append(outcome.found.by_user(outcome.found.planned(Plan(outcome.planned))))
        if as_proposed:
            return _kept_out(outcome, place, used[0]) or within.reasons[job.id]
        return (
            _more(outcome, place, got, before, used[0]) if got > before else _less(view, outcome, place, got, used[0])
        )

    return Reasons(view, explain)


def _guarded(outcome: Outcome, job: Job) -> Reason:
    queue, there = job.spec.queue, outcome.guarded[job.id]
    text = (
        f"needs {counted(job.spec.gpus, 'GPU')} that need never be given back, since it must not be preempted; of "
        f"those that are guaranteed to queue {queue} or to nobody, {there} {are(there)} left"
    )
    return Reason(QUOTA, text, {"needs": job.spec.gpus, "guaranteed": there})


def _more(outcome: Outcome, place: int, got: int, before: int, used_U: Ints) -> Reason:
    """Why it has more than the inner policy gave it."""
    found, user = outcome.found, int(outcome.found.user_J[place])
    verb = f"{'keeps' if found.held_J[place] else 'gets'} {counted(got, 'GPU')}"
    beyond = min(got - before, int(used_U[user] - outcome.verdict.entitled_U[user]))
    if beyond <= 0:
        return Reason("placed", f"{verb}, of which nobody else takes {got - before}", {"gpus": got})
    text = f"{verb}, {beyond} of them beyond its user's share, while nobody else takes them"
    return Reason(LENT, text, {"gpus": got, "lent": beyond})


def _kept_out(outcome: Outcome, place: int, used_U: Ints) -> Reason | None:
    """Why it could not begin whatever the inner policy proposed, which did not propose it: a limit, or others' quotas.

    None if it is only the inner policy that lets it wait.
    """
    found, verdict, used_Q = outcome.found, outcome.verdict, outcome.found.by_queue(used_U)
    user, least = int(found.user_J[place]), int(found.least_J[place])
    q = int(found.queue_U[user])
    has, entitled = int(used_U[user]), int(verdict.entitled_U[user])
    if found.want_J[place] == 0:
        return None
    numbers: dict[str, float] = {"needs": least, "gpus": 0, "entitled": entitled, "used": has}
    if (limit := _limit(outcome, place, has, int(used_Q[q]))) is not None:
        code, allowed, text = limit
        return Reason(code, f"waits: {text}", {**numbers, "limit": allowed})
    owners = [k for k in range(len(found.queues)) if k != q and _guarantee(found, k) > 0]
    if not owners or has + least <= entitled or used_Q[q] + least <= verdict.entitled_Q[q]:
        return None
    named = " and ".join(
        f"{counted(_guarantee(found, k), 'GPU')} {are(_guarantee(found, k))} guaranteed to queue {found.queues[k].name}"
        for k in owners[:_NAMED]
    )
    share = f"{_share(found.queues[q].name, found.users[user])} {entitled}, and has {has}"
    return Reason(QUOTA, f"waits: {named}; {share}; {_others(found, user, used_U)}", numbers)


def _less(view: Snapshot, outcome: Outcome, place: int, got: int, used_U: Ints) -> Reason:
    """Why it has less than was proposed, or nothing."""
    found, verdict, used_Q = outcome.found, outcome.verdict, outcome.found.by_queue(used_U)
    job, user = found.jobs[place], int(found.user_J[place])
    q = int(found.queue_U[user])
    queue, name = found.queues[q], found.users[user]
    entitled, has = int(verdict.entitled_U[user]), int(used_U[user])
    numbers: dict[str, float] = {
        "needs": job.spec.least,
        "gpus": got,
        "entitled": entitled,
        "used": has,
        "queue_entitled": int(verdict.entitled_Q[q]),
        "queue_used": int(used_Q[q]),
    }
    numbers |= {} if queue.quota is None else {"quota": queue.quota}
    fate = f"has {counted(got, 'GPU')}" if got else "waits"
    limit = _limit(outcome, place, has, int(used_Q[q]))
    if limit is not None:
        code, allowed, text = limit
        return Reason(code, f"{fate}: {text}", {**numbers, "limit": allowed})
    owners = [k for k in range(len(found.queues)) if k != q and _owed(outcome, k) > 0]
    if verdict.need > 0 and owners:
        named = " and ".join(f"queue {found.queues[k].name}" for k in owners[:_NAMED])
        text = f"{named} {'takes' if len(owners) == 1 else 'take'} back what is guaranteed; {_share(queue.name, name)}"
        numbers[OWNER_WAITS_S] = max(_waited_s(view, found, k) for k in owners)
        return Reason(QUOTA, f"{fate}: {text} {entitled}, and has {has}; {_others(found, user, used_U)}", numbers)
    text = f"{_share(queue.name, name)} {entitled}, and has {has}; {_others(found, user, used_U)}"
    return Reason(FAIR_SHARE, f"{fate}: {text}", numbers)


def _share(queue: str, user: str) -> str:
    return f"of the GPUs of queue {queue} user {user} is entitled to"


def _limit(outcome: Outcome, place: int, has: int, queue_has: int) -> tuple[str, int, str] | None:
    """The limit that keeps it from having more: a code, the limit, and what to say of it."""
    found, job = outcome.found, outcome.found.jobs[place]
    user = int(found.user_J[place])
    queue, name = found.queue_of(user), found.users[user]
    runs = job.id in outcome.planned
    needs = 1 if runs else job.spec.least
    running = sum(found.user_J[found.row[job_id]] == user for job_id in outcome.planned)
    if queue.max_jobs_per_user is not None and not runs and running >= queue.max_jobs_per_user:
        runs_now = f"user {name} has {counted(running, 'job')} running"
        text = f"{runs_now}, and may have {queue.max_jobs_per_user} in queue {queue.name}"
        return USER_LIMIT, queue.max_jobs_per_user, text
    if queue.max_gpus_per_user is not None and has + needs > queue.max_gpus_per_user:
        text = f"user {name} has {counted(has, 'GPU')}, and may have {queue.max_gpus_per_user} in queue {queue.name}"
        return USER_LIMIT, queue.max_gpus_per_user, text
    if queue.limit is not None and queue_has + needs > queue.limit:
        why = "" if queue.borrow else " (it does not borrow)"
        text = f"queue {queue.name} has {counted(queue_has, 'GPU')}, and may have {queue.limit}{why}"
        return QUEUE_LIMIT, queue.limit, text
    return None


def _owed(outcome: Outcome, queue: int) -> int:
    """GPUs of its quota that a queue has work for, or keeps to itself, and that the proposal left it without."""
    return max(0, _guarantee(outcome.found, queue) - int(outcome.verdict.used_Q[queue]))


def _guarantee(found: Claims, queue: int) -> int:
    """GPUs of its quota that a queue has work for, or keeps to itself."""
    return int(found.guaranteed_Q[queue]) if found.queues[queue].lend else found.queues[queue].guarantee


def _waited_s(view: Snapshot, found: Claims, queue: int) -> float:
    """How long the job of a queue has waited that has waited longest."""
    waits_J = (found.queue_U[found.user_J] == queue) & (found.held_J == 0) & (found.want_J > 0)
    jobs = (found.jobs[place] for place in np.flatnonzero(waits_J).tolist())
    return max((view.now - max(job.submitted_at, job.since) for job in jobs), default=0.0)


def _others(found: Claims, user: int, used_U: Ints) -> str:
    """Who else has GPUs, those with the most first."""
    order = [u for u in np.argsort(-used_U, kind="stable").tolist() if u != user and used_U[u] > 0]
    if not order:
        return "nobody else has any"
    several = len(set(found.queue_U.tolist())) > 1
    named = [
        f"{found.users[u]} has {int(used_U[u])}" + (f" in {found.queue_of(u).name}" if several else "")
        for u in order[:_NAMED]
    ]
    rest = int(used_U[order[_NAMED:]].sum())
    return ", ".join(named) + (f", others {rest}" if rest else "")
