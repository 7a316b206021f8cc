"""Every policy that comes with Fairlead keeps the contract it asks of others."""

from __future__ import annotations

import pytest

from fairlead.plugins import POLICIES, make_policy
from fairlead.testing import check_policy


@pytest.mark.parametrize(
    "policy", [*POLICIES, "tiresias:promote=2", "tiresias:thresholds=60/600,promote=8", "tiresias:thresholds=1"]
)
def test_a_built_in_policy_keeps_the_contract(policy: str) -> None:
    check_policy(make_policy(policy), examples=30)
