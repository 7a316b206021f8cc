"""A policy that fails does not end the loop: everybody stays, and it is told why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.backends.local import LocalBackend
from fairlead.core.snapshot import Snapshot
from fairlead.core.types import Plan
from fairlead.policies.fifo import Fifo
from fairlead.server.steady import SteadyPolicy
from fairlead.testing import job, make_view


@dataclass(frozen=True)
class RentsInSilence:
    """Gives a node back, and has not declared that it would."""

    def plan(self, view: Snapshot) -> Plan:
        return replace(Fifo().plan(view), nodes=frozenset({"n0"}))


def test_a_plan_that_takes_what_this_machine_cannot_do_is_not_carried_out() -> None:
    view = make_view("2x4", [job("a", 2, on="n0[0,1]"), job("b", 2)])
    steady = SteadyPolicy(RentsInSilence(), can=LocalBackend.can)
    plan = steady.plan(view)
    assert (dict(plan.allocations), plan.nodes) == (dict(view.allocations), None)
    assert "the plan needs renting" in steady.complaint
    assert plan.reasons["b"].code == "policy-error"
    assert SteadyPolicy(RentsInSilence()).plan(view).nodes == {"n0"}


def test_a_policy_that_fails_once_keeps_its_memory() -> None:
    @dataclass(frozen=True)
    class Fails:
        def plan(self, view: Snapshot) -> Plan:
            raise ZeroDivisionError(view.now)

    view = replace(make_view("1x4", [job("a", 2)]), memo={"fails": {"deficit": 3.5}})
    assert SteadyPolicy(Fails()).plan(view).memo == {"fails": {"deficit": 3.5}}
