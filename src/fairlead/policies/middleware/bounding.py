"""What an inner policy may see of users that have too much: who is shown, and with how many GPUs at most.

Of a user's jobs those are kept that the policy itself proposed, by priority, who runs before who starts, the oldest
first; the others are hidden. Who is kept has the fewest GPUs it can run on, and what is left goes to those that were
proposed more, in proportion to how much. So jobs shrink before one is stopped. What then is left is for others to try.

Legend: J live jobs, U users, Q queues, K some jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, JobSpec
from fairlead.policies.middleware.claims import NO_LIMIT, Claims, fitting
from fairlead.policies.middleware.imagining import imagined, kept_of
from fairlead.policies.middleware.judging import Verdict, limits_of_queues, limits_of_users
from fairlead.policies.middleware.shares import Shares
from fairlead.policies.middleware.using import useful
from fairlead.policies.middleware.water import Ints, whole


@dataclass(frozen=True)
class Bounds:
    """The most GPUs each job may be given: 0 for who is hidden, NO_LIMIT for who is left alone."""

    most_J: Ints


class _Bounding:
    """Bounds while they are made."""

    def __init__(self, found: Claims, verdict: Verdict, members: Sequence[Ints], limit_U: Ints) -> None:
        self.found, self.verdict, self.members, self.limit_U = found, verdict, members, limit_U
        self.most_J = np.full(len(found.jobs), NO_LIMIT, dtype=np.int64)
        self.goes_on_J = found.goes_on(verdict.planned_J)
        self.divisible_J = found.divisible(verdict.planned_J)
        self.gpus_U, self.jobs_U = limits_of_users(found)
        #: By how much a queue may be beyond its share because a job that runs crosses the line.
        self.spare_Q = np.maximum(0, limits_of_queues(found) - found.by_queue(limit_U))
        #: Users beyond their share even so, and by how much.
        self.beyond: dict[int, int] = {}
        self.freed = 0

    def bound(self, user: int) -> None:
        verdict, limit, members = self.verdict, int(self.limit_U[user]), self.members[user]
        planned = verdict.planned_J[members] > 0
        self.most_J[members[self.found.want_J[members] > 0]] = 0
        kept, used = self._keep(user, members[planned].tolist(), limit)
        if kept:
            used += self._stretch(np.array(kept), limit - used)
        self.freed += int(verdict.used_U[user]) - used
        if used > limit:
            self.beyond[user] = used - limit
        elif used < limit:
            others = members[~planned & (self.found.want_J[members] > 0)]
            self._offer(kept, others, limit - used, int(self.jobs_U[user]) - len(kept))

    def _keep(self, user: int, proposed: Iterable[int], limit: int) -> tuple[list[int], int]:
        """Those of the proposed jobs that are shown, at the fewest GPUs each, and what these come to."""
        found, planned_J, movable_J = self.found, self.verdict.planned_J, self.verdict.movable_J
        queue, count = int(found.queue_U[user]), int(self.jobs_U[user])
        spare = min(int(self.spare_Q[queue]), max(0, int(self.gpus_U[user]) - limit))
        kept: list[int] = []
        used = 0
        for job in proposed:
            size = int(found.least_J[job] if self.divisible_J[job] and movable_J[job] else planned_J[job])
            if movable_J[job]:
                crosses = self.goes_on_J[job] and used < limit
                fits = used + size <= limit + (spare if crosses else 0)
                if not fits or len(kept) >= count:
                    continue
            used += size
            self.most_J[job] = size
            kept.append(job)
        self.spare_Q[queue] -= max(0, used - limit)
        return kept, used

    def _stretch(self, kept_K: Ints, left: int) -> int:
        """Share out what is left among those that were proposed more; returns how much of it was."""
        more_K = self.verdict.planned_J[kept_K] - self.most_J[kept_K]
        wanted = int(more_K.sum())
        if left <= 0 or wanted <= 0:
            return 0
        if wanted > left:
            more_K = whole(np.asarray(more_K * (left / wanted), dtype=np.float64), np.zeros(len(more_K), dtype=bool))
        self.most_J[kept_K] += more_K
        return int(more_K.sum())

    def _offer(self, kept: list[int], others_K: Ints, left: int, count: int) -> None:
        """Show others that fit into what is left; and let all of them, then those kept, have more if they can."""
        found = self.found
        chosen = others_K[fitting(found.least_J[others_K], left, count=max(0, count))]
        self.most_J[chosen] = found.least_J[chosen]
        left -= int(found.least_J[chosen].sum())
        for job in (*chosen.tolist(), *kept):
            if left <= 0:
                return
            more = min(left, max(0, int(found.want_J[job] - self.most_J[job])))
            self.most_J[job] += more
            left -= more

    def concede(self, order: Iterable[int]) -> None:
        """What a quota needs is given up whatever it takes: by those that are beyond their share, the last first."""
        found, need = self.found, self.verdict.need - self.freed
        for job in order:
            user, size = int(found.user_J[job]), int(self.most_J[job])
            if need <= 0 or not self.beyond:
                return
            if user not in self.beyond or not self.verdict.movable_J[job] or not 0 < size < NO_LIMIT:
                continue
            given = size if size <= found.least_J[job] else min(size - int(found.least_J[job]), self.beyond[user])
            self.most_J[job] -= given
            need -= given
            self.beyond[user] -= given
            if self.beyond[user] <= 0:
                self._offer_rest(user, -self.beyond.pop(user))

    def _offer_rest(self, user: int, left: int) -> None:
        """Somebody gave up a whole job, and is now below its share: others of its jobs may fit."""
        members = self.members[user]
        shown = members[(self.most_J[members] > 0) & (self.found.want_J[members] > 0)]
        others = members[(self.most_J[members] == 0) & (self.verdict.planned_J[members] == 0)]
        self._offer(shown.tolist(), others, left, int(self.jobs_U[user]) - len(shown))


def bound(found: Claims, share: Shares, verdict: Verdict, *, everyone: bool) -> Bounds:
    """Of those who have too much by the verdict, or of all users."""
    members = found.members(verdict.planned_J)
    bounding = _Bounding(found, verdict, members, useful(found, share, verdict, members))
    for user in np.flatnonzero(verdict.over_U | everyone).tolist():
        bounding.bound(user)
    if verdict.need > bounding.freed and bounding.beyond:
        rank_J = np.array([queue.priority for queue in found.queues])[found.queue_U[found.user_J]]
        bounding.concede(np.lexsort((-np.arange(len(rank_J)), found.priority_J, rank_J)).tolist())
    return Bounds(bounding.most_J)


def bounded(view: Snapshot, found: Claims, bounds: Bounds) -> Snapshot:
    """What the inner policy gets to see. Jobs that are to have fewer GPUs hold only as many."""
    hidden: dict[str, None] = {}
    holding: dict[str, Allocation] = {}
    specs: dict[str, JobSpec] = {}
    for place in np.flatnonzero(bounds.most_J < NO_LIMIT).tolist():
        job, most = found.jobs[place], int(bounds.most_J[place])
        if most == 0:
            hidden[job.id] = None
            continue
        if most < job.spec.most:
            specs[job.id] = limited(job.spec, most)
        if most < job.allocation.total:
            holding[job.id] = kept_of(job.allocation, most) if job.spec.in_place else NOTHING
    return imagined(view, hidden=hidden, holding=holding, specs=specs)


def limited(spec: JobSpec, most: int) -> JobSpec:
    """As if its user had asked for no more than so many GPUs."""
    return replace(spec, gpus=min(spec.gpus, most), gpus_max=most)
