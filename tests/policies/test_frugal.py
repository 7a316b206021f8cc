"""Frugal: the search of a job that is alone, a limit for jobs among others; and equal shares, which it wears."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, Policy, run
from fairlead.core.messages import JobReported, JobStopped, Resize, Start, Stop, Tick
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Observation, Phase, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.even import Even
from fairlead.policies.fifo import Fifo
from fairlead.policies.frugal import Frugal
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import Costs
from fairlead.sim.truth import Pace, Setting
from fairlead.sim.world import SimJob
from fairlead.testing import GivenJob, Scenario, check_policy, job, make_state, placement

#: Samples per second: 4 to 12 GPUs scale well (0.9, 0.5), 16 hardly any more (0.08).
RATES = {4: 400.0, 8: 760.0, 12: 950.0, 16: 975.0, 20: 980.0, 24: 985.0}
BATCH = 100


@dataclass(frozen=True)
class Curve:
    """A job of so many samples that trains as a table says, 100 samples per GPU and step."""

    total: float
    rates: Mapping[int, float]

    def pace(self, setting: Setting) -> Pace:
        gpus, nodes = setting.allocation.total, len(setting.allocation.nodes)
        step_s = gpus * BATCH / self.rates[gpus]
        seen = Observation(setting.gpu_type, nodes, gpus, BATCH, 0, step_s, 0.0)
        return Pace(self.rates[gpus], self.total, gpus * BATCH, observation=seen)

    def remaining_s(self, progress: float) -> float:
        return (self.total - progress) / self.rates[4]


def elastic(id: str, gpus: int, *, least: int = 4, most: int = 24, in_place: bool = True) -> JobSpec:
    return JobSpec(id=id, gpus=gpus, gpus_min=least, gpus_max=most, in_place=in_place)


def sizes(policy: Policy, start: int, *, rates: Mapping[int, float] = RATES, in_place: bool = True) -> list[int]:
    """What a job that is alone is given, one after the other."""
    alone = SimJob(elastic("a", start, in_place=in_place), 0.0, Curve(1e6, rates), Costs(5.0, 5.0, 0.0, 2.0))
    journal = MemoryJournal()
    backend = SimBackend([alone], parse_cluster("3x8"))
    run(policy, backend, state=State(), journal=journal, cadence=Cadence.parse("event"))
    return [message.allocation.total for message in journal.messages if isinstance(message, Start | Resize)]


def limits(plan: Plan) -> dict[str, float]:
    return {job_id: reason.numbers["limit"] for job_id, reason in plan.reasons.items() if "limit" in reason.numbers}


# -- alone -----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_alone_grows_while_that_is_worthwhile_and_steps_back() -> None:
    assert sizes(Frugal(), 4) == [4, 8, 12, 16, 12]


def test_a_job_that_began_with_too_many_gpus_finds_the_place_below() -> None:
    # One size says nothing, so it grows first; three steps up have to be worthwhile before nothing smaller is tried.
    assert sizes(Frugal(), 16) == [16, 20, 12, 8, 4, 16, 12]


def test_a_job_that_may_not_grow_looks_below() -> None:
    assert sizes(Frugal(), 24)[:2] == [24, 20]
    assert sizes(Frugal(), 24)[-1] == 12


def test_a_job_that_scales_perfectly_gets_all_there_is() -> None:
    assert sizes(Frugal(), 4, rates={gpus: 100.0 * gpus for gpus in RATES}) == [4, 8, 12, 16, 20, 24]


def test_the_threshold_decides_what_is_worthwhile() -> None:
    assert sizes(Frugal(threshold=0.6), 4) == [4, 8, 12, 8]


def test_a_size_is_left_after_ten_measured_steps_and_given_up_after_a_hundred() -> None:
    alone = SimJob(elastic("a", 4), 0.0, Curve(1e6, RATES), Costs(5.0, 5.0, 0.0, 2.0))
    journal = MemoryJournal()
    run(Frugal(), SimBackend([alone], parse_cluster("3x8")), state=State(), journal=journal, cadence=Cadence())
    at = [message.at for message in journal.messages if isinstance(message, Resize)]
    step_s = {gpus: gpus * BATCH / rate for gpus, rate in RATES.items()}
    # The first step after every change is not measured. A change takes 2 s; of the first one nobody knew, and the
    # policy looked again after 15 s, when it had told its speed and done ten steps long since.
    first = 5.0 + 11 * step_s[4]
    second = first + 15.0
    third = second + 2.0 + 11 * step_s[12]
    assert at == pytest.approx([first, second, third, third + 2.0 + 101 * step_s[16]])


def test_without_changes_in_place_the_job_is_restarted_at_every_size() -> None:
    assert sizes(Frugal(), 4, in_place=False) == [4, 8, 12, 16, 12]


# -- among others ----------------------------------------------------------------------------------------------------


def told(state: State, job_id: str, rates: Mapping[int, float], *, steps: int = 200, gpu_type: str = "gpu") -> None:
    seen = tuple(
        Observation(gpu_type, 1, gpus, BATCH, 0, gpus * BATCH / rate, 0.0, steps) for gpus, rate in rates.items()
    )
    state.apply(JobReported(state.now, job_id, state.live[job_id].attempt, 0.1, observations=seen))


def running(id: str, on: str, gpus: int, **spec: object) -> GivenJob:
    return job(id, gpus, on=on, gpus_min=1, gpus_max=8, in_place=True, **spec)


def test_what_a_job_does_not_put_to_good_use_goes_to_another() -> None:
    jobs = [running("a", "n0[0,1,2,3]", 4), running("b", "n0[4,5,6,7]", 4)]
    state = make_state("1x8", jobs)
    told(state, "a", {2: 200.0, 3: 210.0, 4: 212.0})
    told(state, "b", {2: 200.0, 3: 300.0, 4: 400.0})
    state.apply(Tick(1e4))
    assert placement(Even().plan(state.snapshot())) == {"a": "n0[0,1,2,3]", "b": "n0[4,5,6,7]"}
    plan = Frugal(step=1).plan(state.snapshot())
    assert limits(plan) == {"a": 1, "b": 5}, "one step up from 2 failed, so 1 is tried"
    assert placement(plan) == {"a": "n0[0]", "b": "n0[1,4,5,6,7]"}


def test_a_job_that_told_nothing_has_what_it_asked_for() -> None:
    state = make_state("1x8", [job("a", 2, gpus_min=1, gpus_max=8)], now=50.0)
    plan = Frugal().plan(state.snapshot())
    assert placement(plan) == {"a": "n0[0,1]"}
    assert plan.reasons["a"].text == "gets 2 GPUs: n0[0,1]. It may have up to 2 GPUs."


def test_rigid_jobs_are_left_to_the_inner_policy() -> None:
    state = make_state("1x8", [job("a", 4)])
    plan = Frugal().plan(state.snapshot())
    assert placement(plan) == placement(Even().plan(state.snapshot())) == {"a": "n0[0,1,2,3]"}
    assert limits(plan) == {}


def test_a_job_that_must_not_be_preempted_keeps_what_it_has() -> None:
    state = make_state("1x8", [running("a", "n0[0,1,2,3]", 4, preemptible=False)])
    told(state, "a", {2: 200.0, 3: 210.0, 4: 212.0})
    state.apply(Tick(1e4))
    assert placement(Frugal().plan(state.snapshot())) == {"a": "n0[0,1,2,3]"}


def test_under_a_policy_that_does_not_resize_a_waiting_job_asks_for_less() -> None:
    state = make_state("1x8", [running("a", "n0[0,1,2,3]", 4)])
    told(state, "a", {1: 100.0, 2: 190.0, 3: 195.0, 4: 196.0})
    assert placement(Frugal(Fifo(), step=1).plan(state.snapshot())) == {"a": "n0[0,1,2,3]"}
    state.issue(Stop(1.0, "a", 1))
    state.apply(JobStopped(2.0, "a", 1))
    assert placement(Frugal(Fifo(), step=1).plan(state.snapshot())) == {"a": "n0[0,1]"}


def test_only_gpus_of_its_own_type_say_something() -> None:
    state = make_state("a100=1x8", [running("a", "n0[0,1,2,3]", 4)])
    told(state, "a", {4: 400.0}, gpu_type="a100")
    told(state, "a", {1: 400.0, 2: 400.0}, gpu_type="k80")
    state.apply(Tick(1e4))
    assert limits(Frugal().plan(state.snapshot())) == {"a": 8}


def test_of_several_batches_the_fastest_counts() -> None:
    state = make_state("1x8", [running("a", "n0[0,1]", 2)])
    state.apply(JobReported(0.0, "a", 1, 0.1, observations=(Observation("gpu", 1, 1, 10, 0, 1.0, 0.0, 200),)))
    told(state, "a", {1: 100.0, 2: 105.0})
    state.apply(Tick(1e4))
    # 100 to 105 samples/s is not worthwhile; from 10 samples/s, or from the mean of 10 and 100, it would be.
    assert limits(Frugal(step=1).plan(state.snapshot())) == {"a": 1}


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
def test_during_a_change_nothing_else_is_decided(phase: Phase) -> None:
    state = make_state("1x8", [job("a", 3, on="n0[0,1,2]", gpus_min=1, gpus_max=8, phase=phase)])
    assert limits(Frugal().plan(state.snapshot())) == {"a": 3}


# -- when it looks again ---------------------------------------------------------------------------------------------


def test_it_looks_again_when_enough_was_measured() -> None:
    state = make_state("1x8", [running("a", "n0[0,1,2,3]", 4)])
    assert Frugal(review_s=7.0).plan(state.snapshot()).review_at == 7.0, "it has told nothing yet"
    assert Frugal(review_s=0.0).plan(state.snapshot()).review_at == math.inf
    told(state, "a", {4: 400.0})
    policy = Frugal(Fifo())  # which changes nothing
    assert policy.plan(state.snapshot()).review_at == 11.0, "ten steps of a second, and the first"
    state.apply(Tick(11.0))
    assert policy.plan(state.snapshot()).review_at == 101.0
    state.apply(Tick(101.0))
    assert policy.plan(state.snapshot()).review_at == math.inf


# -- what it says and takes ------------------------------------------------------------------------------------------


def test_its_reasons_tell_what_the_inner_policy_says_and_why_there_is_a_limit() -> None:
    state = make_state("1x8", [running("a", "n0[0,1,2,3]", 4)])
    told(state, "a", {3: 400.0, 4: 401.0})
    state.apply(Tick(1e4))
    reason = Frugal(step=1).plan(state.snapshot()).reasons["a"]
    assert reason.code == "placed"
    assert reason.text.startswith("gets 2 GPUs: n0[0,1]. Goes from 4 to 2 workers: 0 of 3 steps up from 3 were")


@pytest.mark.parametrize("text", ["frugal:threshold=1.1", "frugal:threshold=-1", "frugal:step=0", "frugal:review_s=-1"])
def test_options_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match=text.split(":")[1].split("=")[0]):
        make_policy(text)


@pytest.mark.parametrize("text", ["frugal+pollux", "frugal:step=1+fifo", "autoscale+frugal", "frugal+autoscale"])
def test_it_keeps_the_contract_around_others_and_within(text: str) -> None:
    check_policy(make_policy(text), examples=20)


def test_it_adapts_what_the_policy_it_wears_adapts() -> None:
    assert [make_policy(text).adapts for text in ("frugal", "frugal+pollux", "frugal+fifo")] == [  # type: ignore[attr-defined]
        "gpus",
        "batch",
        "nothing",
    ]
    assert needs_of(make_policy("frugal+srtf")) == {Capability.ORACLE}


# -- equal shares ----------------------------------------------------------------------------------------------------


def test_equal_shares_are_equal_as_far_as_jobs_can_use_them() -> None:
    jobs = [job("small", 1, gpus_min=1, gpus_max=1), job("a", 1, gpus_max=8), job("b", 1, gpus_max=8)]
    Scenario(nodes="2x4", jobs=jobs, expected={"small": 1, "a": 4, "b": 3}).check(Even())


def test_who_comes_when_all_have_the_least_waits() -> None:
    jobs = [job("a", 2, gpus_max=4), job("b", 2, gpus_max=4), job("c", 1)]
    Scenario(nodes="1x4", jobs=jobs, expected={"a": 2, "b": 2}).check(Even())


def test_a_job_shrinks_and_grows_where_it_is() -> None:
    grown = job("a", 1, on="n0[0,1,2,3] n1[0,1,2,3]", gpus_max=8)
    Scenario(
        nodes="2x4", jobs=[grown, job("b", 1, gpus_max=8)], expected={"a": "n0[0,1,2,3]", "b": "n1[0,1,2,3]"}
    ).check(Even())
    alone = job("a", 1, on="n1[2]", gpus_max=6)
    Scenario(nodes="2x4", jobs=[alone], expected={"a": "n0[0,1] n1[0,1,2,3]"}).check(Even())


def test_types_are_not_mixed_and_draining_nodes_get_nobody_new() -> None:
    jobs = [job("a", 1, gpus_max=8), job("b", 1, gpus_max=8), job("c", 1, gpus_max=8, gpu_types=("k80",))]
    plan = Even().plan(make_state("a100=1x4,k80=1x3", jobs).snapshot())
    assert {job_id: allocation.total for job_id, allocation in plan.allocations.items()} == {"a": 2, "b": 2, "c": 3}
    stays = job("a", 1, on="n0[0,1]", gpus_max=2)
    Scenario(nodes="2x2", jobs=[stays], draining=["n0"], expected={"a": "n0[0,1]"}).check(Even())
