"""Random pairs: packed when jobs ask for more than there is, with a partner by chance, in equal parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fairlead.core.capability import Capability, needs_of
from fairlead.core.errors import InvalidSpec
from fairlead.core.snapshot import Snapshot, TrueRates
from fairlead.core.types import Node, Plan
from fairlead.plugins import make_policy
from fairlead.policies.random_pairs import equal_parts, groups_of
from fairlead.testing import GivenJob, job, make_view


class Beside:
    """A step oracle: every job trains its own model at a rate of 1, and of that keeps a share beside another job."""

    def __init__(self, kept: Mapping[frozenset[str], float], otherwise: float) -> None:
        self._kept, self._otherwise = kept, otherwise

    def workload(self, job_id: str) -> str:
        return job_id

    def rates(self, job_id: str, configurations: Sequence[tuple[str, int, int, tuple[str, ...]]]) -> TrueRates:
        rates = [
            self._kept.get(frozenset((job_id, *partners)), self._otherwise) if partners else 1.0
            for *_, partners in configurations
        ]
        return TrueRates(tuple(rates), 100.0, 1.0)


def told(
    nodes: str | Sequence[Node],
    jobs: Sequence[GivenJob],
    kept: Mapping[frozenset[str], float] | None = None,
    *,
    otherwise: float = 0.8,
    after: Plan | None = None,
) -> Snapshot:
    """At the beginning, or two rounds after a plan whose jobs may have ended meanwhile."""
    view = make_view(nodes, jobs, oracle={given.spec.id: 100.0 for given in jobs}, now=720.0 if after else 0.0)
    memo = {} if after is None else after.memo
    return replace(view, step_oracle=Beside(kept or {}, otherwise), memo=memo)  # type: ignore[arg-type]


def planned(view: Snapshot, options: str = "") -> Plan:
    return make_policy(f"random-pairs-oracle:{options}" if options else "random-pairs-oracle").plan(view)


def paired(plan: Plan) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in plan.memo["random-pairs"].items()}


def test_jobs_that_fit_have_gpus_of_their_own() -> None:
    plan = planned(told("1x4", [job(name) for name in "abcd"]))
    assert not plan.packed
    assert len(plan.allocations) == 4


def test_jobs_share_gpus_in_pairs_once_they_ask_for_more_than_there_is() -> None:
    plan = planned(told("1x4", [job(name) for name in "abcdefgh"]))
    assert len(plan.allocations) == 8
    assert sorted(len(group) for group in plan.packed) == [2, 2, 2, 2]
    assert paired(plan) == set(plan.packed)


def test_only_jobs_of_equal_size_are_paired() -> None:
    plan = planned(told("1x4", [job("a", 1), job("b", 2), job("c", 4), job("d", 2), job("e", 4), job("f", 1)]))
    assert paired(plan) == {frozenset("af"), frozenset("bd"), frozenset("ce")}


def test_partners_are_drawn_and_not_chosen() -> None:
    """With the best partners known, gavel takes them; here the seed decides, so that most draws miss them."""
    jobs = [job(name) for name in "abcd"]
    best = {frozenset("ab"): 1.0, frozenset("cd"): 1.0}
    view = told("1x2", jobs, best, otherwise=0.6)
    chosen = make_policy("gavel-oracle:sharing=pairs").plan(view)
    assert set(chosen.packed) == set(best)
    draws = [paired(planned(view, f"seed={seed}")) for seed in range(12)]
    assert set(best) in draws
    assert sum(draw != set(best) for draw in draws) > 4
    assert paired(planned(view, "seed=3")) == draws[3]


def test_a_pair_stays_together_while_other_jobs_come_and_go() -> None:
    first = planned(told("1x2", [job(name) for name in "abcd"]))
    pairs = paired(first)
    left = sorted(next(iter(pairs)))
    jobs = [job(name) for name in (*left, "x", "y", "z")]
    later = planned(told("1x2", jobs, after=first))
    assert frozenset(left) in paired(later)
    assert len(paired(later)) == 2


def test_a_pair_that_gets_less_done_together_than_by_turns_is_parted() -> None:
    first = planned(told("1x1", [job("a"), job("b")]))
    assert paired(first) == {frozenset("ab")}
    bad = told("1x1", [job("a"), job("b")], otherwise=0.45, after=first)
    assert paired(planned(bad)) == set()
    assert paired(planned(bad, "least=0.9")) == {frozenset("ab")}


def test_jobs_that_cannot_run_beside_each_other_are_never_paired() -> None:
    view = told("1x1", [job("a"), job("b"), job("c")], {frozenset("ab"): 0.0, frozenset("ac"): 0.0})
    assert paired(planned(view, "least=0")) == {frozenset("bc")}


def test_a_job_that_may_not_be_preempted_has_no_partner() -> None:
    jobs = [job("a", preemptible=False), job("b"), job("c"), job("d")]
    assert all("a" not in pair for pair in paired(planned(told("1x2", jobs))))


def test_every_pair_has_an_equal_part_of_each_gpu_type_whatever_suits_its_jobs() -> None:
    nodes = [Node("n0", 1, "fast", speed=9.0), Node("n1", 1, "slow", speed=1.0)]
    view = make_view(nodes, [job(name) for name in "abcdef"])
    owed = equal_parts(view, groups_of(view, {"a": "d", "b": "e"}))
    assert set(owed.values()) == {0.25}
    assert len(owed) == 8
    assert {group for group, _ in owed} == {("a", "d"), ("b", "e"), ("c",), ("f",)}


def test_a_job_is_told_what_its_pair_is_owed() -> None:
    plan = planned(told("1x1", [job(name) for name in "abcd"]))
    waiting = next(name for name in "abcd" if name not in plan.allocations)
    assert plan.reasons[waiting].numbers["owed"] == pytest.approx(0.5)
    assert "owed 50% of the time" in plan.reasons[waiting].text


def test_what_it_needs_and_refuses() -> None:
    assert needs_of(make_policy("random-pairs")) == {Capability.PACKING}
    assert needs_of(make_policy("random-pairs-oracle")) == {Capability.PACKING, Capability.ORACLE}
    for options in ("least=-1", "mechanism=slurm", "round_s=0"):
        with pytest.raises(InvalidSpec):
            make_policy(f"random-pairs:{options}")
