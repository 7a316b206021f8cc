"""A deliberately wrong policy for every rule of the contract: a check that cannot fail proves nothing."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fairlead.core.capability import Capability
from fairlead.core.loop import Policy
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import NOTHING, Allocation, Plan, Reason
from fairlead.policies.fifo import Backfill, Fifo
from fairlead.testing import PolicyContractError, check_policy
from fairlead.testing.contract import RULES


def told(view: Snapshot, allocations: dict[str, Allocation]) -> Plan:
    """A plan with reasons, so that nothing but the mistake under test is wrong."""
    return Plan(allocations, {job_id: Reason("test", "for a test") for job_id in view.jobs})


@dataclass(frozen=True)
class OverCommits:
    def plan(self, view: Snapshot) -> Plan:
        allocations = dict(view.allocations)
        for job in view.jobs.values():
            fits = [node for node in view.nodes.values() if node.open and node.gpus >= job.spec.gpus]
            fits = [node for node in fits if not job.spec.gpu_types or node.gpu_type in job.spec.gpu_types]
            if not job.allocation and fits:
                allocations[job.id] = Allocation.of({fits[0].id: range(job.spec.gpus)})  # whoever is there
        return told(view, allocations)


@dataclass(frozen=True)
class UsesLostNodes:
    def plan(self, view: Snapshot) -> Plan:
        healthy = replace(view, nodes={node.id: replace(node, healthy=True) for node in view.nodes.values()})
        return Backfill().plan(replace(healthy, _table=None, _node_table=None))


@dataclass(frozen=True)
class FillsDrainingNodes:
    def plan(self, view: Snapshot) -> Plan:
        opened = replace(view, nodes={node.id: replace(node, draining=False) for node in view.nodes.values()})
        return Backfill().plan(replace(opened, _table=None, _node_table=None))


@dataclass(frozen=True)
class IgnoresTypes:
    def plan(self, view: Snapshot) -> Plan:
        jobs = {job.id: replace(job, spec=replace(job.spec, gpu_types=())) for job in view.jobs.values()}
        return Backfill().plan(replace(view, jobs=jobs, _table=None))


@dataclass(frozen=True)
class ForgetsReasons:
    def plan(self, view: Snapshot) -> Plan:
        return Plan(dict(view.allocations), {job_id: Reason("kept", "stays") for job_id in view.allocations})


@dataclass(frozen=True)
class GivesNoWords:
    def plan(self, view: Snapshot) -> Plan:
        return Plan(dict(view.allocations), dict.fromkeys(view.jobs, Reason("kept", " ")))


@dataclass(frozen=True)
class GivesNoNumber:
    def plan(self, view: Snapshot) -> Plan:
        return Plan(dict(view.allocations), dict.fromkeys(view.jobs, Reason("kept", "stays", {"share": math.nan})))


@dataclass(frozen=True)
class MutatesJobs:
    def plan(self, view: Snapshot) -> Plan:
        plan = told(view, dict(view.allocations))
        if view.jobs:
            view.jobs.popitem()  # type: ignore[attr-defined]
        return plan


@dataclass(frozen=True)
class MutatesColumns:
    def plan(self, view: Snapshot) -> Plan:
        view.columns.service_gpu_s_J[:] += 1.0
        return told(view, dict(view.allocations))


@dataclass(frozen=True)
class MutatesLabels:
    def plan(self, view: Snapshot) -> Plan:
        for job in view.jobs.values():
            job.spec.labels["seen"] = "yes"  # type: ignore[index]
        return told(view, dict(view.allocations))


@dataclass(frozen=True)
class ThrowsDice:
    def plan(self, view: Snapshot) -> Plan:
        plan = Backfill().plan(view)
        return plan if random.random() < 0.5 else replace(plan, allocations=dict(view.allocations))


@dataclass(frozen=True)
class SharesMemory:
    """State on the class: two copies in one process are not the same policy."""

    calls: ClassVar[Iterable[int]] = itertools.count()

    def plan(self, view: Snapshot) -> Plan:
        return replace(Backfill().plan(view), review_at=view.now + 1.0 + next(iter(self.calls)))


@dataclass(frozen=True)
class OrdersByChance:
    """The same allocations in another order give other commands."""

    calls: ClassVar[Iterable[int]] = itertools.count()

    def plan(self, view: Snapshot) -> Plan:
        plan = Backfill().plan(view)
        items = list(plan.allocations.items())
        return replace(plan, allocations=dict(items if next(iter(self.calls)) % 2 else items[::-1]))


@dataclass(frozen=True)
class LooksBack:
    def plan(self, view: Snapshot) -> Plan:
        return replace(Backfill().plan(view), review_at=view.now)


@dataclass(frozen=True)
class PreemptsTheUnpreemptible:
    def plan(self, view: Snapshot) -> Plan:
        keep = {i: a for i, a in view.allocations.items() if view.jobs[i].spec.preemptible}
        return told(view, keep)


@dataclass(frozen=True)
class Raises:
    def plan(self, view: Snapshot) -> Plan:
        assert view.nodes, "who would run a cluster without nodes?"
        return Backfill().plan(view)


@dataclass(frozen=True)
class ReturnsNothing:
    def plan(self, view: Snapshot) -> Plan:
        return None  # type: ignore[return-value]


@dataclass(frozen=True)
class NeverStarts:
    def plan(self, view: Snapshot) -> Plan:
        return told(view, dict(view.allocations))


@dataclass(frozen=True)
class MovesForEver:
    """Stops everybody every second: with restarts, nobody gets anywhere."""

    def plan(self, view: Snapshot) -> Plan:
        kept = {i: a for i, a in view.allocations.items() if not view.jobs[i].spec.preemptible}
        plan = told(view, kept) if len(view.allocations) > len(kept) else Backfill().plan(view)
        return replace(plan, review_at=view.now + 1.0)


@dataclass(frozen=True)
class ClaimsTooMuch:
    starvation_free: ClassVar[bool] = True
    inner: Backfill = field(default_factory=Backfill)

    def plan(self, view: Snapshot) -> Plan:
        return self.inner.plan(view)


@dataclass(frozen=True)
class ClaimsTooMuchOnPromises:
    """Lets small jobs pass as soon as they promise nothing."""

    starvation_free: ClassVar[bool] = True

    def plan(self, view: Snapshot) -> Plan:
        promised = all(job.spec.estimate_s is not None for job in view.jobs.values())
        return (Fifo() if promised else Backfill()).plan(view)


@dataclass(frozen=True)
class RentsInSilence:
    needs: frozenset[Capability] = frozenset()

    def plan(self, view: Snapshot) -> Plan:
        return replace(Backfill().plan(view), nodes=frozenset(view.nodes) - view.released)


@dataclass(frozen=True)
class PacksInSilence:
    needs: frozenset[Capability] = frozenset()

    def plan(self, view: Snapshot) -> Plan:
        plan = Backfill().plan(view)
        return replace(plan, packed=frozenset({frozenset(plan.allocations)}))


WRONG: list[tuple[str, Callable[[], Policy], str]] = [
    ("valid", OverCommits, "both get GPU"),
    ("valid", UsesLostNodes, "which is lost"),
    ("valid", FillsDrainingNodes, "which is draining"),
    ("valid", IgnoresTypes, "it accepts"),
    ("reasons", ForgetsReasons, "has none"),
    ("reasons", GivesNoWords, "Reason(code='kept', text=' '"),
    ("reasons", GivesNoNumber, "a number that is none"),
    ("pure", MutatesJobs, "changed jobs"),
    ("pure", MutatesColumns, "changed columns.service_gpu_s_J"),
    ("pure", MutatesLabels, "changed jobs"),
    ("deterministic", ThrowsDice, ""),
    ("deterministic", SharesMemory, "review_at"),
    ("deterministic", OrdersByChance, "allocations differ"),
    ("needs", RentsInSilence, "its plan takes renting, which it does not declare"),
    ("needs", PacksInSilence, "its plan takes packing, which it does not declare"),
    ("review", LooksBack, "review_at is 0.0, now is 0.0"),
    ("valid", PreemptsTheUnpreemptible, "must not be preempted"),
    ("answers", Raises, "who would run a cluster without nodes?"),
    ("answers", ReturnsNothing, "it returned None"),
    ("finishes", NeverStarts, "these did not end"),
    ("finishes", MovesForEver, ""),
    ("starvation-free", ClaimsTooMuch, "waited"),
    ("starvation-free", ClaimsTooMuchOnPromises, "without promised run times"),
]


@pytest.mark.parametrize(("rule", "policy", "words"), WRONG, ids=[policy.__name__ for _, policy, _ in WRONG])
def test_a_policy_that_breaks_a_rule_is_caught(rule: str, policy: Callable[[], Policy], words: str) -> None:
    with pytest.raises(PolicyContractError) as caught:
        check_policy(policy())
    assert caught.value.rule == rule, str(caught.value)
    message = str(caught.value)
    assert message.startswith(f"rule '{rule}' is broken ({RULES[rule]}): ")
    assert words in message
    assert len(message.splitlines()) <= 30


def test_every_rule_has_a_policy_that_breaks_it() -> None:
    assert {rule for rule, _, _ in WRONG} == set(RULES)


def test_the_message_shows_the_situation_after_it_was_made_small() -> None:
    with pytest.raises(PolicyContractError) as caught:
        check_policy(PreemptsTheUnpreemptible())
    assert "2 nodes, 1 jobs" in str(caught.value)
    assert "not preemptible" in str(caught.value)


def test_a_policy_that_makes_no_claim_may_starve() -> None:
    check_policy(Backfill(), examples=5)


def test_an_oracle_is_told_the_truth_and_others_are_not() -> None:
    @dataclass(frozen=True)
    class Curious:
        needs: frozenset[Capability]

        def plan(self, view: Snapshot) -> Plan:
            assert (view.oracle is not None) == bool(self.needs)
            if view.oracle is not None:
                assert all(view.oracle(job_id) >= 0.0 for job_id in view.jobs)
            return Backfill().plan(view)

    check_policy(Curious(needs=frozenset({Capability.ORACLE})), examples=10)
    check_policy(Curious(needs=frozenset()), examples=10)


def test_what_a_plan_takes_may_be_declared() -> None:
    check_policy(RentsInSilence(needs=frozenset({Capability.RENTING})), examples=5)
    check_policy(PacksInSilence(needs=frozenset({Capability.PACKING})), examples=5)


def test_a_memory_in_the_policy_object_is_found_since_a_fresh_copy_does_not_have_it() -> None:
    @dataclass(frozen=True)
    class RemembersInTheObject:
        _seen: dict[str, int] = field(default_factory=dict, init=False)

        def plan(self, view: Snapshot) -> Plan:
            for job_id in view.jobs:
                self._seen[job_id] = self._seen.get(job_id, 0) + 1
            order = sorted(view.jobs, key=lambda job_id: (self._seen[job_id] % 3, job_id))
            return replace(Backfill().plan(view), memo={"order": order})

    policy = RemembersInTheObject()
    with pytest.raises(PolicyContractError, match="'deterministic' is broken"):
        check_policy(policy, examples=20)
    assert policy._seen == {}, "the policy handed in is left unused"


def test_a_memory_in_the_plan_is_what_the_next_snapshot_brings() -> None:
    @dataclass(frozen=True)
    class Counts:
        def plan(self, view: Snapshot) -> Plan:
            counted = {job_id: view.memo.get("counts", {}).get(job_id, 0) + 1 for job_id in view.jobs}
            return replace(Backfill().plan(view), memo={"counts": counted})

    check_policy(Counts(), examples=20)


@pytest.mark.parametrize("value", [None, (1, 2), math.nan, math.inf, np.float64(1.0), {1: 2}, {1, 2}, object()])
def test_a_memo_that_json_does_not_hold_exactly_is_refused(value: Any) -> None:
    @dataclass(frozen=True)
    class KeepsIt:
        def plan(self, view: Snapshot) -> Plan:
            return replace(Backfill().plan(view), memo={"kept": {"deep": [value]}})

    with pytest.raises(PolicyContractError, match=r"memo\.kept\.deep\[0\]"):
        check_policy(KeepsIt(), examples=2)


def test_nothing_is_a_valid_target_for_who_may_be_preempted() -> None:
    @dataclass(frozen=True)
    class StopsEverybodyOnce:
        def plan(self, view: Snapshot) -> Plan:
            kept = {i: a for i, a in view.allocations.items() if not view.jobs[i].spec.preemptible}
            assert NOTHING not in kept.values()
            return told(view, kept)

    with pytest.raises(PolicyContractError) as caught:
        check_policy(StopsEverybodyOnce(), examples=20)
    assert caught.value.rule == "finishes"
