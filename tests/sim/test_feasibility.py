"""Before a submission: whether a deadline and a budget can be kept, with the numbers that decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measured_views import measured_state, view_of

from fairlead.core.loop import Cadence
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import JobSpec, Node
from fairlead.plugins import make_policy
from fairlead.sim.feasibility import feasibility
from fairlead.testing.scenario import job, make_state

EVENT = Cadence()


def ask(view: Snapshot, policy: str = "fifo", **spec: Any) -> Any:
    wanted = JobSpec(id="new", **spec)
    return feasibility(view, wanted, policy=make_policy(policy), cadence=EVENT)


def test_a_deadline_that_is_met_is_feasible_with_how_much_is_left() -> None:
    answer = ask(view_of("1x4", []), gpus=2, estimate_s=1790.0, deadline=3600.0)
    assert (answer.verdict, answer.gpus) == ("feasible", None)
    assert answer.why == "it ends in about 30 min, 30 min before its deadline"
    assert answer.forecast.ends_at == pytest.approx(1800.0)


def test_a_deadline_that_only_more_gpus_meet_is_feasible_with_the_fewest_that_do() -> None:
    answer = ask(view_of("1x4", []), gpus=1, estimate_s=7200.0, deadline=3600.0)
    assert (answer.verdict, answer.gpus) == ("feasible with other GPUs", 3)
    assert answer.why == (
        "as it was asked for, it ends in about 2 h, 60 min after its deadline; with 3 GPUs it would end in about "
        "40 min, 20 min before its deadline, if it is as much faster as it has more GPUs"
    )
    assert answer.forecast is not None
    assert answer.forecast.ends_at is not None
    assert answer.forecast.ends_at > 3600.0, "what is foretold is the job that was submitted"


def test_a_job_that_is_too_slow_on_the_gpus_it_asks_for_is_not_said_to_wait_for_others() -> None:
    view = view_of("1x4", [job("a", 2, on="n0[0,1]", estimate_s=72000.0)], now=0.0)
    answer = ask(view, gpus=2, estimate_s=7200.0, deadline=3700.0)
    assert answer.verdict == "infeasible"
    assert answer.why == "on the GPUs it asks for it needs about 2 h, also alone; the deadline is in 62 min"


def test_a_deadline_that_nothing_meets_is_infeasible_with_the_numbers() -> None:
    answer = ask(view_of("1x4", []), gpus=4, estimate_s=3 * 3600.0, deadline=3600.0)
    assert answer.verdict == "infeasible"
    assert answer.why == "even alone on all 4 GPUs it needs about 3 h; the deadline is in 60 min"


def test_a_deadline_that_only_others_prevent_is_infeasible_and_says_so() -> None:
    view = view_of("1x4", [job("a", 4, on="n0[0,1,2,3]", estimate_s=7200.0)], now=0.0)
    answer = ask(view, gpus=4, estimate_s=1800.0, deadline=3600.0)
    assert answer.verdict == "infeasible"
    assert answer.why == (
        "alone it needs about 30 min, but behind and beside others it ends in about 2.5 h; the deadline is in 60 min"
    )


def test_a_deadline_behind_a_job_of_unknown_length_is_unknown() -> None:
    view = view_of("1x4", [job("7", 4, on="n0[0,1,2,3]")])
    answer = ask(view, gpus=1, estimate_s=1800.0, deadline=3600.0)
    assert (answer.verdict, answer.why) == ("unknown", "behind job 7, whose length is unknown")


def test_a_job_of_which_nothing_is_known_is_unknown_and_told_what_would_help() -> None:
    answer = ask(view_of("1x4", []), gpus=1, deadline=3600.0)
    assert answer.verdict == "unknown"
    assert "time_limit" in answer.why
    assert "model" in answer.why


def test_a_job_that_is_too_large_for_the_cluster_is_infeasible() -> None:
    answer = ask(view_of("1x4", []), gpus=8, estimate_s=9.0, deadline=3600.0)
    assert (answer.verdict, answer.why) == ("infeasible", "it needs 8 GPUs of one type, and there are 4")


def test_a_budget_is_compared_with_gpu_hours_at_the_price_of_the_nodes() -> None:
    view = make_state([Node("n0", 4, price_per_hour=8.0)]).snapshot()
    cheap = ask(view, gpus=2, estimate_s=3590.0, budget=5.0)
    assert cheap.why == "it ends in about 60 min, and costs about 4 of 5"
    dear = ask(view, gpus=2, estimate_s=3590.0, budget=3.0)
    assert (dear.verdict, dear.why) == ("infeasible", "even on 1 GPU it costs about 3.99; the budget is 3")


def test_a_budget_and_a_deadline_that_exclude_each_other_are_told_together() -> None:
    state, _ = measured_state((1, 2, 4))
    view = replace(state.snapshot(), nodes={"n0": Node("n0", 8, "t4", price_per_hour=8.0)})
    known = view.jobs["a"]
    view = replace(view, jobs={}, allocations={}, lore={"m": known.belief})
    app_job = {"gpus": 1, "gpus_max": 8, "batch": known.spec.batch, "labels": {"model": "m"}}
    slow = ask(view, deadline=view.now + 1e6, budget=1e6, **app_job).forecast
    answer = ask(view, deadline=view.now + 0.3 * (slow.ends_at - view.now), budget=1.02 * slow.cost, **app_job)
    assert answer.verdict == "infeasible"
    assert answer.why.startswith("in time it costs about ")
