"""Optimus: how many GPUs, where, and what it does for jobs whose steps nobody knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.policies.optimus import Optimus
from fairlead.testing import GivenJob, job, make_view, placement


@dataclass(frozen=True)
class Told:
    """Steps that are left, and seconds of a step: the serial part and the part that GPUs divide."""

    steps: Mapping[str, float]
    times: Mapping[str, tuple[float, float]]

    def steps_left(self, job_id: str) -> float:
        return self.steps[job_id]

    def step_s(self, job_id: str, gpus: int) -> float:
        serial, divided = self.times[job_id]
        return serial + divided / gpus


def plan(nodes: str, jobs: list[GivenJob], told: Told, **more: object) -> Plan:
    return Optimus().plan(replace(make_view(nodes, jobs, oracle={}, **more), step_oracle=told))  # type: ignore[arg-type]


def sizes(plan: Plan) -> dict[str, int]:
    return {job_id: allocation.total for job_id, allocation in plan.allocations.items()}


def elastic(job_id: str, most: int = 8, **more: object) -> GivenJob:
    return job(job_id, 1, gpus_min=1, gpus_max=most, **more)  # type: ignore[arg-type]


def test_gpus_go_one_by_one_to_the_job_they_help_most() -> None:
    told = Told({"long": 1000.0, "short": 100.0}, {"long": (0.0, 1.0), "short": (0.0, 1.0)})
    # To `long` a second GPU saves 500 s, a third 167 s, a fourth 83 s and a fifth 50 s; to `short` a second one 50 s.
    assert sizes(plan("1x4", [elastic("long"), elastic("short")], told)) == {"long": 3, "short": 1}
    assert sizes(plan("1x7", [elastic("long"), elastic("short")], told)) == {"long": 5, "short": 2}


def test_of_equal_gains_the_first_job_has_the_best() -> None:
    told = Told(dict.fromkeys("ab", 100.0), dict.fromkeys("ab", (0.0, 1.0)))
    assert sizes(plan("1x3", [elastic("a"), elastic("b")], told)) == {"a": 2, "b": 1}
    assert sizes(plan("1x3", [elastic("b"), elastic("a")], told)) == {"b": 2, "a": 1}


def test_a_gpu_that_helps_nobody_stays_free() -> None:
    told = Told({"a": 100.0}, {"a": (1.0, 0.0)})
    assert sizes(plan("2x4", [elastic("a")], told)) == {"a": 1}


def test_no_job_gets_more_than_it_can_use() -> None:
    told = Told({"a": 100.0, "b": 1.0}, {"a": (0.0, 1.0), "b": (0.0, 1.0)})
    assert sizes(plan("2x4", [elastic("a", most=3), elastic("b", most=2)], told)) == {"a": 3, "b": 2}


def test_first_everyone_gets_the_fewest_it_needs_by_arrival() -> None:
    names = "abcde"
    told = Told(dict.fromkeys(names, 100.0), dict.fromkeys(names, (0.0, 1.0)))
    assert sizes(plan("1x4", [elastic(name) for name in names], told)) == dict.fromkeys("abcd", 1)
    wide = job("a", 3, gpus_min=3, gpus_max=4)
    assert sizes(plan("1x4", [wide, *(elastic(name) for name in "bcde")], told)) == dict.fromkeys("bcde", 1)


def test_a_job_in_its_last_epoch_counts_as_one_step() -> None:
    told = Told({"ends": 0.0, "goes-on": 2.0}, {"ends": (0.0, 1.0), "goes-on": (0.0, 1.0)})
    assert sizes(plan("1x3", [elastic("ends"), elastic("goes-on")], told)) == {"ends": 1, "goes-on": 2}
    assert sizes(plan("1x3", [elastic("ends")], told)) == {"ends": 3}


def test_a_size_it_cannot_run_on_gains_nothing() -> None:
    @dataclass(frozen=True)
    class Upto(Told):
        def step_s(self, job_id: str, gpus: int) -> float:
            return math.inf if gpus > 2 else super().step_s(job_id, gpus)

    told = Upto({"a": 10.0}, {"a": (0.0, 1.0)})
    assert sizes(plan("1x4", [elastic("a")], told)) == {"a": 2}


# -- where -----------------------------------------------------------------------------------------------------------


def test_a_job_that_keeps_its_number_keeps_its_place_and_the_others_go_to_the_emptiest_nodes_small_ones_first() -> None:
    told = Told({"stays": 0.0, "grows": 100.0, "new": 0.0}, dict.fromkeys(("stays", "grows", "new"), (0.0, 1.0)))
    jobs = [elastic("grows", most=4, on="n0[1]"), elastic("stays", most=1, on="n0[0]"), elastic("new", most=1)]
    # `new` goes first, to n1; then `grows` takes the three left on n0, the first of the two, and one on n1.
    plans = plan("2x4", jobs, told)
    on_nodes = {k: {node: len(gpus) for node, gpus in allocation} for k, allocation in plans.allocations.items()}
    assert on_nodes == {"grows": {"n0": 3, "n1": 1}, "stays": {"n0": 1}, "new": {"n1": 1}}
    assert str(plans.allocations["stays"]) == "n0[0]"


def test_nothing_new_goes_to_a_draining_node_and_what_is_there_may_stay() -> None:
    told = Told({"a": 1.0, "b": 1.0}, dict.fromkeys("ab", (0.0, 1.0)))
    jobs = [elastic("a", most=1, on="n0[0]"), elastic("b", most=8)]
    plans = plan("2x4", jobs, told, draining=["n0"])
    assert placement(plans) == {"a": "n0[0]", "b": "n1[0,1,2]"}  # one GPU of n1 is counted for `a`, which may move


def test_a_job_that_must_not_be_preempted_stays_as_it_is() -> None:
    told = Told({"a": 1000.0, "b": 1.0}, dict.fromkeys("ab", (0.0, 1.0)))
    jobs = [elastic("a", on="n0[0,1]", preemptible=False), elastic("b")]
    assert placement(plan("1x4", jobs, told)) == {"a": "n0[0,1]", "b": "n0[2,3]"}


def test_a_job_runs_on_one_type_and_those_that_wait_go_where_the_fewest_are() -> None:
    names = ("runs", "picky", "free")
    told = Told(dict.fromkeys(names, 10.0), dict.fromkeys(names, (0.0, 1.0)))
    jobs = [
        elastic("runs", most=2, on="n1[0,1]"),
        elastic("picky", most=2, gpu_types=("v100",)),
        elastic("free", most=2),
    ]
    plans = plan("v100=1x4,t4=1x4", jobs, told)
    assert sizes(plans) == {"runs": 2, "picky": 2, "free": 2}
    assert plans.allocations["picky"].nodes == ("n0",)
    assert plans.allocations["runs"].nodes == ("n1",)


# -- what it knows and says ------------------------------------------------------------------------------------------


def view(nodes: str, jobs: list[GivenJob], oracle: Mapping[str, float] | None) -> Snapshot:
    return make_view(nodes, jobs, oracle=oracle)


def test_where_nobody_knows_of_steps_it_shares_out_by_the_seconds_left() -> None:
    jobs = [job("long", 2, gpus_min=1, gpus_max=8), job("short", 2, gpus_min=1, gpus_max=8)]
    assert sizes(Optimus().plan(view("1x8", jobs, {"long": 1000.0, "short": 100.0}))) == {"long": 6, "short": 2}


def test_without_an_oracle_it_says_what_it_needs() -> None:
    with pytest.raises(InvalidSpec, match="optimus is an oracle: it needs true step times"):
        Optimus().plan(view("1x4", [elastic("a")], None))


def test_every_job_is_told_why_by_the_fewest_gpus_it_needs() -> None:
    told = Told(dict.fromkeys("abcd", 1.0), dict.fromkeys("abcd", (0.0, 1.0)))
    jobs = [elastic("a"), job("b", 4, gpus_min=2, gpus_max=8), job("c", 8, gpus_min=2, gpus_max=8)]
    jobs.append(job("d", 9, gpus_min=9, gpus_max=9))
    reasons = plan("1x4", jobs, told).reasons
    assert {job_id: reasons[job_id].code for job_id in reasons} == {
        "a": "placed",
        "b": "placed",
        "c": "waiting",
        "d": "too-large",
    }
    assert reasons["c"].numbers["needs"] == 2
