"""For authors of policies: the contract every policy keeps, and small clusters to try one on.

`check_policy` needs hypothesis (`pip install 'fairlead[dev]'`) when it is called; the rest needs nothing.

    from fairlead.testing import Scenario, check_policy, job

    def test_my_policy_keeps_the_contract() -> None:
        check_policy(MyPolicy())

    def test_a_small_job_passes_a_large_one() -> None:
        Scenario(nodes="1x4", jobs=[job("large", 8), job("small", 1)], expected={"small": 1}).check(MyPolicy())
"""

from fairlead.testing.check import check_policy
from fairlead.testing.contract import PolicyContractError
from fairlead.testing.scenario import GivenJob, Scenario, job, make_state, make_view, placement
from fairlead.testing.showing import show

__all__ = [
    "GivenJob",
    "PolicyContractError",
    "Scenario",
    "check_policy",
    "job",
    "make_state",
    "make_view",
    "placement",
    "show",
]
