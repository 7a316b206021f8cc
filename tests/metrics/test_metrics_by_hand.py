"""Journals small enough to compute every figure by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.messages import (
    JobCancelled,
    JobExited,
    JobReported,
    JobRescaled,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Message,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Resize,
    Start,
    Stop,
    Tick,
)
from fairlead.core.types import NOTHING, Allocation, JobSpec, Node, Phase
from fairlead.sim.metrics import Metrics, measure

TWO_NODES: list[Message] = [NodeJoined(0.0, Node(name, 2, price_per_hour=3.6)) for name in ("n0", "n1")]
ALL = Allocation.of({"n0": (0, 1), "n1": (0, 1)})
N0 = Allocation.of({"n0": (0, 1)})
ONE = Allocation.of({"n0": (0,)})


def hours(gpu_s: float) -> object:
    return pytest.approx(gpu_s / 3600.0, abs=1e-12)


def submit(at: float, job: str, gpus: int = 2, **fields: object) -> JobSubmitted:
    return JobSubmitted(at, replace(JobSpec(id=job, gpus=gpus), **fields))  # type: ignore[arg-type]


#: a has n0 from 10 to 50; b asks for everything at 20 and has it from 50 to 110. Both take 10 s to start.
TWO_JOBS: list[Message] = [
    *TWO_NODES,
    submit(10.0, "a"),
    Start(10.0, "a", 1, N0),
    JobStarted(20.0, "a", 1),
    submit(20.0, "b", 4, deadline=100.0),
    JobExited(50.0, "a", 1),
    Start(50.0, "b", 1, ALL),
    JobStarted(60.0, "b", 1),
    JobExited(110.0, "b", 1),
]


def summary(*messages: Message) -> Metrics:
    return measure([*TWO_NODES, *messages]).summary


def test_times_to_completion_and_in_the_queue_are_those_computed_by_hand() -> None:
    m = measure(TWO_JOBS).summary
    assert (m.jobs, m.completed, m.cancelled, m.unfinished, m.unfinished_ids) == (2, 2, 0, 0, ())
    assert (m.jct_mean_s, m.jct_p50_s) == (65.0, 65.0)  # 40 and 90
    assert m.jct_p90_s == pytest.approx(40 + 0.9 * 50)
    assert m.jct_p99_s == pytest.approx(40 + 0.99 * 50)
    assert (m.queue_mean_s, m.queue_p50_s) == (15.0, 15.0)  # 0 and 30
    assert m.queue_p99_s == pytest.approx(29.7)
    assert m.wait_first_mean_s == 15.0
    assert m.makespan_s == 100.0


def test_gpu_hours_utilisation_and_cost_are_those_computed_by_hand() -> None:
    m = measure(TWO_JOBS).summary
    assert m.utilisation == pytest.approx((2 * 40 + 4 * 60) / (4 * 100))
    assert m.gpu_h_useful == hours(2 * 30 + 4 * 50)
    assert m.gpu_h_restart == hours(2 * 10 + 4 * 10)
    assert m.gpu_h_idle == hours(2 * 40)
    assert m.gpu_h_lost == 0.0
    assert m.cost == pytest.approx(2 * 3.6 * 100 / 3600)
    assert m.fragmentation == 0.0  # n1 is idle as a whole


def test_rho_takes_the_time_alone_it_is_given_and_the_contention_of_requested_gpus() -> None:
    # Requested over healthy GPUs: 2/4 until 20, 6/4 until 50, 4/4 until 110.
    measured = measure(TWO_JOBS, alone_s={"a": 22.0, "b": 50.0})
    a, b = measured.jobs
    assert a.contention == pytest.approx((10 * 0.5 + 30 * 1.5) / 40)
    assert b.contention == pytest.approx((30 * 1.5 + 60 * 1.0) / 90)
    assert (a.first_start_s, b.first_start_s) == (10.0, 10.0)
    assert a.rho == pytest.approx(40 / (32 * 1.25))
    assert b.rho == pytest.approx(9 / 7)
    m = measured.summary
    assert m.rho_worst == pytest.approx(9 / 7)
    assert m.rho_mean == pytest.approx(8 / 7)
    assert (m.unfair_share, m.unfair_share_110) == (0.5, 0.5)
    assert m.jain == pytest.approx((1 + 7 / 9) ** 2 / (2 * (1 + 49 / 81)))


def test_rho_falls_back_on_the_seconds_seen_running() -> None:
    a, b = measure(TWO_JOBS).jobs
    assert (a.alone_s, b.alone_s) == (30.0, 50.0)
    assert a.rho == pytest.approx(40 / ((10 + 30) * 1.25))
    assert b.rho == pytest.approx(90 / ((10 + 50) * 7 / 6))
    m = measure(TWO_JOBS, alone_s={"b": 63.0}).summary
    assert (m.unfair_share, m.unfair_share_110) == (0.5, 0.0)  # 1.057 is above one threshold, below the other


def test_the_rho_of_two_papers_counts_jobs_and_leaves_the_start_out() -> None:
    node = NodeJoined(0.0, Node("n", 1))
    gpu = Allocation.of({"n": (0,)})
    turns: list[Message] = [node]
    turns += [submit(0.0, name, 1) for name in "abc"]
    for place, name in enumerate("abc"):
        begin = 100.0 * place
        turns += [Start(begin, name, 1, gpu), JobStarted(begin + 20, name, 1), JobExited(begin + 100, name, 1)]
    a, b, c = measure(turns).jobs
    # Live jobs: 3 until 100, 2 until 200, 1 until 300. In the whole trace: 3 on one GPU.
    assert [job.rho_themis for job in (a, b, c)] == pytest.approx([100 / (80 * 3), 200 / (80 * 2.5), 300 / (80 * 2)])
    assert [job.rho_shockwave for job in (a, b, c)] == pytest.approx([100 / 240, 200 / 240, 300 / 240])
    m = measure(turns).summary
    assert (m.rho_themis_worst, m.unfair_themis_share) == (pytest.approx(300 / 160), pytest.approx(1 / 3))
    assert (m.rho_shockwave_worst, m.unfair_shockwave_share) == (pytest.approx(300 / 240), pytest.approx(1 / 3))
    assert (m.rho_themis_mean, m.rho_shockwave_mean) == (pytest.approx(3.2917 / 3, rel=1e-3), pytest.approx(600 / 720))


def test_a_job_whose_time_alone_is_zero_has_no_rho() -> None:
    measured = measure(TWO_JOBS, alone_s={"a": 0.0})
    assert measured.jobs[0].rho is None
    assert measured.summary.rho_mean == measured.jobs[1].rho


def test_contention_is_at_least_one_and_skips_moments_without_a_healthy_node() -> None:
    one: list[Message] = [NodeJoined(0.0, Node("n", 2))]
    quiet: list[Message] = [
        *one,
        submit(0.0, "a", 1),
        Start(0.0, "a", 1, Allocation.of({"n": (0,)})),
        JobExited(9.0, "a", 1),
    ]
    assert measure(quiet, alone_s={"a": 9.0}).jobs[0].contention == 1.0
    lost: list[Message] = [
        *one,
        submit(0.0, "a", 4),
        NodeLost(10.0, "n"),
        NodeJoined(90.0, Node("n", 4)),
        Start(90.0, "a", 1, Allocation.of({"n": (0, 1, 2, 3)})),
        JobStarted(90.0, "a", 1),
        JobExited(100.0, "a", 1),
    ]
    (job,) = measure(lost).jobs
    assert job.contention == pytest.approx((10 * 4 / 2 + 10 * 4 / 4) / 20)
    assert measure(lost).summary.utilisation == pytest.approx(40 / (2 * 10 + 4 * 10))


def test_a_deadline_is_missed_by_the_late_the_failed_and_the_unfinished_but_not_by_the_cancelled() -> None:
    m = summary(
        submit(0.0, "on time", 1, deadline=10.0),
        submit(0.0, "late", 1, deadline=9.0),
        submit(0.0, "failed", 1, deadline=50.0, max_restarts=0),
        submit(0.0, "stuck", 1, deadline=19.0),
        submit(0.0, "not yet due", 1, deadline=21.0),
        submit(0.0, "taken back", 1, deadline=1.0),
        submit(0.0, "without", 1),
        Start(0.0, "on time", 1, ONE),
        Start(0.0, "late", 1, Allocation.of({"n0": (1,)})),
        Start(0.0, "failed", 1, Allocation.of({"n1": (1,)})),
        JobExited(10.0, "on time", 1),
        JobExited(10.0, "late", 1),
        JobExited(10.0, "failed", 1, code=1),
        JobCancelled(15.0, "taken back"),
        Tick(20.0),
    )
    assert (m.deadline_jobs, m.deadline_misses) == (6, 3)
    assert m.unfinished_ids == ("failed", "stuck", "not yet due", "without")
    assert (m.jobs, m.completed, m.cancelled, m.unfinished) == (7, 2, 1, 4)


def test_a_stop_is_a_preemption_and_a_second_start_a_restart() -> None:
    m = measure(
        [
            *TWO_NODES,
            submit(0.0, "a"),
            Start(0.0, "a", 1, N0),
            JobStarted(5.0, "a", 1),
            Stop(20.0, "a", 1),
            JobStopped(22.0, "a", 1),
            Start(30.0, "a", 2, N0),
            JobStarted(37.0, "a", 2),
            JobExited(50.0, "a", 2),
        ]
    )
    (job,) = m.jobs
    assert (m.summary.preemptions, m.summary.restarts_per_job, m.summary.rescales) == (1, 1.0, 0)
    assert (job.queue_s, job.held_s, job.run_s, job.jct_s) == (8.0, 42.0, 28.0, 50.0)
    assert m.summary.gpu_h_useful == hours(2 * 28)
    assert m.summary.gpu_h_restart == hours(2 * (5 + 2 + 7))
    assert m.summary.gpu_h_idle == hours(4 * 50 - 2 * 42)


def test_a_suspension_frees_the_gpus_and_is_a_preemption_but_its_resumption_is_a_rescale() -> None:
    m = measure(
        [
            *TWO_NODES,
            submit(0.0, "a", in_place=True),
            Start(0.0, "a", 1, N0),
            JobStarted(0.0, "a", 1),
            Resize(10.0, "a", 1, NOTHING),
            JobRescaled(12.0, "a", 1),
            Resize(20.0, "a", 1, N0),
            JobRescaled(23.0, "a", 1),
            JobExited(30.0, "a", 1),
        ]
    )
    assert (m.summary.preemptions, m.summary.rescales, m.summary.restarts_per_job) == (1, 1, 0.0)
    assert (m.jobs[0].queue_s, m.jobs[0].held_s, m.jobs[0].run_s) == (8.0, 22.0, 17.0)
    assert m.summary.gpu_h_restart == hours(2 * (2 + 3))


def test_a_resize_holds_old_and_new_gpus_until_it_is_done() -> None:
    moved = Allocation.of({"n0": (1,), "n1": (0, 1)})
    m = measure(
        [
            *TWO_NODES,
            submit(0.0, "a", 2, gpus_min=1, gpus_max=4, in_place=True),
            Start(0.0, "a", 1, N0),
            JobStarted(0.0, "a", 1),
            Resize(10.0, "a", 1, moved),
            JobRescaled(12.0, "a", 1),
            JobExited(20.0, "a", 1),
        ]
    )
    assert m.summary.rescales == 1
    assert m.jobs[0].held_gpu_s == 2 * 10 + 4 * 2 + 3 * 8
    assert sorted(m.timeline.occupancy()) == [
        ("n0", 0, 0.0, 12.0, "a"),
        ("n0", 1, 0.0, 20.0, "a"),
        ("n1", 0, 10.0, 20.0, "a"),
        ("n1", 1, 10.0, 20.0, "a"),
    ]
    # Idle are both GPUs of n1 (wholly idle) for 10 s, then one GPU of n0, beside a used one, for 8 s.
    assert m.summary.fragmentation == pytest.approx(8 / (2 * 10 + 8))


def test_a_stop_of_a_cancelled_or_suspended_job_is_no_preemption() -> None:
    m = summary(
        submit(0.0, "a", 1, in_place=True),
        submit(0.0, "b", 1),
        Start(0.0, "a", 1, ONE),
        Start(0.0, "b", 1, Allocation.of({"n0": (1,)})),
        JobStarted(1.0, "a", 1),
        Resize(2.0, "a", 1, NOTHING),
        JobRescaled(3.0, "a", 1),
        Stop(4.0, "a", 1),
        JobStopped(4.0, "a", 1),
        JobCancelled(5.0, "b"),
        Stop(5.0, "b", 1),
        JobStopped(6.0, "b", 1),
    )
    assert m.preemptions == 1  # the suspension
    assert (m.cancelled, m.unfinished_ids) == (1, ("a",))


def test_a_lost_node_costs_the_running_time_since_the_last_checkpoint() -> None:
    story: list[Message] = [
        *TWO_NODES,
        submit(0.0, "a"),
        Start(0.0, "a", 1, Allocation.of({"n0": (0,), "n1": (0,)})),
        JobStarted(10.0, "a", 1),
        JobReported(40.0, "a", 1, 0.5, saved=True),
        JobReported(50.0, "a", 1, 0.6),
        NodeLost(60.0, "n1"),
        Start(70.0, "a", 2, N0),
        JobStarted(80.0, "a", 2),
        JobExited(100.0, "a", 2),
    ]
    m = measure(story).summary
    assert m.gpu_h_lost == hours(2 * 20)
    assert m.gpu_h_useful == hours(2 * 30 + 2 * 20)
    assert m.gpu_h_restart == hours(2 * 10 + 2 * 10)
    assert m.gpu_h_idle == hours(2 * 60 + 2 * 10)
    assert m.cost == pytest.approx((3.6 * 100 + 3.6 * 60) / 3600)
    assert m.preemptions == 0
    without_report = [message for message in story if not isinstance(message, JobReported)]
    assert measure(without_report).summary.gpu_h_lost == hours(2 * 50)


def test_a_failed_attempt_loses_its_work_and_one_that_asks_to_be_requeued_does_not() -> None:
    m = measure(
        [
            *TWO_NODES,
            submit(0.0, "a", max_restarts=1),
            Start(0.0, "a", 1, N0),
            JobStarted(1.0, "a", 1),
            JobExited(4.0, "a", 1, code=143),
            Start(4.0, "a", 2, N0),
            JobStarted(5.0, "a", 2),
            JobExited(10.0, "a", 2, code=1),
            Start(10.0, "a", 3, N0),
            JobStarted(10.0, "a", 3),
            JobExited(17.0, "a", 3, code=1),
        ]
    )
    assert m.jobs[0].phase is Phase.FAILED
    assert m.summary.unfinished_ids == ("a",)
    assert m.summary.gpu_h_useful == hours(2 * 3)
    assert m.summary.gpu_h_lost == hours(2 * (5 + 7))
    assert m.summary.restarts_per_job == 2.0
    assert m.summary.makespan_s == 17.0
    assert m.summary.jct_mean_s is None


def test_a_gpu_that_two_jobs_share_is_counted_once_and_charged_by_halves() -> None:
    m = measure(
        [
            *TWO_NODES,
            submit(0.0, "a", 1),
            submit(0.0, "b", 1),
            Start(0.0, "a", 1, ONE),
            JobStarted(0.0, "a", 1),
            Start(10.0, "b", 1, ONE),
            JobStarted(12.0, "b", 1),
            JobExited(20.0, "b", 1),
            JobExited(30.0, "a", 1),
        ]
    )
    assert [job.held_gpu_s for job in m.jobs] == [25.0, 5.0]
    assert m.summary.utilisation == pytest.approx(30 / 120)
    assert m.summary.gpu_h_restart == hours(1)
    assert m.summary.gpu_h_useful == hours(29)
    assert m.timeline.gpus_in_use.max() == 1


def test_fragmentation_is_the_share_of_idle_gpus_beside_used_ones() -> None:
    m = summary(
        submit(0.0, "a", 1),
        Start(0.0, "a", 1, ONE),
        JobStarted(0.0, "a", 1),
        JobExited(10.0, "a", 1),
    )
    assert m.fragmentation == pytest.approx(1 / 3)


def test_steps_over_time_are_right_continuous_and_written_once_per_instant() -> None:
    t = measure(TWO_JOBS).timeline
    assert t.times_s.tolist() == [0, 10, 20, 50, 110]
    assert t.gpus.tolist() == [4, 4, 4, 4, 4]
    assert t.gpus_in_use.tolist() == [0, 2, 2, 4, 0]
    assert t.queued.tolist() == [0, 0, 1, 0, 0]
    assert t.running.tolist() == [0, 1, 1, 1, 0]
    assert t.requested.tolist() == [0, 2, 6, 4, 0]
    assert (t.start_s, t.end_s) == (10.0, 110.0)
    assert (t.jobs, [node.id for node in t.nodes]) == (("a", "b"), ["n0", "n1"])


def test_a_journal_that_is_still_being_written_is_measured_up_to_its_last_message() -> None:
    m = measure([*TWO_JOBS[:8], JobStarted(60.0, "b", 1), Tick(80.0)])
    assert m.summary.unfinished_ids == ("b",)
    assert m.summary.jct_mean_s == 40.0
    assert m.summary.makespan_s == 40.0
    assert (m.timeline.start_s, m.timeline.end_s) == (10.0, 80.0)
    assert m.jobs[1].queue_s + m.jobs[1].held_s == 60.0
    assert m.summary.gpu_h_useful == hours(2 * 30 + 4 * 20)
    assert ("n1", 1, 50.0, 80.0, "b") in m.timeline.occupancy()


def test_a_job_that_waits_forever_does_not_stretch_the_measured_time() -> None:
    stuck = measure([*TWO_JOBS, submit(110.0, "c", 99), Tick(5000.0)]).summary
    assert stuck.utilisation == measure(TWO_JOBS).summary.utilisation
    assert stuck.unfinished_ids == ("c",)


@pytest.mark.parametrize("messages", [[], TWO_NODES, [submit(5.0, "a")], [*TWO_NODES, submit(5.0, "a"), Tick(9.0)]])
def test_figures_over_nothing_are_none_and_json_has_no_nan(messages: list[Message]) -> None:
    m = measure(messages).summary
    assert (m.jct_mean_s, m.rho_mean, m.utilisation, m.makespan_s, m.restarts_per_job) == (None,) * 5
    assert json.loads(json.dumps(m.to_dict(), allow_nan=False))["jct_p99_s"] is None


def test_late_and_repeated_messages_change_nothing() -> None:
    noisy = [
        *TWO_JOBS[:6],
        NodeDrained(20.0, "n1"),
        JobStarted(21.0, "a", 1),
        submit(22.0, "a"),
        *TWO_JOBS[6:],
        JobStopped(111.0, "a", 1),
        JobCancelled(112.0, "a"),
    ]
    assert measure(noisy).summary == measure(TWO_JOBS).summary


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([JobStarted(3.0, "ghost", 1)], "not of its submission"),
        ([submit(0.0, "a"), Start(1.0, "a", 1, N0)], "'n0' before it joined"),
        ([NodeLost(0.0, "n9")], "'n9' before it joined"),
        ([submit(0.0, "a"), Stop(1.0, "a", 0)], "which was pending then"),
    ],
)
def test_a_journal_without_its_beginning_is_refused_in_words(messages: list[Message], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        measure(messages)
