"""When a job would end with a fair share of the cluster, and how far behind that it is (finish-time fairness).

As in Shockwave (section 3 and the artifact's `finish_time_momentumed_average`) a fair share is min(1, GPUs / jobs) of
the time, and the fair finish time of a job is its run time alone, times the crowding it has met: nine tenths the
average over its life, one tenth the present. Times count from its submission, where the artifact's count from the start
of the trace: a ratio of such times would mean nothing on a cluster that has run for a year.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.snapshot import Floats, Snapshot
from fairlead.policies.shockwave.memory import MarketMemory

#: How much of a fair finish time rests on the average crowding of a job's life: the artifact's momentum.
MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Crowding:
    """Jobs to a GPU, at least 1: now, and on average over each job's life."""

    now: float
    average_J: Floats

    def fair_s(self, whole_s_J: Floats) -> Floats:
        """Seconds from submission to the fair finish, of jobs that take so long alone."""
        fair: Floats = whole_s_J * (MOMENTUM * self.average_J + (1.0 - MOMENTUM) * self.now)
        return fair


def crowding(view: Snapshot, memory: MarketMemory, ids: Sequence[str], gpus: int) -> Crowding:
    """Brings the integral in `memory.crowding` up to now."""
    kept: dict[str, Any] = memory.crowding
    until = float(kept.get("integral_s", 0.0)) + float(kept.get("level", 1.0)) * (
        view.now - float(kept.get("at", view.now))
    )
    level = max(1.0, len(view.jobs) / gpus) if gpus else max(1.0, float(len(view.jobs)))
    since: dict[str, Any] = kept.get("since", {})
    begun = {job_id: float(at) for job_id, at in since.items() if view.is_live(job_id)}
    begun |= {job_id: until for job_id in view.jobs if job_id not in begun}
    memory.crowding = {"integral_s": until, "at": view.now, "level": level, "since": begun}
    age_J = np.array([view.now - view.jobs[job_id].submitted_at for job_id in ids])
    met_J = np.array([until - begun[job_id] for job_id in ids])
    # A job that came before the policy did has met no less than an empty cluster.
    average_J = np.where(age_J > 0.0, np.maximum(1.0, met_J / np.maximum(age_J, 1e-9)), level)
    return Crowding(level, average_J)


def lateness(age_s_J: Floats, remaining_s_J: Floats, fair_s_J: Floats, crowded: Crowding) -> Floats:
    """rho: when a job ends that has a fair share from now on, next to its fair finish; above 1 it ends too late."""
    rho: Floats = (age_s_J + remaining_s_J * crowded.now) / np.maximum(fair_s_J, 1e-9)
    return rho


def least_shares(
    slack_rounds_J: Floats, remaining_rounds_J: Floats, left_J: Floats, *, rounds: int, crowded: Crowding
) -> Floats:
    """Share of its work that each job is to do in a window, so that a fair share afterwards ends it in time.

    `slack_rounds_J` is the time to its fair finish. A job that is due within the window has to be done in it, and one
    that cannot be done in time is not to be had: infinite.
    """
    after_J = np.maximum(0.0, slack_rounds_J - rounds) / crowded.now
    needed_J = np.maximum(0.0, remaining_rounds_J - after_J)
    possible_J = needed_J <= np.minimum(slack_rounds_J, rounds) + 1e-9
    share_J = needed_J / np.maximum(remaining_rounds_J, 1e-9) * left_J
    return np.where(possible_J, share_J, np.inf)
