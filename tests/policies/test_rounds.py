"""Rounds: shares of time in, a plan out. Small clusters by hand, and long runs in which shares come true."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InvalidSpec
from fairlead.core.loop import Cadence, run
from fairlead.core.memo import difference, patched
from fairlead.core.messages import (
    JobExited,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    Remember,
    Start,
    Stop,
    Tick,
    decode,
    encode,
)
from fairlead.core.plan import changes, check
from fairlead.core.snapshot import Snapshot
from fairlead.core.state import State
from fairlead.core.types import JobSpec, Phase, Plan
from fairlead.journal import MemoryJournal
from fairlead.plugins import make_policy
from fairlead.policies.isolated import Isolated
from fairlead.policies.round_account import Account, Reset
from fairlead.policies.rounds import GAVEL, Owed, RoundOptions, next_round, round_options
from fairlead.sim.backend import SimBackend
from fairlead.sim.cluster import parse_cluster
from fairlead.sim.costs import FREE, Costs
from fairlead.sim.truth import FixedDuration
from fairlead.sim.world import SimJob
from fairlead.testing import GivenJob, PolicyContractError, job, make_state, make_view
from fairlead.testing.scenario import placement
from fairlead.testing.workload import check_starvation

ROUND_S = 100.0
OURS = RoundOptions(ROUND_S)


def alone(**shares: float) -> dict[tuple[tuple[str, ...], str], float]:
    """Shares on GPUs of the one type, by job."""
    return {((name,), "gpu"): share for name, share in shares.items()}


@dataclass(frozen=True)
class Owing:
    """A policy that owes what it was told to owe."""

    shares: Owed
    options: RoundOptions = OURS
    seen: list[float] = field(default_factory=list, compare=False)

    def plan(self, view: Snapshot) -> Plan:
        live = {key: share for key, share in self.shares.items() if all(name in view.jobs for name in key[0])}
        self.seen.append(view.now)
        return next_round(view, live, self.options)


def decide(state: State, owed: Owed | Callable[[], Owed], options: RoundOptions = OURS) -> Plan:
    """A plan that is checked, and carried out as far as the state goes."""
    view = state.snapshot()
    plan = next_round(view, owed, options)
    check(view, plan, changes(view, plan))
    if patch := difference(view.memo, plan.memo):
        state.issue(Remember(view.now, patch))
    return plan


def carry_out(state: State, plan: Plan) -> None:
    """All of it, at once."""
    for name, found in list(state.live.items()):
        if found.allocation and plan.allocations.get(name) != found.allocation:
            state.issue(Stop(state.now, name, found.attempt))
            state.apply(JobStopped(state.now, name, found.attempt))
    for name, allocation in plan.allocations.items():
        found = state.live[name]
        if not found.allocation:
            state.issue(Start(state.now, name, found.attempt + 1, allocation))
            state.apply(JobStarted(state.now, name, found.attempt + 1))


def served(policy: Any, jobs: Mapping[str, int], cluster: str, *, until: float, costs: Costs = FREE) -> State:
    """The state after so long, of jobs that never end: their GPUs by id."""
    sims = [
        SimJob(JobSpec(id=name, gpus=gpus), 0.0, FixedDuration(1e9, gpus), costs, cancel_at=until)
        for name, gpus in jobs.items()
    ]
    state = State()
    run(policy, SimBackend(sims, parse_cluster(cluster)), state=state, journal=MemoryJournal(), cadence=Cadence())
    return state


# -- selection -------------------------------------------------------------------------------------------------------


def test_two_jobs_on_one_gpu_take_turns_and_each_has_its_share() -> None:
    state = served(Owing(alone(a=0.75, b=0.25)), {"a": 1, "b": 1}, "1x1", until=40_000.0)
    ran = {name: found.run_s for name, found in state.finished.items()}
    assert ran["a"] == pytest.approx(30_000.0, abs=2 * ROUND_S)
    assert ran["b"] == pytest.approx(10_000.0, abs=2 * ROUND_S)


@settings(max_examples=10, deadline=None, derandomize=True, phases=[HypothesisPhase.generate])
@given(
    sizes=st.lists(st.sampled_from([1, 1, 2]), min_size=3, max_size=6),
    weights=st.lists(st.floats(0.2, 1.0), min_size=6, max_size=6),
)
def test_shares_that_the_cluster_can_hold_come_true(sizes: list[int], weights: list[float]) -> None:
    """At 75 % of the GPU-time there is room for jobs of one GPU and of two to have their turns side by side."""
    load = sum(size * weight for size, weight in zip(sizes, weights, strict=False))
    shares = {f"j{n}": min(1.0, 0.75 * 4 * weights[n] / load) for n in range(len(sizes))}
    jobs = {f"j{n}": size for n, size in enumerate(sizes)}
    state = served(Owing(alone(**shares)), jobs, "1x4", until=20_000.0)
    for name, share in shares.items():
        assert state.finished[name].run_s >= share * 20_000.0 - 1.5 * ROUND_S, (shares, jobs, name)


def test_a_job_that_is_selected_again_is_never_stopped_nor_moved() -> None:
    """Three jobs fit for ever, two take turns: those three start once."""
    shares = alone(a=1.0, b=1.0, c=1.0, d=0.5, e=0.5)
    state = served(Owing(shares), dict.fromkeys("abcde", 1), "2x2", until=10_000.0, costs=Costs(start_s=5.0))
    attempts = {name: found.attempt for name, found in state.finished.items()}
    assert [attempts[name] for name in "abc"] == [1, 1, 1]
    assert attempts["d"] > 10


def test_free_gpus_go_to_jobs_that_are_owed_nothing() -> None:
    view = make_view("1x4", [job("a", 1), job("b", 2), job("c", 1)])
    plan = next_round(view, alone(a=1.0, b=0.0), OURS)
    assert {name: found.total for name, found in plan.allocations.items()} == {"a": 1, "b": 2, "c": 1}
    kept = next_round(view, alone(a=1.0, b=0.0), replace(OURS, leftovers="keep"))
    assert list(kept.allocations) == ["a"]


def test_a_job_of_many_gpus_that_is_behind_gets_all_of_them_at_once() -> None:
    state = make_state("1x4", [job("wide", 4), *(job(f"s{n}", 1, on=f"n0[{n}]") for n in range(4))])
    owed = alone(wide=0.2, s0=0.8, s1=0.8, s2=0.8, s3=0.8)
    for turn in (1, 2):
        assert "wide" not in decide(state, owed).allocations
        state.apply(Tick(turn * ROUND_S))
    assert placement(decide(state, owed)) == {"wide": "n0[0,1,2,3]"}


def test_those_that_start_are_placed_largest_first_on_the_fewest_nodes() -> None:
    view = make_view("2x4", [job("a", 1), job("b", 3), job("c", 4)])
    plan = next_round(view, alone(a=1.0, b=1.0, c=1.0), OURS)
    assert placement(plan) == {"a": "n1[3]", "b": "n1[0,1,2]", "c": "n0[0,1,2,3]"}


@pytest.mark.slow
def test_a_stream_of_small_jobs_starves_a_large_one_by_gavels_ratio_and_not_by_deadlines() -> None:
    check_starvation(Isolated())
    with pytest.raises(PolicyContractError, match="a job that needs all 8 GPUs waited"):
        check_starvation(Isolated(mechanism="gavel"))


# -- within a round --------------------------------------------------------------------------------------------------


def test_within_a_round_an_end_fills_free_gpus_and_moves_nothing() -> None:
    state = make_state("1x4", [job("a", 2), job("b", 2), job("c", 2), job("d", 1)])
    owed = alone(a=0.5, b=0.5, c=0.5, d=0.1)
    carry_out(state, plan := decide(state, owed))
    assert (set(plan.allocations), plan.review_at) == ({"a", "b"}, ROUND_S)
    state.apply(JobExited(30.0, "a", 1))
    later = decide(state, alone(b=0.5, c=0.5, d=0.1))
    assert later.allocations["b"] == plan.allocations["b"]
    assert later.allocations["c"] == plan.allocations["a"]
    assert later.review_at == ROUND_S


def test_within_a_round_a_job_that_comes_waits_for_its_end_unless_gpus_are_free() -> None:
    state = make_state("1x2", [job("a", 2)])
    carry_out(state, decide(state, alone(a=1.0)))
    state.apply(JobSubmitted(20.0, JobSpec(id="b", gpus=1)))
    plan = decide(state, alone(a=0.5, b=1.0))
    assert list(plan.allocations) == ["a"]
    assert "job a holds 2 until it ends, or the round ends in 80 s" in plan.reasons["b"].text
    state.apply(Tick(ROUND_S))
    assert list(decide(state, alone(a=0.5, b=1.0)).allocations) == ["b"]


def test_a_round_in_which_nothing_runs_any_more_is_over() -> None:
    state = make_state("1x2", [job("a", 2)])
    carry_out(state, decide(state, alone(a=1.0)))
    state.apply(JobExited(20.0, "a", 1))
    state.apply(JobSubmitted(30.0, JobSpec(id="b")))
    assert decide(state, alone(b=1.0)).review_at == 30.0 + ROUND_S


def test_without_jobs_there_is_nothing_to_review() -> None:
    assert next_round(make_view("1x2"), {}, OURS).review_at == float("inf")


# -- what may not be moved -------------------------------------------------------------------------------------------


def test_a_job_that_must_not_be_preempted_stays_whatever_is_owed() -> None:
    state = make_state("1x2", [job("a", 2, on="n0[0,1]", preemptible=False), job("b", 1)], now=500.0)
    assert placement(decide(state, alone(a=0.0, b=1.0))) == {"a": "n0[0,1]"}


def test_on_a_draining_node_a_job_may_stay_but_none_starts() -> None:
    jobs = [job("a", 2, on="n0[0,1]"), job("b", 2)]
    view = make_view("2x2", jobs, draining=["n0"])
    plan = next_round(view, alone(a=1.0, b=1.0), OURS)
    assert placement(plan) == {"a": "n0[0,1]", "b": "n1[0,1]"}


def test_a_job_that_starts_for_longer_than_a_round_is_not_given_up() -> None:
    jobs = [job("a", 1, on="n0[0]", phase=Phase.STARTING), job("b", 1)]
    state = make_state("1x1", jobs)
    owed = alone(a=0.5, b=0.5)
    for turn in range(1, 4):
        assert list(decide(state, owed).allocations) == ["a"], turn
        state.apply(Tick(turn * ROUND_S))


def test_what_a_lost_node_took_is_made_good() -> None:
    """Job a is served for a round, loses its node, and goes first as soon as there are GPUs again."""
    state = make_state("2x1", [job("a", 1), job("b", 1)])
    owed = alone(a=1.0, b=1.0)
    carry_out(state, plan := decide(state, owed))
    state.apply(NodeLost(50.0, plan.allocations["a"].nodes[0]))
    assert list(decide(state, owed).allocations) == ["b"]
    state.apply(Tick(ROUND_S))
    then = decide(state, owed)
    assert list(then.allocations) == ["a"]
    assert then.reasons["b"].code == "preempted"


# -- GPU types and groups --------------------------------------------------------------------------------------------


def test_a_job_owed_two_types_is_on_one_at_a_time_and_on_each_for_its_share() -> None:
    owed = {(("a",), "fast"): 0.3, (("a",), "slow"): 0.7, (("b",), "fast"): 0.7, (("b",), "slow"): 0.3}
    state = served(Owing(owed), {"a": 1, "b": 1}, "fast=1x1,slow=1x1", until=40_000.0)
    for name, fast in (("a", 0.3), ("b", 0.7)):
        seconds = state.finished[name].served_s
        assert seconds["fast"] == pytest.approx(fast * 40_000.0, abs=1_000.0)
        assert sum(seconds.values()) == pytest.approx(40_000.0, abs=1.0)


def test_a_type_that_is_missing_beside_others_is_never_given() -> None:
    view = make_view("fast=1x1,slow=1x1", [job("a", 1), job("b", 1)])
    plan = next_round(view, {(("a",), "fast"): 1.0, (("b",), "fast"): 0.5}, OURS)
    assert placement(plan) == {"a": "n0[0]"}
    assert plan.reasons["b"].text.startswith("needs 1 GPU, 0 are free; job a holds 1 and goes first")


def test_a_type_that_a_job_does_not_accept_is_not_given_even_if_it_is_owed() -> None:
    view = make_view("fast=1x1,slow=1x1", [job("a", 1, gpu_types=("slow",))])
    plan = next_round(view, {(("a",), "fast"): 1.0, (("a",), "slow"): 0.0}, OURS)
    assert placement(plan) == {"a": "n1[0]"}


def test_a_group_shares_its_gpus_and_keeps_them() -> None:
    state = make_state("1x4", [job("a", 2), job("b", 2), job("c", 2)])
    owed = {(("a", "b"), "gpu"): 0.8, (("a",), "gpu"): 0.1, (("b",), "gpu"): 0.1, (("c",), "gpu"): 1.0}
    view = state.snapshot()
    plan = decide(state, owed)
    assert plan.allocations["a"] == plan.allocations["b"] != plan.allocations["c"]
    assert plan.packed == {frozenset({"a", "b"})}
    assert view.memo == {}
    for name in plan.allocations:
        state.issue(Start(0.0, name, 1, plan.allocations[name]))
        state.apply(JobStarted(0.0, name, 1))
    state.apply(Tick(ROUND_S))
    again = decide(state, owed)
    assert again.allocations == plan.allocations
    deficit = again.memo["rounds"]["deficit"]
    assert deficit["a\x1fb"]["gpu"] == pytest.approx(-0.2 * ROUND_S)
    assert deficit["a"]["gpu"] == pytest.approx(0.1 * ROUND_S)


def test_jobs_of_different_sizes_cannot_share_their_gpus() -> None:
    view = make_view("1x4", [job("a", 1), job("b", 2)])
    with pytest.raises(InvalidSpec, match="a wants 1, b wants 2"):
        next_round(view, {(("a", "b"), "gpu"): 1.0}, OURS)


def test_what_a_group_was_owed_goes_to_the_job_that_is_left_of_it() -> None:
    state = make_state("1x1", [job("a", 1), job("b", 1)])
    decide(state, {(("a", "b"), "gpu"): 1.0}, replace(GAVEL, round_s=ROUND_S))
    state.replay(Tick(10.0))
    memo = state.snapshot().memo
    view = replace(make_view("1x1", [job("a", 1)], now=10.0), memo=memo)
    plan = next_round(view, {(("a",), "gpu"): 1.0}, OURS)
    assert plan.memo["rounds"]["owed"] == {"a": {"gpu": 1.0}}
    assert Account.of(view).owed == {(("a",), "gpu"): 1.0}


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_plain_json_and_a_restart_in_the_middle_of_a_round_goes_on_with_it() -> None:
    state = make_state("1x1", [job("a", 1), job("b", 1)])
    owed = alone(a=0.6, b=0.4)
    carry_out(state, decide(state, owed))
    state.apply(Tick(40.0))
    memo = state.snapshot().memo
    assert json.loads(json.dumps(memo)) == memo
    again = replace(state.snapshot(), memo=patched({}, json.loads(json.dumps(memo))))
    assert next_round(again, owed, OURS).memo == next_round(state.snapshot(), owed, OURS).memo


def test_a_service_that_is_restarted_in_the_middle_of_a_round_goes_on_with_the_same_debts() -> None:
    """The journal so far is replayed into a fresh state: its next plan, and all after it, are those of the first."""
    policy, journal = Owing(alone(a=0.6, b=0.3, c=0.1)), MemoryJournal()
    sims = [SimJob(JobSpec(id=name), 0.0, FixedDuration(1e9, 1), cancel_at=4_030.0) for name in "abc"]
    state = State()
    run(policy, SimBackend(sims, parse_cluster("1x1")), state=state, journal=journal, cadence=Cadence())
    messages = list(journal)
    half = next(at for at, message in enumerate(messages) if message.at > 2_000.0)
    first, again = State(), State()
    for message in messages[:half]:
        first.replay(message)
        again.replay(decode(json.loads(json.dumps(encode(message)))))
    for turn in range(21, 30):
        for each in (first, again):
            each.apply(Tick(turn * ROUND_S + 50.0))
        plans = [decide(each, policy.shares) for each in (first, again)]
        assert plans[0].allocations == plans[1].allocations
        assert plans[0].memo == plans[1].memo
        for each, plan in zip((first, again), plans, strict=True):
            carry_out(each, plan)


def test_the_account_forgets_jobs_that_have_ended() -> None:
    policy = Owing({})
    state = make_state("1x1", [job("a", 1)])
    carry_out(state, decide(state, alone(a=1.0)))
    state.apply(JobExited(50.0, "a", 1))
    state.apply(JobSubmitted(60.0, JobSpec(id="b")))
    memo = decide(state, alone(b=1.0)).memo["rounds"]
    assert "a" not in json.dumps({name: memo[name] for name in ("owed", "received", "deficit", "served", "group")})
    assert policy.seen == []


def test_time_before_the_first_decision_is_not_counted_as_received() -> None:
    view = make_view("1x1", [job("a", 1, on="n0[0]"), job("b", 1, submitted_at=900.0)], now=1000.0)
    deficit = next_round(view, alone(a=0.5, b=0.5), OURS).memo["rounds"]["deficit"]
    assert deficit == {"a": {"gpu": 0.0}, "b": {"gpu": 0.0}}


def test_gpus_that_no_other_job_wanted_are_not_held_against_a_job() -> None:
    """Job a is owed a tenth and had all of a long time; then b comes, and a has its tenth from there on."""
    state = make_state("1x1", [job("a", 1)])
    carry_out(state, decide(state, alone(a=0.1)))
    state.apply(Tick(100 * ROUND_S))
    decide(state, alone(a=0.1))
    state.apply(JobSubmitted(100 * ROUND_S, JobSpec(id="b")))
    turns = []
    for turn in range(101, 141):
        state.apply(Tick(turn * ROUND_S))
        carry_out(state, plan := decide(state, alone(a=0.1, b=0.9)))
        turns += plan.allocations
    assert turns.count("a") == 3


def test_what_start_up_costs_is_shared_in_proportion() -> None:
    """Two jobs take turns and lose a fifth of each to their starts; a third, owed all the time, bears its part."""
    shares, costs = {"a": 1.0, "b": 0.5, "c": 0.5}, Costs(start_s=20.0, restart_s=20.0)
    state = served(Owing(alone(**shares)), dict.fromkeys("abc", 1), "1x2", until=40_000.0, costs=costs)
    met = [state.finished[name].run_s / (share * 40_000.0) for name, share in shares.items()]
    assert min(met) >= 0.85
    assert max(met) - min(met) <= 0.05


# -- order and units are no information ------------------------------------------------------------------------------


def test_the_order_of_shares_is_no_information() -> None:
    jobs = [job(name, size) for name, size in zip("abcde", (1, 2, 1, 3, 2), strict=True)]
    owed = {((name,), kind): share for name in "abcde" for kind, share in (("fast", 0.2), ("slow", 0.3))}
    backwards = dict(reversed(owed.items()))
    one = next_round(make_view("fast=1x4,slow=1x4", jobs), owed, OURS)
    other = next_round(make_view("slow=1x4,fast=1x4", jobs), backwards, OURS)
    kinds = [{n.id: n.gpu_type for n in parse_cluster(text)} for text in ("fast=1x4,slow=1x4", "slow=1x4,fast=1x4")]
    found = [
        {name: (kind[where.nodes[0]], where.total) for name, where in plan.allocations.items()}
        for plan, kind in zip((one, other), kinds, strict=True)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [OURS, replace(GAVEL, round_s=ROUND_S, account=Reset(500.0))])
def test_a_change_of_units_changes_no_decision(options: RoundOptions) -> None:
    shares, jobs = alone(a=0.5, b=0.3, c=0.7), {"a": 2, "b": 1, "c": 1}
    factor = 64.0
    slower = replace(options, round_s=factor * ROUND_S)
    account = slower.account
    longer = Reset(account.renewal_s * factor) if isinstance(account, Reset) else account
    one = served(Owing(shares, options), jobs, "1x2", until=5_000.0)
    other = served(Owing(shares, replace(slower, account=longer)), jobs, "1x2", until=5_000.0 * factor)
    for name in jobs:
        assert other.finished[name].run_s == pytest.approx(factor * one.finished[name].run_s)


def test_jobs_that_are_alike_are_treated_alike_over_time() -> None:
    state = served(Owing(alone(**dict.fromkeys("abcde", 0.4))), dict.fromkeys("abcde", 1), "1x2", until=50_000.0)
    ran = [found.run_s for found in state.finished.values()]
    assert max(ran) - min(ran) <= 2 * ROUND_S


# -- Gavel's bookkeeping ---------------------------------------------------------------------------------------------

RESET = replace(GAVEL, round_s=ROUND_S, account=Reset(renewal_s=500.0))


def gavel_state(*jobs: GivenJob) -> State:
    """At 10 s: a renewal at time 0 does not count."""
    return make_state("1x2", jobs, now=10.0)


def test_gavel_renews_shares_only_after_a_job_came_or_left_and_not_too_often() -> None:
    calls: list[float] = []
    state = gavel_state(job("a", 1), job("b", 1))

    def owed() -> Owed:
        calls.append(state.now)
        return alone(**dict.fromkeys(state.live, 0.5))

    for at in (10.0, 110.0, 600.0):
        state.apply(Tick(at))
        carry_out(state, decide(state, owed, RESET))
    assert calls == [10.0]
    state.apply(JobSubmitted(620.0, JobSpec(id="c")))
    decide(state, owed, RESET)
    assert calls == [10.0, 620.0]


def test_gavel_lets_a_job_that_comes_wait_for_the_renewal_and_keeps_gpus_free_for_it() -> None:
    state = gavel_state(job("a", 1))
    carry_out(state, decide(state, alone(a=1.0), RESET))
    state.apply(JobSubmitted(50.0, JobSpec(id="b")))
    plan = decide(state, alone(a=1.0, b=1.0), RESET)
    assert list(plan.allocations) == ["a"]
    assert (plan.reasons["b"].code, plan.reasons["b"].numbers["wait_s"]) == ("renewal", 460.0)
    state.apply(Tick(510.0))
    assert list(decide(state, alone(a=1.0, b=1.0), RESET).allocations) == ["a", "b"]


def test_gavel_counts_from_half_a_round_and_keeps_what_was_missed_as_deficit() -> None:
    state = gavel_state(job("a", 2), job("b", 2))
    owed = alone(a=0.5, b=0.5)
    carry_out(state, decide(state, owed, RESET))
    state.apply(Tick(110.0))
    memo = decide(state, owed, RESET).memo["rounds"]
    assert memo["received"] == {"a": {"gpu": ROUND_S / 2 + 100.0}}
    state.apply(JobSubmitted(510.0, JobSpec(id="c")))
    memo = decide(state, owed, RESET).memo["rounds"]
    assert memo["deficit"]["b"]["gpu"] == pytest.approx(0.5 * 500.0)
    assert memo["deficit"]["a"]["gpu"] == pytest.approx(0.5 * 500.0 - 500.0)
    assert memo["received"] == {}


def test_by_type_an_earlier_type_is_filled_before_a_later_one_is_looked_at() -> None:
    """Job a is owed little of the first type and much of the second: Gavel puts it on the first all the same."""
    view = make_view("fast=1x1,slow=1x1", [job("a", 1)])
    owed = {(("a",), "fast"): 0.1, (("a",), "slow"): 0.9}
    fast, slow = (
        {view.nodes[n].gpu_type for n in next_round(view, owed, o).allocations["a"].nodes} for o in (RESET, OURS)
    )
    assert (fast, slow) == ({"fast"}, {"slow"})


@pytest.mark.parametrize("options", [{"round_s": 0.0}, {"queue": "none"}, {"leftovers": "burn"}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=next(iter(options))):
        RoundOptions(**options)
    with pytest.raises(InvalidSpec, match="expected fairlead, gavel, shockwave"):
        round_options("slurm", 60.0)


@pytest.mark.parametrize("policy", ["gavel", "isolated", "gandiva-fair"])
def test_where_all_gpus_are_held_by_jobs_that_must_not_be_stopped_no_share_is_told(policy: str) -> None:
    view = make_view("1x4", [job("firm", 4, on="n0[0,1,2,3]", preemptible=False), job("one", 1)], now=10.0)
    reasons = make_policy(policy).plan(view).reasons
    assert "it must not be stopped, and takes no turns" in reasons["firm"].text
    assert "no time is left to share: all GPUs are held by jobs that must not be stopped" in reasons["one"].text
