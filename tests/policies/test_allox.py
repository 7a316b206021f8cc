"""AlloX: type and order are decided at once, nothing that runs is stopped, and old jobs are not passed for ever."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot, TrueRates
from fairlead.core.types import Node
from fairlead.plugins import make_policy
from fairlead.policies.allox import Allox
from fairlead.testing import GivenJob, check_policy, job, make_view

#: Seconds that a job needs on each GPU type.
Table = Mapping[str, Mapping[str, float]]

FAST, SLOW = Node("n0", 1, "fast", speed=2.0), Node("n1", 1, "slow", speed=1.0)


class Truth:
    """A step oracle by a table: every job has one unit of work left, and every GPU of a gang does its part."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def steps_left(self, _job_id: str) -> float:
        return 1.0

    def step_s(self, job_id: str, _gpus: int) -> float:
        return min(self._table[job_id].values())

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        seconds = self._table[job_id]
        return TrueRates(
            tuple(1.0 / seconds[kind] if kind in seconds else 0.0 for kind, *_ in configurations), 1.0, 1.0
        )

    def workload(self, job_id: str) -> str:
        return job_id


def told(nodes: str | Sequence[Node], jobs: Sequence[GivenJob], table: Table, *, now: float = 0.0) -> Snapshot:
    """A snapshot for oracles; `srtf` is told each job's time on the type that is best for it."""
    oracle = {name: min(seconds.values()) for name, seconds in table.items()}
    return replace(make_view(nodes, jobs, now=now, oracle=oracle), step_oracle=Truth(table))


def on_types(view: Snapshot, policy: str) -> dict[str, str]:
    """The GPU type that each job gets."""
    plan = make_policy(policy).plan(view)
    return {name: view.nodes[where.nodes[0]].gpu_type for name, where in plan.allocations.items()}


# -- what its competitors do not ---------------------------------------------------------------------------------------


def test_the_fast_gpu_goes_to_the_job_that_needs_it_and_not_to_the_shortest() -> None:
    """`short` is nearly as fast on either; shortest first gives it the fast GPU, and the others wait for `long`."""
    table = {"short": {"fast": 10.0, "slow": 11.0}, "long": {"fast": 12.0, "slow": 100.0}}
    view = told([FAST, SLOW], [job("short"), job("long")], table)
    assert on_types(view, "allox-oracle") == {"short": "slow", "long": "fast"}
    assert on_types(view, "srtf") == {"short": "fast", "long": "slow"}


def test_a_job_waits_for_a_fast_gpu_if_it_ends_sooner_that_way() -> None:
    table = {"holder": {"fast": 20.0}, "new": {"fast": 30.0, "slow": 300.0}}
    jobs = [job("holder", on="n0[0]"), job("new")]
    view = told([FAST, SLOW], jobs, table)
    assert on_types(view, "allox-oracle") == {"holder": "fast"}
    told_why = make_policy("allox-oracle").plan(view).reasons["new"]
    assert told_why.code == "faster-type"
    assert told_why.text.startswith("1 slow is free, but it ends sooner on fast, in about 50 s and not 300 s")
    assert (told_why.numbers["here_s"], told_why.numbers["start_in_s"], told_why.numbers["left_s"]) == (
        300.0,
        20.0,
        30.0,
    )
    assert on_types(view, "backfill")["new"] == "slow", "a policy that only looks at what is free starts it"


def test_a_job_takes_the_slow_gpu_if_the_fast_one_is_busy_for_too_long() -> None:
    table = {"holder": {"fast": 20.0}, "new": {"fast": 30.0, "slow": 49.0}}
    assert on_types(told([FAST, SLOW], [job("holder", on="n0[0]"), job("new")], table), "allox-oracle") == {
        "holder": "fast",
        "new": "slow",
    }


def test_a_running_job_is_not_preempted_unless_asked_for() -> None:
    table = {"long": {"gpu": 1000.0}, "short": {"gpu": 1.0}}
    view = told("1x1", [job("long", on="n0[0]"), job("short")], table)
    assert on_types(view, "allox-oracle").keys() == {"long"}
    assert on_types(view, "allox-oracle:preemptive=true").keys() == {"short"}
    assert on_types(view, "srtf").keys() == {"short"}


