"""What Shockwave does that its competitors do not, and what holds whatever the workload is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.plugins import make_policy
from fairlead.policies.shockwave import Shockwave, ShockwaveElastic
from fairlead.policies.shockwave.reference_share import ReferenceWorld, Speeds
from fairlead.sim.experiment import Experiment, Result, run_experiment
from fairlead.testing import job, make_view

#: More work than four GPUs can do at once: jobs of several widths and lengths, some of which come later.
WORK = [(1, 3000.0, 0.0), (2, 900.0, 0.0), (4, 600.0, 60.0), (1, 300.0, 90.0), (1, 4000.0, 400.0), (2, 1200.0, 700.0)]


def trace(path: Path, work: list[tuple[int, float, float]], *, scale: float = 1.0) -> str:
    """A trace of jobs (GPUs, seconds, when they come), all times multiplied."""
    rows = [f"j{at},{come * scale},{gpus},{length * scale}" for at, (gpus, length, come) in enumerate(work)]
    path.write_text("\n".join(["id,submit_s,gpus,duration_s", *rows, ""]))
    return str(path)


def run(path: str, policy: str = "shockwave", **more: object) -> Result:
    options = {"cluster": "1x4", "costs": "none", "cadence": "event", **more}
    return run_experiment(Experiment(trace=path, policy=policy, **options))  # type: ignore[arg-type]


def ends(result: Result) -> dict[str, float]:
    return {each.job: float(each.ended_at or np.inf) for each in result.jobs}


def a_view(now: float = 0.0) -> Snapshot:
    jobs = [
        job("long", 1, on="n0[0]", estimate_s=9000.0),
        job("short", 1, estimate_s=300.0),
        job("wide", 2, estimate_s=600.0),
    ]
    return make_view("1x2", jobs, now=now)


def after(view: Snapshot, plan: Plan, now: float) -> Snapshot:
    return replace(view, now=now, memo=plan.memo)


def test_reasons_tell_the_price_the_rounds_planned_and_the_share_owed() -> None:
    jobs = [*a_view().jobs.values()]
    assert Shockwave().plan(a_view()).reasons["long"].numbers["price"] == 0.0, "all of them fit into the window"
    more = [job(f"more{at}", 1, estimate_s=5000.0) for at in range(4)]
    given = [job(each.id, each.spec.gpus, estimate_s=each.spec.estimate_s) for each in jobs]
    plan = Shockwave().plan(make_view("1x2", [*given, *more]))
    for name in ("long", "short", "wide"):
        numbers = plan.reasons[name].numbers
        assert numbers["owed"] == pytest.approx(numbers["rounds_planned"] / 40)
        assert numbers["price"] > 0.0
    assert "a GPU-round" in plan.reasons["long"].text
    assert plan.bound is not None
    assert 0.0 <= plan.bound < 0.1


@pytest.mark.parametrize("policy", ["shockwave", "shockwave-elastic"])
def test_reasons_tell_the_rounds_received_and_of_elastic_jobs_the_end_with_an_equal_share(policy: str) -> None:
    jobs = [job(f"j{at}", 2, gpus_min=1, gpus_max=2, estimate_s=9000.0) for at in range(8)]
    plan = make_policy(policy).plan(make_view("1x4", jobs))
    for name, reason in ((each.id, plan.reasons[each.id]) for each in make_view("1x4", jobs).jobs.values()):
        assert reason.numbers["rounds_received"] == reason.numbers["received"] == (name in plan.allocations)
        assert "doublings of progress a GPU-round" in reason.text
        if policy == "shockwave-elastic":  # 18,000 GPU-seconds on an eighth of four GPUs
            assert reason.numbers["reference_end_s"] == pytest.approx(36_000.0)
            assert "with an equal share of the cluster it would end in 36000 s" in reason.text


def test_a_fresh_policy_in_the_middle_of_a_round_goes_on_with_the_same_counts_and_prices() -> None:
    view = a_view()
    first = Shockwave().plan(view)
    later = after(view, first, 60.0)
    one, other = Shockwave().plan(later), Shockwave().plan(later)
    assert one.memo == other.memo
    assert one.memo["shockwave"]["count"] == first.memo["shockwave"]["count"]
    assert one.memo["shockwave"]["price"] == first.memo["shockwave"]["price"]
    assert one.review_at == first.review_at == 120.0


def test_within_a_round_nothing_that_runs_is_stopped() -> None:
    view = a_view()
    plan = Shockwave().plan(view)
    later = after(view, plan, 60.0)
    assert Shockwave().plan(later).allocations.items() >= later.allocations.items()


def test_jobs_that_are_alike_are_treated_alike_whatever_they_are_called(tmp_path: Path) -> None:
    one = run(trace(tmp_path / "a.csv", WORK))
    renamed = WORK[1::-1] + WORK[2:]  # both came at the same time
    other = run(trace(tmp_path / "b.csv", renamed))
    assert sorted(ends(one).values()) == pytest.approx(sorted(ends(other).values()))


def test_units_are_no_information(tmp_path: Path) -> None:
    one = ends(run(trace(tmp_path / "a.csv", WORK)))
    other = ends(run(trace(tmp_path / "b.csv", WORK, scale=8.0), "shockwave:round_s=960"))
    assert [other[name] for name in one] == pytest.approx([8.0 * at for at in one.values()])


def test_an_idle_cluster_is_fair(tmp_path: Path) -> None:
    result = run(trace(tmp_path / "a.csv", [(1, 500.0, 0.0), (2, 800.0, 10.0)]))
    assert result.metrics.rho_worst == pytest.approx(1.0)
    assert result.metrics.queue_mean_s == 0.0


def test_a_long_job_runs_from_the_start_if_the_makespan_rests_on_it(tmp_path: Path) -> None:
    """Shortest first would run it last. The short jobs fit beside it."""
    work = [(1, 6000.0, 0.0), *[(1, 600.0, 0.0)] * 12]
    assert run(trace(tmp_path / "a.csv", work)).metrics.makespan_s == pytest.approx(6000.0, rel=0.05)
    assert run(trace(tmp_path / "a.csv", work), "srtf").metrics.makespan_s == pytest.approx(7800.0)


def test_a_job_is_not_starved_by_a_stream_of_shorter_ones(tmp_path: Path) -> None:
    work = [(4, 600.0, 0.0), *[(1, 300.0, 70.0 * at) for at in range(120)]]
    result = run(trace(tmp_path / "a.csv", work))
    assert ends(result)["j0"] < 6000.0


def test_an_elastic_market_without_freedom_gives_each_job_what_it_asks_for(tmp_path: Path) -> None:
    result = run(trace(tmp_path / "a.csv", WORK), "shockwave-elastic")
    assert result.metrics.completed == len(WORK)
    assert all(each.held_gpu_s == pytest.approx(each.gpus * each.held_s) for each in result.jobs)


def test_a_job_that_is_alone_grows_to_what_it_can_use() -> None:
    lone = job("a", 1, gpus_min=1, gpus_max=4, estimate_s=9000.0)
    assert ShockwaveElastic().plan(make_view("1x4", [lone])).allocations["a"].total == 4


def test_a_wide_job_is_served_narrow_while_others_wait() -> None:
    jobs = [job(f"j{at}", 2, gpus_min=1, gpus_max=2, estimate_s=9000.0) for at in range(8)]
    plan = ShockwaveElastic().plan(make_view("1x4", jobs))
    assert sum(each.total for each in plan.allocations.values()) == 4


def test_with_a_slice_of_the_cluster_jobs_end_as_in_the_reference_world() -> None:
    world = ReferenceWorld(0.0)
    world.update({"a": Speeds((1,), (0.01,)), "b": Speeds((1, 2), (0.01, 0.015))}, 2)
    assert world.forecast().finish == {"a": pytest.approx(100.0), "b": pytest.approx(100.0)}
    world.advance(50.0)
    world.update({"b": Speeds((1, 2), (0.01, 0.015)), "c": Speeds((1,), (0.005,))}, 2)
    assert world.left["a"] == pytest.approx(0.5)  # it has ended in the real cluster, and keeps its slice here
    assert world.forecast().finish["b"] == pytest.approx(50.0 + 0.5 / (0.01 * 2 / 3))
    again = ReferenceWorld.of(world.memo(), 50.0)
    assert again.forecast().finish == world.forecast().finish


@pytest.mark.parametrize(
    "text",
    [
        "shockwave:window=0",
        "shockwave:round_s=0",
        "shockwave:keep=0.5",
        "shockwave-elastic:aim=0",
        "shockwave:resolve_every=0",
    ],
)
def test_options_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        make_policy(text)


@pytest.mark.parametrize("policy", ["shockwave", "shockwave-elastic"])
def test_jobs_that_must_not_be_stopped_take_no_part_in_the_market_and_are_said_to(policy: str) -> None:
    view = make_view("1x4", [job("firm", 4, on="n0[0,1,2,3]", preemptible=False), job("one", 1)], now=10.0)
    reasons = make_policy(policy).plan(view).reasons
    assert "it must not be stopped, and takes no part in the market" in reasons["firm"].text
    assert "no rounds are for sale: all GPUs are held by jobs that must not be stopped" in reasons["one"].text


def test_an_elastic_job_starts_on_the_fastest_type_that_has_room(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,submit_s,gpus,duration_s\na,0,1,900\nb,40,1,900\n")
    for cluster in ("v100=2x4,a100=2x4", "a100=2x4,v100=2x4"):
        asked = Experiment(trace=str(trace), policy="shockwave-elastic", cluster=cluster, speeds="v100=1,a100=2")
        assert [each.rho for each in run_experiment(asked).measured.jobs] == pytest.approx([1.0, 1.0], abs=0.005)
