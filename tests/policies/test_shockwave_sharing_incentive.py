"""The sharing incentive of the elastic market: no job ends later than with 1/N of the cluster, whatever the workload.

The reference is computed here anew, for jobs whose speed grows with their GPUs, which is what the policy believes of
them: its predictions are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fairlead.core.state import State
from fairlead.journal import MemoryJournal
from fairlead.policies.shockwave.deadline_demand import Deadlines, demand, served_first, tightest, whole_supply
from fairlead.policies.shockwave.reference_share import ReferenceWorld, Speeds, divided_gpus
from fairlead.policies.shockwave.sharing_incentive import LATE_ROUNDS
from fairlead.sim.experiment import Experiment, run_experiment

ROUND_S, TOLERANCE = 120.0, 0.1


class Work(NamedTuple):
    submit_s: float
    gpus: int
    least: int
    most: int
    gpu_s: float


def workload(seed: int, *, rigid: float) -> tuple[int, list[Work]]:
    """GPUs of the cluster, and jobs that come over time, of which so many have a fixed number of GPUs."""
    draw = np.random.default_rng(seed)
    gpus, jobs, now = int(draw.choice([4, 8, 16])), list[Work](), 0.0
    for _ in range(int(draw.integers(6, 20))):
        asked = int(draw.choice([1, 2, 4]))
        least, most = asked, asked
        if draw.random() >= rigid:
            least, most = 1, min(gpus, max(asked, int(draw.choice([1, 2, 4, 8]))))
        now += float(draw.exponential(200.0 * asked)) * (draw.random() < 0.7)
        jobs.append(Work(now, asked, least, most, asked * float(draw.lognormal(7.2, 1.0))))
    return gpus, jobs


def ends_with_equal_shares(jobs: list[Work], gpus: int) -> list[float]:
    """When each job ends that has 1/N of the GPUs to itself, of those that an order of service can keep busy."""
    shared = gpus - max(job.least for job in jobs) + 1
    left, ends, now = dict[int, float](), [0.0] * len(jobs), 0.0
    coming = sorted(range(len(jobs)), key=lambda at: jobs[at].submit_s)
    while coming or left:
        while coming and jobs[coming[0]].submit_s <= now:
            at = coming.pop(0)
            left[at] = jobs[at].gpu_s
        until = jobs[coming[0]].submit_s if coming else np.inf
        speed = {at: min(shared / len(left), jobs[at].most) for at in left}
        step = min([until - now, *(left[at] / speed[at] for at in left)])
        now = until if step == until - now else now + step
        for at in list(left):
            left[at] -= speed[at] * step
            if left[at] <= 1e-6:
                ends[at] = now
                del left[at]
    return ends


def rounds_late(path: Path, gpus: int, jobs: list[Work], policy: str) -> list[float]:
    """By how much each job ends later than it was promised, in rounds."""
    rows = [
        f"{at},{job.submit_s},{job.gpus},{job.least},{job.most},{job.gpu_s / job.gpus}" for at, job in enumerate(jobs)
    ]
    path.write_text("\n".join(["id,submit_s,gpus,gpus_min,gpus_max,duration_s", *rows, ""]))
    result = run_experiment(
        Experiment(
            trace=str(path), policy=policy, cluster=f"{gpus // 4}x4", costs="none", cadence="event", report_every_s=30.0
        )
    )
    ended = {int(each.job): float(each.ended_at or np.inf) for each in result.jobs}
    fair = ends_with_equal_shares(jobs, gpus)
    late = []
    for at, job in enumerate(jobs):
        promised = job.submit_s + (1.0 + TOLERANCE) * (fair[at] - job.submit_s)
        late.append((ended[at] - promised) / ROUND_S)
    return late


@pytest.mark.parametrize("rigid", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", [5, 6, 13])
def test_no_job_ends_later_than_with_an_equal_share_of_the_cluster(tmp_path: Path, seed: int, rigid: float) -> None:
    gpus, jobs = workload(seed, rigid=rigid)
    late = rounds_late(tmp_path / "a.csv", gpus, jobs, f"shockwave-elastic:tolerance={TOLERANCE}")
    assert max(late) <= LATE_ROUNDS


def test_without_the_promise_jobs_end_later_than_with_an_equal_share(tmp_path: Path) -> None:
    gpus, jobs = workload(13, rigid=0.0)
    assert max(rounds_late(tmp_path / "a.csv", gpus, jobs, "shockwave-elastic:tolerance=inf")) > 2 * LATE_ROUNDS


# -- the parts ---------------------------------------------------------------------------------------------------------


def due(widths: list[int], lefts_s: list[float], due_s: list[float], *, gpus: int) -> Deadlines:
    """Jobs of one width each, with so many seconds of work left, that came just now."""
    jobs = len(widths)
    return Deadlines(
        width_JK=np.array(widths)[:, None],
        speed_JK=1.0 / np.array(lefts_s)[:, None],
        left_J=np.ones(jobs),
        pause_s_J=np.zeros(jobs),
        age_s_J=np.zeros(jobs),
        fair_s_J=np.array(due_s),
        round_s=0.125,
        supply=whole_supply(gpus),
    )


def test_deadlines_can_be_met_if_and_only_if_the_forced_work_fits_at_every_horizon() -> None:
    assert demand(due([1, 1, 1], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], gpus=2), stretch=1.0).holds
    assert not demand(due([1, 1, 1], [2.0, 2.0, 2.0], [2.75, 2.75, 2.75], gpus=2), stretch=1.0).holds
    assert not demand(due([1, 1, 1], [3.0, 3.0, 3.0], [3.0, 3.0, 9.0], gpus=1), stretch=1.0).holds


def test_deadlines_that_cannot_be_met_are_stretched_as_little_as_is_enough() -> None:
    assert tightest(due([1, 1], [2.0, 2.0], [2.0, 2.0], gpus=1), stretch=1.0).stretch == pytest.approx(2.0, rel=0.05)
    assert tightest(due([1, 1], [2.0, 2.0], [9.0, 9.0], gpus=1), stretch=1.0).stretch == 1.0


def test_what_the_market_chose_is_left_alone_while_deadlines_are_far() -> None:
    jobs = due([1, 1], [2.0, 2.0], [20.0, 20.0], gpus=1)
    asked = demand(jobs, stretch=1.0)
    assert served_first([(asked, np.array([1, 1]))], jobs, lambda first: {**first} or {1: 1}, gpus=1) == {}


def test_a_job_without_laxity_goes_before_what_the_market_chose() -> None:
    jobs = due([1, 1], [2.0, 2.0], [2.0, 20.0], gpus=1)
    asked = demand(jobs, stretch=1.0)
    assert served_first([(asked, np.array([1, 1]))], jobs, lambda first: {**first} or {1: 1}, gpus=1) == {0: 1}


def test_the_first_demand_goes_before_the_next() -> None:
    jobs = due([1, 1], [2.0, 2.0], [2.0, 20.0], gpus=1)
    other = due([1, 1], [2.0, 2.0], [20.0, 2.0], gpus=1)
    asked = [(demand(each, stretch=1.0), np.array([1, 1])) for each in (jobs, other)]
    assert served_first(asked, jobs, lambda first: {**first} or {1: 1}, gpus=1) == {0: 1}
    assert served_first(asked[::-1], jobs, lambda first: {**first} or {0: 1}, gpus=1) == {1: 1}


def test_gangs_divide_the_gpus_that_an_order_of_service_keeps_busy() -> None:
    assert divided_gpus(8, [1, 1, 1]) == 8
    assert divided_gpus(8, [1, 4, 16]) == 5
    assert divided_gpus(8, [8]) == 1


def test_a_slice_smaller_than_a_job_is_had_in_turns_that_begin_with_a_start() -> None:
    world = ReferenceWorld(0.0)
    world.update({"a": Speeds((1,), (0.01,), 0.25), "b": Speeds((1,), (0.01,), 0.0)}, 1)
    assert world.forecast().finish["b"] == pytest.approx(200.0)
    assert world.forecast().finish["a"] == pytest.approx(225.0)  # three quarters by then, and the rest alone


def test_jobs_of_unknown_length_leave_the_reference_world_when_they_end(tmp_path: Path) -> None:
    """A guess of many rounds for each of them would fill it without end, and promise later jobs next to nothing."""
    trace = tmp_path / "jobs.csv"
    rows = [f"j{n},{60 * n},1,100" for n in range(40)]
    trace.write_text("\n".join(["id,submit_s,gpus,duration_s", *rows]) + "\n")
    journal = MemoryJournal()
    asked = Experiment(trace=str(trace), policy="shockwave-elastic", cluster="1x4", estimates="none")
    run_experiment(asked, journal=journal)
    state, most = State(), 0
    for message in journal.messages:
        state.replay(message)
        most = max(most, len(state.snapshot().memo.get("shockwave", {}).get("reference", {}).get("left", {})))
    assert 0 < most < 10