def test_what_a_start_takes_is_weighed_before_a_job_is_stopped() -> None:
    """`new` is shorter than what is left of `runs`, but not with the start that it needs."""
    table = {"runs": {"gpu": 100.0}, "new": {"gpu": 90.0}}
    view = told("1x1", [job("runs", on="n0[0]"), job("new")], table)
    assert on_types(view, "allox-oracle:preemptive=true").keys() == {"new"}
    jobs = {**view.jobs, "new": replace(view.jobs["new"], start_s=20.0)}
    assert on_types(replace(view, jobs=jobs), "allox-oracle:preemptive=true").keys() == {"runs"}


# -- the share of old jobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "first"), [(0.0, "a"), (0.5, "b"), (1.0, "d")])
def test_the_smaller_alpha_the_closer_to_the_order_of_arrival(alpha: float, first: str) -> None:
    seconds = {"a": 40.0, "b": 30.0, "c": 20.0, "d": 10.0}
    jobs = [job(name, submitted_at=float(at)) for at, name in enumerate(seconds)]
    view = told("1x1", jobs, {name: {"gpu": s} for name, s in seconds.items()}, now=10.0)
    assert on_types(view, f"allox-oracle:alpha={alpha}").keys() == {first}


def test_at_alpha_0_later_jobs_leave_a_wide_job_its_gpus() -> None:
    seconds = {"holder": 100.0, "wide": 100.0, "small": 1.0}
    jobs = [job("holder", on="n0[0]"), job("wide", 4, submitted_at=1.0), job("small", submitted_at=2.0)]
    view = told("1x4", jobs, {name: {"gpu": s} for name, s in seconds.items()}, now=3.0)
    assert on_types(view, "allox-oracle:alpha=0").keys() == {"holder"}
    assert on_types(view, "allox-oracle").keys() == {"holder", "small"}
    check_policy(Allox(alpha=0.0), examples=5)  # which says that it lets no job starve


# -- any cluster -------------------------------------------------------------------------------------------------------


def test_a_job_gets_only_types_that_it_accepts_on_nodes_that_are_open() -> None:
    nodes = [Node("n0", 4, "fast", draining=True), Node("n1", 4, "fast"), Node("n2", 4, "slow")]
    table = {name: {"fast": 10.0, "slow": 100.0} for name in ("a", "b", "c")}
    jobs = [job("a", 4), job("b", 4, gpu_types=("slow",)), job("c", 8, gpu_types=("fast",))]
    plan = make_policy("allox-oracle").plan(told(nodes, jobs, table))
    assert {name: where.nodes for name, where in plan.allocations.items()} == {"a": ("n1",), "b": ("n2",)}
    assert plan.reasons["c"].code == "too-large"


def test_jobs_that_must_not_be_preempted_stay_where_they_are() -> None:
    table = {"fixed": {"fast": 500.0, "slow": 1000.0}, "new": {"fast": 1.0, "slow": 2.0}}
    view = told([FAST, SLOW], [job("fixed", on="n0[0]", preemptible=False), job("new")], table)
    assert on_types(view, "allox-oracle:preemptive=true") == {"fixed": "fast", "new": "slow"}


def test_an_elastic_job_gets_what_it_asked_for() -> None:
    plan = Allox().plan(make_view("2x4", [job("a", 2, gpus_min=1, gpus_max=8)]))
    assert plan.allocations["a"].total == 2


def test_a_short_wide_job_goes_before_a_long_narrow_one_by_gpu_time() -> None:
    """4 GPUs for 10 s are less than 1 GPU for 60 s, and 4 GPUs for 100 s are more."""
    for seconds, first in ((10.0, "wide"), (100.0, "narrow")):
        table = {"wide": {"gpu": seconds}, "narrow": {"gpu": 60.0}}
        view = told("1x4", [job("narrow"), job("wide", 4)], table)
        assert on_types(view, "allox-oracle").keys() == {first}


def test_a_job_of_which_nothing_is_known_counts_as_the_median_and_says_so() -> None:
    known = [job(f"k{n}", submitted_at=0.0, estimate_s=100.0 * n) for n in (1, 2, 3)]
    plan = Allox().plan(make_view("1x4", [*known, job("unknown", submitted_at=1.0)], now=1.0))
    assert plan.reasons["unknown"].text.endswith("about 200 s left on gpu, a guess")
    assert plan.reasons["k1"].text.endswith("about 100 s left on gpu")


