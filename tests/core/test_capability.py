"""What policies need and worlds can do: what is declared, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fairlead.core.capability import EVERYTHING, Capability, check_used, needs_of, require, used_by
from fairlead.core.errors import InvalidPlan, InvalidSpec
from fairlead.core.types import Plan
from fairlead.plugins import POLICIES, make_policy
from fairlead.policies.fifo import Fifo
from fairlead.policies.middleware import standard
from fairlead.sim.backend import SimBackend


@dataclass(frozen=True)
class Declares:
    needs: Any = ()


def test_a_policy_without_a_declaration_needs_nothing() -> None:
    assert needs_of(Fifo()) == frozenset()
    assert needs_of(object()) == frozenset()


def test_needs_may_be_named_by_their_texts() -> None:
    assert needs_of(Declares({"oracle"})) == needs_of(Declares([Capability.ORACLE])) == {Capability.ORACLE}


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("oracle", "declares needs = 'oracle'; expected a set of oracle, packing, suspension, renting"),
        (True, "declares needs = True; expected a set of"),
        ({"orakel"}, "declares that it needs 'orakel'; expected one of oracle, packing"),
    ],
)
def test_what_is_no_declaration_is_refused(needs: Any, words: str) -> None:
    with pytest.raises(InvalidSpec, match="policy Declares") as caught:
        needs_of(Declares(needs))
    assert words in str(caught.value)


def test_the_former_word_is_refused_with_the_present_one() -> None:
    class Old:
        needs_oracle: ClassVar[bool] = True

    with pytest.raises(InvalidSpec, match=r'write needs = frozenset\(\{"oracle"\}\) instead'):
        needs_of(Old())


def test_a_wrapper_needs_what_it_wraps_needs() -> None:
    for name in POLICIES:
        if getattr(type(make_policy(name)), "wears", False):
            assert needs_of(make_policy(f"{name}+srtf")) >= {Capability.ORACLE}, name
    assert needs_of(standard(make_policy("autoscale+srtf"))) == {Capability.ORACLE, Capability.RENTING}


def test_a_simulation_can_do_everything() -> None:
    assert SimBackend.can == EVERYTHING == set(Capability)
    require(make_policy("autoscale+srtf"), SimBackend.can, name="autoscale+srtf", world="a simulation")


def test_a_mismatch_is_refused_with_the_reason_and_the_remedy() -> None:
    with pytest.raises(InvalidSpec) as caught:
        require(make_policy("autoscale+srtf"), frozenset(), name="autoscale+srtf", world="a brick")
    told = str(caught.value)
    assert told.startswith("policy 'autoscale+srtf' needs what a brick cannot do: oracle (the true remaining time")
    assert "and renting (nodes that can be given back and rented again). Choose a policy" in told


def test_what_a_plan_takes_is_seen_in_it() -> None:
    assert used_by(Plan()) == used_by(Plan(packed=frozenset({frozenset({"a"})}))) == frozenset()
    assert used_by(Plan(packed=frozenset({frozenset({"a", "b"})}))) == {Capability.PACKING}
    renting = Plan(nodes=frozenset())
    assert used_by(renting) == {Capability.RENTING}
    check_used(renting, EVERYTHING)
    with pytest.raises(InvalidPlan, match="the plan needs renting"):
        check_used(renting, EVERYTHING - {Capability.RENTING})
