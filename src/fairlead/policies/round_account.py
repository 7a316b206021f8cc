"""What each group of jobs is owed and has received, kept from one decision to the next (part of `Plan.memo`).

Two ways to keep the account:

    deadline  Each group is owed its share of the time as it passes. Its next round is due when what it is owed and has
            not received comes to half a round; the group whose round is due first goes first (virtual deadlines, as in
            EEVDF, Stoica and Abdel-Wahab 1995). So a group is about half a round ahead or behind at most, while the
            shares can be met at all; where they cannot, as start-up takes time and large jobs leave gaps, the loss is
            shared in proportion. More than its share, on GPUs that no other job wanted, is not held against a job.
            Nothing is reset when other jobs come or leave. Shares are renewed when a round begins, and when a job or a
            GPU came or went; a decision in between changes nothing here. This is our default: the ratio that Gavel goes
            by lets a stream of new jobs, each with little received, pass a job of many GPUs.
    reset   As Gavel keeps it (OSDI '20, section 5, and its released scheduler): service is counted from half a round
            since the last renewal of the shares; priority is the share owed over the share of all service received;
            what was missed until a renewal is added to a deficit, which only breaks ties. Shares are renewed when a
            job or a GPU came or went, not more often than `renewal_s`, and not while there is no GPU to share; a job
            that comes in between waits, and the GPUs that are left for it stay free.

Service is measured, as the growth of `Job.served_s` since the last decision, on the type where the job ran and for the
group in which it ran. A state adds seconds up in floating point, and the last bits of such sums would decide between
jobs that had the same: `deadline` compares nine digits; `reset` goes back to the readings of the clock, as Gavel does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.core.memo import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Job, Phase
from fairlead.policies.wait_reason import open_gpus

#: Ids of jobs that share their GPUs, sorted; mostly one.
Group = tuple[str, ...]
#: Share of wall time, 0 to 1, that is owed to a group on a GPU type.
Owed = Mapping[tuple[Group, str], float]

#: By group and GPU type: a share, or seconds.
Amounts = dict[tuple[Group, str], float]

#: The key of this memory in `Snapshot.memo`.
MEMO = "rounds"

#: Between the ids of a group in a memo's key: no id has it.
_AND = "\x1f"

#: Seconds to which two ways to measure the same spell may differ.
_TOLERANCE_S = 1e-6

#: Of a group that is owed something and has received nothing at all.
_NEVER_SERVED = 1e9


@dataclass(slots=True)
class Account:
    """The memory of the mechanism while one plan is made; `of` reads it, `memo` writes it."""

    #: When the last decision was made, the round ends, and the shares in force were renewed; -inf if never.
    decided_at: float = -math.inf
    ends_at: float = -math.inf
    renewed_at: float = -math.inf
    #: A job came, left or failed since the shares were renewed; or a GPU came or went (reset only).
    changed: bool = False
    #: Shares in force.
    owed: Amounts = field(default_factory=dict)
    #: Seconds received since the last renewal, half a round included (reset only).
    received: Amounts = field(default_factory=dict)
    #: Seconds owed and not received: until now (deadline), or until the last renewal (reset).
    deficit: Amounts = field(default_factory=dict)
    #: At the last decision: seconds served by job and type, the group that it was put into, and all failures so far.
    served: dict[str, dict[str, float]] = field(default_factory=dict)
    group: dict[str, Group] = field(default_factory=dict)
    failures: int = 0
    #: GPUs on open nodes at the last decision, by type.
    gpus: dict[str, int] = field(default_factory=dict)
    #: The deficits and seconds served of live jobs that are not in the snapshot: on hold, or hidden by a policy around
    #: this one. A job that comes back goes on from there, however long it was away.
    absent_deficit: dict[str, dict[str, float]] = field(default_factory=dict)
    absent_served: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: Snapshot) -> Account:
        """As the last plan left it; jobs that have ended are left out, and groups of which only some have shrink."""
        kept: Mapping[str, Any] = view.memo.get(MEMO, {})
        live = view.jobs
        deficit, served = _with_absent(view, kept, "deficit"), _with_absent(view, kept, "served")
        left = not kept.get("served", {}).keys() <= live.keys()
        returned = not live.keys().isdisjoint(kept.get("absent", {}).get("served", {}))
        return cls(
            decided_at=kept.get("decided_at", -math.inf),
            ends_at=kept.get("ends_at", -math.inf),
            renewed_at=kept.get("renewed_at", -math.inf),
            changed=kept.get("changed", False) or left or returned,
            owed=_amounts(kept.get("owed", {}), live),
            received=_amounts(kept.get("received", {}), live),
            deficit=_amounts(deficit, live),
            served={job_id: dict(by_type) for job_id, by_type in served.items() if job_id in live},
            group={job_id: _living(key, live) for job_id, key in kept.get("group", {}).items() if job_id in live},
            failures=kept.get("failures", 0),
            gpus=dict(kept.get("gpus", {})),
            absent_deficit={text: by_type for text, by_type in deficit.items() if not _living(text, live)},
            absent_served={job_id: by_type for job_id, by_type in served.items() if job_id not in live},
        )

    def memo(self) -> Memo:
        kept: dict[str, Any] = {"changed": self.changed, "failures": self.failures, "gpus": self.gpus}
        for name in ("decided_at", "ends_at", "renewed_at"):
            if math.isfinite(at := getattr(self, name)):
                kept[name] = at
        for name in _AMOUNTS:
            by_key: dict[str, dict[str, float]] = {}
            for (group, gpu_type), amount in getattr(self, name).items():
                by_key.setdefault(_AND.join(group), {})[gpu_type] = amount
            kept[name] = by_key
        kept["served"] = self.served
        kept["group"] = {job_id: _AND.join(group) for job_id, group in self.group.items()}
        absent = {"deficit": self.absent_deficit, "served": self.absent_served}
        if any(absent.values()):
            kept["absent"] = absent
        return {MEMO: kept}

    def is_current(self, view: Snapshot) -> bool:
        """No job and no GPU came or went, and none failed, since the last decision."""
        return (
            not self.changed
            and self.served.keys() == view.jobs.keys()
            and self.failures == sum(job.failures for job in view.jobs.values())
            and self.gpus == open_gpus(view)
        )

    def measure(self, view: Snapshot, *, by_clock: bool) -> Amounts:
        """Seconds received since the last decision; remembers from where to go on."""
        gained: Amounts = {}
        failures = sum(job.failures for job in view.jobs.values())
        self.changed |= failures > self.failures or any(job_id not in self.served for job_id in view.jobs)
        for job in view.jobs.values():
            served_s, before = job.served_at(view.now), self.served.get(job.id, {})
            group = self.group.get(job.id, (job.id,))
            for gpu_type, total_s in served_s.items():
                if (more_s := total_s - before.get(gpu_type, 0.0)) > 0.0 and job.id in self.served:
                    if by_clock:
                        more_s = self._by_clock(view, job, more_s)
                    # Of jobs that share GPUs the one that ran longest counts, as in Gavel.
                    gained[group, gpu_type] = max(more_s, gained.get((group, gpu_type), 0.0))
            self.served[job.id] = served_s
        self.failures = failures
        return gained

    def _by_clock(self, view: Snapshot, job: Job, more_s: float) -> float:
        """The same spell as a difference of two readings of the clock, if it is one."""
        end = view.now if job.phase is Phase.RUNNING else job.last_ran_at
        assert end is not None
        whole_s = end - self.decided_at
        # Start-up is itself a difference of readings: to its last bits it depends on when it was.
        for spell_s in (whole_s, whole_s - round(job.start_s or 0.0, 6), end - job.since):
            if abs(spell_s - more_s) <= _TOLERANCE_S:
                return spell_s
        return more_s


_AMOUNTS = ("owed", "received", "deficit")


def _with_absent(view: Snapshot, kept: Mapping[str, Any], name: str) -> dict[str, dict[str, float]]:
    """What was kept of live jobs under a name, of those in the last snapshot and of the absent ones."""
    both: dict[str, dict[str, float]] = {**kept.get("absent", {}).get(name, {}), **kept.get(name, {})}
    return {text: by_type for text, by_type in both.items() if any(map(view.is_live, text.split(_AND)))}


def _amounts(kept: Mapping[str, Mapping[str, float]], live: Mapping[str, Job]) -> Amounts:
    found: Amounts = {}
    for text, by_type in kept.items():
        if group := _living(text, live):
            for gpu_type, amount in by_type.items():
                found[group, gpu_type] = found.get((group, gpu_type), 0.0) + amount
    return found


def _living(text: str, live: Mapping[str, Job]) -> Group:
    return tuple(job_id for job_id in text.split(_AND) if job_id in live)


#: The priority of a group on a type, and its deficit in seconds, which breaks ties.
Standing = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """See the module."""

    def update(
        self, account: Account, view: Snapshot, owed: Callable[[], Owed], *, round_s: float, is_boundary: bool
    ) -> None:
        if not is_boundary and account.is_current(view):
            return  # how often a policy is asked within a round, after a restart say, is no information
        elapsed_s = max(0.0, view.now - account.decided_at) if math.isfinite(account.decided_at) else 0.0
        gained = account.measure(view, by_clock=False)
        met = _met(view, account.owed, gained, elapsed_s)
        before, shares = account.owed, {key: float(share) for key, share in owed().items()}
        account.deficit = {
            # Just after a round of its own a group is ahead by this much at most.
            key: max(
                account.deficit.get(key, 0.0)
                + before.get(key, 0.0) * elapsed_s * met.get(key[1], 1.0)
                - gained.get(key, 0.0),
                (share - 1.0) * round_s,
            )
            for key, share in shares.items()
            if share > 0.0
        }
        account.owed, account.renewed_at, account.changed = shares, view.now, False
        account.decided_at, account.gpus = view.now, open_gpus(view)

    def waits_s(self, account: Account, now: float) -> float | None:
        """Seconds that a job waits which is not in the shares in force; None, as it may have what is left."""
        return None

    def standing(self, account: Account, key: tuple[Group, str], round_s: float) -> Standing:
        """Seconds since a round was due, below 0 until it is; what is owed nothing comes last."""
        share, deficit_s = account.owed.get(key, 0.0), account.deficit.get(key, 0.0)
        if share <= 0.0:
            return -math.inf, 0.0
        return _digits((deficit_s - round_s / 2) / share), _digits(deficit_s)


def _met(view: Snapshot, owed: Amounts, gained: Amounts, elapsed_s: float) -> dict[str, float]:
    """By GPU type: the part of the GPU-time owed that all jobs together have received, at most 1."""
    owed_gpu_s: dict[str, float] = {}
    gained_gpu_s: dict[str, float] = {}
    for amounts, factor, total in ((owed, elapsed_s, owed_gpu_s), (gained, 1.0, gained_gpu_s)):
        for (group, gpu_type), amount in amounts.items():
            gpus = view.jobs[group[0]].spec.gpus
            total[gpu_type] = total.get(gpu_type, 0.0) + gpus * amount * factor
    return {t: min(1.0, gained_gpu_s.get(t, 0.0) / gpu_s) for t, gpu_s in owed_gpu_s.items() if gpu_s > 0.0}


@dataclass(frozen=True, slots=True)
class Reset:
    """See the module. Seconds for which shares stay in force at least."""

    renewal_s: float

    def update(
        self, account: Account, view: Snapshot, owed: Callable[[], Owed], *, round_s: float, is_boundary: bool
    ) -> None:
        gained = account.measure(view, by_clock=True)
        gpus = open_gpus(view)
        account.changed |= math.isfinite(account.decided_at) and account.gpus != gpus
        first_s = round_s / 2
        for key, seconds in gained.items():
            account.received[key] = account.received.get(key, first_s) + seconds
        # A renewal at time 0 is taken for none, in Gavel's scheduler as well.
        since_s = view.now - max(0.0, account.renewed_at)
        if account.changed and gpus and (account.renewed_at <= 0.0 or since_s >= self.renewal_s):
            for key in sorted(account.owed.keys() | account.received.keys() | account.deficit.keys()):
                missed_s = account.owed.get(key, 0.0) * since_s - (account.received.get(key, first_s) - first_s)
                account.deficit[key] = account.deficit.get(key, 0.0) + missed_s
            account.received = {}
            account.owed = {key: float(share) for key, share in owed().items()}
            account.renewed_at, account.changed = view.now, False
        account.decided_at, account.gpus = view.now, gpus

    def waits_s(self, account: Account, now: float) -> float | None:
        """Seconds until the next renewal is due: before, no GPUs are given to a job that came after the last one."""
        return max(0.0, account.renewed_at + self.renewal_s - now)

    def standing(self, account: Account, key: tuple[Group, str], round_s: float) -> Standing:
        share, deficit_s = account.owed.get(key, 0.0), account.deficit.get(key, 0.0)
        if share == 0.0:
            return 0.0, deficit_s
        received_s = account.received.get(key, round_s / 2)
        return share / received_s if received_s > 0.0 else share * _NEVER_SERVED, deficit_s


def _digits(value: float) -> float:
    """Nine of them."""
    return float(f"{value:.9g}")