def test_a_job_that_outlives_its_promise_is_taken_to_run_on_as_long_as_it_has() -> None:
    """So no job waits for ever for a fast GPU that is about to be free."""
    for promised_s, expected in ((905.0, {"late"}), (5.0, {"late", "new"})):
        jobs = [job("late", on="n0[0]", estimate_s=promised_s), job("new", submitted_at=900.0, estimate_s=100.0)]
        assert Allox().plan(make_view([FAST, SLOW], jobs, now=901.0)).allocations.keys() == expected


def test_the_order_of_jobs_that_come_together_and_the_names_of_types_are_no_information() -> None:
    seconds = {"a": (10.0, 30.0), "b": (12.0, 15.0), "c": (40.0, 45.0), "d": (5.0, 50.0)}
    found = set()
    for order in permutations(seconds):
        for names in (("fast", "slow"), ("x", "a")):
            nodes = [Node("n0", 1, names[0]), Node("n1", 2, names[1])]
            table = {name: dict(zip(names, both, strict=True)) for name, both in seconds.items()}
            given = on_types(told(nodes, [job(name) for name in order], table), "allox-oracle")
            found.add(tuple(sorted((name, names.index(on)) for name, on in given.items())))
    assert len(found) == 1


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["alpha=-0.1", "alpha=1.1", "gangs=no", "gangs=time,round_s=0", "mechanism=no"])
def test_options_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        make_policy(f"allox:{text}")


def test_the_truth_is_asked_for_only_by_the_name_that_says_so() -> None:
    assert needs_of(make_policy("allox-oracle")) == {Capability.ORACLE}
    assert not needs_of(make_policy("allox"))


@pytest.mark.parametrize("text", ["gangs=time", "gangs=time,mechanism=shockwave,round_s=60", "preemptive=true"])
def test_the_contract_is_kept_with_options(text: str) -> None:
    check_policy(make_policy(f"allox:{text}"), examples=10)


def test_as_time_a_gang_is_owed_the_time_that_one_gpu_comes_to_and_keeps_it() -> None:
    table = {"wide": {"gpu": 10.0}, "narrow": {"gpu": 20.0}, "last": {"gpu": 30.0}}
    policy = make_policy("allox-oracle:gangs=time")
    assert isinstance(policy, Allox)
    view = told("1x2", [job("wide", 2), job("narrow"), job("last")], table)
    assert {group[0]: share for (group, _), share in policy.shares(view).items()} == {
        "wide": 0.5,
        "narrow": 1.0,
        "last": 0.0,
    }
    later = replace(view, memo=policy.plan(view).memo, jobs={k: v for k, v in view.jobs.items() if k != "narrow"})
    assert {group[0]: share for (group, _), share in policy.shares(later).items()} == {"wide": 0.5, "last": 1.0}


@pytest.mark.slow
def test_a_thousand_jobs_on_256_gpus_of_three_types_are_decided_in_well_below_a_second() -> None:
    sizes = (("v100", 4.0, 22), ("p100", 2.0, 21), ("k80", 1.0, 21))
    nodes = [Node(f"{kind}-{n}", 4, kind, speed=speed) for kind, speed, count in sizes for n in range(count)]
    jobs = [
        job(f"j{n}", (1, 1, 2, 1, 4)[n % 5], submitted_at=float(n), estimate_s=60.0 + 7919.0 * n % 20_000)
        for n in range(1000)
    ]
    view, took_s = make_view(nodes, jobs, now=5000.0), []
    for _ in range(3):
        policy, began = Allox(), time.process_time()
        assert len(policy.plan(view).allocations) > 100
        took_s.append(time.process_time() - began)
    assert min(took_s) < 1.0


def test_no_time_is_told_where_no_job_tells_how_long_it_runs() -> None:
    plan = make_policy("allox").plan(make_view("1x2", [job("p", 2), job("q", 2)], now=10.0))
    assert "when is not known, as no job tells how long it runs" in plan.reasons["q"].text
    assert "start_in_s" not in plan.reasons["q"].numbers
